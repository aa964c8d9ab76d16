//! The placeholders that a plan requires.

use berth_api::{HostNodePool, labels, names, system};
use berth_node_lifecycle::demand::{
    ANTI_AFFINITY_PREFIX, DRA_PREFIX, NodeRules, SPREAD_PREFIX, TenantDemand, is_device,
};
use berth_planner::{Amounts, Plan, Shortage};
use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, Pod};
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// Label that names one node: another node does not help a pod that selects it.
const HOST_NAME: &str = "kubernetes.io/hostname";
/// Annotation of pods that do not keep Cluster Autoscaler from removing their node.
const SAFE_TO_EVICT: &str = "cluster-autoscaler.kubernetes.io/safe-to-evict";
/// Longest part of a pool's name in the names of pods.
const POOL_IN_NAME: usize = 40;

/// Settings of placeholders.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Image of a program that does nothing.
    pub image: String,
    /// Secrets in Berth's namespace to pull it with.
    pub pull_secrets: Vec<String>,
}

/// Placeholders that are alike.
#[derive(Clone, Debug)]
pub struct PlaceholderSet {
    /// The pool.
    pub pool: String,
    /// Identifies the set.
    pub kind: String,
    /// How many.
    pub count: u32,
    /// Each of them, but for its name.
    pub template: Pod,
}

impl PlaceholderSet {
    /// The name of one of them.
    pub fn name(&self, number: u32) -> String {
        let pool: String = self.pool.chars().take(POOL_IN_NAME).collect();
        format!("{pool}-{}-{number}", self.kind)
    }

    /// One of them.
    pub fn pod(&self, name: &str) -> Pod {
        let mut pod = self.template.clone();
        pod.metadata.name = Some(name.into());
        pod
    }
}

/// Builds the placeholders that a plan requires. `slugs` are those of tenants by UID.
pub fn build_placeholder_sets(
    settings: &Settings,
    pools: &[Arc<HostNodePool>],
    slugs: &BTreeMap<String, String>,
    plan: &Plan,
    demand: &TenantDemand,
) -> Vec<PlaceholderSet> {
    let mut all: BTreeMap<String, PlaceholderSet> = BTreeMap::new();
    for (name, scale_up) in &plan.scale_ups {
        let Some(pool) = pools.iter().find(|pool| pool.name_any() == *name) else {
            continue;
        };
        if pool.spec.autoscaling.is_none() || pool.metadata.deletion_timestamp.is_some() {
            continue;
        }
        for shortage in &scale_up.shortages {
            let Some(slug) = slugs.get(&shortage.tenant) else {
                continue;
            };
            for set in sets_for_shortage(settings, pool, slug, shortage, demand) {
                let count = set.count;
                let known = all
                    .entry(set.kind.clone())
                    .or_insert(PlaceholderSet { count: 0, ..set });
                known.count = known.count.saturating_add(count);
            }
        }
    }
    all.into_values().collect()
}

fn sets_for_shortage(
    settings: &Settings,
    pool: &HostNodePool,
    slug: &str,
    shortage: &Shortage,
    demand: &TenantDemand,
) -> Vec<PlaceholderSet> {
    let (mut selector, mut affinities) = (pool.spec.node_selector.clone(), Vec::new());
    for (key, value) in &shortage.selector {
        match demand.affinities.get(key) {
            Some((rules, group)) => affinities.push(terms_on_free_node(rules, group, &pool.name_any())),
            None => drop(selector.insert(key.clone(), value.clone())),
        }
    }
    let terms = combine_on_free_nodes(affinities);
    let mut resources = shortage.pod_sets.iter().flat_map(|pods| pods.requests.keys());
    // A placeholder would need a claim like the tenant's; without a claim it requests no devices.
    if resources.any(|resource| resource.starts_with(DRA_PREFIX)) {
        return Vec::new();
    }
    if selector.contains_key(HOST_NAME) || terms.is_empty() {
        return Vec::new();
    }
    let placement = Placement {
        pool,
        slug,
        shortage,
        selector,
        terms,
        owner: names::hash(&["placeholder", &shortage.tenant, &shortage.node_group]),
    };
    let pods = shortage.pod_sets.iter();
    pods.map(|pods| {
        let mut template = placement.pod(settings, &pods.requests, "");
        let gang = if shortage.gang { shortage.name.as_str() } else { "" };
        let spec = serde_json::to_string(&template["spec"]).unwrap_or_default();
        let kind = names::hash(&[&pool.name_any(), &placement.owner, gang, &spec]);
        template = placement.pod(settings, &pods.requests, &kind);
        PlaceholderSet {
            pool: pool.name_any(),
            kind,
            count: pods.count,
            template: serde_json::from_value(template).unwrap_or_default(),
        }
    })
    .collect()
}

