//! Builds the claims of tenants from the watches and from what was decided before.

use super::QuotasContext;
use crate::{
    controllers::tenant::Validator,
    quota_ledger::{Basis, MeasuredUse, TenantUse, Verdict},
    tenant_state::is_created,
};
use berth_api::{ControlPlaneServiceType, QuotaReservation, TenantCluster, TenantLimits, TreeResource};
use berth_quota::{Amounts, Claim, Projects};
use kube::{Resource, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};

/// The claims of all tenants that belong to a Project. `limited` has the resources that any level of the tree lists, `measured` what tenants use.
pub(super) fn list_claims(
    context: &QuotasContext,
    (projects, limited): (&Projects<'_>, &BTreeSet<TreeResource>),
    (basis, measured): (&Basis, &MeasuredUse),
) -> Vec<Claim> {
    let validator = Validator::new(
        &context.stores,
        context.runtime.as_ref(),
        &context.network_config,
        context.without_class,
    );
    let tenants = context.stores.tenants.state();
    let claims = tenants.iter().filter_map(|cluster| {
        let uid = cluster.uid()?;
        let project = projects.of(&cluster.namespace().unwrap_or_default())?;
        let is_deleted = cluster.meta().deletion_timestamp.is_some();
        let limits = (!is_deleted).then(|| validator.limits(cluster)).flatten();
        // What it runs with, if its spec is not accepted.
        let is_accepted = limits.is_some();
        let running = (!is_accepted).then(|| validator.running_limits(cluster)).flatten();
        let service = cluster.spec.service().kind;
        let recorded = find_recorded(cluster, basis.verdicts.get(&uid));
        let request = |limits: &TenantLimits| request((limits, service), (limited, recorded.as_ref()));
        let of_class = limits.or(running);
        let (by_limits, unlimited) = of_class.as_ref().map(request).unzip();
        let unlimited = unlimited.unwrap_or_default();
        let reserved = recorded
            .clone()
            .or_else(|| find_unrecorded(cluster, by_limits.as_ref(), measured.get(&uid)));
        let use_of_tenant = CountedUse {
            used: measured.get(&uid),
            is_complete: is_deleted || !is_created(cluster),
            limits: of_class.as_ref(),
        };
        Some(Claim {
            name: format!("{}/{}", cluster.namespace().unwrap_or_default(), cluster.name_any()),
            created: cluster.creation_timestamp().map_or(0, |time| time.0.as_second()),
            project: project.to_owned(),
            counted: find_counted(
                &use_of_tenant,
                (limited, by_limits.as_ref()),
                (&unlimited, reserved.as_ref()),
            ),
            reserved,
            requested: by_limits.filter(|_| is_accepted),
            unlimited,
            at_most: basis.at_most(&uid),
            uid,
        })
    });
    claims.collect()
}

/// What a tenant with these limits and this Service of its API server requests, and the resources that they do not limit: of those that quotas limit,
/// `limited`, and of those that are `recorded` for it.
fn request(
    (limits, service): (&TenantLimits, ControlPlaneServiceType),
    (limited, recorded): (&BTreeSet<TreeResource>, Option<&Amounts>),
) -> (Amounts, BTreeSet<TreeResource>) {
    let (mut requested, mut unlimited) = (Amounts::new(), BTreeSet::new());
    let mut resources = TreeResource::listed_in([limits]);
    let known = limited.iter().chain(recorded.into_iter().flat_map(Amounts::keys));
    resources.extend(known.filter(|resource| **resource != TreeResource::Gpus).cloned());
    for resource in resources {
        match resource.reserved_by(limits, service) {
            Some(amount) => {
                requested.insert(resource, amount);
            }
            None => {
                unlimited.insert(resource);
            }
        }
    }
    (requested, unlimited)
}

/// What is recorded for a tenant. What this process decided counts more than a status, which the watches show later.
fn find_recorded(cluster: &TenantCluster, known: Option<&Verdict>) -> Option<Amounts> {
    let recorded = match known {
        Some(verdict) => verdict.reservation(),
        None => cluster.status.as_ref().and_then(|status| status.quota.as_ref()),
    };
    recorded.map(read_amounts)
}

/// What a tenant has for which nothing is recorded. One that runs came before its Project: it has what its limits let it have, `by_limits`, and what exists beyond
/// that, as far as it is measured: its limits may have been higher before.
fn find_unrecorded(
    cluster: &TenantCluster,
    by_limits: Option<&Amounts>,
    measured: Option<&TenantUse>,
) -> Option<Amounts> {
    if !is_created(cluster) {
        return None;
    }
    let least = || Amounts::from([(TreeResource::TenantClusters, 1)]);
    let mut amounts = by_limits.cloned().unwrap_or_else(least);
    for (resource, amount) in &mut amounts {
        let used = measured.and_then(|measured| measured.amounts.get(resource));
        *amount = (*amount).max(used.copied().unwrap_or_default());
    }
    Some(amounts)
}

/// What is known of a tenant's use.
struct CountedUse<'a> {
    used: Option<&'a TenantUse>,
    /// Whether what is not measured is nothing: of a tenant without namespaces, or one that is deleted, whose `ResourceQuota` may be gone before them.
    is_complete: bool,
    /// What it runs with.
    limits: Option<&'a TenantLimits>,
}

