//! Classes of the host that the tenant's class lists, mirrored to the tenant under their own names: what a team may ask
//! for.

use super::metadata;
use crate::model::{
    Cache, HostNamespace, Kind, KindId, Mirror, json,
    resource::{Name, Resource},
    store::WatchSpec,
};
use berth_api::{
    SchedulingMode,
    sync_policy::{SyncPolicy, allows},
};
use serde_json::{Value, json};

/// A cluster-scoped kind of classes, and what is mirrored of it.
pub struct MirroredClass {
    /// The kind.
    pub id: KindId,
    /// The API resource, the same on both sides.
    pub resource: Resource,
    /// Names of the classes that the tenant's class lists.
    pub listed: fn(&SyncPolicy) -> &[String],
    /// Paths of the fields that are mirrored.
    pub fields: &'static [&'static str],
    /// The labels and annotations that are mirrored.
    pub metadata: MirroredMetadata,
    /// Whether the status is mirrored.
    pub has_status: bool,
    /// Whether the classes have an effect only where the host's scheduler places the pods.
    pub needs_host_scheduler: bool,
    /// The message of the Event about classes that the tenant makes itself, if they have no effect.
    pub unmanaged_message: Option<&'static str>,
}

/// Labels and annotations of classes that are mirrored.
#[derive(Clone, Copy)]
pub enum MirroredMetadata {
    /// These annotations, and no labels.
    Annotations(&'static [&'static str]),
    /// All but reserved ones.
    All,
}

impl MirroredClass {
    /// The kind, watched on both sides.
    pub const fn kind(&'static self) -> Kind {
        let watch = WatchSpec::own(self.resource).trimmed(metadata::without_last_applied);
        Kind::mirror(self.resource, self)
            .watch_tenant(watch)
            .watch_host(HostNamespace::Cluster, watch)
    }
}

impl Mirror for MirroredClass {
    fn resource(&self) -> Resource {
        self.resource
    }

    fn mirrored_object(&self, cache: &Cache, name: &Name) -> Option<Value> {
        let is_without_effect = self.needs_host_scheduler && cache.tenant.scheduling == SchedulingMode::Tenant;
        if is_without_effect || !allows((self.listed)(&cache.tenant.policy), &name.name) {
            return None;
        }
        let class = cache.stores.host(self.id).get(name)?.object();
        let mut mirrored = json!({"metadata": {}});
        match self.metadata {
            MirroredMetadata::Annotations(annotations) => {
                for annotation in annotations {
                    if let Some(value) = class["metadata"]["annotations"].get(*annotation) {
                        mirrored["metadata"]["annotations"][*annotation] = value.clone();
                    }
                }
            }
            MirroredMetadata::All => {
                mirrored["metadata"] = json!({
                    "labels": metadata::mirrored_labels(&class),
                    "annotations": metadata::mirrored_annotations(&class),
                });
            }
        }
        for field in self.fields {
            let path: Vec<&str> = field.split('.').collect();
            let value = json::at(&class, &path);
            if let Some(value) = value.filter(|value| !value.is_null() && **value != json!({})) {
                json::set(&mut mirrored, &path, value.clone());
            }
        }
        if let Some(status) = class
            .get("status")
            .filter(|status| self.has_status && status.is_object())
        {
            mirrored["status"] = status.clone();
            // Generations are those of the host's object.
            json::each_mut(&mut mirrored, "status.conditions[]", &mut |condition| {
                if let Some(condition) = condition.as_object_mut() {
                    condition.remove("observedGeneration");
                }
            });
        }
        Some(mirrored)
    }

    fn has_status(&self) -> bool {
        self.has_status
    }

    fn is_offered(&self, policy: &SyncPolicy) -> bool {
        !(self.listed)(policy).is_empty()
    }

    fn unmanaged_message(&self) -> Option<&'static str> {
        self.unmanaged_message
    }
}
