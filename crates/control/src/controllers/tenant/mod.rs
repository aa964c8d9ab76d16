//! The `TenantCluster` controller.
//!
//! [`reconcile`] reads the full state each time and does not depend on what triggered it. Every step is idempotent, so that
//! control may be killed between any two instructions. What a reconcile does is in [`apply`], in the order in which a tenant
//! is built up; what it writes into the status follows from the outcome of that ([`status`]).

mod access;
mod apply;
mod argo_cd;
mod audit_errors;
mod build;
mod cleanup;
mod compliance;
mod connection;
mod context;
mod datastore_usage;
mod encryption;
mod enforcement;
mod enforcement_places;
mod error;
mod expiration;
mod fetch;
mod finalizer;
mod host_usage;
mod issuer_memory;
mod listed_projects;
mod manifests;
mod measured_use;
mod memory;
mod node_groups;
mod own_endpoints;
mod percent;
mod plan;
mod pod_groups;
mod quota;
mod readable;
mod recorded_kinds;
mod recorded_settings;
mod remaining;
mod reported_use;
mod restore;
mod restore_finding;
mod rewriting;
mod rotation;
mod schedule;
mod settings;
mod sleep;
mod status;
mod syncer_absence;
mod target;
#[cfg(test)]
mod tests;
mod uids;
mod unused_nodes;
mod upgrade;
mod validate;
mod version;
mod withdrawn_kinds;

pub use access::WithoutClass;
pub(in crate::controllers) use access::running_class;
pub(crate) use build::host_objects::kubeconfig_secret_name;
pub(crate) use build::stored_namespace::PATH as IDENTITY_KEY;
pub use connection::{NetworkRemote, ProbeAnswer, ProbeError, Remote};
pub use context::TenantContext;
pub use error::TenantError;
pub use memory::{TenantMemory, Tenants};
pub use restore::RestoreUnderWay;
pub use settings::Settings;
pub use validate::{AvailableCapacity, Validator, validate};

use super::slots::Slot;
use crate::{key::Key, quota_ledger::Verdict};
use apply::{HostSide, Outcome};
use berth_api::names::TenantId;
use expiration::{Deletion, Expiration};
use fetch::ObservedNodes;
use kube::{Resource, ResourceExt, runtime::reflector::ObjectRef};
use plan::Plan;
use restore::Finding;
use schedule::ObservedSchedule;
use sleep::{FollowedSleep, ObservedSleep};
use std::{sync::Arc, time::Duration};
use target::Tenant;

/// Pause before a tenant that is ready is reconciled again: certificates and tokens are renewed in time, drift is corrected,
/// and a component that crashes is reported.
const RESYNC: Duration = Duration::from_secs(60);
/// Longest pause before a tenant that is not ready is reconciled again.
const RECHECK: Duration = Duration::from_secs(5);

/// Makes one tenant match its spec. Returns when to reconcile it again. While it waits for the tenant, it lends `slot` to others.
///
/// # Errors
/// A step failed; the condition of the step says so, and the queue tries again later.
pub async fn reconcile(
    context: &TenantContext,
    namespace: &str,
    name: &str,
    slot: &Arc<Slot>,
) -> Result<Option<Duration>, TenantError> {
    let Some(cluster) = context.stores.tenants.get(&ObjectRef::new(name).within(namespace)) else {
        let gone = Key::Tenant {
            namespace: namespace.into(),
            name: name.into(),
        };
        enforcement::leave_place(context, &gone);
        let pause = cleanup::delete_orphans(context, namespace, name).await?;
        // If something is left of it, the view may be late.
        if pause.is_none() {
            forget(context, name, context.tenants.uids.take_all(&gone));
        }
        return Ok(pause);
    };
    let Some(uid) = cluster.uid() else { return Ok(None) };
    // What tasks do for another one ends, before what is left of it is deleted.
    forget(context, name, context.tenants.uids.note(Key::of_tenant(&cluster), &uid));
    let tenant = Tenant::new(context, cluster, &uid, slot);
    // Until it has been asked. What fails or ends before that keeps it from being asked, and nobody knows then whether it is ready.
    tenant.memory.forget_readiness();
    tenant.memory.note_outdated(true);
    if tenant.cluster.meta().deletion_timestamp.is_some() {
        context.tenants.restores().forget(&uid);
        enforcement::leave_place(context, &tenant.key());
        return Box::pin(cleanup::delete_tenant(context, &tenant)).await;
    }
    let predecessors = Box::pin(cleanup::delete_predecessors(context, &tenant.cluster)).await;
    if predecessors.is_none() {
        forget(context, name, context.tenants.uids.take_former(&tenant.key()));
    }
    let pause = Box::pin(apply_spec(context, &tenant)).await?;
    Ok([pause, predecessors].into_iter().flatten().min())
}

