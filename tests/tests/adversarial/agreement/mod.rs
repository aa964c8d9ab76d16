//! What an intact syncer writes is what the policies of the host allow. Random objects, of the schemas that the tenant's API server publishes, are
//! created and changed in a tenant. The API server and the syncer's webhook refuse some of their fields, which are removed; what is accepted must be on the
//! host, or the syncer must have said in its own words why not.

mod repair;
mod schema;

use crate::admission_policies;
use berth_api::{TenantClass, labels};
use berth_tests::{
    dice::Dice,
    objects::{apply, dynamic},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::Event;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, PostParams},
};
use schema::Schemas;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

/// Name of the class and the tenant.
const NAME: &str = "agreement";
const NAMESPACE: &str = "adv-agreement";
/// Objects of a kind that exist at the same time.
const BATCH: usize = 12;
/// How long the syncer has for new objects, and for changes.
const HANDLED_WITHIN: Duration = Duration::from_secs(5);
const CHANGES: Duration = Duration::from_secs(2);
/// The objects are the same in each run, unless `BERTH_RANDOM_SEED` says otherwise: what other ones show is found by hand, with `BERTH_AGREEMENT_ROUNDS`.
const SEED: u64 = 1;
/// How often fields are removed from one object before it is given up.
const REPAIRS: usize = 30;

/// A kind, and what every object of it has.
struct Kind {
    group: &'static str,
    version: &'static str,
    name: &'static str,
    base: Value,
}

impl Kind {
    fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }
}

fn kinds() -> Vec<Kind> {
    let kind = |group, version, name, base| Kind {
        group,
        version,
        name,
        base,
    };
    let port = json!([{"port": 80}]);
    let backend = json!({"service": {"name": "settings", "port": {"number": 80}}});
    let request = json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu"}}]}});
    vec![
        kind(
            "",
            "v1",
            "Pod",
            json!({"spec": {"containers": [{"name": "c", "image": "busybox"}]}}),
        ),
        kind("", "v1", "Service", json!({"spec": {"ports": port}})),
        kind(
            "",
            "v1",
            "PersistentVolumeClaim",
            json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}),
        ),
        kind(
            "networking.k8s.io",
            "v1",
            "Ingress",
            json!({"spec": {"defaultBackend": backend}}),
        ),
        kind(
            "networking.k8s.io",
            "v1",
            "NetworkPolicy",
            json!({"spec": {"podSelector": {}}}),
        ),
        kind(
            "policy",
            "v1",
            "PodDisruptionBudget",
            json!({"spec": {"maxUnavailable": 1}}),
        ),
        kind(
            "discovery.k8s.io",
            "v1",
            "EndpointSlice",
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.9"]}], "ports": port,
                "metadata": {"labels": {"kubernetes.io/service-name": "settings"}}}),
        ),
        kind("resource.k8s.io", "v1", "ResourceClaim", json!({"spec": request})),
        kind(
            "resource.k8s.io",
            "v1",
            "ResourceClaimTemplate",
            json!({"spec": {"spec": request}}),
        ),
    ]
}

/// The objects to which random ones refer.
fn neighbours() -> Vec<Value> {
    let mut all = Vec::new();
    for name in ["a", "a1", "settings"] {
        let mut kinds = kinds();
        kinds.retain(|kind| {
            [
                "Service",
                "PersistentVolumeClaim",
                "ResourceClaim",
                "ResourceClaimTemplate",
            ]
            .contains(&kind.name)
        });
        for kind in kinds {
            let version = kind.api_version();
            all.push(join(
                kind.base,
                json!({"apiVersion": version, "kind": kind.name, "metadata": {"name": name}}),
            ));
        }
        let data = json!({"a": "QQ==", "a1": "QQ==", "settings": "QQ=="});
        for kind in ["ConfigMap", "Secret"] {
            all.push(json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "data": data}));
        }
    }
    all
}

