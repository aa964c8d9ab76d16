//! Whether the host's network enforces NetworkPolicies, lets syncers reach the host's API server, and has its pods where Berth keeps networks
//! closed. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use berth_api::{ranges, system};
use berth_control::network::host_network;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::CheckResult;
use super::facts::Facts;

/// DaemonSets of networks that enforce NetworkPolicies: Calico, Cilium, Canal, Antrea, kube-router, OVN-Kubernetes, Kube-OVN, Weave
/// Net, Azure's policy manager, Google's Dataplane V2, kindnet and the policy agent of the Kubernetes project.
pub(super) const ENFORCING: [&str; 13] = [
    "calico-node",
    "cilium",
    "canal",
    "rke2-canal",
    "antrea-agent",
    "kube-router",
    "ovnkube-node",
    "ovs-ovn",
    "weave-net",
    "azure-npm",
    "anetd",
    "kindnet",
    "kube-network-policies",
];
/// DaemonSets of networks that do not.
pub(super) const NOT_ENFORCING: [&str; 3] = ["kube-flannel-ds", "kube-flannel", "flannel"];
/// The DaemonSet of the VPC CNI of EKS, its container that enforces NetworkPolicies, and the argument that switches it on. It does not support pods
/// without an owner, and those of tenants have none on the host.
pub(super) const AWS: &str = "aws-node";
const AWS_AGENT: &str = "aws-eks-nodeagent";
const AWS_ENFORCES: &str = "--enable-network-policy=true";
/// The DaemonSet of Cilium, the ConfigMap with its settings, and the one that says whether CIDRs match addresses of nodes.
const CILIUM: &str = "cilium";
pub(super) const CILIUM_NAMESPACE: &str = "kube-system";
pub(super) const CILIUM_CONFIG: &str = "cilium-config";
const CILIUM_MODE: &str = "policy-cidr-match-mode";
/// The arguments of control with networks that are closed as well: others, and those of nodes.
const BLOCKED: &str = "--blocked-cidr";
const NODES: &str = "--node-cidr";

const CHECK: &str = "network";
const AWS_FIX: &str =
    "install Calico for policies, or Cilium (docs/guides/managed-clusters.md#network-policies-of-the-vpc-cni)";
const FIX: &str =
    "install a network plugin that enforces NetworkPolicies, such as Calico or Cilium (docs/guides/install.md)";

