//! The `NodePool` controller: reports what a pool consists of. It changes nothing but the pool's status.

use crate::{
    context::Context,
    error::{ReconcileError, api},
    nodes::{self, NodeRecord, Selectors, State, is_available, is_ready, shared::Standing, step::MIG_CONFIG},
};
use berth_api::{
    NodeCounts, NodePool, NodePoolStatus, Sharing,
    conditions::{self, Finding, HEALTHY, READY},
    labels,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

/// Labels by which GPU operators name the product of a node's GPUs.
const PRODUCT_LABELS: [&str; 3] = [
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "gpu.intel.com/product",
];

/// Writes the pool's status, if it changed.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn reconcile(context: &Context, name: &str) -> Result<Option<Duration>, ReconcileError> {
    let Some(pool) = context.stores.pools.get(&ObjectRef::new(name)) else {
        return Ok(None);
    };
    let before = pool.status.clone().unwrap_or_default();
    let all = context.stores.nodes.state();
    let (found, findings) = if pool.spec.is_shared() {
        let slices = |node: &str| context.stores.slices.of(node).len();
        let (found, finding) = shared(&pool, &context.stores.pools.state(), &all, slices);
        (found, vec![finding])
    } else {
        let slices = |node: &str| context.stores.slices.of(node).into_values().collect();
        let (found, findings) = survey(&pool, &Selectors::of(context), &all, slices);
        (found, findings.into())
    };
    let after = NodePoolStatus {
        observed_generation: pool.metadata.generation,
        conditions: conditions::merge(
            &before.conditions,
            &findings,
            pool.metadata.generation,
            Timestamp::now(),
        ),
        ..found
    };
    if before == after {
        return Ok(None);
    }
    let pools: Api<NodePool> = Api::all(context.client.clone());
    let body = json!({
        "apiVersion": NodePool::api_version(&()), "kind": NodePool::kind(&()),
        "metadata": {"name": name, "uid": pool.uid()}, "status": after,
    });
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    match pools.patch_status(name, &params, &Patch::Apply(&body)).await {
        Ok(_) => Ok(None),
        Err(error) if crate::apply::is_status(&error, 404) || crate::apply::is_status(&error, 409) => Ok(None),
        Err(error) => Err(api("write the status of a pool")(error)),
    }
}

/// What is found out about a pool's nodes.
#[derive(Default)]
struct Found {
    counts: NodeCounts,
    gpus: i64,
    free_gpus: i64,
    products: BTreeSet<String>,
    sharing: BTreeSet<String>,
    drivers: BTreeSet<String>,
    contested: Vec<String>,
    quarantined: Vec<String>,
    /// GPUs on free nodes and whether all nodes are free, by topology domain.
    domains: BTreeMap<String, (i64, bool)>,
}

/// Counts a pool's nodes and judges them. `slices` gives the specs of the `ResourceSlices` of a node.
fn survey(
    pool: &NodePool,
    pools: &Selectors,
    nodes: &[Arc<Node>],
    slices: impl Fn(&str) -> Vec<Value>,
) -> (NodePoolStatus, [Finding; 2]) {
    let mut found = Found::default();
    let name = pool.name_any();
    for node in nodes {
        match pools.pool_of(node.labels()) {
            Ok(Some(pool)) if pool == name => {}
            Err(claimants) if claimants.contains(&name.as_str()) => {
                found
                    .contested
                    .push(format!("{} ({})", node.name_any(), claimants.join(", ")));
                continue;
            }
            _ => continue,
        }
        found.look_at(pool, node, &slices(&node.name_any()));
    }
    found.contested.sort();
    found.quarantined.sort();
    let findings = [judge(pool, &found), health(&found.quarantined)];
    let joined = |all: &BTreeSet<String>| (!all.is_empty()).then(|| all.iter().cloned().collect::<Vec<_>>().join(", "));
    let has_gpus = pool.spec.resource.is_some();
    let status = NodePoolStatus {
        nodes: Some(found.counts),
        gpus: has_gpus.then_some(found.gpus),
        free_gpus: has_gpus.then_some(found.free_gpus),
        fragmentation: pool.spec.topology_key.as_ref().map(|_| found.fragmentation()),
        product: joined(&found.products),
        sharing: joined(&found.sharing),
        driver: joined(&found.drivers),
        ..NodePoolStatus::default()
    };
    (status, findings)
}

