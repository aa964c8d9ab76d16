//! Whether the platform's DaemonSets stay on nodes that are assigned to tenants. Pure.

use std::collections::BTreeMap;

use berth_api::{NodeMode, labels};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration};
use kube::ResourceExt;

use super::CheckResult;
use super::cluster::join_some;
use super::facts::Facts;
use super::network::{AWS, ENFORCING, NOT_ENFORCING};
use crate::node;

const CHECK: &str = "tolerations";
/// Parts of the names of DaemonSets without which a node of a tenant has no GPUs, volumes or Services.
const NEEDED_PARTS: [&str; 7] = ["nvidia", "gpu", "device-plugin", "dra-", "csi", "rdma", "kube-proxy"];
/// What the names of resources that count GPUs end with.
const GPU_RESOURCE: &str = "/gpu";

pub(super) fn check(facts: &Facts) -> Vec<CheckResult> {
    let (sets, nodes, pools) = match (&facts.daemon_sets, &facts.nodes, &facts.pools) {
        (Ok(sets), Ok(nodes), Ok(pools)) => (sets, nodes, pools),
        (Err(error), _, _) | (_, Err(error), _) | (_, _, Err(error)) => {
            return vec![CheckResult::unknown(CHECK, error)];
        }
    };
    // Shared nodes have no tenant.
    let pools: Vec<_> = pools
        .iter()
        .filter(|pool| pool.spec.modes.iter().any(|mode| *mode != NodeMode::Shared))
        .collect();
    let of_tenants: Vec<&Node> = nodes
        .iter()
        .filter(|found| has_gpus(found) || pools.iter().any(|pool| node::is_selected_by(found, pool)))
        .collect();
    let leaving = sets.iter().filter(|set| {
        let pod = set.spec.template.spec.as_ref();
        pod.is_some_and(|pod| !tolerates_tenants(pod) && of_tenants.iter().any(|node| selects(pod, node)))
    });
    let (needed, others): (Vec<&DaemonSet>, Vec<&DaemonSet>) = leaving.partition(|set| is_needed(&set.name_any()));
    if needed.is_empty() && others.is_empty() {
        return vec![CheckResult::ok(CHECK, "all DaemonSets stay on nodes of tenants")];
    }
    let fix = format!(
        "add the toleration {{key: {}, operator: Exists}} (docs/guides/install.md#daemonsets-of-the-platform)",
        labels::TENANT
    );
    let describe = |sets: &[&DaemonSet], what: &str| {
        let names = sets
            .iter()
            .map(|set| format!("{}/{}", set.namespace().unwrap_or_default(), set.name_any()));
        let names = join_some(&names.collect::<Vec<_>>());
        format!(
            "{what} do not tolerate the taint {}, and leave a node that gets a tenant: {names}",
            labels::TENANT
        )
    };
    let mut results = Vec::new();
    if !needed.is_empty() {
        let message = describe(&needed, "DaemonSets that nodes of tenants need");
        results.push(CheckResult::problem(CHECK, message, fix.clone()));
    }
    if !others.is_empty() {
        results.push(CheckResult::warning(CHECK, describe(&others, "DaemonSets"), fix));
    }
    results
}

/// Whether a node has GPUs, by whatever resource. Before there are pools, these nodes are the ones to look at.
fn has_gpus(node: &Node) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable.is_some_and(|all| all.keys().any(|resource| resource.ends_with(GPU_RESOURCE)))
}

fn is_needed(name: &str) -> bool {
    let mut networks = ENFORCING.iter().chain(&NOT_ENFORCING).chain([&AWS]);
    networks.any(|known| *known == name) || NEEDED_PARTS.iter().any(|part| name.contains(part))
}

/// Whether the pod stays on the nodes of every tenant: the value of the taint is the tenant's.
fn tolerates_tenants(pod: &PodSpec) -> bool {
    let mut all = pod.tolerations.iter().flatten();
    // Kubernetes takes the first that matches.
    let first = all.find(|toleration| {
        let Toleration {
            key, operator, effect, ..
        } = toleration;
        let is_of_key = key.as_deref().is_none_or(|key| key.is_empty() || key == labels::TENANT);
        let is_of_effect = effect
            .as_deref()
            .is_none_or(|effect| effect.is_empty() || effect == "NoExecute");
        is_of_key && is_of_effect && operator.as_deref() == Some("Exists")
    });
    first.is_some_and(|toleration| toleration.toleration_seconds.is_none())
}

