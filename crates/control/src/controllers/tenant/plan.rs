//! Decides what a tenant runs with in a reconcile: what its spec asks for, once its class allows that and its quota is recorded, and otherwise what it was
//! accepted with last, under the rules of now. So neither a spec that is not accepted nor one that changes all the time keeps a rule away.

use super::{
    apply::Accepted, compliance::Assessment, context::TenantContext, error::TenantError, fetch::ObservedNodes,
    finalizer, quota, recorded_settings, settings::Settings, target::Tenant, upgrade, validate::Validator, version,
};
use crate::{error::ReconcileError, key::Key, quota_ledger::Verdict, tenant_state::is_created};
use berth_api::{ScheduleState, Violation, conditions::ConditionUpdate};
use jiff::Timestamp;

/// What a reconcile is made with.
pub(super) struct Plan {
    /// Why the spec is not accepted, if it is not.
    pub(super) rejection: Option<ConditionUpdate>,
    /// None: the tenant was never accepted, or its settings are not known.
    pub(super) accepted: Option<Accepted>,
    /// What of the settings is not allowed.
    pub(super) violations: Vec<Violation>,
    /// Why the settings are not known.
    pub(super) unknown: Option<TenantError>,
    /// Whether something has to be decided or recorded before the tenant gets what its spec asks for.
    pub(super) waits: bool,
}

impl Plan {
    /// What the tenant runs with.
    pub(super) fn settings(&self) -> Option<&Settings> {
        self.accepted.as_ref().map(|accepted| &accepted.settings)
    }
}

/// Settings, and what of them is not allowed; none if the tenant was never accepted.
type Allowed = Result<Option<(Settings, Assessment)>, ReconcileError>;

/// What a tenant may run with.
struct Found {
    rejection: Option<ConditionUpdate>,
    allowed: Allowed,
    /// Whether its quota has to be decided or recorded first. Until then, a tenant that runs has what it was accepted with last.
    is_undecided: bool,
}

/// Decides what a tenant runs with. `restriction` is what its schedules and its sleep let it do. None: nothing of the tenant was created yet, or its status
/// does not say so, and its quota or its version has to be decided or recorded first.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn make(
    context: &TenantContext,
    tenant: &Tenant,
    verdict: Option<&Verdict>,
    (nodes, restriction): (&ObservedNodes, ScheduleState),
    now: Timestamp,
) -> Result<Option<Plan>, TenantError> {
    let Some(found) = Box::pin(find_settings(context, tenant, verdict, nodes, now)).await? else {
        return Ok(None);
    };
    let Found {
        rejection,
        allowed,
        is_undecided,
    } = found;
    let mut waits = is_undecided;
    let (accepted, violations, unknown) = match allowed {
        Ok(Some((mut settings, assessment))) => {
            settings.version = version::version_to_run(&tenant.cluster, &settings.version);
            waits |= upgrade::record(context, tenant, &mut settings).await;
            let verdict = (verdict, is_undecided);
            let ceilings = quota::ceilings(context, &tenant.cluster, verdict, settings.endpoint.kind);
            let accepted = Accepted::new(tenant, settings, restriction, ceilings);
            (Some(accepted), assessment.violations, None)
        }
        Ok(None) => (None, Vec::new(), None),
        // Since when something is forbidden must not be forgotten.
        Err(error) => (None, known_violations(tenant), Some(TenantError::Settings(error))),
    };
    Ok(Some(Plan {
        rejection,
        accepted,
        violations,
        unknown,
        waits,
    }))
}

