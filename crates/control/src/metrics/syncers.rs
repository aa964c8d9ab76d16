//! What control knows of syncers.

use super::TenantLabels;
use crate::syncer_report::SyncerReport;
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

/// What is known of the syncers of tenants that have been started and do not sleep, and whether those that sleep need them.
#[derive(Clone, Debug, Default)]
pub struct SyncerMetrics {
    /// Whether the syncer of each is ready.
    pub syncer_ready: Family<TenantLabels, Gauge>,
    /// Kinds of which each may have objects that its syncer does not know.
    pub syncer_unlisted_kinds: Family<TenantLabels, Gauge>,
    /// Objects of each on the host that its syncer cannot bring up to date.
    pub syncer_failing_keys: Family<TenantLabels, Gauge>,
    /// Whether each that sleeps may have objects on the host that follow earlier rules of its class.
    pub sleeping_tenant_outdated: Family<TenantLabels, Gauge>,
    /// EndpointSlices that were deleted because the syncer of their tenant did not work.
    pub own_slices_deleted: Counter,
}

impl SyncerMetrics {
    /// Sets what is known of the syncer of a tenant. Without a report the tenant has none. What one says that is not ready is of the past.
    pub fn record(&self, labels: &TenantLabels, report: Option<SyncerReport>) {
        let of_ready = report.filter(|report| report.is_ready);
        for (family, value) in [
            (&self.syncer_ready, report.map(|report| i64::from(report.is_ready))),
            (
                &self.syncer_unlisted_kinds,
                of_ready.map(|report| report.unlisted_kinds),
            ),
            (&self.syncer_failing_keys, of_ready.map(|report| report.failing_keys)),
        ] {
            match value {
                Some(value) => {
                    family.get_or_create(labels).set(value);
                }
                None => {
                    family.remove(labels);
                }
            }
        }
    }

    /// Sets whether a tenant that sleeps may have objects on the host that follow earlier rules of its class. None: it does not sleep.
    pub fn record_asleep(&self, labels: &TenantLabels, is_outdated: Option<bool>) {
        let family = &self.sleeping_tenant_outdated;
        match is_outdated {
            Some(is_outdated) => {
                family.get_or_create(labels).set(i64::from(is_outdated));
            }
            None => {
                family.remove(labels);
            }
        }
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "syncer_ready",
            "Whether the syncer of a tenant has listed both sides, so that its class is enforced on the host: 1, or 0 if it has not or if control could not ask it; of tenants that do not sleep",
            self.syncer_ready.clone(),
        );
        registry.register(
            "syncer_unlisted_kinds",
            "Kinds of which a tenant may have objects that its syncer does not know: berth_syncer_unlisted_kinds, of syncers that are ready",
            self.syncer_unlisted_kinds.clone(),
        );
        registry.register(
            "syncer_failing_keys",
            "Objects of a tenant on the host that its syncer cannot bring up to date: the sum of berth_syncer_failing_keys, of syncers that are ready",
            self.syncer_failing_keys.clone(),
        );
        registry.register(
            "sleeping_tenant_outdated",
            "1 if a tenant that sleeps may have objects on the host that follow earlier rules of its class, or if that is not known, otherwise 0; only of tenants that sleep",
            self.sleeping_tenant_outdated.clone(),
        );
        registry.register(
            "own_endpoint_slices_deleted",
            "EndpointSlices with addresses of pods that tenants have made themselves and that control has deleted on the host because the syncer of their tenant had not worked for two minutes",
            self.own_slices_deleted.clone(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_a_syncer_are_there_while_it_is_ready_and_all_go_with_its_tenant() {
        let metrics = SyncerMetrics::default();
        let labels = TenantLabels {
            tenant_namespace: "team".into(),
            tenant: "vision".into(),
        };
        let families = [
            &metrics.syncer_ready,
            &metrics.syncer_unlisted_kinds,
            &metrics.syncer_failing_keys,
        ];
        let record = |report| {
            metrics.record(&labels, report);
            families.map(|family| family.get(&labels).map(|gauge| gauge.get()))
        };
        let mut report = SyncerReport {
            is_ready: true,
            unlisted_kinds: 2,
            failing_keys: 3,
            ..SyncerReport::default()
        };
        assert_eq!(record(Some(report)), [Some(1), Some(2), Some(3)]);
        report.is_ready = false;
        assert_eq!(record(Some(report)), [Some(0), None, None]);
        assert_eq!(record(None), [None, None, None]);
    }

    #[test]
    fn only_tenants_that_sleep_may_be_outdated() {
        let metrics = SyncerMetrics::default();
        let labels = TenantLabels {
            tenant_namespace: "team".into(),
            tenant: "vision".into(),
        };
        let record = |is_outdated| {
            metrics.record_asleep(&labels, is_outdated);
            let gauge = metrics.sleeping_tenant_outdated.get(&labels);
            gauge.map(|gauge| gauge.get())
        };
        assert_eq!([Some(true), Some(false), None].map(record), [Some(1), Some(0), None]);
    }
}
