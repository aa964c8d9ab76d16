//! Which keys a change wakes, for each kind of object: pure.

use super::{FLEET_PAUSE, USAGE_PAUSE};
use crate::{
    controllers::kubeconfig_secret_name,
    key::Key,
    tenant_state::{is_accepted, is_created},
};
use berth_api::{
    DEFAULT_CLASS, HostNodePool, Phase, SchedulePolicy, ScheduleTargetKind, TenantClass, TenantCluster, labels,
    names::TenantId,
};
use berth_node_lifecycle::{Assignment, node::shared_pool_of};
use berth_runtime::{hashes::hash_of, queue::Queue};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Resource, ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    sync::Arc,
};

/// A key, and when it is due.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wake {
    /// At once.
    Now(Key),
    /// Shortly, so that several changes are one reconcile.
    Soon(Key),
    /// After a second: nothing waits for it.
    Later(Key),
}

impl Wake {
    pub(super) fn enqueue(self, queue: &Queue<Key>) {
        match self {
            Self::Now(key) => queue.add(key),
            Self::Soon(key) => queue.add_after(key, FLEET_PAUSE),
            Self::Later(key) => queue.add_after(key, USAGE_PAUSE),
        }
    }
}

/// What a watch saw of each object, as hashes, to detect what really changed.
#[derive(Default)]
pub(super) struct Seen {
    hashes: HashMap<String, u64>,
    /// Hashes of what tenants show of what they used, and of everything else of them.
    usages: HashMap<String, (u64, u64)>,
    owners: HashMap<String, String>,
    /// UIDs of the tenants that nodes serve.
    served: HashMap<String, String>,
}

impl Seen {
    /// Whether `value` differs from the value when an object of this name was seen last.
    pub(super) fn is_new(&mut self, name: &str, value: &impl Hash) -> bool {
        let hash = hash_of(value);
        self.hashes.insert(name.to_owned(), hash) != Some(hash)
    }

    /// Whether a tenant shows other usage than when it was seen last, and nothing else of it is new.
    fn is_only_usage_new(&mut self, tenant: &TenantCluster) -> bool {
        let (usage, rest) = split_usage(tenant);
        let hashes = (hash_of(&usage), hash_of(&rest));
        let before = self.usages.insert(full_name(tenant), hashes);
        before.is_some_and(|(usage, rest)| usage != hashes.0 && rest == hashes.1)
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&mut self, name: &str) {
        self.hashes.remove(name);
        self.usages.remove(name);
        self.served.remove(name);
    }

    /// Records the tenant that a node serves. Returns the earlier one; none of a node that is new or was gone.
    fn replace_served(&mut self, node: &str, tenant: String) -> Option<String> {
        self.served.insert(node.to_owned(), tenant)
    }

    /// Records the owner of a node. Returns the earlier one.
    fn replace_owner(&mut self, node: String, owner: String) -> Option<String> {
        self.owners.insert(node, owner)
    }
}

/// What a tenant shows of what it used, and everything else of it but what changes with every write.
fn split_usage(tenant: &TenantCluster) -> (String, String) {
    let mut tenant = tenant.clone();
    tenant.metadata.resource_version = None;
    tenant.metadata.managed_fields = None;
    let status = tenant.status.as_mut();
    let usage = status.map(|status| std::mem::take(&mut status.monthly_usage));
    (
        serde_json::to_string(&usage.unwrap_or_default()).unwrap_or_default(),
        serde_json::to_string(&tenant).unwrap_or_default(),
    )
}

/// The name of an object, with its namespace.
pub(super) fn full_name(object: &impl Resource) -> String {
    format!("{:?}/{}", object.namespace(), object.name_any())
}

/// The class a tenant names, and the one it runs with: both count their tenants.
fn classes_of(tenant: &TenantCluster) -> impl Iterator<Item = &str> {
    let running = tenant.status.as_ref().and_then(|status| status.class_name.as_deref());
    let named = tenant.spec.class_name.as_deref().unwrap_or(DEFAULT_CLASS);
    [named].into_iter().chain(running)
}

/// A tenant. Nothing follows from what it shows of what it used, which control writes all the time.
pub(super) fn for_tenant(tenant: &TenantCluster, seen: &mut Seen) -> Vec<Wake> {
    if seen.is_only_usage_new(tenant) {
        return Vec::new();
    }
    let classes = classes_of(tenant).map(|class| Wake::Soon(Key::Class(class.into())));
    // Quotas are decided for all tenants: only what matters for them is a reason.
    let meta = &tenant.metadata;
    let change = (
        &meta.uid,
        meta.generation,
        meta.deletion_timestamp.is_some(),
        is_created(tenant),
        // What a tenant uses is counted by what is accepted.
        is_accepted(tenant),
    );
    let is_new = seen.is_new(&full_name(tenant), &change);
    let of_all = is_new.then_some([Wake::Soon(Key::Quotas), Wake::Later(Key::Usage)]);
    [Wake::Now(Key::of_tenant(tenant)), Wake::Soon(Key::Fleet)]
        .into_iter()
        .chain(of_all.into_iter().flatten())
        .chain(classes)
        .collect()
}

