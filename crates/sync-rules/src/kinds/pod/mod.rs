//! Pods.
//!
//! | part | rule | where |
//! |---|---|---|
//! | labels | under keys that mean nothing on the host, see [`pod_labels`](crate::translation::pod_labels) | `build` |
//! | annotations | [`ANNOTATIONS`] and those that the class lists | `metadata` |
//! | gang | annotations of the host pod, made from those and from labels that stay in the tenant | `gang` |
//! | spec | allow-list: copied, translated or denied, field by field | `spec`, `container`, `security`, `volumes`, `scheduling`, `environment`, `downward` |
//! | images | those that the class lists, completed as container runtimes do; without a list, every image | `images` |
//! | ephemeral containers | one that is denied is left out, and its status says so | `ephemeral` |
//! | what is denied in the spec of a pod that has a node | kept: it was allowed when the pod was made | `build` |
//! | size of labels and annotations | limited | `metadata_size` |
//! | size of pods whose status can change often | limited | `status_changes` |
//! | size | numbers of containers, volumes, affinity terms and the like are limited, and the bytes of the spec. In a pod that has a node, only what can be added | [`sizes`] |
//! | user | who created the pod, and a gate if its users are limited: at the creation | `user` |
//! | claims of limited users | those that were counted | `devices::user_claims` |
//! | time to end | at most what the class allows, also at a deletion | `grace` |
//! | changes to a running pod | only what Kubernetes lets change | `update` |
//! | scheduling gates | while there are any, the pod is not on the host | `placement` |
//! | claims of devices | the host's names; claims that the host makes get the tenant's names in the status. Pods with many wait for their turn | `claims` |
//! | templates of claims | must be on the host before the pod | `devices::claims_of_pods` |
//! | status, node | from the host | `status` |
//! | endpoints of Services, for the egress broker | what is known of both sides | `endpoint` |
//! | service-account tokens | minted in the tenant, a Secret on the host | `token` |
//! | size of that Secret, with certificates and trust bundles | limited | `secret_size` |
//!
//! The tenant has neither scheduler nor kubelet: the host's scheduler places the host pod, the syncer binds the
//! tenant's pod to the same node and reports what the host's kubelet reports.

mod affinity;
mod build;
pub mod certificate;
pub mod claims;
mod container;
mod downward;
mod endpoint;
mod environment;
mod ephemeral;
pub mod gang;
mod grace;
mod images;
mod metadata_size;
mod own_labels;
pub mod placement;
mod removal;
mod scheduling;
pub mod secret_size;
mod security;
pub mod shape;
mod shared;
mod spec;
pub mod status;
mod status_changes;
mod structures;
mod tables;
mod targets;
pub mod token;
pub mod trust;
mod update;
pub mod user;
mod volume_claims;
mod volumes;

#[cfg(test)]
mod tests;

pub use container::DEVICE_MOUNTS;
pub use scheduling::group_priority_class;
pub use security::{BASELINE_CAPABILITIES, SE_LINUX_TYPES, SYSCTLS};
pub use shared::GPU_RUNTIMES;
pub use structures::STRUCTURES;
pub use targets::targets;
pub use volume_claims::KUBELET_ATTRIBUTES;

use crate::{
    kinds::devices::user_claims,
    model::{
        Cache, Creation, DeniedField, DeniedParts, Dependency, DesiredState, HostNamespace, HostWatch, HostWrite, Kind,
        KindId, Observation, Removal, TenantWrite, ToHost, Translated, WhenDenied, json, own_containers,
        pod_addresses::is_finished,
        references::Target,
        resource::{self, Key, Name, Resource, Side},
        store::{Stored, WatchSpec},
    },
    translation::fields::FieldIssues,
};
use berth_api::{SchedulingMode, labels};
use jiff::Timestamp;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Annotations that every pod may carry to the host: limits of the pod's own bandwidth, which network plug-ins read.
pub const ANNOTATIONS: &[&str] = &["kubernetes.io/egress-bandwidth", "kubernetes.io/ingress-bandwidth"];

/// Streams of a pod are requested with GET or POST, and newer API servers require the right to create for both.
const STREAM: &[&str] = &["create", "get"];

