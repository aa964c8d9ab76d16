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
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
    runtime::reflector::ObjectRef,
};

/// What is published for a tenant that falls asleep or sleeps: a stop, whatever its policies say.
fn stop_of_sleep(status: Option<&TenantClusterStatus>) -> Option<TenantScheduleSpec> {
    let sleep = status?.sleep.as_ref().filter(|sleep| sleep.state.stops_pods())?;
    let stop = SchedulePeriod {
        from: sleep.since.clone()?,
        state: ScheduleState::Stopped,
        policy_name: None,
        window_name: None,
        warning_period_seconds: None,
        eviction_timeout_seconds: Some(berth_sleep::EVICTION_TIMEOUT_SECONDS.into()),
    };
    Some(TenantScheduleSpec {
        tenant: vec![stop],
        workloads: Vec::new(),
    })
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
    let by_policies = || {
        context.schedules.publish(
            &context.stores,
            &tenant.cluster,
            before.as_deref().map(|before| &before.spec),
        )
    };
    let wanted = stop_of_sleep(tenant.cluster.status.as_ref()).or_else(by_policies);
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
