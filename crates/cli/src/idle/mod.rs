//! `berth idle`: which workloads leave their GPUs idle, and of which nodes no pod requests a GPU. All of this is in the status of the
//! TenantClusters; here it is summed up.

#[cfg(test)]
mod tests;
mod text;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::process::ExitCode;

use berth_api::{
    IdleLastStep, IdleNode, IdleReclaimMode, IdleStatus, IdleWorkload, StoppedOwner, TenantCluster, UnknownGpus,
};
use jiff::Timestamp;
use kube::ResourceExt as _;
use serde::Serialize;

use crate::error::Error;
use crate::host::HostArguments;
use crate::output::{ObjectFormat, print_named};
use crate::tenant::{self, NamespacesArgument, TenantName, resource_name};

/// What `idle` prints. Programs read it: fields are only ever added.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct IdleView {
    totals: Totals,
    workloads: Vec<WorkloadView>,
    /// What Berth stopped because its GPUs were idle, and nobody has started since.
    stopped: Vec<StoppedView>,
    /// GPUs of which it is not known whether they are idle, by reason.
    unknown: Vec<UnknownGpus>,
    /// Nodes of which no pod requests a GPU, those with the most GPUs first.
    nodes: Vec<NodeView>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Totals {
    /// Tenants whose class reclaims idle GPUs, also if it only reports them.
    tenants: u64,
    /// GPUs of all pods of these tenants.
    gpus: u64,
    #[serde(rename = "idleGPUs")]
    idle_gpus: u64,
    #[serde(rename = "unknownGPUs")]
    unknown_gpus: u64,
    #[serde(rename = "optedOutGPUs")]
    opted_out_gpus: u64,
    /// GPU-hours of the idle workloads since they are idle, without the time for which that was not known.
    #[serde(rename = "idleGPUHours")]
    idle_gpu_hours: f64,
    /// What these cost, by currency.
    worth: BTreeMap<String, String>,
    /// Idle workloads of which only the sums say something: a status lists the largest ones.
    unlisted_workloads: u64,
    /// Nodes of which no pod requests a GPU, of all tenants.
    idle_nodes: u64,
    /// The GPUs of these nodes.
    #[serde(rename = "idleNodeGPUs")]
    idle_node_gpus: u64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkloadView {
    /// `namespace/name` of the tenant.
    tenant: String,
    mode: IdleReclaimMode,
    last_step: IdleLastStep,
    #[serde(rename = "idleGPUHours")]
    idle_gpu_hours: f64,
    worth: Option<String>,
    #[serde(flatten)]
    workload: IdleWorkload,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct StoppedView {
    /// `namespace/name` of the tenant.
    tenant: String,
    #[serde(flatten)]
    owner: StoppedOwner,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeView {
    /// `namespace/name` of the tenant.
    tenant: String,
    #[serde(flatten)]
    node: IdleNode,
}

pub(crate) async fn run(
    host: &HostArguments,
    namespaces: NamespacesArgument,
    format: ObjectFormat,
) -> Result<ExitCode, Error> {
    let given = namespaces.given(host);
    let tenants = tenant::list_visible(&host.connect().await?, given, namespaces)
        .await?
        .tenants;
    let view = build_view(&tenants, Timestamp::now());
    let idle = tenants.iter().filter(|tenant| has_idle_gpus(tenant));
    let names: Vec<String> = idle.map(|tenant| resource_name(&tenant.name_any())).collect();
    print_named(&view, &names, text::describe, format)?;
    Ok(ExitCode::SUCCESS)
}

/// Whether a tenant has idle GPUs, in pods or on nodes, or stopped workloads that had some.
fn has_idle_gpus(tenant: &TenantCluster) -> bool {
    let idle = tenant.status.as_ref().and_then(|status| status.idle.as_ref());
    idle.is_some_and(|idle| !(idle.workloads.is_empty() && idle.stopped_owners.is_empty() && idle.nodes.is_empty()))
}

fn build_view(tenants: &[TenantCluster], now: Timestamp) -> IdleView {
    let mut view = IdleView::default();
    let mut unknown: BTreeMap<String, u32> = BTreeMap::new();
    let mut seconds = 0_u64;
    // By currency, seconds times thousandths: one class may have another price than the next.
    let mut priced: BTreeMap<String, u128> = BTreeMap::new();
    for tenant in tenants {
        let Some(idle) = tenant.status.as_ref().and_then(|status| status.idle.as_ref()) else {
            continue;
        };
        let totals = &mut view.totals;
        totals.tenants += u64::from(idle.mode != IdleReclaimMode::Off);
        totals.gpus += u64::from(idle.gpus);
        totals.idle_gpus += u64::from(idle.idle_gpus);
        totals.opted_out_gpus += u64::from(idle.opted_out_gpus);
        for UnknownGpus { reason, gpus } in &idle.unknown_gpus {
            totals.unknown_gpus += u64::from(*gpus);
            *unknown.entry(reason.clone()).or_default() += gpus;
        }
        let name = TenantName::of(tenant).to_string();
        view.stopped.extend(idle.stopped_owners.iter().map(|owner| StoppedView {
            tenant: name.clone(),
            owner: owner.clone(),
        }));
        let gpu_seconds = idle.gpu_seconds(now);
        seconds = seconds.saturating_add(gpu_seconds);
        if let Some(price) = &idle.gpu_hour_price
            && let Some(thousandths) = price.thousandths()
        {
            *priced.entry(price.currency.clone()).or_default() += u128::from(thousandths) * u128::from(gpu_seconds);
        }
        totals.unlisted_workloads += idle
            .unlisted
            .as_ref()
            .map_or(0, |unlisted| u64::from(unlisted.workloads));
        for workload in &idle.workloads {
            let gpu_seconds = workload.gpu_seconds(now);
            view.workloads
                .push(build_workload_view(name.clone(), idle, workload, gpu_seconds));
        }
        add_nodes(&mut view, &name, idle);
    }
    view.workloads
        .sort_by(|a, b| b.idle_gpu_hours.total_cmp(&a.idle_gpu_hours));
    view.nodes
        .sort_by_key(|view| (Reverse(view.node.gpus), view.node.idle_since.0));
    view.totals.idle_gpu_hours = hours(seconds);
    // Divided once: what each workload loses by rounding adds up.
    view.totals.worth = priced
        .into_iter()
        .map(|(currency, priced)| (currency, format_thousandths(priced / 3600)))
        .collect();
    view.unknown = unknown
        .into_iter()
        .map(|(reason, gpus)| UnknownGpus { reason, gpus })
        .collect();
    view
}

fn build_workload_view(tenant: String, idle: &IdleStatus, workload: &IdleWorkload, gpu_seconds: u64) -> WorkloadView {
    WorkloadView {
        tenant,
        mode: idle.mode,
        last_step: idle.last_step,
        idle_gpu_hours: hours(gpu_seconds),
        worth: idle.gpu_hour_price.as_ref().and_then(|price| price.worth(gpu_seconds)),
        workload: workload.clone(),
    }
}

/// Adds the idle nodes of a tenant, and the sums of all.
fn add_nodes(view: &mut IdleView, tenant: &str, idle: &IdleStatus) {
    let listed = idle.nodes.iter().map(|node| (1, node.gpus));
    let unlisted = idle
        .unlisted_nodes
        .iter()
        .map(|unlisted| (unlisted.nodes, unlisted.gpus));
    for (nodes, gpus) in listed.chain(unlisted) {
        view.totals.idle_nodes += u64::from(nodes);
        view.totals.idle_node_gpus += u64::from(gpus);
    }
    view.nodes.extend(idle.nodes.iter().map(|node| NodeView {
        tenant: tenant.to_owned(),
        node: node.clone(),
    }));
}

/// Hours with one decimal.
fn hours(seconds: u64) -> f64 {
    let tenths = seconds / 360;
    f64::from(u32::try_from(tenths).unwrap_or(u32::MAX)) / 10.0
}

fn format_thousandths(thousandths: u128) -> String {
    let hundredths = (thousandths + 5) / 10;
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
