//! The whole controller against scripted answers.

use super::{QuotasContext, reconcile};
use crate::{
    controllers::tenant::WithoutClass,
    key::Key,
    metrics::Metrics,
    network::NetworkConfig,
    quota_ledger::{GpuUse, QuotaLedger, Verdict},
    testing::{Script, ScriptedApi, ScriptedRuntime, StoreWriters, VERSION},
};
use berth_api::{TenantCluster, TenantClusterSpec};
use berth_runtime::queue::Queue;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const PROJECT: &str = "/apis/berth.dev/v1alpha1/projects/vision";
const ORGANIZATION: &str = "/apis/berth.dev/v1alpha1/organizations/lab";

struct Fixture {
    script: Script,
    host: ScriptedApi,
    context: QuotasContext,
    writers: StoreWriters,
}

impl Fixture {
    /// A Project with quota for this number of tenants in an Organization.
    fn new(tenants: u32) -> Self {
        let script = Script::default();
        let host = ScriptedApi::new("host", &script);
        let (stores, writers) = StoreWriters::new();
        let context = context(&script, &host, stores, Arc::default());
        let fixture = Self {
            script,
            host,
            context,
            writers,
        };
        fixture.host.insert(
            ORGANIZATION,
            json!({"metadata": {"name": "lab", "uid": "o", "generation": 1}, "spec": {}}),
        );
        fixture.set_project(&json!({
            "organizationName": "lab", "namespaces": ["team"],
            "quotas": [{"resource": "tenantclusters", "nominalQuota": tenants}],
        }));
        fixture
    }

    fn set_project(&self, spec: &Value) {
        let metadata = json!({"name": "vision", "uid": "p", "generation": 1});
        self.host.insert(PROJECT, json!({"metadata": metadata, "spec": spec}));
    }

    fn add_tenant(&self, name: &str, namespace: &str, second: u32, status: &Value) {
        let spec = TenantClusterSpec {
            version: VERSION.into(),
            ..TenantClusterSpec::default()
        };
        let mut cluster = serde_json::to_value(TenantCluster::new(name, spec)).unwrap();
        cluster["metadata"] = json!({
            "name": name, "namespace": namespace, "uid": name, "generation": 1,
            "creationTimestamp": format!("2026-01-01T00:00:{second:02}Z"),
        });
        cluster["status"] = status.clone();
        self.host.insert(&tenant_path(name, namespace), cluster);
    }

    async fn reconcile(&mut self) {
        self.writers.update(&self.host);
        reconcile(&self.context).await.unwrap();
    }

    /// The tenants that have what they request.
    fn reserved(&self) -> Vec<String> {
        let all = self.context.quotas.verdicts().into_iter();
        all.filter(|(_, verdict)| matches!(verdict, Verdict::Reserved { .. }))
            .map(|(uid, _)| uid)
            .collect()
    }

    fn status(&self, path: &str) -> Value {
        self.host
            .get(path)
            .map(|object| object["status"].clone())
            .unwrap_or_default()
    }
}

fn context(
    script: &Script,
    host: &ScriptedApi,
    stores: crate::stores::Stores,
    quotas: Arc<QuotaLedger>,
) -> QuotasContext {
    QuotasContext {
        client: host.client(),
        stores,
        network_config: NetworkConfig::default(),
        without_class: WithoutClass::BuiltInDefaults,
        runtime: Arc::new(ScriptedRuntime::new(script)),
        quotas,
        users: Arc::default(),
        queue: Queue::<Key>::new(),
        metrics: Metrics::new(&mut Registry::default()),
    }
}

fn tenant_path(name: &str, namespace: &str) -> String {
    format!("/apis/berth.dev/v1alpha1/namespaces/{namespace}/tenantclusters/{name}")
}

#[tokio::test]
async fn of_many_tenants_at_once_the_oldest_get_the_quota() {
    let mut fixture = Fixture::new(10);
    for number in 0..50_u32 {
        fixture.add_tenant(&format!("t{number:02}"), "team", 59 - number, &Value::Null);
    }
    fixture.add_tenant("other", "elsewhere", 0, &Value::Null);
    fixture.reconcile().await;
    let oldest: Vec<String> = (40..50).map(|number| format!("t{number}")).collect();
    assert_eq!(fixture.reserved(), oldest);
    assert_eq!(fixture.context.quotas.verdicts()["other"], Verdict::NoProject);
    let status = fixture.status(PROJECT);
    assert_eq!(
        (
            &status["tenants"],
            &status["waitingTenants"],
            &status["quotas"][0]["used"]
        ),
        (&json!(50), &json!(40), &json!(10))
    );
    assert_eq!(fixture.status(ORGANIZATION)["tenants"], 50);
    let calls = fixture.script.calls().len();
    fixture.reconcile().await;
    assert_eq!(fixture.script.calls().len(), calls, "nothing changed");
}

