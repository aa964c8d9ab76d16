//! The objects that the platform applies in tenants: `spec.manifests` of a class.
//!
//! [`desired`] are the manifests with their objects, [`inventory`] is what was applied, [`pass`] is a pass over the tenant, with [`deletion`] at
//! its end. [`parts`] says in which order and for how long, [`live`] what is there, [`kinds`] and [`definitions`] where the objects of a kind
//! are, and [`registrations`] which servers answer for them. [`own_groups`] keeps the groups of Kubernetes the API server's own. [`messages`] is
//! what is wrong, and [`state`] what the status says of it. The objects of a manifest in mode Keep carry a label by which the tenant's API server
//! knows them (`control_plane::admission::platform_objects`).

mod altered;
mod definitions;
mod deletion;
mod desired;
mod inventory;
mod kinds;
mod live;
mod messages;
mod objects;
mod own_groups;
mod parts;
mod pass;
mod registrations;
mod state;

pub(super) use desired::{Manifest, ParsedManifests, Problem, digest, resolve};
pub(super) use inventory::Inventory;
pub(super) use pass::{Done, Pass};
pub(super) use state::{ManifestsState, ObservedManifests, drift_events, taken_back_event};

use pass::AppliedObjects;
use std::time::Duration;
use tokio::time::Instant;

/// Time for a pass. A tenant's webhooks may answer late; the next pass does the rest.
pub(super) const PASS_LIMIT: Duration = Duration::from_secs(20);
/// Age of a pass after which the tenant is looked at again, although nothing changed on the host.
const PERIOD: Duration = Duration::from_secs(60);

/// What is remembered of a tenant between passes.
#[derive(Default)]
pub(super) struct ManifestMemory {
    /// As it is recorded; none until it was read.
    pub(super) inventory: Option<Inventory>,
    pub(super) applied: AppliedObjects,
    /// The last pass that did everything.
    pub(super) last: Option<LastPass>,
}

/// A pass that did everything.
pub(super) struct LastPass {
    /// Of the manifests.
    pub(super) digest: String,
    pub(super) at: Instant,
    pub(super) state: ManifestsState,
}

impl ManifestMemory {
    /// The state after the last pass, if another would not differ.
    pub(super) fn current_state(&self, digest: &str) -> Option<ManifestsState> {
        let last = self.last.as_ref()?;
        (last.digest == digest && last.at.elapsed() < PERIOD).then(|| last.state.clone())
    }
}
