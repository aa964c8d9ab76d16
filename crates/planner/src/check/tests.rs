use super::*;
use crate::{
    ActionKind, MAX_NODE_GPUS, Node, NodeGroup, NodeGroupPlan, NodeState, Owner, Phase, Pool, Quota, RepairPolicy,
    RequestName, Tenant,
};

const POOL: &str = "h100";

fn node(name: &str, phase: Option<Phase>) -> Node {
    let owner = |phase| Owner {
        tenant: "uid".into(),
        node_group: "train".into(),
        phase,
        ..Owner::default()
    };
    Node {
        name: name.into(),
        pool: POOL.into(),
        capacity: [("gpu".to_owned(), 8)].into(),
        state: phase.map_or(NodeState::Free, |phase| NodeState::Owned(owner(phase))),
        ..Node::default()
    }
}

/// A tenant with a group of one to two nodes and a quota of 16 GPUs, which has two nodes; a third one is free.
fn fleet() -> Fleet {
    Fleet {
        pools: vec![Pool {
            name: POOL.into(),
            gpu_resource_name: Some("gpu".into()),
            ..Pool::default()
        }],
        nodes: vec![
            node("n1", Some(Phase::Assigned)),
            node("n2", Some(Phase::Assigned)),
            node("n3", None),
        ],
        tenants: vec![Tenant {
            uid: "uid".into(),
            name: "ml/vision".into(),
            quota: Some("gold".into()),
            node_groups: vec![NodeGroup {
                name: "train".into(),
                pool: POOL.into(),
                min_nodes: 1,
                max_nodes: 2,
                ..NodeGroup::default()
            }],
            ..Tenant::default()
        }],
        quotas: vec![Quota {
            name: "gold".into(),
            limit: [(POOL.to_owned(), 16)].into(),
            ..Quota::default()
        }],
        ..Fleet::default()
    }
}

fn action(node: &str, kind: ActionKind) -> Action {
    Action {
        node: node.into(),
        kind,
        reason: ActionReason::StillInUse,
    }
}

fn reserve(node: &str, required_nodes: u32) -> Action {
    let kind = ActionKind::Reserve {
        tenant: "uid".into(),
        node_group: "train".into(),
        required_nodes,
    };
    action(node, kind)
}

fn release(node: &str) -> Action {
    action(node, ActionKind::Release { drain_at: 0 })
}

/// The kinds of violations of a plan with these actions.
fn kinds(fleet: &Fleet, actions: Vec<Action>) -> Vec<&'static str> {
    let plan = Plan {
        actions,
        ..Plan::default()
    };
    check(fleet, &plan).iter().map(Violation::kind).collect()
}

#[test]
fn a_plan_that_keeps_the_rules_has_no_violations() {
    assert!(kinds(&fleet(), vec![release("n1")]).is_empty());
    assert!(kinds(&fleet(), Vec::new()).is_empty());
}

#[test]
fn actions_must_fit_the_states_of_their_nodes() {
    assert_eq!(kinds(&fleet(), vec![release("n3")]), ["ImpossibleAction"]);
    assert_eq!(kinds(&fleet(), vec![reserve("n1", 1)]), ["ImpossibleAction"]);
    assert_eq!(
        kinds(&fleet(), vec![release("n9")]),
        ["ImpossibleAction"],
        "no such node"
    );
    let keep = action("n1", ActionKind::CancelRelease);
    assert_eq!(kinds(&fleet(), vec![keep]), ["ImpossibleAction"], "it is not cordoned");
    assert_eq!(kinds(&fleet(), vec![release("n1"), release("n1")]), ["SeveralActions"]);
}

#[test]
fn groups_and_quotas_stay_within_their_limits() {
    let mut fleet = fleet();
    assert_eq!(kinds(&fleet, vec![reserve("n3", 1)]), ["OverMaximum", "OverQuota"]);
    fleet.tenants[0].node_groups[0].max_nodes = 3;
    assert_eq!(kinds(&fleet, vec![reserve("n3", 1)]), ["OverQuota"]);
    fleet.quotas[0].limit.clear();
    assert!(kinds(&fleet, vec![reserve("n3", 1)]).is_empty());
    assert_eq!(kinds(&fleet, vec![reserve("n3", 4)]), ["IncompleteReservation"]);
}

#[test]
fn a_node_counts_for_no_more_gpus_than_any_node_has() {
    let mut fleet = fleet();
    for node in &mut fleet.nodes {
        node.capacity.insert("gpu".into(), u64::MAX);
    }
    fleet.tenants[0].node_groups[0].max_nodes = 3;
    for (nodes, violations) in [(3, vec![]), (2, vec!["OverQuota"])] {
        fleet.quotas[0].limit.insert(POOL.into(), nodes * MAX_NODE_GPUS);
        assert_eq!(kinds(&fleet, vec![reserve("n3", 1)]), violations, "{nodes}");
    }
}

#[test]
fn a_minimum_is_taken_only_where_a_quota_is_over_its_limit() {
    let mut fleet = fleet();
    let all = || vec![release("n1"), release("n2")];
    assert_eq!(kinds(&fleet, all()), ["BelowMinimum"]);
    fleet.quotas[0].limit = [(POOL.to_owned(), 8)].into();
    assert!(kinds(&fleet, all()).is_empty());
}

