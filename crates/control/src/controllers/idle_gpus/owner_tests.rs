//! Passes with a tenant in memory: warnings on owners, owners that are stopped, and owners that are restored, once.

use super::{
    tests::{CLUSTER, Fleet},
    *,
};
use crate::testing::{Script, ScriptedApi};
use berth_api::{IdleLastStep, IdleReclaim, OwnerKind};
use berth_idle_reclaim::workload::WorkloadName;
use serde_json::{Value, json};

const TENANT_POD: &str = "/api/v1/namespaces/ml/pods/train";
const REPLICA_SET: &str = "/apis/apps/v1/namespaces/ml/replicasets/web-7d9";
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/ml/deployments/web";
const JOB: &str = "/apis/batch/v1/namespaces/ml/jobs/batch";
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

#[tokio::test]
async fn an_owner_is_warned_and_stopped_in_the_end() {
    let mut world = World::new();
    world.fleet.run(1).await;
    let warning: Value = serde_json::from_str(world.annotations()["berth.dev/gpus-idle"].as_str().unwrap()).unwrap();
    assert_eq!(warning["step"], "Warned");
    assert!(warning["nextStepAt"].is_string(), "{warning}");
    let pod = world.tenant.get(TENANT_POD).unwrap();
    assert_eq!(
        pod["metadata"]["annotations"]["berth.dev/gpus-idle"],
        world.annotations()["berth.dev/gpus-idle"]
    );
    assert_eq!(
        world.tenant.find("/events.k8s.io/v1/namespaces/ml/events/web.").len(),
        1
    );
    world.fleet.run(1).await;
    let cluster = world.fleet.host.get(CLUSTER).unwrap();
    assert_eq!(cluster["status"]["idle"]["workloads"][0]["owner"]["name"], "web");
    assert_eq!(world.patches_of_deployment(), 1, "once for each step");
    world.fleet.run(UNTIL_DUE - 3).await;
    assert_eq!(world.fleet.step().as_deref(), Some("Reclaimable"));
    assert_eq!(
        (world.replicas(), world.fleet.evictions(), world.results("stopped")),
        (0, 0, 1)
    );
    let annotations = world.annotations();
    let record: Value = serde_json::from_str(annotations["berth.dev/stopped"].as_str().unwrap()).unwrap();
    assert_eq!((&record["replicas"], &record["class"]), (&json!(1), &json!("gold")));
    assert_eq!(
        (&annotations["berth.dev/gpus-idle"], &annotations["team"]),
        (&Value::Null, &json!("own"))
    );
    assert_eq!(world.listed(), 1);
    let reasons: Vec<Value> = world
        .fleet
        .host
        .find("/namespaces/team/events/")
        .iter()
        .map(|event| event["reason"].clone())
        .collect();
    assert!(reasons.contains(&json!("OwnerStopped")), "{reasons:?}");
}

#[tokio::test]
async fn activity_takes_the_warning_of_the_owner_back() {
    let mut world = World::new();
    world.fleet.run(20).await;
    assert!(world.annotations()["berth.dev/gpus-idle"].is_string());
    world.fleet.gpu.set(Some(0.5));
    world.fleet.run(1).await;
    assert_eq!(world.annotations(), json!({"team": "own"}));
    let pod = world.tenant.get(TENANT_POD).unwrap();
    assert!(pod["metadata"]["annotations"]["berth.dev/gpus-idle"].is_null());
}

#[tokio::test]
async fn pods_that_stay_although_their_owner_was_stopped_are_evicted() {
    let mut world = World::new();
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions()), (0, 0));
    world.fleet.run(1).await;
    assert_eq!(world.fleet.evictions(), 1);
}

#[tokio::test]
async fn the_team_restores_with_an_annotation() {
    let mut world = Box::pin(World::stopped()).await;
    world.change(DEPLOYMENT, |object| {
        object["metadata"]["annotations"]["berth.dev/restore"] = "true".into();
    });
    world.fleet.run(1).await;
    assert_eq!((world.replicas(), world.annotations()), (1, json!({"team": "own"})));
    world.fleet.run(1).await;
    assert_eq!(world.listed(), 0);
    // It is the team's own again.
    world.change(DEPLOYMENT, |object| object["spec"]["replicas"] = 0.into());
    world.fleet.run(3).await;
    assert_eq!(world.replicas(), 0);
}

