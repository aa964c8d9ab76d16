//! The whole controller against scripted answers.

mod histories;
mod left_project;
mod protection;
mod waiting;

use super::{Pace, QuotasContext, reconcile};
use crate::{
    controllers::tenant::WithoutClass,
    events::EventRecorder,
    key::Key,
    metrics::Metrics,
    network::NetworkConfig,
    quota_ledger::{GpuUse, MeasuredUse, QuotaLedger, TenantUse, Verdict},
    testing::{Script, ScriptedApi, ScriptedRuntime, StoreWriters, VERSION},
};
use berth_api::{TenantCluster, TenantClusterSpec, TreeResource};
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
        pace: Pace::default(),
        users: Arc::default(),
        queue: Queue::<Key>::new(),
        metrics: Metrics::new(&mut Registry::default()),
        recorder: EventRecorder::new(host.client()),
    }
}

impl Fixture {
    fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut object = self.host.get(path).unwrap();
        change(&mut object);
        self.host.insert(path, object);
    }

    fn condition(&self, path: &str, kind: &str) -> Option<Value> {
        let status = self.status(path);
        let conditions = status["conditions"].as_array()?;
        conditions.iter().find(|condition| condition["type"] == kind).cloned()
    }

    fn finalizers(&self, path: &str) -> Value {
        self.host
            .get(path)
            .map(|object| object["metadata"]["finalizers"].clone())
            .unwrap_or_default()
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
            &status["quotas"][0]["reserved"]
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
    assert_eq!(status["quotas"][0]["reserved"], 2);
    assert_eq!(status["quotas"][0]["borrowed"], 1);
    let conditions = status["conditions"].as_array().unwrap();
    let within = conditions
        .iter()
        .find(|condition| condition["type"] == "WithinQuota")
        .unwrap();
    assert_eq!(within["reason"], "OverQuota");
    let message = within["message"].as_str().unwrap();
    assert!(message.contains("tenantclusters (team/b)"), "{message}");
    let allowed = fixture.context.quotas.verdicts()["b"].over();
    assert_eq!(allowed, [(TreeResource::TenantClusters, 0)].into());
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
    assert_eq!(fixture.status(PROJECT)["quotas"][0]["reserved"], 7);
}

#[tokio::test]
async fn resources_by_name_are_reserved_and_a_class_without_the_limit_waits() {
    let mut fixture = Fixture::new(9);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "requests.memory", "nominalQuota": "10Gi"}],
    }));
    let limits = json!({"resources": [
        {"resource": "requests.memory", "quantity": "7Gi"}, {"resource": "requests.cpu", "quantity": 8},
    ]});
    let class = json!({"metadata": {"name": "gold", "uid": "g", "generation": 1}, "spec": {"limits": limits}});
    fixture
        .host
        .insert("/apis/berth.dev/v1alpha1/tenantclasses/gold", class);
    for (name, second, class) in [("a", 1, Some("gold")), ("b", 2, Some("gold")), ("c", 3, None)] {
        fixture.add_tenant(name, "team", second, &Value::Null);
        let path = tenant_path(name, "team");
        let mut cluster = fixture.host.get(&path).unwrap();
        cluster["spec"]["className"] = class.into();
        fixture.host.insert(&path, cluster);
    }
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
    let verdicts = fixture.context.quotas.verdicts();
    let reserved = &verdicts["a"].reservation().unwrap().reserved;
    assert_eq!((reserved["requests.memory"], reserved["requests.cpu"]), (7 << 30, 8));
    let reason = |name: &str| match &verdicts[name] {
        Verdict::Waiting { reason, .. } => *reason,
        other => panic!("{other:?}"),
    };
    assert_eq!((reason("b"), reason("c")), ("QuotaExceeded", "ClassWithoutLimit"));
    assert_eq!(fixture.status(PROJECT)["quotas"][0]["reserved"], 7_u64 << 30);
    // The next process reads what this one wrote.
    let status = json!({"quota": verdicts["a"].reservation()});
    let mut cluster = fixture.host.get(&tenant_path("a", "team")).unwrap();
    cluster["status"] = status;
    fixture.host.insert(&tenant_path("a", "team"), cluster);
    let quotas = &fixture.context.quotas;
    quotas.replace(BTreeMap::new(), &quotas.basis()).unwrap();
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
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
    assert_eq!((&quota["reserved"], &quota["borrowed"]), (&json!(16), &json!(8)));
    assert_eq!(fixture.reserved(), ["a"], "the planner limits GPUs");
    let within = fixture.condition(PROJECT, "WithinQuota").unwrap();
    assert_eq!(within["status"], "True", "it may borrow");
}