/// Why the spec is not accepted, if it is not, and what the tenant runs with. None: the quota or the version of a tenant that does not run, or whose status
/// does not say that it does, has to be decided or recorded first.
async fn find_settings(
    context: &TenantContext,
    tenant: &Tenant,
    verdict: Option<&Verdict>,
    nodes: &ObservedNodes,
    now: Timestamp,
) -> Result<Option<Found>, TenantError> {
    let validator = || {
        Validator::new(
            &context.stores,
            context.runtime.as_ref(),
            &context.network_config,
            context.without_class,
        )
    };
    let validity = validator().resolve(&tenant.cluster);
    match upgrade::resume(context, tenant).await {
        Ok(false) => {}
        Ok(true) => return Ok(None),
        Err(TenantError::Settings(unknown)) => {
            return Ok(Some(Found {
                rejection: validity.err(),
                allowed: Err(unknown),
                is_undecided: false,
            }));
        }
        Err(error) => return Err(error),
    }
    let is_waiting = matches!(verdict, Some(Verdict::Waiting { .. }));
    let (rejection, is_undecided) = match validity {
        Ok(settings) if !is_waiting => {
            if has_reservation(context, tenant, verdict, &settings).await? {
                if upgrade::pin(context, tenant, &settings.version).await? {
                    return Ok(None);
                }
                finalizer::add(context, &tenant.cluster).await?;
                context.queue.add(Key::Fleet);
                let held = validator().hold_storage_to_rules(&tenant.cluster, settings, now);
                return Ok(Some(Found {
                    rejection: None,
                    allowed: Ok(Some(held)),
                    is_undecided: false,
                }));
            }
            (None, true)
        }
        // Until there is quota, it runs with what it has.
        Ok(_) => (None, is_unrecorded(context, tenant, verdict).await?),
        Err(rejection) => (Some(rejection), is_unrecorded(context, tenant, verdict).await?),
    };
    // Nothing limits a tenant for which nothing was created yet, and without a decision its limits stay as they are.
    // The finalizer is there before anything is created, and stays if the status loses what it said.
    let may_be_created = is_created(&tenant.cluster) || finalizer::is_set(&tenant.cluster);
    if is_undecided && !(verdict.is_some() && may_be_created) {
        return Ok(None);
    }
    let loaded = recorded_settings::load(context, tenant).await;
    if is_undecided && matches!(loaded, Ok(None)) {
        return Ok(None);
    }
    let hold = |accepted: Settings| {
        let limits = accepted.limits.clone();
        let (mut settings, assessment) = validator().hold_to_rules(&tenant.cluster, accepted, nodes, now);
        quota::restrict(&mut settings, &limits, verdict.filter(|_| !is_undecided));
        (settings, assessment)
    };
    Ok(Some(Found {
        rejection,
        allowed: loaded.map(|settings| settings.map(hold)),
        is_undecided,
    }))
}

/// Whether the tenant may run with these settings: quotas are decided for them, and what is reserved is in its status.
async fn has_reservation(
    context: &TenantContext,
    tenant: &Tenant,
    verdict: Option<&Verdict>,
    settings: &Settings,
) -> Result<bool, TenantError> {
    let Some(verdict) = verdict.filter(|verdict| verdict.allows(&settings.limits, settings.endpoint.kind)) else {
        // The decision wakes the tenant.
        context.queue.add(Key::Quotas);
        return Ok(false);
    };
    if *verdict == Verdict::NoProject && quota::has_unseen_project(context, tenant).await? {
        // The Project wakes the decision as soon as the watch shows it.
        return Ok(false);
    }
    Ok(!is_unrecorded(context, tenant, Some(verdict)).await?)
}

/// Whether what is reserved has to be in the status first. It is written. If that fails, nothing else of a tenant that runs waits for it.
async fn is_unrecorded(
    context: &TenantContext,
    tenant: &Tenant,
    verdict: Option<&Verdict>,
) -> Result<bool, TenantError> {
    let Some(verdict) = verdict else { return Ok(false) };
    match quota::record(context, &tenant.cluster, verdict).await {
        Err(error) if is_created(&tenant.cluster) => {
            let (namespace, name) = (&tenant.cluster.metadata.namespace, &tenant.cluster.metadata.name);
            tracing::warn!(namespace, name, %error, "cannot record what is reserved for a tenant, which keeps what it has");
            Ok(true)
        }
        recorded => recorded,
    }
}

/// What the status says that is not allowed.
fn known_violations(tenant: &Tenant) -> Vec<Violation> {
    let status = tenant.cluster.status.as_ref();
    status.map(|status| status.violations.clone()).unwrap_or_default()
}