#[tokio::test]
async fn a_request_on_the_host_restores_once() {
    let mut world = Box::pin(World::stopped()).await;
    let mut cluster = world.fleet.host.get(CLUSTER).unwrap();
    cluster["metadata"]["annotations"] = json!({"berth.dev/restore": "deployment/ml/web"});
    world.fleet.host.insert(CLUSTER, cluster);
    world.fleet.run(1).await;
    assert_eq!((world.replicas(), world.listed()), (1, 1));
    let cluster = world.fleet.host.get(CLUSTER).unwrap();
    assert!(cluster["metadata"]["annotations"]["berth.dev/restore"].is_null());
    world.change(DEPLOYMENT, |object| object["spec"]["replicas"] = 0.into());
    world.fleet.memory = Memory::default();
    world.fleet.run(3).await;
    assert_eq!((world.replicas(), world.listed()), (0, 0));
}

#[tokio::test]
async fn an_owner_that_the_team_starts_itself_is_not_restored() {
    let mut world = Box::pin(World::stopped()).await;
    world.change(DEPLOYMENT, |object| object["spec"]["replicas"] = 5.into());
    world.fleet.run(2).await;
    assert_eq!(
        (world.replicas(), world.annotations(), world.listed()),
        (5, json!({"team": "own"}), 0)
    );
}

#[tokio::test]
async fn a_new_control_knows_what_was_stopped_and_a_class_that_is_off_keeps_it() {
    let mut world = Box::pin(World::stopped()).await;
    world.fleet.memory = Memory::default();
    world.fleet.set_rules(IdleReclaim::default());
    world.fleet.run(3).await;
    assert_eq!((world.replicas(), world.listed()), (0, 1));
    world.change(DEPLOYMENT, |object| {
        object["metadata"]["annotations"]["berth.dev/restore"] = "true".into();
    });
    world.fleet.run(2).await;
    assert_eq!((world.replicas(), world.listed()), (1, 0));
    let cluster = world.fleet.host.get(CLUSTER).unwrap();
    assert!(cluster["status"]["idle"].is_null(), "{cluster}");
}

#[tokio::test]
async fn an_api_server_that_does_not_answer_keeps_what_was_stopped() {
    let mut world = Box::pin(World::stopped()).await;
    world.change(DEPLOYMENT, |object| {
        object["metadata"]["annotations"]["berth.dev/restore"] = "true".into();
    });
    world.connect(false);
    world.fleet.run(200).await;
    assert_eq!((world.replicas(), world.listed()), (0, 1));
    world.connect(true);
    world.fleet.run(1).await;
    assert_eq!(world.replicas(), 1);
}

#[tokio::test]
async fn a_crash_at_any_call_stops_and_restores_exactly_once() {
    // Every call to the tenant from the step before the last one on fails once, each in a world of its own.
    for number in 0..12 {
        let mut world = World::new();
        world.fleet.run(UNTIL_DUE - 2).await;
        world.script.fail_call(world.script.calls().len() + number);
        world.fleet.run(1).await;
        world.fleet.memory = Memory::default();
        let is_stopped = world.replicas() == 0;
        assert_eq!(
            is_stopped,
            world.annotations()["berth.dev/stopped"].is_string(),
            "call {number}"
        );
        if !is_stopped {
            continue;
        }
        assert_eq!(world.listed(), 1, "call {number}");
        world.remove_pod();
        world.change(DEPLOYMENT, |object| {
            object["metadata"]["annotations"]["berth.dev/restore"] = "true".into();
        });
        world.script.fail_call(world.script.calls().len() + number);
        world.fleet.run(1).await;
        world.fleet.memory = Memory::default();
        world.fleet.run(3).await;
        assert_eq!(
            (world.replicas(), world.annotations()),
            (1, json!({"team": "own"})),
            "call {number}"
        );
        world.fleet.run(3).await;
        assert_eq!(world.listed(), 0, "call {number}");
    }
}

#[tokio::test]
async fn an_owner_that_is_not_listed_or_has_other_pods_is_not_stopped() {
    let mut world = World::new();
    world.set_rules(vec![OwnerKind {
        group: "batch".into(),
        kind: "Job".into(),
        suspend: None,
    }]);
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions(), world.listed()), (1, 1, 0));
    let mut world = World::new();
    world.change(DEPLOYMENT, |object| object["status"]["replicas"] = 2.into());
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions(), world.listed()), (1, 1, 0));
}

