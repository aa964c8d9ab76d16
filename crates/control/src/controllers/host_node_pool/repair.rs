//! Whether nodes that are not Ready are taken from their tenants, in the conditions and the Events of a pool.

use super::HostNodePoolContext;
use berth_api::{
    HostNodePool, HostNodePoolStatus,
    conditions::{ConditionUpdate, REPAIR_ALLOWED},
};
use berth_planner::PoolHealth;
use kube::{
    Resource,
    runtime::events::{Event, EventType},
};

/// Reason of the condition and of the Event: more nodes are not Ready than may be.
const TOO_MANY_UNHEALTHY: &str = "TooManyUnhealthy";

/// The condition of a pool that repairs its nodes. Before the first plan the last report stays.
pub(super) fn report_repair(pool: &HostNodePool, health: Option<PoolHealth>) -> Option<ConditionUpdate> {
    pool.spec.repair.as_ref()?;
    let health = health?;
    let PoolHealth {
        not_ready,
        max_unhealthy,
        without_replacement,
    } = health;
    if !health.allows_repair() {
        let message = format!(
            "{not_ready} nodes are not Ready, and spec.repair.maxUnhealthy allows {max_unhealthy}: no node is taken from its tenant; look at the network \
             and at the host's API servers, or raise maxUnhealthy"
        );
        return Some(ConditionUpdate::mark_false(REPAIR_ALLOWED, TOO_MANY_UNHEALTHY, message));
    }
    let staying = match without_replacement {
        0 => String::new(),
        number => format!("; {number} of them stay with their tenants until other nodes can take their place"),
    };
    let message = format!("{not_ready} nodes are not Ready, and {max_unhealthy} may be{staying}");
    Some(ConditionUpdate::mark_true(REPAIR_ALLOWED, "WithinLimit", message))
}

/// Publishes an Event when more nodes are not Ready than may be, and were not before.
pub(super) async fn publish_too_many_unhealthy(
    context: &HostNodePoolContext,
    pool: &HostNodePool,
    before: &HostNodePoolStatus,
    update: Option<ConditionUpdate>,
) {
    let Some(message) = begins_to_be_too_many(before, update) else {
        return;
    };
    let event = Event {
        type_: EventType::Warning,
        reason: TOO_MANY_UNHEALTHY.into(),
        note: Some(message),
        action: "Repair".into(),
        secondary: None,
    };
    context.recorder.publish(&event, &pool.object_ref(&())).await;
}

/// The message of the condition, if it says from now on that too many nodes are not Ready.
fn begins_to_be_too_many(before: &HostNodePoolStatus, update: Option<ConditionUpdate>) -> Option<String> {
    let update = update.filter(|update| update.reason == TOO_MANY_UNHEALTHY)?;
    let was = before
        .conditions
        .iter()
        .find(|condition| condition.type_ == REPAIR_ALLOWED);
    was.is_none_or(|was| was.reason != TOO_MANY_UNHEALTHY)
        .then_some(update.message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{HostNodePoolSpec, RepairSpec, conditions};
    use jiff::Timestamp;

    fn report(not_ready: u32, without_replacement: u32) -> ConditionUpdate {
        let mut pool = HostNodePool::new("h100", HostNodePoolSpec::default());
        pool.spec.repair = Some(RepairSpec::default());
        let health = PoolHealth {
            not_ready,
            max_unhealthy: 2,
            without_replacement,
        };
        report_repair(&pool, Some(health)).unwrap()
    }

    fn status(update: ConditionUpdate) -> HostNodePoolStatus {
        HostNodePoolStatus {
            conditions: conditions::merge(&[], &[update], Some(1), Timestamp::UNIX_EPOCH),
            ..HostNodePoolStatus::default()
        }
    }

    #[test]
    fn only_pools_that_repair_their_nodes_report_it() {
        let pool = HostNodePool::new("h100", HostNodePoolSpec::default());
        assert_eq!(report_repair(&pool, Some(PoolHealth::default())), None);
        let mut repairing = pool;
        repairing.spec.repair = Some(RepairSpec::default());
        assert_eq!(report_repair(&repairing, None), None, "no plan yet");
    }

    #[test]
    fn the_condition_says_whether_nodes_are_taken_and_which_stay() {
        let few = report(2, 0);
        assert_eq!((few.status, few.reason), (Some(true), "WithinLimit"));
        assert!(!few.message.contains("stay"), "{}", few.message);
        assert!(
            report(2, 1).message.contains("1 of them stay"),
            "{}",
            report(2, 1).message
        );
        let many = report(3, 0);
        assert_eq!((many.status, many.reason), (Some(false), TOO_MANY_UNHEALTHY));
        assert!(many.message.starts_with("3 nodes are not Ready"), "{}", many.message);
    }

    #[test]
    fn an_event_says_it_once() {
        let (few, many) = (report(2, 0), report(3, 0));
        let begins = |before: &HostNodePoolStatus, update: &ConditionUpdate| {
            begins_to_be_too_many(before, Some(update.clone())).is_some()
        };
        assert!(begins(&HostNodePoolStatus::default(), &many));
        assert!(begins(&status(few.clone()), &many));
        assert!(!begins(&status(many.clone()), &report(4, 0)));
        assert!(!begins(&status(many), &few));
    }
}
