//! GPUs that are allocated to pods and do nothing: every minute a pass over all GPUs of tenants whose class asks for it.
//!
//! | file | what |
//! |---|---|
//! | `context` | what the passes work with |
//! | `collect` | reads the metrics: a few queries that Prometheus aggregates |
//! | `decisions` | decides about the workloads of a tenant |
//! | `tenants` | the tenants, the rules of their classes, and where their workloads were |
//! | `status` | writes what was found into the status of the TenantCluster: the next control continues from there |
//! | `warn` | conditions and Events on host pods, which the syncers carry into the tenants |
//! | `mark_and_restore` | looks into tenants: `mark` annotates pods and owners, `restore` starts stopped owners again |
//! | `owners` | finds and changes owners in a tenant |
//! | `waits` | how long a pass waits for a tenant, and for what in it |
//! | `turns` | whose turn it is, and what goes on beside a tenant that takes long |
//! | `stop` | stops the owners of workloads that are due, if the class says so |
//! | `evict` | evicts pods that are due, once Prometheus was asked again about them |
//! | `nodes` | reports nodes of which no pod requests a GPU |
//!
//! What is decided, and when, is in the crate `berth-idle-reclaim`, which has no I/O. A pass without complete answers of
//! Prometheus changes nothing but this: workloads on their way to an eviction wait.

mod collect;
mod context;
mod decisions;
mod evict;
mod mark;
mod mark_and_restore;
mod nodes;
#[cfg(test)]
mod owner_tests;
mod owners;
mod restore;
mod status;
mod stop;
#[cfg(test)]
mod suspend_tests;
mod tenants;
#[cfg(test)]
mod test_decision;
#[cfg(test)]
mod tests;
mod turns;
mod waits;
mod warn;

pub use collect::{GpuMetricsSource, collect};
pub use context::IdleGpusContext;

use crate::metrics::{GpuActivityLabels, Metrics, ResultLabels};
use berth_api::{IdleReclaimMode, IdleStatus};
use berth_idle_reclaim::{
    evidence::{self, Verdict},
    pass::{self, Decision},
    pod::GpuPod,
    question::Questions,
};
use decisions::Moment;
use mark_and_restore::Found;
use nodes::UnrequestedByTenant;
use std::{collections::HashMap, sync::Arc, time::Duration};
use tenants::{Memory, ObservedTenant};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time between two passes, unless a test sets another one.
pub const INTERVAL: Duration = Duration::from_secs(60);

/// Makes passes until `stop`.
pub(crate) async fn watch(context: IdleGpusContext, stop: CancellationToken) {
    let mut memory = Memory::default();
    let interval = context.source.as_ref().map_or(INTERVAL, |source| source.interval);
    loop {
        let pass = async {
            tokio::time::sleep(interval).await;
            run_pass(&context, &mut memory).await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = pass => {}
        }
    }
}

/// One pass over all tenants. A tenant whose objects cannot be written does not keep the others.
async fn run_pass(context: &IdleGpusContext, memory: &mut Memory) {
    let started = Instant::now();
    let moment = Moment::observe(context);
    let all = tenants::observe(&context.stores);
    let unrequested = nodes::observe(&context.stores, moment.now);
    context
        .metrics
        .unrequested_gpus
        .set_all(nodes::list_gauges(&all, &unrequested));
    let mut pods = context.stores.gpu_pods.by_tenant();
    memory.retain(&all, &pods);
    // A counter of a pass that was under way may come after the tenant's last reconcile: nobody else removes it.
    for gone in memory.take_gone(&all) {
        context.metrics.idle_gpu_seconds.remove(&gone);
    }
    let (enabled, disabled): (Vec<_>, Vec<_>) = all
        .into_iter()
        .partition(|tenant| tenant.policy.mode != IdleReclaimMode::Off);
    let enabled: Vec<(ObservedTenant, Vec<Arc<GpuPod>>)> = enabled
        .into_iter()
        .map(|tenant| {
            let pods = pods.remove(tenant.id.slug()).unwrap_or_default();
            (tenant, pods)
        })
        .collect();
    let known = collect_metrics(context, memory, &enabled, &moment).await;
    let mut evaluated = Vec::new();
    let mut activity = Vec::new();
    let seconds = memory.count_seconds();
    for (tenant, pods) in enabled {
        let decisions = moment.judge(memory, &tenant, pods, known.as_ref());
        activity.extend(count(&context.metrics, &tenant, &decisions, seconds));
        memory.counted.insert(tenant.labels());
        evaluated.push((tenant, decisions));
    }
    context.metrics.gpus.set_all(activity);
    drop(known);
    let mut written = Vec::new();
    for (tenant, mut decisions) in evaluated {
        match carry_out(context, memory, &tenant, &mut decisions, &unrequested).await {
            Ok(()) => written.push((tenant, decisions)),
            Err(error) => tracing::warn!(
                tenant = tenant.id.slug(),
                %error,
                "cannot write which GPUs are idle; nothing is reclaimed in this pass"
            ),
        }
    }
    let mut off = Vec::new();
    for tenant in disabled {
        let pods = pods.remove(tenant.id.slug()).unwrap_or_default();
        clear(context, memory, &tenant, &pods, &unrequested).await;
        off.push((tenant, pods));
    }
    let with_decisions = written
        .iter()
        .map(|(tenant, decisions)| (tenant, Found::Decisions(decisions)));
    let without = off.iter().map(|(tenant, pods)| (tenant, Found::Off(pods)));
    let found: Vec<_> = with_decisions.chain(without).collect();
    mark_and_restore::update(context, memory, &found).await;
    evict::reclaim(context, memory, written.iter().flat_map(due_of).collect()).await;
    context
        .metrics
        .idle_pass_seconds
        .observe(started.elapsed().as_secs_f64());
}

