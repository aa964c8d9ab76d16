//! The whole controller with a host in memory.

use super::{CLAIMS_PAUSE, UserQuotasContext, claims::MOST_OF_USER, reconcile};
use crate::{
    clock::Clock,
    events::EventRecorder,
    key::Key,
    metrics::{Metrics, UserQuotaLabels},
    testing::{Script, ScriptedApi, StoreWriters},
    user_pods,
    user_quota_ledger::REFUSED_PAUSE,
};
use berth_api::{TenantCluster, TenantClusterSpec, names::TenantId};
use berth_node_lifecycle::devices::{ClaimSpec, DeviceClaim};
use berth_runtime::queue::Queue;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::{collections::HashSet, sync::Arc};
use tokio::time::advance;

const PROJECT: &str = "/apis/berth.dev/v1alpha1/projects/vision";
const GATE: &str = "berth.dev/user-quota";

struct Fixture {
    script: Script,
    host: ScriptedApi,
    context: UserQuotasContext,
    writers: StoreWriters,
}

impl Fixture {
    /// Two tenants of a Project in which each user may have this number of pods.
    fn new(pods: u32) -> Self {
        let script = Script::default();
        let host = ScriptedApi::new("host", &script);
        let (stores, writers) = StoreWriters::new();
        let context = context(&host, stores);
        let fixture = Self {
            script,
            host,
            context,
            writers,
        };
        fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": "pods", "limit": pods}]}]));
        for name in ["a", "b"] {
            let mut cluster = serde_json::to_value(TenantCluster::new(name, TenantClusterSpec::default())).unwrap();
            cluster["metadata"] = json!({"name": name, "namespace": "team", "uid": name, "generation": 1});
            let path = format!("/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/{name}");
            fixture.host.insert(&path, cluster);
        }
        fixture
    }

    fn set_quotas(&self, quotas: &Value) {
        let metadata = json!({"name": "vision", "uid": "p", "generation": 1});
        let spec = json!({"namespaces": ["team"], "userQuotas": quotas});
        self.host.insert(PROJECT, json!({"metadata": metadata, "spec": spec}));
    }

    /// A pod of a tenant, as its syncer creates it.
    fn add_pod(&self, tenant: &str, name: &str, user: &str, second: u32) {
        let slug = TenantId::new(tenant, tenant).slug().to_owned();
        let pod = json!({
            "metadata": {
                "name": name, "namespace": "berth-w", "uid": name, "labels": {"berth.dev/tenant": slug},
                "annotations": {"berth.dev/created-by": user}, "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
            },
            "spec": {"schedulingGates": [{"name": GATE}], "containers": [{"name": "c"}]},
            "status": {"phase": "Pending"},
        });
        self.host.insert(&path(name), pod);
    }

    /// Lets a pod name a claim of devices.
    fn add_claim(&self, pod: &str, claim: &str) {
        let mut object = self.host.get(&path(pod)).unwrap();
        object["spec"]["resourceClaims"] = json!([{"name": "devices", "resourceClaimName": claim}]);
        self.host.insert(&path(pod), object);
    }

    /// A claim of this many devices.
    fn put_claim(&self, name: &str, count: u32) {
        self.put_claim_on_host(name, count);
        self.observe_claim(name, count);
    }

    /// The same that the watch does not know yet.
    fn put_claim_on_host(&self, name: &str, count: u32) {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": "berth-w"},
            "spec": spec_of_claim(count),
        });
        self.host.insert(&path_of_claim(name), claim);
    }

    /// What the watch says of a claim.
    fn observe_claim(&self, name: &str, count: u32) {
        let spec: ClaimSpec = serde_json::from_value(spec_of_claim(count)).unwrap();
        let claim = DeviceClaim::read(Some(&spec), None);
        self.context
            .stores
            .devices
            .put_claim(&format!("berth-w/{name}"), Some(claim));
    }

    /// What the watches do.
    fn observe(&mut self) {
        self.writers.update(&self.host);
        let mut names = HashSet::new();
        for mut pod in self.host.find("/pods/") {
            // The server in memory keeps what a strategic merge patch says.
            if let Some(gates) = pod["spec"]["schedulingGates"].as_array_mut() {
                gates.retain(|gate| gate["$patch"].is_null());
            }
            let name = format!("berth-w/{}", pod["metadata"]["name"].as_str().unwrap());
            let read = user_pods::read_pod(&serde_json::from_value(pod).unwrap());
            self.context.stores.user_pods.put(&name, read);
            names.insert(name);
        }
        self.context.stores.user_pods.retain(&names);
    }

    async fn reconcile(&mut self) {
        self.observe();
        reconcile(&self.context).await.unwrap();
    }

    /// Names of the pods whose gate is off.
    fn started(&self) -> Vec<String> {
        let pods = self.host.find("/pods/").into_iter();
        pods.filter(|pod| !pod["spec"]["schedulingGates"][0]["$patch"].is_null())
            .map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    fn condition(&self, name: &str) -> Value {
        self.host.get(&path(name)).unwrap()["status"]["conditions"][0].clone()
    }
}

