//! Publishing the `TenantSchedule`.

use super::{
    super::{build::host_objects::tenant_labels, context::TenantContext},
    Accepted,
};
use crate::{
    apply::{is_status, optional},
    error::{ReconcileError, api},
};
use berth_api::{
    SchedulePeriod, ScheduleState, TENANT_SCHEDULE, TenantClusterStatus, TenantSchedule, TenantScheduleSpec, labels,
};
use berth_schedules::periods::{is_of_sleep, with_sleep};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    runtime::reflector::ObjectRef,
};

/// The stop of a tenant that falls asleep or sleeps.
fn stop_of_sleep(status: Option<&TenantClusterStatus>) -> Option<SchedulePeriod> {
    let sleep = status?.sleep.as_ref().filter(|sleep| sleep.state.stops_pods())?;
    Some(SchedulePeriod {
        from: sleep.since.clone()?,
        state: ScheduleState::Stopped,
        policy_name: None,
        window_name: None,
        warning_period_seconds: None,
        eviction_timeout_seconds: Some(berth_sleep::EVICTION_TIMEOUT_SECONDS.into()),
    })
}

/// What is published by now, if that is the stop of this sleep: it stays as it is until the tenant is awake, whatever policies say meanwhile.
fn published_sleep(before: Option<&TenantScheduleSpec>, stop: &SchedulePeriod) -> Option<TenantScheduleSpec> {
    let before = before?;
    let last = before.tenant.last()?;
    (is_of_sleep(last) && last.from == stop.from).then(|| before.clone())
}

/// Applies the `TenantSchedule` in the control-plane namespace, or deletes it if the tenant has no policies. Writes only what differs, which
/// is once for each change of a state.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn publish_schedule(context: &TenantContext, accepted: &Accepted) -> Result<(), ReconcileError> {
    let tenant = &accepted.tenant;
    let namespace = tenant.id.control_plane_namespace();
    let published: Api<TenantSchedule> = Api::namespaced(context.client.clone(), &namespace);
    let object = ObjectRef::new(TENANT_SCHEDULE).within(&namespace);
    let before = context.stores.tenant_schedules.get(&object);
    let known = before.as_deref().map(|before| &before.spec);
    let by_policies = || context.schedules.publish(&context.stores, &tenant.cluster, known);
    let wanted = match stop_of_sleep(tenant.cluster.status.as_ref()) {
        Some(stop) => Some(published_sleep(known, &stop).unwrap_or_else(|| with_sleep(by_policies(), stop))),
        None => by_policies(),
    };
    let Some(spec) = wanted else {
        if before.is_none() {
            return Ok(());
        }
        let deleted = published.delete(TENANT_SCHEDULE, &DeleteParams::default()).await;
        return match optional(deleted) {
            Err(error) if !is_status(&error, 409) => Err(api("delete a TenantSchedule")(error)),
            _ => Ok(()),
        };
    };
    if before.is_some_and(|before| before.spec == spec) {
        return Ok(());
    }
    let mut wanted = TenantSchedule::new(TENANT_SCHEDULE, spec);
    wanted.metadata.labels = Some(tenant_labels(&tenant.cluster, &tenant.id));
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    published
        .patch(TENANT_SCHEDULE, &params, &Patch::Apply(&wanted))
        .await
        .map_err(api("publish the schedule"))?;
    Ok(())
}
