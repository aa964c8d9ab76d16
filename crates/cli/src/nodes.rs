//! `berth nodes`: the GPU nodes of the host, and which tenants have them.

use std::collections::BTreeMap;
use std::process::ExitCode;

use berth_api::{HostNodePool, TenantCluster, is_node_ready, labels};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use crate::completion;
use crate::error::{Error, describe as describe_error, failed, is_forbidden};
use crate::host::HostArguments;
use crate::node::{self, GpuResources};
use crate::output::{
    ObjectFormat, format_age_since, format_optional, format_table, list_of, print_objects, print_text,
};
use crate::tenant::{self, NamespacesArgument, TenantName};

#[derive(Debug, Args)]
pub(crate) struct NodesArguments {
    /// Show the nodes of this TenantCluster only: its name, or NAMESPACE/NAME. [default: all nodes of pools, or those of the tenants in --namespace]
    #[arg(add = completion::tenant_names(), conflicts_with = "all_namespaces")]
    name: Option<String>,
    #[command(flatten)]
    namespaces: NamespacesArgument,
    /// Show the nodes with these labels, as kubectl selects them: topology.kubernetes.io/zone=eu-1a.
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: ObjectFormat,
}

pub(crate) async fn run(host: &HostArguments, arguments: &NodesArguments) -> Result<ExitCode, Error> {
    let given = arguments.namespaces.given(host);
    let host = host.connect().await?;
    let parameters = ListParams::default();
    let all = Api::<Node>::all(host.client.clone());
    let selector = arguments.selector.as_deref().unwrap_or_default();
    let nodes = all.list(&ListParams::default().labels(selector)).await;
    let mut nodes = nodes.map_err(describe_failure)?.items;
    let pools = Api::<HostNodePool>::all(host.client.clone());
    let pools = pools
        .list(&parameters)
        .await
        .map_err(failed("list the HostNodePools"))?
        .items;
    let owners = if let Some(text) = &arguments.name {
        let (name, tenant) = tenant::find(&host, text).await?;
        nodes.retain(|node| node::is_of(node, &tenant));
        owners_of(&[tenant], Some(&name))
    } else {
        nodes.retain(|node| is_in_a_pool(node, &pools));
        let tenants = tenant::list_visible(&host, given, arguments.namespaces).await?.tenants;
        if given.is_some() {
            nodes.retain(|node| tenants.iter().any(|tenant| node::is_of(node, tenant)));
        }
        owners_of(&tenants, None)
    };
    if nodes.is_empty() && arguments.output == ObjectFormat::Table {
        print_text(format_args!("{}", describe_none(arguments, given, &pools)));
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<String> = nodes.iter().map(|node| format!("node/{}", node.name_any())).collect();
    let resources = node::gpu_resources(&pools);
    let text = || describe(&nodes, &pools, &owners, &resources, Timestamp::now());
    print_objects(&list_of(&nodes), &names, text, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

/// Why no node is shown.
fn describe_none(arguments: &NodesArguments, namespace: Option<&str>, pools: &[HostNodePool]) -> String {
    if arguments.selector.is_some() {
        return "No node with these labels is in a HostNodePool and matches the arguments.".into();
    }
    match (&arguments.name, namespace) {
        (Some(name), _) => format!(
            "TenantCluster {name} has no nodes of its own; `berth explain tenant {name}` says what it waits for."
        ),
        (None, _) if pools.is_empty() => "There are no HostNodePools: no node can be assigned to a tenant.".into(),
        (None, Some(namespace)) => format!("No TenantCluster in {namespace} has nodes of its own."),
        (None, None) => "No node has the labels of a HostNodePool, and none is assigned to a tenant.".into(),
    }
}

/// Teams usually may not list nodes, and have another command.
fn describe_failure(error: kube::Error) -> Error {
    if is_forbidden(&error) {
        return Error::Failed(format!(
            "cannot list the nodes of the host: {}; `berth get NAME` shows those of a tenant",
            describe_error(&error)
        ));
    }
    failed("list the nodes of the host")(error)
}

/// `namespace/name` by UID.
fn owners_of(tenants: &[TenantCluster], name: Option<&TenantName>) -> BTreeMap<String, String> {
    let name_of = |tenant: &TenantCluster| name.cloned().unwrap_or_else(|| TenantName::of(tenant)).to_string();
    let pairs = tenants
        .iter()
        .filter_map(|tenant| Some((tenant.uid()?, name_of(tenant))));
    pairs.collect()
}

fn is_in_a_pool(node: &Node, pools: &[HostNodePool]) -> bool {
    node.labels().contains_key(labels::POOL) || pool_of(node, pools).is_some()
}

/// The pool that a node was assigned from, or else the one that selects it.
fn pool_of(node: &Node, pools: &[HostNodePool]) -> Option<String> {
    let assigned = node.labels().get(labels::POOL).cloned();
    assigned.or_else(|| {
        let selecting = pools.iter().find(|pool| node::is_selected_by(node, pool));
        selecting.map(ResourceExt::name_any)
    })
}

fn describe(
    nodes: &[Node],
    pools: &[HostNodePool],
    owners: &BTreeMap<String, String>,
    resources: &GpuResources,
    now: Timestamp,
) -> String {
    let unavailable = node::unavailable_nodes(pools);
    let mut rows: Vec<[String; 7]> = nodes
        .iter()
        .map(|node| {
            let annotation = |key: &str| node.annotations().get(key).cloned();
            let label = |key: &str| node.labels().get(key).cloned();
            let pool = pool_of(node, pools);
            let owner = annotation(labels::OWNER_UID).map(|uid| owners.get(&uid).cloned().unwrap_or(uid));
            let state = annotation(labels::NODE_STATE).or_else(|| label(labels::NODE_STATE));
            let why = unavailable
                .get(node.name_any().as_str())
                .filter(|_| state.is_none())
                .copied();
            let reason = why.map(ToOwned::to_owned).or_else(|| annotation(labels::REASON));
            let state = describe_state(state, is_node_ready(node), why.is_some());
            let since = annotation(labels::STATE_SINCE).and_then(|since| since.parse().ok());
            let resource = pool.as_ref().and_then(|pool| resources.get(pool));
            [
                node.name_any(),
                pool.unwrap_or_else(|| "-".into()),
                owner.or_else(|| label(labels::TENANT)).unwrap_or_else(|| "-".into()),
                state,
                resource.map_or_else(|| "-".into(), |resource| node::count_gpus(node, resource).to_string()),
                format_age_since(since, now),
                format_optional(reason.filter(|reason| !reason.is_empty()).as_ref()),
            ]
        })
        .collect();
    rows.sort();
    format_table(["NODE", "POOL", "TENANT", "STATE", "GPUS", "SINCE", "REASON"], &rows)
}

/// The state of an assignment, if there is one, or else whether the node can be assigned. As with kubectl, a node that is not Ready says so
/// besides.
fn describe_state(assigned: Option<String>, is_ready: bool, is_unavailable: bool) -> String {
    match assigned {
        Some(state) if is_ready => state,
        Some(state) => format!("{state},NotReady"),
        None if !is_ready => "NotReady".into(),
        None if is_unavailable => "Unavailable".into(),
        None => "Free".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn gpu_pool(unavailable: &serde_json::Value) -> HostNodePool {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "h100"},
            "spec": {"nodeSelector": {"gpu": "h100"}, "gpuResourceName": "nvidia.com/gpu"},
            "status": {"unavailableNodes": unavailable},
        }))
        .unwrap()
    }

    #[test]
    fn nodes_show_pool_tenant_state_gpus_and_why_they_are_unavailable() {
        let pool = gpu_pool(&json!([
            {"name": "n1", "reason": "an older plan"}, {"name": "n3", "reason": "it is in use: shop/web-1 runs there"},
        ]));
        let status =
            json!({"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"nvidia.com/gpu": "8"}});
        let node = |metadata: serde_json::Value| -> Node {
            serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap()
        };
        let nodes = [
            node(json!({"name": "n3", "labels": {"gpu": "h100"}})),
            node(json!({"name": "n2", "labels": {"gpu": "h100"}})),
            node(
                json!({"name": "n1", "labels": {"gpu": "h100", "berth.dev/pool": "h100"}, "annotations": {
                "berth.dev/owner-uid": "u", "berth.dev/state": "Assigned", "berth.dev/state-since": "2026-01-01T00:00:00Z"}}),
            ),
        ];
        let pools = [pool];
        let other = node(json!({"name": "other"}));
        assert!(is_in_a_pool(&nodes[0], &pools) && !is_in_a_pool(&other, &pools));
        let owners = BTreeMap::from([("u".to_owned(), "team/vision".to_owned())]);
        let now = "2026-01-01T00:05:00Z".parse().unwrap();
        let text = describe(&nodes, &pools, &owners, &node::gpu_resources(&pools), now);
        let expected = "\
NODE  POOL  TENANT       STATE        GPUS  SINCE  REASON
n1    h100  team/vision  Assigned     8     5m     -
n2    h100  -            Free         8     -      -
n3    h100  -            Unavailable  8     -      it is in use: shop/web-1 runs there";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_node_in_quarantine_and_one_that_is_not_ready_say_so() {
        let pools = [gpu_pool(&json!([]))];
        let node = |name: &str, state: &str, reason: Option<&str>, ready: &str| -> Node {
            serde_json::from_value(json!({
                "metadata": {"name": name, "labels": {"gpu": "h100", "berth.dev/pool": "h100"},
                    "annotations": {"berth.dev/state": state, "berth.dev/reason": reason.unwrap_or_default()}},
                "status": {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"nvidia.com/gpu": "8"}},
            }))
            .unwrap()
        };
        let nodes = [
            node("n1", "Quarantined", Some("the scrub failed: gpu-reset"), "True"),
            node("n2", "Assigned", None, "Unknown"),
        ];
        let resources = node::gpu_resources(&pools);
        let text = describe(&nodes, &pools, &BTreeMap::new(), &resources, Timestamp::UNIX_EPOCH);
        let expected = "\
NODE  POOL  TENANT  STATE              GPUS  SINCE  REASON
n1    h100  -       Quarantined        8     -      the scrub failed: gpu-reset
n2    h100  -       Assigned,NotReady  8     -      -";
        assert_eq!(text, expected);
    }

    #[test]
    fn an_empty_list_says_why_it_is_empty() {
        let arguments = |name: Option<&str>| NodesArguments {
            name: name.map(Into::into),
            namespaces: NamespacesArgument::default(),
            selector: None,
            output: ObjectFormat::Table,
        };
        let pools = [gpu_pool(&json!([]))];
        for (name, namespace, pools, begin) in [
            (
                Some("vision"),
                None,
                pools.as_slice(),
                "TenantCluster vision has no nodes",
            ),
            (None, Some("team"), pools.as_slice(), "No TenantCluster in team"),
            (None, None, pools.as_slice(), "No node has the labels"),
            (None, Some("team"), &pools[..0], "There are no HostNodePools"),
        ] {
            let text = describe_none(&arguments(name), namespace, pools);
            assert!(text.starts_with(begin), "{text}");
        }
        let mut selected = arguments(Some("vision"));
        selected.selector = Some("berth.dev/pool=h100".into());
        let text = describe_none(&selected, None, &pools);
        assert!(text.starts_with("No node with these labels"), "{text}");
    }
}
