//! The `TenantCluster` controller.
//!
//! [`reconcile`] reads the full state each time and does not depend on what triggered it. Every step is idempotent, so that
//! control may be killed between any two instructions. What a reconcile does is in [`apply`], in the order in which a tenant
//! is built up; what it writes into the status follows from the outcome of that ([`status`]).

mod access;
mod apply;
mod argo_cd;
mod build;
mod cleanup;
mod compliance;
mod connection;
mod context;
mod datastore_usage;
mod error;
mod expiration;
mod fetch;
mod finalizer;
mod host_usage;
mod listed_projects;
mod manifests;
mod measured_use;
mod memory;
mod node_groups;
mod percent;
mod quota;
mod recorded_settings;
mod remaining;
mod reported_use;
mod rotation;
mod schedule;
mod settings;
mod sleep;
mod status;
mod target;
#[cfg(test)]
mod tests;
mod unused_nodes;
mod upgrade;
mod validate;
mod version;

pub use access::WithoutClass;
pub(in crate::controllers) use access::running_class;
pub(crate) use build::host_objects::kubeconfig_secret_name;
pub use connection::{NetworkRemote, ProbeAnswer, ProbeError, Remote};
pub use context::TenantContext;
pub use error::TenantError;
pub use memory::{TenantMemory, Tenants};
pub use settings::Settings;
pub use validate::{AvailableCapacity, Validator, validate};

use super::slots::Slot;
use crate::{error::ReconcileError, key::Key, quota_ledger::Verdict};
use apply::{Accepted, Outcome};
use berth_api::{Violation, conditions::ConditionUpdate};
use compliance::Assessment;
use expiration::Expiration;
use fetch::ObservedNodes;
use jiff::Timestamp;
use kube::{Resource, ResourceExt, runtime::reflector::ObjectRef};
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
        return Ok(cleanup::delete_orphans(context, namespace, name).await?);
    };
    let Some(uid) = cluster.uid() else { return Ok(None) };
    let tenant = Tenant::new(context, cluster, &uid, slot);
    // Until it has been asked. What fails or ends before that keeps it from being asked, and nobody knows then whether it is ready.
    tenant.memory.note_syncer(false);
    if tenant.cluster.meta().deletion_timestamp.is_some() {
        return Box::pin(cleanup::delete_tenant(context, &tenant)).await;
    }
    let predecessors = Box::pin(cleanup::delete_predecessors(context, &tenant.cluster)).await;
    let pause = Box::pin(apply_spec(context, &tenant, &uid)).await?;
    Ok([pause, predecessors].into_iter().flatten().min())
}

/// Makes a tenant that is not being deleted match its spec. Returns when to reconcile it again.
async fn apply_spec(context: &TenantContext, tenant: &Tenant, uid: &str) -> Result<Option<Duration>, TenantError> {
    let now = Timestamp::now();
    let verdict = context.quotas.begin_reconcile(&context.stores, &tenant.cluster);
    let schedule = schedule::observe(context, &tenant.cluster);
    let restriction = tenant.cluster.restricted_by_sleep(schedule.state);
    let nodes = fetch::observe_nodes(context, &tenant.cluster, restriction);
    let Some((rejection, allowed)) = Box::pin(find_settings(context, tenant, verdict.as_ref(), &nodes, now)).await?
    else {
        return Ok(Some(RECHECK));
    };
    let (accepted, violations, unknown) = match allowed {
        Ok(Some((mut settings, assessment))) => {
            settings.version = version::version_to_run(&tenant.cluster, &settings.version);
            let ceilings = quota::ceilings(context, uid, verdict.as_ref(), settings.endpoint.kind);
            let accepted = Accepted::new(tenant, settings, restriction, ceilings);
            (Some(accepted), assessment.violations, None)
        }
        Ok(None) => (None, Vec::new(), None),
        // Since when something is forbidden must not be forgotten.
        Err(error) => (None, known_violations(tenant), Some(TenantError::Settings(error))),
    };
    let settings = accepted.as_ref().map(|accepted| &accepted.settings);
    let waits_for_quota = settings.is_none() && matches!(verdict, Some(Verdict::Waiting { .. }));
    // A tenant whose pods wait for a schedule is not idle.
    let restricted = context.schedules.restricted_pods(&context.stores, &tenant.cluster);
    let may_start_pods = restricted.is_empty() && !waits_for_quota;
    let observe_expiration = || expiration::observe(context, tenant, settings, may_start_pods, now);
    // Without its settings, the status says of its end what it said before.
    let expiration = unknown.is_none().then(observe_expiration);
    if let Some(over) = expiration.as_ref().filter(|expiration| expiration.is_over()) {
        return Box::pin(expiration::delete(context, tenant, over)).await;
    }
    let sleep = match Box::pin(sleep::follow(context, tenant, settings, &schedule, now)).await? {
        FollowedSleep::Recorded(pause) => return Ok(Some(pause)),
        FollowedSleep::Stays(sleep) => sleep,
    };
    if let Some(settings) = settings
        && upgrade::record(context, tenant, settings).await?
    {
        return Ok(Some(RECHECK));
    }
    let outcome = match (&accepted, unknown) {
        (Some(accepted), _) => Box::pin(apply::apply(context, accepted, &nodes)).await,
        (None, Some(error)) => Outcome::SettingsUnknown(error),
        (None, None) => Outcome::NeverAccepted,
    };
    if outcome.errors().into_iter().any(|error| !error.is_of_tenant()) {
        // An object that this process remembers as applied may be missing.
        tenant.memory.host.forget();
    }
    let quota = verdict
        .as_ref()
        .and_then(|verdict| quota::condition(&tenant.cluster, verdict));
    let mut conditions = status::conditions(rejection.as_ref(), quota, &outcome, &nodes);
    conditions.extend(accepted.as_ref().map(|_| compliance::condition(&violations)));
    conditions.extend(schedule.condition);
    conditions.extend(expiration.as_ref().and_then(Expiration::condition));
    conditions.extend(sleep.as_deref().map(ObservedSleep::condition));
    let next_deadline = compliance::until_next_deadline(&violations, now);
    let mut wanted = status::build(tenant, settings, violations, &outcome, &nodes, &conditions);
    wanted.usage = measured_use::publish(context, tenant, uid);
    if let Some(expiration) = &expiration {
        expiration.write_to(&mut wanted);
    }
    if let Some(sleep) = &sleep {
        sleep.write_to(&mut wanted);
    }
    status::write(context, &tenant.cluster, &wanted).await?;
    let reported = match (&rejection, &verdict, settings) {
        (None, Some(verdict @ Verdict::Reserved { .. }), Some(settings)) => {
            reported_use::report(context, tenant, uid, verdict, settings, &outcome).await
        }
        _ => Ok(None),
    };
    outcome.into_result()?;
    let next_report = reported?;
    let is_sleeping = sleep.as_deref().is_some_and(ObservedSleep::is_sleeping);
    let is_settled = status::is_settled(&conditions) && wanted.upgrading_to.is_none();
    let pause = if is_sleeping || is_settled { RESYNC } else { RECHECK };
    let next_end = expiration.and_then(|expiration| expiration.until_next(Timestamp::now()));
    let next_sleep = sleep.and_then(|sleep| sleep.until_next(Timestamp::now()));
    let next_change = [next_deadline, schedule.pause, next_end, next_report, next_sleep]
        .into_iter()
        .flatten()
        .min();
    Ok(Some(next_change.map_or(pause, |next| next.min(pause))))
}

