//! The states between one tenant and the next.

use berth_api::labels;

/// Where a node is between one tenant and the next. Without a record it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Promised to a tenant; waits for the others that were promised together with it. No pod can come.
    Reserved,
    /// Being prepared for its tenant. No pod can come.
    Joining,
    /// Serves its tenant.
    Assigned,
    /// Serves its tenant, gets no new pods, and is drained soon.
    Cordoned,
    /// Its pods are evicted.
    Draining,
    /// Nobody's; what the tenant left is cleaned away.
    Scrubbing,
    /// Nobody's; it is checked.
    Validating,
    /// Nobody's, and could not be handed on: people must look.
    Quarantined,
}

impl State {
    /// Every state.
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

    /// Its name, as on the node.
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

    /// Whether pods of its tenant may be on the node: it carries the tenant's label and taint.
    pub fn serves(self) -> bool {
        matches!(self, Self::Assigned | Self::Cordoned | Self::Draining)
    }

    /// Whether it is promised to a tenant or being prepared for it.
    pub fn is_coming(self) -> bool {
        matches!(self, Self::Reserved | Self::Joining)
    }

    /// Whether the node has a tenant.
    pub(super) fn has_owner(self) -> bool {
        self.serves() || self.is_coming()
    }

    pub(super) fn is_cordoned(self) -> bool {
        !matches!(self, Self::Reserved | Self::Joining | Self::Assigned)
    }
}