fn context(host: &ScriptedApi, stores: crate::stores::Stores) -> UserQuotasContext {
    UserQuotasContext {
        client: host.client(),
        stores,
        clock: Clock::default(),
        ledger: Arc::default(),
        queue: Queue::<Key>::new(),
        metrics: Metrics::new(&mut Registry::default()),
        recorder: EventRecorder::new(host.client()),
    }
}

fn path(pod: &str) -> String {
    format!("/api/v1/namespaces/berth-w/pods/{pod}")
}

fn path_of_claim(claim: &str) -> String {
    format!("/apis/resource.k8s.io/v1/namespaces/berth-w/resourceclaims/{claim}")
}

/// The spec of a claim of this many devices.
fn spec_of_claim(count: u32) -> Value {
    let exactly = json!({"deviceClassName": "gpu.example.com", "count": count});
    json!({"devices": {"requests": [{"name": "r", "exactly": exactly}]}})
}

#[tokio::test]
async fn pods_beyond_the_limit_wait_in_all_tenants_of_the_project() {
    let mut fixture = Fixture::new(2);
    fixture.add_pod("a", "a1", "alice", 1);
    fixture.add_pod("b", "b2", "alice", 2);
    fixture.add_pod("a", "a3", "alice", 3);
    fixture.add_pod("b", "b4", "bob", 4);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1", "b2", "b4"]);
    let condition = fixture.condition("a3");
    assert_eq!(condition["reason"], "UserLimitExceeded");
    assert!(
        condition["message"].as_str().unwrap().contains("user alice"),
        "{condition}"
    );
    let users = fixture.context.ledger.users_of("vision").users;
    assert_eq!((users[0].user.as_str(), users[0].waiting_pods), ("alice", 1));
    assert_eq!((users[0].resources[0].used, users[0].resources[0].limit), (2, 2));

    fixture.host.remove(&path("a1"));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a3", "b2", "b4"]);
    assert_eq!(fixture.condition("a3")["status"], "False");
}

#[tokio::test]
async fn a_condition_has_the_time_of_the_host() {
    let mut fixture = Fixture::new(1);
    let of_host: Timestamp = "2040-01-01T00:00:00Z".parse().unwrap();
    fixture.context.clock = Clock::at(of_host);
    fixture.add_pod("a", "p1", "alice", 1);
    fixture.add_pod("a", "p2", "alice", 2);
    fixture.reconcile().await;
    for what in ["the pod waits", "the pod may start"] {
        let condition = fixture.condition("p2");
        let changed: Timestamp = condition["lastTransitionTime"].as_str().unwrap().parse().unwrap();
        assert!(changed >= of_host, "{what}: {condition}");
        fixture.host.remove(&path("p1"));
        fixture.reconcile().await;
    }
}

