//! Where a pod may run.
//!
//! Who places a pod says [`placement`].
//!
//! | field | the host's schedulers place the pod | a scheduler in the tenant does |
//! |---|---|---|
//! | nodeSelector | the tenant's, with `own_labels`, and the tenant's own nodes or what `shared` opens, always | the tenant's own nodes |
//! | nodeName | only by a Binding; denied if set by hand | the host pod may run on that node only |
//! | affinity, topology spread | see `affinity`; nodes that the tenant has cordoned or tainted are left out, or others preferred | decided already |
//! | schedulerName | the default one and those that the class lists | any other; the host's default scheduler checks |
//! | schedulingGroup | a PodGroup of the tenant, if the class lists the kind | decided already |
//!
//! | field | rule |
//! |---|---|
//! | tolerations | the tenant's, and the tenant's own taint; one for every taint becomes one for each taint the tenant can see, because it would also tolerate the platform's |
//! | priorityClassName, priority, preemptionPolicy | the step of the class's band that the priority falls on; none without a band. Pods of a PodGroup preempt as [`group_priority_class`] says |
//! | schedulingGates | a pod with any is not on the host, see [`placement`]; those of the host's own queues stay |

use super::{affinity, own_labels, placement, tables::TOLERATION};
use crate::{
    kinds::node_taints,
    model::{
        Cache, KindId, json,
        resource::{Name, host_name},
        store::Stored,
        taint::Taint,
    },
    translation::{
        fields::{self, FieldIssues, Fields, Rule},
        sizes::{MOST_NODE_FIELDS, MOST_TOLERATIONS},
    },
};
use berth_api::{
    SchedulingMode,
    labels::{self, is_reserved},
    sync_policy::{PriorityBand, allows},
};
use serde_json::{Map, Value, json};
use std::{cell::LazyCell, collections::BTreeSet, sync::Arc};

/// Taints that nodes commonly have; those of the tenant's nodes are added.
const COMMON_TAINTS: &[&str] = &[
    "amd.com/gpu",
    "gpu.intel.com/gpu",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    "nvidia.com/gpu",
];

/// The rules of `PodSchedulingGroup`.
pub const GROUP: Fields = &[("podGroupName", Rule::Rewrite)];

/// The kind of which `schedulingGroup` names an object.
pub(super) const POD_GROUP: &str = "PodGroup.scheduling.k8s.io";

/// Path of the terms of which a node must match one.
pub(super) const NODE_TERMS: [&str; 3] = [
    "nodeAffinity",
    "requiredDuringSchedulingIgnoredDuringExecution",
    "nodeSelectorTerms",
];

/// Path of the terms that are better the more of them a node matches.
pub(super) const NODE_PREFERENCES: [&str; 2] = ["nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution"];

/// The highest weight of a preference.
const HIGHEST_WEIGHT: usize = 100;
/// Nodes with a taint `PreferNoSchedule` of the tenant up to which pods prefer others: each is a preference of every pod, which the host has
/// to accept however many Nodes there are.
const MOST_AVOIDED: usize = 200;

pub(super) const RESERVED: &str = "keys under berth.dev belong to the platform";

/// Whether a tenant may not select nodes by this label. It sees the pool and the group of its nodes, and which are shared.
pub(super) fn is_hidden(key: &str) -> bool {
    is_reserved(key) && ![labels::POOL, labels::NODE_GROUP, labels::SHARED_POOL].contains(&key)
}

/// Adds everything about scheduling to the host pod's spec.
pub fn translate(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    place(cache, name, source, spec, issues);
    match placement::mode(cache, source) {
        SchedulingMode::Host => {
            scheduler(cache, source, spec);
            group(cache, name, source, spec, issues);
        }
        SchedulingMode::Tenant => deny_devices(cache, source, issues),
    }
    spec.insert("tolerations".into(), tolerations(cache, source, issues).into());
    priority(cache, name, source, spec, issues);
}