/// Overlays `more` onto `base`: objects are joined, lists by position, and everything else is replaced.
fn join(base: Value, more: Value) -> Value {
    match (base, more) {
        (Value::Object(mut base), Value::Object(more)) => {
            for (key, value) in more {
                let old = base.remove(&key).unwrap_or_default();
                base.insert(key, join(old, value));
            }
            base.into()
        }
        (Value::Array(base), Value::Array(more)) => {
            let count = base.len().max(more.len());
            let (mut base, mut more) = (base.into_iter(), more.into_iter());
            (0..count)
                .map(|_| join(base.next().unwrap_or_default(), more.next().unwrap_or_default()))
                .collect()
        }
        (base, Value::Null) => base,
        (_, more) => more,
    }
}

/// A tenant, and the kinds with what is needed to make objects of them.
struct Trial {
    tenant: Tenant,
    host: Client,
    dice: Dice,
}

impl Trial {
    fn api(&self, kind: &Kind) -> Api<DynamicObject> {
        dynamic(&self.tenant.client, kind.group, kind.version, kind.name, "default")
    }

    fn on_host(&self, kind: &Kind) -> Api<DynamicObject> {
        let namespace = self.tenant.id.workload_namespace();
        dynamic(&self.host, kind.group, kind.version, kind.name, &namespace)
    }

    fn object(&mut self, schemas: &Schemas, kind: &Kind, name: &str) -> Value {
        let random = schemas.spec(&mut self.dice, kind.name);
        let random = if kind.base["spec"].is_null() {
            random
        } else {
            json!({"spec": random})
        };
        // What every object has comes last, so that it is there whatever the dice say.
        let object = join(random, kind.base.clone());
        let version = kind.api_version();
        let metadata = json!({"apiVersion": version, "kind": kind.name, "metadata": {"name": name, "labels": {"app": "a"},
            "annotations": {"example.com/note": "a"}}});
        join(object, metadata)
    }