pub(super) fn check(facts: &Facts) -> Vec<CheckResult> {
    let sets = match &facts.daemon_sets {
        Ok(sets) => sets,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let mut results = vec![check_enforcement(sets)];
    if sets.iter().any(|set| set.name_any() == CILIUM) {
        results.extend(check_cilium(facts));
    }
    results.extend(check_pods(facts));
    results.extend(check_addresses_of_nodes(facts));
    results
}

/// Control takes the `podCIDRs` of nodes for the networks of pods. Some plugins give pods other addresses.
fn check_pods(facts: &Facts) -> Option<CheckResult> {
    // Without them there is no telling; other checks say that they cannot be read.
    let (nodes, slices) = (facts.nodes.as_ref().ok()?, facts.endpoints.as_ref().ok()?);
    let control = facts.control.as_ref().ok().and_then(Option::as_ref);
    let closed: Vec<_> = closed_networks(nodes, control)
        .filter_map(|text| ranges::parse(text).ok())
        .collect();
    let of_nodes: BTreeSet<&str> = nodes.iter().flat_map(addresses).collect();
    // Namespaces in which no tenant decides on endpoints.
    let of_platform = slices.iter().filter(|slice| {
        let namespace = slice.namespace().unwrap_or_default();
        namespace == "kube-system" || namespace == system::NAMESPACE
    });
    let of_pods = of_platform
        .flat_map(|slice| slice.endpoints.iter().flatten())
        .filter(|endpoint| {
            let target = endpoint.target_ref.as_ref().and_then(|target| target.kind.as_deref());
            target == Some("Pod")
        });
    let mut addresses = of_pods
        .flat_map(|endpoint| &endpoint.addresses)
        // Those of pods in the network of their node.
        .filter(|text| !of_nodes.contains(text.as_str()))
        .filter_map(|text| text.parse::<IpAddr>().ok());
    let outside = addresses.find(|address| !closed.iter().any(|range| range.contains(address)))?;
    Some(CheckResult::warning(
        CHECK,
        format!(
            "a pod has the address {outside}, which is in none of the podCIDRs of nodes: tenants whose class opens networks around it may reach \
             pods of the platform that no NetworkPolicy protects"
        ),
        "add the networks from which the network plugin takes addresses of pods to control.extraArgs of the chart, as --blocked-cidr=NETWORK \
         (docs/concepts/networking.md#networks-that-are-never-open)",
    ))
}

/// Control closes the first addresses of each node. If it has networks of nodes, it closes these instead, and no address elsewhere.
fn check_addresses_of_nodes(facts: &Facts) -> Option<CheckResult> {
    let (nodes, control) = (facts.nodes.as_ref().ok()?, facts.control.as_ref().ok()?.as_ref());
    let has_networks = control
        .into_iter()
        .flat_map(arguments)
        .any(|argument| argument.starts_with(NODES));
    let closed: Vec<_> = closed_networks(nodes, control)
        .filter_map(|text| ranges::parse(text).ok())
        .collect();
    let (name, address) = nodes.iter().find_map(|node| {
        let counted: Vec<IpAddr> = host_network::addresses_of(node).collect();
        let is_closed = |address: &IpAddr| {
            (!has_networks && counted.contains(address))
                || closed.iter().any(|range| range.contains(address))
                || ranges::never_open().any(|range| range.contains(address))
        };
        let mut all = host_network::all_addresses_of(node);
        all.find(|address| !is_closed(address))
            .map(|address| (node.name_any(), address))
    })?;
    Some(CheckResult::warning(
        CHECK,
        format!(
            "node {name} has the address {address}, which Berth does not close: tenants whose class opens networks around it may reach the kubelet \
             and other programs of the node"
        ),
        "list all networks of nodes in control.extraArgs of the chart, as --node-cidr=NETWORK (docs/guides/install.md#networks-of-nodes)",
    ))
}

/// The networks that control closes besides addresses of nodes and what is closed on every host, among texts that are no networks.
fn closed_networks<'a>(nodes: &'a [Node], control: Option<&'a Deployment>) -> impl Iterator<Item = &'a str> {
    let of_pods = nodes.iter().flat_map(networks_of_pods);
    of_pods.chain(control.into_iter().flat_map(blocked_by))
}

/// The networks of a node's pods.
fn networks_of_pods(node: &Node) -> impl Iterator<Item = &str> {
    let spec = node.spec.iter();
    let listed = spec.clone().flat_map(|spec| spec.pod_cidrs.iter().flatten());
    let first = spec.flat_map(|spec| spec.pod_cidr.iter());
    listed.chain(first).map(String::as_str)
}

/// The networks that control's arguments close, among texts that are no networks.
fn blocked_by(control: &Deployment) -> impl Iterator<Item = &str> {
    arguments(control)
        // The network may be an argument of its own: no other one is a network.
        .map(|argument| {
            let mut flags = [BLOCKED, NODES].into_iter();
            let list = flags.find_map(|flag| argument.strip_prefix(flag)?.strip_prefix('='));
            list.unwrap_or(argument)
        })
        .flat_map(|list| list.split(','))
}

/// The arguments of control.
fn arguments(control: &Deployment) -> impl Iterator<Item = &str> {
    let pod = control.spec.template.spec.iter();
    let containers = pod.flat_map(|pod| &pod.containers);
    let arguments = containers.flat_map(|container| container.args.iter().flatten());
    arguments.map(String::as_str)
}

/// The addresses of a node.
fn addresses(node: &Node) -> impl Iterator<Item = &str> {
    let status = node.status.iter();
    let all = status.flat_map(|status| status.addresses.iter().flatten());
    all.map(|address| address.address.as_str())
}

fn check_enforcement(sets: &[DaemonSet]) -> CheckResult {
    let find = |known: &[&'static str]| {
        let mut known = known.iter();
        known
            .find(|name| sets.iter().any(|set| set.name_any() == **name))
            .copied()
    };
    let aws = sets.iter().find(|set| set.name_any() == AWS);
    if let Some(name) = find(&ENFORCING) {
        return if aws.is_some_and(aws_enforces) {
            CheckResult::warning(
                CHECK,
                format!(
                    "{name} and the network policy agent of {AWS} both enforce NetworkPolicies, and the agent those of other pods for pods of tenants"
                ),
                "set enableNetworkPolicy to \"false\" in the configuration of the add-on vpc-cni",
            )
        } else {
            CheckResult::ok(CHECK, format!("{name} enforces NetworkPolicies"))
        };
    }
    if let Some(name) = find(&NOT_ENFORCING) {
        let message = format!("{name} does not enforce NetworkPolicies, so tenants reach each other");
        return CheckResult::problem(CHECK, message, FIX);
    }
    match aws {
        Some(set) => {
            let why = if aws_enforces(set) {
                "its network policy agent does not support pods without an owner"
            } else {
                "its network policy agent is off, and does not support pods without an owner"
            };
            CheckResult::problem(
                CHECK,
                format!("{AWS} does not confine tenants: {why}, so tenants reach each other"),
                AWS_FIX,
            )
        }
        None => CheckResult::warning(
            CHECK,
            "no DaemonSet of a network plugin is known that enforces NetworkPolicies; one that runs outside of pods, as in a cluster of \
             `berth dev up`, is not seen",
            FIX,
        ),
    }
}

/// Whether the agent for NetworkPolicies of the VPC CNI is on.
fn aws_enforces(set: &DaemonSet) -> bool {
    let pod = set.spec.template.spec.as_ref();
    let mut containers = pod.into_iter().flat_map(|pod| &pod.containers);
    containers.any(|container| {
        let mut arguments = container.args.iter().chain(&container.command).flatten();
        container.name == AWS_AGENT && arguments.any(|argument| argument == AWS_ENFORCES)
    })
}

/// Control opens the host's API server to syncers by its addresses. To Cilium the address of a node is no CIDR, unless a setting says so.
fn check_cilium(facts: &Facts) -> Option<CheckResult> {
    let config = match &facts.cilium {
        Ok(config) => config.as_ref()?,
        Err(error) => return Some(CheckResult::unknown(CHECK, error)),
    };
    let mode = config.data.as_ref().and_then(|data| data.get(CILIUM_MODE));
    if mode.is_some_and(|mode| mode.contains("nodes")) {
        return None;
    }
    let address = match find_api_server_on_node(facts) {
        Ok(address) => address?,
        Err(error) => return Some(CheckResult::unknown(CHECK, &error)),
    };
    Some(CheckResult::warning(
        CHECK,
        format!(
            "the API server is at the address of a node, {address}, which NetworkPolicies for Cilium do not open: syncers as pods do not reach it"
        ),
        "set policyCIDRMatchMode=nodes in the values of Cilium's chart (docs/guides/managed-clusters.md#cilium)",
    ))
}

/// An address of the API server that a node has as well.
fn find_api_server_on_node(facts: &Facts) -> Result<Option<String>, String> {
    let slices = facts.endpoints.as_ref().map_err(Clone::clone)?;
    let nodes = facts.nodes.as_ref().map_err(Clone::clone)?;
    let of_nodes: BTreeSet<&str> = nodes.iter().flat_map(addresses).collect();
    let own = slices.iter().filter(|slice| {
        let service = slice.labels().get("kubernetes.io/service-name");
        slice.namespace().as_deref() == Some("default") && service.is_some_and(|name| name == "kubernetes")
    });
    let mut of_api_server = own
        .flat_map(|slice| slice.endpoints.iter().flatten())
        .flat_map(|endpoint| &endpoint.addresses);
    Ok(of_api_server
        .find(|address| of_nodes.contains(address.as_str()))
        .cloned())
}
