//! What the class controller works with.

use super::KnownKinds;
use crate::{clock::Clock, events::EventRecorder, runtime::ControlPlaneRuntime, stores::Stores};
use kube::Client;
use std::sync::Arc;

/// What the class controller works with. One per process.
pub struct TenantClassContext {
    /// The host's API server.
    pub client: Client,
    /// The host's objects, as watches know them.
    pub stores: Stores,
    /// The clock of the host, by which conditions change.
    pub clock: Clock,
    /// Whether Berth's admission policies are installed on the host. Without them no class gives capabilities.
    pub has_admission_policies: bool,
    /// Whether there is an object store for snapshots.
    pub has_snapshot_store: bool,
    /// Where control planes run.
    pub runtime: Arc<dyn ControlPlaneRuntime>,
    /// Which further kinds can be synced.
    pub kinds: Arc<KnownKinds>,
    /// Writes Events.
    pub recorder: EventRecorder,
}
