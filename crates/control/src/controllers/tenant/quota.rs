//! What the quotas of its Project mean for a tenant. They are decided for all tenants at once, by the controller of quotas.

use super::{context::TenantContext, error::TenantError, status};
use crate::quota_ledger::Verdict;
use berth_api::{
    QuotaReservation, TenantCluster, TenantClusterStatus, TenantLimits, TreeResource,
    conditions::{ConditionUpdate, QUOTA_RESERVED},
};

/// The condition that a verdict means. None for a tenant that never belonged to a Project.
pub(super) fn condition(cluster: &TenantCluster, verdict: &Verdict) -> Option<ConditionUpdate> {
    match verdict {
        Verdict::NoProject => {
            let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
            let had_one = conditions.any(|condition| condition.type_ == QUOTA_RESERVED);
            let message = "no Project names the namespace of the TenantCluster, so that no quota applies";
            had_one.then(|| ConditionUpdate::mark_true(QUOTA_RESERVED, "NoProject", message))
        }
        Verdict::Reserved { reservation, over } => Some(reserved_condition(reservation, over)),
        Verdict::Waiting { reason, message, .. } => {
            Some(ConditionUpdate::mark_false(QUOTA_RESERVED, reason, message.clone()))
        }
    }
}

/// Lowers limits that a class sets for a tenant whose spec is not accepted, or waits: without quota, no limit is higher than those
/// that it runs with.
pub(super) fn restrict(limits: &mut TenantLimits, running: &TenantLimits, verdict: Option<&Verdict>) {
    let has_quota = verdict.is_some_and(|verdict| verdict.allows(limits));
    if !has_quota {
        TreeResource::lower_limits(limits, running);
    }
}

fn reserved_condition(reservation: &QuotaReservation, over: &[TreeResource]) -> ConditionUpdate {
    let project = &reservation.project_name;
    if over.is_empty() {
        let message = format!("Project {project} has quota for the tenant");
        return ConditionUpdate::mark_true(QUOTA_RESERVED, "Reserved", message);
    }
    let names: Vec<&str> = over.iter().map(|resource| resource.as_str()).collect();
    let message = format!(
        "the tenant has more than the quotas of Project {project} allow now: {}; nothing is taken away",
        names.join(", ")
    );
    ConditionUpdate::mark_true(QUOTA_RESERVED, "OverQuota", message)
}

/// Writes what is reserved into the status, before anything is created that needs it. Returns whether that was necessary: then the
/// tenant is reconciled again as soon as the watch shows it.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn record(
    context: &TenantContext,
    cluster: &TenantCluster,
    verdict: &Verdict,
) -> Result<bool, TenantError> {
    let before = cluster.status.clone().unwrap_or_default();
    if before.quota.as_ref() == verdict.reservation() {
        return Ok(false);
    }
    let after = TenantClusterStatus {
        quota: verdict.reservation().cloned(),
        ..before
    };
    status::write(context, cluster, &after).await?;
    Ok(true)
}
