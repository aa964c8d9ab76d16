//! The whole controller against scripted answers.

mod gpus;
mod histories;
mod left_project;
mod limits;
mod protection;
mod reservations;
mod usage;
mod waiting;

use super::{Pace, QuotasContext, reconcile};
use crate::{
    clock::Clock,
    controllers::tenant::WithoutClass,
    events::EventRecorder,
    key::Key,
    metrics::Metrics,
    network::NetworkConfig,
    quota_ledger::{QuotaLedger, Verdict},
    testing::{Script, ScriptedApi, ScriptedRuntime, StoreWriters, VERSION},
};
use berth_api::{TenantCluster, TenantClusterSpec};
use berth_runtime::queue::Queue;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use std::sync::Arc;

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
            version: Some(VERSION.into()),
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
        clock: Clock::at(jiff::Timestamp::now()),
        pace: Pace::default(),
        users: Arc::default(),
        queue: Queue::<Key>::new(),
        metrics: Metrics::new(&mut Registry::default()),
        recorder: EventRecorder::new(host.client()),
    }
}

fn tenant_path(name: &str, namespace: &str) -> String {
    format!("/apis/berth.dev/v1alpha1/namespaces/{namespace}/tenantclusters/{name}")
}
