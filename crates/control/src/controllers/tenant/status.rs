//! The status of a `TenantCluster`, derived from what a pass found out.

use super::{host_objects, node_groups, provision::owned_nodes, settings::Settings, state::Findings};
use crate::{
    context::Context,
    error::{ReconcileError, api},
    nodes::{NodeRecord, is_ready},
};
use berth_api::{
    Phase, SecretReference, TenantCluster, TenantClusterStatus, TenantNodeCounts,
    conditions::{self, ACCEPTED, CONTROL_PLANE_READY, DATASTORE_READY, Finding, NODES_READY, READY, SYNCER_READY},
    labels,
    names::TenantId,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType},
};
use serde_json::json;

/// The finding of the step that failed: the first one of the usual order that has none yet.
pub(super) fn failed_step(findings: &Findings, error: &ReconcileError) -> Finding {
    let order = [DATASTORE_READY, CONTROL_PLANE_READY, SYNCER_READY, NODES_READY];
    let done = |kind: &str| findings.all().iter().any(|finding| finding.kind == kind);
    let kind = order.into_iter().find(|kind| !done(kind)).unwrap_or(NODES_READY);
    Finding::no(kind, error.category(), error.to_string())
}

/// Writes the status if it differs from the one there is, and an Event for every condition that changed.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn write(
    context: &Context,
    cluster: &TenantCluster,
    tenant: &TenantId,
    settings: Option<&Settings>,
    findings: &Findings,
    now: Timestamp,
) -> Result<(), ReconcileError> {
    let before = cluster.status.clone().unwrap_or_default();
    let accepted = findings
        .all()
        .iter()
        .any(|finding| finding.kind == ACCEPTED && finding.is_true());
    let mut all = findings.all().to_vec();
    all.push(readiness(findings));
    let nodes = owned_nodes(context, cluster);
    let standings = cluster.uid().and_then(|uid| context.tenants.standing(&uid));
    let groups = node_groups::groups(&cluster.spec.node_groups, &nodes, standings.as_ref());
    let mut serving = nodes;
    serving.retain(|node| NodeRecord::read(node).is_some_and(|record| record.state.serves()));
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let endpoint = findings.endpoint.clone().or_else(|| before.endpoint.clone());
    let has_kubeconfig = findings.has_kubeconfig || before.kubeconfig_secret_ref.is_some();
    let after = TenantClusterStatus {
        phase: Some(phase(accepted, findings)),
        observed_generation: cluster.metadata.generation,
        version: settings.map_or_else(|| before.version.clone(), |settings| Some(settings.version.clone())),
        class_name: settings.map_or_else(|| before.class_name.clone(), |settings| settings.class.clone()),
        kubeconfig_secret_ref: has_kubeconfig.then(|| SecretReference {
            name: host_objects::kubeconfig_secret_name(cluster),
        }),
        control_plane_namespace: endpoint.as_ref().map(|_| tenant.control_plane_namespace()),
        workload_namespace: endpoint.as_ref().map(|_| tenant.workload_namespace()),
        endpoint,
        nodes: Some(TenantNodeCounts {
            desired: groups.iter().map(|group| group.desired).fold(0, u32::saturating_add),
            assigned: count(serving.len()),
            ready: count(serving.iter().filter(|node| is_ready(node)).count()),
        }),
        node_groups: groups,
        conditions: conditions::merge(&before.conditions, &all, cluster.metadata.generation, now),
    };
    replace(context, cluster, &before, &after).await
}

/// Writes `after` unless it is what is there.
pub(super) async fn replace(
    context: &Context,
    cluster: &TenantCluster,
    before: &TenantClusterStatus,
    after: &TenantClusterStatus,
) -> Result<(), ReconcileError> {
    if before == after {
        return Ok(());
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let body = json!({
        "apiVersion": TenantCluster::api_version(&()), "kind": TenantCluster::kind(&()),
        "metadata": {"name": cluster.name_any(), "uid": cluster.uid()}, "status": after,
    });
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    clusters
        .patch_status(&cluster.name_any(), &params, &Patch::Apply(&body))
        .await
        .map_err(api("write the status"))?;
    for (reason, note) in node_groups::news(&before.node_groups, &after.node_groups) {
        let event = Event {
            type_: EventType::Normal,
            reason: reason.into(),
            note: Some(note.chars().take(1000).collect()),
            action: NODES_READY.into(),
            secondary: None,
        };
        publish(context, cluster, &event).await;
    }
    for condition in changed(&before.conditions, &after.conditions) {
        let is_bad = condition.status != "True" && is_a_fault(&condition.reason);
        let event = Event {
            type_: if is_bad { EventType::Warning } else { EventType::Normal },
            reason: condition.reason.clone(),
            note: Some(
                format!("{}: {}", condition.type_, condition.message)
                    .chars()
                    .take(1000)
                    .collect(),
            ),
            action: condition.type_.clone(),
            secondary: None,
        };
        publish(context, cluster, &event).await;
    }
    Ok(())
}

/// Writes an Event. One that is lost harms nobody: the status says the same.
async fn publish(context: &Context, cluster: &TenantCluster, event: &Event) {
    if let Err(error) = context.recorder.publish(event, &cluster.object_ref(&())).await {
        tracing::debug!(%error, "event not written");
    }
}

/// Conditions whose status or reason is new, without the summary.
fn changed<'a>(before: &'a [Condition], after: &'a [Condition]) -> impl Iterator<Item = &'a Condition> {
    after.iter().filter(move |condition| {
        condition.type_ != READY
            && !before
                .iter()
                .any(|b| b.type_ == condition.type_ && b.status == condition.status && b.reason == condition.reason)
    })
}

/// Reasons of what is merely under way.
fn is_a_fault(reason: &str) -> bool {
    !matches!(reason, "Starting" | "Assigning" | "Draining" | "Waiting")
}

fn readiness(findings: &Findings) -> Finding {
    match findings.first_missing() {
        None => Finding::yes(READY, "Ready", "the tenant is ready"),
        Some(missing) => Finding::no(READY, missing.reason, missing.message.clone()),
    }
}

fn phase(accepted: bool, findings: &Findings) -> Phase {
    match (accepted, findings.first_missing()) {
        (false, _) => Phase::Pending,
        (true, Some(_)) => Phase::Provisioning,
        (true, None) => Phase::Ready,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_the_first_thing_missing() {
        let mut findings = Findings::default();
        findings.add(Finding::yes(ACCEPTED, "Valid", ""));
        findings.add(Finding::no(CONTROL_PLANE_READY, "Starting", "wait"));
        findings.add(Finding::no(NODES_READY, "InsufficientCapacity", "no nodes"));
        assert_eq!(readiness(&findings), Finding::no(READY, "Starting", "wait"));
        assert_eq!(phase(true, &findings), Phase::Provisioning);
        assert_eq!(phase(false, &findings), Phase::Pending);
    }

    #[test]
    fn a_failure_belongs_to_the_first_step_without_a_finding() {
        let mut findings = Findings::default();
        findings.add(Finding::yes(DATASTORE_READY, "Prepared", ""));
        let error = ReconcileError::Blocked {
            reason: "SecretExists",
            message: "x".into(),
        };
        let finding = failed_step(&findings, &error);
        assert_eq!((finding.kind, finding.reason), (CONTROL_PLANE_READY, "SecretExists"));
    }
}
