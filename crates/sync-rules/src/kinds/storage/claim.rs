//! PersistentVolumeClaims.
//!
//! | field | rule |
//! |---|---|
//! | labels | not passed on: see `metadata` |
//! | annotations | not passed on: drivers follow instructions in them, such as which volume to import; an Event says why |
//! | annotation `volume.kubernetes.io/selected-node` | copied if the node is the tenant's alone; otherwise an Event says why not |
//! | `accessModes`, `volumeMode` | copied |
//! | `resources` | copied; a larger request grows the volume |
//! | `storageClassName` | must be offered; a claim without one gets the tenant's default class. The host's default never decides |
//! | `volumeAttributesClassName` | must be offered |
//! | `dataSource`, `dataSourceRef` | claims and snapshots of the same namespace, by the name of the host's object |
//! | `selector`, `volumeName` | denied: volumes are made for claims, none can be chosen |
//! | `volumeName`, annotation `pv.kubernetes.io/bind-completed` | written by the syncer once the host's claim has a volume |
//! | status | the host's, once the tenant can see the volume; the condition `Unused` is the tenant's own |
//!
//! A claim that was bound and is gone on the host is `Lost`: another volume would not have its data.

use super::{REQUESTS, REQUESTS_OF_NEW_CLAIM, classes::offered, on_host};
use crate::{
    kinds::node,
    model::{
        Cache, DeniedField, Dependency, DesiredState, HostNamespace, Kind, KindId, Observation, TenantWrite, ToHost,
        Translated, json,
        references::Target,
        resource::{Name, Resource, host_name},
        store::WatchSpec,
    },
    translation::{
        fields::{self, FieldIssues, Fields, Rule},
        host_text, metadata,
    },
};
use berth_api::{labels, sync_policy::allows};
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::{cmp::Reverse, collections::BTreeSet};

const RESOURCE: Resource = Resource::new("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims");

/// The kind.
pub const KIND: Kind = Kind::to_host(RESOURCE, &Claims)
    .watch_tenant(
        WatchSpec::own(RESOURCE)
            .trimmed(metadata::without_last_applied)
            // Its volume stays in the tenant as long as it names it, and the claim has its data.
            .keeping_if_cut(&["volumeName"]),
    )
    .watch_host(HostNamespace::Workloads, WatchSpec::synced(RESOURCE).trimmed(trim_host))
    .with_tenant_rights(&[
        ("persistentvolumeclaims", &["patch"]),
        ("persistentvolumeclaims/status", &["patch"]),
    ])
    .depends_on(&[
        // Claims without a class wait for a default one.
        Dependency::on_tenant(KindId::StorageClass, |cache, _| {
            cache.keys_missing_on_host(KindId::PersistentVolumeClaim)
        }),
        // A claim is bound once its volume is in the tenant.
        Dependency::on_tenant(KindId::PersistentVolume, |cache, volume| {
            cache.references().users(&KindId::PersistentVolume.key(volume.clone()))
        }),
    ]);

/// Fields of a host claim's spec that rules and decisions read.
const KEPT_SPEC: &[&str] = &[
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
    "volumeName",
];

/// Keeps the state of a host claim and what decides about it.
fn trim_host(claim: &mut Value) {
    if let Some(metadata) = claim["metadata"].as_object_mut() {
        metadata.remove("labels");
        metadata.remove("namespace");
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| labels::is_reserved(key));
        }
    }
    if let Some(spec) = claim["spec"].as_object_mut() {
        spec.retain(|key, _| KEPT_SPEC.contains(&key.as_str()));
    }
}

/// The annotation for the class, from before there was a field.
const CLASS: &str = "volume.beta.kubernetes.io/storage-class";
/// The annotation by which schedulers choose the node that a volume is made for.
const NODE: &str = "volume.kubernetes.io/selected-node";
/// The annotation on claims that have their volume.
const BOUND: &str = "pv.kubernetes.io/bind-completed";
/// Domains of annotations that the tenant's controllers and clients set; each side has its own.
const LOCAL: &[&str] = &[
    "helm.sh/",
    "kubectl.kubernetes.io/",
    "meta.helm.sh/",
    "pv.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "volume.kubernetes.io/",
];
/// A condition that the tenant's own controllers set, because only they know the tenant's pods.
const UNUSED: &str = "Unused";