#[tokio::test(start_paused = true)]
async fn pods_that_the_host_refuses_keep_no_others_back_and_are_tried_again_later() {
    let mut fixture = Fixture::new(1000);
    for number in 0..600 {
        fixture.add_pod("a", &format!("bad-{number}"), "alice", 1);
    }
    fixture.add_pod("a", "good", "alice", 2);
    fixture
        .host
        .refuse_writes(Some(("/pods/bad-", 422, "denied by a policy")));
    let count_tries = |fixture: &Fixture| {
        let calls = fixture.script.calls();
        calls.iter().filter(|call| call.text.contains("/pods/bad-")).count()
    };
    // More than one pass writes.
    for _ in 0..2 {
        fixture.observe();
        let error = reconcile(&fixture.context).await.unwrap_err();
        assert!(error.to_string().contains("denied by a policy"), "{error}");
    }
    assert_eq!(fixture.started(), ["good"]);
    assert_eq!(count_tries(&fixture), 600);
    fixture.observe();
    assert_eq!(reconcile(&fixture.context).await.unwrap(), Some(REFUSED_PAUSE));
    assert_eq!(count_tries(&fixture), 600, "other pods change all the time");
    fixture.host.refuse_writes(None);
    advance(REFUSED_PAUSE).await;
    for _ in 0..2 {
        fixture.reconcile().await;
    }
    assert_eq!(fixture.started().len(), 601);
}

#[tokio::test]
async fn pods_of_one_tenant_do_not_take_all_of_the_limit_of_a_user() {
    let mut fixture = Fixture::new(2);
    let limit = json!({"resource": "pods", "limit": 2, "limitPerTenant": 1});
    fixture.set_quotas(&json!([{"user": "*", "limits": [limit]}]));
    fixture.add_pod("b", "b1", "alice", 1);
    fixture.add_pod("b", "b2", "alice", 2);
    fixture.add_pod("a", "a3", "alice", 3);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a3", "b1"]);
    let condition = fixture.condition("b2");
    assert!(
        condition["message"].as_str().unwrap().contains("in this tenant"),
        "{condition}"
    );
}

#[tokio::test]
async fn metrics_of_users_are_never_removed_while_they_have_a_value() {
    let mut fixture = Fixture::new(2);
    fixture.add_pod("a", "a1", "alice", 1);
    fixture.add_pod("a", "a2", "bob", 2);
    fixture.reconcile().await;
    let metrics = fixture.context.metrics.clone();
    let labels = |user: &str| UserQuotaLabels {
        project: "vision".into(),
        user: user.into(),
        resource: "pods".into(),
    };
    let used = metrics.user_quota_used.family.get(&labels("alice")).unwrap().clone();
    assert_eq!(used.get(), 1);
    fixture.add_pod("b", "b3", "alice", 3);
    fixture.host.remove(&path("a2"));
    fixture.reconcile().await;
    assert_eq!(used.get(), 2, "a scrape finds the same gauge all the time");
    assert!(metrics.user_quota_used.family.get(&labels("bob")).is_none());
    assert!(metrics.user_quota_limit.family.get(&labels("bob")).is_none());
}

#[tokio::test]
async fn devices_of_claims_count_for_the_user() {
    const DEVICES: &str = "gpu.example.com.deviceclass.resource.k8s.io/devices";
    let mut fixture = Fixture::new(10);
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 2}]}]));
    for (second, (pod, claim)) in [
        (1, ("a1", "shared")),
        (2, ("a2", "shared")),
        (3, ("a3", "one")),
        (4, ("a4", "later")),
    ] {
        fixture.add_pod("a", pod, "alice", second);
        fixture.add_claim(pod, claim);
    }
    fixture.put_claim("shared", 2);
    fixture.put_claim("one", 1);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1"]);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1", "a2"], "the claim that both share counts once");
    assert_eq!(fixture.condition("a3")["reason"], "UserLimitExceeded");
    assert_eq!(fixture.condition("a4"), Value::Null, "what it claims is not known");

    fixture.put_claim("later", 3);
    fixture.host.remove(&path("a1"));
    fixture.host.remove(&path("a2"));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a3"]);
    assert_eq!(fixture.condition("a4")["reason"], "UserLimitExceeded");
}

