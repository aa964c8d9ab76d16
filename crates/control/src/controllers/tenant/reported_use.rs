//! What exists of a tenant whose limits are lower than what is reserved for it: the difference stays reserved until that is deleted.
//!
//! The reconcile that has enforced the lower limits reports it, so that no decision gives back what a reconcile lets the tenant have.
//! The host's API server counts objects in the same `ResourceQuota` with which it limits them; what the tenant stores is measured.

use super::{
    apply::Outcome,
    build::limits,
    context::TenantContext,
    datastore_usage::CompleteMeasurement,
    error::{TenantError, in_step},
    memory::LoweredLimits,
    settings::Settings,
    status,
    target::Tenant,
};
use crate::{controllers::quota_use::whole_units, error::api, key::Key, quota_ledger::Verdict};
use berth_api::{ControlPlaneServiceType, LIMITS_NAME, ScheduleState, TenantLimits, TreeResource};
use berth_quota::Amounts;
use berth_runtime::locks::lock;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::Api;
use std::{collections::BTreeMap, time::Duration};
use tokio::time::Instant;

/// Pause before the use is read again. Its changes wake no tenant.
pub(super) const PAUSE: Duration = Duration::from_secs(15);

/// Reports what exists of a tenant that runs with `settings`, if more is reserved for it than these need. Returns when to do so again.
///
/// # Errors
/// The host refuses or does not answer: what is reserved stays reserved.
pub(super) async fn report(
    context: &TenantContext,
    tenant: &Tenant,
    uid: &str,
    verdict: &Verdict,
    settings: &Settings,
    outcome: &Outcome<'_>,
) -> Result<Option<Duration>, TenantError> {
    let reservation = verdict.reservation();
    let is_above = reservation.is_some_and(|reservation| !reservation.above_limits.is_empty());
    let service = settings.endpoint.kind;
    let requested = requested(&settings.limits, service);
    let Some(since) = note_lowered(tenant, is_above.then_some(requested)) else {
        return Ok(None);
    };
    if !matches!(outcome, Outcome::Prepared { .. }) {
        return Ok(None);
    }
    let quotas: Api<ResourceQuota> = Api::namespaced(context.client.clone(), &tenant.id.workload_namespace());
    let read = quotas
        .get_opt(LIMITS_NAME)
        .await
        .map_err(api("read what the tenant uses of its limits"));
    let host = read.map_err(in_step(TenantError::Limits))?;
    // With schedules the limit of pods is lower for a time: what counts is how high it may be.
    let limits = &settings.limits;
    let enforced = limits::resource_quota(
        &tenant.cluster,
        &tenant.id,
        (limits, &[]),
        ScheduleState::Running,
        &BTreeMap::new(),
    );
    let mut used = host.map(|host| read_used(&host, &enforced)).unwrap_or_default();
    let namespace = tenant.id.workload_namespace();
    context.stores.storage_claims.add_excess(&namespace, &mut used);
    let stored = status::observed_usage(outcome).and_then(|observed| observed.complete);
    let stored = stored.filter(|measurement| measurement.at > since);
    if context
        .quotas
        .report_at_most(uid, at_most((limits, service), &used, stored))
    {
        context.queue.add(Key::Quotas);
    }
    Ok(Some(PAUSE))
}

/// Remembers since when the limits are enforced; none: they are not lower than what is reserved.
fn note_lowered(tenant: &Tenant, requested: Option<Amounts>) -> Option<Instant> {
    let mut lowered = lock(&tenant.memory.lowered);
    if lowered.as_ref().map(|lowered| &lowered.requested) != requested.as_ref() {
        *lowered = requested.map(|requested| LoweredLimits {
            requested,
            since: Instant::now(),
        });
    }
    lowered.as_ref().map(|lowered| lowered.since)
}

fn requested(limits: &TenantLimits, service: ControlPlaneServiceType) -> Amounts {
    let resources = TreeResource::listed_in([limits]).into_iter();
    resources
        .filter_map(|resource| {
            let amount = resource.reserved_by(limits, service)?;
            Some((resource, amount))
        })
        .collect()
}

/// What the host has counted, of the resources for which it enforces no more than it should.
fn read_used(host: &ResourceQuota, enforced: &ResourceQuota) -> BTreeMap<String, u64> {
    let status = host.status.clone().unwrap_or_default();
    let (hard, used) = (status.hard.unwrap_or_default(), status.used.unwrap_or_default());
    let limits = enforced.spec.iter().flat_map(|spec| &spec.hard).flatten();
    let known = limits.filter_map(|(resource, limit)| {
        let (hard, used) = (whole_units(hard.get(resource)?)?, whole_units(used.get(resource)?)?);
        (hard <= whole_units(limit)?).then(|| (resource.clone(), used))
    });
    known.collect()
}