const NOT_CHOSEN: &str = "volumes are made for claims and cannot be chosen: leave this field out";

/// Groups and kinds of the objects from which volumes can be filled. Other kinds are instructions to programs of the host (volume populators), which
/// follow them with rights of their own.
pub const DATA_SOURCES: [(&str, &str, KindId); 2] = [
    ("", "PersistentVolumeClaim", KindId::PersistentVolumeClaim),
    ("snapshot.storage.k8s.io", "VolumeSnapshot", KindId::VolumeSnapshot),
];

const SPEC: Fields = &[
    ("accessModes", Rule::Copy),
    ("dataSource", Rule::Rewrite),
    ("dataSourceRef", Rule::Rewrite),
    ("resources", Rule::Rewrite),
    ("selector", Rule::Deny(NOT_CHOSEN)),
    ("storageClassName", Rule::Rewrite),
    ("volumeAttributesClassName", Rule::Rewrite),
    ("volumeMode", Rule::Copy),
    ("volumeName", Rule::Rewrite),
];

/// The rules of `VolumeResourceRequirements`.
const RESOURCES: Fields = &[("limits", Rule::Copy), ("requests", Rule::Copy)];

/// The rules of `TypedLocalObjectReference` and `TypedObjectReference`.
const SOURCE: Fields = &[
    ("apiGroup", Rule::Copy),
    ("kind", Rule::Copy),
    ("name", Rule::Rewrite),
    ("namespace", Rule::Rewrite),
];

struct Claims;

impl ToHost for Claims {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn desired_state(&self, _cache: &Cache, _name: &Name, claim: &Value) -> DesiredState {
        match json::text(claim, &["status", "phase"]) {
            Some("Bound" | "Lost") => DesiredState::Once,
            _ => DesiredState::Sync,
        }
    }

    fn references(&self, _cache: &Cache, name: &Name, claim: &Value) -> BTreeSet<Target> {
        let sources = ["dataSource", "dataSourceRef"].into_iter().filter_map(|field| {
            let source = json::at(claim, &["spec", field])?;
            Some(Target {
                kind: source_kind(source)?,
                name: Name::new(&name.namespace, json::filled(source, &["name"])?),
            })
        });
        let volume = json::filled(claim, &["spec", "volumeName"]).map(|volume| Target {
            kind: KindId::PersistentVolume,
            name: Name::new("", volume),
        });
        sources.chain(volume).collect()
    }

    fn is_prerequisite(&self, target: &Target) -> bool {
        // The volume comes from the host.
        target.kind != KindId::PersistentVolume
    }

    fn translate(&self, cache: &Cache, name: &Name, claim: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let source = &claim["spec"];
        let host = on_host(cache, KindId::PersistentVolumeClaim, name, claim);
        let mut spec = fields::copy(source, "spec", SPEC, &mut issues);
        let given = host
            .as_ref()
            .and_then(|host| json::filled(host, &["spec", "volumeName"]));
        if json::filled(source, &["volumeName"]).is_some_and(|volume| given != Some(volume)) {
            issues.deny("spec.volumeName", NOT_CHOSEN);
        }
        classes(cache, claim, host.as_deref(), &mut spec, &mut issues);
        if let Some(resources) = source.get("resources") {
            let resources = fields::copy(resources, "spec.resources", RESOURCES, &mut issues);
            spec.insert("resources".into(), resources.into());
        }
        for field in ["dataSource", "dataSourceRef"] {
            if let Some(source) = source.get(field).filter(|source| !json::is_unset(source)) {
                let source = data_source(name, source, &format!("spec.{field}"), &mut issues);
                spec.insert(field.into(), source.into());
            }
        }
        let annotations = annotations(cache, claim, &mut issues);
        let metadata = json!({"annotations": annotations});
        issues.into_result(json!({"metadata": metadata, "spec": spec}))
    }

