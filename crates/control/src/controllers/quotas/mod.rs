//! The controller of quotas: decides for all tenants at once what the quotas of Projects and Organizations give them, and reports the
//! use of each level.
//!
//! It is the only one that decides, and one decision follows the other. Tenants are created by their own reconciles, which
//! a decision about them triggers.

mod context;
mod observe;
mod report;
#[cfg(test)]
mod tests;

pub use context::QuotasContext;

use crate::{error::ReconcileError, key::Key, quota_ledger::Verdict};
use berth_api::{QuotaReservation, TreeResource};
use berth_quota::{Claim, Decision, Key as QuotaKey, Outcome, Projects, Shortage, Tree, decide};
use kube::ResourceExt;
use std::{collections::BTreeMap, time::Duration};

/// Pause before the status of each level is compared again.
const RESYNC: Duration = Duration::from_secs(60);

/// Decides what each tenant has of the quotas, and writes the status of Projects and Organizations.
///
/// # Errors
/// The host refuses or does not answer. What was decided counts all the same.
pub async fn reconcile(context: &QuotasContext) -> Result<Option<Duration>, ReconcileError> {
    // Which users have limits depends on the same objects.
    context.queue.add(Key::UserQuotas);
    let organizations = context.stores.organizations.state();
    let projects = context.stores.projects.state();
    if organizations.is_empty() && projects.is_empty() {
        publish(context, BTreeMap::new());
        context.metrics.clear_quotas();
        return Ok(None);
    }
    let tree = Tree::new(
        organizations.iter().map(AsRef::as_ref),
        projects.iter().map(AsRef::as_ref),
    );
    let owners = Projects::new(projects.iter().map(AsRef::as_ref));
    let claims = observe::list_claims(context, &owners);
    let mut outcome = decide(&tree, &claims);
    let verdicts = build_verdicts(context, &claims, &outcome);
    publish(context, verdicts);
    add_gpus(context, &claims, &mut outcome);
    let mut by_project: BTreeMap<&str, Vec<&Claim>> = BTreeMap::new();
    for claim in &claims {
        by_project.entry(&claim.project).or_default().push(claim);
    }
    let report = report::Report {
        claims: by_project,
        outcome: &outcome,
        names: observe::tenant_names(context),
    };
    report::write(context, &organizations, &projects, &owners, &report).await?;
    Ok(Some(RESYNC))
}

/// Keeps what was decided, and reconciles the tenants for which it changed.
fn publish(context: &QuotasContext, verdicts: BTreeMap<String, Verdict>) {
    let changed = context.quotas.replace(verdicts);
    if changed.is_empty() {
        return;
    }
    for cluster in context.stores.tenants.state() {
        if cluster.uid().is_some_and(|uid| changed.contains(&uid)) {
            context.queue.add(Key::of_tenant(&cluster));
        }
    }
    context.queue.add(Key::Fleet);
}

/// What was decided about each tenant; nothing about a tenant that requests nothing and has nothing.
fn build_verdicts(context: &QuotasContext, claims: &[Claim], outcome: &Outcome<'_>) -> BTreeMap<String, Verdict> {
    let mut verdicts: BTreeMap<String, Verdict> = context
        .stores
        .tenants
        .state()
        .iter()
        .filter_map(|cluster| Some((cluster.uid()?, Verdict::NoProject)))
        .collect();
    for claim in claims {
        verdicts.remove(&claim.uid);
        let verdict = outcome
            .decisions
            .get(&claim.uid)
            .and_then(|decision| build_verdict(claim, decision));
        verdicts.extend(verdict.map(|verdict| (claim.uid.clone(), verdict)));
    }
    verdicts
}

fn build_verdict(claim: &Claim, decision: &Decision) -> Option<Verdict> {
    let reservation = |amounts: &BTreeMap<TreeResource, u64>| QuotaReservation {
        project_name: claim.project.clone(),
        reserved: amounts
            .iter()
            .map(|(resource, amount)| (resource.as_str().to_owned(), *amount))
            .collect(),
    };
    match decision {
        Decision::Reserved { amounts, over } => Some(Verdict::Reserved {
            reservation: reservation(amounts),
            over: over.clone(),
        }),
        Decision::Waiting { kept, shortage } => Some(Verdict::Waiting {
            kept: kept.as_ref().map(reservation),
            reason: match shortage {
                Shortage::NotEnough { .. } => "QuotaExceeded",
                Shortage::NoLimit { .. } => "ClassWithoutLimit",
            },
            message: shortage.to_string(),
        }),
        Decision::Nothing => None,
    }
}

/// Adds the GPUs that tenants have to the use of their Projects. The planner keeps them within the quotas.
fn add_gpus(context: &QuotasContext, claims: &[Claim], outcome: &mut Outcome<'_>) {
    let of_tenants = context.quotas.gpu_use();
    for claim in claims {
        for (pool, gpus) in of_tenants.get(&claim.uid).into_iter().flatten() {
            outcome.usage.add(&claim.project, &QuotaKey::gpus(pool), *gpus);
        }
    }
}
