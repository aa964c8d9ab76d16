//! `berth nodes`: the GPU nodes of the host, and which tenants have them.

use std::collections::BTreeMap;
use std::process::ExitCode;

use berth_api::{HostNodePool, TenantCluster, labels};
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use kube::api::{Api, ListParams};

use crate::completion;
use crate::error::{Error, describe as describe_error, failed, is_forbidden};
use crate::host::HostArguments;
use crate::node::{self, GpuResources};
use crate::output::{ObjectFormat, format_age_since, format_table, list_of, print_objects};
use crate::tenant::{self, TenantName};

#[derive(Debug, Args)]
pub(crate) struct NodesArguments {
    /// Show the nodes of this TenantCluster only: its name, or NAMESPACE/NAME. [default: all nodes of pools, or those of the tenants in --namespace]
    #[arg(add = completion::tenant_names())]
    name: Option<String>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: ObjectFormat,
}

pub(crate) async fn run(host: &HostArguments, arguments: &NodesArguments) -> Result<ExitCode, Error> {
    let given = host.namespace.as_deref();
    let host = host.connect().await?;
    let parameters = ListParams::default();
    let all = Api::<Node>::all(host.client.clone());
    let nodes = all.list(&parameters).await;
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
        let tenants = tenant::list_visible(&host, given).await?.tenants;
        if given.is_some() {
            nodes.retain(|node| tenants.iter().any(|tenant| node::is_of(node, tenant)));
        }
        owners_of(&tenants, None)
    };
    if nodes.is_empty() && arguments.output == ObjectFormat::Table {
        eprintln!("There are no such nodes.");
        return Ok(ExitCode::SUCCESS);
    }
    let names: Vec<String> = nodes.iter().map(|node| format!("node/{}", node.name_any())).collect();
    let resources = node::gpu_resources(&pools);
    let text = || describe(&nodes, &pools, &owners, &resources, Timestamp::now());
    print_objects(&list_of(&nodes), &names, text, arguments.output)?;
    Ok(ExitCode::SUCCESS)
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
            let free = match why {
                _ if !node::is_ready(node) => "NotReady",
                Some(_) => "Unavailable",
                None => "Free",
            };
            let state = state.unwrap_or_else(|| free.into());
            let since = annotation(labels::STATE_SINCE).and_then(|since| since.parse().ok());
            let resource = pool.as_ref().and_then(|pool| resources.get(pool));
            [
                node.name_any(),
                pool.unwrap_or_else(|| "-".into()),
                owner.or_else(|| label(labels::TENANT)).unwrap_or_else(|| "-".into()),
                state,
                resource.map_or_else(|| "-".into(), |resource| node::count_gpus(node, resource).to_string()),
                format_age_since(since, now),
                why.unwrap_or("-").to_owned(),
            ]
        })
        .collect();
    rows.sort();
    format_table(["NODE", "POOL", "TENANT", "STATE", "GPUS", "SINCE", "REASON"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_show_pool_tenant_state_gpus_and_why_they_are_unavailable() {
        let pool: HostNodePool = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "h100"},
            "spec": {"nodeSelector": {"gpu": "h100"}, "gpuResourceName": "nvidia.com/gpu"},
            "status": {"unavailableNodes": [
                {"name": "n1", "reason": "an older plan"}, {"name": "n3", "reason": "it is in use: shop/web-1 runs there"},
            ]},
        }))
        .unwrap();
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
}
