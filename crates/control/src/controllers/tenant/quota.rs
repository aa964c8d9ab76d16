//! What the quotas of its Project mean for a tenant. They are decided for all tenants at once, by the controller of quotas.

use super::{
    context::TenantContext,
    error::{TenantError, in_step},
    status,
    target::Tenant,
};
use crate::{key::Key, quota_ledger::Verdict};
use berth_api::{
    QuotaReservation, TenantCluster, TenantClusterStatus, TenantLimits, TreeResource,
    conditions::{ConditionUpdate, QUOTA_RESERVED},
};
use kube::ResourceExt;
use std::sync::atomic::Ordering;

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
    let kept = describe_above_limits(reservation);
    if over.is_empty() {
        return match kept {
            None => {
                let message = format!("Project {project} has quota for the tenant");
                ConditionUpdate::mark_true(QUOTA_RESERVED, "Reserved", message)
            }
            Some(kept) => ConditionUpdate::mark_true(QUOTA_RESERVED, "AboveLimits", kept),
        };
    }
    let names: Vec<&str> = over.iter().map(berth_api::TreeResource::as_str).collect();
    let message = format!(
        "the tenant has more than the quotas of Project {project} allow now: {}; nothing is taken away",
        names.join(", ")
    );
    let message = kept.map_or_else(|| message.clone(), |kept| format!("{message}. Besides, {kept}"));
    ConditionUpdate::mark_true(QUOTA_RESERVED, "OverQuota", message)
}

/// Whether a Project names the namespace of a tenant that is about to be created without quota: then the watch is behind. It is asked
/// once for each tenant, and not for those that run. The watch has shown the tenant, so a list that is requested now has all Projects
/// that are older.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn has_unseen_project(context: &TenantContext, tenant: &Tenant) -> Result<bool, TenantError> {
    let status = tenant.cluster.status.as_ref();
    let runs = status.is_some_and(|status| status.control_plane_namespace.is_some());
    if runs || tenant.memory.is_without_project.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let namespace = tenant.cluster.namespace().unwrap_or_default();
    let projects = &context.tenants.listed_projects;
    let is_named = projects.include(&namespace, &context.client).await;
    let is_named = is_named.map_err(in_step(TenantError::Quota))?;
    tenant.memory.is_without_project.store(!is_named, Ordering::Relaxed);
    Ok(is_named)
}

/// What is reserved beyond the limits of the tenant, and what to delete; none if nothing is.
fn describe_above_limits(reservation: &QuotaReservation) -> Option<String> {
    let above = reservation.above_limits.iter().map(|(resource, above)| {
        let reserved = reservation.reserved.get(resource).copied().unwrap_or_default();
        format!(
            "{resource} (reserved {reserved}, limit {})",
            reserved.saturating_sub(*above)
        )
    });
    let above: Vec<String> = above.collect();
    (!above.is_empty()).then(|| {
        format!(
            "the limits of the tenant are lower than what is reserved for it: {}; delete objects of these kinds in the tenant until it is \
             within its limits. What it still has, or is not measured yet, stays reserved",
            above.join(", ")
        )
    })
}

/// Writes what is reserved into the status, before anything is created that needs it. Returns whether that was necessary: then the
/// tenant is reconciled again as soon as the watch shows it. An object that was changed since the watch showed it may be one about which
/// something else has to be decided: nothing is written, and quotas are decided again.
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
    if !status::write_unless_changed(context, cluster, &after).await? {
        context.queue.add(Key::Quotas);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stays_reserved_above_the_limits_is_named() {
        let mut reservation = QuotaReservation {
            project_name: "vision".into(),
            reserved: [("pods".to_owned(), 7), ("services".to_owned(), 5)].into(),
            ..QuotaReservation::default()
        };
        assert_eq!(reserved_condition(&reservation, &[]).reason, "Reserved");
        reservation.above_limits = [("pods".to_owned(), 5)].into();
        let condition = reserved_condition(&reservation, &[]);
        assert_eq!((condition.status, condition.reason), (Some(true), "AboveLimits"));
        assert!(
            condition.message.contains("pods (reserved 7, limit 2); delete"),
            "{}",
            condition.message
        );
        let condition = reserved_condition(&reservation, &[TreeResource::Services]);
        assert_eq!(condition.reason, "OverQuota");
        assert!(
            condition.message.contains("pods (reserved 7, limit 2)"),
            "{}",
            condition.message
        );
    }
}
