//! Classes of the host, shown under their own names: what a team may ask for.
//!
//! | kind | which | what is shown |
//! |---|---|---|
//! | StorageClass | `storage.classes` | provisioner, reclaim policy, binding mode, expansion, mount options, topologies |
//! | VolumeSnapshotClass | `storage.snapshotClasses` | driver, deletion policy |
//! | VolumeAttributesClass | `storage.attributesClasses` | driver, parameters (what a team chooses it by) |
//!
//! Of annotations only the description and the mark of the default class are shown, of labels none. Parameters of storage
//! and snapshot classes are not shown: they name servers, pools and Secrets of the platform.

use crate::{
    kinds::{Flow, HostNamespace, Kind, Rights, View},
    resource::{KindId, Name, Resource},
    store::WatchSpec,
    world::World,
};
use berth_api::sync_policy::{StoragePolicy, SyncPolicy, allows};
use serde_json::{Value, json};

/// `storage.k8s.io/v1/StorageClass`.
pub const STORAGE_CLASS: Kind = kind(&Class {
    id: KindId::StorageClass,
    resource: Resource::new("storage.k8s.io", "v1", "StorageClass", "storageclasses"),
    listed: |policy| &policy.classes,
    fields: &[
        "allowVolumeExpansion",
        "allowedTopologies",
        "mountOptions",
        "provisioner",
        "reclaimPolicy",
        "volumeBindingMode",
    ],
    writes: &[("storageclasses", VIEW)],
});
/// `snapshot.storage.k8s.io/v1/VolumeSnapshotClass`.
pub const SNAPSHOT_CLASS: Kind = kind(&Class {
    id: KindId::VolumeSnapshotClass,
    resource: Resource::new(
        "snapshot.storage.k8s.io",
        "v1",
        "VolumeSnapshotClass",
        "volumesnapshotclasses",
    ),
    listed: |policy| &policy.snapshot_classes,
    fields: &["deletionPolicy", "driver"],
    writes: &[("volumesnapshotclasses", VIEW)],
});
/// `storage.k8s.io/v1/VolumeAttributesClass`.
pub const ATTRIBUTES_CLASS: Kind = kind(&Class {
    id: KindId::VolumeAttributesClass,
    resource: Resource::new(
        "storage.k8s.io",
        "v1",
        "VolumeAttributesClass",
        "volumeattributesclasses",
    ),
    listed: |policy| &policy.attributes_classes,
    fields: &["driverName", "parameters"],
    writes: &[("volumeattributesclasses", VIEW)],
});

/// The verbs of whoever shows objects.
pub(super) const VIEW: &[&str] = &["create", "update", "delete"];

/// Annotations that are shown.
const ANNOTATIONS: &[&str] = &[
    "kubernetes.io/description",
    "snapshot.storage.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
    "storageclass.kubernetes.io/is-default-class",
];

/// A class of the host.
struct Class {
    id: KindId,
    resource: Resource,
    /// The names that are shown.
    listed: fn(&StoragePolicy) -> &[String],
    /// The fields that are shown.
    fields: &'static [&'static str],
    writes: &'static [crate::kinds::Right],
}

const fn kind(class: &'static Class) -> Kind {
    let watch = WatchSpec::own(class.resource).trimmed(super::without_last_applied);
    Kind {
        tenant: Some(watch),
        host: Some((HostNamespace::Cluster, watch)),
        flow: Flow::View(class),
        rights: Rights {
            tenant: class.writes,
            host: &[],
        },
    }
}

impl View for Class {
    fn resource(&self) -> Resource {
        self.resource
    }

    fn desired(&self, world: &World, name: &Name) -> Option<Value> {
        if !allows((self.listed)(&world.tenant.policy.storage), &name.name) {
            return None;
        }
        let class = world.stores.host(self.id).get(name)?.object();
        let mut shown = json!({"metadata": {}});
        for annotation in ANNOTATIONS {
            if let Some(value) = class["metadata"]["annotations"].get(*annotation) {
                shown["metadata"]["annotations"][*annotation] = value.clone();
            }
        }
        for field in self.fields {
            if let Some(value) = class.get(*field) {
                shown[*field] = value.clone();
            }
        }
        Some(shown)
    }

    fn offers(&self, policy: &SyncPolicy) -> bool {
        !(self.listed)(&policy.storage).is_empty()
    }

    fn without_effect(&self) -> Option<&'static str> {
        Some("Classes made here have no effect: use those that the platform offers.")
    }
}

/// Names of the classes of a kind that the tenant may use, in words.
pub(super) fn offered(world: &World, id: KindId, listed: &[String]) -> String {
    let mut names: Vec<String> = world
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
    use crate::kinds::{kind, storage::fixtures};

    fn shown(id: KindId, name: &str) -> Option<Value> {
        let Flow::View(view) = kind(id).flow else { panic!() };
        view.desired(&fixtures::world(), &Name::new("", name))
    }

    #[test]
    fn offered_classes_are_shown_without_what_is_the_platforms_business() {
        insta::assert_yaml_snapshot!(shown(KindId::StorageClass, "fast"));
        assert_eq!(
            shown(KindId::VolumeSnapshotClass, "daily").unwrap(),
            json!({"metadata": {"annotations": {"snapshot.storage.kubernetes.io/is-default-class": "true"}},
                "driver": "disks.example.com", "deletionPolicy": "Delete"})
        );
    }

    #[test]
    fn classes_that_are_not_listed_or_do_not_exist_are_not_shown() {
        assert_eq!(shown(KindId::StorageClass, "secret"), None);
        assert_eq!(shown(KindId::StorageClass, "unknown"), None);
        assert_eq!(shown(KindId::VolumeAttributesClass, "gold"), None);
    }

    #[test]
    fn what_no_class_offers_is_not_watched() {
        for id in [KindId::StorageClass, KindId::VolumeSnapshotClass, KindId::CsiDriver] {
            let Flow::View(view) = kind(id).flow else { panic!() };
            assert!(view.offers(&fixtures::world().tenant.policy));
            assert!(!view.offers(&SyncPolicy::default()));
        }
    }

    #[test]
    fn what_is_offered_is_said_in_words() {
        let world = fixtures::world();
        let listed = &world.tenant.policy.storage.classes;
        assert_eq!(offered(&world, KindId::StorageClass, listed), "use one of fast");
        assert_eq!(offered(&world, KindId::StorageClass, &[]), "none is offered here");
    }
}