/// Forgets what is remembered of TenantClusters that had this name. One for which nothing was created has no finalizer, and is gone without a clean-up: those
/// who may create some could fill the memory otherwise.
fn forget(context: &TenantContext, name: &str, uids: impl IntoIterator<Item = String>) {
    for uid in uids {
        context.tenants.forget(&uid);
        context.stores.pod_activity.forget(TenantId::new(name, &uid).slug());
    }
}

/// Makes a tenant that is not being deleted match its spec. Returns when to reconcile it again.
async fn apply_spec(context: &TenantContext, tenant: &Tenant) -> Result<Option<Duration>, TenantError> {
    let now = context.clock.now();
    let verdict = context.quotas.begin_reconcile(&context.stores, &tenant.cluster, now);
    let schedule = schedule::observe(context, &tenant.cluster);
    let restriction = tenant.cluster.restricted_by_sleep(schedule.state);
    let nodes = fetch::observe_nodes(context, &tenant.cluster, restriction);
    let Some(mut plan) = Box::pin(plan::make(
        context,
        tenant,
        verdict.as_ref(),
        (&nodes, restriction),
        now,
    ))
    .await?
    else {
        return Ok(Some(RECHECK));
    };
    let unknown = plan.unknown.take();
    let plan = &plan;
    let settings = plan.settings();
    let waits_for_quota = settings.is_none() && matches!(verdict, Some(Verdict::Waiting { .. }));
    // A tenant whose pods wait for a schedule is not idle.
    let restricted = context.schedules.restricted_pods(&context.stores, &tenant.cluster);
    let may_start_pods = restricted.is_empty() && !waits_for_quota;
    let observed = expiration::Observed {
        context,
        tenant,
        settings,
        may_start_pods,
        now,
    };
    // Without its settings or a time that is confirmed, it is not deleted, and the status says of its end what it said before.
    let is_end_known = unknown.is_none() && context.clock.is_confirmed();
    let mut expiration = is_end_known.then(|| expiration::observe(&observed));
    let deletion = match &expiration {
        Some(expiration) => Box::pin(expiration::delete(&observed, expiration)).await,
        None => Ok(Deletion::NotBegun),
    };
    if matches!(deletion, Ok(Deletion::Begun)) {
        return Ok(Some(expiration::CHANGED));
    }
    let is_extended = matches!(deletion, Ok(Deletion::Extended));
    // The next reconcile says of its end what it is by then.
    expiration = expiration.filter(|_| !is_extended);
    let undeleted = deletion.err();
    if let (Some(expiration), Some(error)) = (&mut expiration, &undeleted) {
        expiration.note_failure(error);
    }
    // Whatever else keeps this reconcile from its end: what closes on the host is applied.
    let mut host = HostSide::new(context, plan.accepted.as_ref(), &nodes);
    if (plan.waits || is_extended) && tenant.memory.may_end_early() {
        host.apply().await;
        return host.end(if is_extended { expiration::CHANGED } else { RECHECK });
    }
    let followed = Box::pin(sleep::follow(context, tenant, settings, &schedule, &mut host, now)).await;
    let sleep = match followed {
        FollowedSleep::Recorded(pause) => return host.end(pause),
        FollowedSleep::Stays(sleep) => sleep,
    };
    let outcome = match unknown {
        Some(error) => Outcome::SettingsUnknown(error),
        None => Box::pin(apply::apply(context, &nodes, host)).await,
    };
    tenant.memory.note_whole_reconcile();
    if outcome.errors().into_iter().any(TenantError::may_lack_objects) {
        // An object that this process remembers as applied may be missing.
        tenant.memory.host.forget();
    }
    let known = Known {
        plan,
        nodes: &nodes,
        verdict,
        schedule,
        expiration,
        sleep,
    };
    let pause = Box::pin(publish(context, tenant, known, outcome)).await?;
    undeleted.map_or(Ok(pause), Err)
}