/// The kind.
pub const KIND: Kind = Kind::to_host(resource::POD, &Pods)
    .watch_tenant(WatchSpec::own(resource::POD).trimmed(trim_tenant))
    .watch_host(
        HostNamespace::Workloads,
        WatchSpec::synced(resource::POD)
            .with_spec_fields(HOST_SPEC)
            .trimmed(trim_host),
    )
    .watch_host_when(HostWatch::Always)
    .with_tenant_rights(&[
        ("pods", &["delete"]),
        ("pods/status", &["patch"]),
        ("pods/binding", &["create"]),
        // Schedules end pods within the tenant's budgets.
        ("pods/eviction", &["create"]),
    ])
    .with_host_rights(&[
        // Conditions of readiness gates; containers added to and resources changed in running pods.
        ("pods/status", &["patch"]),
        ("pods/ephemeralcontainers", &["patch"]),
        ("pods/resize", &["patch"]),
        // Requests of the tenant's API server to kubelets.
        ("pods/log", &["get"]),
        ("pods/exec", STREAM),
        ("pods/attach", STREAM),
        ("pods/portforward", STREAM),
    ])
    .essential()
    .depends_on(&[
        // The labels of a namespace are on its pods.
        Dependency::on_tenant(KindId::Namespace, |cache, namespace| {
            cache.keys_in_namespace(KindId::Pod, &namespace.name)
        }),
        // Policies decide which pods get the labels for the platform's own policies.
        Dependency::on_tenant(KindId::NetworkPolicy, |cache, policy| {
            cache.keys_in_namespace(KindId::Pod, &policy.namespace)
        }),
        Dependency::on_tenant(KindId::ResourceClaim, user_claims::find_pods),
        // What a pod is as an endpoint follows both sides.
        Dependency::on_tenant(KindId::Pod, |cache, pod| {
            endpoint::note(cache, pod, Side::Tenant);
            Vec::new()
        }),
        Dependency::on_host(KindId::Pod, |cache, pod| {
            endpoint::note(cache, pod, Side::Host);
            Vec::new()
        }),
    ]);

/// Metadata that rules and decisions read; the rest is half of a small pod.
pub const METADATA: &[&str] = &[
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "labels",
    "name",
    "namespace",
    "resourceVersion",
    "uid",
];

fn trim_tenant(pod: &mut Value) {
    if let Some(object) = pod.as_object_mut() {
        object.retain(|key, _| matches!(key.as_str(), "metadata" | "spec" | "status"));
    }
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.retain(|key, _| METADATA.contains(&key.as_str()));
    }
    if let Some(annotations) = pod["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

/// Fields of a host pod's spec that rules and decisions read.
const HOST_SPEC: &[&str] = &[ephemeral::LIST, "nodeName", "schedulingGates"];

/// Only the state of a host pod matters, its scheduling gates, some of which are the platform's, and which ephemeral containers it has: the rest of its
/// spec is in the tenant's pod.
fn trim_host(pod: &mut Value) {
    const KEPT: &[&str] = &[
        labels::ORIGIN_UID,
        labels::APPLIED_HASH,
        labels::SHARED_POOLS,
        labels::PLACEMENT,
    ];
    // The age of a new pod decides when its Secret gets its owner.
    let is_new = matches!(json::text(pod, &["status", "phase"]), None | Some("Pending"));
    trim_tenant(pod);
    if !pod["spec"].is_object() {
        pod["spec"] = json!({});
    }
    if let Some(spec) = pod["spec"].as_object_mut() {
        spec.retain(|field, _| HOST_SPEC.contains(&field.as_str()));
    }
    let added = pod["spec"].get_mut(ephemeral::LIST).and_then(Value::as_array_mut);
    for container in added.into_iter().flatten().filter_map(Value::as_object_mut) {
        own_containers::trim_ephemeral(container);
    }
    // It says which gates are the tenant's, which host pods of earlier releases have, and is long.
    let has_gates = pod["spec"].get("schedulingGates").is_some();
    if let Some(metadata) = pod["metadata"].as_object_mut() {
        metadata.remove("labels");
        metadata.remove("namespace");
        if !is_new {
            metadata.remove("creationTimestamp");
        }
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| KEPT.contains(&key.as_str()) || (has_gates && key == labels::APPLIED_KEYS));
        }
    }
}

