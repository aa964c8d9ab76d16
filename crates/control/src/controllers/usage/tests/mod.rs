//! Usage from objects of the host to stored records.

mod nodes;
mod objects;
mod pools;
mod records;
mod summaries;

use super::{UsageContext, UsageState, keep_proofs, reconcile, save};
use crate::{
    clock::Clock,
    error::ReconcileError,
    metered_use::MeteredUse,
    metrics::UsageMetrics,
    testing::{Script, ScriptedApi, StoreWriters},
};
use berth_api::{UsageRecord, UsageResource, labels, names::TenantId};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

const UID: &str = "u1";
/// Where records are.
const RECORDS: &str = "/apis/berth.dev/v1alpha1/usagerecords";
/// Seconds that a test may take without another result.
const SLACK: i64 = 60;

struct Fixture {
    host: ScriptedApi,
    script: Script,
    clock: Clock,
    context: UsageContext,
    writers: StoreWriters,
}

fn start() -> Timestamp {
    "2026-11-10T12:00:00Z".parse().unwrap()
}

/// A time so many seconds after the start.
fn at(seconds: i64) -> Timestamp {
    start() + SignedDuration::from_secs(seconds)
}

fn slug() -> String {
    TenantId::new("vision", UID).slug().to_owned()
}

impl Fixture {
    /// A tenant that was created an hour ago, with a node group, in a Project; a pool with GPUs.
    fn new() -> Self {
        let script = Script::default();
        let host = ScriptedApi::new("host", &script);
        let clock = Clock::at(start());
        let (mut stores, writers) = StoreWriters::new();
        stores.metered = MeteredUse::new(clock.clone(), true);
        let context = UsageContext {
            client: host.client(),
            stores,
            clock: clock.clone(),
            retention_months: 13,
            metrics: UsageMetrics::default(),
            state: UsageState::default(),
        };
        let fixture = Self {
            host,
            script,
            clock,
            context,
            writers,
        };
        fixture.put_tenant("vision", UID, &json!({}));
        let spec = json!({"nodeSelector": {"pool": "h100"}, "gpuResourceName": "nvidia.com/gpu", "gpuProduct": "H100"});
        let pool = json!({"metadata": {"name": "h100", "uid": "h100"}, "spec": spec});
        fixture.host.insert("/apis/berth.dev/v1alpha1/hostnodepools/h100", pool);
        let spec = json!({"namespaces": ["team"], "organizationName": "research"});
        let project = json!({"metadata": {"name": "p", "uid": "p"}, "spec": spec});
        fixture.host.insert("/apis/berth.dev/v1alpha1/projects/p", project);
        fixture
    }

    fn put_tenant(&self, name: &str, uid: &str, sleep: &Value) {
        let created = at(-3600).to_string();
        let metadata =
            json!({"name": name, "namespace": "team", "uid": uid, "generation": 1, "creationTimestamp": created});
        let group = json!({"name": "train", "poolName": "h100", "mode": "Dynamic", "maxReplicas": 4});
        let accepted = json!({"type": "Accepted", "status": "True", "reason": "Valid", "message": "",
            "observedGeneration": 1, "lastTransitionTime": created});
        let status =
            json!({"controlPlaneNamespace": "cp", "className": "gold", "sleep": sleep, "conditions": [accepted]});
        let cluster = json!({"metadata": metadata, "spec": {"nodeGroups": [group]}, "status": status});
        self.host.insert(&tenant_path(name), cluster);
    }

    /// Gives the tenant other node groups, and says in its status whether they are accepted. None: its status is about the spec before.
    fn set_groups(&self, groups: &Value, is_accepted: Option<bool>) {
        let path = tenant_path("vision");
        let mut cluster = self.host.get(&path).unwrap();
        let generation = cluster["metadata"]["generation"].as_i64().unwrap() + 1;
        cluster["metadata"]["generation"] = generation.into();
        cluster["spec"]["nodeGroups"] = groups.clone();
        if let Some(is_accepted) = is_accepted {
            let condition = &mut cluster["status"]["conditions"][0];
            condition["status"] = if is_accepted { "True".into() } else { "False".into() };
            condition["observedGeneration"] = generation.into();
        }
        self.host.insert(&path, cluster);
    }

    fn remove_tenant(&self, name: &str) {
        self.host.remove(&tenant_path(name));
    }

