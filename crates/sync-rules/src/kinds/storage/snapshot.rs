//! VolumeSnapshots. Off unless the host serves them.
//!
//! | field | rule |
//! |---|---|
//! | labels | not passed on: see `metadata` |
//! | annotations | not passed on |
//! | `source.persistentVolumeClaimName` | becomes the host claim's |
//! | `source.volumeSnapshotContentName` | denied: contents belong to the platform |
//! | `volumeSnapshotClassName` | must be offered; without one, the default class of the claim's driver among those offered |
//! | status `readyToUse`, `restoreSize`, `creationTime`, `error` | the host's |
//! | status `boundVolumeSnapshotContentName` and the like | not mirrored: contents are not |
//!
//! VolumeSnapshotContents that a team makes have no effect; an Event says so. A snapshot that was taken and is gone on
//! the host gets an error in its status: a new one would have other content.

use super::{REQUESTS, classes::offered, on_host};
use crate::{
    model::{
        Cache, DeniedField, Dependency, DesiredState, Direction, Kind, KindId, Mirror, Observation, TenantWrite,
        ToHost, Translated, json,
        references::Target,
        resource::{Name, Resource, host_name},
        store::WatchSpec,
    },
    translation::{
        fields::{self, FieldIssues, Fields, Rule},
        host_text, metadata,
    },
};
use berth_api::sync_policy::allows;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;

const GROUP: &str = "snapshot.storage.k8s.io";
const RESOURCE: Resource = Resource::new(GROUP, "v1", "VolumeSnapshot", "volumesnapshots");
const CONTENT: Resource = Resource::new(GROUP, "v1", "VolumeSnapshotContent", "volumesnapshotcontents");

/// The kind.
pub const KIND: Kind = Kind::to_host(RESOURCE, &Snapshots)
    .watch_tenant(WatchSpec::own(RESOURCE).trimmed(metadata::without_last_applied))
    .with_tenant_rights(&[("volumesnapshots", &["patch"]), ("volumesnapshots/status", &["patch"])])
    .extension()
    // Snapshots without a class wait for a default one.
    .depends_on(&[Dependency::on_host(KindId::VolumeSnapshotClass, |cache, _| {
        cache.keys_missing_on_host(KindId::VolumeSnapshot)
    })]);

/// Contents of snapshots, of which none is mirrored and none can be made.
pub const CONTENT_KIND: Kind = Kind::new(Direction::Mirror(&Contents))
    .watch_tenant(WatchSpec::own(CONTENT).metadata_only())
    .extension();

const OBJECT: Fields = &[
    ("apiVersion", Rule::Ignore("the engine sets it")),
    ("kind", Rule::Ignore("the engine sets it")),
    ("metadata", Rule::Rewrite),
    ("spec", Rule::Rewrite),
    ("status", Rule::Ignore("the host decides it")),
];
const SPEC: Fields = &[("source", Rule::Rewrite), ("volumeSnapshotClassName", Rule::Rewrite)];
const SOURCE: Fields = &[
    ("persistentVolumeClaimName", Rule::Rewrite),
    (
        "volumeSnapshotContentName",
        Rule::Deny("contents of snapshots belong to the platform: take a snapshot of a claim"),
    ),
];

/// Fields of the status that are reported.
const STATUS: &[&str] = &["creationTime", "error", "readyToUse", "restoreSize"];
/// The mark of default classes.
const DEFAULT: &str = "snapshot.storage.kubernetes.io/is-default-class";

struct Snapshots;

impl ToHost for Snapshots {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn desired_state(&self, _cache: &Cache, _name: &Name, snapshot: &Value) -> DesiredState {
        if json::text(snapshot, &["status", "creationTime"]).is_some() {
            DesiredState::Once
        } else {
            DesiredState::Sync
        }
    }

    fn references(&self, _cache: &Cache, name: &Name, snapshot: &Value) -> BTreeSet<Target> {
        source(name, snapshot)
            .map(|name| Target {
                kind: KindId::PersistentVolumeClaim,
                name,
            })
            .into_iter()
            .collect()
    }

