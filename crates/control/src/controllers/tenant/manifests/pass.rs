//! One pass over the objects of the manifests in a tenant: what differs is applied, what is no longer wanted is deleted
//! ([`super::deletion`]).
//!
//! A pass lists the metadata of the platform's objects, one request for each kind. An object whose resource version is that of the last
//! apply is as the manifest says, and costs nothing more. An object that changes by being applied again had been changed by somebody else.
//! Kinds that API servers serve themselves come first ([`super::parts`]).

use super::{
    altered::{find_addition, find_alteration},
    definitions::Definitions,
    desired::{Manifest, Problem},
    inventory::Inventory,
    kinds::{DefinedKinds, KindError, ServedKind},
    live::{Applied, Live, list_kind},
    messages::{MAX_MESSAGE, message},
    objects::{ManifestObject, ObjectKey},
    parts::{Kind, Part, Turns, by_kind},
    registrations::Registrations,
};
use berth_api::{labels, names, text::printable_start};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Reason of a [`Problem`] of an object that is not in the tenant as the manifest says.
pub(super) const APPLY_FAILED: &str = "ApplyFailed";

/// What is remembered of a tenant's objects between passes.
#[derive(Debug, Default)]
pub(crate) struct AppliedObjects {
    kinds: HashMap<GroupVersionKind, ServedKind>,
    pub(super) objects: BTreeMap<ObjectKey, Applied>,
    /// Objects of manifests that are applied once, by name and version, as long as others of the same manifest are missing.
    once: BTreeSet<(String, String, ObjectKey)>,
    /// Kinds that were too slow in the last pass and come last in the next, in this order.
    slow: Vec<Kind>,
    pub(super) registrations: Registrations,
}

impl AppliedObjects {
    /// How many APIServices and definitions of the tenant are remembered.
    #[cfg(test)]
    pub(crate) fn count_registrations(&self) -> usize {
        self.registrations.count()
    }
}

/// The result of a pass.
#[derive(Debug, Default)]
pub(crate) struct Done {
    pub(crate) inventory: Inventory,
    /// Objects that somebody else had changed or deleted, with their manifests.
    pub(crate) drift: Vec<(String, ObjectKey)>,
    /// What could not be applied or deleted, with the manifest if it is one's.
    pub(crate) problems: Vec<(String, Problem)>,
    /// Whether objects are still being deleted.
    pub(crate) is_deleting: bool,
    /// Names of APIServices of the API server's own groups that had led to a server of the tenant's.
    pub(crate) taken_back: Vec<String>,
}

/// A pass over one tenant.
pub(crate) struct Pass<'a> {
    pub(super) client: &'a Client,
    pub(super) known: &'a mut AppliedObjects,
    /// Whether nobody in the tenant can register another server for groups that API servers serve themselves.
    pub(super) protects_own: bool,
    /// Kinds that the manifests of the class define.
    defined: DefinedKinds,
    /// What the tenant defines.
    pub(super) definitions: Definitions,
    pub(super) turns: Turns,
    pub(super) done: Done,
}

impl<'a> Pass<'a> {
    /// A pass that knows what earlier ones applied. `inventory` lists everything that it may apply. `protects_own` says whether nobody in the
    /// tenant can register another server for groups that API servers serve themselves.
    pub(crate) fn new(
        client: &'a Client,
        known: &'a mut AppliedObjects,
        inventory: Inventory,
        protects_own: bool,
    ) -> Self {
        Self {
            client,
            turns: Turns::new(known.slow.clone()),
            known,
            protects_own,
            defined: DefinedKinds::default(),
            definitions: Definitions::default(),
            done: Done {
                inventory,
                ..Done::default()
            },
        }
    }

    /// Applies and deletes. What fails is in the result; the rest is done nevertheless.
    pub(crate) async fn run(mut self, manifests: &[Manifest]) -> Done {
        self.defined = DefinedKinds::of(manifests);
        // Not at the end, which a pass that takes too long does not reach.
        self.known.registrations.begin_pass();
        let mut kept: Vec<(&Manifest, &ManifestObject)> = manifests
            .iter()
            .filter(|manifest| manifest.is_kept())
            .flat_map(|manifest| manifest.known().iter().map(move |object| (manifest, object)))
            .collect();
        kept.sort_by_key(|(_, object)| object.key.rank());
        self.keep_own_groups(manifests).await;
        for part in self.turns.parts() {
            Box::pin(self.run_part(&part, manifests, &kept)).await;
        }
        for manifest in manifests.iter().filter(|manifest| !manifest.is_kept()) {
            self.finish_once(manifest);
        }
        self.known.slow = self.turns.slow_kinds();
        let names: BTreeSet<&str> = manifests.iter().map(|manifest| manifest.spec.name.as_str()).collect();
        self.done.inventory.once.retain(|name, _| names.contains(name.as_str()));
        if !self.done.problems.is_empty() {
            // A kind may be served differently from now on.
            self.known.kinds.clear();
        } else if !self.done.is_deleting {
            self.known.registrations.forget();
        }
        self.done
    }

