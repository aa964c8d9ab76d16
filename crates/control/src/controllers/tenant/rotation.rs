//! What is known of the rotation of a tenant's credentials, and what the status says of it: pure.

use super::argo_cd::ObservedRegistration;
use crate::{clock::whole_seconds, control_plane::Rotation};
use berth_api::{
    CredentialsStatus, RotationPhase, RotationRequest, SleepState, TenantClusterStatus,
    conditions::{CREDENTIALS_ROTATED, ConditionUpdate},
    labels,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Reason while a request is not carried out yet.
const WAITING: &str = "Waiting";

/// The rotation of a tenant's credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedRotation {
    /// The request, as the annotation has it.
    request: RotationRequest,
    /// What is recorded.
    recorded: Option<Rotation>,
    /// How far it is within its phase.
    progress: RotationProgress,
}

/// How far a rotation is within its phase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RotationProgress {
    /// Nothing is to be done, or a step was done.
    Done,
    /// This is waited for.
    Waits(String),
    /// The tenant sleeps, and nothing is done until it is awake.
    Sleeps,
    /// A step failed, and is tried again.
    Failed(String),
}

impl ObservedRotation {
    /// A tenant with this request, of which this is recorded.
    pub(super) fn new(request: RotationRequest, recorded: Option<Rotation>, progress: RotationProgress) -> Self {
        Self {
            request,
            recorded,
            progress,
        }
    }

    /// The condition CredentialsRotated; none if there never was a request.
    pub(super) fn condition(&self) -> Option<ConditionUpdate> {
        let unmet = |reason, message: String| Some(ConditionUpdate::mark_false(CREDENTIALS_ROTATED, reason, message));
        if let RotationProgress::Failed(message) = &self.progress {
            return unmet("RotationFailed", format!("{message}; Berth tries again"));
        }
        let is_new = |at: Timestamp| self.recorded.is_none_or(|recorded| at > recorded.requested_at);
        match (&self.recorded, self.request, &self.progress) {
            (Some(recorded), _, RotationProgress::Sleeps) if recorded.is_under_way() => unmet(
                SleepState::Sleeping.name(),
                "the rotation goes on when the tenant is awake".into(),
            ),
            (Some(recorded), _, progress) if recorded.is_under_way() => {
                unmet(recorded.phase.name(), describe(recorded.phase, progress))
            }
            (_, RotationRequest::Invalid, _) => unmet(
                "InvalidRequest",
                format!(
                    "the annotation {} is not a time; set it to one such as 2026-05-05T12:00:00Z, or remove it",
                    labels::CREDENTIALS_ROTATION_REQUESTED_AT
                ),
            ),
            (_, RotationRequest::At(at), RotationProgress::Sleeps) if is_new(at) => unmet(
                SleepState::Sleeping.name(),
                "the rotation begins when the tenant is awake".into(),
            ),
            (_, RotationRequest::At(at), _) if is_new(at) => unmet(WAITING, format!("the rotation begins at {at}")),
            (Some(recorded), _, _) => Some(ConditionUpdate::mark_true(
                CREDENTIALS_ROTATED,
                "Rotated",
                format!(
                    "client certificates from before the request of {} are refused; take the kubeconfig from the Secret again",
                    recorded.requested_at
                ),
            )),
            (None, _, _) => None,
        }
    }

    /// Sets what the status says of the rotation, and removes the condition if there is none.
    pub(super) fn write_to(&self, status: &mut TenantClusterStatus) {
        status.credentials = self.recorded.map(|recorded| CredentialsStatus {
            requested_at: Time(whole_seconds(recorded.requested_at)),
            phase: recorded.phase,
            since: Time(whole_seconds(recorded.since)),
        });
        if self.condition().is_none() {
            let conditions = &mut status.conditions;
            conditions.retain(|condition| condition.type_ != CREDENTIALS_ROTATED);
        }
    }
}

fn describe(phase: RotationPhase, progress: &RotationProgress) -> String {
    let what = match phase {
        RotationPhase::Trusting => "the API server is made to trust a new authority of client certificates",
        RotationPhase::Issuing => "client certificates are issued by the new authority",
        RotationPhase::Revoking | RotationPhase::Completed => {
            "the API server is made to refuse certificates of the old authority"
        }
    };
    match progress {
        RotationProgress::Waits(missing) => format!("{what}: {missing}"),
        RotationProgress::Done | RotationProgress::Sleeps | RotationProgress::Failed(_) => what.to_owned(),
    }
}

