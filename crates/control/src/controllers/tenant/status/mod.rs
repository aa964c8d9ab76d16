//! The status of a `TenantCluster`, computed from the outcome of a reconcile.

mod conditions;
mod events;
mod observed;
mod write;

pub(super) use conditions::{SLEEPING, SLEEPS, conditions, is_settled};
pub(super) use observed::observed_usage;
pub(super) use write::{write, write_unless_changed, write_unless_rewritten};

use super::{
    apply::{ControlPlane, Outcome},
    build::host_objects,
    fetch::ObservedNodes,
    settings::Settings,
    target::Tenant,
    version::Versions,
};
use berth_api::{
    SecretReference, TenantClusterStatus, TenantNodeCounts, Violation,
    conditions::{ConditionUpdate, merge},
    is_node_ready,
};
use berth_node_lifecycle::{Assignment, recorded_gpus};
use conditions::phase;
use jiff::Timestamp;
use observed::{
    has_rolled_out, is_asleep, observed_encryption, observed_host_usage, observed_issuers, observed_manifests,
    observed_registration, observed_rotation,
};

/// The whole status. `settings` is what the tenant runs with, and `generation` that of the spec that was carried out.
pub(super) fn build(
    (tenant, generation, now): (&Tenant, Option<i64>, Timestamp),
    settings: Option<&Settings>,
    violations: &[Violation],
    outcome: &Outcome<'_>,
    nodes: &ObservedNodes,
    conditions: &[ConditionUpdate],
) -> TenantClusterStatus {
    let cluster = &tenant.cluster;
    let before = cluster.status.clone().unwrap_or_default();
    let (endpoint, started) = match outcome {
        Outcome::Prepared {
            prepared,
            control_plane,
            nodes: _,
            schedule: _,
            argo_cd: _,
            rotation: _,
            encryption: _,
        } => (
            Some(prepared.endpoints.public.url.clone()),
            match control_plane.as_ref() {
                ControlPlane::Started { started, .. } => Some(started),
                ControlPlane::NotStarted(_) | ControlPlane::Asleep { .. } => None,
            },
        ),
        _ => (None, None),
    };
    let endpoint = endpoint.or_else(|| before.endpoint.clone());
    let had_kubeconfig = before.kubeconfig_secret_ref.is_some();
    let has_kubeconfig = had_kubeconfig || started.is_some_and(|started| started.kubeconfig.is_ok());
    let was_started = had_kubeconfig || started.is_some();
    let kubeconfig = match outcome {
        Outcome::Prepared { prepared, .. } => prepared.published_kubeconfig().filter(|_| was_started),
        Outcome::NeverAccepted | Outcome::SettingsUnknown(_) | Outcome::NotPrepared(_) => before.kubeconfig.clone(),
    };
    let mut serving = nodes.owned.clone();
    serving.retain(|node| Assignment::read(node).is_some_and(|record| record.state.runs_tenant_pods()));
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let desired = nodes.groups.iter().map(|group| group.desired);
    let versions = Versions::observe(&before, settings, has_rolled_out(outcome));
    let mut status = TenantClusterStatus {
        phase: Some(phase(conditions, cluster.sleep_state())),
        observed_generation: generation,
        version: versions.running,
        upgrading_to: versions.upgrading_to,
        class_name: settings.map_or_else(|| before.class_name.clone(), |settings| settings.class.clone()),
        kubeconfig_secret_ref: has_kubeconfig.then(|| SecretReference {
            name: host_objects::kubeconfig_secret_name(cluster),
        }),
        kubeconfig,
        control_plane_namespace: endpoint.as_ref().map(|_| tenant.id.control_plane_namespace()),
        workload_namespace: endpoint.as_ref().map(|_| tenant.id.workload_namespace()),
        endpoint,
        quota: before.quota,
        usage: before.usage,
        datastore: observed_usage(outcome)
            .and_then(|observed| observed.usage)
            .or(before.datastore),
        // That of a tenant that sleeps is from before its pods ended.
        host_usage: observed_host_usage(outcome).or(before.host_usage.filter(|_| !is_asleep(outcome))),
        expires_at: before.expires_at,
        idle_since: before.idle_since,
        expiration_limits: before.expiration_limits,
        sleep: before.sleep,
        credentials: before.credentials,
        encryption: before.encryption,
        restore: before.restore,
        manifests: before.manifests,
        nodes: Some(TenantNodeCounts {
            desired: desired.fold(0, u32::saturating_add),
            assigned: count(serving.len()),
            ready: count(serving.iter().filter(|node| is_node_ready(node)).count()),
            gpus: serving.iter().map(|node| recorded_gpus::recorded_of_any(node)).sum(),
        }),
        node_groups: nodes.groups.clone(),
        unused_nodes: nodes.unused.clone(),
        // Others write these, see [`write`].
        idle: None,
        monthly_usage: Vec::new(),
        violations: violations.to_vec(),
        conditions: merge(&before.conditions, conditions, generation, now),
    };
    if let Some(manifests) = observed_manifests(outcome) {
        manifests.write_to(&mut status);
    }
    if let Some(issuers) = observed_issuers(outcome) {
        issuers.write_to(&mut status);
    }
    if let Some(registration) = observed_registration(outcome) {
        registration.write_to(&mut status);
    }
    if let Some(rotation) = observed_rotation(outcome) {
        rotation.write_to(&mut status);
    }
    if let Some(encryption) = observed_encryption(outcome) {
        encryption.write_to(&mut status);
    }
    status
}
