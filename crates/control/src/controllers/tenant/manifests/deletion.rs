//! Objects that no manifest has any more are deleted, and stay in the inventory until it is certain that they are gone.
//!
//! An answer alone does not say so. The version in which an object was applied may not be served any more, and an admin of the tenant can
//! register another server for a group for a while, also for no longer than control asks. So an answer counts if the APIService of the version
//! has been the same since a while before it was asked for and until after the answer, and names no server. Where that is depends on the
//! CustomResourceDefinitions of the kind, and on the one in whose resource the object was applied, of whatever kind that is by now: an answer
//! counts if it has been the same for as long. Without any, nobody but a server of the tenant's has the object. For groups that API servers serve
//! themselves, nothing of that has to be asked where nobody can register another server.

use super::{
    definitions::{Definition, MAX_DEFINITIONS, read_revision},
    desired::Manifest,
    inventory::Entry,
    kinds::KindError,
    messages::{foreign_server, message},
    objects::ObjectKey,
    own_groups::DEFINITIONS,
    parts::Part,
    pass::Pass,
    registrations::{self, Registration, name_of, name_of_definition},
};
use crate::{
    apply::{only_this, optional},
    control_plane::served_versions,
};
use berth_api::labels;
use kube::api::{ApiResource, DeleteParams, Patch, PatchParams};
use serde_json::json;

/// What is known of an object that is to be deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// It is there, and is being deleted.
    Deleting,
    /// It looks gone, which is not certain yet.
    Unsure,
    Gone,
}

