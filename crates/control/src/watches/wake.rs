//! Which keys a change wakes, for each kind of object: pure.

use super::{FLEET_PAUSE, USAGE_PAUSE};
use crate::{controllers::kubeconfig_secret_name, key::Key, tenant_state::is_created};
use berth_api::{
    DEFAULT_CLASS, HostNodePool, Phase, SchedulePolicy, ScheduleTargetKind, TenantClass, TenantCluster, labels,
    names::TenantId,
};
use berth_node_lifecycle::{Assignment, node::shared_pool_of};
use berth_runtime::queue::Queue;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::{
    Resource, ResourceExt,
    runtime::reflector::{ObjectRef, Store},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
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

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What a tenant shows of what it used, and everything else of it but what changes with every write.
fn split_usage(tenant: &TenantCluster) -> (String, String) {
    let mut tenant = tenant.clone();
    tenant.metadata.resource_version = None;
    tenant.metadata.managed_fields = None;
    let usage = { tenant.status.as_mut() }.map(|status| std::mem::take(&mut status.monthly_usage));
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
    let mut wakes = vec![Wake::Soon(Key::Quotas), Wake::Soon(Key::Fleet)];
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
mod tests {
    use super::*;
    use berth_api::{Project, ProjectSpec, TenantClusterSpec, TenantClusterStatus};
    use k8s_openapi::api::core::v1::Namespace;
    use serde_json::json;

    fn tenant(name: &str, phase: Phase) -> Arc<TenantCluster> {
        let mut tenant = TenantCluster::new(name, TenantClusterSpec::default());
        tenant.metadata.namespace = Some("team".into());
        tenant.metadata.uid = Some(name.into());
        tenant.status = Some(TenantClusterStatus {
            phase: Some(phase),
            class_name: Some("gold".into()),
            ..TenantClusterStatus::default()
        });
        Arc::new(tenant)
    }

    fn node(owner: Option<&str>, heartbeat: &str) -> Node {
        let mut node = json!({
            "metadata": {"name": "n", "labels": {"berth.dev/pool": "h100", "berth.dev/node-group": "a"}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]},
        });
        if let Some(owner) = owner {
            node["metadata"]["annotations"] = json!({"berth.dev/owner-uid": owner, "berth.dev/state": "Assigned"});
        }
        serde_json::from_value(node).unwrap()
    }

    fn woken(wakes: &[Wake]) -> Vec<&str> {
        let names = wakes.iter().filter_map(|wake| match wake {
            Wake::Now(Key::Tenant { name, .. }) | Wake::Soon(Key::Tenant { name, .. }) => Some(name.as_str()),
            _ => None,
        });
        names.collect()
    }

    #[test]
    fn a_node_wakes_its_owner_its_former_owner_and_tenants_that_are_not_ready() {
        let tenants = [
            tenant("a", Phase::Ready),
            tenant("b", Phase::Ready),
            tenant("c", Phase::Provisioning),
        ];
        let mut seen = Seen::default();
        let mut wakes = |node: &Node| for_node(node, &mut seen, &tenants, &[]);
        assert_eq!(woken(&wakes(&node(Some("a"), "2026-01-01T00:00:00Z"))), ["a", "c"]);
        assert!(
            wakes(&node(Some("a"), "2026-01-01T00:00:10Z")).is_empty(),
            "a heartbeat"
        );
        assert_eq!(woken(&wakes(&node(Some("b"), "2026-01-01T00:00:10Z"))), ["a", "b", "c"]);
        assert_eq!(woken(&wakes(&node(None, "2026-01-01T00:00:10Z"))), ["b", "c"]);
    }

    #[test]
    fn usage_is_counted_when_a_node_begins_and_ceases_to_serve_a_tenant() {
        let mut seen = Seen::default();
        let mut wakes = |state: &str, seconds: u32, is_gone: bool| {
            let mut node = node(Some("a"), &format!("2026-01-01T00:00:{seconds:02}Z"));
            node.annotations_mut().insert("berth.dev/state".into(), state.into());
            node.labels_mut().insert("x".into(), seconds.to_string());
            if is_gone {
                seen.forget("n");
            }
            for_node(&node, &mut seen, &[], &[]).contains(&Wake::Later(Key::Usage))
        };
        assert!(wakes("Joining", 0, false), "it is new");
        assert!(!wakes("Joining", 1, false));
        assert!(wakes("Assigned", 2, false));
        assert!(!wakes("Cordoned", 3, false), "it still serves");
        assert!(wakes("Scrubbing", 4, false));
        assert!(!wakes("Validating", 5, false));
        assert!(wakes("Assigned", 6, false));
        assert!(wakes("Assigned", 6, true), "its Node was deleted");
    }

    #[test]
    fn labels_of_a_tenant_in_other_namespaces_wake_nobody() {
        let (store, mut writer) = kube::runtime::reflector::store();
        let known = tenant("a", Phase::Ready);
        writer.apply_watcher_event(&kube::runtime::watcher::Event::Apply((*known).clone()));
        let id = TenantId::new("a", "a");
        let wakes = |slug: &str, place: &str, name: &str, of: (&str, &str)| {
            let secret: k8s_openapi::api::core::v1::Secret = serde_json::from_value(json!({"metadata": {
                "name": name, "namespace": place,
                "labels": {"berth.dev/tenant": slug, "berth.dev/tenant-namespace": of.0, "berth.dev/tenant-name": of.1},
            }}))
            .unwrap();
            for_child(&secret, &store).len()
        };
        let own = ("team", "a");
        assert_eq!(wakes(id.slug(), &id.control_plane_namespace(), "pki", own), 1);
        assert_eq!(wakes(id.slug(), "team", "a-kubeconfig", own), 1);
        assert_eq!(wakes(id.slug(), "argocd", &id.argo_cd_secret(), own), 1);
        assert_eq!(wakes(id.slug(), "team", "other", own), 0);
        assert_eq!(wakes(id.slug(), "elsewhere", "a-kubeconfig", own), 0);
        let other = TenantId::new("b", "b");
        assert_eq!(
            wakes(other.slug(), &other.workload_namespace(), "x", own),
            0,
            "a stolen syncer credential"
        );
        assert_eq!(
            wakes(id.slug(), &id.control_plane_namespace(), "x", ("team", "none")),
            0
        );
    }

    #[test]
    fn new_labels_of_a_namespace_wake_the_tenants_in_it() {
        let tenants = [tenant("a", Phase::Ready)];
        let mut seen = Seen::default();
        let mut namespace = |name: &str, label: &str| {
            let namespace: Namespace = serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {"team": label}},
            }))
            .unwrap();
            for_team_namespace(&namespace, &mut seen, &tenants)
        };
        assert_eq!(woken(&namespace("team", "vision")), ["a"]);
        assert!(namespace("team", "vision").is_empty(), "nothing has changed");
        assert_eq!(woken(&namespace("team", "speech")), ["a"]);
        assert!(namespace("other", "speech").is_empty());
    }

    #[test]
    fn what_a_tenant_shows_of_what_it_used_wakes_nothing() {
        let tenant = tenant("a", Phase::Ready);
        let used = |hours: &str, version: &str| {
            let mut tenant = (*tenant).clone();
            let usage = json!([{"month": "2026-11", "meteredThrough": "2026-11-10T12:00:00Z",
                "hours": [{"resource": "GPU", "hours": hours}]}]);
            tenant.metadata.resource_version = Some(version.into());
            tenant.status.as_mut().unwrap().monthly_usage = serde_json::from_value(usage).unwrap();
            tenant
        };
        let mut seen = Seen::default();
        let mut wakes = |tenant: &TenantCluster| !for_tenant(tenant, &mut seen).is_empty();
        assert!(wakes(&tenant));
        assert!(!wakes(&used("1.0", "2")));
        assert!(!wakes(&used("2.0", "3")));
        assert!(wakes(&used("2.0", "3")), "it is listed again");
        let mut changed = used("3.0", "4");
        changed.status.as_mut().unwrap().phase = Some(Phase::Sleeping);
        assert!(wakes(&changed), "something else has changed as well");
        seen.forget(&full_name(tenant.as_ref()));
        assert!(!for_tenant(&used("4.0", "5"), &mut seen).is_empty(), "it is new");
    }

    #[test]
    fn quotas_are_decided_again_when_a_tenant_changes_its_spec_or_is_gone() {
        let tenant = tenant("a", Phase::Ready);
        let mut changed = (*tenant).clone();
        changed.metadata.generation = Some(2);
        let mut seen = Seen::default();
        let mut wakes = |tenant: &TenantCluster| for_tenant(tenant, &mut seen).contains(&Wake::Soon(Key::Quotas));
        assert!(wakes(&tenant));
        assert!(!wakes(&tenant), "a status");
        assert!(wakes(&changed));
        seen.forget(&full_name(tenant.as_ref()));
        assert!(for_tenant(&changed, &mut seen).contains(&Wake::Soon(Key::Quotas)));
    }

    #[test]
    fn a_project_wakes_tenants_and_policies_if_schedules_are_for_levels() {
        let policy = |name: &str, kind: &str| {
            let spec = json!({"timeZone": "UTC", "targets": [{"kind": kind, "name": "vision"}], "windows": []});
            Arc::new(SchedulePolicy::new(name, serde_json::from_value(spec).unwrap()))
        };
        let tenants = [tenant("a", Phase::Ready)];
        let (of_class, of_project) = (policy("nights", "TenantClass"), policy("weekends", "Project"));
        let mut project = Project::new("vision", ProjectSpec::default());
        let mut seen = Seen::default();
        let planned = [Wake::Soon(Key::Quotas), Wake::Soon(Key::Fleet)];
        assert_eq!(
            for_level(&project, &mut seen, &tenants, std::slice::from_ref(&of_class)),
            planned
        );
        let policies = [of_class, of_project];
        assert!(
            for_level(&project, &mut seen, &tenants, &policies).is_empty(),
            "a status"
        );
        project.metadata.generation = Some(2);
        let wakes = for_level(&project, &mut seen, &tenants, &policies);
        assert_eq!(woken(&wakes), ["a"]);
        assert!(wakes.contains(&Wake::Now(Key::SchedulePolicy("weekends".into()))));
        assert!(!wakes.contains(&Wake::Now(Key::SchedulePolicy("nights".into()))));
    }

    #[test]
    fn a_class_wakes_the_tenants_that_name_it_or_run_with_it_once_a_change() {
        let tenants = [tenant("a", Phase::Ready)];
        let mut class = TenantClass::new("gold", berth_api::TenantClassSpec::default());
        let mut seen = Seen::default();
        assert_eq!(woken(&for_class(&class, &mut seen, &tenants)), ["a"]);
        assert_eq!(
            for_class(&class, &mut seen, &tenants),
            [Wake::Now(Key::Class("gold".into()))]
        );
        class.metadata.generation = Some(2);
        assert_eq!(woken(&for_class(&class, &mut seen, &tenants)), ["a"]);
    }

    #[test]
    fn a_manifest_wakes_the_tenants_of_the_classes_that_name_it_once_a_change() {
        let tenants = [tenant("a", Phase::Ready)];
        let mut class = TenantClass::new("gold", berth_api::TenantClassSpec::default());
        let mut map = ConfigMap::default();
        map.metadata.name = Some("base".into());
        map.metadata.resource_version = Some("1".into());
        let mut seen = Seen::default();
        assert!(for_manifest(&map, &mut seen, &[Arc::new(class.clone())], &tenants).is_empty());
        class.spec.manifests = vec![berth_api::ClassManifest {
            config_map_ref: berth_api::ManifestConfigMap { name: "base".into() },
            ..berth_api::ClassManifest::default()
        }];
        let classes = [Arc::new(class)];
        assert!(for_manifest(&map, &mut seen, &classes, &tenants).is_empty());
        map.metadata.resource_version = Some("2".into());
        assert_eq!(woken(&for_manifest(&map, &mut seen, &classes, &tenants)), ["a"]);
    }
}