/// Adds on which nodes the host pod may run.
pub fn place(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    let mut selector = Map::new();
    match placement::mode(cache, source) {
        SchedulingMode::Host => {
            for (key, value) in json::strings(source, &["nodeSelector"]) {
                if is_hidden(&key) {
                    issues.deny(format!("spec.nodeSelector[{key}]"), RESERVED);
                }
                selector.insert(key, value.into());
            }
            affinity::translate(cache, name, source, spec, issues);
            own_labels::resolve(cache, &mut selector, spec);
            avoid_repelling_nodes(cache, source, spec);
            prefer_other_nodes(cache, source, spec);
        }
        SchedulingMode::Tenant => {
            if let Some(node) = json::text(source, &["nodeName"]) {
                stay_on(node, spec);
            }
        }
    }
    selector.insert(labels::TENANT.into(), cache.tenant.slug.clone().into());
    spec.insert("nodeSelector".into(), selector.into());
}

/// Restricts the host pod to one node.
fn stay_on(node: &str, spec: &mut Map<String, Value>) {
    let mut affinity = json!({});
    let field = json!({"key": "metadata.name", "operator": "In", "values": [node]});
    json::set(&mut affinity, &NODE_TERMS, vec![json!({"matchFields": [field]})]);
    spec.insert("affinity".into(), affinity);
}

/// Names a scheduler of the host that the class lists.
fn scheduler(cache: &Cache, source: &Value, spec: &mut Map<String, Value>) {
    if let Some(name) = json::text(source, &["schedulerName"])
        && allows(&cache.tenant.policy.pods.schedulers, name)
    {
        spec.insert("schedulerName".into(), name.into());
    }
}

/// The host's scheduler assigns devices, also where a scheduler of the tenant places a single pod.
fn deny_devices(cache: &Cache, source: &Value, issues: &mut FieldIssues) {
    let is_single = cache.tenant.scheduling == SchedulingMode::Host;
    if is_single && !json::items(source, &["resourceClaims"]).is_empty() {
        issues.deny(
            "spec.resourceClaims",
            "devices are assigned by the default scheduler: leave schedulerName out",
        );
    }
}

/// The PodGroup that a pod belongs to, if it names one and the class lists the kind.
pub fn group_of(cache: &Cache, pod: &Value) -> Option<(KindId, String)> {
    let group = json::filled(pod, &["spec", "schedulingGroup", "podGroupName"])?;
    (placement::mode(cache, &pod["spec"]) == SchedulingMode::Host)
        .then(|| cache.find_kind_by_name(POD_GROUP))
        .flatten()
        .map(|kind| (kind, group.to_owned()))
}

fn group(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    let Some(value) = source.get("schedulingGroup").filter(|group| !json::is_unset(group)) else {
        return;
    };
    fields::copy(value, "spec.schedulingGroup", GROUP, issues);
    let Some(group) = json::text(value, &["podGroupName"]) else {
        return;
    };
    match cache.find_kind_by_name(POD_GROUP) {
        Some(kind) => {
            let host = host_name(kind, &Name::new(&name.namespace, group));
            spec.insert("schedulingGroup".into(), json!({"podGroupName": host}));
        }
        None => issues.deny(
            "spec.schedulingGroup",
            "PodGroups are not offered here: the platform has to list them in the tenant's class",
        ),
    }
}

fn priority(cache: &Cache, name: &Name, source: &Value, spec: &mut Map<String, Value>, issues: &mut FieldIssues) {
    let class = json::filled(source, &["priorityClassName"]);
    let mut note = |why: &str| issues.ignore("spec.priorityClassName", why);
    if cache.tenant.policy.pods.priority.is_none() {
        if class.is_some() {
            note("tenants of this class have no priorities on the host: the pod has the host's default priority");
        }
        return;
    }
    if class.is_some_and(|class| class.starts_with("system-")) {
        note("it is for the platform's own pods: the pod has the highest priority that the tenant may have");
    }
    let is_in_group = source
        .get("schedulingGroup")
        .is_some_and(|group| !json::is_unset(group));
    let may_preempt = !is_in_group || group_preempts(cache, name, source).unwrap_or_else(|| may_groups_preempt(cache));
    if let Some(host) = priority_class(cache, source, may_preempt) {
        spec.insert("priorityClassName".into(), host.into());
    }
}