#[tokio::test]
async fn gpus_beyond_a_lowered_limit_are_reported_with_what_follows() {
    let mut fixture = Fixture::new(1);
    let set_limit = |fixture: &Fixture, borrowing: u32| {
        fixture.set_project(&json!({"organizationName": "lab", "namespaces": ["team"], "quotas": [
            {"resource": "gpus", "poolName": "h100", "nominalQuota": 8, "borrowingLimit": borrowing},
        ]}));
        fixture.change(PROJECT, |project| {
            project["metadata"]["generation"] = (borrowing + 1).into();
        });
    };
    set_limit(&fixture, 8);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    let used = GpuUse::from([("a".to_owned(), BTreeMap::from([("h100".to_owned(), 16)]))]);
    assert!(fixture.context.quotas.set_gpu_use(used));
    fixture.reconcile().await;
    assert_eq!(fixture.condition(PROJECT, "WithinQuota").unwrap()["status"], "True");
    set_limit(&fixture, 0);
    fixture.reconcile().await;
    let within = fixture.condition(PROJECT, "WithinQuota").unwrap();
    assert_eq!(
        (&within["status"], &within["reason"]),
        (&json!("False"), &json!("OverQuota"))
    );
    let message = within["message"].as_str().unwrap();
    for part in [
        "16 of pool h100, at most 8",
        "reclaimGracePeriod",
        "least important work first",
    ] {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
    // The Organization does not limit them.
    assert_eq!(
        fixture.condition(ORGANIZATION, "WithinQuota").unwrap()["status"],
        "True"
    );
}

#[tokio::test]
async fn what_a_tenant_still_has_stays_reserved_when_its_limits_get_lower() {
    let mut fixture = Fixture::new(9);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [{"resource": "pods", "nominalQuota": 10}],
    }));
    let class = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
    let set_limit = |fixture: &Fixture, pods: u32| {
        let metadata = json!({"name": "gold", "uid": "g", "generation": pods});
        let spec = json!({"limits": {"pods": pods}});
        fixture.host.insert(class, json!({"metadata": metadata, "spec": spec}));
    };
    set_limit(&fixture, 10);
    for (name, second) in [("a", 1), ("b", 2)] {
        fixture.add_tenant(name, "team", second, &Value::Null);
        fixture.change(&tenant_path(name, "team"), |cluster| {
            cluster["spec"]["className"] = "gold".into();
        });
    }
    fixture.reconcile().await;
    assert_eq!(fixture.reserved(), ["a"]);
    set_limit(&fixture, 2);
    fixture.reconcile().await;
    let of_pods = |fixture: &Fixture| {
        let verdicts = fixture.context.quotas.verdicts();
        let reservation = verdicts["a"].reservation().unwrap();
        let amount = |amounts: &BTreeMap<String, u64>| amounts.get("pods").copied();
        (amount(&reservation.reserved), amount(&reservation.above_limits))
    };
    assert_eq!(of_pods(&fixture), (Some(10), Some(8)), "what it uses is not known");
    assert_eq!(fixture.reserved(), ["a"]);
    let report = |fixture: &Fixture, pods: u64| {
        let at_most = [(berth_api::TreeResource::Pods, pods)].into();
        fixture.context.quotas.report_at_most("a", at_most)
    };
    assert!(report(&fixture, 9));
    fixture.reconcile().await;
    assert_eq!(of_pods(&fixture), (Some(9), Some(7)));
    assert_eq!(fixture.reserved(), ["a"], "the other tenant requests 2");
    assert!(report(&fixture, 3));
    fixture.reconcile().await;
    assert_eq!(of_pods(&fixture), (Some(3), Some(1)));
    assert_eq!(fixture.reserved(), ["a", "b"]);
    assert_eq!(fixture.status(PROJECT)["quotas"][0]["reserved"], 5);
}

