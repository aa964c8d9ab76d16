//! What the quotas of its Project mean for a tenant. They are decided for all tenants at once, by the controller of quotas.

use super::{
    context::TenantContext,
    error::{TenantError, in_step},
    settings::Settings,
    status,
    target::Tenant,
};
use crate::{
    key::Key,
    quota_ledger::{LEFT_PROJECT, NO_PROJECT, Verdict},
    tenant_state::is_created,
};
use berth_api::{
    ControlPlaneServiceType, QuotaReservation, TenantCluster, TenantClusterStatus, TenantLimits, TreeResource,
    conditions::{ConditionUpdate, QUOTA_RESERVED},
};
use berth_quota::{Amounts, OverQuota};
use kube::ResourceExt;
use std::{collections::BTreeMap, sync::atomic::Ordering};

/// The condition that a verdict means. None for a tenant that never belonged to a Project.
pub(super) fn condition(cluster: &TenantCluster, verdict: &Verdict) -> Option<ConditionUpdate> {
    match verdict {
        Verdict::NoProject => {
            let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
            let had_one = conditions.any(|condition| condition.type_ == QUOTA_RESERVED);
            let message = "no Project names the namespace of the TenantCluster, so that no quota applies";
            had_one.then(|| ConditionUpdate::mark_true(QUOTA_RESERVED, NO_PROJECT, message))
        }
        Verdict::Reserved { reservation, over } => Some(reserved_condition(reservation, over)),
        Verdict::Waiting {
            reason: LEFT_PROJECT,
            message,
            ..
        } => Some(ConditionUpdate::mark_unknown(QUOTA_RESERVED, LEFT_PROJECT, message)),
        Verdict::Waiting {
            kept,
            over,
            reason,
            message,
        } => {
            let beyond = kept.as_ref().and_then(|kept| describe_over(kept, over));
            let message = beyond.map_or_else(|| message.clone(), |beyond| format!("{message}. Besides, {beyond}"));
            Some(ConditionUpdate::mark_false(QUOTA_RESERVED, reason, message))
        }
    }
}

/// Lowers limits that a class sets for a tenant whose spec is not accepted, or waits: without quota, no limit is higher than those
/// that it runs with.
pub(super) fn restrict(settings: &mut Settings, running: &TenantLimits, verdict: Option<&Verdict>) {
    let has_quota = verdict.is_some_and(|verdict| verdict.allows(&settings.limits, settings.endpoint.kind));
    if !has_quota {
        TreeResource::lower_limits(&mut settings.limits, running);
    }
}

/// The amounts beyond which a tenant may not grow, by the names of the host's `ResourceQuota`: what is reserved for it, and where that is more than
/// the quotas allow now, what they allow, or what it uses if that is more. So it has no more than it has reserved also of what its class does not limit.
/// What the `service` of its API server is of that is not in the workload namespace. While the verdict `is_undecided`, what the status says is not
/// exceeded either: the next process knows no more. None: nothing is decided yet.
pub(super) fn ceilings(
    context: &TenantContext,
    cluster: &TenantCluster,
    (verdict, is_undecided): (Option<&Verdict>, bool),
    service: ControlPlaneServiceType,
) -> Option<BTreeMap<String, u64>> {
    let verdict = verdict?;
    let measured = context.quotas.measured();
    let used = measured.tenants.get(&cluster.uid()?).map(|used| &used.amounts);
    let reserved = verdict.reservation().map(read_amounts).unwrap_or_default();
    let status = cluster.status.as_ref().filter(|_| is_undecided);
    let recorded = status.and_then(|status| status.quota.as_ref()).map(read_amounts);
    Some(build_ceilings(
        (reserved, recorded.as_ref()),
        &verdict.over(),
        used,
        service,
    ))
}

/// What a tenant has by its reservation: nothing of what is not counted yet, unless that has a limit because no quota limits it.
fn read_amounts(reservation: &QuotaReservation) -> Amounts {
    let reserved = reservation.reserved.iter().map(|(name, amount)| (name, *amount));
    let uncounted = reservation.uncounted.iter().map(|name| (name, 0));
    let amounts = uncounted.chain(reserved);
    amounts
        .map(|(name, amount)| (TreeResource::from(name.clone()), amount))
        .collect()
}

