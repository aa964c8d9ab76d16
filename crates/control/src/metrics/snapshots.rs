//! Snapshots of what tenants store.

use super::{ResultLabels, TenantLabels};
use crate::gauges::Gauges;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Snapshots by how far they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SnapshotPhaseLabels {
    /// Pending, Running, Completed or Failed.
    pub phase: &'static str,
}

/// Snapshots of what tenants store.
#[derive(Clone, Debug, Default)]
pub struct SnapshotMetrics {
    /// Snapshots by phase.
    pub snapshots: Gauges<SnapshotPhaseLabels>,
    /// When the last snapshot of the schedule of a tenant was completed, in seconds since the epoch.
    pub scheduled_completed: Gauges<TenantLabels>,
    /// Whether a tenant has had no snapshot of its schedule for two periods: 1 or 0.
    pub scheduled_overdue: Gauges<TenantLabels>,
    /// Attempts to take a snapshot, by how they ended.
    pub attempts: Family<ResultLabels, Counter>,
    /// Restores, by how they ended.
    pub restores: Family<ResultLabels, Counter>,
    /// Whether the object store could not be used when it was checked last: 1 or 0.
    pub store_failing: Gauge,
}

impl SnapshotMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "snapshots",
            "TenantSnapshots by phase: Pending, Running, Completed or Failed",
            self.snapshots.family.clone(),
        );
        registry.register(
            "scheduled_snapshot_completed_timestamp_seconds",
            "When the last snapshot of the schedule of the class was completed, of each tenant whose class has one; 0 if none was",
            self.scheduled_completed.family.clone(),
        );
        registry.register(
            "scheduled_snapshot_overdue",
            "1 if a tenant whose class has a schedule of snapshots has had none for two periods, otherwise 0",
            self.scheduled_overdue.family.clone(),
        );
        registry.register(
            "snapshot_attempts",
            "Attempts to take a snapshot of a tenant by result: ok, or the reason of the condition Completed",
            self.attempts.clone(),
        );
        registry.register(
            "restores",
            "Restores of tenants by result: ok, or the reason of the condition Restored",
            self.restores.clone(),
        );
        registry.register(
            "snapshot_store_failing",
            "1 if the object store of snapshots could not be written, read or deleted from when it was checked last, otherwise 0",
            self.store_failing.clone(),
        );
    }
}