#[tokio::test]
async fn a_decision_counts_before_the_watches_show_it() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("young", "team", 9, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["young"]);
    // The status of the first is not written yet when an older one appears.
    fixture.add_tenant("old", "team", 1, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["young"]);
}

#[tokio::test]
async fn a_new_process_reads_reservations_from_the_status() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("old", "team", 1, &Value::Null);
    let quota = json!({"quota": {"projectName": "vision", "reserved": {"tenantclusters": 1}}});
    fixture.add_tenant("young", "team", 9, &quota);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["young"]);
    let verdicts = fixture.context.quotas.verdicts();
    let Verdict::Waiting { kept: None, reason, .. } = &verdicts["old"] else {
        panic!("{verdicts:?}")
    };
    assert_eq!(*reason, "QuotaExceeded");
}

#[tokio::test]
async fn tenants_that_run_count_when_their_namespace_comes_to_a_project() {
    let mut fixture = Fixture::new(1);
    let runs = json!({"controlPlaneNamespace": "berth-cp-a"});
    fixture.add_tenant("a", "team", 1, &runs);
    fixture.add_tenant("b", "team", 2, &runs);
    fixture.add_tenant("new", "team", 0, &Value::Null);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a", "b"]);
    let status = fixture.status(PROJECT);
    assert_eq!(status["quotas"][0]["used"], 2);
    assert_eq!(status["quotas"][0]["borrowed"], 1);
    let conditions = status["conditions"].as_array().unwrap();
    let within = conditions
        .iter()
        .find(|condition| condition["type"] == "WithinQuota")
        .unwrap();
    assert_eq!(within["reason"], "OverQuota");
    let message = within["message"].as_str().unwrap();
    assert!(message.contains("tenantclusters (team/b)"), "{message}");
}

#[tokio::test]
async fn a_tenant_that_runs_counts_with_the_limits_of_its_class_whatever_its_spec() {
    let mut fixture = Fixture::new(9);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "pods", "nominalQuota": 10}],
    }));
    let class = json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": {"limits": {"pods": 7}}});
    fixture
        .host
        .insert("/apis/berth.dev/v1alpha1/tenantclasses/gold", class);
    let status = json!({"controlPlaneNamespace": "berth-cp-a", "className": "gold"});
    fixture.add_tenant("a", "team", 1, &status);
    let path = tenant_path("a", "team");
    let mut cluster = fixture.host.get(&path).unwrap();
    cluster["spec"]["className"] = "gold".into();
    cluster["spec"]["version"] = "v1.99.0".into();
    fixture.host.insert(&path, cluster);
    fixture.reconcile().await;
    assert_eq!(fixture.status(PROJECT)["quotas"][0]["used"], 7);
}

#[tokio::test]
async fn finalizers_that_a_user_sets_do_not_make_a_tenant_run() {
    let mut fixture = Fixture::new(0);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    let path = tenant_path("a", "team");
    let mut cluster = fixture.host.get(&path).unwrap();
    cluster["metadata"]["finalizers"] = json!([berth_api::labels::FINALIZER]);
    fixture.host.insert(&path, cluster);
    fixture.reconcile().await;
    assert!(fixture.reserved().is_empty());
}

#[tokio::test]
async fn a_deleted_tenant_keeps_its_reservation_until_it_is_gone() {
    let mut fixture = Fixture::new(1);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.reconcile().await;
    fixture.add_tenant("b", "team", 2, &Value::Null);
    let path = tenant_path("a", "team");
    let mut cluster = fixture.host.get(&path).unwrap();
    cluster["metadata"]["deletionTimestamp"] = "2026-01-01T01:00:00Z".into();
    fixture.host.insert(&path, cluster);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
    fixture.host.remove(&path);
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["b"]);
}

#[tokio::test]
async fn without_a_project_no_quota_applies() {
    let mut fixture = Fixture::new(0);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.reconcile().await;
    assert!(fixture.reserved().is_empty());
    fixture.host.remove(PROJECT);
    fixture.reconcile().await;
    let verdict = fixture.context.quotas.verdict(&fixture.context.stores, "a");
    assert_eq!(verdict, Some(Verdict::NoProject));
}

#[tokio::test]
async fn gpus_of_assigned_nodes_are_reported() {
    let mut fixture = Fixture::new(1);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "gpus", "poolName": "h100", "nominalQuota": 8}],
    }));
    fixture.add_tenant("a", "team", 1, &Value::Null);
    let used = GpuUse::from([("a".to_owned(), BTreeMap::from([("h100".to_owned(), 16)]))]);
    assert!(fixture.context.quotas.set_gpu_use(used));
    fixture.reconcile().await;
    let quota = fixture.status(PROJECT)["quotas"][0].clone();
    assert_eq!((&quota["used"], &quota["borrowed"]), (&json!(16), &json!(8)));
    assert_eq!(fixture.reserved(), ["a"], "the planner limits GPUs");
}