/// What is known of a tenant besides the outcome of a reconcile.
struct Known<'k> {
    plan: &'k Plan,
    nodes: &'k ObservedNodes,
    verdict: Option<Verdict>,
    schedule: ObservedSchedule,
    expiration: Option<Expiration>,
    sleep: Option<Box<ObservedSleep>>,
}

/// Writes the status that follows from a reconcile. Returns when to reconcile the tenant again.
async fn publish(
    context: &TenantContext,
    tenant: &Tenant,
    known: Known<'_>,
    outcome: Outcome<'_>,
) -> Result<Option<Duration>, TenantError> {
    let Known {
        plan,
        nodes,
        verdict,
        schedule,
        expiration,
        sleep,
    } = known;
    let (settings, waits) = (plan.settings(), plan.waits);
    let uid = tenant.cluster.uid().unwrap_or_default();
    let quota = verdict
        .as_ref()
        .and_then(|verdict| quota::condition(&tenant.cluster, verdict));
    let mut conditions = status::conditions(plan.rejection.as_ref(), quota, &outcome, nodes);
    conditions.extend(settings.map(|_| compliance::condition(&plan.violations)));
    conditions.extend(schedule.condition);
    conditions.extend(expiration.as_ref().and_then(Expiration::condition));
    conditions.extend(sleep.as_deref().and_then(ObservedSleep::condition));
    let restore = context.tenants.restores().finding(&uid);
    conditions.extend(restore.as_ref().map(Finding::condition));
    conditions.extend(restore.as_ref().and_then(Finding::control_plane_condition));
    let next_deadline = compliance::until_next_deadline(&plan.violations, context.clock.now());
    // What runs is still what an earlier spec asked for.
    let generation = if waits {
        let status = tenant.cluster.status.as_ref();
        status.and_then(|status| status.observed_generation)
    } else {
        tenant.cluster.metadata.generation
    };
    let mut wanted = status::build(
        (tenant, generation, context.clock.now()),
        settings,
        &plan.violations,
        &outcome,
        nodes,
        &conditions,
    );
    wanted.usage = measured_use::publish(context, tenant, &uid);
    let over = context.tenants.restores().over(&uid);
    for finding in [&over, &restore].into_iter().flatten() {
        finding.write_to(&mut wanted);
    }
    match &expiration {
        Some(expiration) => expiration.write_to(&mut wanted),
        None => expiration::write_first_limits(&tenant.cluster, settings, &mut wanted),
    }
    if let Some(sleep) = &sleep {
        sleep.write_to(&mut wanted);
    }
    if waits || sleep.as_deref().is_some_and(ObservedSleep::is_unrecorded) {
        // What somebody has recorded meanwhile stays.
        status::write_unless_changed(context, &tenant.cluster, &wanted, |_| ()).await?;
    } else {
        status::write(context, &tenant.cluster, &wanted).await?;
    }
    let reported = match (&plan.rejection, &verdict, settings) {
        (None, Some(verdict @ Verdict::Reserved { .. }), Some(settings)) if !waits => {
            reported_use::report(context, tenant, &uid, verdict, settings, &outcome).await
        }
        _ => Ok(None),
    };
    outcome.into_result()?;
    let next_report = reported?;
    let is_looked_at_seldom = sleep.as_deref().is_some_and(ObservedSleep::is_looked_at_seldom);
    let is_settled = status::is_settled(&conditions) && wanted.upgrading_to.is_none() && !waits;
    let pause = if is_looked_at_seldom || is_settled {
        RESYNC
    } else {
        RECHECK
    };
    let now = context.clock.now();
    let next_end = expiration.and_then(|expiration| expiration.until_next(now));
    let next_sleep = sleep.and_then(|sleep| sleep.until_next(now));
    let next_change = [next_deadline, schedule.pause, next_end, next_report, next_sleep]
        .into_iter()
        .flatten()
        .min();
    Ok(Some(next_change.map_or(pause, |next| next.min(pause))))
}
