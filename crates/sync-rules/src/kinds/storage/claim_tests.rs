//! Tests of [`super`].

use super::*;
use crate::{
    kinds::{
        schemas,
        storage::fixtures::{self, claim, host_claim, name, put_host, put_tenant},
    },
    registry,
};
use berth_api::SyncPolicy;
use std::sync::Arc;

const ID: KindId = KindId::PersistentVolumeClaim;

fn translate(cache: &Cache, claim: &Value) -> Result<Translated, Vec<String>> {
    let translated = Claims.translate(cache, &name(), claim);
    translated.map_err(|denied| denied.iter().map(ToString::to_string).collect())
}

fn observation<'a>(tenant: &'a Value, host: &'a Value) -> Observation<'a> {
    Observation {
        tenant,
        host,
        in_sync: true,
        denied: &[],
        now: Timestamp::UNIX_EPOCH,
    }
}

#[test]
fn a_claim_with_every_offered_field_is_translated() {
    let snapshot = json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "monday"});
    let mut claim = claim(&json!({
        "dataSource": snapshot, "dataSourceRef": snapshot, "volumeMode": "Block", "volumeAttributesClassName": "gold",
        "resources": {"requests": {"storage": "10Gi"}, "limits": {"storage": "20Gi"}},
    }));
    claim["metadata"]["labels"] = json!({"app": "db", "berth.dev/tenant": "other"});
    claim["metadata"]["annotations"] = json!({"import.example.com/volume": "theirs", "volume.kubernetes.io/selected-node": "n1",
        "volume.kubernetes.io/storage-provisioner": "p"});
    let translated = translate(&fixtures::cache(), &claim).unwrap();
    insta::assert_yaml_snapshot!(translated.object);
    let ignored: Vec<_> = translated.ignored.iter().map(|note| note.field.as_str()).collect();
    assert_eq!(
        ignored,
        [
            "metadata.annotations[import.example.com/volume]",
            "metadata.annotations[volume.kubernetes.io/selected-node]"
        ]
    );
    let targets = Claims.references(&fixtures::cache(), &name(), &claim);
    let names: Vec<_> = targets.iter().map(|target| target.name.to_string()).collect();
    assert_eq!(names, ["research/monday"]);
}

#[test]
fn a_claim_names_only_nodes_that_are_the_tenants_alone() {
    const NODE: &str = "volume.kubernetes.io/selected-node";
    let cache = fixtures::cache();
    for (node, labels) in [("own", json!({})), ("shared", json!({"berth.dev/shared-pool": "cpu"}))] {
        let published =
            json!({"metadata": {"name": node, "resourceVersion": "1"}, "spec": {"nodeName": node, "labels": labels}});
        put_host(&cache, KindId::Node, &Name::new("", node), &published);
    }
    for (node, expected, why) in [
        ("own", json!("own"), None),
        ("shared", Value::Null, Some("shared: tenants share the node")),
        ("others", Value::Null, Some("others: it is no node of the tenant")),
    ] {
        let mut claim = claim(&json!({}));
        claim["metadata"]["annotations"] = json!({NODE: node});
        let translated = translate(&cache, &claim).unwrap();
        assert_eq!(translated.object["metadata"]["annotations"][NODE], expected, "{node}");
        let ignored: Vec<String> = translated.ignored.iter().map(ToString::to_string).collect();
        assert_eq!(ignored.len(), usize::from(why.is_some()), "{ignored:?}");
        if let Some(why) = why {
            assert!(ignored[0].contains(why), "{ignored:?}");
            assert!(Claims.is_decided_later(&translated.ignored[0].field));
        }
        // One that has its volume is not reported: its node may have left the tenant since.
        put_host(&cache, ID, &name(), &host_claim());
        claim["spec"]["volumeName"] = host_claim()["spec"]["volumeName"].clone();
        assert!(translate(&cache, &claim).unwrap().ignored.is_empty());
    }
}

#[test]
fn fields_that_choose_a_volume_or_leave_the_namespace_are_denied() {
    let claim = claim(&json!({
        "volumeName": "pvc-of-others", "selector": {"matchLabels": {"a": "b"}}, "storageClassName": "secret",
        "volumeAttributesClassName": "silver", "novelty": 1, "resources": {"claims": [{"name": "x"}]},
        "dataSource": {"apiGroup": "populators.example.com", "kind": "Image", "name": "i"},
        "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "theirs", "namespace": "other"},
    }));
    insta::assert_yaml_snapshot!(translate(&fixtures::cache(), &claim).err());
}