#[tokio::test]
async fn a_pod_with_a_template_waits_until_the_host_has_made_its_claim() {
    const DEVICES: &str = "gpu.example.com.deviceclass.resource.k8s.io/devices";
    let mut fixture = Fixture::new(10);
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 2}]}]));
    let read = |count: u32| {
        let spec: ClaimSpec = serde_json::from_value(spec_of_claim(count)).unwrap();
        Some(DeviceClaim::read(Some(&spec), None))
    };
    fixture.add_pod("a", "a1", "alice", 1);
    let mut pod = fixture.host.get(&path("a1")).unwrap();
    pod["spec"]["resourceClaims"] = json!([{"name": "devices", "resourceClaimTemplateName": "t"}]);
    fixture.host.insert(&path("a1"), pod.clone());
    let devices = std::sync::Arc::clone(&fixture.context.stores.devices);
    devices.put_template("berth-w/t", read(1));
    fixture.reconcile().await;
    assert!(
        fixture.started().is_empty(),
        "another template may take the name before the host makes the claim"
    );
    devices.put_template("berth-w/t", read(8));
    pod["status"]["resourceClaimStatuses"] = json!([{"name": "devices", "resourceClaimName": "a1-devices-x"}]);
    fixture.host.insert(&path("a1"), pod);
    fixture.reconcile().await;
    assert!(fixture.started().is_empty(), "the claim is not known yet");
    devices.put_claim("berth-w/a1-devices-x", read(1));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1"], "what counts is the claim that was made");
}

/// Pods of alice and of bob, each with a claim of its own, and limits of two devices.
fn with_claims() -> Fixture {
    const DEVICES: &str = "gpu.example.com.deviceclass.resource.k8s.io/devices";
    let fixture = Fixture::new(10);
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 2}]}]));
    for (second, user) in [(1, "alice"), (2, "bob")] {
        fixture.add_pod("a", user, user, second);
        fixture.add_claim(user, user);
        fixture.put_claim(user, 1);
    }
    fixture
}

#[tokio::test]
async fn a_claim_that_was_replaced_before_its_watch_knows_of_it_lets_no_pod_start() {
    let mut fixture = with_claims();
    // The claim is a larger one by now, and the pod is the one that the syncer has made for it.
    fixture.put_claim_on_host("alice", 8);
    fixture.add_pod("a", "alice-later", "alice", 3);
    fixture.observe();
    assert_eq!(reconcile(&fixture.context).await.unwrap(), Some(CLAIMS_PAUSE));
    assert_eq!(fixture.started(), ["bob"], "other users do not wait for it");
    fixture.host.remove(&path_of_claim("alice"));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["bob"], "it is about to be replaced");

    fixture.put_claim("alice", 8);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["alice-later", "bob"]);
    assert_eq!(fixture.condition("alice")["reason"], "UserLimitExceeded");
    fixture.put_claim("alice", 2);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["alice", "alice-later", "bob"]);
}

#[tokio::test]
async fn a_claim_that_cannot_be_read_keeps_back_the_pods_of_its_users_alone() {
    let mut fixture = with_claims();
    fixture.script.fail_call(0);
    fixture.observe();
    let error = reconcile(&fixture.context).await.unwrap_err();
    assert!(error.to_string().contains("read a claim of devices"), "{error}");
    assert_eq!(fixture.started(), ["bob"]);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["alice", "bob"]);
}

#[tokio::test]
async fn a_user_with_many_claims_holds_up_no_other_user() {
    const DEVICES: &str = "gpu.example.com.deviceclass.resource.k8s.io/devices";
    let mut fixture = with_claims();
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 1000}]}]));
    for name in (0..MOST_OF_USER).map(|number| format!("p{number}")) {
        fixture.add_pod("a", &name, "alice", 3);
        fixture.add_claim(&name, &name);
        fixture.put_claim(&name, 1);
    }
    fixture.observe();
    assert_eq!(reconcile(&fixture.context).await.unwrap(), Some(CLAIMS_PAUSE));
    let started = fixture.started();
    assert_eq!(started.len(), MOST_OF_USER + 1, "all but one");
    assert!(started.contains(&"bob".to_owned()));
    fixture.reconcile().await;
    assert_eq!(fixture.started().len(), MOST_OF_USER + 2);
}

#[tokio::test]
async fn claims_of_users_without_limits_of_devices_are_not_read() {
    let mut fixture = with_claims();
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": "pods", "limit": 2}]}]));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["alice", "bob"]);
    let calls = fixture.script.calls();
    assert!(
        calls.iter().all(|call| !call.text.contains("resourceclaims")),
        "{calls:?}"
    );
}

