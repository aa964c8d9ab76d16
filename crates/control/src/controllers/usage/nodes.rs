//! The nodes that tenants have, and those that have left them, from when until when.

use super::{memory::Facts, modes::RecordedModes};
use berth_api::{HostNodePool, HostNodePoolSpec, NodeMode, labels, quantity};
use berth_node_lifecycle::{Assignment, node::shared_pool_of, recorded_gpus};
use berth_planner::{MAX_NODE_GPUS, NodeState};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use std::{collections::HashMap, sync::Arc};

/// Most [`Proofs`] that are kept.
const MOST_PROOFS: usize = 5_000;

/// A node that a tenant has or had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Held {
    /// Slug of the tenant.
    pub(super) slug: String,
    pub(super) pool: String,
    /// In which mode the tenant has it from now on: that of the node group, or Private if it is kept for the tenant as the minimum of a Dynamic group. None: it is
    /// not known any more.
    pub(super) mode: Option<NodeMode>,
    /// The mode of the node group, also of a node that is kept as the minimum.
    of_group: Option<NodeMode>,
    /// GPUs as quotas count them; 0 in a pool without GPUs.
    pub(super) gpus: i64,
    pub(super) since: Option<Timestamp>,
}

impl Held {
    /// In which mode the tenant had the node up to now: as at the last pass, if it had the node then. A change of a spec and its acceptance wake a pass. A tenant that
    /// goes back and forth between two modes would otherwise always be counted in the one that it has when a pass comes.
    pub(super) fn mode_until_now(&self, before: Option<&Self>) -> Option<NodeMode> {
        let is_same =
            |before: &&Self| before.slug == self.slug && before.pool == self.pool && before.since == self.since;
        let same = before.filter(is_same);
        same.and_then(|before| before.mode).or(self.mode)
    }
}

/// Nodes that had just left their tenants while it was not known what is recorded. They say from when to when their tenants had them until their state changes
/// again, and the controller of nodes does not wait for that.
#[derive(Debug, Default)]
pub(super) struct Proofs(HashMap<Proof, Arc<Node>>);

/// Name of a node, since when it served the tenant that it has left, and until when.
type Proof = (String, String, String);

impl Proofs {
    /// Keeps those of these nodes that have left a tenant.
    pub(super) fn keep(&mut self, nodes: Vec<Arc<Node>>) {
        for node in nodes {
            if self.0.len() >= MOST_PROOFS {
                tracing::warn!(
                    "too many nodes have left their tenants before usage could be recorded: some are not counted"
                );
                return;
            }
            if let Some(proof) = proof_of(&node) {
                self.0.entry(proof).or_insert(node);
            }
        }
    }

    /// Takes those that say what none of these nodes says any more.
    pub(super) fn take_besides(&mut self, nodes: &[Arc<Node>]) -> Vec<Arc<Node>> {
        if self.0.is_empty() {
            return Vec::new();
        }
        for proof in nodes.iter().filter_map(|node| proof_of(node)) {
            self.0.remove(&proof);
        }
        std::mem::take(&mut self.0).into_values().collect()
    }
}

/// What a node says that has just left its tenant.
fn proof_of(node: &Node) -> Option<Proof> {
    let annotations = node.annotations();
    let time = |key: &str| annotations.get(key).cloned();
    let has_left = annotations.contains_key(labels::PREVIOUS_TENANT);
    let until = time(labels::LEFT_AT).or_else(|| time(labels::STATE_SINCE));
    let (since, until) = time(labels::ASSIGNED_SINCE).zip(until)?;
    has_left.then(|| (node.name_any(), since, until))
}

/// All nodes, as far as they matter for usage.
#[derive(Debug, Default)]
pub(super) struct ObservedNodes {
    /// Those that serve a tenant, by name.
    pub(super) held: HashMap<String, Held>,
    /// Those that served one, until when.
    pub(super) left: Vec<(Held, Timestamp)>,
    /// The shared pools of nodes that several tenants use, or of which pods of tenants still have to leave.
    pub(super) shared: HashMap<String, String>,
}

/// What nodes are looked at with.
pub(super) struct Surroundings<'a> {
    pub(super) now: Timestamp,
    /// By slug.
    pub(super) tenants: &'a HashMap<String, Facts>,
    pub(super) pools: &'a HashMap<String, Arc<HostNodePool>>,
    /// The nodes that served a tenant at the last pass.
    pub(super) before: &'a HashMap<String, Held>,
    /// The modes of nodes before the first pass.
    pub(super) modes: &'a RecordedModes,
}