    fn translate(&self, cache: &Cache, name: &Name, snapshot: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        fields::copy(snapshot, RESOURCE.kind, OBJECT, &mut issues);
        let mut spec = fields::copy(&snapshot["spec"], "spec", SPEC, &mut issues);
        let mut copied = fields::copy(&snapshot["spec"]["source"], "spec.source", SOURCE, &mut issues);
        if let Some(claim) = source(name, snapshot) {
            let claim = host_name(KindId::PersistentVolumeClaim, &claim);
            copied.insert("persistentVolumeClaimName".into(), claim.into());
        }
        spec.insert("source".into(), copied.into());
        let policy = &cache.tenant.policy.storage;
        let offer = || offered(cache, KindId::VolumeSnapshotClass, &policy.snapshot_classes);
        let denied = match class(cache, name, snapshot) {
            Some(class) if allows(&policy.snapshot_classes, &class) => {
                spec.insert("volumeSnapshotClassName".into(), class.into());
                None
            }
            Some(class) => Some(format!("the class {class} is not offered: {}", offer())),
            None => Some(format!("there is no single default class for this volume: {}", offer())),
        };
        if let Some(why) = denied {
            issues.deny("spec.volumeSnapshotClassName", why);
        }
        issues.into_result(json!({"metadata": {}, "spec": spec}))
    }

    fn mutable_part(&self, desired: &Value) -> Value {
        desired["metadata"].clone()
    }

    fn controller_requests(&self, _desired: &Value, _is_new: bool) -> u64 {
        REQUESTS
    }

    fn sync_status(&self, cache: &Cache, name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
        let mut writes = Vec::new();
        let class = ["spec", "volumeSnapshotClassName"];
        if json::text(observation.tenant, &class).is_none()
            && let Some(class) = json::text(observation.host, &class)
        {
            writes.push(TenantWrite::Patch(json!({"spec": {"volumeSnapshotClassName": class}})));
        }
        if let Some(hosts) = observation.host.get("status") {
            let mut status = json!({});
            for field in STATUS {
                if let Some(value) = hosts.get(*field) {
                    status[*field] = value.clone();
                }
            }
            host_text::translate_texts(cache, name, &mut status);
            writes.push(TenantWrite::Status(status));
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
        snapshot: &Value,
        _tombstone: Option<&Value>,
        now: Timestamp,
    ) -> Option<Value> {
        let mut status = snapshot["status"].clone();
        // Written once, with the time of the first observation.
        if json::at(&status, &["readyToUse"]) != Some(&Value::Bool(false)) || status.get("error").is_none() {
            status["readyToUse"] = false.into();
            let time = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
            status["error"] = json!({"message": "the snapshot does not exist any more", "time": time});
        }
        Some(status)
    }
}

/// The claim that a snapshot is taken of.
fn source(name: &Name, snapshot: &Value) -> Option<Name> {
    let claim = json::filled(snapshot, &["spec", "source", "persistentVolumeClaimName"])?;
    Some(Name::new(&name.namespace, claim))
}

/// The class of a snapshot: what it says, what was chosen for it before, or the only default among those offered.
fn class(cache: &Cache, name: &Name, snapshot: &Value) -> Option<String> {
    let path = ["spec", "volumeSnapshotClassName"];
    let before = || {
        let host = on_host(cache, KindId::VolumeSnapshot, name, snapshot)?;
        json::filled(&host, &path).map(ToOwned::to_owned)
    };
    let own = json::filled(snapshot, &path).map(ToOwned::to_owned);
    own.or_else(before).or_else(|| {
        let driver = source(name, snapshot).and_then(|claim| driver_of(cache, &claim));
        let classes = cache.stores.host(KindId::VolumeSnapshotClass).all().into_iter();
        let mut defaults = classes.filter_map(|(name, class)| {
            let class = class.object();
            let fits = allows(&cache.tenant.policy.storage.snapshot_classes, &name.name)
                && json::text(&class, &["metadata", "annotations", DEFAULT]) == Some("true")
                && driver.as_deref().is_none_or(|driver| class["driver"] == driver);
            fits.then(|| name.name.to_string())
        });
        let found = defaults.next();
        // Two defaults decide nothing.
        found.filter(|_| defaults.next().is_none())
    })
}

/// The driver of a claim's volume.
fn driver_of(cache: &Cache, claim: &Name) -> Option<String> {
    let object = cache.stores.tenant(KindId::PersistentVolumeClaim).get(claim)?.object();
    let class = json::filled(&object, &["spec", "storageClassName"])?;
    let class = cache
        .stores
        .host(KindId::StorageClass)
        .get(&Name::new("", class))?
        .object();
    json::filled(&class, &["provisioner"]).map(ToOwned::to_owned)
}

struct Contents;

impl Mirror for Contents {
    fn resource(&self) -> Resource {
        CONTENT
    }

    fn mirrored_object(&self, _cache: &Cache, _name: &Name) -> Option<Value> {
        None
    }

    fn unmanaged_message(&self) -> Option<&'static str> {
        Some("Contents of snapshots belong to the platform: take a snapshot of a claim.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::storage::fixtures;
    use crate::registry;

    fn name() -> Name {
        Name::new("research", "monday")
    }

    fn snapshot(spec: &Value) -> Value {
        json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "spec": spec,
            "metadata": {"name": "monday", "uid": "u", "labels": {"a": "b"}, "annotations": {"x": "y"}}})
    }