#[tokio::test]
async fn quotas_are_decided_only_after_a_change() {
    let mut fixture = Fixture::new(10);
    for number in 0..10_u32 {
        fixture.add_tenant(&format!("t{number}"), "team", number, &Value::Null);
    }
    // The status and the finalizer that control writes are changes, too.
    for _ in 0..3 {
        fixture.reconcile().await;
    }
    let (decisions, calls) = (fixture.context.pace.decisions(), fixture.script.calls().len());
    let pools = fixture.context.stores.pools_with_nodes.computed();
    for _ in 0..100 {
        reconcile(&fixture.context).await.unwrap();
    }
    assert_eq!(fixture.context.pace.decisions(), decisions);
    assert_eq!(fixture.script.calls().len(), calls);
    assert_eq!(fixture.context.stores.pools_with_nodes.computed(), pools);
    // What a tenant uses is a reason.
    fixture
        .context
        .quotas
        .report_at_most("t1", [(berth_api::TreeResource::Pods, 1)].into());
    reconcile(&fixture.context).await.unwrap();
    assert_eq!(fixture.context.pace.decisions(), decisions + 1);
    assert_eq!(fixture.context.stores.pools_with_nodes.computed(), pools);
}

#[tokio::test]
async fn gpus_of_several_pools_are_reported_in_all_and_by_product() {
    let mut fixture = Fixture::new(1);
    fixture.set_project(&json!({
        "namespaces": ["team"], "quotas": [
            {"resource": "gpus", "nominalQuota": 64, "borrowingLimit": 0},
            {"resource": "gpus", "gpuProduct": "H100", "nominalQuota": 32, "borrowingLimit": 0},
        ],
    }));
    for (name, product, gpus) in [
        ("a", Some("H100"), true),
        ("b", Some("H100"), true),
        ("c", None, true),
        ("d", None, false),
    ] {
        let mut spec = json!({"nodeSelector": {"pool": name}});
        if gpus {
            spec["gpuResourceName"] = "nvidia.com/gpu".into();
        }
        if let Some(product) = product {
            spec["gpuProduct"] = product.into();
        }
        let pool = json!({"metadata": {"name": name, "uid": name}, "spec": spec});
        fixture
            .host
            .insert(&format!("/apis/berth.dev/v1alpha1/hostnodepools/{name}"), pool);
    }
    fixture.add_tenant("t", "team", 1, &Value::Null);
    let pools = [("a", 8), ("b", 16), ("c", 4), ("d", 100)];
    let used = pools.map(|(pool, gpus)| (pool.to_owned(), gpus));
    fixture
        .context
        .quotas
        .set_gpu_use(GpuUse::from([("t".to_owned(), BTreeMap::from(used))]));
    let measured = TenantUse {
        gpus: [("b".to_owned(), 2), ("c".to_owned(), 1), ("d".to_owned(), 50)].into(),
        ..TenantUse::default()
    };
    fixture.context.quotas.set_measured([("t".to_owned(), measured)].into());
    fixture.reconcile().await;
    let quotas = fixture.status(PROJECT)["quotas"].clone();
    let amounts = |product: &Value| {
        let found = quotas
            .as_array()
            .unwrap()
            .iter()
            .find(|quota| &quota["gpuProduct"] == product);
        let found = found.unwrap();
        (found["reserved"].clone(), found["used"].clone())
    };
    assert_eq!(amounts(&Value::Null), (json!(28), json!(3)));
    assert_eq!(amounts(&json!("H100")), (json!(24), json!(2)));
}

