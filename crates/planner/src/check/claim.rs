//! Which node group has a node before an action and after it.

use crate::{Action, ActionKind, Node, NodeState, Phase};

/// The node group that has a node, and how far the assignment has come.
#[derive(Clone, Copy)]
pub(super) enum Claim<'a> {
    None,
    Free,
    /// Pods of the tenant that it was taken from may still run there.
    Draining {
        tenant: &'a str,
    },
    Owned {
        tenant: &'a str,
        node_group: &'a str,
        /// See [`Phase::Reserved`].
        required: Option<u32>,
        cordoned: bool,
    },
}

impl<'a> Claim<'a> {
    pub(super) fn of(node: &'a Node) -> Self {
        match &node.state {
            NodeState::Free => Self::Free,
            NodeState::Owned(owner) => Self::Owned {
                tenant: &owner.tenant,
                node_group: &owner.node_group,
                required: match owner.phase {
                    Phase::Reserved { required_nodes } => Some(required_nodes),
                    _ => None,
                },
                cordoned: matches!(owner.phase, Phase::Cordoned { .. }),
            },
            NodeState::Draining { tenant, .. } => Self::Draining { tenant },
            NodeState::Unavailable { .. } | NodeState::Recycling { .. } => Self::None,
        }
    }

    /// The claim on a node that is taken from its group at once and for good: it counts for its tenant, and not for the group.
    pub(super) fn without_group(self) -> Self {
        match self {
            Self::Owned { tenant, .. } => Self::Draining { tenant },
            other => other,
        }
    }

    /// The claim after an action; `None`: the action is not possible.
    pub(super) fn after(self, action: &'a Action) -> Option<Self> {
        match (&action.kind, self) {
            (
                ActionKind::Reserve {
                    tenant,
                    node_group,
                    required_nodes,
                },
                was,
            ) => {
                let may_reserve = match was {
                    Claim::Free => true,
                    Claim::Owned {
                        tenant: owner,
                        node_group: group,
                        required: Some(_),
                        ..
                    } => owner == tenant && group == node_group,
                    _ => false,
                };
                may_reserve.then_some(Self::Owned {
                    tenant,
                    node_group,
                    required: Some(*required_nodes),
                    cordoned: false,
                })
            }
            (ActionKind::CancelReservation, Claim::Owned { required: Some(_), .. }) => Some(Self::Free),
            (ActionKind::Release { .. }, Claim::Owned { tenant, node_group, .. }) => Some(Self::Owned {
                tenant,
                node_group,
                required: None,
                cordoned: true,
            }),
            (
                ActionKind::CancelRelease,
                Claim::Owned {
                    tenant,
                    node_group,
                    cordoned: true,
                    ..
                },
            ) => Some(Self::Owned {
                tenant,
                node_group,
                required: None,
                cordoned: false,
            }),
            _ => None,
        }
    }
}