#[tokio::test]
async fn a_gang_that_shares_a_claim_counts_it_once_and_other_users_count_it_again() {
    const DEVICES: &str = "gpu.example.com.deviceclass.resource.k8s.io/devices";
    let mut fixture = Fixture::new(10);
    fixture.set_quotas(&json!([{"user": "*", "limits": [{"resource": DEVICES, "limit": 2}]}]));
    for (second, (pod, user, gang)) in [
        (1, ("a1", "alice", "g")),
        (2, ("a2", "alice", "g")),
        (3, ("b1", "bob", "")),
    ] {
        fixture.add_pod("a", pod, user, second);
        fixture.add_claim(pod, "shared");
        let mut object = fixture.host.get(&path(pod)).unwrap();
        object["metadata"]["annotations"]["berth.dev/gang"] = gang.into();
        object["metadata"]["annotations"]["berth.dev/gang-size"] = "2".into();
        fixture.host.insert(&path(pod), object);
    }
    fixture.put_claim("shared", 2);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["a1", "a2", "b1"]);
    let users = fixture.context.ledger.users_of("vision").users;
    let used: Vec<u64> = users.iter().map(|user| user.resources[0].used).collect();
    assert_eq!(used, [2, 2]);
}

#[tokio::test]
async fn a_watch_that_is_behind_lets_no_further_pod_start() {
    let mut fixture = Fixture::new(1);
    fixture.add_pod("a", "late", "alice", 2);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["late"]);
    // It still has its gate for the watch, and an older pod appears.
    fixture.add_pod("b", "early", "alice", 1);
    let early = serde_json::from_value(fixture.host.get(&path("early")).unwrap()).unwrap();
    let pods = &fixture.context.stores.user_pods;
    pods.put("berth-w/early", user_pods::read_pod(&early));
    reconcile(&fixture.context).await.unwrap();
    assert_eq!(fixture.started(), ["late"]);
}

#[tokio::test]
async fn every_failed_call_is_made_up_for() {
    for number in 0..12 {
        let mut fixture = Fixture::new(2);
        for second in 1..5 {
            fixture.add_pod("a", &format!("p{second}"), "alice", second);
        }
        fixture.script.fail_call(number);
        fixture.observe();
        let _ = reconcile(&fixture.context).await;
        assert!(fixture.started().len() <= 2, "{number}");
        fixture.reconcile().await;
        assert_eq!(fixture.started(), ["p1", "p2"], "{number}");
        // Another process, which knows nothing of the first.
        fixture.context = context(&fixture.host, fixture.context.stores.clone());
        fixture.reconcile().await;
        assert_eq!(fixture.started(), ["p1", "p2"], "{number}");
        for waiting in ["p3", "p4"] {
            assert_eq!(fixture.condition(waiting)["status"], "True", "{number}");
        }
    }
}

#[tokio::test]
async fn without_limits_every_gate_is_taken_off() {
    let mut fixture = Fixture::new(1);
    fixture.add_pod("a", "p1", "alice", 1);
    fixture.add_pod("a", "p2", "alice", 2);
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["p1"]);
    fixture.set_quotas(&json!([]));
    fixture.reconcile().await;
    assert_eq!(fixture.started(), ["p1", "p2"]);
    assert!(fixture.context.ledger.users_of("vision").users.is_empty());
}

#[tokio::test]
async fn a_pod_that_starts_because_limits_are_gone_does_not_say_that_it_waits_whichever_call_fails() {
    for number in 0..3 {
        let mut fixture = Fixture::new(1);
        fixture.add_pod("a", "p1", "alice", 1);
        fixture.add_pod("a", "p2", "alice", 2);
        fixture.reconcile().await;
        assert_eq!(fixture.condition("p2")["status"], "True");
        fixture.set_quotas(&json!([]));
        fixture.script.fail_call(fixture.script.calls().len() + number);
        fixture.observe();
        let _ = reconcile(&fixture.context).await;
        // Another process, which knows nothing of the first.
        fixture.context = context(&fixture.host, fixture.context.stores.clone());
        fixture.reconcile().await;
        assert_eq!(fixture.started(), ["p1", "p2"], "{number}");
        assert_eq!(fixture.condition("p2")["status"], "False", "{number}");
    }
}
