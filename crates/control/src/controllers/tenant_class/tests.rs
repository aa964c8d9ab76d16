//! The whole controller against scripted answers.

use super::{KnownKinds, TenantClassContext, TenantClassError, reconcile};
use crate::{
    clock::Clock,
    events::EventRecorder,
    testing::{Script, ScriptedApi, ScriptedRuntime, StoreWriters, VERSION},
};
use berth_api::{
    TenantClass, TenantClassSpec, TenantClusterSpec,
    sync_policy::{PRIORITY_STEPS, PriorityBand, SyncedKind},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

const CLASS: &str = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
const PRIORITY_CLASSES: &str = "/priorityclasses/";
/// The time by the clock of the host, which that of the machine is far from.
const NOW: &str = "2001-02-03T04:05:06Z";

struct Fixture {
    script: Script,
    host: ScriptedApi,
    context: TenantClassContext,
    writers: StoreWriters,
}

impl Fixture {
    fn new() -> Self {
        let script = Script::default();
        let host = ScriptedApi::new("host", &script);
        let (stores, writers) = StoreWriters::new();
        let context = TenantClassContext {
            client: host.client(),
            stores,
            clock: Clock::at(NOW.parse().unwrap()),
            has_admission_policies: true,
            has_snapshot_store: true,
            runtime: Arc::new(ScriptedRuntime::new(&script)),
            kinds: Arc::new(KnownKinds::new(host.client())),
            recorder: EventRecorder::new(host.client()),
        };
        let fixture = Self {
            script,
            host,
            context,
            writers,
        };
        fixture.set_band(0, 1100);
        fixture
    }

    /// Gives the class a band of priorities, and a further kind.
    fn set_band(&self, lowest: i32, highest: i32) {
        let mut spec = TenantClassSpec::default();
        spec.sync.pods.priority = Some(PriorityBand { lowest, highest });
        spec.sync.kinds = vec![SyncedKind {
            group: "scheduling.k8s.io".into(),
            version: "v1alpha1".into(),
            kind: "PodGroup".into(),
            resource: "podgroups".into(),
            ..SyncedKind::default()
        }];
        let mut class = TenantClass::new("gold", spec);
        class.metadata.uid = Some("g".into());
        class.metadata.generation = Some(1);
        self.host.insert(CLASS, serde_json::to_value(class).unwrap());
        self.host.serve(
            "/apis/scheduling.k8s.io/v1alpha1",
            json!({"kind": "APIResourceList", "groupVersion": "scheduling.k8s.io/v1alpha1", "resources": [
                {"name": "podgroups", "kind": "PodGroup", "namespaced": true, "singularName": "podgroup", "verbs": []},
            ]}),
        );
    }

    async fn reconcile(&mut self) -> Result<Option<Duration>, TenantClassError> {
        self.writers.update(&self.host);
        reconcile(&self.context, "gold").await
    }

    /// Makes two tenants of the class, with one name in two namespaces.
    fn add_tenants_of_the_same_name(&self) {
        for namespace in ["team-a", "team-b"] {
            let spec = TenantClusterSpec {
                class_name: Some("gold".into()),
                ..TenantClusterSpec::default()
            };
            self.host.insert(
                &format!("/apis/berth.dev/v1alpha1/namespaces/{namespace}/tenantclusters/vision"),
                json!({"metadata": {"name": "vision", "namespace": namespace, "uid": namespace}, "spec": spec}),
            );
        }
    }

    fn ready(&self) -> Value {
        let class = self.host.get(CLASS).unwrap_or_default();
        class["status"]["conditions"][0].clone()
    }

    fn priority_classes(&self) -> Vec<Value> {
        self.host.find(PRIORITY_CLASSES)
    }

    /// Reconciles until a reconcile has nothing to write. Returns the errors on the way.
    async fn settle(&mut self) -> Vec<TenantClassError> {
        let mut errors = Vec::new();
        for _ in 0..10 {
            let before = self.script.calls().len();
            match self.reconcile().await {
                Err(error) => errors.push(error),
                Ok(_) if self.script.calls().len() == before => return errors,
                Ok(_) => {}
            }
        }
        panic!("not settled: {:#?}", self.script.calls());
    }
}

fn count_of_band() -> usize {
    usize::from(PRIORITY_STEPS) * 2
}

#[tokio::test]
async fn conditions_change_by_the_clock_of_the_host() {
    let mut fixture = Fixture::new();
    fixture.settle().await;
    let ready = fixture.ready();
    let changed = ready["lastTransitionTime"].as_str().unwrap();
    assert!(changed.starts_with("2001-02-03T04:0"), "{changed}");
}

#[tokio::test]
async fn a_class_gets_its_priority_classes_and_each_call_may_fail_once() {
    let mut healthy = Fixture::new();
    assert!(healthy.settle().await.is_empty());
    assert_eq!(
        (&healthy.ready()["status"], healthy.priority_classes().len()),
        (&json!("True"), count_of_band())
    );
    for number in 0..healthy.script.calls().len() {
        let mut fixture = Fixture::new();
        fixture.script.fail_call(number);
        let errors = fixture.settle().await;
        let failed = fixture.script.failed().unwrap();
        assert_eq!(errors.len(), 1, "{failed}: {errors:?}");
        assert_eq!(fixture.ready()["status"], "True", "{failed}");
        assert_eq!(fixture.priority_classes().len(), count_of_band(), "{failed}");
    }
}

#[tokio::test]
async fn a_band_that_changes_replaces_the_priority_classes_and_each_call_may_fail_once() {
    for number in 0..40 {
        let mut fixture = Fixture::new();
        fixture.settle().await;
        fixture.set_band(0, 2200);
        fixture.script.fail_call(fixture.script.calls().len() + number);
        fixture.settle().await;
        let highest = fixture
            .priority_classes()
            .iter()
            .filter_map(|class| class["value"].as_i64())
            .max();
        assert_eq!(
            (highest, fixture.priority_classes().len()),
            (Some(2200), count_of_band()),
            "call {number}"
        );
    }
}

#[tokio::test]
async fn a_class_that_is_gone_leaves_no_priority_classes_unless_tenants_run_with_its_rules() {
    let mut fixture = Fixture::new();
    fixture.settle().await;
    let tenant = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision";
    fixture.host.insert(
        tenant,
        json!({
            "metadata": {"name": "vision", "namespace": "team", "uid": "u"},
            "spec": berth_api::TenantClusterSpec::default(), "status": {"className": "gold"},
        }),
    );
    fixture.host.remove(CLASS);
    fixture.settle().await;
    assert_eq!(fixture.priority_classes().len(), count_of_band());
    fixture.host.remove(tenant);
    fixture.settle().await;
    assert!(fixture.priority_classes().is_empty());
}

/// The watch of tenants wakes the classes that a tenant has and names, and not the one that it had before.
#[tokio::test]
async fn a_class_that_is_gone_is_looked_at_until_its_last_tenant_has_another_one() {
    let mut fixture = Fixture::new();
    fixture.settle().await;
    let tenant = "/apis/berth.dev/v1alpha1/namespaces/team/tenantclusters/vision";
    let with_class = |class: &str| {
        json!({
            "metadata": {"name": "vision", "namespace": "team", "uid": "u"},
            "spec": TenantClusterSpec::default(), "status": {"className": class},
        })
    };
    fixture.host.insert(tenant, with_class("gold"));
    fixture.host.remove(CLASS);
    assert!(fixture.reconcile().await.unwrap().is_some(), "nothing else wakes it");
    fixture.host.insert(tenant, with_class("silver"));
    assert_eq!(fixture.reconcile().await.unwrap(), None);
    assert!(fixture.priority_classes().is_empty());
}

#[tokio::test]
async fn a_name_that_is_in_use_and_a_kind_that_is_not_served_are_reasons() {
    let mut fixture = Fixture::new();
    fixture.host.serve("/apis/scheduling.k8s.io/v1alpha1", Value::Null);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.ready()["reason"], "KindNotServed");
    let mut fixture = Fixture::new();
    fixture.host.insert(
        "/apis/scheduling.k8s.io/v1/priorityclasses/berth-gold-0",
        json!({"metadata": {"name": "berth-gold-0"}, "value": 7}),
    );
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.ready()["reason"], "NameTaken");
}