    /// Applies and deletes the objects whose turn it is. `kept` are all that are kept, in the order in which they are applied.
    async fn run_part(&mut self, part: &Part, manifests: &[Manifest], kept: &[(&Manifest, &ManifestObject)]) {
        self.turns.begin(part);
        let mut kept = kept.to_vec();
        kept.retain(|(_, object)| self.turns.part_of(&object.key) == *part);
        // A kind is done before the next one is asked for, which may take the time that is left.
        for kept in by_kind(&kept, |(_, object)| object.key.group_and_kind()) {
            let live = self.list_live(&kept).await;
            for (manifest, object) in kept {
                self.keep(manifest, object, &live).await;
            }
        }
        for manifest in manifests.iter().filter(|manifest| !manifest.is_kept()) {
            self.apply_once(manifest, part).await;
        }
        self.delete_surplus(manifests, part).await;
    }

    pub(super) fn fail(&mut self, manifest: &str, key: &ObjectKey, why: &str) {
        let message = format!("manifest {manifest}: {key}: {}", printable_start(why, MAX_MESSAGE));
        let problem = Problem::new(APPLY_FAILED, message);
        self.done.problems.push((manifest.to_owned(), problem));
    }

    pub(super) async fn served_kind(&mut self, key: &ObjectKey, version: &str) -> Result<ServedKind, KindError> {
        let kind = GroupVersionKind::gvk(&key.group, version, &key.kind);
        // A manifest may define the kind now that did not before.
        let known = self.known.kinds.get(&kind);
        if let Some(known) = known.filter(|known| self.defined.allow(&kind, &known.resource.plural)) {
            return Ok(known.clone());
        }
        let found = self.turns.read(key, self.defined.find(self.client, &kind)).await;
        let served = found.map_err(KindError::Unclear)??;
        self.known.kinds.insert(kind, served.clone());
        Ok(served)
    }

    pub(super) fn api(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }

    /// Lists the platform's objects of a kind that are kept. A kind that cannot be listed is left out.
    async fn list_live(&mut self, kept: &[(&Manifest, &ManifestObject)]) -> Live {
        let wanted: BTreeSet<&ObjectKey> = kept.iter().map(|(_, object)| &object.key).collect();
        let (mut live, mut tried) = (Live::default(), BTreeSet::new());
        for (_, object) in kept {
            let ManifestObject { key, version, .. } = object;
            let kind = key.group_and_kind();
            if tried.contains(&kind) {
                continue;
            }
            let Ok(served) = self.served_kind(key, version).await else {
                continue;
            };
            tried.insert(kind.clone());
            let api = self.api(&served.resource, None);
            let Ok(Some(found)) = self.turns.read(key, list_kind(&api, &kind, &wanted)).await else {
                continue;
            };
            live.listed.insert(kind);
            live.objects.extend(found);
        }
        live
    }

    /// Applies an object of a manifest that is kept, unless it is as the manifest says.
    async fn keep(&mut self, manifest: &Manifest, object: &ManifestObject, live: &Live) {
        let ManifestObject { key, version, .. } = object;
        let name = &manifest.spec.name;
        let wanted = with_labels(manifest, object);
        let hash = hash_of(&wanted);
        let (known, found) = (self.known.objects.get(key), live.objects.get(key));
        let is_known = known.is_some_and(|known| known.hash == hash);
        if is_known && known == found {
            return;
        }
        let before = found.filter(|found| found.hash == hash);
        let is_listed = live.listed.contains(&key.group_and_kind());
        let was_deleted = known.is_some() && found.is_none() && is_listed;
        self.known.objects.remove(key);
        match self.apply_exactly(key, version, &wanted).await {
            Ok(applied) => {
                let after = Applied::of(&applied.metadata);
                if was_deleted || before.is_some_and(|before| before.is_changed_by(&after)) {
                    self.done.drift.push((name.clone(), key.clone()));
                }
                if let Some(why) = find_alteration(key, &wanted, &applied) {
                    self.fail(name, key, &why);
                } else {
                    self.known.objects.insert(key.clone(), after);
                }
            }
            Err(why) => self.fail(name, key, &why),
        }
    }

    /// Applies those objects of a part whose manifest's version was not applied yet. They are the team's from then on.
    async fn apply_once(&mut self, manifest: &Manifest, part: &Part) {
        let (name, version) = (&manifest.spec.name, &manifest.spec.version);
        if self.done.inventory.once.get(name) == Some(version) {
            return;
        }
        let mut objects: Vec<&ManifestObject> = manifest.known().iter().collect();
        objects.retain(|object| self.turns.part_of(&object.key) == *part);
        objects.sort_by_key(|object| object.key.rank());
        for object in objects {
            let step = (name.clone(), version.clone(), object.key.clone());
            if self.known.once.contains(&step) {
                // The team may have changed it since.
                continue;
            }
            match self.apply(&object.key, &object.version, &object.value).await {
                Ok(_) => {
                    self.known.once.insert(step);
                }
                Err(why) => self.fail(name, &object.key, &why),
            }
        }
    }

