//! `berth list`: the tenants of a namespace, or of all.

use std::process::ExitCode;

use berth_api::TenantCluster;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};

use crate::error::{Error, failed};
use crate::host::HostArguments;
use crate::node::{self, GpuResources};
use crate::output::{ObjectFormat, format_age_since, format_optional, format_table, list_of, print_objects};
use crate::tenant::{TenantName, phase, resource_name};

#[derive(Debug, Args)]
pub(crate) struct ListArguments {
    /// List the tenants of all namespaces.
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: ObjectFormat,
}

pub(crate) async fn run(host: &HostArguments, arguments: &ListArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let all: Api<TenantCluster> = if arguments.all_namespaces {
        Api::all(host.client.clone())
    } else {
        Api::namespaced(host.client.clone(), &host.namespace)
    };
    let tenants = all
        .list(&ListParams::default())
        .await
        .map_err(failed("list the tenants"))?
        .items;
    let names: Vec<String> = tenants.iter().map(|tenant| resource_name(&tenant.name_any())).collect();
    if tenants.is_empty() && arguments.output == ObjectFormat::Table {
        if arguments.all_namespaces {
            eprintln!("There are no TenantClusters.");
        } else {
            eprintln!(
                "There are no TenantClusters in {}; -A lists those of all namespaces.",
                host.namespace
            );
        }
        return Ok(ExitCode::SUCCESS);
    }
    let nodes = match arguments.output {
        ObjectFormat::Table => node::list_if_allowed(&host.client).await,
        _ => None,
    };
    let text = || describe(&tenants, nodes.as_ref(), Timestamp::now());
    print_objects(&list_of(&tenants), &names, text, arguments.output)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(tenants: &[TenantCluster], nodes: Option<&(Vec<Node>, GpuResources)>, now: Timestamp) -> String {
    let rows: Vec<_> = tenants
        .iter()
        .map(|tenant| describe_tenant(tenant, nodes, now))
        .collect();
    format_table(
        [
            "NAMESPACE",
            "NAME",
            "PHASE",
            "VERSION",
            "CLASS",
            "NODES",
            "GPUS",
            "AGE",
            "ENDPOINT",
        ],
        &rows,
    )
}

fn describe_tenant(tenant: &TenantCluster, nodes: Option<&(Vec<Node>, GpuResources)>, now: Timestamp) -> [String; 9] {
    let TenantName { namespace, name } = TenantName::of(tenant);
    let status = tenant.status.clone().unwrap_or_default();
    let assigned = status
        .nodes
        .map(|nodes| format!("{}/{}", nodes.assigned, nodes.desired));
    let gpus = nodes.map(|(nodes, resources)| {
        let own = nodes.iter().filter(|node| node::is_of(node, tenant));
        own.map(|node| node::count_assigned_gpus(node, resources))
            .sum::<u64>()
            .to_string()
    });
    let class = status.class_name.or_else(|| tenant.spec.class_name.clone());
    let version = status.version.unwrap_or_else(|| tenant.spec.version.clone());
    let created = tenant.creation_timestamp().map(|time| time.0);
    [
        namespace,
        name,
        phase(tenant),
        version,
        format_optional(class.as_ref()),
        format_optional(assigned.as_ref()),
        format_optional(gpus.as_ref()),
        format_age_since(created, now),
        format_optional(status.endpoint.as_ref()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tenant_is_one_line_and_unknown_gpus_are_a_dash() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"className": "gold"},
            "status": {"phase": "Ready", "version": "v1.37.1", "endpoint": "https://a:6443",
                "nodes": {"desired": 2, "assigned": 1, "ready": 1}},
        }))
        .unwrap();
        let new: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "new", "namespace": "team"},
            "spec": {"version": "v1.36.4"},
        }))
        .unwrap();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"berth.dev/pool": "h100"}, "annotations": {"berth.dev/owner-uid": "u"}},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}},
        }))
        .unwrap();
        let resources = GpuResources::from([("h100".to_owned(), "nvidia.com/gpu".to_owned())]);
        let now = "2026-01-01T04:00:00Z".parse().unwrap();
        let expected = "\
NAMESPACE  NAME    PHASE    VERSION  CLASS  NODES  GPUS  AGE  ENDPOINT
team       vision  Ready    v1.37.1  gold   1/2    8     4h   https://a:6443
team       new     Pending  v1.36.4  -      -      0     -    -";
        assert_eq!(
            describe(&[tenant.clone(), new], Some(&(vec![node], resources)), now),
            expected
        );
        let row = describe_tenant(&tenant, None, now);
        assert_eq!(row[6], "-");
    }
}