/// An Organization or a Project. Which tenants belonged to it before a change is not known: if schedules are for such levels, all of
/// them may be concerned.
pub(super) fn for_level(
    level: &impl Resource,
    seen: &mut Seen,
    tenants: &[Arc<TenantCluster>],
    policies: &[Arc<SchedulePolicy>],
) -> Vec<Wake> {
    // Control itself writes the status.
    let meta = level.meta();
    let force = level.annotations().get(labels::FORCE_DELETE);
    let change = (&meta.uid, meta.generation, meta.deletion_timestamp.is_some(), force);
    if !seen.is_new(&level.name_any(), &change) {
        return Vec::new();
    }
    let mut wakes = vec![Wake::Soon(Key::Quotas), Wake::Soon(Key::Fleet), Wake::Later(Key::Usage)];
    let is_for_levels = |policy: &&Arc<SchedulePolicy>| {
        let mut kinds = policy.spec.targets.iter().map(|target| target.kind);
        kinds.any(|kind| matches!(kind, ScheduleTargetKind::Organization | ScheduleTargetKind::Project))
    };
    let mut concerned = policies.iter().filter(is_for_levels).peekable();
    if concerned.peek().is_some() {
        wakes.extend(tenants.iter().map(|tenant| Wake::Now(Key::of_tenant(tenant))));
    }
    wakes.extend(concerned.map(|policy| Wake::Now(Key::SchedulePolicy(policy.name_any()))));
    wakes
}

pub(super) fn for_class(class: &TenantClass, seen: &mut Seen, tenants: &[Arc<TenantCluster>]) -> Vec<Wake> {
    let name = class.name_any();
    let mut wakes = vec![Wake::Now(Key::Class(name.clone()))];
    // The rules changed, or kinds can be synced from now on.
    let conditions = class.status.iter().flat_map(|status| &status.conditions);
    let reasons: Vec<&str> = conditions.map(|condition| condition.reason.as_str()).collect();
    if seen.is_new(&name, &(class.metadata.generation, &class.metadata.uid, reasons)) {
        wakes.extend([Wake::Soon(Key::Quotas), Wake::Soon(Key::Fleet)]);
        let affected = tenants
            .iter()
            .filter(|tenant| classes_of(tenant).any(|class| class == name));
        wakes.extend(affected.map(|tenant| Wake::Now(Key::of_tenant(tenant))));
    }
    wakes
}

/// Wakes the tenants of the classes that name a ConfigMap in `manifests`.
pub(super) fn for_manifest(
    map: &ConfigMap,
    seen: &mut Seen,
    classes: &[Arc<TenantClass>],
    tenants: &[Arc<TenantCluster>],
) -> Vec<Wake> {
    let name = map.name_any();
    if !seen.is_new(&name, &(map.uid(), map.resource_version())) {
        return Vec::new();
    }
    let names_it = |class: &&Arc<TenantClass>| {
        let manifests = &class.spec.manifests;
        manifests.iter().any(|manifest| manifest.config_map_ref.name == name)
    };
    let concerned: BTreeSet<String> = classes.iter().filter(names_it).map(|class| class.name_any()).collect();
    let affected = tenants
        .iter()
        .filter(|tenant| classes_of(tenant).any(|class| concerned.contains(class)));
    affected.map(|tenant| Wake::Soon(Key::of_tenant(tenant))).collect()
}

pub(super) fn for_pool(pool: &HostNodePool, seen: &mut Seen, tenants: &[Arc<TenantCluster>]) -> Vec<Wake> {
    let name = pool.name_any();
    let mut wakes = vec![Wake::Now(Key::Pool(name.clone()))];
    // Control itself writes the status.
    let change = (pool.metadata.generation, pool.metadata.deletion_timestamp.is_some());
    if seen.is_new(&name, &change) {
        wakes.extend([
            Wake::Soon(Key::Quotas),
            Wake::Soon(Key::Fleet),
            Wake::Soon(Key::SharedNodes),
        ]);
        // Whether a spec can be carried out depends on the pools.
        wakes.extend(tenants.iter().map(|tenant| Wake::Now(Key::of_tenant(tenant))));
    }
    wakes
}