    /// A node with eight GPUs that serves a tenant since a time.
    fn assign(&self, node: &str, (tenant, uid): (&str, &str), since: i64) {
        let slug = TenantId::new(tenant, uid).slug().to_owned();
        let state = labels::NODE_STATE_ASSIGNED;
        let metadata = json!({
            "name": node,
            "labels": {labels::TENANT: slug, labels::NODE_STATE: state, labels::POOL: "h100", labels::NODE_GROUP: "train"},
            "annotations": {
                labels::OWNER_UID: uid, labels::NODE_STATE: state, labels::STATE_SINCE: at(since).to_string(),
                labels::ASSIGNED_SINCE: at(since).to_string(), labels::RECORDED_GPUS: "nvidia.com/gpu=8",
            },
        });
        self.host.insert(&node_path(node), json!({ "metadata": metadata }));
    }

    /// The same node in the first state after it has left its tenant.
    fn release(&self, node: &str, assigned: i64, left: i64) {
        self.scrub(node, (assigned, left), left);
    }

    /// The same, with a scrub that has begun at a time, perhaps again.
    fn scrub(&self, node: &str, (assigned, left): (i64, i64), begun: i64) {
        let metadata = json!({
            "name": node,
            "labels": {labels::NODE_STATE: "Scrubbing", labels::POOL: "h100"},
            "annotations": {
                labels::NODE_STATE: "Scrubbing", labels::PREVIOUS_TENANT: slug(), labels::RECYCLING_ID: "r",
                labels::STATE_SINCE: at(begun).to_string(), labels::ASSIGNED_SINCE: at(assigned).to_string(),
                labels::LEFT_AT: at(left).to_string(), labels::RECORDED_GPUS: "nvidia.com/gpu=8",
            },
        });
        self.host.insert(&node_path(node), json!({ "metadata": metadata }));
    }

    /// The same node when no tenant has it any more, and nothing says who had it.
    fn free(&self, node: &str) {
        self.host.insert(&node_path(node), json!({"metadata": {"name": node}}));
    }

    /// Sets the clock to so many seconds after the start.
    fn advance_to(&self, seconds: i64) {
        self.clock.set_ahead(seconds);
    }

    async fn pass(&mut self) -> Result<(), ReconcileError> {
        self.writers.update(&self.host);
        reconcile(&self.context).await.map(drop)
    }

    /// The same, and writes everything, as a control that stops.
    async fn stop(&mut self) {
        self.writers.update(&self.host);
        save(&self.context).await;
    }

    /// What control does before its other controllers work.
    fn begin(&mut self) {
        self.writers.update(&self.host);
        keep_proofs(&self.context);
    }

    /// Another control, which knows nothing.
    fn restart(&mut self) {
        self.context.state = UsageState::default();
        self.context.stores.metered = MeteredUse::new(self.clock.clone(), true);
    }

    /// The records of tenants.
    fn records(&self) -> Vec<UsageRecord> {
        let mut records = self.all_records();
        records.retain(|record| !record.spec.tenant.is_pool());
        records
    }

    /// The records of tenants and pools.
    fn all_records(&self) -> Vec<UsageRecord> {
        let found = self.host.find(&format!("{RECORDS}/"));
        found
            .into_iter()
            .map(|record| serde_json::from_value(record).unwrap())
            .collect()
    }

    /// The only record of a tenant.
    fn record(&self) -> UsageRecord {
        let mut records = self.records();
        assert_eq!(records.len(), 1, "{records:?}");
        records.remove(0)
    }

    /// What the only record of a tenant has of a resource.
    fn amount(&self, resource: UsageResource) -> i64 {
        sum(&self.record(), resource)
    }

    fn calls(&self) -> usize {
        self.script.calls().len()
    }
}

fn tenant_path(name: &str) -> String {
    format!("/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/{name}")
}

fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

/// What a record has of a resource, in all lines and days.
fn sum(record: &UsageRecord, resource: UsageResource) -> i64 {
    let lines = record.spec.lines.iter().filter(|line| line.resource == resource);
    lines.flat_map(|line| &line.daily).sum()
}

/// Fails if an amount is not what it should be after so many seconds, and those that the test took.
fn assert_seconds(amount: i64, each_second: i64, seconds: i64) {
    let expected = each_second * seconds..=each_second * (seconds + SLACK);
    assert!(expected.contains(&amount), "{amount} is not within {expected:?}");
}
