//! Finds the owners of pods in a tenant, and changes them.
//!
//! The team writes owner references, so that nothing in them is believed: each owner is read, must have the UID that is named, and must
//! be in the namespace of the pod. What is done to it happens in the tenant only.

use super::waits::{ObjectError, Source, Waits};
use crate::{
    apply::{is_status, optional},
    events::EventRecorder,
};
use berth_api::{IdleOwner, OwnerSuspend, StoppedOwner};
use berth_idle_reclaim::{
    owner::{Switch, group_of},
    pod::GpuPod,
};
use berth_runtime::discovery::{self, is_segment};
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{CustomResourceDefinition, CustomResourceSubresourceScale},
};
use kube::{
    Api, Client, Error,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
    runtime::events::Event,
};
use serde_json::Value;
use std::{collections::HashMap, time::Duration};

/// Owners of owners that are looked at: Pod, ReplicaSet, Deployment, and custom ones above.
const MAX_DEPTH: usize = 5;
/// Bytes of an `apiVersion`: a group, a slash and a version.
const MAX_API_VERSION: usize = 2 * 253 + 1;
/// Bytes of a UID. API servers take any text as that of an owner; their own have 36.
const MAX_UID: usize = 128;
/// Plurals of kinds of Kubernetes' own. No discovery is needed for them, and no team can serve or convert them by a server of its own.
const BUILT_IN: [(&str, &str, &str); 7] = [
    ("v1", "Pod", "pods"),
    ("v1", "ReplicationController", "replicationcontrollers"),
    ("apps/v1", "ReplicaSet", "replicasets"),
    ("apps/v1", "Deployment", "deployments"),
    ("apps/v1", "StatefulSet", "statefulsets"),
    ("batch/v1", "Job", "jobs"),
    ("batch/v1", "CronJob", "cronjobs"),
];

/// An object of a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct OwnerKey {
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

impl OwnerKey {
    pub(super) fn of_stopped(owner: &StoppedOwner) -> Self {
        Self {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            namespace: owner.namespace.clone(),
            name: owner.name.clone(),
            uid: owner.uid.clone(),
        }
    }

    /// Whether there can be such an object. Kubernetes takes any text as the name of an owner, also one that leads to a subresource or has
    /// a query; servers of the team's take any text, of any length.
    fn can_exist(&self) -> bool {
        let Self {
            api_version,
            kind,
            namespace,
            name,
            uid,
        } = self;
        let are_segments = [kind, namespace, name].into_iter().all(|text| is_segment(text));
        are_segments && api_version.len() <= MAX_API_VERSION && uid.len() <= MAX_UID
    }

    fn is_cron_job(&self) -> bool {
        self.kind == "CronJob" && group_of(&self.api_version) == "batch"
    }

    /// The plural of its kind, if that is one of Kubernetes' own.
    fn built_in(&self) -> Option<&'static str> {
        let known = BUILT_IN
            .iter()
            .find(|(api_version, kind, _)| *api_version == self.api_version && *kind == self.kind);
        known.map(|(_, _, plural)| *plural)
    }

    /// Whether its kind is one of Kubernetes' own.
    pub(super) fn is_built_in(&self) -> bool {
        self.built_in().is_some()
    }

    /// On whom it depends when it is read.
    fn read_from(&self) -> Source {
        if self.is_built_in() {
            Source::Server
        } else {
            Source::Kind(group_of(&self.api_version).to_owned(), self.kind.clone())
        }
    }

    /// On whom it depends when it is changed.
    fn written_to(&self) -> Source {
        match self.read_from() {
            Source::Server => Source::Webhooks(self.kind.clone()),
            source => source,
        }
    }

    /// As the status shows it.
    pub(super) fn as_idle_owner(&self) -> IdleOwner {
        IdleOwner {
            api_version: self.api_version.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
        }
    }

    /// For Events.
    pub(super) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(self.api_version.clone()),
            kind: Some(self.kind.clone()),
            namespace: Some(self.namespace.clone()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }

    /// The first controller in the owner references of an object.
    fn controller_of(object: &Value) -> Option<Self> {
        let references = object["metadata"]["ownerReferences"].as_array()?;
        let controller = references.iter().find(|reference| reference["controller"] == true)?;
        let text = |value: &Value| value.as_str().map(ToOwned::to_owned);
        Some(Self {
            api_version: text(&controller["apiVersion"])?,
            kind: text(&controller["kind"])?,
            namespace: text(&object["metadata"]["namespace"])?,
            name: text(&controller["name"])?,
            uid: text(&controller["uid"])?,
        })
    }
}

impl std::fmt::Display for OwnerKey {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            kind, namespace, name, ..
        } = self;
        write!(formatter, "{kind} {namespace}/{name}")
    }
}