/// Whether a pod may run on a node, by its selector and the affinity that it requires.
fn selects(pod: &PodSpec, node: &Node) -> bool {
    let labels = node.labels();
    let mut selector = pod.node_selector.iter().flatten();
    if !selector.all(|(key, value)| labels.get(key) == Some(value)) {
        return false;
    }
    let affinity = pod
        .affinity
        .as_ref()
        .and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    required.is_none_or(|required| required.node_selector_terms.iter().any(|term| matches(term, labels)))
}

/// Whether the labels may match a term. What is not about labels, or compares numbers, counts as met.
fn matches(term: &NodeSelectorTerm, labels: &BTreeMap<String, String>) -> bool {
    let mut all = term.match_expressions.iter().flatten();
    all.all(|NodeSelectorRequirement { key, operator, values }| {
        let label = labels.get(key);
        let is_listed = label.is_some_and(|label| values.iter().flatten().any(|value| value == label));
        match operator.as_str() {
            "In" => is_listed,
            "NotIn" => !is_listed,
            "Exists" => label.is_some(),
            "DoesNotExist" => label.is_none(),
            _ => true,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(spec: Value) -> PodSpec {
        let mut spec = spec;
        spec["containers"] = json!([]);
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn only_a_toleration_for_every_tenant_keeps_pods_on_nodes() {
        let tolerates = |toleration: Value| tolerates_tenants(&pod(json!({"tolerations": [toleration]})));
        for enough in [
            json!({"operator": "Exists"}),
            json!({"key": "berth.dev/tenant", "operator": "Exists"}),
            json!({"key": "berth.dev/tenant", "operator": "Exists", "effect": "NoExecute"}),
        ] {
            assert!(tolerates(enough.clone()), "{enough}");
        }
        for less in [
            json!({"key": "nvidia.com/gpu", "operator": "Exists"}),
            json!({"key": "berth.dev/tenant", "value": "vision"}),
            json!({"operator": "Exists", "effect": "NoSchedule"}),
            json!({"operator": "Exists", "tolerationSeconds": 60}),
        ] {
            assert!(!tolerates(less.clone()), "{less}");
        }
        assert!(!tolerates_tenants(&pod(json!({}))));
        let first_for_a_time = [
            json!({"operator": "Exists", "tolerationSeconds": 60}),
            json!({"operator": "Exists"}),
        ];
        assert!(!tolerates_tenants(&pod(json!({"tolerations": first_for_a_time}))));
    }

    #[test]
    fn daemon_sets_of_other_nodes_do_not_matter() {
        let node: Node =
            serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"gpu": "h100", "zone": "a"}}})).unwrap();
        let with_affinity = |key: &str, operator: &str, values: Value| {
            let term = json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]});
            pod(
                json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}}),
            )
        };
        for spec in [
            pod(json!({})),
            pod(json!({"nodeSelector": {"gpu": "h100"}})),
            with_affinity("zone", "In", json!(["a", "b"])),
            with_affinity("fargate", "NotIn", json!(["yes"])),
            with_affinity("gpu", "Exists", json!([])),
        ] {
            assert!(selects(&spec, &node), "{spec:?}");
        }
        for spec in [
            pod(json!({"nodeSelector": {"role": "edge"}})),
            with_affinity("zone", "In", json!(["b"])),
            with_affinity("gpu", "DoesNotExist", json!([])),
        ] {
            assert!(!selects(&spec, &node), "{spec:?}");
        }
    }

    #[test]
    fn what_gives_gpus_network_and_volumes_is_needed() {
        for name in [
            "nvidia-device-plugin-daemonset",
            "calico-node",
            "aws-node",
            "ebs-csi-node",
            "kube-flannel-ds",
        ] {
            assert!(is_needed(name), "{name}");
        }
        assert!(!is_needed("fluent-bit"));
    }
}
