//! What the passes work with.

use super::GpuMetricsSource;
use crate::{
    clock::Clock,
    controllers::{schedule_policy::Schedules, tenant::Tenants},
    events::EventRecorder,
    metrics::Metrics,
    stores::Stores,
};
use kube::Client;
use std::sync::Arc;

/// What the passes work with. One per process.
pub struct IdleGpusContext {
    /// The host's API server.
    pub client: Client,
    /// Views of the host.
    pub stores: Stores,
    /// Connections to the tenants' API servers.
    pub tenants: Arc<Tenants>,
    /// The time.
    pub clock: Clock,
    /// The policies: what they restrict does not count as idle.
    pub schedules: Arc<Schedules>,
    /// Where the metrics are; none: nothing is known of any GPU.
    pub source: Option<GpuMetricsSource>,
    /// Counters.
    pub metrics: Metrics,
    /// Publishes Events.
    pub recorder: EventRecorder,
}