#[tokio::test]
async fn a_default_version_that_cannot_be_run_is_reported() {
    for (default, expected) in [(VERSION, "Ready"), ("v1.36.4", "DefaultVersionNotAvailable")] {
        let mut fixture = Fixture::new();
        let mut class = fixture.host.get(CLASS).unwrap();
        class["spec"]["defaultVersion"] = default.into();
        fixture.host.insert(CLASS, class);
        fixture.settle().await;
        assert_eq!(fixture.ready()["reason"], expected);
    }
}

#[tokio::test]
async fn capabilities_are_given_only_where_admission_policies_enforce_the_rest() {
    for (has_policies, expected) in [(true, "Ready"), (false, "CapabilitiesNotGiven")] {
        let mut fixture = Fixture::new();
        fixture.context.has_admission_policies = has_policies;
        let mut class = fixture.host.get(CLASS).unwrap();
        class["spec"]["sync"]["pods"]["capabilities"] = json!(["IPC_LOCK"]);
        fixture.host.insert(CLASS, class);
        fixture.settle().await;
        assert_eq!(fixture.ready()["reason"], expected);
    }
}

#[tokio::test]
async fn host_names_that_two_tenants_may_serve_are_reported() {
    for (hostname, status, reason) in [
        ("*.example.com", "False", "HostnamesShared"),
        ("*.{tenant}.{namespace}.example.com", "True", "NoOverlap"),
    ] {
        let mut fixture = Fixture::new();
        let mut class = fixture.host.get(CLASS).unwrap();
        class["spec"]["sync"]["ingress"]["hostnames"] = json!([hostname]);
        fixture.host.insert(CLASS, class);
        fixture.add_tenants_of_the_same_name();
        fixture.settle().await;
        let class = fixture.host.get(CLASS).unwrap();
        assert_eq!(class["status"]["tenants"], 2);
        let conditions = class["status"]["conditions"].as_array().unwrap();
        let exclusive = conditions
            .iter()
            .find(|condition| condition["type"] == "HostnamesExclusive")
            .unwrap();
        assert_eq!(
            (&exclusive["status"], &exclusive["reason"]),
            (&json!(status), &json!(reason))
        );
        assert_eq!(fixture.ready()["status"], "True");
    }
}

