//! Nodes of which no pod requests a GPU.

use super::{CLUSTER, Fleet};
use crate::metrics::UnrequestedGpuLabels;
use berth_api::{IdleReclaimMode, labels, names::TenantId};
use berth_node_lifecycle::demand::{SchedulingState, Workload};
use serde_json::{Value, json};

const NODE: &str = "/api/v1/nodes/gpu-1";

impl Fleet {
    /// A node of the tenant with eight GPUs that is idle for a long time.
    fn add_idle_node(&self) {
        let pool = json!({"metadata": {"name": "h100", "uid": "h100"},
            "spec": {"nodeSelector": {"pool": "h100"}, "gpuResourceName": "nvidia.com/gpu"}});
        self.host.insert("/apis/berth.dev/v1alpha1/hostnodepools/h100", pool);
        let node = json!({
            "metadata": {
                "name": "gpu-1",
                "labels": {
                    labels::TENANT: tenant().slug(), labels::NODE_STATE: "Assigned", labels::POOL: "h100", labels::NODE_GROUP: "train",
                },
                "annotations": {
                    labels::OWNER_UID: "tenant-uid", labels::NODE_STATE: "Assigned", labels::RECORDED_GPUS: "nvidia.com/gpu=8",
                    labels::IDLE_SINCE: "1970-01-01T00:00:00Z",
                },
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        });
        self.host.insert(NODE, node);
    }

    /// A pod of the tenant on that node that requests so many GPUs.
    fn put_workload(&self, gpus: u64) {
        let workload = Workload {
            tenant: tenant().slug().into(),
            name: "ml/web".into(),
            amounts: (gpus > 0)
                .then(|| ("nvidia.com/gpu".to_owned(), gpus))
                .into_iter()
                .collect(),
            scheduling: SchedulingState::Bound("gpu-1".into()),
            ..Workload::default()
        };
        self.context.stores.workloads.put("berth-w/web-host", Some(workload));
    }

    fn idle_status(&self) -> Value {
        self.host.get(CLUSTER).unwrap()["status"]["idle"].clone()
    }

    /// GPUs that no pod requests: on idle nodes, and on those in use.
    fn unrequested(&self) -> [Option<i64>; 2] {
        ["idle", "in_use"].map(|node| {
            let labels = UnrequestedGpuLabels {
                tenant_namespace: "team".into(),
                tenant: "vision".into(),
                pool: "h100".into(),
                node,
            };
            let gauge = self.context.metrics.unrequested_gpus.family.get(&labels);
            gauge.map(|gauge| gauge.get())
        })
    }
}

fn tenant() -> TenantId {
    TenantId::new("vision", "tenant-uid")
}

#[tokio::test]
async fn a_node_that_pods_without_gpus_keep_is_reported_whatever_the_class_says() {
    for mode in [IdleReclaimMode::Off, IdleReclaimMode::DryRun] {
        let mut fleet = Fleet::new(mode);
        fleet.add_idle_node();
        fleet.put_workload(0);
        // Prometheus does not answer either.
        fleet.run(1).await;
        let expected = json!([{"name": "gpu-1", "poolName": "h100", "nodeGroupName": "train", "gpus": 8,
            "idleSince": "1970-01-01T00:00:00Z", "pods": ["ml/web"]}]);
        assert_eq!(fleet.idle_status()["nodes"], expected, "{mode:?}");
        assert_eq!(fleet.unrequested(), [Some(8), Some(0)]);
        assert_eq!(fleet.evictions(), 0);
    }
}

#[tokio::test]
async fn a_node_is_no_longer_reported_once_a_pod_requests_one_of_its_gpus() {
    let mut fleet = Fleet::new(IdleReclaimMode::Off);
    fleet.add_idle_node();
    fleet.run(1).await;
    assert_eq!(fleet.idle_status()["nodes"][0]["name"], "gpu-1");
    fleet.put_workload(2);
    fleet.run(1).await;
    assert_eq!(fleet.idle_status(), Value::Null, "nothing is left to say");
    assert_eq!(fleet.unrequested(), [Some(0), Some(6)]);
    fleet.host.remove(NODE);
    fleet.run(1).await;
    assert_eq!(fleet.unrequested(), [None, None]);
}
