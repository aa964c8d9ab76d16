//! The status of a `TenantCluster`, computed from the outcome of a reconcile.

use super::{
    apply::{ApiServer, ControlPlane, Outcome, PublicState, Serving, SyncerState},
    argo_cd::{ObservedRegistration, REVOKING},
    build::host_objects,
    compliance,
    context::TenantContext,
    datastore_usage::{self, ObservedUsage},
    error::TenantError,
    fetch::ObservedNodes,
    host_usage,
    manifests::ObservedManifests,
    node_groups,
    remaining::{NAMESPACE_BLOCKED, PODS_OVERDUE},
    rotation::ObservedRotation,
    schedule::STOPS_SOON,
    settings::Settings,
    target::Tenant,
};
use crate::{error::api, runtime::ComponentState};
use berth_api::{
    HostUsage, Phase, SecretReference, SleepState, TenantCluster, TenantClusterStatus, TenantNodeCounts, Violation,
    conditions::{
        self, ACCEPTED, ARGO_CD_REGISTERED, AWAKE, COMPLIANT, CONTROL_PLANE_READY, CREDENTIALS_ROTATED,
        ConditionUpdate, DATASTORE_READY, DATASTORE_WITHIN_LIMITS, ENDPOINT_READY, EXPIRING, HOST_WITHIN_LIMITS,
        INFRASTRUCTURE_READY, MANIFESTS_APPLIED, NODES_READY, QUOTA_RESERVED, READY, SYNCER_READY, WITHIN_SCHEDULE,
    },
    labels,
};
use berth_node_lifecycle::{Assignment, is_ready};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::events::{Event, EventType},
};
use serde_json::json;

/// The conditions in the order in which a tenant is built up.
const ORDER: [&str; 8] = [
    ACCEPTED,
    QUOTA_RESERVED,
    INFRASTRUCTURE_READY,
    DATASTORE_READY,
    CONTROL_PLANE_READY,
    ENDPOINT_READY,
    SYNCER_READY,
    NODES_READY,
];
/// Reason of conditions of a tenant that sleeps.
pub(super) const SLEEPING: &str = "Sleeping";
/// Message of conditions of a tenant that sleeps.
pub(super) const SLEEPS: &str = "the tenant sleeps, and nothing of it runs; the condition Awake says what wakes it";
/// Conditions that Ready does not depend on: how full the datastore is, how much is on the host, what the tenant may not keep, what its schedules say, when it
/// ends, whether it sleeps, what the platform applies in it, whether Argo CD knows it, and whether its credentials were replaced.
const NOT_PART_OF_READY: [&str; 9] = [
    DATASTORE_WITHIN_LIMITS,
    HOST_WITHIN_LIMITS,
    COMPLIANT,
    WITHIN_SCHEDULE,
    EXPIRING,
    AWAKE,
    MANIFESTS_APPLIED,
    ARGO_CD_REGISTERED,
    CREDENTIALS_ROTATED,
];
/// Characters of a message that an Event carries.
const MAX_MESSAGE_LENGTH: usize = 1000;