#[tokio::test]
async fn an_owner_of_a_kind_that_the_team_serves_itself_ends_nothing() {
    let mut world = World::new();
    // Names that continue each other, which are followed one by one: 2 to the power of 39 calls.
    let entry = |length: usize| json!({"name": format!("x{}", "/".repeat(length)), "kind": "X", "namespaced": true});
    let entries: Vec<Value> = (0..40).map(entry).collect();
    let list =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "evil.example/v1", "resources": entries});
    world.tenant.serve("/apis/evil.example/v1", list);
    world.own_pod(&controller("evil.example/v1", "X", "x"));
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.fleet.evictions(), world.listed()), (1, 0));
}

#[tokio::test]
async fn owners_that_are_no_part_of_a_path_are_not_asked_for() {
    let long = "x".repeat(1000);
    for (api_version, kind, name) in [
        ("apps/v1", "Deployment", "web/scale"),
        ("apps/v1", "Deployment", ".."),
        ("apps/v1", "Deployment", "we b"),
        ("apps/v1", "Deployment", "%77eb"),
        ("%61pps/v1", "Deployment", "web"),
        ("../v1", "Deployment", "web"),
        ("a.example/..", "Deployment", "web"),
        ("apps/v1", "Deploy/ment", "web"),
        ("a.example/v1", long.as_str(), "web"),
        (long.as_str(), "Deployment", "web"),
    ] {
        let mut world = World::new();
        world.own_pod(&controller(api_version, kind, name));
        world.fleet.run(UNTIL_DUE - 1).await;
        assert_eq!(
            (world.replicas(), world.fleet.evictions(), world.listed()),
            (1, 1, 0),
            "{name}"
        );
        let calls = world.script.calls();
        let odd = calls
            .iter()
            .find(|call| call.text.contains("/apis/") && !call.text.contains("/events"));
        assert!(odd.is_none(), "{api_version} {name}: {}", odd.unwrap().text);
    }
}

#[tokio::test]
async fn pods_of_many_owners_that_the_class_does_not_list_are_evicted() {
    let mut world = World::new();
    world.fleet.run(1).await;
    let pod = |number: usize| {
        let (name, owner) = (format!("gang-{number}"), format!("owner-{number}"));
        let uid = format!("{name}-uid");
        let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "ml", "uid": uid,
            "ownerReferences": controller("apps/v1", "ReplicaSet", &owner)}});
        world
            .tenant
            .insert(&format!("/api/v1/namespaces/ml/pods/{name}"), object);
        let object = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": owner, "namespace": "ml",
            "uid": format!("{owner}-uid")}, "spec": {"replicas": 1}});
        let path = format!("/apis/apps/v1/namespaces/ml/replicasets/{owner}");
        world.tenant.insert(&path, object);
        Arc::new(GpuPod {
            uid: format!("host-{number}"),
            origin_namespace: "ml".into(),
            origin_name: name,
            origin_uid: uid,
            ..GpuPod::default()
        })
    };
    let decision = Decision {
        workload: WorkloadName::default(),
        pods: (0..100).map(pod).collect(),
        gpus: 100,
        profile: None,
        verdict: Verdict::Idle,
        is_opted_out: false,
        state: None,
        next_step_at: None,
    };
    let before = world.script.calls().len();
    let tenants = tenants::observe(&world.fleet.context.stores);
    let fleet = &mut world.fleet;
    let stopped = stop::stop_owners(&fleet.context, &mut fleet.memory, &tenants[0], &decision).await;
    assert!(stopped.is_empty(), "they are evicted: {stopped:?}");
    let calls = world.script.calls().split_off(before);
    let reads = calls.iter().filter(|call| call.text.contains("/replicasets/owner-"));
    assert_eq!(reads.count(), 100, "each is read once, for its own owner, and not kept");
}

#[tokio::test]
async fn an_owner_that_is_being_scaled_up_is_not_stopped() {
    let mut world = World::new();
    world.fleet.run(UNTIL_DUE - 2).await;
    // Its controller has not created the new pods yet.
    world.change(DEPLOYMENT, |object| object["spec"]["replicas"] = 10.into());
    world.fleet.run(1).await;
    assert_eq!((world.replicas(), world.fleet.evictions(), world.listed()), (10, 1, 0));
}

/// As the Deployment controller does, which writes status and annotations after the warning.
#[tokio::test]
async fn an_owner_that_changes_meanwhile_is_read_again() {
    for (changes, is_stopped) in [(2, true), (usize::MAX, false)] {
        let mut world = World::new();
        world.fleet.run(UNTIL_DUE - 2).await;
        world.tenant.change_before_patches(DEPLOYMENT, changes);
        world.fleet.run(1).await;
        assert_eq!(world.replicas() == 0, is_stopped, "{changes} changes");
        assert_eq!(world.fleet.evictions() == 0, is_stopped, "{changes} changes");
    }
}

