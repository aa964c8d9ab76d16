//! The conditions that follow from the outcome of a reconcile, and the phase that follows from them: pure.

use super::{
    super::{
        apply::{ApiServer, ControlPlane, ObservedIssuers, Outcome, PublicState, Serving, Started, SyncerState},
        argo_cd::ObservedRegistration,
        datastore_usage,
        encryption::ObservedEncryption,
        error::TenantError,
        fetch::ObservedNodes,
        host_usage,
        manifests::ObservedManifests,
        node_groups,
        rotation::ObservedRotation,
    },
    observed::{
        find_unobserved, is_asleep, observed_encryption, observed_host_usage, observed_issuers, observed_manifests,
        observed_registration, observed_rotation, observed_usage,
    },
};
use crate::runtime::ComponentState;
use berth_api::{
    Phase, SleepState,
    conditions::{
        ACCEPTED, ARGO_CD_REGISTERED, AUTHENTICATION_APPLIED, AWAKE, COMPLIANT, CONTROL_PLANE_READY,
        CREDENTIALS_ROTATED, ConditionUpdate, DATASTORE_READY, DATASTORE_WITHIN_LIMITS, ENCRYPTED_AT_REST,
        ENDPOINT_READY, EXPIRING, HOST_WITHIN_LIMITS, INFRASTRUCTURE_READY, MANIFESTS_APPLIED, NODES_READY,
        QUOTA_RESERVED, READY, RESTORED, SYNCER_READY, WITHIN_SCHEDULE,
    },
};

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
pub(in super::super) const SLEEPING: &str = "Sleeping";
/// Reason of ManifestsApplied while nobody looks at the manifests.
const NOT_OBSERVED: &str = "NotObserved";
/// Message of conditions of a tenant that sleeps.
pub(in super::super) const SLEEPS: &str =
    "the tenant sleeps, and nothing of it runs for its team; the condition Awake says what wakes it";
/// What SyncerReady says besides while endpoints are missing.
const WITHOUT_ENDPOINTS: &str =
    "; own EndpointSlices of the tenant with addresses of pods were deleted on the host, until it works";
/// Conditions that Ready does not depend on: how full the datastore is, how much is on the host, what the tenant may not keep, what its schedules say, when it
/// ends, whether it sleeps, what the platform applies in it, whether its API server has its issuers, whether Argo CD knows it, whether its credentials were replaced, and
/// whether what it stores is encrypted, and whether it was set back to a snapshot.
const NOT_PART_OF_READY: [&str; 12] = [
    DATASTORE_WITHIN_LIMITS,
    HOST_WITHIN_LIMITS,
    COMPLIANT,
    WITHIN_SCHEDULE,
    EXPIRING,
    AWAKE,
    MANIFESTS_APPLIED,
    AUTHENTICATION_APPLIED,
    ARGO_CD_REGISTERED,
    CREDENTIALS_ROTATED,
    ENCRYPTED_AT_REST,
    RESTORED,
];

/// The conditions that follow from an outcome, in the order in which a tenant is built up, and Ready after them. `rejection`
/// is why the spec is not accepted, `quota` what the quotas say. Conditions of steps that were not reached are missing: they stay as they were.
pub(in super::super) fn conditions(
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
        encryption: _,
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
                observed: _,
            } => Some((started, serving)),
            _ => None,
        };
        all.extend(serving.map(|(started, serving)| control_plane_condition(started, serving)));
        all.extend(prepared.public.as_ref().map(PublicState::condition));
        let lacks_endpoints = prepared.accepted.tenant.memory.syncer_absence().has_deleted();
        all.extend(serving.map(|(_, serving)| syncer_condition(&serving.syncer, lacks_endpoints)));
        if is_asleep(outcome) {
            let sleeps = |kind| ConditionUpdate::mark_false(kind, SLEEPING, SLEEPS);
            all.extend([CONTROL_PLANE_READY, SYNCER_READY].map(sleeps));
        }
        if published.is_ok() {
            all.push(node_groups::condition(&nodes.spec, &nodes.groups, &nodes.owned));
        }
    }
    // Of several steps with the same condition the first counts.
    for failed in outcome.errors().into_iter().rev().map(TenantError::condition) {
        all.retain(|condition| condition.kind != failed.kind);
        all.push(failed);
    }
    all.sort_by_key(|condition| ORDER.iter().position(|kind| *kind == condition.kind));
    all.push(ready_condition(&all));
    // Not among those that Ready depends on: what runs goes on.
    all.extend(observed_usage(outcome).and_then(datastore_usage::condition));
    all.extend(observed_host_usage(outcome).as_ref().map(host_usage::condition));
    if is_asleep(outcome) {
        // Without pods nearly nothing is left there, and its syncer counts nothing.
        all.push(ConditionUpdate::mark_unknown(HOST_WITHIN_LIMITS, SLEEPING, SLEEPS));
    }
    all.extend(observed_manifests(outcome).and_then(ObservedManifests::condition));
    all.extend(unknown_manifests(outcome));
    all.extend(observed_issuers(outcome).and_then(ObservedIssuers::condition));
    all.extend(observed_registration(outcome).and_then(ObservedRegistration::condition));
    all.extend(observed_rotation(outcome).and_then(ObservedRotation::condition));
    all.extend(observed_encryption(outcome).and_then(ObservedEncryption::condition));
    all.extend(quota_for_more);
    all
}