#[tokio::test]
async fn images_of_one_tenant_that_another_may_use_are_reported() {
    for (image, status, reason) in [
        ("registry.example.com/{tenant}/*", "False", "ImagesShared"),
        ("registry.example.com/{namespace}/{tenant}/*", "True", "NoOverlap"),
        ("registry.example.com/*", "True", "NoOverlap"),
    ] {
        let mut fixture = Fixture::new();
        let mut class = fixture.host.get(CLASS).unwrap();
        class["spec"]["sync"]["pods"]["images"] = json!([image]);
        fixture.host.insert(CLASS, class);
        fixture.add_tenants_of_the_same_name();
        fixture.settle().await;
        let class = fixture.host.get(CLASS).unwrap();
        let mut conditions = class["status"]["conditions"].as_array().unwrap().iter();
        let exclusive = conditions
            .find(|condition| condition["type"] == "ImagesExclusive")
            .unwrap();
        assert_eq!(
            (&exclusive["status"], &exclusive["reason"]),
            (&json!(status), &json!(reason)),
            "{image}"
        );
        assert_eq!(fixture.ready()["status"], "True");
    }
}

#[tokio::test]
async fn a_schedule_of_snapshots_without_a_store_is_reported_once() {
    let mut fixture = Fixture::new();
    let mut class = fixture.host.get(CLASS).unwrap();
    class["spec"]["snapshots"] = json!({"schedule": {"cron": "0 2 * * *"}});
    fixture.host.insert(CLASS, class);
    fixture.context.has_snapshot_store = false;
    fixture.settle().await;
    let ready = fixture.ready();
    assert_eq!(
        (&ready["status"], &ready["reason"]),
        (&json!("False"), &json!("NoSnapshotStore"))
    );
    assert!(ready["message"].to_string().contains("set snapshots.url"), "{ready}");
    let events = |fixture: &Fixture| fixture.host.find("/events/gold.");
    assert_eq!(events(&fixture).len(), 1);
    assert_eq!(events(&fixture)[0]["type"], "Warning");
    assert_eq!(events(&fixture)[0]["reason"], "NoSnapshotStore");
    for _ in 0..3 {
        fixture.reconcile().await.unwrap();
    }
    // One that comes again would count up.
    assert!(events(&fixture)[0]["series"].is_null());
    fixture.context.has_snapshot_store = true;
    fixture.settle().await;
    assert_eq!(fixture.ready()["status"], "True");
}

#[tokio::test]
async fn without_a_schedule_no_store_is_missing() {
    let mut fixture = Fixture::new();
    fixture.context.has_snapshot_store = false;
    fixture.settle().await;
    assert_eq!(fixture.ready()["status"], "True");
    assert!(fixture.host.find("/events/gold.").is_empty());
}
