//! A small executor for plans.

use berth_planner::{ActionKind, ActionReason, Fleet, NodeState, Owner, Phase, Plan};

/// Carries out the part of a plan that takes no time: reserves and cordons nodes, and keeps what the next plan needs.
pub fn apply(fleet: &mut Fleet, plan: &Plan) {
    for tenant in &mut fleet.tenants {
        tenant.unused = plan.unused_nodes.get(&tenant.uid).cloned().unwrap_or_default();
    }
    for action in &plan.actions {
        let now = fleet.now;
        let node = fleet
            .nodes
            .iter_mut()
            .find(|node| node.name == action.node)
            .expect("a node of the fleet");
        match &action.kind {
            ActionKind::Reserve {
                tenant,
                node_group: group,
                required_nodes: of,
            } => match &mut node.state {
                NodeState::Free => {
                    node.idle_since = Some(now);
                    node.state = NodeState::Owned(Owner {
                        tenant: tenant.clone(),
                        node_group: group.clone(),
                        since: now,
                        phase: Phase::Reserved { required_nodes: *of },
                    });
                }
                NodeState::Owned(owner) if &owner.tenant == tenant && &owner.node_group == group => {
                    assert!(
                        matches!(owner.phase, Phase::Reserved { .. }),
                        "{} is not reserved",
                        node.name
                    );
                    owner.phase = Phase::Reserved { required_nodes: *of };
                }
                other => panic!("{} was reserved for {tenant} and is {other:?}", node.name),
            },
            ActionKind::CancelReservation => {
                let NodeState::Owned(Owner {
                    phase: Phase::Reserved { .. },
                    ..
                }) = node.state
                else {
                    panic!("{} was not reserved", node.name);
                };
                node.state = NodeState::Free;
                node.idle_since = None;
            }
            ActionKind::Release { drain_at: until } => {
                let NodeState::Owned(owner) = &mut node.state else {
                    panic!("{} has no owner and cannot be released", node.name);
                };
                // Its drain begins in the same pass.
                if matches!(action.reason, ActionReason::NotReady { .. }) {
                    let tenant = owner.tenant.clone();
                    node.state = NodeState::Draining { tenant, since: now };
                    node.idle_since = None;
                } else {
                    owner.phase = Phase::Cordoned { drain_at: *until };
                }
            }
            ActionKind::CancelRelease => {
                let NodeState::Owned(owner) = &mut node.state else {
                    panic!("{} has no owner and no release to cancel", node.name);
                };
                assert!(
                    matches!(owner.phase, Phase::Cordoned { .. }),
                    "{} is not cordoned",
                    node.name
                );
                owner.phase = Phase::Assigned;
            }
        }
    }
}
