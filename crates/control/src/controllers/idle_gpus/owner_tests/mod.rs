//! Passes with a tenant in memory: warnings on owners, owners that are stopped, and owners that are restored, once.

mod cron_jobs;
mod just_in_time;
mod restored;
mod unanswered;
mod untrusted;
mod versions;
mod warned_and_stopped;

use super::{
    test_decision::idle_at,
    tests::{CLUSTER, Fleet},
    *,
};
use crate::testing::{Script, ScriptedApi};
use berth_api::{IdleLastStep, IdleReclaim, IdleStep, OwnerKind, OwnerSuspend};
use serde_json::{Value, json};
use std::collections::HashSet;

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

/// How a kind is suspended that has a field for it.
pub(super) fn by_path(path: &str) -> OwnerSuspend {
    OwnerSuspend {
        path: Some(path.into()),
        ..OwnerSuspend::default()
    }
}

/// The object `pool` of a kind that the field `spec.suspend` suspends.
fn pool(api_version: &str) -> Value {
    json!({"apiVersion": api_version, "kind": "Pool", "metadata": {"name": "pool", "namespace": "ml", "uid": "pool-uid"},
        "spec": {"suspend": false}})
}

/// Puts a pod into the API server of a tenant.
pub(super) fn put_pod(tenant: &ScriptedApi, name: &str, references: &Value) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml", "uid": format!("{name}-uid"),
        "ownerReferences": references}});
    tenant.insert(&format!("/api/v1/namespaces/ml/pods/{name}"), pod);
}

/// What was decided of a workload: its pods with these names in the tenant are idle.
fn idle(name: &str, pods: &[&str]) -> Decision {
    let pod = |name: &&str| {
        Arc::new(GpuPod {
            uid: format!("{name}-host"),
            origin_namespace: "ml".into(),
            origin_name: (*name).into(),
            origin_uid: format!("{name}-uid"),
            ..GpuPod::default()
        })
    };
    Decision {
        pods: pods.iter().map(pod).collect(),
        gpus: u32::try_from(pods.len()).unwrap(),
        ..idle_at(IdleStep::Warned, name)
    }
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
        put_pod(&self.tenant, "train", references);
    }

    /// Lets the tenant serve a kind.
    pub(super) fn serve_kind(&self, api_version: &str, kind: &str, plural: &str) {
        let resources = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version,
            "resources": [{"name": plural, "kind": kind, "namespaced": true}]});
        self.tenant.serve(&format!("/apis/{api_version}"), resources);
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

    /// Asks in the tenant to start an owner.
    pub(super) fn ask_on(&self, path: &str) {
        self.change(path, |object| {
            object["metadata"]["annotations"]["berth.dev/restore"] = "true".into();
        });
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

    /// Stops the owners of a workload. Returns the UIDs of host pods whose owners were stopped.
    async fn stop_owners(&mut self, decision: &Decision) -> HashSet<String> {
        let tenants = tenants::observe(&self.fleet.context.stores);
        let inside = self.fleet.memory.inside(&tenants[0]);
        stop::stop_owners(&self.fleet.context, inside, &tenants[0], decision).await
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