/// Tenants of the Project use so many pods, by UID.
fn pods(tenants: &[(&str, u64)]) -> MeasuredUse {
    let measured = tenants.iter().map(|(uid, pods)| {
        let used = TenantUse {
            amounts: [(TreeResource::Pods, *pods), (TreeResource::TenantClusters, 1)].into(),
            ..TenantUse::default()
        };
        ((*uid).to_owned(), used)
    });
    measured.collect()
}

#[tokio::test]
async fn what_tenants_use_is_shown_beside_what_is_reserved() {
    let mut fixture = Fixture::new(9);
    for (path, spec) in [
        (PROJECT, json!({"organizationName": "lab", "namespaces": ["team"]})),
        (
            ORGANIZATION,
            json!({"quotas": [{"resource": "pods", "nominalQuota": 100_000}]}),
        ),
    ] {
        fixture.change(path, |level| level["spec"] = spec);
    }
    for (name, second) in [("a", 1), ("b", 2)] {
        fixture.add_tenant(name, "team", second, &Value::Null);
    }
    fixture.reconcile().await;
    let reserved = 2 * u64::from(berth_api::TenantLimits::default().pods);
    let amounts = |fixture: &Fixture, path: &str| {
        let quota = fixture.status(path)["quotas"][0].clone();
        (quota["reserved"].clone(), quota["used"].clone())
    };
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(
            amounts(&fixture, path),
            (json!(reserved), Value::Null),
            "it is not measured yet"
        );
    }
    let decisions = fixture.context.pace.decisions();
    assert!(fixture.context.quotas.set_measured(pods(&[("a", 3), ("b", 4)])));
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(amounts(&fixture, path), (json!(reserved), json!(7)), "{path}");
    }
    // The same measurement is no reason to decide or to write.
    let calls = fixture.script.calls().len();
    fixture.reconcile().await;
    assert!(!fixture.context.quotas.set_measured(pods(&[("a", 3), ("b", 4)])));
    fixture.reconcile().await;
    assert_eq!(fixture.script.calls().len(), calls);
    assert!(fixture.context.pace.decisions() > decisions);
    // The next process does not know yet what is used. The status says what it said.
    fixture.context.quotas = Arc::default();
    fixture.context.pace = Pace::default();
    fixture.reconcile().await;
    for path in [PROJECT, ORGANIZATION] {
        assert_eq!(amounts(&fixture, path).1, json!(7), "{path}");
    }
}

#[tokio::test]
async fn metrics_have_all_levels_and_tenants() {
    let mut fixture = Fixture::new(9);
    let mut registry = Registry::default();
    fixture.context.metrics = Metrics::new(&mut registry);
    fixture.add_tenant("a", "team", 1, &Value::Null);
    fixture.context.quotas.set_measured(pods(&[("a", 3)]));
    fixture.reconcile().await;
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for line in [
        r#"quota_reserved{level="root",name="",resource="tenantclusters",pool="",product=""} 1"#,
        r#"quota_used{level="root",name="",resource="tenantclusters",pool="",product=""} 1"#,
        r#"quota_nominal{level="root",name="",resource="tenantclusters",pool="",product=""} 9"#,
        r#"quota_used{level="project",name="vision",resource="tenantclusters",pool="",product=""} 1"#,
        r#"quota_borrowed{level="project",name="vision",resource="tenantclusters",pool="",product=""} 0"#,
        r#"tenant_quota_reserved{tenant_namespace="team",tenant="a",resource="tenantclusters",pool=""} 1"#,
        r#"tenant_quota_used{tenant_namespace="team",tenant="a",resource="tenantclusters",pool=""} 1"#,
    ] {
        assert!(text.contains(&format!("berth_control_{line}")), "{line}: {text}");
    }
    assert!(!text.contains(r#"resource="pods""#), "no level limits pods");
}