/// An owner that no other object controls. The object itself is not kept: those of many pods would need gigabytes, if a server of the
/// team's makes them large.
pub(super) struct Owner {
    pub(super) key: OwnerKey,
    /// Whether it is a Job for whose end a CronJob waits before it makes another one.
    pub(super) is_awaited: bool,
}

/// What owns a pod.
pub(super) struct PodAndOwner {
    /// The pod in the tenant.
    pub(super) pod: Value,
    /// None: the pod has no owner, or none that can be trusted. An error: it is not known.
    pub(super) owner: Result<Option<Owner>, ObjectError>,
}

/// Reads and changes objects of one tenant, as long as there is time for them. What it knows of kinds is for one pass.
pub(super) struct TenantObjects {
    client: Client,
    waits: Waits,
    /// Kinds that were looked up, by version and name; none: the tenant does not serve them in namespaces. An error: the API server says no
    /// more than this text.
    served: HashMap<(String, String), Result<Option<ApiResource>, String>>,
    /// How owners of kinds with a definition are stopped, by the name of the definition and the version: it is long, and is read once.
    switches: HashMap<(String, String), Option<Switch>>,
}

impl TenantObjects {
    pub(super) fn new(client: Client, waits: Waits) -> Self {
        Self {
            client,
            waits,
            served: HashMap::new(),
            switches: HashMap::new(),
        }
    }

    /// How long others still wait for the tenant in this pass.
    pub(super) fn into_waits(self) -> Waits {
        self.waits
    }

    /// From now on also asks for kinds that were too slow in earlier passes. Returns whether there are any.
    pub(super) fn ask_all(&mut self) -> bool {
        self.waits.ask_all()
    }

    /// Whether the API server itself is too slow.
    pub(super) const fn is_server_slow(&self) -> bool {
        self.waits.is_server_slow()
    }

    /// The resource of an object's kind, in the version of the key or in another one that the tenant serves.
    async fn resource(&mut self, key: &OwnerKey) -> Result<Option<ApiResource>, ObjectError> {
        let OwnerKey { api_version, kind, .. } = key;
        let version = api_version.rsplit('/').next().unwrap_or_default();
        let gvk = GroupVersionKind::gvk(group_of(api_version), version, kind);
        if let Some(plural) = key.built_in() {
            return Ok(Some(ApiResource::from_gvk_with_plural(&gvk, plural)));
        }
        let of_kind = (api_version.clone(), kind.clone());
        if let Some(known) = self.served.get(&of_kind) {
            return known.clone().map_err(ObjectError::Kind);
        }
        let call = discovery::find_in_any_version(&self.client, &gvk);
        let found = match self.waits.wait(key.read_from(), call).await {
            Ok(found) => Ok(found.filter(|found| found.is_namespaced).map(|found| found.resource)),
            // It would be the same for each of its objects.
            Err(error @ ObjectError::Api(_)) => Err(error.to_string()),
            Err(error) => return Err(error),
        };
        self.served.insert(of_kind, found.clone());
        found.map_err(ObjectError::Kind)
    }

    /// The same key in the version in which the tenant serves its kind; none if it serves the kind in no version.
    pub(super) async fn in_served_version(&mut self, key: &OwnerKey) -> Result<Option<OwnerKey>, ObjectError> {
        let resource = self.resource(key).await?;
        Ok(resource.map(|resource| OwnerKey {
            api_version: resource.api_version,
            ..key.clone()
        }))
    }

    /// Reads an object; none if it is gone, another one has its name, or its kind is not served.
    pub(super) async fn get(&mut self, key: &OwnerKey) -> Result<Option<Value>, ObjectError> {
        if !key.can_exist() {
            return Ok(None);
        }
        let Some(resource) = self.resource(key).await? else {
            return Ok(None);
        };
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let call = async { optional(objects.get(&key.name).await) };
        let Some(object) = self.waits.wait(key.read_from(), call).await? else {
            return Ok(None);
        };
        let object = serde_json::to_value(object).map_err(Error::SerdeError)?;
        Ok((object["metadata"]["uid"] == key.uid).then_some(object))
    }

