//! What a state makes of the node groups of a tenant.

use berth_api::{NodeGroup, NodeMode, ScheduleState};

/// A group as the state of its tenant lets it be. `held` is the number of nodes that it has now, without those that are being
/// released.
pub fn scheduled_group(group: &NodeGroup, state: ScheduleState, held: u32) -> NodeGroup {
    let most = match state {
        ScheduleState::Running => return group.clone(),
        ScheduleState::StartsForbidden => held,
        ScheduleState::Stopped => 0,
    };
    let limited = |nodes: u32| Some(nodes.min(most));
    let mut scheduled = group.clone();
    match group.mode {
        NodeMode::Private => scheduled.replicas = limited(group.minimum()),
        NodeMode::Dynamic => {
            scheduled.min_replicas = limited(group.minimum());
            scheduled.max_replicas = limited(group.maximum());
        }
        // Its nodes are not its own.
        NodeMode::Shared => {}
    }
    scheduled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(group: &NodeGroup) -> (u32, u32) {
        (group.minimum(), group.maximum())
    }

    #[test]
    fn a_stopped_group_has_no_nodes() {
        for group in [
            NodeGroup::private("a", "h100", 4),
            NodeGroup::dynamic("a", "h100", 2, 8),
        ] {
            assert_eq!(range(&scheduled_group(&group, ScheduleState::Stopped, 3)), (0, 0));
        }
    }

    #[test]
    fn a_group_that_may_not_start_keeps_what_it_has_and_gets_nothing() {
        let forbidden = |group: &NodeGroup, held| range(&scheduled_group(group, ScheduleState::StartsForbidden, held));
        let private = NodeGroup::private("a", "h100", 4);
        assert_eq!(forbidden(&private, 3), (3, 3));
        assert_eq!(forbidden(&private, 5), (4, 4), "what the spec no longer asks for goes");
        let dynamic = NodeGroup::dynamic("a", "h100", 2, 8);
        assert_eq!(forbidden(&dynamic, 5), (2, 5));
        assert_eq!(forbidden(&dynamic, 1), (1, 1));
        assert_eq!(forbidden(&dynamic, 9), (2, 8));
    }

    #[test]
    fn a_group_that_runs_is_as_the_spec_says() {
        let group = NodeGroup::dynamic("a", "h100", 2, 8);
        assert_eq!(scheduled_group(&group, ScheduleState::Running, 0), group);
    }
}