/// The conditions that follow from an outcome, in the order in which a tenant is built up, and Ready after them. `rejection`
/// is why the spec is not accepted, `quota` what the quotas say. Conditions of steps that were not reached are missing: they stay as they were.
pub(super) fn conditions(
    rejection: Option<&ConditionUpdate>,
    quota: Option<ConditionUpdate>,
    outcome: &Outcome<'_>,
    nodes: &ObservedNodes,
) -> Vec<ConditionUpdate> {
    let accepted = || ConditionUpdate::mark_true(ACCEPTED, "Valid", "the spec is valid and can be carried out");
    let mut all = vec![rejection.cloned().unwrap_or_else(accepted)];
    // A tenant that runs goes on without the quota for more.
    let is_new = matches!(outcome, Outcome::NeverAccepted);
    let (quota, quota_for_more): (Vec<_>, Vec<_>) = quota.into_iter().partition(|quota| is_new || quota.is_true());
    all.extend(quota);
    if let Outcome::Prepared {
        prepared,
        control_plane,
        nodes: published,
        schedule: _,
        // Not among those that Ready depends on.
        argo_cd: _,
        rotation: _,
    } = outcome
    {
        all.push(ConditionUpdate::mark_true(
            INFRASTRUCTURE_READY,
            "Applied",
            "namespaces, certificate authorities, addresses and network policies exist",
        ));
        all.push(ConditionUpdate::mark_true(
            DATASTORE_READY,
            "Prepared",
            "user, role and key range exist",
        ));
        let serving = match control_plane.as_ref() {
            ControlPlane::Started {
                started,
                serving: Ok(serving),
            } => Some((started, serving)),
            _ => None,
        };
        all.extend(serving.map(|(started, serving)| control_plane_condition(&started.api_server, serving)));
        all.extend(prepared.public.as_ref().map(PublicState::condition));
        all.extend(serving.map(|(_, serving)| syncer_condition(&serving.syncer)));
        if matches!(**control_plane, ControlPlane::Asleep) {
            let sleeps = |kind| ConditionUpdate::mark_false(kind, SLEEPING, SLEEPS);
            all.extend([CONTROL_PLANE_READY, SYNCER_READY].map(sleeps));
        }
        if published.is_ok() {
            all.push(node_groups::condition(&nodes.spec, &nodes.groups, &nodes.owned));
        }
    }
    for failed in outcome.errors().into_iter().map(TenantError::condition) {
        all.retain(|condition| condition.kind != failed.kind);
        all.push(failed);
    }
    all.sort_by_key(|condition| ORDER.iter().position(|kind| *kind == condition.kind));
    all.push(ready_condition(&all));
    // Not among those that Ready depends on: what runs goes on.
    all.extend(observed_usage(outcome).and_then(datastore_usage::condition));
    all.extend(observed_host_usage(outcome).as_ref().map(host_usage::condition));
    all.extend(observed_manifests(outcome).and_then(ObservedManifests::condition));
    all.extend(observed_registration(outcome).and_then(ObservedRegistration::condition));
    all.extend(observed_rotation(outcome).and_then(ObservedRotation::condition));
    all.extend(quota_for_more);
    all
}

/// What the tenant stores, if its API server was started.
pub(super) fn observed_usage<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedUsage> {
    let Outcome::Prepared { control_plane, .. } = outcome else {
        return None;
    };
    match control_plane.as_ref() {
        ControlPlane::Started { started, .. } => Some(&started.datastore),
        ControlPlane::Asleep | ControlPlane::NotStarted(_) => None,
    }
}

/// What is known of the manifests of the class, if the tenant was looked at.
fn observed_manifests<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedManifests> {
    serving(outcome).map(|serving| &serving.manifests)
}

/// What the tenant has on the host, if its syncer said it.
fn observed_host_usage(outcome: &Outcome<'_>) -> Option<HostUsage> {
    serving(outcome)?.host_usage
}

/// What runs with the API server, if the tenant was looked at.
fn serving<'a>(outcome: &'a Outcome<'_>) -> Option<&'a Serving> {
    let Outcome::Prepared { control_plane, .. } = outcome else {
        return None;
    };
    match control_plane.as_ref() {
        ControlPlane::Started {
            serving: Ok(serving), ..
        } => Some(serving),
        ControlPlane::Started { .. } | ControlPlane::Asleep | ControlPlane::NotStarted(_) => None,
    }
}

/// What is known of the registration in Argo CD, if the tenant was looked at.
fn observed_registration<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedRegistration> {
    match outcome {
        Outcome::Prepared { argo_cd, .. } => Some(argo_cd),
        Outcome::NeverAccepted | Outcome::SettingsUnknown(_) | Outcome::NotPrepared(_) => None,
    }
}

/// What is known of the rotation of the credentials, if the tenant was looked at.
fn observed_rotation<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedRotation> {
    match outcome {
        Outcome::Prepared { rotation, .. } => Some(rotation),
        Outcome::NeverAccepted | Outcome::SettingsUnknown(_) | Outcome::NotPrepared(_) => None,
    }
}

fn control_plane_condition(api_server: &ApiServer, serving: &Serving) -> ConditionUpdate {
    let down = |why: &str| ConditionUpdate::mark_false(CONTROL_PLANE_READY, "NotRunning", why);
    match (api_server, &serving.running) {
        (ApiServer::Down(why), _) => down(why),
        (ApiServer::Starting, _) | (ApiServer::Answers(_), None) => ConditionUpdate::mark_false(
            CONTROL_PLANE_READY,
            "Starting",
            "the API server was started and does not answer yet",
        ),
        (ApiServer::Answers(_), Some(running)) => match &running.components {
            ComponentState::Running => {
                ConditionUpdate::mark_true(CONTROL_PLANE_READY, "Running", "the API server is ready")
            }
            ComponentState::Down(why) => down(why),
        },
    }
}

