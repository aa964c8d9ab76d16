//! The whole controller with a host in memory.

mod claims;

use super::{UserQuotasContext, reconcile};
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