/// Settings, and what of them is not allowed; none if the tenant was never accepted.
type Allowed = Result<Option<(Settings, Assessment)>, ReconcileError>;

/// Why the spec is not accepted, if it is not, and what the tenant runs with. None: its quota has to be decided or recorded first.
async fn find_settings(
    context: &TenantContext,
    tenant: &Tenant,
    verdict: Option<&Verdict>,
    nodes: &ObservedNodes,
    now: Timestamp,
) -> Result<Option<(Option<ConditionUpdate>, Allowed)>, TenantError> {
    let validator = || {
        Validator::new(
            &context.stores,
            context.runtime.as_ref(),
            &context.network_config,
            context.without_class,
        )
    };
    let validity = validator().resolve(&tenant.cluster);
    let is_waiting = matches!(verdict, Some(Verdict::Waiting { .. }));
    let rejection = match validity {
        Ok(settings) if !is_waiting => {
            let Some(verdict) = verdict.filter(|verdict| verdict.allows(&settings.limits, settings.endpoint.kind))
            else {
                // The decision wakes the tenant.
                context.queue.add(Key::Quotas);
                return Ok(None);
            };
            if *verdict == Verdict::NoProject && quota::has_unseen_project(context, tenant).await? {
                // The Project wakes the decision as soon as the watch shows it.
                return Ok(None);
            }
            if quota::record(context, &tenant.cluster, verdict).await? {
                return Ok(None);
            }
            finalizer::add(context, &tenant.cluster).await?;
            context.queue.add(Key::Fleet);
            let held = validator().hold_storage_to_rules(&tenant.cluster, settings, now);
            return Ok(Some((None, Ok(Some(held)))));
        }
        // Until there is quota, it runs with what it has.
        Ok(_) => None,
        Err(rejection) => Some(rejection),
    };
    if let Some(verdict) = verdict
        && quota::record(context, &tenant.cluster, verdict).await?
    {
        return Ok(None);
    }
    let loaded = recorded_settings::load(context, tenant).await;
    let hold = |accepted: Settings| {
        let limits = accepted.limits.clone();
        let (mut settings, assessment) = validator().hold_to_rules(&tenant.cluster, accepted, nodes, now);
        quota::restrict(&mut settings, &limits, verdict);
        (settings, assessment)
    };
    Ok(Some((rejection, loaded.map(|settings| settings.map(hold)))))
}

/// What the status says that is not allowed.
fn known_violations(tenant: &Tenant) -> Vec<Violation> {
    let status = tenant.cluster.status.as_ref();
    status.map(|status| status.violations.clone()).unwrap_or_default()
}