    /// Whether there is time to change an object.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn check_changes(&self, key: &OwnerKey) -> Result<(), ObjectError> {
        self.waits.check(&key.written_to())
    }

    /// Changes an object with a merge patch; the object afterwards. None if it is gone or was changed meanwhile.
    pub(super) async fn patch(&mut self, key: &OwnerKey, patch: &Value) -> Result<Option<Value>, ObjectError> {
        let Some(resource) = self.resource(key).await? else {
            return Ok(None);
        };
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let patch = Patch::Merge(patch);
        let call = async {
            match objects.patch(&key.name, &PatchParams::default(), &patch).await {
                Ok(object) => Ok(Some(object)),
                Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let Some(object) = self.waits.wait(key.written_to(), call).await? else {
            return Ok(None);
        };
        Ok(Some(serde_json::to_value(object).map_err(Error::SerdeError)?))
    }

    /// Pauses before an object is changed again. It takes of the time for changes: who changes it all the time holds up nothing else.
    ///
    /// # Errors
    /// There is no time.
    pub(super) async fn pause(&mut self, key: &OwnerKey, pause: Duration) -> Result<(), ObjectError> {
        let call = async {
            tokio::time::sleep(pause).await;
            Ok(())
        };
        self.waits.wait(key.written_to(), call).await
    }

    /// Publishes an Event about an object, if there is time. A failure is only logged: what an Event says is also on the object.
    pub(super) async fn publish(&mut self, event: &Event, key: &OwnerKey) {
        let recorder = EventRecorder::new(self.client.clone());
        let reference = key.reference();
        let call = async {
            recorder.publish(event, &reference).await;
            Ok(())
        };
        if let Err(error) = self.waits.wait(Source::Webhooks("Event".into()), call).await {
            tracing::debug!(owner = %key, %error, "Event in a tenant not written");
        }
    }

    /// The pod in the tenant that a host pod stands for, with what owns it; none if it is gone.
    pub(super) async fn find_owner(&mut self, pod: &GpuPod) -> Result<Option<PodAndOwner>, ObjectError> {
        let Some(pod) = self.get(&pod_key(pod)).await? else {
            return Ok(None);
        };
        let owner = self.follow(&pod).await;
        Ok(Some(PodAndOwner { pod, owner }))
    }

    /// The owner of a pod that no other object controls.
    async fn follow(&mut self, pod: &Value) -> Result<Option<Owner>, ObjectError> {
        let mut owner: Option<Owner> = None;
        let mut controller = OwnerKey::controller_of(pod);
        for _ in 0..MAX_DEPTH {
            let Some(next) = controller else {
                return Ok(owner);
            };
            let found = self.get(&next).await?;
            // A CronJob does not change the Jobs that it has made.
            if next.is_cron_job() {
                if let Some(owner) = &mut owner {
                    owner.is_awaited = found.is_some_and(|found| found["spec"]["concurrencyPolicy"] == "Forbid");
                }
                return Ok(owner);
            }
            let Some(found) = found else {
                return Ok(None);
            };
            controller = OwnerKey::controller_of(&found);
            // One owner has one key, whatever version a reference to it names.
            owner = self
                .in_served_version(&next)
                .await?
                .map(|key| Owner { key, is_awaited: false });
        }
        Ok(None)
    }

    /// How an owner of this kind is stopped, if its class says what suspends it, or by itself; none if it cannot be.
    pub(super) async fn switch(
        &mut self,
        key: &OwnerKey,
        suspend: Option<&OwnerSuspend>,
    ) -> Result<Option<Switch>, ObjectError> {
        if let Some(suspend) = suspend {
            return Ok(Switch::of_suspend(suspend));
        }
        let group = group_of(&key.api_version);
        if let Some(switch) = Switch::of_built_in(group, &key.kind) {
            return Ok(Some(switch));
        }
        let Some(resource) = self.resource(key).await? else {
            return Ok(None);
        };
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let name = format!("{}.{}", resource.plural, resource.group);
        let of_version = (name, resource.version);
        if let Some(known) = self.switches.get(&of_version) {
            return Ok(known.clone());
        }
        let call = async { optional(definitions.get(&of_version.0).await) };
        let definition = self.waits.wait(Source::Server, call).await?;
        let switch = definition.and_then(|definition| switch_of_definition(&definition, &of_version.1));
        self.switches.insert(of_version, switch.clone());
        Ok(switch)
    }
}

/// The key of the pod in the tenant that a host pod stands for.
pub(super) fn pod_key(pod: &GpuPod) -> OwnerKey {
    OwnerKey {
        api_version: "v1".into(),
        kind: "Pod".into(),
        namespace: pod.origin_namespace.clone(),
        name: pod.origin_name.clone(),
        uid: pod.origin_uid.clone(),
    }
}

fn switch_of_definition(definition: &CustomResourceDefinition, version: &str) -> Option<Switch> {
    let version = definition.spec.versions.iter().find(|served| served.name == version)?;
    let CustomResourceSubresourceScale {
        spec_replicas_path,
        status_replicas_path,
        label_selector_path: _,
    } = version.subresources.as_ref()?.scale.as_ref()?;
    Switch::of_scale(spec_replicas_path, status_replicas_path)
}