/// The terms of a required affinity for a free node, which has no label of a pool or group yet: requirements that every node of
/// the group satisfies are left out, and so are terms that no node of the group satisfies.
fn terms_on_free_node(rules: &NodeRules, group: &str, pool: &str) -> Vec<NodeSelectorTerm> {
    let known = |key: &str| match key {
        labels::POOL => Some(pool),
        labels::NODE_GROUP => Some(group),
        _ => None,
    };
    let terms = rules.terms.iter().filter_map(|term| {
        let expressions = term.match_expressions.as_deref().unwrap_or_default();
        let (ours, others): (Vec<_>, Vec<_>) = expressions.iter().cloned().partition(|one| known(&one.key).is_some());
        let holds = ours.is_empty()
            || NodeRules {
                terms: vec![NodeSelectorTerm {
                    match_expressions: Some(ours),
                    match_fields: None,
                }],
                ..NodeRules::default()
            }
            .allow("", known);
        holds.then(|| NodeSelectorTerm {
            match_expressions: Some(others),
            match_fields: term.match_fields.clone(),
        })
    });
    terms.collect()
}

/// All of these affinities combined, on free nodes only.
fn combine_on_free_nodes(affinities: Vec<Vec<NodeSelectorTerm>>) -> Vec<NodeSelectorTerm> {
    let free = [labels::NODE_STATE, labels::TENANT, labels::SHARED_POOL].map(|key| NodeSelectorRequirement {
        key: key.into(),
        operator: "DoesNotExist".into(),
        values: None,
    });
    let free = NodeSelectorTerm {
        match_expressions: Some(free.into()),
        match_fields: None,
    };
    affinities.into_iter().fold(vec![free], |so_far, affinity| {
        let both = |a: &NodeSelectorTerm| {
            let with = |b: &NodeSelectorTerm| {
                let mut joined = a.clone();
                let (expressions, fields) = (b.match_expressions.clone(), b.match_fields.clone());
                joined
                    .match_expressions
                    .get_or_insert_default()
                    .extend(expressions.into_iter().flatten());
                let fields: Vec<_> = joined.match_fields.into_iter().chain(fields).flatten().collect();
                joined.match_fields = (!fields.is_empty()).then_some(fields);
                joined
            };
            affinity.iter().map(with).collect::<Vec<_>>()
        };
        so_far.iter().flat_map(both).collect()
    })
}

/// Where the placeholders of a shortage may run.
struct Placement<'a> {
    pool: &'a HostNodePool,
    slug: &'a str,
    shortage: &'a Shortage,
    selector: BTreeMap<String, String>,
    terms: Vec<NodeSelectorTerm>,
    owner: String,
}