/// Whether the Secret for Argo CD, if there is one, has the certificate that is rendered now. An error says what is waited for.
pub(super) fn check_registration(registration: &ObservedRegistration) -> Result<(), String> {
    match registration {
        ObservedRegistration::NotRegistered
        | ObservedRegistration::NotConfigured
        | ObservedRegistration::Registered { .. }
        | ObservedRegistration::NoGateway { has_secret: false, .. }
        // The Secret is deleted.
        | ObservedRegistration::Revoking => Ok(()),
        ObservedRegistration::NotObserved => Err("the Secret for Argo CD is not written yet".into()),
        ObservedRegistration::Failed { .. } | ObservedRegistration::NoGateway { has_secret: true, .. } => Err(
            "the Secret for Argo CD cannot be written; the condition ArgoCDRegistered says why. Resolve it, or end the registration"
                .into(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::conditions;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn recorded(phase: RotationPhase) -> Rotation {
        Rotation {
            requested_at: at("2026-05-05T12:00:00.5Z"),
            phase,
            since: at("2026-05-05T12:00:01.5Z"),
        }
    }

    fn reason(
        request: RotationRequest,
        recorded: Option<Rotation>,
        progress: RotationProgress,
    ) -> Option<(Option<bool>, String)> {
        let condition = ObservedRotation::new(request, recorded, progress).condition()?;
        Some((condition.status, condition.reason.to_owned()))
    }

    #[test]
    fn the_condition_follows_the_phase_and_the_request() {
        use RotationPhase::{Completed, Issuing, Trusting};
        let later = RotationRequest::At(at("2099-01-01T00:00:00Z"));
        let same = RotationRequest::At(at("2026-05-05T12:00:00.5Z"));
        let no = |text: &str| Some((Some(false), text.to_owned()));
        for (request, recorded, progress, expected) in [
            (RotationRequest::None, None, RotationProgress::Done, None),
            (
                RotationRequest::Invalid,
                None,
                RotationProgress::Done,
                no("InvalidRequest"),
            ),
            (later, None, RotationProgress::Done, no("Waiting")),
            (same, None, RotationProgress::Sleeps, no("Sleeping")),
            (same, Some(recorded(Trusting)), RotationProgress::Done, no("Trusting")),
            (
                RotationRequest::Invalid,
                Some(recorded(Issuing)),
                RotationProgress::Done,
                no("Issuing"),
            ),
            (
                RotationRequest::None,
                Some(recorded(Issuing)),
                RotationProgress::Sleeps,
                no("Sleeping"),
            ),
            (
                same,
                Some(recorded(Completed)),
                RotationProgress::Sleeps,
                Some((Some(true), "Rotated".into())),
            ),
            (
                RotationRequest::None,
                Some(recorded(Completed)),
                RotationProgress::Done,
                Some((Some(true), "Rotated".into())),
            ),
            (later, Some(recorded(Completed)), RotationProgress::Done, no("Waiting")),
            (
                same,
                Some(recorded(Completed)),
                RotationProgress::Failed("no".into()),
                no("RotationFailed"),
            ),
        ] {
            assert_eq!(
                reason(request, recorded, progress.clone()),
                expected,
                "{request:?} {recorded:?} {progress:?}"
            );
        }
    }

    #[test]
    fn a_message_says_what_is_waited_for() {
        let waits = RotationProgress::Waits("syncer is being replaced".into());
        let observed = ObservedRotation::new(RotationRequest::None, Some(recorded(RotationPhase::Issuing)), waits);
        let message = observed.condition().unwrap().message;
        assert!(
            message.ends_with("by the new authority: syncer is being replaced"),
            "{message}"
        );
    }

    #[test]
    fn the_status_has_whole_seconds_and_no_condition_without_a_rotation() {
        let observed = ObservedRotation::new(
            RotationRequest::None,
            Some(recorded(RotationPhase::Completed)),
            RotationProgress::Done,
        );
        let mut status = TenantClusterStatus::default();
        observed.write_to(&mut status);
        let credentials = status.credentials.clone().unwrap();
        assert_eq!(credentials.requested_at.0, at("2026-05-05T12:00:00Z"));
        assert_eq!(credentials.since.0, at("2026-05-05T12:00:01Z"));
        status.conditions = conditions::merge(&[], &[observed.condition().unwrap()], None, Timestamp::UNIX_EPOCH);
        let invalid_and_removed = ObservedRotation::new(RotationRequest::None, None, RotationProgress::Done);
        invalid_and_removed.write_to(&mut status);
        assert_eq!(status, TenantClusterStatus::default());
    }

    #[test]
    fn a_registration_that_fails_is_waited_for() {
        let failed = ObservedRegistration::Failed {
            reason: "SecretExists",
            message: String::new(),
        };
        let without_gateway = |has_secret| ObservedRegistration::NoGateway {
            class: "gold".into(),
            has_secret,
        };
        for waits in [ObservedRegistration::NotObserved, failed, without_gateway(true)] {
            assert!(check_registration(&waits).is_err(), "{waits:?}");
        }
        let registered = ObservedRegistration::Registered {
            secret: "argocd/a".into(),
            name: "a".into(),
        };
        for fine in [
            registered,
            without_gateway(false),
            ObservedRegistration::NotRegistered,
            ObservedRegistration::Revoking,
        ] {
            assert_eq!(check_registration(&fine), Ok(()));
        }
    }
}
