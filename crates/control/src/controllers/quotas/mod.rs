//! The controller of quotas: decides for all tenants at once what the quotas of Projects and Organizations give them, and reports the
//! use of each level.
//!
//! It is the only one that decides, and one decision follows the other. Tenants are created by their own reconciles, which
//! a decision about them triggers.

mod context;
mod metrics;
mod observe;
mod pace;
mod protection;
mod report;
#[cfg(test)]
mod tests;

pub use context::QuotasContext;
pub use pace::Pace;

use crate::{
    error::ReconcileError,
    key::Key,
    quota_ledger::{Basis, Measurement, Verdict, decide_without_project},
};
use berth_api::{QuotaReservation, TreeResource};
use berth_quota::{Amounts, Claim, Decision, Key as QuotaKey, Outcome, Projects, Tree, decide};
use kube::ResourceExt;
use pace::{RESYNC, Turn};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::Instant;

/// Pause before something is tried again that changed while it was decided or written.
const AGAIN: Duration = Duration::from_millis(100);

/// Decides what each tenant has of the quotas, and writes the status and the finalizer of Projects and Organizations.
///
/// # Errors
/// The host refuses or does not answer. What was decided counts all the same.
pub async fn reconcile(context: &QuotasContext) -> Result<Option<Duration>, ReconcileError> {
    // Which users have limits depends on the same objects.
    context.queue.add(Key::UserQuotas);
    let basis = context.quotas.basis();
    if context.stores.organizations.is_empty() && context.stores.projects.is_empty() {
        let mut verdicts = list_unnamed(context, &basis);
        verdicts.retain(|_, verdict| *verdict != Verdict::NoProject);
        let is_kept = publish(context, verdicts, &basis);
        context.metrics.remove_quotas();
        return Ok((!is_kept).then_some(AGAIN));
    }
    let started = Instant::now();
    // Before anything is read for the decision: what changes meanwhile is a reason for the next one.
    let digest = pace::digest(context, &basis);
    if let Turn::Pause(pause) = context.pace.turn(started, digest) {
        return Ok(Some(pause));
    }
    let organizations = context.stores.organizations.state();
    let projects = context.stores.projects.state();
    let tree = Tree::new(
        organizations.iter().map(AsRef::as_ref),
        projects.iter().map(AsRef::as_ref),
    );
    let owners = Projects::new(projects.iter().map(AsRef::as_ref));
    let measured = context.quotas.measured();
    let claims = observe::list_claims(
        context,
        (&owners, &tree.resources()),
        (&basis, measured.tenants.as_ref()),
    );
    let mut outcome = decide(&tree, &claims);
    let verdicts = build_verdicts(context, &basis, &claims, &outcome);
    add_gpus(context, &claims, &measured, &mut outcome);
    add_used(&claims, &measured, &mut outcome);
    let took = started.elapsed();
    let report = report::Report::new(&claims, &outcome, &measured, observe::tenant_names(context), &projects);
    // First: what a tenant gets is limited only as long as its Project exists.
    let protected = protection::update(context, &organizations, &projects, &report).await;
    if !publish(context, verdicts, &basis) {
        return Ok(Some(AGAIN));
    }
    context.pace.decided(took, digest);
    let written = report::write(context, &organizations, &projects, &owners, &report).await;
    let result = written.and(protected);
    if !matches!(result, Ok(false)) {
        context.pace.repeat();
    }
    Ok(Some(if result? { AGAIN } else { RESYNC }))
}

/// Keeps what was decided, and reconciles the tenants for which it changed. Returns whether it was kept.
fn publish(context: &QuotasContext, verdicts: BTreeMap<String, Verdict>, basis: &Basis) -> bool {
    let Some(changed) = context.quotas.replace(verdicts, basis) else {
        return false;
    };
    if changed.is_empty() {
        return true;
    }
    for cluster in context.stores.tenants.state() {
        if cluster.uid().is_some_and(|uid| changed.contains(&uid)) {
            context.queue.add(Key::of_tenant(&cluster));
        }
    }
    context.queue.add(Key::Fleet);
    true
}

/// What is decided about all tenants, as if no Project named their namespaces.
fn list_unnamed(context: &QuotasContext, basis: &Basis) -> BTreeMap<String, Verdict> {
    let now = context.clock.now();
    let tenants = context.stores.tenants.state();
    let verdicts = tenants.iter().filter_map(|cluster| {
        let uid = cluster.uid()?;
        let verdict = decide_without_project(cluster, basis.verdicts.get(&uid), now);
        Some((uid, verdict))
    });
    verdicts.collect()
}

