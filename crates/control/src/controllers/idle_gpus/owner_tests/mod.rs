//! Passes with a tenant in memory: warnings on owners, owners that are stopped, and owners that are restored, once.

mod cron_jobs;
mod just_in_time;
mod restored;
mod unanswered;
mod untrusted;
mod versions;
mod warned_and_stopped;

use super::{
    tests::{CLUSTER, Fleet},
    *,
};
use crate::testing::{Script, ScriptedApi};
use berth_api::{IdleLastStep, IdleReclaim, OwnerKind};
use serde_json::{Value, json};

const TENANT_POD: &str = "/api/v1/namespaces/ml/pods/train";
const REPLICA_SET: &str = "/apis/apps/v1/namespaces/ml/replicasets/web-7d9";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/ml/deployments/web";
/// Minutes after which the pod has been due for a pass.
pub(super) const UNTIL_DUE: i64 = 42;

/// The fleet, with the tenant's API server.
pub(super) struct World {
    pub(super) fleet: Fleet,
    pub(super) tenant: ScriptedApi,
    pub(super) script: Script,
}

pub(super) fn controller(api_version: &str, kind: &str, name: &str) -> Value {
    json!([{"apiVersion": api_version, "kind": kind, "name": name, "uid": format!("{name}-uid"), "controller": true}])
}

impl World {
    /// A pod of a Deployment with one replica, under a class that stops owners.
    pub(super) fn new() -> Self {
        let fleet = Fleet::new(IdleReclaimMode::Enforce);
        let script = Script::default();
        let tenant = ScriptedApi::new("tenant", &script);
        let world = Self { fleet, tenant, script };
        world.set_rules(IdleReclaim::default().owner_kinds);
        world.own_pod(&controller("apps/v1", "ReplicaSet", "web-7d9"));
        let replica_set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web-7d9", "namespace": "ml",
            "uid": "web-7d9-uid", "ownerReferences": controller("apps/v1", "Deployment", "web")}});
        world.tenant.insert(REPLICA_SET, replica_set);
        let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "ml",
            "uid": "web-uid", "annotations": {"team": "own"}}, "spec": {"replicas": 1}, "status": {"replicas": 1}});
        world.tenant.insert(DEPLOYMENT, deployment);
        world.connect(true);
        world.fleet.gpu.set(Some(0.0));
        world
    }

    pub(super) fn set_rules(&self, owner_kinds: Vec<OwnerKind>) {
        self.fleet.set_rules(IdleReclaim {
            mode: IdleReclaimMode::Enforce,
            last_step: IdleLastStep::StopOwner,
            owner_kinds,
            ..IdleReclaim::default()
        });
    }

    pub(super) fn own_pod(&self, references: &Value) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train", "namespace": "ml", "uid": "train-uid",
            "ownerReferences": references}});
        self.tenant.insert(TENANT_POD, pod);
    }

    fn connect(&self, is_connected: bool) {
        let memory = self.fleet.context.tenants.of("tenant-uid", &self.fleet.host.client());
        memory.connection.set_client(is_connected.then(|| self.tenant.client()));
    }

    /// What the tenant's controllers do once the owner is stopped.
    pub(super) fn remove_pod(&self) {
        self.tenant.remove(TENANT_POD);
        self.fleet.context.stores.gpu_pods.put("berth-w/train-host", None);
    }

    pub(super) fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.tenant.get(path).unwrap();
        change(&mut object);
        self.tenant.insert(path, object);
    }

    fn deployment(&self) -> Value {
        self.tenant.get(DEPLOYMENT).unwrap()
    }

    fn replicas(&self) -> u64 {
        self.deployment()["spec"]["replicas"].as_u64().unwrap()
    }

    fn annotations(&self) -> Value {
        self.deployment()["metadata"]["annotations"].clone()
    }

    pub(super) fn listed(&self) -> usize {
        let cluster = self.fleet.host.get(CLUSTER).unwrap();
        cluster["status"]["idle"]["stoppedOwners"]
            .as_array()
            .map_or(0, Vec::len)
    }

    /// Asks on the host to start owners.
    fn ask(&self, request: &str) {
        let mut cluster = self.fleet.host.get(CLUSTER).unwrap();
        cluster["metadata"]["annotations"]["berth.dev/restore"] = request.into();
        self.fleet.host.insert(CLUSTER, cluster);
    }

    /// What is left of that.
    fn request(&self) -> Value {
        let cluster = self.fleet.host.get(CLUSTER).unwrap();
        cluster["metadata"]["annotations"]["berth.dev/restore"].clone()
    }

    /// Reasons of the Events on the TenantCluster.
    fn reasons(&self) -> Vec<Value> {
        let events = self.fleet.host.find("/namespaces/team/events/");
        events.iter().map(|event| event["reason"].clone()).collect()
    }

    fn patches_of_deployment(&self) -> usize {
        let calls = self.script.calls();
        let of_deployment = |text: &str| text == format!("tenant PATCH {DEPLOYMENT}");
        calls
            .iter()
            .filter(|call| !call.failed && of_deployment(&call.text))
            .count()
    }

    fn results(&self, result: &'static str) -> u64 {
        let evictions = &self.fleet.context.metrics.idle_evictions;
        evictions.get_or_create(&ResultLabels { result }).get()
    }

    /// A stopped Deployment without pods.
    async fn stopped() -> Self {
        let mut world = Self::new();
        world.fleet.run(UNTIL_DUE - 1).await;
        assert_eq!(world.replicas(), 0);
        world.remove_pod();
        world.fleet.run(3).await;
        world
    }
}