/// Of what is not measured, the tenant gets no more than the quotas allow. And no more than what is `recorded`, if that counts.
fn build_ceilings(
    (reserved, recorded): (Amounts, Option<&Amounts>),
    over: &OverQuota,
    used: Option<&Amounts>,
    service: ControlPlaneServiceType,
) -> BTreeMap<String, u64> {
    let mut amounts = reserved;
    for (resource, allowed) in over {
        let used = used.and_then(|used| used.get(resource)).copied().unwrap_or_default();
        amounts.insert(resource.clone(), used.max(*allowed));
    }
    for (resource, recorded) in recorded.into_iter().flatten() {
        let amount = amounts.entry(resource.clone()).or_insert(*recorded);
        *amount = (*amount).min(*recorded);
    }
    let mut ceilings = BTreeMap::new();
    for (resource, amount) in amounts {
        let ceiling = amount.saturating_sub(resource.used_by_service(service));
        let names = resource.counted_names().into_iter();
        ceilings.extend(names.map(|name| (name.to_owned(), ceiling)));
    }
    ceilings
}

fn reserved_condition(reservation: &QuotaReservation, over: &OverQuota) -> ConditionUpdate {
    let project = &reservation.project_name;
    let kept = describe_above_limits(reservation);
    let Some(message) = describe_over(reservation, over) else {
        return match kept {
            None => {
                let message = format!("Project {project} has quota for the tenant");
                ConditionUpdate::mark_true(QUOTA_RESERVED, "Reserved", message)
            }
            Some(kept) => ConditionUpdate::mark_true(QUOTA_RESERVED, "AboveLimits", kept),
        };
    };
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
    if is_created(&tenant.cluster) || tenant.memory.is_without_project.load(Ordering::Relaxed) {
        return Ok(false);
    }
    let namespace = tenant.cluster.namespace().unwrap_or_default();
    let projects = &context.tenants.listed_projects;
    let is_named = projects.include(&namespace, &context.client).await;
    let is_named = is_named.map_err(in_step(TenantError::Quota))?;
    tenant.memory.is_without_project.store(!is_named, Ordering::Relaxed);
    Ok(is_named)
}