    fn denied(cache: &Cache, snapshot: &Value) -> Vec<String> {
        let denied = Snapshots.translate(cache, &name(), snapshot).unwrap_err();
        denied.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_snapshot_of_a_claim_gets_the_default_class_of_its_driver() {
        let cache = fixtures::cache();
        fixtures::put_tenant(
            &cache,
            KindId::PersistentVolumeClaim,
            &fixtures::name(),
            &fixtures::claim(&json!({})),
        );
        let snapshot = snapshot(&json!({"source": {"persistentVolumeClaimName": "data"}}));
        insta::assert_yaml_snapshot!(Snapshots.translate(&cache, &name(), &snapshot).unwrap().object);
        let targets = Snapshots.references(&cache, &name(), &snapshot);
        assert_eq!(targets.into_iter().next().unwrap().name, fixtures::name());
    }

    #[test]
    fn snapshot_contents_unknown_classes_and_unknown_fields_are_denied() {
        let cache = fixtures::cache();
        let spec = json!({"source": {"volumeSnapshotContentName": "c"}, "volumeSnapshotClassName": "weekly", "new": 1});
        insta::assert_yaml_snapshot!(denied(&cache, &snapshot(&spec)));
    }

    #[test]
    fn two_default_classes_decide_nothing() {
        let mut tenant = crate::model::tenant::test_tenant();
        let mut policy = berth_api::SyncPolicy::default();
        policy.storage.snapshot_classes = vec!["*".into()];
        tenant.policy = std::sync::Arc::new(policy);
        let cache = registry::new_cache(tenant);
        let snapshot = snapshot(&json!({"source": {"persistentVolumeClaimName": "data"}}));
        for class in ["a", "b"] {
            let object = json!({"metadata": {"name": class, "resourceVersion": "1", "annotations": {DEFAULT: "true"}}});
            fixtures::put_host(&cache, KindId::VolumeSnapshotClass, &Name::new("", class), &object);
            let chosen = super::class(&cache, &name(), &snapshot);
            assert_eq!(chosen.as_deref(), (class == "a").then_some("a"));
        }
        let message = "there is no single default class for this volume: use one of a, b";
        assert_eq!(
            denied(&cache, &snapshot),
            [format!("spec.volumeSnapshotClassName: {message}")]
        );
    }

    #[test]
    fn the_status_names_no_contents() {
        let cache = fixtures::cache();
        let claim = host_name(KindId::PersistentVolumeClaim, &fixtures::name());
        fixtures::put_host(
            &cache,
            KindId::PersistentVolumeClaim,
            &fixtures::name(),
            &fixtures::host_claim(),
        );
        let tenant = snapshot(&json!({"source": {"persistentVolumeClaimName": "data"}}));
        let observation = Observation {
            tenant: &tenant,
            host: &json!({"spec": {"volumeSnapshotClassName": "daily"}, "status": {"readyToUse": false, "restoreSize": "1Gi",
                "boundVolumeSnapshotContentName": "snapcontent-1", "error": {"message": format!("claim {claim} is busy")}}}),
            in_sync: true,
            denied: &[],
            now: Timestamp::UNIX_EPOCH,
        };
        let status = json!({"readyToUse": false, "restoreSize": "1Gi", "error": {"message": "claim data is busy"}});
        assert_eq!(
            Snapshots.sync_status(&cache, &name(), &observation),
            [
                TenantWrite::Patch(json!({"spec": {"volumeSnapshotClassName": "daily"}})),
                TenantWrite::Status(status)
            ]
        );
    }

    #[test]
    fn a_snapshot_that_was_taken_is_not_taken_again() {
        let cache = fixtures::cache();
        let mut snapshot = snapshot(&json!({"source": {"persistentVolumeClaimName": "data"}}));
        assert_eq!(Snapshots.desired_state(&cache, &name(), &snapshot), DesiredState::Sync);
        snapshot["status"] = json!({"readyToUse": true, "creationTime": "2026-11-20T10:00:00Z"});
        assert_eq!(Snapshots.desired_state(&cache, &name(), &snapshot), DesiredState::Once);
        let lost = |snapshot: &Value, second| {
            let now = Timestamp::from_second(second).unwrap();
            Snapshots.lost_status(&cache, &name(), snapshot, None, now).unwrap()
        };
        let first = lost(&snapshot, 1);
        assert_eq!(first["readyToUse"], false);
        snapshot["status"] = first.clone();
        assert_eq!(lost(&snapshot, 2), first);
    }
}
