//! Which objects Berth has applied in a tenant, so that those that are no longer wanted are deleted.
//!
//! It is recorded on the host before an object is applied, so that a control that ends in between leaves nothing behind that nobody
//! knows of. Pure.

use super::{desired::Manifest, objects::ObjectKey};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// An object that Berth keeps in the tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) object: ObjectKey,
    /// Version of its API.
    pub(crate) version: String,
    /// The manifest that it comes from.
    pub(crate) manifest: String,
    /// Plural name of the resource in which it was applied; empty if it is not known, and for groups that API servers serve themselves.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) resource: String,
}

/// What Berth has applied in a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inventory {
    /// Objects that it keeps, or still has to delete.
    #[serde(default)]
    pub(crate) kept: Vec<Entry>,
    /// Versions of manifests that were applied once, by name.
    #[serde(default)]
    pub(crate) once: BTreeMap<String, String>,
}

impl Inventory {
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.once.is_empty()
    }

    /// With the objects that are to be kept.
    pub(crate) fn with(&self, manifests: &[Manifest]) -> Self {
        let resources: BTreeMap<&ObjectKey, &String> =
            self.kept.iter().map(|entry| (&entry.object, &entry.resource)).collect();
        let resource_of = |object: &ObjectKey| {
            let resource = resources.get(object);
            resource.map(|resource| (*resource).clone()).unwrap_or_default()
        };
        let wanted: Vec<Entry> = manifests
            .iter()
            .filter(|manifest| manifest.is_kept())
            .flat_map(|manifest| {
                manifest.known().iter().map(move |object| Entry {
                    object: object.key.clone(),
                    version: object.version.clone(),
                    manifest: manifest.spec.name.clone(),
                    resource: resource_of(&object.key),
                })
            })
            .collect();
        let keys: BTreeSet<&ObjectKey> = wanted.iter().map(|entry| &entry.object).collect();
        let others = self.kept.iter().filter(|entry| !keys.contains(&entry.object)).cloned();
        let mut kept: Vec<Entry> = others.collect();
        kept.extend(wanted.iter().cloned());
        kept.sort();
        Self {
            kept,
            once: self.once.clone(),
        }
    }

    /// Notes in which resource an object that is kept is applied: the definition of its kind may be one of another kind later.
    pub(super) fn note_resource(&mut self, object: &ObjectKey, plural: &str) {
        for entry in self.kept.iter_mut().filter(|entry| entry.object == *object) {
            plural.clone_into(&mut entry.resource);
        }
    }

    /// The resource in which an object was applied, unless that has an object of another kind and the same name by now, which is kept as well.
    pub(super) fn resource_of<'a>(&self, entry: &'a Entry) -> &'a str {
        let place = |key: &ObjectKey| (key.group.clone(), key.namespace.clone(), key.name.clone());
        let is_taken = self.kept.iter().any(|other| {
            other.resource == entry.resource
                && other.object.kind != entry.object.kind
                && place(&other.object) == place(&entry.object)
        });
        if is_taken { "" } else { &entry.resource }
    }

    /// Objects that no manifest has any more, in the order in which they are deleted. Objects of manifests that cannot be read stay.
    pub(crate) fn surplus(&self, manifests: &[Manifest]) -> Vec<Entry> {
        let objects = manifests.iter().flat_map(Manifest::known);
        let wanted: BTreeSet<&ObjectKey> = objects.map(|object| &object.key).collect();
        let unreadable: BTreeSet<&str> = manifests
            .iter()
            .filter(|manifest| manifest.objects.is_err())
            .map(|manifest| manifest.spec.name.as_str())
            .collect();
        let is_surplus =
            |entry: &&Entry| !wanted.contains(&entry.object) && !unreadable.contains(entry.manifest.as_str());
        let mut surplus: Vec<Entry> = self.kept.iter().filter(is_surplus).cloned().collect();
        surplus.sort_by_key(|entry| std::cmp::Reverse(entry.object.rank()));
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            desired::Problem,
            objects::{parse, tests::data},
        },
        *,
    };
    use berth_api::{ClassManifest, ManifestMode};
    use std::sync::Arc;

    fn manifest(name: &str, mode: ManifestMode, names: &[&str]) -> Manifest {
        let documents: Vec<String> = names
            .iter()
            .map(|name| match name.strip_prefix("ns-") {
                Some(name) => format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}}}\n"),
                None => format!("apiVersion: v1\nkind: LimitRange\nmetadata: {{name: {name}, namespace: default}}\n"),
            })
            .collect();
        Manifest {
            spec: ClassManifest {
                name: name.into(),
                mode,
                ..ClassManifest::default()
            },
            objects: Ok(Arc::new(parse(&data(&documents.join("---\n"))).unwrap())),
        }
    }

    fn names(entries: &[Entry]) -> Vec<String> {
        entries.iter().map(|entry| entry.object.to_string()).collect()
    }

    #[test]
    fn objects_are_listed_until_no_manifest_has_them_and_namespaces_go_last() {
        let first = Inventory::default().with(&[manifest("base", ManifestMode::Keep, &["ns-a", "b", "c"])]);
        assert_eq!(first.kept.len(), 3);
        let manifests = [manifest("base", ManifestMode::Keep, &["c", "d"])];
        let second = first.with(&manifests);
        assert_eq!(second.kept.len(), 4, "what is to be deleted is still listed");
        assert_eq!(
            names(&second.surplus(&manifests)),
            ["LimitRange default/b", "Namespace a"]
        );
        assert_eq!(second.surplus(&[]).len(), 4);
    }

    #[test]
    fn a_manifest_that_cannot_be_read_deletes_nothing() {
        let inventory = Inventory::default().with(&[manifest("base", ManifestMode::Keep, &["a"])]);
        let mut broken = manifest("base", ManifestMode::Keep, &["a"]);
        broken.objects = Err(Problem::new("ConfigMapMissing", "gone"));
        assert!(inventory.surplus(&[broken]).is_empty());
    }

    #[test]
    fn an_object_that_moves_to_another_manifest_or_mode_is_not_deleted() {
        let inventory = Inventory::default().with(&[manifest("base", ManifestMode::Keep, &["a"])]);
        let moved = [manifest("other", ManifestMode::Keep, &["a"])];
        assert!(inventory.surplus(&moved).is_empty());
        assert_eq!(inventory.with(&moved).kept[0].manifest, "other");
        let once = [manifest("base", ManifestMode::Once, &["a"])];
        assert!(inventory.surplus(&once).is_empty());
    }

    #[test]
    fn where_an_object_was_applied_stays_known() {
        let manifests = [manifest("base", ManifestMode::Keep, &["a", "b"])];
        let mut inventory = Inventory::default().with(&manifests);
        let object = inventory.kept[1].object.clone();
        inventory.note_resource(&object, "limitranges");
        let resources = |inventory: &Inventory| -> Vec<String> {
            let entries = inventory.kept.iter();
            entries.map(|entry| entry.resource.clone()).collect()
        };
        assert_eq!(resources(&inventory), ["", "limitranges"]);
        assert_eq!(resources(&inventory.with(&manifests)), ["", "limitranges"]);
        assert_eq!(
            resources(&inventory.with(&[])),
            ["", "limitranges"],
            "as long as it is to be deleted"
        );
    }

    #[test]
    fn a_resource_that_has_another_kind_by_now_is_that_of_the_other() {
        let mut inventory = Inventory::default().with(&[manifest("base", ManifestMode::Keep, &["a", "b"])]);
        for entry in &mut inventory.kept {
            entry.resource = "guards".into();
        }
        let mut entry = inventory.kept[0].clone();
        assert_eq!(inventory.resource_of(&entry), "guards");
        entry.object.kind = "Other".into();
        assert_eq!(inventory.resource_of(&entry), "");
    }

    #[test]
    fn a_record_of_an_earlier_release_is_read() {
        let entry =
            r#"{"object":{"group":"x.example","kind":"X","namespace":null,"name":"a"},"version":"v1","manifest":"m"}"#;
        let entry: Entry = serde_json::from_str(entry).unwrap();
        assert_eq!(entry.resource, "");
        assert!(!serde_json::to_string(&entry).unwrap().contains("resource"));
    }

    #[test]
    fn the_record_survives_being_written() {
        let mut inventory = Inventory::default().with(&[manifest("base", ManifestMode::Keep, &["ns-a", "b"])]);
        let object = inventory.kept[0].object.clone();
        inventory.note_resource(&object, "as");
        inventory.once.insert("start".into(), "v1".into());
        let text = serde_json::to_string(&inventory).unwrap();
        assert_eq!(serde_json::from_str::<Inventory>(&text).unwrap(), inventory);
    }
}