/// Whether a class or a pool may be used in a namespace depends on its labels.
pub(super) fn for_team_namespace(
    namespace: &impl Resource,
    seen: &mut Seen,
    tenants: &[Arc<TenantCluster>],
) -> Vec<Wake> {
    let name = namespace.name_any();
    if !seen.is_new(&name, namespace.labels()) {
        return Vec::new();
    }
    let affected = tenants
        .iter()
        .filter(|tenant| tenant.namespace().as_ref() == Some(&name));
    let mut wakes: Vec<Wake> = affected.map(|tenant| Wake::Now(Key::of_tenant(tenant))).collect();
    if !wakes.is_empty() {
        wakes.extend([Wake::Soon(Key::Quotas), Wake::Soon(Key::Fleet)]);
    }
    wakes
}

/// Wakes tenants that wait for nodes, the current and the previous tenant of the node, and those that share it.
pub(super) fn for_node(
    node: &Node,
    seen: &mut Seen,
    tenants: &[Arc<TenantCluster>],
    pools: &[Arc<HostNodePool>],
) -> Vec<Wake> {
    let name = node.name_any();
    if !seen.is_new(&name, &without_heartbeats(node)) {
        return Vec::new();
    }
    let mut wakes = vec![Wake::Soon(Key::Fleet), Wake::Soon(Key::SharedNodes)];
    wakes.extend(pools.iter().map(|pool| Wake::Soon(Key::Pool(pool.name_any()))));
    let assignment = Assignment::read(node);
    let serving = assignment.as_ref().filter(|record| record.state.runs_tenant_pods());
    let serves = serving.map(|record| record.uid.clone()).unwrap_or_default();
    if seen.replace_served(&name, serves.clone()).as_ref() != Some(&serves) {
        wakes.push(Wake::Later(Key::Usage));
    }
    let owner = assignment.map(|record| record.uid);
    let earlier = seen.replace_owner(name, owner.clone().unwrap_or_default());
    let shared_pool = shared_pool_of(node).or_else(|| node.annotations().get(labels::PREVIOUS_SHARED_POOL));
    let is_concerned = |tenant: &&Arc<TenantCluster>| {
        let phase = tenant.status.as_ref().and_then(|status| status.phase);
        phase != Some(Phase::Ready)
            || shared_pool.is_some_and(|pool| tenant.spec.uses_shared_pool(pool))
            || owner == tenant.uid()
            || earlier.is_some() && earlier == Some(tenant.uid().unwrap_or_default())
    };
    let concerned = tenants.iter().filter(is_concerned);
    wakes.extend(concerned.map(|tenant| Wake::Soon(Key::of_tenant(tenant))));
    wakes
}

/// The tenant that an object was made for, if it is where control puts objects of this tenant. Others can write the same labels in namespaces
/// of their own: they could keep control busy with tenants of others, and with tenants that do not exist.
pub(super) fn for_child(child: &impl Resource, tenants: &Store<TenantCluster>) -> Vec<Wake> {
    let label = |key: &str| child.labels().get(key).map(String::as_str).unwrap_or_default();
    let (namespace, name) = (label(labels::TENANT_NAMESPACE), label(labels::TENANT_NAME));
    let tenant = tenants.get(&ObjectRef::new(name).within(namespace));
    let is_its_own = |tenant: &Arc<TenantCluster>| {
        let id = TenantId::new(name, &tenant.uid().unwrap_or_default());
        let place = child.namespace().unwrap_or_default();
        let is_kubeconfig = place == namespace && child.name_any() == kubeconfig_secret_name(tenant);
        let is_of_argo_cd = child.name_any() == id.argo_cd_secret();
        let is_in_own_namespace = place == id.control_plane_namespace() || place == id.workload_namespace();
        label(labels::TENANT) == id.slug() && (is_in_own_namespace || is_kubeconfig || is_of_argo_cd)
    };
    let tenant = tenant.filter(is_its_own);
    tenant
        .map(|tenant| Wake::Soon(Key::of_tenant(&tenant)))
        .into_iter()
        .collect()
}

/// The tenant of a namespace. Most of these changes are control's own, several at a time.
pub(super) fn for_labels(labels: &BTreeMap<String, String>) -> Vec<Wake> {
    let (namespace, name) = (labels.get(labels::TENANT_NAMESPACE), labels.get(labels::TENANT_NAME));
    let key = namespace.zip(name).map(|(namespace, name)| Key::Tenant {
        namespace: namespace.clone(),
        name: name.clone(),
    });
    key.map(Wake::Soon).into_iter().collect()
}

/// The parts of a node that matter to reconciles: everything but heartbeats and versions.
fn without_heartbeats(node: &Node) -> impl Hash + use<> {
    let mut node = node.clone();
    node.metadata.resource_version = None;
    node.metadata.managed_fields = None;
    let conditions = node.status.iter_mut().filter_map(|status| status.conditions.as_mut());
    for condition in conditions.flatten() {
        condition.last_heartbeat_time = None;
    }
    serde_json::to_string(&node).unwrap_or_default()
}

#[cfg(test)]
mod tests;
