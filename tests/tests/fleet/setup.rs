//! A host cluster with control in this process, tenants without control planes, and their pods on the host.

use berth_api::{HostNodePool, NodeGroup, TenantCluster, TenantClusterSpec, labels, names::TenantId};
use berth_control::{
    ControlConfig,
    control_plane::HostInput,
    controllers::{idle_gpus::GpuMetricsSource, nodes::clock::Clock},
    datastore::DatastoreConfig,
    metrics::Metrics,
};
pub(crate) use berth_tests::wait::SOON;
use berth_tests::{
    fake::FakeRuntime,
    tenant::{ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::until_true,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The namespace of all tenants of these tests.
pub(crate) const NAMESPACE: &str = "fleet";

/// One runtime for all controls: the tenants' fakes outlive the control that started them.
static RUNTIME: LazyLock<Arc<FakeRuntime>> = LazyLock::new(Arc::default);

/// The clock of all controls.
pub(crate) static CLOCK: LazyLock<Clock> = LazyLock::new(Clock::default);

/// Four nodes of one pool that recycles them quickly.
pub(crate) async fn cluster(nodes: &str) -> TestCluster {
    let host = TestCluster::without_control(nodes).await;
    ensure_namespace(&host.client, NAMESPACE).await;
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let spec = json!({"spec": {
        "modes": ["Private", "Dynamic"], "scrub": {"policy": "None"}, "validate": {"policy": "None"},
        "policy": {"minHoldDuration": "0s", "idleTimeout": "2s", "reclaimGracePeriod": "1s"},
    }});
    pools
        .patch("h100", &PatchParams::default(), &Patch::Merge(&spec))
        .await
        .unwrap();
    host
}

/// A control in the process of a test, as a leader: nothing elects one here.
pub(crate) struct Control {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

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
        self.stop.cancel();
    }

    /// Ends it at any point, as `kill -9` does: none of its work goes on, and its memory is lost.
    pub(crate) fn kill(self) {
        self.task.abort();
    }

    /// Starts one.
    pub(crate) fn start(host: &TestCluster) -> Self {
        Self::start_with(host, None)
    }

    /// Starts one that reads what GPUs do.
    pub(crate) fn start_with(host: &TestCluster, gpu_metrics: Option<GpuMetricsSource>) -> Self {
        let access = host.datastore();
        let stop = CancellationToken::new();
        let config = ControlConfig {
            network: berth_control::network::NetworkConfig::default(),
            without_class: berth_control::controllers::tenant::WithoutClass::BuiltInDefaults,
            gateway: None,
            node_jobs: berth_control::controllers::nodes::jobs::NodeJobs {
                image: "berth:test".into(),
                placeholder_image: "pause:test".into(),
                ..Default::default()
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
            clock: CLOCK.clone(),
            gpu_metrics,
            runtime: Arc::clone(&RUNTIME) as Arc<_>,
            metrics: Metrics::new(&mut Registry::default()),
        };
        let of_control = stop.clone();
        let task = tokio::spawn(async move { berth_control::run(config, of_control, || {}).await.unwrap() });
        Self { stop, task }
    }
}

/// A tenant whose pods are made by hand.
pub(crate) struct Team {
    pub(crate) name: String,
    pub(crate) id: TenantId,
    pub(crate) pods: Api<Pod>,
    nodes: Api<Node>,
    clusters: Api<TenantCluster>,
}

impl Team {
    /// Makes it, and waits until pods can be made.
    pub(crate) async fn create(host: &TestCluster, name: &str, class: Option<&str>, groups: Vec<NodeGroup>) -> Self {
        let clusters = host.tenants(NAMESPACE);
        let spec = TenantClusterSpec {
            class_name: class.map(Into::into),
            node_groups: groups,
            ..TenantClusterSpec::default()
        };
        let cluster = clusters
            .create(&PostParams::default(), &TenantCluster::new(name, spec))
            .await
            .unwrap();
        let id = TenantId::new(name, &cluster.uid().unwrap());
        let team = Self {
            name: name.into(),
            pods: Api::namespaced(host.client.clone(), &id.workload_namespace()),
            nodes: Api::all(host.client.clone()),
            id,
            clusters,
        };
        // The service account is the last object that the host creates for a namespace.
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(host.client.clone(), &team.id.workload_namespace());
        until_true("pods can be made", SOON, async || accounts.get("default").await.is_ok()).await;
        team
    }

    /// A host pod as a syncer makes it. `more` is merged into it.
    pub(crate) fn pod(&self, name: &str, gpus: u32, more: &Value) -> Pod {
        let slug = self.id.slug();
        let mut pod = json!({
            "metadata": {
                "name": name,
                "labels": {labels::TENANT: slug, labels::MANAGED_BY: labels::MANAGED_BY_SYNCER},
                "annotations": {labels::ORIGIN_NAMESPACE: "default", labels::ORIGIN_NAME: name},
            },
            "spec": {
                "nodeSelector": {labels::TENANT: slug},
                "tolerations": [
                    {"key": labels::TENANT, "operator": "Equal", "value": slug, "effect": "NoExecute"},
                    {"key": "nvidia.com/gpu", "operator": "Exists"},
                ],
                "automountServiceAccountToken": false, "dnsPolicy": "Default", "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "main", "image": "train:1",
                    "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}},
                }],
            },
        });
        merge(&mut pod, more);
        serde_json::from_value(pod).unwrap()
    }

    /// Creates a pod that requests GPUs.
    pub(crate) async fn run(&self, name: &str, gpus: u32, more: &Value) {
        self.pods
            .create(&PostParams::default(), &self.pod(name, gpus, more))
            .await
            .unwrap();
    }

    /// Pods that run.
    pub(crate) async fn running(&self) -> usize {
        let pods = self.pods.list(&ListParams::default()).await.unwrap();
        let runs = |pod: &&Pod| {
            pod.metadata.deletion_timestamp.is_none()
                && pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
        };
        pods.iter().filter(runs).count()
    }

    /// Deletes a pod for good.
    pub(crate) async fn stop(&self, name: &str) {
        let at_once = DeleteParams::default().grace_period(0);
        self.pods.delete(name, &at_once).await.unwrap();
    }

    /// Nodes that are assigned to the tenant, in any state.
    pub(crate) async fn held(&self) -> usize {
        let uid = self.cluster().await.uid().unwrap();
        let nodes = self.nodes.list(&ListParams::default()).await.unwrap();
        let owner = |node: &&Node| node.annotations().get(labels::OWNER_UID) == Some(&uid);
        nodes.iter().filter(owner).count()
    }

    pub(crate) async fn cluster(&self) -> TenantCluster {
        self.clusters.get(&self.name).await.unwrap()
    }

    /// The status of its first group.
    pub(crate) async fn group(&self) -> berth_api::NodeGroupStatus {
        let status = self.cluster().await.status.unwrap_or_default();
        status.node_groups.into_iter().next().unwrap_or_default()
    }

    /// Deletes it.
    pub(crate) async fn begin_to_delete(&self) {
        self.clusters
            .delete(&self.name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Deletes it and waits until nothing is left.
    pub(crate) async fn delete(self, host: &TestCluster) {
        self.begin_to_delete().await;
        until_gone(host, NAMESPACE, &self.name).await;
    }
}

/// Waits until no node of the pool has an owner.
pub(crate) async fn until_all_free(host: &TestCluster) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    until_true("all nodes are free", SOON, async || {
        let list = nodes.list(&ListParams::default()).await.unwrap();
        list.iter().all(|node| {
            !node.labels().contains_key(labels::NODE_STATE) && !node.annotations().contains_key(labels::OWNER_UID)
        })
    })
    .await;
}

fn merge(target: &mut Value, patch: &Value) {
    match patch {
        Value::Object(fields) if target.is_object() => {
            for (key, value) in fields {
                merge(&mut target[key], value);
            }
        }
        _ => *target = patch.clone(),
    }
}
