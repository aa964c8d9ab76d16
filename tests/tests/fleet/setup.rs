//! A host cluster with control in this process, tenants without control planes, and their pods on the host.

use berth_control::{clock::Clock, controllers::idle_gpus::GpuMetricsSource};
use berth_tests::{
    fake::FakeRuntime,
    in_process::{self, Parts},
    test_cluster::TestCluster,
};
pub(crate) use berth_tests::{
    team::{NAMESPACE, Team, cluster, until_all_free},
    wait::SOON,
};
use std::{
    sync::{Arc, LazyLock, Mutex, MutexGuard},
    time::Duration,
};

/// One runtime for all controls: the tenants' fakes outlive the control that started them.
static RUNTIME: LazyLock<Arc<FakeRuntime>> = LazyLock::new(Arc::default);

/// The clock of all controls.
pub(crate) static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::default);

/// A control in the process of a test.
pub(crate) struct Control(in_process::Control);

impl Control {
    /// Starts the one that runs from the beginning of a test.
    pub(crate) fn ensure_first(host: &TestCluster) {
        Self::first().get_or_insert_with(|| Self::start(host));
    }

    /// The one that runs from the beginning.
    pub(crate) fn first() -> MutexGuard<'static, Option<Self>> {
        static FIRST: Mutex<Option<Control>> = Mutex::new(None);
        FIRST.lock().unwrap()
    }

    /// Ends it when it has finished its current work.
    pub(crate) fn stop(self) {
        self.0.stop();
    }

    /// Ends it at any point, as `kill -9` does: none of its work goes on, and its memory is lost.
    pub(crate) fn kill(self) {
        self.0.kill();
    }

    /// Starts one.
    pub(crate) fn start(host: &TestCluster) -> Self {
        Self::start_with(host, None)
    }

    /// Starts one that reads what GPUs do.
    pub(crate) fn start_with(host: &TestCluster, gpu_metrics: Option<GpuMetricsSource>) -> Self {
        let parts = Parts {
            runtime: Arc::clone(&RUNTIME) as Arc<_>,
            clock: CLOCK.clone(),
            gpu_metrics,
            // What tenants use is compared after each step of a test.
            quota_use_interval: Duration::from_millis(250),
        };
        Self(in_process::Control::start(host, parts))
    }
}