/// What is reserved beyond the quotas, and what follows; none if nothing is.
fn describe_over(reservation: &QuotaReservation, over: &OverQuota) -> Option<String> {
    let beyond = over.iter().map(|(resource, allowed)| {
        let name = resource.as_str();
        let reserved = reservation.reserved.get(name).copied().unwrap_or_default();
        let (reserved, allowed) = (resource.format_amount(reserved), resource.format_amount(*allowed));
        format!("{name} (reserved {reserved}, allowed {allowed})")
    });
    let beyond: Vec<String> = beyond.collect();
    (!beyond.is_empty()).then(|| {
        format!(
            "the tenant has more than the quotas of Project {} allow now: {}; what exists goes on. What the host counts cannot grow until \
             the tenant is within the quotas: delete objects in the tenant, or ask the platform team for more quota",
            reservation.project_name,
            beyond.join(", ")
        )
    })
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
/// tenant is reconciled again as soon as the watch shows it. If somebody has written the status since the watch showed it, something else may have to
/// be decided: nothing is written, and quotas are decided again.
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
    // Whatever the spec says by now: what is recorded was decided.
    if !status::write_unless_changed(context, cluster, &after, |_| ()).await? {
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
        let within = OverQuota::new();
        assert_eq!(reserved_condition(&reservation, &within).reason, "Reserved");
        reservation.above_limits = [("pods".to_owned(), 5)].into();
        let condition = reserved_condition(&reservation, &within);
        assert_eq!((condition.status, condition.reason), (Some(true), "AboveLimits"));
        assert!(
            condition.message.contains("pods (reserved 7, limit 2); delete"),
            "{}",
            condition.message
        );
        let over = OverQuota::from([(TreeResource::Services, 2)]);
        let condition = reserved_condition(&reservation, &over);
        assert_eq!(condition.reason, "OverQuota");
        for part in ["services (reserved 5, allowed 2)", "pods (reserved 7, limit 2)"] {
            assert!(condition.message.contains(part), "{}", condition.message);
        }
        let waiting = Verdict::Waiting {
            kept: Some(reservation),
            over,
            reason: "QuotaExceeded",
            message: "no quota is left".into(),
        };
        let cluster = TenantCluster::new("vision", berth_api::TenantClusterSpec::default());
        let message = condition_of(&cluster, &waiting);
        assert!(
            message.contains("no quota is left. Besides, the tenant has more"),
            "{message}"
        );
    }

    fn condition_of(cluster: &TenantCluster, verdict: &Verdict) -> String {
        super::condition(cluster, verdict)
            .map(|condition| condition.message)
            .unwrap_or_default()
    }

    #[test]
    fn a_tenant_over_a_quota_grows_no_more_and_keeps_what_it_uses() {
        let over = OverQuota::from([
            (TreeResource::TenantClusters, 0),
            (TreeResource::Pods, 4),
            (TreeResource::Services, 4),
            (TreeResource::Host("requests.cpu".into()), 8),
        ]);
        let used = Amounts::from([(TreeResource::Pods, 9), (TreeResource::Services, 1)]);
        let cluster_ip = ControlPlaneServiceType::ClusterIp;
        let ceilings = build_ceilings((Amounts::new(), None), &over, Some(&used), cluster_ip);
        let expected = [("count/pods", 9), ("count/services", 4), ("requests.cpu", 8)];
        assert_eq!(
            ceilings,
            expected.map(|(name, amount)| (name.to_owned(), amount)).into()
        );
        assert_eq!(
            build_ceilings((Amounts::new(), None), &over, None, cluster_ip)["count/pods"],
            4,
            "its use is not known"
        );
    }

    #[test]
    fn no_tenant_grows_beyond_what_is_reserved_for_it() {
        let reserved = Amounts::from([
            (TreeResource::TenantClusters, 1),
            (TreeResource::Pods, 9),
            (TreeResource::NodePorts, 3),
            (TreeResource::RequestsStorage, 0),
        ]);
        let over = OverQuota::from([(TreeResource::Pods, 4)]);
        let ceilings = |used: Option<&Amounts>| {
            let ceilings = build_ceilings((reserved.clone(), None), &over, used, ControlPlaneServiceType::NodePort);
            ["count/pods", "services.nodeports", "requests.storage"].map(|name| ceilings[name])
        };
        assert_eq!(ceilings(None), [4, 2, 0]);
        let used = Amounts::from([(TreeResource::Pods, 6), (TreeResource::RequestsStorage, 7)]);
        assert_eq!(ceilings(Some(&used)), [6, 2, 0], "a decision comes first");
    }

    #[test]
    fn what_is_not_counted_yet_does_not_grow() {
        let reservation = QuotaReservation {
            reserved: [("pods".to_owned(), 9)].into(),
            uncounted: vec!["requests.cpu".into()],
            ..QuotaReservation::default()
        };
        let reserved = read_amounts(&reservation);
        let cluster_ip = ControlPlaneServiceType::ClusterIp;
        let ceilings = build_ceilings((reserved, None), &OverQuota::new(), None, cluster_ip);
        let expected = [("count/pods", 9), ("requests.cpu", 0)];
        assert_eq!(
            ceilings,
            expected.map(|(name, amount)| (name.to_owned(), amount)).into()
        );
    }

    #[test]
    fn what_is_not_counted_and_has_no_quota_grows_to_the_limit_of_the_class() {
        let reservation = QuotaReservation {
            reserved: [("requests.cpu".to_owned(), 9)].into(),
            uncounted: vec!["requests.cpu".into()],
            ..QuotaReservation::default()
        };
        let cluster_ip = ControlPlaneServiceType::ClusterIp;
        let reserved = read_amounts(&reservation);
        let ceilings = build_ceilings((reserved, None), &OverQuota::new(), None, cluster_ip);
        assert_eq!(ceilings, [("requests.cpu".to_owned(), 9)].into());
    }

    #[test]
    fn what_is_not_recorded_yet_raises_nothing() {
        let cpu = || TreeResource::Host("requests.cpu".into());
        let recorded = Amounts::from([(TreeResource::Pods, 6), (TreeResource::Services, 6), (cpu(), 6)]);
        // More, less, and no limit any more.
        let decided = Amounts::from([(TreeResource::Pods, 10), (TreeResource::Services, 2)]);
        let cluster_ip = ControlPlaneServiceType::ClusterIp;
        let ceilings = build_ceilings((decided, Some(&recorded)), &OverQuota::new(), None, cluster_ip);
        let expected = [("count/pods", 6), ("count/services", 2), ("requests.cpu", 6)];
        assert_eq!(
            ceilings,
            expected.map(|(name, amount)| (name.to_owned(), amount)).into()
        );
    }

    #[test]
    fn the_load_balancer_of_the_api_server_is_one_of_those_that_a_quota_allows() {
        let over = OverQuota::from([(TreeResource::LoadBalancers, 1)]);
        let used = Amounts::from([(TreeResource::LoadBalancers, 3)]);
        let ceiling = |used: Option<&Amounts>, service| build_ceilings((Amounts::new(), None), &over, used, service)["services.loadbalancers"];
        assert_eq!(ceiling(Some(&used), ControlPlaneServiceType::LoadBalancer), 2);
        assert_eq!(ceiling(None, ControlPlaneServiceType::LoadBalancer), 0);
        assert_eq!(ceiling(None, ControlPlaneServiceType::NodePort), 1);
    }
}