impl Found {
    fn look_at(&mut self, pool: &NodePool, node: &Node, slices: &[Value]) {
        let counts = &mut self.counts;
        counts.total += 1;
        let gpus = gpu_count(pool, node);
        let mut is_free = false;
        match NodeRecord::read(node) {
            None if is_available(node) => {
                counts.free += 1;
                is_free = true;
            }
            None => counts.unavailable += 1,
            Some(record) => match record.state {
                State::Reserved | State::Joining => counts.joining += 1,
                State::Assigned | State::Cordoned => counts.assigned += 1,
                State::Draining | State::Scrubbing | State::Validating => counts.returning += 1,
                State::Quarantined => {
                    counts.quarantined += 1;
                    self.quarantined.push(format!("{}: {}", node.name_any(), record.reason));
                }
            },
        }
        self.gpus += gpus;
        if is_free {
            self.free_gpus += gpus;
        }
        if let Some(key) = &pool.spec.topology_key {
            let domain = node.labels().get(key).cloned().unwrap_or_default();
            let (free, is_whole) = self.domains.entry(domain).or_insert((0, true));
            *free += if is_free { gpus } else { 0 };
            *is_whole &= is_free;
        }
        let label = |key: &str| node.labels().get(key).cloned();
        let attribute = |name: &str| -> Vec<String> {
            let devices = slices
                .iter()
                .flat_map(|slice| slice["devices"].as_array().into_iter().flatten());
            let of_device = |device: &Value| {
                let value = &device["attributes"][name];
                let text = value["string"].as_str().or_else(|| value["version"].as_str());
                text.map(str::to_owned)
            };
            devices.filter_map(of_device).collect()
        };
        match PRODUCT_LABELS.iter().find_map(|key| label(key)) {
            Some(product) => self.products.extend([product]),
            None => self.products.extend(attribute("productName")),
        }
        match label("nvidia.com/cuda.driver-version.full") {
            Some(driver) => self.drivers.extend([driver]),
            None => self.drivers.extend(attribute("driverVersion")),
        }
        self.sharing.extend(sharing(node, !slices.is_empty(), gpus));
    }

    /// Percent of the free GPUs that are in domains which are not free as a whole.
    fn fragmentation(&self) -> i64 {
        if self.free_gpus == 0 {
            return 0;
        }
        let broken: i64 = self
            .domains
            .values()
            .filter(|(_, is_whole)| !is_whole)
            .map(|(free, _)| free)
            .sum();
        broken * 100 / self.free_gpus
    }
}

/// How a node's GPUs are shared, as NVIDIA's labels and the kinds of its devices say.
fn sharing(node: &Node, has_slices: bool, gpus: i64) -> Option<String> {
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    let found = match label("nvidia.com/gpu.sharing-strategy") {
        Some("time-slicing") => Sharing::TimeSlicing,
        Some("mps") => Sharing::Mps,
        _ if label(MIG_CONFIG).is_some_and(|layout| layout != "all-disabled")
            || label("nvidia.com/gpu.product").is_some_and(|product| product.contains("-MIG-")) =>
        {
            Sharing::Mig
        }
        _ if has_slices && gpus == 0 => Sharing::Dra,
        _ if gpus > 0 => Sharing::Exclusive,
        _ => return None,
    };
    Some(found.name().to_owned())
}

/// Whether all nodes can be handed on.
fn health(quarantined: &[String]) -> Finding {
    if quarantined.is_empty() {
        return Finding::yes(HEALTHY, "NoQuarantine", "no node is quarantined");
    }
    Finding::no(
        HEALTHY,
        "Quarantined",
        format!(
            "{}; look at each, then: kubectl annotate node NAME {}=yes",
            quarantined.join("; "),
            labels::RELEASE_QUARANTINE
        ),
    )
}

/// Counts a shared pool's nodes and says which are not shared and why.
fn shared(
    pool: &NodePool,
    pools: &[Arc<NodePool>],
    nodes: &[Arc<Node>],
    slices: impl Fn(&str) -> usize,
) -> (NodePoolStatus, Finding) {
    let mut counts = NodeCounts::default();
    let mut refused = Vec::new();
    let mut contested = Vec::new();
    for node in nodes.iter().filter(|node| pool.spec.selects(node.labels())) {
        let name = node.name_any();
        match nodes::shared::standing(node, pools, slices(&name)) {
            Standing::Elsewhere => {
                contested.push(name);
                continue;
            }
            Standing::Refused(_, why) => {
                counts.unavailable += 1;
                refused.push(format!("{name} ({why})"));
            }
            Standing::Shared(_) | Standing::Joins(_) if is_ready(node) => counts.assigned += 1,
            Standing::Shared(_) | Standing::Joins(_) => counts.unavailable += 1,
        }
        counts.total += 1;
    }
    refused.sort();
    contested.sort();
    let finding = if refused.is_empty() {
        let found = Found {
            counts,
            contested,
            ..Found::default()
        };
        match judge(pool, &found) {
            finding if finding.is_true() => Finding::yes(
                READY,
                "Ready",
                format!("tenants share {} of {} nodes", counts.assigned, counts.total),
            ),
            finding => finding,
        }
    } else {
        Finding::no(
            READY,
            "NodesRefused",
            format!(
                "these nodes are not shared: {}; make the nodeSelector exclude them",
                refused.join("; ")
            ),
        )
    };
    let status = NodePoolStatus {
        nodes: Some(counts),
        ..NodePoolStatus::default()
    };
    (status, finding)
}