/// Finds the nodes of tenants. A node that has left its tenant says so until its state changes again, and is found each time; one that has not been seen
/// to leave, because it was deleted or freed at once, is taken to have left now.
pub(super) fn observe(nodes: &[Arc<Node>], around: &Surroundings<'_>) -> ObservedNodes {
    let by_uid: HashMap<&str, &str> = { around.tenants.iter() }
        .map(|(slug, tenant)| (tenant.tenant.uid.as_str(), slug.as_str()))
        .collect();
    let mut observed = ObservedNodes::default();
    let mut kept = KeptNodes::default();
    // Of nodes that serve no tenant: when the tenant that they served at the last pass had lost them.
    let mut entered: HashMap<String, Timestamp> = HashMap::new();
    for node in nodes {
        let annotations = node.annotations();
        let name = node.name_any();
        if let Some(pool) = shared_pool_of(node).or_else(|| annotations.get(labels::PREVIOUS_SHARED_POOL)) {
            observed.shared.insert(name.clone(), pool.clone());
        }
        if !annotations.contains_key(labels::OWNER_UID) && !annotations.contains_key(labels::PREVIOUS_TENANT) {
            continue;
        }
        let Some(assignment) = Assignment::read(node) else {
            continue;
        };
        if assignment.state.runs_tenant_pods() {
            if let Some(slug) = by_uid.get(assignment.uid.as_str()) {
                let since = assignment.owned_since.or(assignment.since);
                let held = around.hold(node, &name, &assignment, slug, since);
                kept.add(slug, &assignment, since, &name);
                observed.held.insert(name, held);
            }
            continue;
        }
        let mut changed = assignment.left_at.or(assignment.since);
        if let (Some(since), Some(until)) = (assignment.owned_since, assignment.left_at)
            && around.tenants.contains_key(&assignment.slug)
            && !around.was_held(&name, &assignment.slug, since)
        {
            let held = around.hold(node, &name, &assignment, &assignment.slug, Some(since));
            observed.left.push((held, until));
            // A tenant that had the node before that one had lost it by then.
            changed = Some(since);
        }
        entered.extend(changed.map(|changed| (name, changed)));
    }
    kept.guarantee(around.tenants, &mut observed.held);
    for (name, before) in around.before {
        let now = observed.held.get(name);
        if now.is_some_and(|now| (&now.slug, now.since) == (&before.slug, before.since)) {
            continue;
        }
        let changed = now.and_then(|now| now.since).or_else(|| entered.get(name).copied());
        let until = changed.filter(|at| before.since.is_none_or(|since| *at >= since));
        observed.left.push((before.clone(), until.unwrap_or(around.now)));
    }
    observed
}

/// The nodes that serve tenants and are not about to leave them.
#[derive(Debug, Default)]
struct KeptNodes<'a>(HashMap<KeptBy<'a>, Vec<KeptNode>>);

/// Slug of a tenant, node group and pool.
type KeptBy<'a> = (&'a str, String, String);

/// Since when a node serves its tenant, and its name.
type KeptNode = (Option<Timestamp>, String);

impl<'a> KeptNodes<'a> {
    /// Takes a node that serves a tenant, unless it is leaving it.
    fn add(&mut self, slug: &'a str, assignment: &Assignment, since: Option<Timestamp>, name: &str) {
        if assignment.state.is_kept() {
            let group = (slug, assignment.group.clone(), assignment.pool.clone());
            self.0.entry(group).or_default().push((since, name.to_owned()));
        }
    }

    /// The nodes that a tenant got first are the minimum of their Dynamic group: it keeps as many, used or not, as in a Private group, and prices of the mode Dynamic are
    /// for nodes that it can lose.
    fn guarantee(self, tenants: &HashMap<String, Facts>, held: &mut HashMap<String, Held>) {
        for ((slug, group, pool), mut nodes) in self.0 {
            let minimum = tenants
                .get(slug)
                .map_or(0, |tenant| tenant.minimum_of_group(&group, &pool));
            nodes.sort_unstable();
            for (_, name) in nodes.into_iter().take(minimum) {
                if let Some(node) = held.get_mut(&name).filter(|node| node.mode == Some(NodeMode::Dynamic)) {
                    node.mode = Some(NodeMode::Private);
                }
            }
        }
    }
}