/// What was decided about each tenant; nothing about a tenant that requests nothing and has nothing.
fn build_verdicts(
    context: &QuotasContext,
    basis: &Basis,
    claims: &[Claim],
    outcome: &Outcome<'_>,
) -> BTreeMap<String, Verdict> {
    let mut verdicts = list_unnamed(context, basis);
    for claim in claims {
        verdicts.remove(&claim.uid);
        let verdict = outcome
            .decisions
            .get(&claim.uid)
            .and_then(|decision| build_verdict(claim, decision, outcome.uncounted.get(&claim.uid)));
        verdicts.extend(verdict.map(|verdict| (claim.uid.clone(), verdict)));
    }
    verdicts
}

/// `uncounted` are resources of which the host has not counted yet what the tenant has.
fn build_verdict(claim: &Claim, decision: &Decision, uncounted: Option<&BTreeSet<TreeResource>>) -> Option<Verdict> {
    let named = |amounts: Amounts| {
        let amounts = amounts.into_iter();
        amounts
            .map(|(resource, amount)| (resource.as_str().to_owned(), amount))
            .collect()
    };
    let reservation = |amounts: &Amounts| QuotaReservation {
        project_name: claim.project.clone(),
        reserved: named(amounts.clone()),
        above_limits: BTreeMap::new(),
        uncounted: names(uncounted),
    };
    match decision {
        Decision::Reserved { amounts, over } => Some(Verdict::Reserved {
            reservation: QuotaReservation {
                above_limits: named(above_limits(claim, amounts)),
                ..reservation(amounts)
            },
            over: over.clone(),
        }),
        Decision::Waiting { kept, over, shortage } => Some(Verdict::Waiting {
            kept: kept.as_ref().map(reservation),
            over: over.clone(),
            reason: shortage.reason(),
            message: shortage.to_string(),
        }),
        Decision::Nothing => None,
    }
}

fn names(resources: Option<&BTreeSet<TreeResource>>) -> Vec<String> {
    let resources = resources.into_iter().flatten();
    resources.map(|resource| resource.as_str().to_owned()).collect()
}

/// What a tenant has beyond what it requests.
fn above_limits(claim: &Claim, amounts: &Amounts) -> Amounts {
    let requested = |resource: &TreeResource| claim.requested.as_ref()?.get(resource).copied();
    let above = amounts.iter().filter_map(|(resource, amount)| {
        let above = amount.saturating_sub(requested(resource)?);
        (above > 0).then(|| (resource.clone(), above))
    });
    above.collect()
}

/// Adds the GPUs that tenants have, and those that their pods have of these, to their Projects. The planner keeps them within the quotas.
fn add_gpus(context: &QuotasContext, claims: &[Claim], measured: &Measurement, outcome: &mut Outcome<'_>) {
    let of_tenants = context.quotas.gpu_use();
    let pools = context.stores.pools.state();
    let keys_of = |pool: &str| {
        let spec = pools.iter().find(|one| one.name_any() == pool).map(|one| &one.spec);
        let is_counted = spec.is_some_and(|spec| spec.gpu_resource_name.is_some());
        let product = spec.and_then(|spec| spec.gpu_product.as_deref());
        let keys = [
            Some(QuotaKey::gpus(pool)),
            product.map(QuotaKey::gpus_of_product),
            is_counted.then(|| QuotaKey::of(TreeResource::Gpus)),
        ];
        keys.into_iter().flatten()
    };
    for claim in claims {
        for (pool, gpus) in of_tenants.get(&claim.uid).into_iter().flatten() {
            for key in keys_of(pool) {
                outcome.usage.add(&claim.project, &key, *gpus);
            }
        }
        let used = measured.tenants.get(&claim.uid);
        for (pool, gpus) in used.into_iter().flat_map(|used| &used.gpus) {
            for key in keys_of(pool) {
                outcome.usage.add_used(&claim.project, &key, *gpus);
            }
        }
    }
}

/// Adds what tenants use of what they have reserved to their Projects.
fn add_used(claims: &[Claim], measured: &Measurement, outcome: &mut Outcome<'_>) {
    for claim in claims {
        let used = measured.tenants.get(&claim.uid);
        for (resource, amount) in used.into_iter().flat_map(|used| &used.amounts) {
            let key = QuotaKey::of(resource.clone());
            outcome.usage.add_used(&claim.project, &key, *amount);
        }
    }
}
