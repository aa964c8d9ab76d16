//! Classes of the host, mirrored under their own names: what a team may ask for.
//!
//! | kind | which | what is mirrored |
//! |---|---|---|
//! | StorageClass | `storage.classes` | provisioner, reclaim policy, binding mode, expansion, mount options, topologies |
//! | VolumeSnapshotClass | `storage.snapshotClasses` | driver, deletion policy |
//! | VolumeAttributesClass | `storage.attributesClasses` | driver, parameters (what a team chooses it by) |
//!
//! Of annotations only the description and the mark of the default class are mirrored, of labels none. Parameters of storage
//! and snapshot classes are not mirrored: they name servers, pools and Secrets of the platform.

use crate::{
    model::{Cache, Kind, KindId, resource::Resource},
    translation::mirrored_class::{MirroredClass, MirroredMetadata},
};
use berth_api::sync_policy::allows;

/// Annotations that are mirrored.
const ANNOTATIONS: &[&str] = &[
    "kubernetes.io/description",
    "snapshot.storage.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
    "storageclass.kubernetes.io/is-default-class",
];

/// What the classes have in common.
const CLASS: MirroredClass = MirroredClass {
    id: KindId::StorageClass,
    resource: STORAGE_CLASSES,
    listed: |_| &[],
    fields: &[],
    metadata: MirroredMetadata::Annotations(ANNOTATIONS),
    has_status: false,
    needs_host_scheduler: false,
    unmanaged_message: Some("Classes made here have no effect: use those that the platform offers."),
};

const STORAGE_CLASSES: Resource = Resource::new("storage.k8s.io", "v1", "StorageClass", "storageclasses");
const SNAPSHOT_CLASSES: Resource = Resource::new(
    "snapshot.storage.k8s.io",
    "v1",
    "VolumeSnapshotClass",
    "volumesnapshotclasses",
);
const ATTRIBUTES_CLASSES: Resource = Resource::new(
    "storage.k8s.io",
    "v1",
    "VolumeAttributesClass",
    "volumeattributesclasses",
);

/// `storage.k8s.io/v1/StorageClass`.
pub const STORAGE_CLASS: Kind = MirroredClass::kind(&MirroredClass {
    id: KindId::StorageClass,
    resource: STORAGE_CLASSES,
    listed: |policy| &policy.storage.classes,
    fields: &[
        "allowVolumeExpansion",
        "allowedTopologies",
        "mountOptions",
        "provisioner",
        "reclaimPolicy",
        "volumeBindingMode",
    ],
    ..CLASS
});
/// `snapshot.storage.k8s.io/v1/VolumeSnapshotClass`.
pub const SNAPSHOT_CLASS: Kind = MirroredClass::kind(&MirroredClass {
    id: KindId::VolumeSnapshotClass,
    resource: SNAPSHOT_CLASSES,
    listed: |policy| &policy.storage.snapshot_classes,
    fields: &["deletionPolicy", "driver"],
    ..CLASS
})
.extension();
/// `storage.k8s.io/v1/VolumeAttributesClass`.
pub const ATTRIBUTES_CLASS: Kind = MirroredClass::kind(&MirroredClass {
    id: KindId::VolumeAttributesClass,
    resource: ATTRIBUTES_CLASSES,
    listed: |policy| &policy.storage.attributes_classes,
    fields: &["driverName", "parameters"],
    ..CLASS
});

/// Names of the classes of a kind that the tenant may use.
pub(in crate::kinds) fn offered(cache: &Cache, id: KindId, listed: &[String]) -> String {
    let mut names: Vec<String> = cache
        .stores
        .host(id)
        .names()
        .into_iter()
        .map(|name| name.name.to_string())
        .filter(|name| allows(listed, name))
        .collect();
    names.sort();
    if names.is_empty() {
        "none is offered here".into()
    } else {
        format!("use one of {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kinds::storage::fixtures,
        model::{Direction, resource::Name},
        registry::kind,
    };
    use berth_api::sync_policy::SyncPolicy;
    use serde_json::{Value, json};

    fn mirrored(id: KindId, name: &str) -> Option<Value> {
        let Direction::Mirror(view) = kind(id).direction else {
            panic!()
        };
        view.mirrored_object(&fixtures::cache(), &Name::new("", name))
    }

    #[test]
    fn offered_classes_are_mirrored_without_the_fields_of_the_host() {
        insta::assert_yaml_snapshot!(mirrored(KindId::StorageClass, "fast"));
        assert_eq!(
            mirrored(KindId::VolumeSnapshotClass, "daily").unwrap(),
            json!({"metadata": {"annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"}},
                "driver": "disks.example.com", "deletionPolicy": "Delete"})
        );
    }

    #[test]
    fn unlisted_and_absent_classes_are_not_mirrored() {
        assert_eq!(mirrored(KindId::StorageClass, "secret"), None);
        assert_eq!(mirrored(KindId::StorageClass, "unknown"), None);
        assert_eq!(mirrored(KindId::VolumeAttributesClass, "gold"), None);
    }

    #[test]
    fn kinds_that_no_class_offers_are_not_watched() {
        for id in [KindId::StorageClass, KindId::VolumeSnapshotClass, KindId::CsiDriver] {
            let Direction::Mirror(view) = kind(id).direction else {
                panic!()
            };
            assert!(view.is_offered(&fixtures::cache().tenant.policy));
            assert!(!view.is_offered(&SyncPolicy::default()));
        }
    }

    #[test]
    fn the_message_names_the_offered_classes() {
        let cache = fixtures::cache();
        let listed = &cache.tenant.policy.storage.classes;
        assert_eq!(offered(&cache, KindId::StorageClass, listed), "use one of fast");
        assert_eq!(offered(&cache, KindId::StorageClass, &[]), "none is offered here");
    }
}