/// The PodGroup that a pod belongs to.
fn group_target(cache: &Cache, name: &Name, pod: &Value) -> Option<Target> {
    let (kind, group) = scheduling::group_of(cache, pod)?;
    let name = Name::new(&name.namespace, &group);
    Some(Target { kind, name })
}

struct Pods;

impl ToHost for Pods {
    fn resource(&self) -> Resource {
        resource::POD
    }

    fn desired_state(&self, cache: &Cache, name: &Name, pod: &Value) -> DesiredState {
        let host = cache.stores.host(KindId::Pod).get(name);
        let runs_on_host = || host.as_ref().is_some_and(|host| !is_finished(&host.object()["status"]));
        // Administrators of the tenant can write the phase. What runs even so must still follow policies, schedules and the class.
        if is_finished(&pod["status"]) && !runs_on_host() {
            return DesiredState::Leave;
        }
        if status::has_run(cache, pod, &pod["status"]) {
            return DesiredState::Once;
        }
        let is_placed = token::node_of(pod).is_some();
        let mode = placement::mode(cache, &pod["spec"]);
        let waiting = host.filter(|host| placement::waits(host));
        match (mode, waiting) {
            // One that is on the host came there with an earlier release.
            (_, Some(_)) if placement::has_gates(pod) => DesiredState::Absent,
            (_, None) if placement::has_gates(pod) => DesiredState::Leave,
            // Schedulers in the tenant decide first. A host pod that is not placed was created when the host's
            // scheduler still decided, and might be placed on another node.
            (SchedulingMode::Tenant, Some(_)) if !is_placed => DesiredState::Absent,
            (SchedulingMode::Tenant, None) if !is_placed => DesiredState::Leave,
            (_, Some(host)) if placement::is_outdated(cache, name, pod, &host) => DesiredState::Absent,
            (_, Some(_)) if user_claims::is_outdated(cache, &claims::targets(pod)) => DesiredState::Absent,
            _ => DesiredState::Sync,
        }
    }

    fn references(&self, cache: &Cache, name: &Name, pod: &Value) -> BTreeSet<Target> {
        let mut targets = targets(pod);
        targets.extend(group_target(cache, name, pod));
        targets
    }

    fn prerequisites(&self, cache: &Cache, name: &Name, pod: &Value) -> Vec<Key> {
        let mut needs = targets::targets_at_creation(pod);
        needs.extend(group_target(cache, name, pod));
        // A denied claim is never synced: the pod is denied as well, with the reason.
        needs.retain(|target| crate::kinds::devices::denied(cache, target).is_none());
        volume_claims::prerequisites(cache, pod, needs)
    }

    fn translate(&self, cache: &Cache, name: &Name, pod: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let object = build::host_pod(cache, name, pod, &mut issues);
        issues.into_result(object)
    }

    fn translate_new(&self, cache: &Cache, name: &Name, pod: &Value) -> Result<Translated, Vec<DeniedField>> {
        let Translated { object, ignored, parts } = self.translate(cache, name, pod)?;
        let DeniedParts { kept, in_doubt, .. } = &parts;
        if !kept.is_empty() || !in_doubt.is_empty() {
            // There was a host pod a moment ago. A new one keeps nothing.
            return Err(kept.iter().chain(in_doubt).cloned().collect());
        }
        let mut object = update::object_at_creation(object);
        if let Some(record) = placement::record(cache, name, pod) {
            object["metadata"]["annotations"][labels::PLACEMENT] = record.into();
        }
        user::stamp(cache.tenant.users, pod, &mut object);
        Ok(Translated { object, ignored, parts })
    }

    fn creation(&self) -> Creation {
        Creation::Post
    }

    fn mutable_part(&self, desired: &Value) -> Value {
        update::mutable_part(desired)
    }

    fn controller_requests(&self, desired: &Value, is_new: bool) -> u64 {
        // They do not change later.
        if is_new {
            claims::requests(desired) + volume_claims::requests(desired)
        } else {
            0
        }
    }