impl Placement<'_> {
    fn pod(&self, settings: &Settings, each: &Amounts, kind: &str) -> Value {
        let pool = self.pool.name_any();
        let secrets = settings.pull_secrets.iter().map(|name| json!({"name": name}));
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "namespace": system::NAMESPACE,
                "labels": {
                    labels::PLACEHOLDER: pool,
                    labels::PLACEHOLDER_OWNER: self.owner,
                    labels::PLACEHOLDER_KIND: kind,
                    labels::PLACEHOLDER_TENANT: self.slug,
                    "app.kubernetes.io/name": "berth-placeholder", "app.kubernetes.io/part-of": "berth",
                },
                "annotations": {SAFE_TO_EVICT: "true", labels::PLACEHOLDER_DEMAND: self.shortage.name},
            },
            "spec": {
                "priorityClassName": system::PLACEHOLDER_PRIORITY_CLASS,
                "nodeSelector": self.selector,
                "affinity": self.affinity(each, kind),
                "tolerations": self.tolerations(),
                "terminationGracePeriodSeconds": 0,
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "imagePullSecrets": secrets.collect::<Vec<_>>(),
                "securityContext": {
                    "runAsNonRoot": true, "runAsUser": 65535, "runAsGroup": 65535,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [{
                    "name": "placeholder", "image": settings.image,
                    "resources": container_resources(each),
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
                        "capabilities": {"drop": ["ALL"]},
                    },
                }],
            },
        })
    }

    fn affinity(&self, each: &Amounts, kind: &str) -> Value {
        // A node belongs to one group only.
        let mut apart = vec![json!({
            "topologyKey": HOST_NAME,
            "labelSelector": {"matchExpressions": [
                {"key": labels::PLACEHOLDER, "operator": "Exists"},
                {"key": labels::PLACEHOLDER_OWNER, "operator": "NotIn", "values": [self.owner]},
            ]},
        })];
        let alike = json!({"matchLabels": {labels::PLACEHOLDER_KIND: kind}});
        if self.shortage.whole_nodes || each.keys().any(|resource| resource.starts_with(ANTI_AFFINITY_PREFIX)) {
            apart.push(json!({"topologyKey": HOST_NAME, "labelSelector": alike}));
        }
        let mut affinity = json!({
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": self.terms}},
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart},
        });
        if let Some(key) = self
            .pool
            .spec
            .topology_key
            .as_ref()
            .filter(|_| self.shortage.single_domain)
        {
            affinity["podAffinity"] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": key, "labelSelector": alike},
            ]});
        }
        affinity
    }

    /// Tolerates taints that the pool's nodes keep. Never Berth's own: a placeholder leaves a node that a tenant gets.
    fn tolerations(&self) -> Vec<Value> {
        let named = self
            .pool
            .spec
            .autoscaling
            .iter()
            .flat_map(|spec| &spec.tolerated_taints);
        let mut keys: Vec<&String> = self.pool.spec.gpu_resource_name.iter().chain(named).collect();
        keys.sort();
        keys.dedup();
        keys.iter()
            .map(|key| json!({"key": key, "operator": "Exists"}))
            .collect()
    }
}

/// The resources of a container that requests these amounts.
fn container_resources(each: &Amounts) -> Value {
    const MEBI: &str = "MiB ";
    let (mut requests, mut limits) = (Map::new(), Map::new());
    for (name, amount) in each {
        if name == "pods" || name.starts_with(ANTI_AFFINITY_PREFIX) || name.starts_with(SPREAD_PREFIX) {
            continue;
        }
        let (resource, quantity) = match name.strip_prefix(MEBI) {
            Some(resource) => (resource, format!("{amount}Mi")),
            None if name == "millicpu" => ("cpu", format!("{amount}m")),
            None => (name.as_str(), amount.to_string()),
        };
        // Kubernetes does not overcommit these resources: they need limits equal to the requests.
        if is_device(resource) || resource.starts_with("hugepages-") {
            limits.insert(resource.into(), quantity.clone().into());
        }
        requests.insert(resource.into(), quantity.into());
    }
    json!({"requests": requests, "limits": limits})
}

#[cfg(test)]
#[path = "build_tests.rs"]
mod tests;
