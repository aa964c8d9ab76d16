//! Finds the owners of pods in a tenant, and changes them.
//!
//! The team writes owner references, so that nothing in them is believed: each owner is read, must have the UID that is named, and must
//! be in the namespace of the pod. What is done to it happens in the tenant only.

use crate::apply::{is_status, optional};
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
};
use serde_json::Value;
use std::collections::HashMap;

/// Owners of owners that are looked at: Pod, ReplicaSet, Deployment, and custom ones above.
const MAX_DEPTH: usize = 5;
/// Bytes of an `apiVersion`: a group, a slash and a version.
const MAX_API_VERSION: usize = 2 * 253 + 1;
/// Bytes of a UID. API servers take any text as that of an owner; their own have 36.
const MAX_UID: usize = 128;
/// Plurals of kinds of which no discovery is needed.
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
    /// None: the pod has no owner, or none that can be trusted.
    pub(super) owner: Option<Owner>,
}

/// Reads and changes objects of one tenant. What it knows of kinds is for one pass.
pub(super) struct TenantObjects {
    client: Client,
    /// Kinds that were looked up; none: the tenant does not serve them in namespaces.
    served: HashMap<(String, String), Option<ApiResource>>,
}

impl TenantObjects {
    pub(super) fn new(client: Client) -> Self {
        Self {
            client,
            served: HashMap::new(),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    async fn resource(&mut self, api_version: &str, kind: &str) -> kube::Result<Option<ApiResource>> {
        let version = api_version.rsplit('/').next().unwrap_or_default();
        let gvk = GroupVersionKind::gvk(group_of(api_version), version, kind);
        let built_in = BUILT_IN
            .iter()
            .find(|(known, name, _)| *known == api_version && *name == kind);
        if let Some((_, _, plural)) = built_in {
            return Ok(Some(ApiResource::from_gvk_with_plural(&gvk, plural)));
        }
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.served.get(&key) {
            return Ok(known.clone());
        }
        let found = discovery::find(&self.client, &gvk).await?;
        let found = found.filter(|found| found.is_namespaced).map(|found| found.resource);
        self.served.insert(key, found.clone());
        Ok(found)
    }

    /// Reads an object; none if it is gone, another one has its name, or its kind is not served.
    pub(super) async fn get(&mut self, key: &OwnerKey) -> kube::Result<Option<Value>> {
        if !key.can_exist() {
            return Ok(None);
        }
        let Some(resource) = self.resource(&key.api_version, &key.kind).await? else {
            return Ok(None);
        };
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        let Some(object) = optional(objects.get(&key.name).await)? else {
            return Ok(None);
        };
        let object = serde_json::to_value(object).map_err(Error::SerdeError)?;
        Ok((object["metadata"]["uid"] == key.uid).then_some(object))
    }

    /// Changes an object with a merge patch; the object afterwards. None if it is gone or was changed meanwhile.
    pub(super) async fn patch(&mut self, key: &OwnerKey, patch: &Value) -> kube::Result<Option<Value>> {
        let Some(resource) = self.resource(&key.api_version, &key.kind).await? else {
            return Ok(None);
        };
        let objects: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &key.namespace, &resource);
        match objects
            .patch(&key.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(object) => serde_json::to_value(object).map(Some).map_err(Error::SerdeError),
            Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The pod in the tenant that a host pod stands for, with what owns it; none if it is gone.
    pub(super) async fn find_owner(&mut self, pod: &GpuPod) -> kube::Result<Option<PodAndOwner>> {
        let Some(object) = self.get(&pod_key(pod)).await? else {
            return Ok(None);
        };
        let mut owner: Option<Owner> = None;
        let mut controller = OwnerKey::controller_of(&object);
        for _ in 0..MAX_DEPTH {
            let Some(next) = controller else {
                return Ok(Some(PodAndOwner { pod: object, owner }));
            };
            let found = self.get(&next).await?;
            // A CronJob does not change the Jobs that it has made.
            if next.is_cron_job() {
                if let Some(owner) = &mut owner {
                    owner.is_awaited = found.is_some_and(|found| found["spec"]["concurrencyPolicy"] == "Forbid");
                }
                return Ok(Some(PodAndOwner { pod: object, owner }));
            }
            let Some(found) = found else { break };
            controller = OwnerKey::controller_of(&found);
            owner = Some(Owner {
                key: next,
                is_awaited: false,
            });
        }
        Ok(Some(PodAndOwner {
            pod: object,
            owner: None,
        }))
    }

    /// How an owner of this kind is stopped, if its class says what suspends it, or by itself; none if it cannot be.
    pub(super) async fn switch(
        &mut self,
        key: &OwnerKey,
        suspend: Option<&OwnerSuspend>,
    ) -> kube::Result<Option<Switch>> {
        if let Some(suspend) = suspend {
            return Ok(Switch::of_suspend(suspend));
        }
        let group = group_of(&key.api_version);
        if let Some(switch) = Switch::of_built_in(group, &key.kind) {
            return Ok(Some(switch));
        }
        let Some(resource) = self.resource(&key.api_version, &key.kind).await? else {
            return Ok(None);
        };
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client.clone());
        let name = format!("{}.{}", resource.plural, resource.group);
        let definition = optional(definitions.get(&name).await)?;
        Ok(definition.and_then(|definition| switch_of_definition(&definition, &resource.version)))
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
