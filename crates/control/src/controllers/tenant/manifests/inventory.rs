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
        let wanted: Vec<Entry> = manifests
            .iter()
            .filter(|manifest| manifest.is_kept())
            .flat_map(|manifest| {
                manifest.known().iter().map(move |object| Entry {
                    object: object.key.clone(),
                    version: object.version.clone(),
                    manifest: manifest.spec.name.clone(),
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
    fn the_record_survives_being_written() {
        let mut inventory = Inventory::default().with(&[manifest("base", ManifestMode::Keep, &["ns-a", "b"])]);
        inventory.once.insert("start".into(), "v1".into());
        let text = serde_json::to_string(&inventory).unwrap();
        assert_eq!(serde_json::from_str::<Inventory>(&text).unwrap(), inventory);
    }
}