#[test]
fn a_minimum_is_taken_as_far_as_others_are_owed_it() {
    let mut fleet = fleet();
    fleet.quotas[0].limit.clear();
    let all = || vec![release("n1"), release("n2")];
    let nominal = |gpus: u64| [(POOL.to_owned(), gpus)].into();
    let other = Quota {
        name: "silver".into(),
        nominal_quota: nominal(8),
        ..Quota::default()
    };
    fleet.quotas.push(other);
    assert!(kinds(&fleet, all()).is_empty());
    fleet.quotas[0].nominal_quota = nominal(16);
    assert_eq!(kinds(&fleet, all()), ["BelowMinimum"], "it is within a nominal quota");
    fleet.quotas[1].parent = Some("gold".into());
    assert!(kinds(&fleet, all()).is_empty(), "a quota below it is owed them");
    fleet.quotas[1].nominal_quota = nominal(0);
    assert_eq!(kinds(&fleet, all()), ["BelowMinimum"], "nobody is owed anything");
}

#[test]
fn no_more_nodes_are_reclaimed_than_are_waited_for() {
    let reason = ActionReason::Reclaimed {
        request: RequestName::default(),
        tenant: "ml/speech".into(),
        drain_at: None,
    };
    let mut plan = Plan {
        actions: vec![Action {
            reason,
            ..release("n1")
        }],
        ..Plan::default()
    };
    assert_eq!(check(&fleet(), &plan)[0].kind(), "NeedlessReclaim");
    let waiting = NodeGroupPlan {
        pool: POOL.into(),
        waiting: 1,
        ..NodeGroupPlan::default()
    };
    plan.node_groups = [("other".to_owned(), [("g".to_owned(), waiting)].into())].into();
    assert!(check(&fleet(), &plan).is_empty());
}

/// The fleet whose second node is drained, or belongs to a group that no longer exists.
fn fleets_with_a_node_that_goes() -> [Fleet; 2] {
    let (mut drained, mut orphaned) = (fleet(), fleet());
    drained.nodes[1].state = NodeState::Draining {
        tenant: "uid".into(),
        since: 0,
    };
    let NodeState::Owned(owner) = &mut orphaned.nodes[1].state else {
        panic!("it has an owner")
    };
    owner.node_group = "before".into();
    [drained, orphaned]
}

#[test]
fn nodes_count_for_quotas_until_their_pods_have_ended() {
    for mut fleet in fleets_with_a_node_that_goes() {
        assert_eq!(kinds(&fleet, vec![reserve("n3", 1)]), ["OverQuota"]);
        fleet.tenants[0].terminated = true;
        assert!(kinds(&fleet, vec![reserve("n3", 1)]).is_empty());
        fleet.tenants[0].terminated = false;
        fleet.nodes[1].state = NodeState::Recycling {
            previous_tenant: "vision".into(),
            since: 0,
        };
        assert!(kinds(&fleet, vec![reserve("n3", 1)]).is_empty());
    }
}

#[test]
fn no_minimum_is_taken_for_nodes_that_are_drained() {
    for mut fleet in fleets_with_a_node_that_goes() {
        fleet.quotas[0].limit = [(POOL.to_owned(), 8)].into();
        assert_eq!(kinds(&fleet, vec![release("n1")]), ["BelowMinimum"]);
    }
}

#[test]
fn a_node_is_taken_as_not_ready_only_if_its_pool_allows_it() {
    let mut fleet = fleet();
    fleet.now = 1000;
    fleet.tenants[0].node_groups[0].min_nodes = 2;
    let taken = || {
        vec![Action {
            reason: ActionReason::NotReady { not_ready: 600 },
            ..release("n1")
        }]
    };
    assert_eq!(kinds(&fleet, taken()), ["NeedlessRepair"], "the pool repairs no node");
    fleet.pools[0].repair = Some(RepairPolicy {
        not_ready_after: 600,
        max_unhealthy: 1,
        allowed_since: None,
    });
    assert_eq!(kinds(&fleet, taken()), ["NeedlessRepair"], "it is Ready");
    fleet.nodes[0].not_ready_since = Some(401);
    assert_eq!(kinds(&fleet, taken()), ["NeedlessRepair"], "it may come back");
    fleet.nodes[0].not_ready_since = Some(400);
    assert!(
        kinds(&fleet, taken()).is_empty(),
        "its group may fall below its minimum"
    );
    for (allowed_since, expected) in [(400, 0), (401, 1)] {
        fleet.pools[0].repair.as_mut().unwrap().allowed_since = Some(allowed_since);
        assert_eq!(
            kinds(&fleet, taken()).len(),
            expected,
            "{allowed_since}: an outage was before"
        );
    }
    fleet.pools[0].repair.as_mut().unwrap().allowed_since = None;
    fleet.nodes[2].not_ready_since = Some(999);
    assert_eq!(kinds(&fleet, taken()), ["NeedlessRepair"], "too many are not Ready");
}