#[tokio::test]
async fn owner_references_are_not_believed() {
    // Another Deployment of the name, a circle, and another pod of the name.
    let changes: [fn(&World); 3] = [
        |world| world.change(DEPLOYMENT, |object| object["metadata"]["uid"] = "new-uid".into()),
        |world| {
            let circle = controller("apps/v1", "ReplicaSet", "web-7d9");
            world.change(REPLICA_SET, |object| object["metadata"]["ownerReferences"] = circle);
        },
        |world| world.change(TENANT_POD, |object| object["metadata"]["uid"] = "new-uid".into()),
    ];
    for change in changes {
        let mut world = World::new();
        change(&world);
        world.fleet.run(UNTIL_DUE - 1).await;
        assert_eq!((world.replicas(), world.fleet.evictions()), (1, 1));
        assert_eq!(world.annotations(), json!({"team": "own"}));
    }
}

/// A pod of a Job that a CronJob made.
fn with_cron_job(concurrency_policy: &str) -> World {
    let world = World::new();
    world.own_pod(&controller("batch/v1", "Job", "batch"));
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "batch", "namespace": "ml", "uid": "batch-uid",
        "ownerReferences": controller("batch/v1", "CronJob", "nightly")}, "spec": {"parallelism": 1}, "status": {"active": 1}});
    world.tenant.insert(JOB, job);
    let cron_job = json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "nightly", "namespace": "ml",
        "uid": "nightly-uid"}, "spec": {"concurrencyPolicy": concurrency_policy}});
    world
        .tenant
        .insert("/apis/batch/v1/namespaces/ml/cronjobs/nightly", cron_job);
    world
}

#[tokio::test]
async fn a_job_of_a_cron_job_is_suspended_and_resumed() {
    for concurrency_policy in ["Allow", "Replace"] {
        let mut world = with_cron_job(concurrency_policy);
        world.fleet.run(UNTIL_DUE - 1).await;
        let job = world.tenant.get(JOB).unwrap();
        assert_eq!((&job["spec"]["suspend"], world.fleet.evictions()), (&json!(true), 0));
        world.remove_pod();
        world.change(JOB, |object| {
            object["metadata"]["annotations"]["berth.dev/restore"] = "true".into();
        });
        world.fleet.run(1).await;
        assert_eq!(world.tenant.get(JOB).unwrap()["spec"]["suspend"], false);
    }
}

#[tokio::test]
async fn a_job_for_which_its_cron_job_waits_is_not_suspended() {
    // A Job that is suspended never ends, so that the CronJob would make no other one any more.
    let mut world = with_cron_job("Forbid");
    world.fleet.run(UNTIL_DUE - 1).await;
    let job = world.tenant.get(JOB).unwrap();
    assert_eq!((&job["spec"]["suspend"], world.listed()), (&Value::Null, 0));
    assert_eq!(world.fleet.evictions(), 1);
    let pod = world.tenant.get(TENANT_POD).unwrap();
    assert!(
        pod["metadata"]["annotations"]["berth.dev/gpus-idle"].is_string(),
        "it was warned"
    );
}

#[tokio::test]
async fn a_job_that_its_cron_job_replaced_is_forgotten() {
    let mut world = with_cron_job("Replace");
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!(world.listed(), 1);
    world.remove_pod();
    world.tenant.remove(JOB);
    world.fleet.run(2).await;
    assert_eq!(world.listed(), 0);
}

#[tokio::test]
async fn a_tenant_that_does_not_answer_loses_its_pods_by_eviction() {
    let mut world = World::new();
    world.connect(false);
    world.fleet.run(UNTIL_DUE - 1).await;
    assert_eq!((world.replicas(), world.fleet.evictions()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_webhook_that_does_not_answer_takes_the_time_of_its_tenant_only() {
    let mut world = World::new();
    world.tenant.never_answer_writes(Some("deployments"));
    let started = tokio::time::Instant::now();
    world.fleet.run(1).await;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(world.fleet.step().as_deref(), Some("Warned"));
    world.fleet.run(UNTIL_DUE - 2).await;
    assert_eq!((world.replicas(), world.fleet.evictions()), (1, 1));
}
