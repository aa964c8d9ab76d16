//! The `NodePool` controller: reports what a pool consists of. It changes nothing but the pool's status.

use crate::{
    context::Context,
    error::{ReconcileError, api},
    nodes::{self, NodeRecord, is_available, is_ready, planner, shared::Standing},
};
use berth_api::{
    NodeCounts, NodePool, NodePoolStatus,
    conditions::{self, Finding, READY},
    labels,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

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
    let (found, finding) = if pool.spec.is_shared() {
        let slices = |node: &str| context.stores.slices.of(node).len();
        shared(&pool, &context.stores.pools.state(), &all, slices)
    } else {
        survey(&pool, &nodes::pools(context), &all)
    };
    let after = NodePoolStatus {
        observed_generation: pool.metadata.generation,
        conditions: conditions::merge(
            &before.conditions,
            &[finding],
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

/// Counts a pool's nodes and judges them.
fn survey(pool: &NodePool, pools: &[planner::Pool], nodes: &[Arc<Node>]) -> (NodePoolStatus, Finding) {
    let mut counts = NodeCounts::default();
    let mut gpus = 0_i64;
    let mut products = BTreeSet::new();
    let mut contested = Vec::new();
    let name = pool.name_any();
    for node in nodes {
        match planner::pool_of(pools, node.labels()) {
            Ok(Some(index)) if pools[index].name == name => {}
            Err(claimants) if claimants.contains(&name) => {
                contested.push(format!("{} ({})", node.name_any(), claimants.join(", ")));
                continue;
            }
            _ => continue,
        }
        counts.total += 1;
        if NodeRecord::read(node).is_some() {
            counts.assigned += 1;
        } else if is_available(node) {
            counts.free += 1;
        } else {
            counts.unavailable += 1;
        }
        gpus += gpu_count(pool, node);
        products.extend(
            PRODUCT_LABELS
                .iter()
                .find_map(|label| node.labels().get(*label).cloned()),
        );
    }
    contested.sort();
    let finding = judge(counts, &products, &contested);
    let status = NodePoolStatus {
        nodes: Some(counts),
        gpus: pool.spec.resource.as_ref().map(|_| gpus),
        product: (!products.is_empty()).then(|| products.into_iter().collect::<Vec<_>>().join(", ")),
        ..NodePoolStatus::default()
    };
    (status, finding)
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
        match judge(counts, &BTreeSet::new(), &contested) {
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

fn judge(counts: NodeCounts, products: &BTreeSet<String>, contested: &[String]) -> Finding {
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
    use std::collections::BTreeMap;

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
        }
        let node = json!({
            "metadata": {"name": name, "labels": labels},
            "status": {
                "allocatable": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}],
            },
        });
        Arc::new(serde_json::from_value(node).unwrap())
    }

    fn planner_pools(pools: &[&NodePool]) -> Vec<planner::Pool> {
        pools
            .iter()
            .map(|pool| planner::Pool {
                name: pool.name_any(),
                selector: pool.spec.node_selector.clone(),
                topology_key: None,
            })
            .collect()
    }

    #[test]
    fn nodes_and_gpus_are_counted() {
        let h100 = pool("h100", ("nvidia.com/gpu.product", "H100"));
        let nodes = [
            node("n1", "H100", None),
            node("n2", "H100", Some("t")),
            node("n3", "L40S", None),
        ];
        let (status, finding) = survey(&h100, &planner_pools(&[&h100]), &nodes);
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
    }

    #[test]
    fn overlap_emptiness_and_mixture_are_told() {
        let (h100, all) = (
            pool("h100", ("nvidia.com/gpu.product", "H100")),
            pool("all", ("gpu", "yes")),
        );
        let nodes = [node("n1", "H100", None), node("n2", "L40S", None)];
        let (status, finding) = survey(&h100, &planner_pools(&[&h100, &all]), &nodes);
        assert_eq!((finding.reason, status.nodes.unwrap().total), ("OverlappingPools", 0));
        let (_, finding) = survey(&all, &planner_pools(&[&all]), &nodes);
        assert_eq!(finding.reason, "MixedProducts");
        let none = pool("none", ("nvidia.com/gpu.product", "B200"));
        assert_eq!(survey(&none, &planner_pools(&[&none]), &nodes).1.reason, "NoNodes");
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