/// The host's PriorityClass of a pod, or of a group of pods, with this spec in the tenant, and of one that never preempts unless it `may_preempt`. None if
/// the class of the tenant has no band.
pub(super) fn priority_class(cache: &Cache, source: &Value, may_preempt: bool) -> Option<String> {
    cache.tenant.policy.pods.priority?;
    let priority = source.get("priority").and_then(Value::as_i64).unwrap_or_default();
    let preempts = may_preempt && json::text(source, &["preemptionPolicy"]) != Some("Never");
    Some(PriorityBand::class_name(
        &cache.tenant.class_name,
        PriorityBand::step(priority),
        preempts,
    ))
}

/// The host's PriorityClass of a group of pods with this spec in the tenant; none if the class of the tenant has no band. The scheduler places no group
/// whose pods have another priority or preempt otherwise, so that where some of them may run on shared nodes, none preempts.
pub fn group_priority_class(cache: &Cache, source: &Value) -> Option<String> {
    priority_class(cache, source, may_groups_preempt(cache))
}

/// Whether the PodGroup of a pod with this spec preempts others on the host. None if it is not there, or has no priority of a band. What the group has cannot
/// change, and its pods must have the same: the tenant may have got shared pools since then, or none any more.
pub(super) fn group_preempts(cache: &Cache, name: &Name, source: &Value) -> Option<bool> {
    let group = json::filled(source, &["schedulingGroup", "podGroupName"])?;
    let kind = cache.find_kind_by_name(POD_GROUP)?;
    let live = cache
        .stores
        .host(kind)
        .get(&Name::new(&name.namespace, group))?
        .object();
    let class = json::text(&live, &["spec", "priorityClassName"])?;
    class
        .starts_with(PriorityBand::NAME_PREFIX)
        .then(|| !class.ends_with(PriorityBand::NEVER_SUFFIX))
}

fn may_groups_preempt(cache: &Cache) -> bool {
    cache.tenant.policy.shared_nodes.pools.is_empty()
}

fn tolerations(cache: &Cache, source: &Value, issues: &mut FieldIssues) -> Vec<Value> {
    let mut result = vec![json!({
        "key": labels::TENANT, "operator": "Equal", "value": cache.tenant.slug, "effect": "NoExecute"
    })];
    // They are denied beyond that.
    let is_enough = |result: &[Value]| result.len() > MOST_TOLERATIONS;
    let add = |result: &mut Vec<Value>, toleration: Value| {
        if !result.contains(&toleration) {
            result.push(toleration);
        }
    };
    let visible = LazyCell::new(|| visible_taints(cache));
    for (index, toleration) in json::items(source, &["tolerations"]).iter().enumerate() {
        if is_enough(&result) {
            break;
        }
        let known = issues.denied.len();
        let toleration = fields::within(toleration, &format!("spec.tolerations[{index}]"), TOLERATION, issues);
        if issues.denied.len() > known {
            // Without a field it could tolerate more.
            continue;
        }
        match json::filled(&toleration, &["key"]) {
            Some(key) if is_reserved(key) => issues.deny(format!("spec.tolerations[{index}].key"), RESERVED),
            Some(_) => add(&mut result, toleration),
            None => {
                for key in visible.iter() {
                    if is_enough(&result) {
                        break;
                    }
                    let mut one = toleration.clone();
                    json::set(&mut one, &["key"], key.clone());
                    add(&mut result, one);
                }
            }
        }
    }
    result
}

/// Taints that a toleration without key stands for.
fn visible_taints(cache: &Cache) -> BTreeSet<String> {
    let mut keys: BTreeSet<String> = COMMON_TAINTS.iter().map(|key| (*key).to_owned()).collect();
    for (_, node) in cache.stores.host(KindId::Node).all() {
        let visible = node.taints.iter().filter(|taint| !is_reserved(&taint.key));
        keys.extend(visible.map(|taint| taint.key.to_string()));
    }
    keys
}

