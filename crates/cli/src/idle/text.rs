//! The text of `berth idle`.

use berth_api::text::one_line;

use super::{IdleView, NodeView, StoppedView, Totals, WorkloadView};
use crate::output::{format_rows, format_time, plural};

pub(super) fn describe(view: &IdleView) -> String {
    let mut parts = vec![summarize(&view.totals)];
    parts.extend(describe_workloads(&view.workloads));
    let unlisted = view.totals.unlisted_workloads;
    if unlisted > 0 {
        parts.push(format!("and {unlisted} more idle workloads, which are in the sums"));
    }
    parts.extend(describe_stopped(&view.stopped));
    parts.extend(format_rows(["UNKNOWN BECAUSE", "GPUS"], &view.unknown, |unknown| {
        [unknown.reason.clone(), unknown.gpus.to_string()]
    }));
    parts.extend(describe_nodes(view));
    parts.join("\n\n")
}

fn summarize(totals: &Totals) -> String {
    let Totals {
        tenants,
        gpus,
        idle_gpus,
        unknown_gpus,
        opted_out_gpus,
        idle_gpu_hours,
        worth,
        unlisted_workloads: _,
        idle_nodes: _,
        idle_node_gpus: _,
    } = totals;
    if *tenants == 0 {
        return "No class of these tenants looks for idle GPUs of pods: set spec.idleReclaim of a TenantClass".into();
    }
    let mut summary = format!(
        "{idle_gpus} of {gpus} GPUs are idle, {idle_gpu_hours:.1} GPU-hours so far; {unknown_gpus} unknown, {opted_out_gpus} excepted"
    );
    for (currency, amount) in worth {
        summary = format!("{summary}; worth {amount} {currency}");
    }
    one_line(&summary)
}

fn describe_workloads(workloads: &[WorkloadView]) -> Option<String> {
    let heading = [
        "TENANT",
        "WORKLOAD",
        "OWNER",
        "GPUS",
        "IDLE SINCE",
        "GPU-HOURS",
        "WORTH",
        "STEP",
        "NEXT STEP",
        "LAST STEP",
        "MODE",
    ];
    format_rows(heading, workloads, |view| {
        let workload = &view.workload;
        let next = match &workload.next_step_at {
            Some(at) => format_time(at.0),
            None if workload.paused => "paused: metrics are missing".to_owned(),
            None => "-".to_owned(),
        };
        let owner = workload.owner.as_ref();
        [
            view.tenant.clone(),
            format!("{} {}/{}", workload.kind, workload.namespace, workload.name),
            owner.map_or_else(|| "-".to_owned(), |owner| format!("{}/{}", owner.kind, owner.name)),
            workload.gpus.to_string(),
            format_time(workload.idle_since.0),
            format!("{:.1}", view.idle_gpu_hours),
            view.worth.clone().unwrap_or_else(|| "-".to_owned()),
            workload.step.as_str().to_owned(),
            next,
            format!("{:?}", view.last_step),
            format!("{:?}", view.mode),
        ]
    })
}

fn describe_stopped(stopped: &[StoppedView]) -> Option<String> {
    format_rows(
        ["TENANT", "STOPPED", "GPUS", "SINCE"],
        stopped,
        |StoppedView { tenant, owner }| {
            [
                tenant.clone(),
                owner.path(),
                owner.gpus.to_string(),
                format_time(owner.stopped_at.0),
            ]
        },
    )
}

/// The nodes of which no pod requests a GPU, and what runs there instead.
fn describe_nodes(view: &IdleView) -> Option<String> {
    let heading = ["NODE", "POOL", "TENANT", "GROUP", "GPUS", "IDLE SINCE", "PODS"];
    let table = format_rows(heading, &view.nodes, |NodeView { tenant, node }| {
        [
            node.name.clone(),
            node.pool_name.clone(),
            tenant.clone(),
            node.node_group_name.clone(),
            node.gpus.to_string(),
            format_time(node.idle_since.0),
            name_pods(&node.pods, node.unlisted_pods),
        ]
    })?;
    let (nodes, gpus) = (view.totals.idle_nodes, view.totals.idle_node_gpus);
    let head = format!(
        "No pod requests a GPU of {} with {}:",
        plural(nodes, "node"),
        plural(gpus, "GPU")
    );
    let listed = u64::try_from(view.nodes.len()).unwrap_or(u64::MAX);
    let rest = match nodes.saturating_sub(listed) {
        0 => String::new(),
        rest => format!("\nand {}, in the sums", plural(rest, "more node")),
    };
    Some(format!("{head}\n{table}{rest}"))
}

/// Some pods, and how many more there are.
fn name_pods(pods: &[String], unlisted: Option<u32>) -> String {
    match unlisted {
        _ if pods.is_empty() => "-".to_owned(),
        None => pods.join(", "),
        Some(unlisted) => format!("{} and {unlisted} more", pods.join(", ")),
    }
}