impl Pass<'_> {
    /// Deletes the objects of a part that no manifest has any more.
    pub(super) async fn delete_surplus(&mut self, manifests: &[Manifest], part: &Part) {
        for entry in self.done.inventory.surplus(manifests) {
            if self.turns.part_of_deletion(&entry.object) != *part {
                continue;
            }
            let deleted = if self.turns.is_own_group(&entry.object.group) {
                self.delete_own(&entry).await
            } else {
                Box::pin(self.delete_custom(&entry)).await
            };
            match deleted {
                Ok(Found::Gone) => {
                    self.known.objects.remove(&entry.object);
                    self.done.inventory.kept.retain(|kept| *kept != entry);
                }
                Ok(Found::Deleting | Found::Unsure) => self.done.is_deleting = true,
                Err(why) => self.fail(&entry.manifest, &entry.object, &format!("cannot be deleted: {why}")),
            }
        }
    }

    /// Deletes an object of a group that API servers serve themselves.
    async fn delete_own(&mut self, entry: &Entry) -> Result<Found, String> {
        let Entry { object, version, .. } = entry;
        // A new Kubernetes may not serve the version any more.
        let others = served_versions(&object.group).filter(|other| other != version);
        let versions: Vec<String> = [version.clone()]
            .into_iter()
            .chain(others.map(ToOwned::to_owned))
            .collect();
        let (mut looks_gone, mut is_certain) = (true, true);
        for version in versions {
            let served = self.served_kind(object, &version).await;
            let is_served = !matches!(served, Err(KindError::NotServed(_)));
            if is_served {
                let served = served.map_err(KindError::message)?;
                looks_gone = self.delete_at(entry, &served.resource).await?;
            }
            is_certain &= self.is_settled(object, &name_of(&object.group, &version)).await?;
            if is_served {
                break;
            }
        }
        Ok(verdict(looks_gone, is_certain))
    }

    /// Deletes an object of another group.
    async fn delete_custom(&mut self, entry: &Entry) -> Result<Found, String> {
        let Entry { object, version, .. } = entry;
        let resource = self.done.inventory.resource_of(entry);
        let names = self.definitions.list(self.client, &mut self.turns, object).await?;
        let (mut is_defined, mut is_gone) = (false, true);
        let (mut waiting, mut problem) = (None, None);
        // A tenant can have several that API servers serve, by a changed status.
        for name in names.iter().take(MAX_DEFINITIONS) {
            let read = self.definitions.read(self.client, &mut self.turns, object, name);
            let definition = match read.await {
                Ok(Some(definition)) if definition.may_have(object, resource) => definition,
                Ok(_) => continue,
                // It may be one of the kind. Even so it keeps back no deletion by another one.
                Err(why) => {
                    problem = Some(why);
                    continue;
                }
            };
            if !definition.is_accepted {
                waiting = Some(definition.name);
                continue;
            }
            is_defined = true;
            match self.delete_defined(entry, &definition).await {
                Ok(Found::Deleting) => return Ok(Found::Deleting),
                Ok(found) => is_gone &= found == Found::Gone,
                Err(why) => problem = Some(why),
            }
        }
        if let Some(why) = problem {
            return Err(why);
        }
        if names.len() > MAX_DEFINITIONS {
            return Err(format!(
                "the tenant has more than {MAX_DEFINITIONS} CustomResourceDefinitions in the group {}, so that it is not certain whether the \
                 object is gone; delete some of them",
                object.group
            ));
        }
        if let Some(name) = waiting.filter(|_| !is_defined) {
            return Err(format!(
                "the tenant does not serve its CustomResourceDefinition {name}, so that it is not certain whether the object is gone; look at \
                 the conditions of the definition"
            ));
        }
        if !is_defined {
            is_gone = match self.served_kind(object, version).await {
                Ok(served) => self.delete_at(entry, &served.resource).await?,
                Err(KindError::NotServed(_)) => true,
                Err(KindError::Unclear(why)) => return Err(why),
            };
        }
        let is_certain = self.is_settled(object, DEFINITIONS).await?;
        Ok(verdict(is_gone, is_certain))
    }

    /// Deletes an object of a kind with a definition, in the first version of it that the API server serves itself.
    async fn delete_defined(&mut self, entry: &Entry, definition: &Definition) -> Result<Found, String> {
        let object = &entry.object;
        let mut foreign = None;
        for version in &definition.versions {
            let name = name_of(&object.group, version);
            let registration = self.read_registration(object, &name).await?;
            if registration.is_some_and(|registration| registration.is_foreign) {
                foreign = foreign.or(Some(name));
                continue;
            }
            let looks_gone = self.delete_at(entry, &definition.resource(object, version)).await?;
            let is_certain = self.is_settled(object, &name).await? && self.is_same(object, &definition.name).await?;
            return Ok(verdict(looks_gone, is_certain));
        }
        Err(foreign.map_or_else(
            || {
                format!(
                    "its CustomResourceDefinition {} serves no version, so that it is not certain whether the object is gone; let it serve \
                     one, or delete the definition",
                    definition.name
                )
            },
            |name| foreign_server(&name),
        ))
    }

    /// Deletes an object where it may be, if it is still the manifest's. Returns whether it looks gone.
    async fn delete_at(&mut self, entry: &Entry, resource: &ApiResource) -> Result<bool, String> {
        let Entry { object, manifest, .. } = entry;
        let api = self.api(resource, object.namespace.as_deref());
        let found = self.turns.read(object, api.get_metadata(&object.name)).await?;
        let found = optional(found).map_err(|error| message(&error))?;
        let Some(found) = found else {
            return Ok(true);
        };
        let has_label = |key: &str, value: &str| {
            let labels = found.metadata.labels.as_ref();
            labels.and_then(|labels| labels.get(key)).map(String::as_str) == Some(value)
        };
        if !has_label(labels::MANAGED_BY, labels::MANAGED_BY_PLATFORM) || !has_label(labels::MANIFEST, manifest) {
            // Another one of this name.
            return Ok(true);
        }
        if found.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        if object.is_immortal() {
            // To apply no fields takes out those that were applied.
            let nothing = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": object.name}});
            let params = PatchParams::apply(labels::PLATFORM_MANAGER).force();
            let patch = Patch::Apply(&nothing);
            let call = api.patch(&object.name, &params, &patch);
            let applied = self.turns.write(object, call).await?;
            return applied.map(|_| true).map_err(|error| message(&error));
        }
        let params = DeleteParams::background().preconditions(only_this(found.metadata.uid.clone()));
        let deleted = self.turns.write(object, api.delete(&object.name, &params)).await?;
        let deleted = optional(deleted).map_err(|error| message(&error))?;
        Ok(deleted.is_none_or(|answer| answer.is_right()))
    }

    /// Reads an APIService on which it depends who answers for an object, and notes it.
    async fn read_registration(&mut self, key: &ObjectKey, name: &str) -> Result<Option<Registration>, String> {
        let found = self.turns.read(key, registrations::read(self.client, name)).await?;
        let found = found.map_err(|error| message(&error))?;
        self.known.registrations.note(name, found.as_ref());
        Ok(found)
    }

    /// Whether a definition has been the same since a while before the pass: while the team changes it, the API server may not serve what it has.
    async fn is_same(&mut self, key: &ObjectKey, definition: &str) -> Result<bool, String> {
        let found = self.turns.read(key, read_revision(self.client, definition)).await?;
        let found = found.map_err(|error| message(&error))?;
        let name = name_of_definition(definition);
        self.known.registrations.note(&name, found.as_ref());
        Ok(self.known.registrations.has_settled(&name, self.turns.begun()))
    }

    /// Whether what was answered before is the API server's own answer, as an APIService says.
    ///
    /// # Errors
    /// The APIService names a server of the tenant's, or there is none.
    async fn is_settled(&mut self, key: &ObjectKey, name: &str) -> Result<bool, String> {
        if self.known.registrations.is_certain(name) {
            return Ok(true);
        }
        let is_own = name
            .split_once('.')
            .is_some_and(|(_, group)| self.turns.is_own_group(group));
        match self.read_registration(key, name).await? {
            Some(registration) if registration.is_foreign => Err(foreign_server(name)),
            // An API server makes those of its own groups when it starts, and serves the groups without them.
            None if !is_own => Err(format!(
                "there is no APIService {name} in the tenant now, so that it is not certain who answers for the object; Berth tries again"
            )),
            // What was asked in this pass was asked after it had begun.
            _ => Ok(self.known.registrations.has_settled(name, self.turns.begun())),
        }
    }
}

fn verdict(looks_gone: bool, is_certain: bool) -> Found {
    match (looks_gone, is_certain) {
        (false, _) => Found::Deleting,
        (true, false) => Found::Unsure,
        (true, true) => Found::Gone,
    }
}