/// The tenant's Nodes, without those that are none of the platform's: these are deleted, and pods on the host must not change because of them.
fn platform_nodes(cache: &Cache) -> impl Iterator<Item = (Name, Arc<Stored>)> {
    let published = cache.stores.host(KindId::Node);
    let nodes = cache.stores.tenant(KindId::Node).all().into_iter();
    nodes.filter(|(name, _)| published.contains(name))
}

/// Keeps a new pod off nodes that the tenant has cordoned or tainted, unless it tolerates that.
fn avoid_repelling_nodes(cache: &Cache, source: &Value, spec: &mut Map<String, Value>) {
    let tolerates_cordon = Taint::of_cordon().is_tolerated(json::items(source, &["tolerations"]));
    let mut repelling: Vec<Value> = Vec::new();
    for (name, node) in platform_nodes(cache) {
        let repels = || own_taints(cache, &name, &node, source).any(Taint::repels);
        if (node.unschedulable && !tolerates_cordon) || repels() {
            repelling.push(other_than(&name));
        }
    }
    if repelling.is_empty() {
        return;
    }
    repelling.sort_by_key(ToString::to_string);
    let affinity = spec.entry("affinity").or_insert_with(|| json!({}));
    let mut terms = json::items(affinity, &NODE_TERMS).to_vec();
    if terms.is_empty() {
        terms.push(json!({}));
    }
    let mut count = 0;
    for term in &mut terms {
        // They are denied beyond that.
        if count > MOST_NODE_FIELDS {
            break;
        }
        let mut fields = json::items(term, &["matchFields"]).to_vec();
        fields.extend(repelling.iter().cloned());
        count += fields.len();
        json::set(term, &["matchFields"], fields);
    }
    json::set(affinity, &NODE_TERMS, terms);
}

/// Lets a new pod prefer nodes with fewer of the tenant's taints `PreferNoSchedule` that it does not tolerate. The host's scheduler sees
/// only the host's taints, so they become preferences.
fn prefer_other_nodes(cache: &Cache, source: &Value, spec: &mut Map<String, Value>) {
    let mut tainted: Vec<(Name, usize)> = Vec::new();
    for (name, node) in platform_nodes(cache) {
        let count = own_taints(cache, &name, &node, source)
            .filter(|taint| !taint.repels())
            .count();
        if count > 0 {
            tainted.push((name, count));
        }
    }
    let Some(most) = tainted.iter().map(|(_, count)| *count).max() else {
        return;
    };
    if tainted.len() > MOST_AVOIDED {
        return;
    }
    tainted.sort();
    let affinity = spec.entry("affinity").or_insert_with(|| json!({}));
    let mut preferences = json::items(affinity, &NODE_PREFERENCES).to_vec();
    // All nodes but this one: the more taints it has, the more the others gain.
    preferences.extend(tainted.iter().map(|(name, count)| {
        let weight = (HIGHEST_WEIGHT * count / most).max(1);
        json!({"weight": weight, "preference": {"matchFields": [other_than(name)]}})
    }));
    json::set(affinity, &NODE_PREFERENCES, preferences);
}

/// The taints that the tenant gave a Node and that a pod does not tolerate. The host's scheduler sees to the host's taints.
fn own_taints<'a>(
    cache: &Cache,
    name: &Name,
    node: &'a Stored,
    source: &'a Value,
) -> impl Iterator<Item = &'a Taint> + 'a {
    let host = cache.stores.host(KindId::Node).get(name);
    let tolerations = json::items(source, &["tolerations"]);
    node.taints.iter().filter(move |taint| {
        let of_host = host.as_ref().map(|host| &*host.taints).unwrap_or_default();
        node_taints::is_own(taint, of_host) && !taint.is_tolerated(tolerations)
    })
}

/// The requirement that a node is not this one.
fn other_than(name: &Name) -> Value {
    json!({"key": "metadata.name", "operator": "NotIn", "values": [&*name.name]})
}
