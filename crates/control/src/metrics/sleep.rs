//! How tenants sleep and wake.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};

/// Tenants by their state of sleep.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SleepStateLabels {
    /// Awake, `FallingAsleep`, Sleeping, Enforcing or Waking.
    pub state: &'static str,
}

/// Why tenants wake.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct WakeLabels {
    /// Requested, Mode or Scheduled.
    pub cause: &'static str,
}

/// How tenants sleep and wake.
#[derive(Clone, Debug)]
pub struct SleepMetrics {
    /// Tenants by state.
    pub tenants: Family<SleepStateLabels, Gauge>,
    /// Wakes by cause.
    pub wakes: Family<WakeLabels, Counter>,
    /// Seconds from the decision to wake until the API server and the syncer are ready.
    pub wake_seconds: Histogram,
}

impl Default for SleepMetrics {
    fn default() -> Self {
        Self {
            tenants: Family::default(),
            wakes: Family::default(),
            wake_seconds: Histogram::new([1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 900.0]),
        }
    }
}

impl SleepMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "tenants_by_sleep_state",
            "TenantClusters by their state of sleep: Awake, FallingAsleep, Sleeping, Enforcing (asleep, and the rules of its class are enforced) or Waking",
            self.tenants.clone(),
        );
        registry.register(
            "tenant_wakes",
            "How often tenants that slept were woken, by cause: Requested, Mode (spec.sleep.mode) or Scheduled (a CronJob or a SchedulePolicy)",
            self.wakes.clone(),
        );
        registry.register(
            "tenant_wake_seconds",
            "Time from the decision to wake a tenant until its API server and its syncer are ready",
            self.wake_seconds.clone(),
        );
    }
}
