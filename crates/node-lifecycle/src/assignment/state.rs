//! The states of an assignment.

use berth_api::labels;

/// The state of a node that has an assignment. A node without one is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AssignmentState {
    /// Reserved for a tenant; waits for the nodes that were reserved together with it. No pods can be scheduled on it.
    Reserved,
    /// Being prepared for its tenant. No pods can be scheduled on it.
    Joining,
    /// Serves its tenant.
    Assigned,
    /// Serves its tenant, gets no new pods, and is drained soon.
    Cordoned,
    /// Its pods are evicted.
    Draining,
    /// Has no tenant; data that the previous tenant left is scrubbed.
    Scrubbing,
    /// Has no tenant; it is validated.
    Validating,
    /// Has no tenant and could not be recycled: people must repair and release it.
    Quarantined,
}

impl AssignmentState {
    pub const ALL: [Self; 8] = [
        Self::Reserved,
        Self::Joining,
        Self::Assigned,
        Self::Cordoned,
        Self::Draining,
        Self::Scrubbing,
        Self::Validating,
        Self::Quarantined,
    ];

    /// The value of the label and annotation on the node.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => "Reserved",
            Self::Joining => "Joining",
            Self::Assigned => labels::NODE_STATE_ASSIGNED,
            Self::Cordoned => "Cordoned",
            Self::Draining => "Draining",
            Self::Scrubbing => "Scrubbing",
            Self::Validating => "Validating",
            Self::Quarantined => "Quarantined",
        }
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == text)
    }

    /// Whether the tenant has the node or gets it, and it is not being released.
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Reserved | Self::Joining | Self::Assigned)
    }

    /// Whether pods of its tenant may be on the node: it carries the tenant's label and taint.
    pub fn runs_tenant_pods(self) -> bool {
        matches!(self, Self::Assigned | Self::Cordoned | Self::Draining)
    }

    /// Whether it is reserved for a tenant or being prepared for it.
    pub fn is_pending(self) -> bool {
        matches!(self, Self::Reserved | Self::Joining)
    }

    pub(super) fn has_tenant(self) -> bool {
        self.runs_tenant_pods() || self.is_pending()
    }

    pub(super) fn is_cordoned(self) -> bool {
        !matches!(self, Self::Reserved | Self::Joining | Self::Assigned)
    }
}