impl Surroundings<'_> {
    /// Whether a node served this tenant since then at the last pass.
    fn was_held(&self, name: &str, slug: &str, since: Timestamp) -> bool {
        let before = self.before.get(name);
        before.is_some_and(|before| before.slug == slug && before.since == Some(since))
    }

    fn hold(&self, node: &Node, name: &str, assignment: &Assignment, slug: &str, since: Option<Timestamp>) -> Held {
        let pool = &assignment.pool;
        let before = self
            .before
            .get(name)
            .filter(|before| before.slug == slug && before.pool == *pool);
        let tenant = self.tenants.get(slug);
        let in_spec = tenant.and_then(|tenant| tenant.mode_of_group(&assignment.group, pool));
        // Prices depend on the mode: one that is only wanted, or is of another group, does not count.
        let accepted = tenant.filter(|tenant| tenant.is_accepted());
        let mode = { in_spec.filter(|_| accepted.is_some()) }
            .or_else(|| before?.of_group)
            .or_else(|| self.modes.find(slug, pool, in_spec))
            .or_else(|| accepted?.mode_of_pool(pool));
        Held {
            slug: slug.to_owned(),
            pool: pool.clone(),
            mode,
            of_group: mode,
            gpus: count_gpus(node, self.pools.get(pool).map(|pool| &pool.spec)),
            since,
        }
    }
}

/// The GPUs of a node that serves a tenant, or has just left it, as quotas count them. 0 in a pool without GPUs.
pub(super) fn count_gpus(node: &Node, pool: Option<&HostNodePoolSpec>) -> i64 {
    let gpus = match pool {
        // It was deleted.
        None => recorded_gpus::recorded_of_any(node),
        Some(pool) => match &pool.gpu_resource_name {
            None => 0,
            Some(resource) => {
                let serving = NodeState::Draining {
                    tenant: String::new(),
                    since: 0,
                };
                let recorded = recorded_gpus::track(node, &serving, resource, 0);
                // They are recorded as soon as it serves its tenant.
                let gpus = if recorded > 0 {
                    recorded
                } else {
                    reported(node, resource)
                };
                let least = pool.gpus_per_assigned_node.map_or(0, u64::from);
                gpus.max(least).clamp(1, MAX_NODE_GPUS)
            }
        },
    };
    i64::try_from(gpus).unwrap_or(i64::MAX)
}

/// What a node reports of a resource.
fn reported(node: &Node, resource: &str) -> u64 {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let amount = allocatable.and_then(|allocatable| quantity::parse(&allocatable.get(resource)?.0));
    amount
        .and_then(|thousandths| u64::try_from(thousandths / 1000).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_planner::{Node as PlannedNode, Pool};
    use serde_json::{Value, json};

    const GPU: &str = "nvidia.com/gpu";

    fn node(recorded: Option<&str>, reported: u64) -> Node {
        let annotations = recorded.map(|recorded| json!({labels::RECORDED_GPUS: recorded}));
        let allocatable = json!({GPU: reported.to_string()});
        let node =
            json!({"metadata": {"name": "n", "annotations": annotations}, "status": {"allocatable": allocatable}});
        serde_json::from_value(node).unwrap()
    }

    fn pool(more: &Value) -> HostNodePoolSpec {
        let mut spec = json!({"nodeSelector": {"pool": "h100"}});
        for (key, value) in more.as_object().unwrap() {
            spec[key] = value.clone();
        }
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn gpus_are_those_that_quotas_count() {
        for (recorded, reported, least) in [
            (None, 8, None),
            (None, 0, None),
            (Some("nvidia.com/gpu=8"), 8, None),
            // It reports less than it has.
            (Some("nvidia.com/gpu=8"), 2, None),
            (Some("nvidia.com/gpu=8"), 8, Some(56_u32)),
            (Some("amd.com/gpu=4"), 8, None),
            (None, u64::from(u32::MAX), None),
        ] {
            let node = node(recorded, reported);
            let spec = pool(&json!({"gpuResourceName": GPU, "gpusPerAssignedNode": least}));
            let serving = NodeState::Draining {
                tenant: "uid".into(),
                since: 0,
            };
            let planned = PlannedNode {
                capacity: [(GPU.to_owned(), reported)].into(),
                recorded_gpus: recorded_gpus::track(&node, &serving, GPU, reported),
                state: serving,
                ..PlannedNode::default()
            };
            let of_quotas = Pool {
                gpu_resource_name: Some(GPU.into()),
                least_gpus: least.map_or(0, u64::from),
                ..Pool::default()
            };
            let expected = i64::try_from(of_quotas.count_gpus(&planned)).unwrap();
            assert_eq!(
                count_gpus(&node, Some(&spec)),
                expected,
                "{recorded:?} {reported} {least:?}"
            );
        }
    }

    #[test]
    fn a_pool_without_gpus_has_none_and_one_that_is_gone_those_that_were_recorded() {
        assert_eq!(count_gpus(&node(None, 8), Some(&pool(&json!({})))), 0);
        assert_eq!(count_gpus(&node(Some("nvidia.com/gpu=8"), 0), None), 8);
        assert_eq!(count_gpus(&node(None, 8), None), 0);
    }
}