    fn mutable_part(&self, desired: &Value) -> Value {
        let spec = &desired["spec"];
        json!([
            desired["metadata"],
            spec["resources"],
            spec["volumeAttributesClassName"]
        ])
    }

    fn controller_requests(&self, _desired: &Value, is_new: bool) -> u64 {
        // What changes is the size or the class of the volume, or the node for which it is made.
        REQUESTS + if is_new { REQUESTS_OF_NEW_CLAIM } else { 0 }
    }

    fn is_decided_later(&self, field: &str) -> bool {
        field == annotation_path(NODE)
    }

    fn sync_status(&self, cache: &Cache, name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
        let Observation { tenant, host, .. } = observation;
        let volume = json::filled(host, &["spec", "volumeName"]);
        let chosen = json::filled(tenant, &["spec", "volumeName"]);
        if chosen.is_some() && chosen != volume {
            // The volume was chosen by hand, which is denied; that cannot be changed any more.
            return Vec::new();
        }
        let is_bound = json::text(host, &["status", "phase"]) == Some("Bound");
        let mut patch = json!({});
        if let Some(volume) = volume {
            patch["spec"]["volumeName"] = volume.into();
        }
        if json::text(tenant, &["spec", "storageClassName"]).is_none() {
            patch["spec"]["storageClassName"] = host["spec"]["storageClassName"].clone();
        }
        if is_bound {
            patch["metadata"]["annotations"][BOUND] = "yes".into();
        }
        let mut writes = vec![TenantWrite::Patch(patch)];
        let volumes = cache.stores.tenant(KindId::PersistentVolume);
        let can_be_seen = |volume| volumes.contains(&Name::new("", volume)) || volumes.unavailable().is_some();
        // Bound means that the volume exists in the tenant.
        if !is_bound || volume.is_some_and(can_be_seen) {
            let mut status = host["status"].clone();
            host_text::translate_texts(cache, name, &mut status);
            writes.push(TenantWrite::Status(with_own_conditions(status, tenant)));
        }
        writes
    }

    fn holds_data(&self) -> bool {
        true
    }

    fn lost_status(
        &self,
        _cache: &Cache,
        _name: &Name,
        claim: &Value,
        _: Option<&Value>,
        _: Timestamp,
    ) -> Option<Value> {
        Some(with_own_conditions(json!({"phase": "Lost"}), claim))
    }
}

/// The names of both classes.
fn classes(
    cache: &Cache,
    claim: &Value,
    host: Option<&Value>,
    spec: &mut Map<String, Value>,
    issues: &mut FieldIssues,
) {
    let policy = &cache.tenant.policy.storage;
    let class = class(cache, claim, host);
    let problem = match class.as_deref() {
        None => Some("there is no default class".to_owned()),
        Some("") => Some("volumes are made by a class".to_owned()),
        Some(class) if !allows(&policy.classes, class) => Some(format!("the class {class} is not offered")),
        Some(_) => None,
    };
    match problem {
        None => drop(spec.insert("storageClassName".into(), class.into())),
        Some(problem) => {
            let offer = offered(cache, KindId::StorageClass, &policy.classes);
            issues.deny("spec.storageClassName", format!("{problem}: {offer}"));
        }
    }
    if let Some(class) = json::filled(claim, &["spec", "volumeAttributesClassName"]) {
        if allows(&policy.attributes_classes, class) {
            spec.insert("volumeAttributesClassName".into(), class.into());
        } else {
            let offer = offered(cache, KindId::VolumeAttributesClass, &policy.attributes_classes);
            let why = format!("the class {class} is not offered: {offer}");
            issues.deny("spec.volumeAttributesClassName", why);
        }
    }
}

/// The class of a claim: what it says, what was chosen for it before, or the tenant's default.
fn class(cache: &Cache, claim: &Value, host: Option<&Value>) -> Option<String> {
    json::text(claim, &["metadata", "annotations", CLASS])
        .or_else(|| json::text(claim, &["spec", "storageClassName"]))
        .or_else(|| json::text(host?, &["spec", "storageClassName"]))
        .map(ToOwned::to_owned)
        .or_else(|| default_class(cache))
}