fn syncer_condition(syncer: &SyncerState) -> ConditionUpdate {
    match syncer {
        SyncerState::Ready => ConditionUpdate::mark_true(SYNCER_READY, "InSync", "the syncer has listed both sides"),
        SyncerState::Starting(message) => ConditionUpdate::mark_false(SYNCER_READY, "Starting", message),
        SyncerState::Down(why) => ConditionUpdate::mark_false(SYNCER_READY, "NotRunning", why),
    }
}

/// The first condition that is not met decides.
fn ready_condition(all: &[ConditionUpdate]) -> ConditionUpdate {
    match all.iter().find(|condition| !condition.is_true()) {
        None => ConditionUpdate::mark_true(READY, "Ready", "the tenant is ready"),
        Some(unmet) => ConditionUpdate::mark_false(READY, unmet.reason, unmet.message.clone()),
    }
}

/// Whether a tenant is ready, whatever the conditions say that Ready does not depend on, or its spec is rejected or waits for quota:
/// then only a change of the spec or of the host can change its state.
pub(super) fn is_settled(conditions: &[ConditionUpdate]) -> bool {
    let unmet = conditions
        .iter()
        .find(|condition| !condition.is_true() && !NOT_PART_OF_READY.contains(&condition.kind));
    unmet.is_none_or(|first| [ACCEPTED, QUOTA_RESERVED].contains(&first.kind))
}

/// The whole status. `settings` is what the tenant runs with.
pub(super) fn build(
    tenant: &Tenant,
    settings: Option<&Settings>,
    violations: Vec<Violation>,
    outcome: &Outcome<'_>,
    nodes: &ObservedNodes,
    conditions: &[ConditionUpdate],
) -> TenantClusterStatus {
    let cluster = &tenant.cluster;
    let before = cluster.status.clone().unwrap_or_default();
    let (endpoint, has_kubeconfig) = match outcome {
        Outcome::Prepared {
            prepared,
            control_plane,
            nodes: _,
            schedule: _,
            argo_cd: _,
            rotation: _,
        } => (
            Some(prepared.endpoints.public.url.clone()),
            matches!(**control_plane, ControlPlane::Started { .. }),
        ),
        _ => (None, false),
    };
    let endpoint = endpoint.or_else(|| before.endpoint.clone());
    let has_kubeconfig = has_kubeconfig || before.kubeconfig_secret_ref.is_some();
    let kubeconfig = match outcome {
        Outcome::Prepared { prepared, .. } => prepared.published_kubeconfig().filter(|_| has_kubeconfig),
        Outcome::NeverAccepted | Outcome::SettingsUnknown(_) | Outcome::NotPrepared(_) => before.kubeconfig.clone(),
    };
    let mut serving = nodes.owned.clone();
    serving.retain(|node| Assignment::read(node).is_some_and(|record| record.state.runs_tenant_pods()));
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let desired = nodes.groups.iter().map(|group| group.desired);
    let sleep_state = cluster.sleep_state();
    // It is upgraded when it wakes.
    let running_version = before.version.clone().filter(|_| sleep_state == SleepState::Sleeping);
    let mut status = TenantClusterStatus {
        phase: Some(phase(conditions, sleep_state)),
        observed_generation: cluster.metadata.generation,
        version: running_version
            .or_else(|| settings.map(|settings| settings.version.clone()))
            .or_else(|| before.version.clone()),
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
        host_usage: observed_host_usage(outcome).or(before.host_usage),
        expires_at: before.expires_at,
        idle_since: before.idle_since,
        expiration_limits: before.expiration_limits,
        sleep: before.sleep,
        credentials: before.credentials,
        manifests: before.manifests,
        nodes: Some(TenantNodeCounts {
            desired: desired.fold(0, u32::saturating_add),
            assigned: count(serving.len()),
            ready: count(serving.iter().filter(|node| is_ready(node)).count()),
        }),
        node_groups: nodes.groups.clone(),
        // The pass over GPUs writes it, see [`write`].
        idle: None,
        violations,
        conditions: conditions::merge(
            &before.conditions,
            conditions,
            cluster.metadata.generation,
            Timestamp::now(),
        ),
    };
    if let Some(manifests) = observed_manifests(outcome) {
        manifests.write_to(&mut status);
    }
    if let Some(registration) = observed_registration(outcome) {
        registration.write_to(&mut status);
    }
    if let Some(rotation) = observed_rotation(outcome) {
        rotation.write_to(&mut status);
    }
    status
}