/// The most that can exist of a tenant with these limits and this Service of its API server, which is in another namespace than what
/// the host has counted: see [`berth_quota::Claim::at_most`].
fn at_most(
    (limits, service): (&TenantLimits, ControlPlaneServiceType),
    used: &BTreeMap<String, u64>,
    stored: Option<CompleteMeasurement>,
) -> Amounts {
    let exists = |resource: &TreeResource| match resource {
        TreeResource::TenantClusters => Some(1),
        TreeResource::DatastoreBytes => stored.map(|stored| stored.bytes),
        TreeResource::DatastoreObjects => stored.map(|stored| stored.objects),
        counted => {
            let used = counted.used_in(|name| used.get(name).copied());
            used.map(|used| used.saturating_add(counted.used_by_service(service)))
        }
    };
    let limits = requested(limits, service).into_iter();
    limits
        .filter_map(|(resource, limit)| {
            let exists = exists(&resource)?;
            Some((resource, exists.max(limit)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn quota(spec: &Value, hard: &Value, used: &Value) -> ResourceQuota {
        serde_json::from_value(json!({
            "metadata": {}, "spec": {"hard": spec}, "status": {"hard": hard, "used": used},
        }))
        .unwrap()
    }

    #[test]
    fn what_the_host_counts_is_known_once_it_enforces_the_limit() {
        let enforced = quota(
            &json!({"count/pods": "2", "count/services": "5", "requests.storage": "1Ti"}),
            &json!({}),
            &json!({}),
        );
        let spec = json!({});
        let host = quota(
            &spec,
            &json!({"count/pods": "10", "count/services": "5", "requests.storage": "1024Gi"}),
            &json!({"count/pods": "1", "count/services": "7", "requests.storage": "50Gi"}),
        );
        let used = read_used(&host, &enforced);
        assert_eq!(
            used,
            [
                ("count/services".to_owned(), 7),
                ("requests.storage".to_owned(), 50 << 30)
            ]
            .into()
        );
        assert!(read_used(&quota(&spec, &spec, &json!({"count/pods": "1"})), &enforced).is_empty());
        assert!(read_used(&ResourceQuota::default(), &enforced).is_empty());
    }

    #[test]
    fn the_most_that_can_exist_is_what_exists_or_the_limit() {
        let limits = TenantLimits {
            pods: 2,
            services: 5,
            datastore_bytes: "1Mi".into(),
            datastore_objects: 100,
            ..TenantLimits::default()
        };
        let used = [("count/pods".to_owned(), 7), ("count/services".to_owned(), 1)].into();
        let tenant = (&limits, ControlPlaneServiceType::ClusterIp);
        let known = at_most(tenant, &used, None);
        assert_eq!((known[&TreeResource::Pods], known[&TreeResource::Services]), (7, 5));
        assert_eq!(known[&TreeResource::TenantClusters], 1);
        for unknown in [
            TreeResource::DatastoreBytes,
            TreeResource::NodePorts,
            TreeResource::RequestsStorage,
        ] {
            assert_eq!(known.get(&unknown), None, "{unknown:?}");
        }
        let stored = CompleteMeasurement {
            at: Instant::now(),
            bytes: 3 << 20,
            objects: 7,
        };
        let known = at_most(tenant, &used, Some(stored));
        assert_eq!(known[&TreeResource::DatastoreBytes], 3 << 20);
        assert_eq!(known[&TreeResource::DatastoreObjects], 100);
    }

    #[test]
    fn the_service_of_the_api_server_exists_as_well() {
        let limits = TenantLimits {
            load_balancers: 2,
            ..TenantLimits::default()
        };
        let exists = |in_workloads: u64, service| {
            let used = [("services.loadbalancers".to_owned(), in_workloads)].into();
            at_most((&limits, service), &used, None)[&TreeResource::LoadBalancers]
        };
        assert_eq!(exists(1, ControlPlaneServiceType::LoadBalancer), 3);
        assert_eq!(exists(5, ControlPlaneServiceType::LoadBalancer), 6);
        assert_eq!(exists(5, ControlPlaneServiceType::NodePort), 5);
    }
}