    /// Creates or replaces an object, without the fields that are refused. Returns what was refused last, if it was given up.
    async fn write(&self, kind: &Kind, mut object: Value) -> Result<DynamicObject, String> {
        let api = self.api(kind);
        let mut last = String::new();
        let exists = object["metadata"]["uid"].is_string();
        for _ in 0..REPAIRS {
            let parsed: DynamicObject = serde_json::from_value(object.clone()).unwrap();
            let written = if exists {
                api.replace(&parsed.name_any(), &PostParams::default(), &parsed).await
            } else {
                api.create(&PostParams::default(), &parsed).await
            };
            match written {
                Ok(written) => return Ok(written),
                Err(kube::Error::Api(status)) => {
                    last.clone_from(&status.message);
                    if !repair::remove_refused(&mut object, &status) {
                        break;
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        Err(last)
    }

    /// Changes an object, in what can be changed of its kind.
    async fn change(&mut self, schemas: &Schemas, kind: &Kind, name: &str) -> Result<DynamicObject, String> {
        let mut object = serde_json::to_value(self.api(kind).get(name).await.unwrap()).unwrap();
        if !["Pod", "ResourceClaim", "ResourceClaimTemplate"].contains(&kind.name) {
            let random = self.object(schemas, kind, name);
            object = join(object, random);
        }
        object["metadata"]["annotations"] = json!({"tools.example.com/note": "b"});
        object["metadata"]["labels"]["example.com/tier"] = "b".into();
        // Others may have written it since it was read.
        object["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        self.write(kind, object).await
    }

    /// What the syncer has said about objects of a kind: pairs of a name, and the reason with the message.
    async fn said(&self, kind: &Kind) -> Vec<(String, String)> {
        let events: Api<Event> = Api::namespaced(self.tenant.client.clone(), "default");
        let about = ListParams::default().fields(&format!("involvedObject.kind={}", kind.name));
        let list = events.list(&about).await.unwrap();
        list.into_iter()
            .map(|event| {
                let name = event.involved_object.name.unwrap_or_default();
                let (reason, message) = (event.reason.unwrap_or_default(), event.message.unwrap_or_default());
                (name, format!("{reason}: {message}"))
            })
            .collect()
    }

    /// Waits until every object is on the host, or the syncer has said why not. Some never are, and it says nothing about these: Services without an address,
    /// pods that wait for something, endpoints of such Services.
    async fn until_handled(&self, kind: &Kind, created: &BTreeMap<String, Value>) {
        let (host, mine) = (
            self.on_host(kind),
            ListParams::default().labels("berth.dev/managed-by=syncer"),
        );
        let mut missing = Vec::new();
        let begun = Instant::now();
        while begun.elapsed() < HANDLED_WITHIN {
            let listed = host.list(&mine).await.unwrap();
            let mut handled: BTreeSet<String> = listed
                .into_iter()
                .filter_map(|object| object.annotations().get(labels::ORIGIN_NAME).cloned())
                .collect();
            handled.extend(self.said(kind).await.into_iter().map(|(name, _)| name));
            missing = created.iter().filter(|(name, _)| !handled.contains(*name)).collect();
            if missing.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
        for (name, object) in missing {
            eprintln!("neither on the host nor reported: {name}: {object}");
        }
    }
}

fn class() -> TenantClass {
    let mut class = admission_policies::class();
    class.metadata.name = Some(NAME.into());
    class
}

pub(crate) async fn what_a_syncer_writes_is_what_the_policies_allow(host: Arc<TestCluster>) {
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.create(&PostParams::default(), &class()).await.unwrap();
    let gvisor = json!({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "gvisor"}, "handler": "runsc"});
    apply(&host.client, NAMESPACE, &gvisor).await.unwrap();
    let mut wanted = cluster(NAME, &[]);
    wanted.spec.class_name = Some(NAME.into());
    let mut trial = Trial {
        tenant: Tenant::create(&host, NAMESPACE, &wanted).await,
        host: host.client.clone(),
        dice: Dice::from_environment_or(SEED),
    };
    for object in neighbours() {
        apply(&trial.tenant.client, "default", &object).await.unwrap();
    }
    let rounds: usize = std::env::var("BERTH_AGREEMENT_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let mut failed = BTreeSet::new();
    for kind in kinds() {
        let group_version = if kind.group.is_empty() {
            "api/v1".to_owned()
        } else {
            format!("apis/{}/{}", kind.group, kind.version)
        };
        let schemas = Schemas::read(&trial.tenant.client, &group_version).await;
        for round in 0..rounds {
            failed.extend(one_round(&mut trial, &schemas, &kind, round).await);
        }
    }
    assert!(
        failed.is_empty(),
        "the host refuses what the syncer writes: {failed:#?}"
    );

    trial.tenant.delete(&host).await;
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
    let runtime_classes: Api<k8s_openapi::api::node::v1::RuntimeClass> = Api::all(host.client.clone());
    runtime_classes
        .delete("gvisor", &DeleteParams::default())
        .await
        .unwrap();
}

/// Creates some objects of a kind, changes and deletes them. Returns what the host's API server refused of them.
async fn one_round(trial: &mut Trial, schemas: &Schemas, kind: &Kind, round: usize) -> Vec<String> {
    let (mut created, mut given_up) = (BTreeMap::new(), Vec::new());
    for index in 0..BATCH {
        let name = format!("{}-{round}-{index}", kind.name.to_lowercase());
        let object = trial.object(schemas, kind, &name);
        match trial.write(kind, object).await {
            Ok(object) => {
                created.insert(name, object.data);
            }
            Err(last) => given_up.push(last),
        }
    }
    eprintln!("{}: {} accepted, given up: {given_up:#?}", kind.name, created.len());
    assert!(!created.is_empty(), "no {} was accepted: {given_up:#?}", kind.name);
    trial.until_handled(kind, &created).await;
    let mut unchanged = Vec::new();
    for name in created.keys() {
        unchanged.extend(trial.change(schemas, kind, name).await.err());
    }
    eprintln!("{}: not changed: {unchanged:#?}", kind.name);
    tokio::time::sleep(CHANGES).await;
    let said = trial.said(kind).await;
    let (api, now) = (trial.api(kind), DeleteParams::default().grace_period(0));
    api.delete_collection(&now, &ListParams::default().labels("app=a"))
        .await
        .unwrap();
    until("they are gone", SOON, async || {
        let listed = api.list(&ListParams::default().labels("app=a")).await;
        let left = listed.map_err(|error| error.to_string())?.items.len();
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    })
    .await;
    said.into_iter()
        .filter(|(_, said)| said.starts_with("SyncFailed"))
        .filter_map(|(name, said)| {
            Some(format!(
                "{} {name}: {said}; created as {}",
                kind.name,
                created.get(&name)?
            ))
        })
        .collect()
}