    /// Notes that a version of a manifest was applied, if all its objects were.
    fn finish_once(&mut self, manifest: &Manifest) {
        let (name, version) = (&manifest.spec.name, &manifest.spec.version);
        if manifest.objects.is_err() {
            return;
        }
        if self.done.inventory.once.get(name) != Some(version) {
            let is_applied = |object: &ManifestObject| {
                let step = (name.clone(), version.clone(), object.key.clone());
                self.known.once.contains(&step)
            };
            if !manifest.known().iter().all(is_applied) {
                return;
            }
            self.known.once.retain(|(known, _, _)| known != name);
            self.done.inventory.once.insert(name.clone(), version.clone());
        }
        // Those that were kept before lost their labels with the apply.
        let released: BTreeSet<&ObjectKey> = manifest.known().iter().map(|object| &object.key).collect();
        self.done
            .inventory
            .kept
            .retain(|entry| !released.contains(&entry.object));
    }

    /// Applies an object. Where each field counts, those that others have set are removed: an apply alone keeps them, and the team can make
    /// an object of that name before.
    async fn apply_exactly(&mut self, key: &ObjectKey, version: &str, wanted: &Value) -> Result<DynamicObject, String> {
        let applied = self.apply(key, version, wanted).await?;
        if find_addition(key, wanted, &applied).is_none() {
            return Ok(applied);
        }
        let served = self.served_kind(key, version).await.map_err(KindError::message)?;
        let replacement = as_replacement(wanted, &applied).map_err(|error| error.to_string())?;
        let params = PostParams {
            field_manager: Some(labels::PLATFORM_MANAGER.into()),
            ..PostParams::default()
        };
        let api = self.api(&served.resource, key.namespace.as_deref());
        let call = api.replace(&key.name, &params, &replacement);
        let replaced = self.turns.write(key, call).await?;
        replaced.map_err(|error| message(&error))
    }

    async fn apply(&mut self, key: &ObjectKey, version: &str, value: &Value) -> Result<DynamicObject, String> {
        let served = self.served_kind(key, version).await.map_err(KindError::message)?;
        match (served.is_namespaced, &key.namespace) {
            (true, None) => return Err("its kind has namespaces; set metadata.namespace".into()),
            (false, Some(_)) => return Err("its kind has no namespaces; remove metadata.namespace".into()),
            (true, Some(_)) | (false, None) => {}
        }
        if !self.turns.is_own_group(&key.group) {
            self.done.inventory.note_resource(key, &served.resource.plural);
        }
        let params = PatchParams::apply(labels::PLATFORM_MANAGER).force();
        let api = self.api(&served.resource, key.namespace.as_deref());
        let patch = Patch::Apply(value);
        let applied = self.turns.write(key, api.patch(&key.name, &params, &patch)).await?;
        applied.map_err(|error| message(&error))
    }
}

/// An object as it was applied, with nothing else. The API server rejects it if it was changed since.
fn as_replacement(wanted: &Value, applied: &DynamicObject) -> Result<DynamicObject, serde_json::Error> {
    let mut object: DynamicObject = serde_json::from_value(wanted.clone())?;
    let metadata = &applied.metadata;
    object.metadata.resource_version.clone_from(&metadata.resource_version);
    // Fields that others own as well would stay when the manifest drops them.
    let own = metadata.managed_fields.iter().flatten().filter(|entry| {
        entry.manager.as_deref() == Some(labels::PLATFORM_MANAGER) && entry.operation.as_deref() == Some("Apply")
    });
    object.metadata.managed_fields = Some(own.cloned().collect());
    Ok(object)
}

/// An object with the labels and annotations by which it is found.
fn with_labels(manifest: &Manifest, object: &ManifestObject) -> Value {
    let mut value = object.value.clone();
    let metadata = &mut value["metadata"];
    metadata["labels"][labels::MANAGED_BY] = labels::MANAGED_BY_PLATFORM.into();
    metadata["labels"][labels::MANIFEST] = manifest.spec.name.clone().into();
    metadata["annotations"][labels::MANIFEST_VERSION] = manifest.spec.version.clone().into();
    let hash = json!(names::hash(&[&value.to_string()]));
    value["metadata"]["annotations"][labels::APPLIED_HASH] = hash;
    value
}

/// The hash that [`with_labels`] added.
fn hash_of(value: &Value) -> String {
    let hash = value["metadata"]["annotations"][labels::APPLIED_HASH].as_str();
    hash.unwrap_or_default().to_owned()
}