    fn is_on_host(&self, field: &str, desired: &Value, live: &Value) -> bool {
        images::is_on_host(field, desired, live)
    }

    fn update_needs_live(&self) -> bool {
        true
    }

    fn update(&self, desired: Value, live: &Value) -> Vec<HostWrite> {
        update::update(&desired, live)
    }

    fn rest_of_update(&self, desired: &Value, live: &Value) -> Option<Value> {
        update::rest_of_update(desired, live)
    }

    fn closing_patch(&self, desired: &Value, live: &Value) -> Option<Value> {
        update::closing_patch(desired, live)
    }

    fn isolating_patch(&self, desired: &Value, live: &Value) -> Option<Value> {
        update::isolating_patch(desired, live)
    }

    fn isolation(&self, desired: &Value) -> Value {
        update::isolation(desired)
    }

    fn closed_while_ending(&self, cache: &Cache, name: &Name, pod: &Value, host_pod: &Value) -> Option<Value> {
        // It can have a day to end, and a process in it need not heed that it should.
        Some(build::metadata_of_running(cache, name, pod, host_pod))
    }

    fn host_status(&self, tenant: &Value, host: &Value) -> Option<Value> {
        status::host_status(tenant, host)
    }

    fn sync_status(&self, cache: &Cache, name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
        status::sync_status(cache, name, observation)
    }

    fn when_denied(&self, cache: &Cache, name: &Name, pod: &Value, host_pod: &Value) -> WhenDenied {
        let host = cache.stores.host(KindId::Pod).get(name);
        let waits = host.is_some_and(|host| placement::waits(&host));
        if waits {
            // It would start later with what is denied now.
            return WhenDenied::Withdraw;
        }
        let withdrawn = &cache.tenant.withdrawn_storage;
        let unoffered = volume_claims::find_unoffered(cache, name, pod);
        match unoffered.iter().find(|used| withdrawn.contains(&used.offer)) {
            Some(used) => WhenDenied::End {
                reason: used.reason(),
                message: used.message(),
            },
            // What runs goes on. But policies of the tenant that close it must reach it, and annotations that are no longer allowed must go.
            None => WhenDenied::Reduce(build::metadata_of_running(cache, name, pod, host_pod)),
        }
    }

    fn when_refused(&self, cache: &Cache, name: &Name, pod: &Value, host_pod: &Value) -> WhenDenied {
        match self.when_denied(cache, name, pod, host_pod) {
            WhenDenied::Reduce(mut reduced) => {
                // The host pod may have the images that are denied.
                reduced["spec"] = json!({});
                WhenDenied::Reduce(reduced)
            }
            other => other,
        }
    }

    fn denied_status(
        &self,
        _cache: &Cache,
        _name: &Name,
        pod: &Value,
        denied: &[DeniedField],
        now: Timestamp,
    ) -> Option<Value> {
        Some(status::denied_status(pod, denied, now))
    }

    fn not_synced_status(&self, pod: &Value, reason: &str, message: &str, now: Timestamp) -> Option<Value> {
        Some(status::not_synced_status(pod, reason, message, now))
    }

    fn lost_status(
        &self,
        cache: &Cache,
        name: &Name,
        pod: &Value,
        tombstone: Option<&Value>,
        now: Timestamp,
    ) -> Option<Value> {
        status::lost_status(cache, name, pod, tombstone, now)
    }

    fn removal(&self, pod: &Value) -> Option<Removal> {
        removal::removal(pod)
    }

    fn orphan_grace(&self) -> Option<u32> {
        // Not 0: the object stays until the kubelet has ended the containers.
        Some(1)
    }

    fn max_grace(&self, cache: &Cache) -> Option<u32> {
        Some(cache.tenant.policy.pods.max_termination_grace_period_seconds())
    }

    fn follows_own_status(&self) -> bool {
        false
    }

    fn deletes_only_this_version(&self, host: &Stored) -> bool {
        // It may have been placed meanwhile, and then it is another decision.
        placement::waits(host)
    }

    fn finishes_deletion(&self) -> bool {
        true
    }
}