fn phase(conditions: &[ConditionUpdate], sleep: SleepState) -> Phase {
    match sleep {
        SleepState::Sleeping => return Phase::Sleeping,
        SleepState::Waking => return Phase::Waking,
        SleepState::Awake | SleepState::FallingAsleep => {}
    }
    let is_met = |kind: &str| {
        conditions
            .iter()
            .any(|condition| condition.kind == kind && condition.is_true())
    };
    let lacks_quota = conditions
        .iter()
        .any(|condition| condition.kind == QUOTA_RESERVED && !condition.is_true());
    let is_pending = !is_met(ACCEPTED) || lacks_quota && !is_met(INFRASTRUCTURE_READY);
    match (is_pending, is_met(READY)) {
        (true, _) => Phase::Pending,
        (false, false) => Phase::Provisioning,
        (false, true) => Phase::Ready,
    }
}

/// Writes `after` if it differs from the current status, and an Event for each change.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn write(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
) -> Result<(), TenantError> {
    patch(context, cluster, after, None).await
}

/// As [`write`], only if the object was not changed since the watch showed it. Returns whether it was written.
///
/// # Errors
/// The host refuses or does not answer.
pub(super) async fn write_unless_changed(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
) -> Result<bool, TenantError> {
    let version = cluster.resource_version();
    match patch(context, cluster, after, version.as_deref()).await {
        Err(TenantError::Status(error)) if error.is_status(409) => Ok(false),
        written => written.map(|()| true),
    }
}

async fn patch(
    context: &TenantContext,
    cluster: &TenantCluster,
    after: &TenantClusterStatus,
    version: Option<&str>,
) -> Result<(), TenantError> {
    // `status.idle` has another field manager.
    let without_idle = |status: &TenantClusterStatus| TenantClusterStatus {
        idle: None,
        ..status.clone()
    };
    let before = cluster.status.as_ref().map(without_idle).unwrap_or_default();
    let after = &without_idle(after);
    if before == *after {
        return Ok(());
    }
    let namespace = cluster.namespace().unwrap_or_default();
    let clusters: Api<TenantCluster> = Api::namespaced(context.client.clone(), &namespace);
    let mut body = json!({
        "apiVersion": TenantCluster::api_version(&()), "kind": TenantCluster::kind(&()),
        "metadata": {"name": cluster.name_any(), "uid": cluster.uid()}, "status": after,
    });
    if let Some(version) = version {
        body["metadata"]["resourceVersion"] = version.into();
    }
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    clusters
        .patch_status(&cluster.name_any(), &params, &Patch::Apply(&body))
        .await
        .map_err(api("write the status"))
        .map_err(TenantError::Status)?;
    for event in events(&before, after) {
        context.recorder.publish(&event, &cluster.object_ref(&())).await;
    }
    Ok(())
}

/// The Events of a status that changed: one for each change of a node group, each violation that begins or is enforced, and each
/// condition with a new status or reason.
fn events(before: &TenantClusterStatus, after: &TenantClusterStatus) -> Vec<Event> {
    let groups = node_groups::events(&before.node_groups, &after.node_groups)
        .into_iter()
        .map(|(reason, message)| event(EventType::Normal, reason, NODES_READY, &message));
    let conditions = changed_conditions(&before.conditions, &after.conditions).map(|condition| {
        // A tenant that expires is a warning, one that does not is none.
        let is_met = (condition.status == "True") != (condition.type_ == EXPIRING);
        // Sleep is no fault.
        let is_unmet = !is_met && condition.type_ != AWAKE && !is_transient(&condition.reason);
        let is_warning = is_unmet || [PODS_OVERDUE, NAMESPACE_BLOCKED, STOPS_SOON].contains(&condition.reason.as_str());
        let type_ = if is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        let message = format!("{}: {}", condition.type_, condition.message);
        event(type_, &condition.reason, &condition.type_, &message)
    });
    let violations = compliance::events(&before.violations, &after.violations)
        .into_iter()
        .map(|(reason, message)| event(EventType::Warning, &reason, COMPLIANT, &message));
    groups.chain(violations).chain(conditions).collect()
}

