//! Host nodes: which tenant has which, decided by the pure [planner](berth_planner) and applied by the [`executor`].
//!
//! The assignment on the Node object is the only record of its tenant, all of it set in one patch that fails if the node
//! changed meanwhile. [`berth_node_lifecycle`] builds the planner's snapshot from that assignment and from waiting pods.

mod context;
mod control_plane_nodes;
mod executor;
mod gone_tenants;
pub mod jobs;
mod observe;
mod placeholders;
mod records;
pub mod requested;
mod status;

pub use context::NodesContext;

use crate::{controllers::schedule_policy::pause_until, error::ReconcileError, key::Key, metrics::ViolationLabels};
use berth_planner::{Fleet, Plan};
use observe::ObservedFleet;
use std::time::Duration;

/// Plans once and executes the plan. Returns when to check again, if something is in progress.
///
/// # Errors
/// The host's API server refuses or does not answer. Conflicts are no errors: the watch brings the newer node, and with
/// it the next plan.
pub async fn reconcile(context: &NodesContext) -> Result<Option<Duration>, ReconcileError> {
    let now = context.clock.now();
    let ObservedFleet {
        fleet,
        demand,
        next_schedule,
    } = observe::observe_fleet(context, now);
    if context.quotas.set_gpu_use(observe::sum_gpus(&fleet)) {
        context.queue.add(Key::Quotas);
    }
    let plan = berth_planner::plan(&fleet);
    report_violations(context, &fleet, &plan);
    status::update_group_status(context, &plan);
    status::update_unavailable_nodes(context, &fleet);
    status::update_pool_health(context, &plan);
    // These do not depend on each other: all of them run even if one fails.
    let (executed, kept) = executor::execute_plan(context, &plan.actions).await;
    // A release that failed is planned again: it must not count twice.
    status::update_unused_nodes(context, &fleet, &plan, &kept, &demand.without_turn);
    let recorded = records::write_records(context, &fleet).await;
    let placeholders = placeholders::reconcile(context, &plan, &demand).await;
    let control_plane = control_plane_nodes::reconcile(context).await;
    recorded?;
    let plan_again = plan.replan_at.map(|at| seconds(at - fleet.now));
    let demand_again = demand.again_at.map(|at| seconds(at - fleet.now));
    let rejected_again = context.rejected_nodes.seconds_until_next_retry(now.as_second());
    let scheduled = next_schedule.map(|next| pause_until(now, Some(next)));
    let pauses = [
        executed?,
        placeholders,
        control_plane,
        plan_again,
        demand_again,
        rejected_again.map(seconds),
        scheduled,
    ];
    Ok(pauses.into_iter().flatten().min())
}

/// Counts and logs the rules that a plan breaks: there should be none. The plan is executed all the same, since each of its
/// actions is checked against its node again.
fn report_violations(context: &NodesContext, fleet: &Fleet, plan: &Plan) {
    for violation in berth_planner::check(fleet, plan) {
        let kind = violation.kind();
        let labels = ViolationLabels { kind };
        context.metrics.plan_violations.get_or_create(&labels).inc();
        tracing::error!(kind, %violation, "a plan breaks a rule");
    }
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default().max(1))
}