impl CountedUse<'_> {
    fn amount(&self, resource: &TreeResource) -> Option<u64> {
        let measured = self.used.and_then(|used| used.amounts.get(resource));
        measured.copied().or(self.is_complete.then_some(0))
    }

    /// How much more the pods need that exist, if each of them is replaced. Those from before the resource was limited may request nothing of it;
    /// from then on each container requests at least the default.
    fn for_replaced_pods(&self, resource: &TreeResource) -> u64 {
        let pods = self.amount(&TreeResource::Pods).unwrap_or(0);
        let requested = |limits: &TenantLimits| limits.requested_by_default(resource.as_str(), pods);
        self.limits.map_or(0, requested)
    }
}

/// See [`Claim::counted`]. `limited` are resources that quotas limit, and `requested` those that its class limits.
fn find_counted(
    counted: &CountedUse<'_>,
    (limited, requested): (&BTreeSet<TreeResource>, Option<&Amounts>),
    (unlimited, reserved): (&BTreeSet<TreeResource>, Option<&Amounts>),
) -> Amounts {
    let Some(reserved) = reserved else {
        return Amounts::new();
    };
    let of_class = requested.into_iter().flat_map(Amounts::keys);
    let amounts = limited.iter().chain(of_class).filter_map(|resource| {
        // Once only: it would grow each time.
        let is_first = !reserved.contains_key(resource);
        let amount = (is_first || unlimited.contains(resource)).then(|| counted.amount(resource))??;
        let for_replaced = if is_first {
            counted.for_replaced_pods(resource)
        } else {
            0
        };
        Some((resource.clone(), amount.saturating_add(for_replaced)))
    });
    amounts.collect()
}

/// What is reserved for a tenant. A limit of what the host has still to count is no count: the next decision must not take it for one.
fn read_amounts(reservation: &QuotaReservation) -> Amounts {
    let reserved = reservation.reserved.iter();
    reserved
        .filter(|(name, _)| !reservation.uncounted.contains(name))
        .map(|(name, amount)| (TreeResource::from(name.clone()), *amount))
        .collect()
}

/// Namespace and name of each tenant, by UID.
pub(super) fn tenant_names(context: &QuotasContext) -> BTreeMap<String, (String, String)> {
    let tenants = context.stores.tenants.state();
    let names = tenants.iter().filter_map(|cluster| {
        let name = (cluster.namespace().unwrap_or_default(), cluster.name_any());
        Some((cluster.uid()?, name))
    });
    names.collect()
}