#[test]
fn volumes_are_filled_from_claims_and_snapshots_of_the_namespace_alone() {
    let denial = |field: &str| {
        format!("spec.{field}: volumes can be filled from PersistentVolumeClaims and VolumeSnapshots only")
    };
    for field in ["dataSource", "dataSourceRef"] {
        for source in [
            json!({"apiGroup": "cdi.kubevirt.io", "kind": "VolumeImportSource", "name": "s"}),
            json!({"apiGroup": "forklift.konveyor.io", "kind": "OpenstackVolumePopulator", "name": "s"}),
            // A kind of the same name in another group, and the other way round.
            json!({"apiGroup": "populators.example.com", "kind": "PersistentVolumeClaim", "name": "s"}),
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "PersistentVolumeClaim", "name": "s"}),
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshotContent", "name": "s"}),
            json!({"kind": "VolumeSnapshot", "name": "s"}),
            json!({"kind": "Secret", "name": "s"}),
            json!({"name": "s"}),
        ] {
            let denied = translate(&fixtures::cache(), &claim(&json!({field: source}))).err();
            assert_eq!(denied, Some(vec![denial(field)]), "{field}: {source}");
        }
        // The namespace is left out on the host: the claim there is in another one.
        let own = json!({"kind": "PersistentVolumeClaim", "name": "old", "namespace": "research"});
        let object = translate(&fixtures::cache(), &claim(&json!({field: own})))
            .unwrap()
            .object;
        let hosts = host_name(ID, &Name::new("research", "old"));
        assert_eq!(
            object["spec"][field],
            json!({"kind": "PersistentVolumeClaim", "name": hosts})
        );
    }
}

