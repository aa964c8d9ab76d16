//! Records of what tenants use.

use super::ResultLabels;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// Records of what tenants use.
#[derive(Clone, Debug, Default)]
pub struct UsageMetrics {
    /// Age of the earliest use that is in no record, or by how much the clock is behind the records, in seconds.
    pub unrecorded_seconds: Gauge,
    /// Writes of records, by how they ended.
    pub writes: Family<ResultLabels, Counter>,
}

impl UsageMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "usage_unrecorded_seconds",
            "Age of the earliest use of a tenant, or of nodes of a pool, that is in no UsageRecord, or seconds until the clock reaches the time up to which records say that usage is counted; 0 if all is recorded, or if usage is not recorded",
            self.unrecorded_seconds.clone(),
        );
        registry.register(
            "usage_writes",
            "Writes of UsageRecords by result: ok, conflict (another control has written the record), missing (somebody has deleted it), expired (deleted after metering.retentionMonths) or failed",
            self.writes.clone(),
        );
    }
}