/// The default class in the tenant: the newest, as its API server chooses for new claims.
fn default_class(cache: &Cache) -> Option<String> {
    let marks = [
        "storageclass.kubernetes.io/is-default-class",
        "storageclass.beta.kubernetes.io/is-default-class",
    ];
    let classes = cache.stores.tenant(KindId::StorageClass).all().into_iter();
    let defaults = classes.filter_map(|(name, class)| {
        let class = class.object();
        let is_marked = |mark: &str| json::text(&class, &["metadata", "annotations", mark]) == Some("true");
        let made = json::text(&class, &["metadata", "creationTimestamp"]).map(ToOwned::to_owned);
        marks.into_iter().any(is_marked).then_some((Reverse(made), name.name))
    });
    defaults.min().map(|(_, name)| name.to_string())
}

/// The kind of a data source, if volumes can be filled from it.
fn source_kind(source: &Value) -> Option<KindId> {
    let group = json::text(source, &["apiGroup"]).unwrap_or_default();
    let kind = json::text(source, &["kind"])?;
    DATA_SOURCES
        .into_iter()
        .find_map(|(of_group, name, id)| ((of_group, name) == (group, kind)).then_some(id))
}

fn data_source(name: &Name, source: &Value, path: &str, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = fields::copy(source, path, SOURCE, issues);
    match source_kind(source) {
        Some(kind) => {
            let own = json::text(source, &["name"]).unwrap_or_default();
            let hosts = host_name(kind, &Name::new(&name.namespace, own));
            copied.insert("name".into(), hosts.into());
        }
        None => issues.deny(
            path,
            "volumes can be filled from PersistentVolumeClaims and VolumeSnapshots only",
        ),
    }
    if json::filled(source, &["namespace"]).is_some_and(|namespace| namespace != &*name.namespace) {
        let why = "the source must be in the namespace of the claim";
        issues.deny(format!("{path}.namespace"), why);
    }
    copied
}

fn annotation_path(key: &str) -> String {
    format!("metadata.annotations[{key}]")
}

/// No annotation but the node that a scheduler of the tenant chose: the host makes the volume there.
fn annotations(cache: &Cache, claim: &Value, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = Map::new();
    for (key, value) in json::strings(claim, &["metadata", "annotations"]) {
        if key == NODE {
            // Admission policies of the host reject others.
            let why = match node::is_shared(cache, &value) {
                Some(false) => {
                    copied.insert(key, value.into());
                    continue;
                }
                // It has its volume, and nodes come and go.
                _ if json::filled(claim, &["spec", "volumeName"]).is_some() => continue,
                Some(true) => "tenants share the node",
                None => "it is no node of the tenant",
            };
            let why = format!("{value}: {why}, so no volume is made there; choose a node that is the tenant's alone");
            issues.ignore(annotation_path(NODE), why);
        } else if !labels::is_reserved(&key) && !LOCAL.iter().any(|domain| key.starts_with(domain)) {
            let why = "annotations of claims are not passed on to storage drivers";
            issues.ignore(annotation_path(&key), why);
        }
    }
    copied
}

fn is_own(condition: &Value) -> bool {
    json::text(condition, &["type"]) == Some(UNUSED)
}

/// A status of the host with those conditions of the claim that are the tenant's own.
fn with_own_conditions(mut status: Value, claim: &Value) -> Value {
    let hosts = json::items(&status, &["conditions"]).iter();
    let own = json::items(claim, &["status", "conditions"]).iter();
    let conditions: Vec<Value> = hosts
        .filter(|condition| !is_own(condition))
        .chain(own.filter(|condition| is_own(condition)))
        .cloned()
        .collect();
    if let Some(status) = status.as_object_mut() {
        status.remove("conditions");
    }
    if !conditions.is_empty() {
        json::set(&mut status, &["conditions"], conditions);
    }
    status
}

#[cfg(test)]
#[path = "claim_tests.rs"]
mod tests;