#[test]
fn the_class_is_never_left_to_the_host() {
    let cache = fixtures::cache();
    let without = || {
        let mut claim = claim(&json!({}));
        claim["spec"].as_object_mut().unwrap().remove("storageClassName");
        claim
    };
    let denial = |what: &str| Err(vec![format!("spec.storageClassName: {what}: use one of fast")]);
    let class = |claim: &Value| {
        let translated = translate(&cache, claim)?;
        Ok(translated.object["spec"]["storageClassName"]
            .as_str()
            .unwrap()
            .to_owned())
    };
    let empty = claim(&json!({"storageClassName": ""}));
    assert_eq!(class(&empty), denial("volumes are made by a class"));
    assert_eq!(class(&without()), denial("there is no default class"));
    // A class that the tenant made is no class of the host.
    for (name, made) in [("fast", "2026-11-20T10:00:00Z"), ("own", "2026-11-20T09:00:00Z")] {
        let object = json!({"metadata": {"name": name, "resourceVersion": "1", "creationTimestamp": made,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
        put_tenant(&cache, KindId::StorageClass, &Name::new("", name), &object);
    }
    assert_eq!(class(&without()), Ok("fast".into()), "the newest default");
    let mut beta = without();
    beta["metadata"]["annotations"][CLASS] = "secret".into();
    assert_eq!(class(&beta), denial("the class secret is not offered"));
    // A class that was chosen once stays.
    let mut host = host_claim();
    host["spec"]["storageClassName"] = "secret".into();
    put_host(&cache, ID, &name(), &host);
    assert_eq!(class(&without()), denial("the class secret is not offered"));
}

#[test]
fn the_tenants_scheduler_chooses_among_its_own_nodes() {
    let mut tenant = crate::model::tenant::test_tenant();
    let mut policy = SyncPolicy::default();
    policy.storage.classes = vec!["*".into()];
    tenant.policy = Arc::new(policy);
    let cache = registry::new_cache(tenant);
    let node = json!({"metadata": {"name": "gpu-1", "resourceVersion": "1"}});
    put_host(&cache, KindId::Node, &Name::new("", "gpu-1"), &node);
    for (node, passed) in [("gpu-1", json!({NODE: "gpu-1"})), ("foreign", json!({}))] {
        let mut claim = claim(&json!({}));
        claim["metadata"]["annotations"][NODE] = node.into();
        let translated = translate(&cache, &claim).unwrap().object;
        assert_eq!(translated["metadata"]["annotations"], passed);
    }
}

#[test]
fn only_size_attributes_and_labels_can_change() {
    let desired = translate(&fixtures::cache(), &claim(&json!({}))).unwrap().object;
    let before = Claims.mutable_part(&desired);
    for (path, changes) in [
        (["spec", "storageClassName"], false),
        (["spec", "resources"], true),
        (["spec", "volumeAttributesClassName"], true),
        (["metadata", "labels"], true),
    ] {
        let mut changed = desired.clone();
        json::set(&mut changed, &path, "x");
        assert_eq!(Claims.mutable_part(&changed) != before, changes, "{path:?}");
    }
}

#[test]
fn the_binding_precedes_the_status() {
    let cache = fixtures::cache();
    let (mut tenant, host) = (claim(&json!({})), host_claim());
    put_host(&cache, ID, &name(), &host);
    let patch =
        TenantWrite::Patch(json!({"spec": {"volumeName": "pvc-1"}, "metadata": {"annotations": {BOUND: "yes"}}}));
    assert_eq!(
        Claims.sync_status(&cache, &name(), &observation(&tenant, &host)),
        [patch]
    );
    tenant["spec"]["volumeName"] = "pvc-1".into();
    assert!(translate(&cache, &tenant).is_ok(), "the host gave it that volume");
    let volume = json!({"metadata": {"name": "pvc-1", "resourceVersion": "1"}});
    put_tenant(&cache, KindId::PersistentVolume, &Name::new("", "pvc-1"), &volume);
    let unused = json!({"type": "Unused", "status": "True"});
    tenant["status"] = json!({"conditions": [unused]});
    let mut host = host.clone();
    let text = format!("resizing {}", host_name(ID, &name()));
    host["status"]["conditions"] = json!([{"type": "Resizing", "status": "True", "message": text},
        {"type": "Unused", "status": "False"}]);
    let writes = Claims.sync_status(&cache, &name(), &observation(&tenant, &host));
    let status = json!({"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "10Gi"},
        "conditions": [{"type": "Resizing", "status": "True", "message": "resizing data"}, unused]});
    assert_eq!(writes[1..], [TenantWrite::Status(status)]);
}

#[test]
fn a_default_class_is_written_into_the_claim() {
    let cache = fixtures::cache();
    let mut tenant = claim(&json!({}));
    tenant["spec"].as_object_mut().unwrap().remove("storageClassName");
    let host = json!({"spec": {"storageClassName": "fast"}, "status": {"phase": "Pending"}});
    let writes = Claims.sync_status(&cache, &name(), &observation(&tenant, &host));
    let patch = TenantWrite::Patch(json!({"spec": {"storageClassName": "fast"}}));
    assert_eq!(writes, [patch, TenantWrite::Status(json!({"phase": "Pending"}))]);
}

#[test]
fn a_volume_chosen_by_hand_is_not_written_over() {
    let cache = fixtures::cache();
    let tenant = claim(&json!({"volumeName": "theirs"}));
    assert_eq!(
        Claims.sync_status(&cache, &name(), &observation(&tenant, &host_claim())),
        []
    );
}

#[test]
fn a_bound_claim_without_host_claim_becomes_lost() {
    let cache = fixtures::cache();
    let mut tenant = claim(&json!({}));
    assert_eq!(Claims.desired_state(&cache, &name(), &tenant), DesiredState::Sync);
    tenant["status"] = json!({"phase": "Bound", "capacity": {"storage": "10Gi"}});
    assert_eq!(Claims.desired_state(&cache, &name(), &tenant), DesiredState::Once);
    let status = Claims.lost_status(&cache, &name(), &tenant, None, Timestamp::UNIX_EPOCH);
    assert_eq!(status, Some(json!({"phase": "Lost"})));
}

#[test]
fn volumes_are_no_reason_to_wait() {
    let cache = fixtures::cache();
    let source = json!({"kind": "PersistentVolumeClaim", "name": "old"});
    let cloned = claim(&json!({"volumeName": "pvc-1", "dataSource": source, "dataSourceRef": source}));
    assert_eq!(Claims.prerequisites(&cache, &name(), &cloned), []);
    assert_eq!(Claims.references(&cache, &name(), &cloned).len(), 2);
    let old = Name::new("research", "old");
    put_tenant(&cache, ID, &old, &claim(&json!({})));
    assert_eq!(Claims.prerequisites(&cache, &name(), &cloned), [ID.key(old)]);
}

#[test]
fn a_volume_costs_requests_when_its_claim_is_made_and_when_it_changes() {
    let claim = translate(&fixtures::cache(), &claim(&json!({}))).unwrap().object;
    let costs = [true, false].map(|is_new| Claims.controller_requests(&claim, is_new));
    assert_eq!(costs, [7, 5]);
}

#[test]
fn every_field_of_every_version_has_a_rule() {
    schemas::check(&[
        ("PersistentVolumeClaimSpec", SPEC),
        ("TypedLocalObjectReference", SOURCE),
        ("TypedObjectReference", SOURCE),
        ("VolumeResourceRequirements", RESOURCES),
    ]);
}