/// The workloads of a tenant that are due.
fn due_of((tenant, decisions): &(ObservedTenant, Vec<Decision>)) -> impl Iterator<Item = evict::Due<'_>> {
    let is_due = move |decision: &&Decision| decision.is_due(tenant.policy.mode);
    decisions.iter().filter(is_due).map(move |decision| (tenant, decision))
}

/// The metrics of the pods of all tenants; none if Prometheus does not answer all queries completely.
async fn collect_metrics(
    context: &IdleGpusContext,
    memory: &mut Memory,
    enabled: &[(ObservedTenant, Vec<Arc<GpuPod>>)],
    moment: &Moment<'_>,
) -> Option<evidence::Metrics> {
    if enabled.is_empty() {
        return None;
    }
    let asked = enabled.iter().map(|(tenant, pods)| (&tenant.policy, pods.as_slice()));
    let questions = Questions::about_all(asked, &moment.gpu_resources);
    let (found, result) = match &context.source {
        None => {
            tracing::warn!(
                "classes reclaim idle GPUs, and control has no --prometheus-url: set gpuMetrics.url of the chart"
            );
            (None, "NoPrometheus")
        }
        Some(source) => match collect(source, &questions, &mut memory.gaps, moment.now).await {
            Ok(found) => (Some(found), "ok"),
            Err(error) => {
                tracing::warn!(%error, "no metrics of GPUs: no GPU counts as idle in this pass");
                (None, error.category())
            }
        },
    };
    context
        .metrics
        .idle_passes
        .get_or_create(&ResultLabels { result })
        .inc();
    found
}

/// Writes what was decided about a tenant: first where the workloads are, then the warnings. A workload of which the host refuses to change a pod is
/// not due.
async fn carry_out(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &ObservedTenant,
    decisions: &mut [Decision],
    unrequested: &UnrequestedByTenant,
) -> Result<(), crate::error::ReconcileError> {
    let before = memory.states(tenant).clone();
    let report = pass::report(&tenant.policy, decisions);
    let report = nodes::with_idle_nodes(report, unrequested.get(&tenant.uid));
    let report = memory.inside(tenant).complete(report, tenant.published());
    status::write(context, tenant, Some(&report)).await?;
    memory.remember(tenant, pass::states_after(decisions, &before));
    let new: Vec<&Decision> = decisions.iter().filter(|decision| decision.is_new(&before)).collect();
    warn::publish_on_tenant(context, tenant, &new).await;
    for decision in decisions {
        let Err(error) = warn::update_pods(context, memory, tenant, decision).await else {
            continue;
        };
        // Who may not have been warned gets the time of the step again.
        if error.refusal().is_none() {
            memory.pause(tenant);
            return Err(error);
        }
        tracing::warn!(
            tenant = tenant.id.slug(),
            workload = ?decision.workload,
            %error,
            "cannot warn a workload: it is not reclaimed in this pass"
        );
        memory.pause_workload(tenant, &decision.workload);
        if let Some(state) = &mut decision.state {
            state.paused = true;
        }
    }
    Ok(())
}

/// Takes back what earlier passes wrote about the pods of a tenant whose class no longer reclaims GPUs.
async fn clear(
    context: &IdleGpusContext,
    memory: &mut Memory,
    tenant: &ObservedTenant,
    pods: &[Arc<GpuPod>],
    unrequested: &UnrequestedByTenant,
) {
    memory.forget(tenant);
    let report = nodes::with_idle_nodes(IdleStatus::default(), unrequested.get(&tenant.uid));
    let report = memory.inside(tenant).complete(report, tenant.published());
    // What was stopped stays stopped until the team wants it back.
    let is_empty = report.stopped_owners.is_empty() && report.nodes.is_empty();
    let report = (!is_empty).then_some(report);
    let cleared = async {
        status::write(context, tenant, report.as_ref()).await?;
        warn::clear_pods(context, memory, pods).await
    };
    if let Err(error) = cleared.await {
        tracing::warn!(tenant = tenant.id.slug(), %error, "cannot take back which GPUs are idle; trying again");
    }
}

/// The GPUs of a tenant by what they do. Counts the seconds since the pass before for those that are idle.
fn count(
    metrics: &Metrics,
    tenant: &ObservedTenant,
    decisions: &[Decision],
    seconds: u64,
) -> Vec<(GpuActivityLabels, i64)> {
    let mut gpus: HashMap<&'static str, u32> = HashMap::from([("active", 0), ("idle", 0), ("unknown", 0)]);
    for decision in decisions {
        let activity = match decision.verdict {
            Verdict::Active => "active",
            Verdict::Idle => "idle",
            Verdict::Unknown(_) => "unknown",
        };
        let sum = gpus.entry(activity).or_default();
        *sum = sum.saturating_add(decision.gpus);
    }
    let labels = tenant.labels();
    let values = gpus.iter().map(|(activity, sum)| {
        let labels = GpuActivityLabels {
            tenant_namespace: labels.tenant_namespace.clone(),
            tenant: labels.tenant.clone(),
            activity,
        };
        (labels, i64::from(*sum))
    });
    let values = values.collect();
    let idle = u64::from(gpus.get("idle").copied().unwrap_or_default());
    metrics
        .idle_gpu_seconds
        .get_or_create(&labels)
        .inc_by(idle.saturating_mul(seconds));
    values
}
