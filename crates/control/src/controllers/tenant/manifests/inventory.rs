//! Which objects Berth has applied in a tenant, so that those that are no longer wanted are deleted.
//!
//! It is a ConfigMap in the control-plane namespace on the host. It lists an object before the object is applied, so that a control that
//! ends in between leaves nothing behind that nobody knows of.

use super::{
    super::{build::host_objects, context::TenantContext, target::Tenant},
    desired::Manifest,
    objects::ObjectKey,
};
use crate::{
    apply::optional,
    error::{ReconcileError, api},
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Name of the ConfigMap in the control-plane namespace.
const RECORD: &str = "manifests";
/// Its one key.
const KEY: &str = "inventory.json";

/// An object that Berth keeps in the tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Entry {
    pub(super) object: ObjectKey,
    /// Version of its API.
    pub(super) version: String,
    /// The manifest that it comes from.
    pub(super) manifest: String,
}

/// What Berth has applied in a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Inventory {
    /// Objects that it keeps, or still has to delete.
    #[serde(default)]
    pub(super) kept: Vec<Entry>,
    /// Versions of manifests that were applied once, by name.
    #[serde(default)]
    pub(super) once: BTreeMap<String, String>,
}

impl Inventory {
    pub(super) fn is_empty(&self) -> bool {
        self.kept.is_empty() && self.once.is_empty()
    }

    /// With the objects that are to be kept.
    pub(super) fn with(&self, manifests: &[Manifest]) -> Self {
        let wanted: Vec<Entry> = manifests
            .iter()
            .filter(|manifest| manifest.is_kept())
            .flat_map(|manifest| {
                manifest.known().iter().map(|object| Entry {
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
    pub(super) fn surplus(&self, manifests: &[Manifest]) -> Vec<Entry> {
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

/// What was recorded last.
///
/// # Errors
/// The host refuses or does not answer, or the record cannot be read.
pub(super) async fn load(context: &TenantContext, tenant: &Tenant) -> Result<Inventory, ReconcileError> {
    let maps: Api<ConfigMap> = Api::namespaced(context.client.clone(), &tenant.id.control_plane_namespace());
    let map = optional(maps.get(RECORD).await).map_err(api("read which manifests were applied"))?;
    let Some(text) = map.and_then(|map| map.data?.remove(KEY)) else {
        return Ok(Inventory::default());
    };
    serde_json::from_str(&text).map_err(|error| ReconcileError::Blocked {
        reason: "InventoryInvalid",
        message: format!(
            "ConfigMap {}/{RECORD} of the host, which lists what was applied in the tenant, cannot be read: {error}; delete it, \
             and in the tenant the objects that no manifest has any more",
            tenant.id.control_plane_namespace()
        ),
    })
}

/// Records what is applied.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn store(tenant: &Tenant, inventory: &Inventory) -> Result<(), ReconcileError> {
    let text = serde_json::to_string(inventory).unwrap_or_default();
    let map = host_objects::config_map(&tenant.cluster, &tenant.id, RECORD, [(KEY.into(), text)].into());
    Ok(tenant.memory.host.apply(&map).await?)
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
