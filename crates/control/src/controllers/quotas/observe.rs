//! Builds the claims of tenants from the watches and from what was decided before.

use super::QuotasContext;
use crate::{
    controllers::tenant::Validator,
    quota_ledger::{Basis, Verdict},
};
use berth_api::{ControlPlaneServiceType, QuotaReservation, TenantCluster, TenantLimits, TreeResource};
use berth_quota::{Amounts, Claim, Projects};
use kube::{Resource, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};

/// The claims of all tenants that belong to a Project. `limited` has the resources that any level of the tree lists.
pub(super) fn list_claims(
    context: &QuotasContext,
    (projects, limited): (&Projects<'_>, &BTreeSet<TreeResource>),
    basis: &Basis,
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
        let service = cluster.spec.service().kind;
        let (requested, unlimited) = limits
            .as_ref()
            .map(|limits| request((limits, service), limited))
            .unzip();
        let running = || {
            validator
                .running_limits(cluster)
                .map(|limits| request((&limits, service), limited).0)
        };
        Some(Claim {
            created: cluster.creation_timestamp().map_or(0, |time| time.0.as_second()),
            project: project.to_owned(),
            reserved: find_reserved(cluster, basis.verdicts.get(&uid), requested.as_ref(), running),
            requested,
            unlimited: unlimited.unwrap_or_default(),
            at_most: basis.at_most(&uid),
            uid,
        })
    });
    claims.collect()
}

/// What a tenant with these limits and this Service of its API server requests, and the resources that they do not limit. `limited` has
/// those that quotas limit.
fn request(
    (limits, service): (&TenantLimits, ControlPlaneServiceType),
    limited: &BTreeSet<TreeResource>,
) -> (Amounts, BTreeSet<TreeResource>) {
    let (mut requested, mut unlimited) = (Amounts::new(), BTreeSet::new());
    let mut resources = TreeResource::listed_in([limits]);
    resources.extend(
        limited
            .iter()
            .filter(|resource| **resource != TreeResource::Gpus)
            .cloned(),
    );
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

/// What a tenant has. What this process decided counts more than a status, which the watches show later. A tenant that runs without a
/// reservation came before its Project: it has what it requests, or what it is `running` with if its spec is not accepted.
fn find_reserved(
    cluster: &TenantCluster,
    known: Option<&Verdict>,
    requested: Option<&Amounts>,
    running: impl FnOnce() -> Option<Amounts>,
) -> Option<Amounts> {
    let status = cluster.status.as_ref();
    let recorded = match known {
        Some(verdict) => verdict.reservation(),
        None => status.and_then(|status| status.quota.as_ref()),
    };
    if let Some(reservation) = recorded {
        return Some(read_amounts(reservation));
    }
    // Only control writes the status, so that nobody can pretend that a tenant runs.
    let runs = status.is_some_and(|status| status.control_plane_namespace.is_some());
    let least = || Amounts::from([(TreeResource::TenantClusters, 1)]);
    runs.then(|| requested.cloned().or_else(running).unwrap_or_else(least))
}

fn read_amounts(reservation: &QuotaReservation) -> Amounts {
    let reserved = reservation.reserved.iter();
    reserved
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