fn gpu_count(pool: &NodePool, node: &Node) -> i64 {
    let Some(resource) = &pool.spec.resource else { return 0 };
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable
        .and_then(|all| all.get(resource))
        .and_then(|quantity| quantity.0.parse().ok())
        .unwrap_or_default()
}

fn judge(pool: &NodePool, found: &Found) -> Finding {
    let Found {
        counts,
        products,
        contested,
        sharing,
        ..
    } = found;
    if !contested.is_empty() {
        return Finding::no(
            READY,
            "OverlappingPools",
            format!(
                "these nodes match several pools and are given to nobody: {}; make the nodeSelectors exclude each other",
                contested.join("; ")
            ),
        );
    }
    if counts.total == 0 {
        return Finding::no(READY, "NoNodes", "no node carries the labels of spec.nodeSelector");
    }
    if products.len() > 1 {
        let products: Vec<&str> = products.iter().map(String::as_str).collect();
        return Finding::no(
            READY,
            "MixedProducts",
            format!(
                "a pool holds one GPU product; add a label to spec.nodeSelector that tells these apart: {}",
                products.join(", ")
            ),
        );
    }
    let asked = pool.spec.sharing.name();
    if pool.spec.mig_config.is_none() && sharing.iter().any(|found| found != asked) {
        let found: Vec<&str> = sharing.iter().map(String::as_str).collect();
        return Finding::no(
            READY,
            "OtherSharing",
            format!(
                "spec.sharing is {asked} and the nodes' labels say {}; set one to what the other is",
                found.join(", ")
            ),
        );
    }
    Finding::yes(
        READY,
        "Ready",
        format!("{} of {} nodes are free", counts.free, counts.total),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::NodePoolSpec;

    fn pool(name: &str, label: (&str, &str)) -> NodePool {
        NodePool::new(
            name,
            NodePoolSpec {
                node_selector: BTreeMap::from([(label.0.into(), label.1.into())]),
                resource: Some("nvidia.com/gpu".into()),
                ..NodePoolSpec::default()
            },
        )
    }

    fn node(name: &str, product: &str, owner: Option<&str>) -> Arc<Node> {
        let mut labels = json!({"nvidia.com/gpu.product": product, "gpu": "yes"});
        if let Some(owner) = owner {
            labels["berth.dev/tenant"] = owner.into();
            labels["berth.dev/state"] = "Assigned".into();
        }
        let annotations = owner.map(|uid| json!({"berth.dev/owner-uid": uid}));
        let node = json!({
            "metadata": {"name": name, "labels": labels, "annotations": annotations},
            "status": {
                "allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn none(_: &str) -> Vec<Value> {
        Vec::new()
    }

    fn selectors(pools: &[&NodePool]) -> Selectors {
        Selectors::new(
            pools
                .iter()
                .map(|pool| (pool.name_any(), pool.spec.node_selector.clone())),
        )
    }

    #[test]
    fn nodes_and_gpus_are_counted() {
        let h100 = pool("h100", ("nvidia.com/gpu.product", "H100"));
        let nodes = [
            node("n1", "H100", None),
            node("n2", "H100", Some("t")),
            node("n3", "L40S", None),
        ];
        let (status, [finding, health]) = survey(&h100, &selectors(&[&h100]), &nodes, none);
        assert_eq!(
            status.nodes,
            Some(NodeCounts {
                total: 2,
                free: 1,
                assigned: 1,
                ..NodeCounts::default()
            })
        );
        assert_eq!((status.gpus, status.product.as_deref()), (Some(16), Some("H100")));
        assert_eq!(finding, Finding::yes(READY, "Ready", "1 of 2 nodes are free"));
        assert!(health.is_true());
        assert_eq!(
            (status.free_gpus, status.sharing.as_deref()),
            (Some(8), Some("exclusive"))
        );
    }

    #[test]
    fn overlap_emptiness_and_mixture_are_told() {
        let (h100, all) = (
            pool("h100", ("nvidia.com/gpu.product", "H100")),
            pool("all", ("gpu", "yes")),
        );
        let nodes = [node("n1", "H100", None), node("n2", "L40S", None)];
        let (status, [finding, _]) = survey(&h100, &selectors(&[&h100, &all]), &nodes, none);
        assert_eq!((finding.reason, status.nodes.unwrap().total), ("OverlappingPools", 0));
        let (_, [finding, _]) = survey(&all, &selectors(&[&all]), &nodes, none);
        assert_eq!(finding.reason, "MixedProducts");
        let empty = pool("none", ("nvidia.com/gpu.product", "B200"));
        assert_eq!(
            survey(&empty, &selectors(&[&empty]), &nodes, none).1[0].reason,
            "NoNodes"
        );
    }

    #[test]
    fn domains_that_are_broken_up_count_as_fragments_and_quarantine_is_told() {
        let mut h100 = pool("h100", ("gpu", "yes"));
        h100.spec.topology_key = Some("rack".into());
        let in_rack = |mut node: Arc<Node>, rack: &str| {
            Arc::make_mut(&mut node).labels_mut().insert("rack".into(), rack.into());
            node
        };
        let mut ill = node("n5", "H100", None);
        let annotations = Arc::make_mut(&mut ill).annotations_mut();
        annotations.insert("berth.dev/state".into(), "Quarantined".into());
        annotations.insert("berth.dev/reason".into(), "cleaning failed".into());
        let nodes = [
            in_rack(node("n1", "H100", None), "a"),
            in_rack(node("n2", "H100", None), "a"),
            in_rack(node("n3", "H100", None), "b"),
            in_rack(node("n4", "H100", Some("t")), "b"),
            in_rack(ill, "c"),
        ];
        let (status, [_, health]) = survey(&h100, &selectors(&[&h100]), &nodes, none);
        assert_eq!((status.free_gpus, status.fragmentation), (Some(24), Some(33)));
        let counts = status.nodes.unwrap();
        assert_eq!((counts.free, counts.assigned, counts.quarantined), (3, 1, 1));
        assert!(health.message.starts_with("n5: cleaning failed"), "{}", health.message);
    }

    #[test]
    fn devices_tell_product_and_driver_where_labels_do_not() {
        let mut dra = pool("dra", ("gpu", "yes"));
        dra.spec.resource = None;
        let mut node = node("n1", "", None);
        Arc::make_mut(&mut node).labels_mut().remove("nvidia.com/gpu.product");
        let slices = |_: &str| {
            vec![json!({"devices": [{"attributes": {
                "productName": {"string": "NVIDIA B200"}, "driverVersion": {"version": "580.95.5"},
            }}]})]
        };
        let (status, _) = survey(&dra, &selectors(&[&dra]), &[node], slices);
        assert_eq!(status.product.as_deref(), Some("NVIDIA B200"));
        assert_eq!(status.driver.as_deref(), Some("580.95.5"));
        assert_eq!(status.sharing.as_deref(), Some("dra"));
    }

    #[test]
    fn a_shared_pool_says_which_nodes_it_refuses() {
        let mut cpu = pool("cpu", ("gpu", "yes"));
        (cpu.spec.modes, cpu.spec.resource) = (vec![berth_api::NodeMode::Shared], None);
        let pools = [Arc::new(cpu.clone())];
        let mut plain = node("n1", "", None).as_ref().clone();
        plain.labels_mut().remove("nvidia.com/gpu.product");
        plain.status.as_mut().unwrap().allocatable = None;
        let plain = Arc::new(plain);
        let (status, finding) = shared(&cpu, &pools, &[Arc::clone(&plain)], |_| 0);
        assert_eq!(finding, Finding::yes(READY, "Ready", "tenants share 1 of 1 nodes"));
        assert_eq!(status.nodes.unwrap().assigned, 1);
        let (status, finding) = shared(&cpu, &pools, &[plain, node("n2", "H100", None)], |_| 0);
        assert_eq!((finding.reason, status.nodes.unwrap().unavailable), ("NodesRefused", 1));
        assert!(
            finding.message.contains("n2 (it has the resource nvidia.com/gpu)"),
            "{}",
            finding.message
        );
    }
}
