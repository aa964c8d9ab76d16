//! Control in the process of a test or benchmark, as a leader: nothing elects one here.

use crate::{fake::FakeRuntime, test_cluster::TestCluster};
use berth_control::{
    ControlConfig,
    clock::Clock,
    control_plane::HostInput,
    controllers::{
        QUOTA_USE_INTERVAL, USAGE_RETENTION_MONTHS, idle_gpus::GpuMetricsSource, nodes::jobs::NodeJobs,
        tenant::WithoutClass,
    },
    datastore::DatastoreConfig,
    metrics::Metrics,
    network::NetworkConfig,
    runtime::ControlPlaneRuntime,
};
use prometheus_client::registry::Registry;
use std::{sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// What a control gets besides its host.
#[derive(Clone)]
pub struct Parts {
    /// One runtime for controls that follow each other: the tenants' control planes outlive the control that started them.
    pub runtime: Arc<dyn ControlPlaneRuntime>,
    /// The time.
    pub clock: Clock,
    /// Where the metrics of GPUs are.
    pub gpu_metrics: Option<GpuMetricsSource>,
    /// Time between two measurements of what tenants use of their quotas.
    pub quota_use_interval: Duration,
}

impl Default for Parts {
    /// Simulated control planes, the real time, no metrics, and the intervals of the program.
    fn default() -> Self {
        Self {
            runtime: Arc::new(FakeRuntime::default()),
            clock: Clock::default(),
            gpu_metrics: None,
            quota_use_interval: QUOTA_USE_INTERVAL,
        }
    }
}

/// A control that runs.
pub struct Control {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Control {
    /// Starts one.
    pub fn start(host: &TestCluster, parts: Parts) -> Self {
        let access = host.datastore();
        let stop = CancellationToken::new();
        let config = ControlConfig {
            network: NetworkConfig::default(),
            without_class: WithoutClass::BuiltInDefaults,
            has_admission_policies: true,
            argo_cd_namespace: None,
            node_jobs: NodeJobs {
                image: "berth:test".into(),
                placeholder_image: "pause:test".into(),
                ..NodeJobs::default()
            },
            client: host.client.clone(),
            host: HostInput {
                cluster_domain: "cluster.local".into(),
                server: host.server(),
                ca_pem: std::fs::read_to_string(host.home().pki().join("ca.crt")).unwrap_or_default(),
            },
            datastore: DatastoreConfig {
                endpoints: vec![access.endpoint],
                ca_cert: access.ca_cert,
                ca_key: access.ca_key,
            },
            clock: parts.clock,
            gpu_metrics: parts.gpu_metrics,
            quota_use_interval: parts.quota_use_interval,
            usage_retention_months: USAGE_RETENTION_MONTHS,
            snapshot_store: None,
            runtime: parts.runtime,
            metrics: Metrics::new(&mut Registry::default()),
        };
        let of_control = stop.clone();
        let task = tokio::spawn(async move { berth_control::run(config, of_control, || {}).await.unwrap() });
        Self { stop, task }
    }

    /// Ends it when it has finished its current work.
    pub fn stop(self) {
        self.stop.cancel();
    }

    /// Ends it, and waits until it has.
    pub async fn finish(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// Ends it at any point, as `kill -9` does: none of its work goes on, and its memory is lost.
    pub fn kill(self) {
        self.task.abort();
    }
}