fn event(type_: EventType, reason: &str, action: &str, message: &str) -> Event {
    Event {
        type_,
        reason: reason.into(),
        note: Some(message.chars().take(MAX_MESSAGE_LENGTH).collect()),
        action: action.into(),
        secondary: None,
    }
}

/// Conditions whose status or reason is new, without the summary, and without that of violations: each of them has an Event.
fn changed_conditions<'a>(
    before: &'a [Condition],
    after: &'a [Condition],
) -> impl Iterator<Item = &'a Condition> + use<'a> {
    after.iter().filter(move |condition| {
        condition.type_ != READY
            && (condition.type_ != COMPLIANT || condition.status == "True")
            && !before
                .iter()
                .any(|b| b.type_ == condition.type_ && b.status == condition.status && b.reason == condition.reason)
    })
}

/// Whether a reason says that something is merely under way.
fn is_transient(reason: &str) -> bool {
    matches!(
        reason,
        "Starting" | "Assigning" | "Draining" | "Waiting" | "Pruning" | "Trusting" | "Issuing" | REVOKING | SLEEPING
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReconcileError;

    fn no_nodes() -> ObservedNodes {
        ObservedNodes {
            spec: Vec::new(),
            owned: Vec::new(),
            groups: Vec::new(),
        }
    }

    #[test]
    fn ready_says_what_the_first_unmet_condition_says() {
        let mut all = vec![
            ConditionUpdate::mark_true(ACCEPTED, "Valid", ""),
            ConditionUpdate::mark_false(CONTROL_PLANE_READY, "Starting", "wait"),
            ConditionUpdate::mark_false(NODES_READY, "InsufficientCapacity", "no nodes"),
        ];
        let ready = ready_condition(&all);
        assert_eq!(ready, ConditionUpdate::mark_false(READY, "Starting", "wait"));
        all.push(ready);
        assert_eq!(phase(&all, SleepState::Awake), Phase::Provisioning);
        assert_eq!(phase(&all, SleepState::FallingAsleep), Phase::Provisioning);
        assert_eq!(phase(&all, SleepState::Sleeping), Phase::Sleeping);
        assert_eq!(phase(&all, SleepState::Waking), Phase::Waking);
        all[0] = ConditionUpdate::mark_false(ACCEPTED, "UnknownPool", "");
        assert_eq!(phase(&all, SleepState::Awake), Phase::Pending);
    }

    #[test]
    fn a_failed_step_is_reported_by_its_own_condition() {
        let failure = |text: &str| ReconcileError::Blocked {
            reason: "Broken",
            message: text.into(),
        };
        for (error, kind) in [
            (TenantError::Namespaces(failure("a")), INFRASTRUCTURE_READY),
            (TenantError::NetworkPolicies(failure("a")), INFRASTRUCTURE_READY),
            (TenantError::Datastore(failure("a")), DATASTORE_READY),
            (TenantError::Kubeconfig(failure("a")), CONTROL_PLANE_READY),
        ] {
            let all = conditions(None, None, &Outcome::NotPrepared(error), &no_nodes());
            let unmet: Vec<&str> = all.iter().filter(|c| !c.is_true()).map(|c| c.kind).collect();
            assert_eq!(unmet, [kind, READY]);
            assert_eq!(all.last().map(|ready| ready.reason), Some("Broken"));
        }
    }

    #[test]
    fn a_tenant_that_was_never_accepted_has_no_other_condition() {
        let rejection = ConditionUpdate::mark_false(ACCEPTED, "UnknownPool", "no such pool");
        let all = conditions(Some(&rejection), None, &Outcome::NeverAccepted, &no_nodes());
        assert_eq!(
            all,
            [
                rejection,
                ConditionUpdate::mark_false(READY, "UnknownPool", "no such pool")
            ]
        );
        assert!(is_settled(&all));
    }
}