/// The condition ManifestsApplied while a step fails without which nobody looks at the manifests. Only a tenant that has manifests has it.
fn unknown_manifests(outcome: &Outcome<'_>) -> Option<ConditionUpdate> {
    let error = find_unobserved(outcome)?;
    let Outcome::Prepared { prepared, .. } = outcome else {
        return None;
    };
    let status = prepared.accepted.tenant.cluster.status.as_ref()?;
    let has_manifests = status.conditions.iter().any(|known| known.type_ == MANIFESTS_APPLIED);
    has_manifests.then(|| {
        let message = format!(
            "nobody has looked at the manifests since a step before them failed; the condition {} says why",
            error.condition().kind
        );
        ConditionUpdate::mark_unknown(MANIFESTS_APPLIED, NOT_OBSERVED, message)
    })
}

fn control_plane_condition(started: &Started, serving: &Serving) -> ConditionUpdate {
    let down = |why: &str| ConditionUpdate::mark_false(CONTROL_PLANE_READY, "NotRunning", why);
    let starting = |what: &str| ConditionUpdate::mark_false(CONTROL_PLANE_READY, "Starting", what);
    match (&started.api_server, &serving.running) {
        (ApiServer::Down(why), _) => down(why),
        (ApiServer::Starting, _) | (ApiServer::Answers(_), None) => {
            starting("the API server was started and does not answer yet")
        }
        (ApiServer::Bootstrapping(_), _) => {
            starting("the API server answers and has not written its default roles and priority classes yet")
        }
        (ApiServer::Answers(_), Some(running)) => match &running.components {
            ComponentState::Running => match &started.stuck {
                None => ConditionUpdate::mark_true(CONTROL_PLANE_READY, "Running", "the API server is ready"),
                Some(why) => ConditionUpdate::mark_true(
                    CONTROL_PLANE_READY,
                    "RolloutStuck",
                    format!("the API server is ready, but not replaced as it is to be: {why}"),
                ),
            },
            ComponentState::Down(why) => down(why),
        },
    }
}

/// `lacks_endpoints` says whether endpoints were deleted because the syncer did not work, and has not worked since.
fn syncer_condition(syncer: &SyncerState, lacks_endpoints: bool) -> ConditionUpdate {
    let without = if lacks_endpoints { WITHOUT_ENDPOINTS } else { "" };
    let message = |text: &str| format!("{text}{without}");
    match syncer {
        SyncerState::Ready => {
            ConditionUpdate::mark_true(SYNCER_READY, "InSync", message("the syncer has listed both sides"))
        }
        SyncerState::Starting(text) => ConditionUpdate::mark_false(SYNCER_READY, "Starting", message(text)),
        SyncerState::Down(why) => ConditionUpdate::mark_false(SYNCER_READY, "NotRunning", message(why)),
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
pub(in super::super) fn is_settled(conditions: &[ConditionUpdate]) -> bool {
    let unmet = conditions
        .iter()
        .find(|condition| !condition.is_true() && !NOT_PART_OF_READY.contains(&condition.kind));
    unmet.is_none_or(|first| [ACCEPTED, QUOTA_RESERVED].contains(&first.kind))
}

/// The phase of a tenant with these conditions.
pub(super) fn phase(conditions: &[ConditionUpdate], sleep: SleepState) -> Phase {
    match sleep {
        SleepState::Sleeping | SleepState::Enforcing => return Phase::Sleeping,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ReconcileError;

    fn no_nodes() -> ObservedNodes {
        ObservedNodes {
            spec: Vec::new(),
            owned: Vec::new(),
            groups: Vec::new(),
            unused: Vec::new(),
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
        assert_eq!(phase(&all, SleepState::Enforcing), Phase::Sleeping);
        assert_eq!(phase(&all, SleepState::Waking), Phase::Waking);
        all[0] = ConditionUpdate::mark_false(ACCEPTED, "UnknownPool", "");
        assert_eq!(phase(&all, SleepState::Awake), Phase::Pending);
    }

    #[test]
    fn the_syncer_is_not_ready_and_the_message_says_what_is_missing_on_the_host() {
        let starting = SyncerState::Starting("the syncer does not answer yet".into());
        let before = syncer_condition(&starting, false);
        assert_eq!(before.message, "the syncer does not answer yet");
        let after = syncer_condition(&starting, true);
        assert_eq!((after.reason, after.is_true()), (before.reason, false));
        assert!(after.message.ends_with(WITHOUT_ENDPOINTS), "{}", after.message);
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
