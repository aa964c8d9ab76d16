//! What is known of the encryption of what a tenant stores, and what the status says of it: pure.

use super::rotation::RotationProgress;
use crate::{clock::whole_seconds, control_plane::EncryptionState};
use berth_api::{
    EncryptionPhase, EncryptionStatus, RotationRequest, SleepState, TenantClusterStatus,
    conditions::{ConditionUpdate, ENCRYPTED_AT_REST},
    labels,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Reason: the tenant's API server refuses, or does not answer, the rewriting of everything that is left, or what answers does not store it.
const REWRITE_REFUSED: &str = "RewriteRefused";

/// The encryption of what a tenant stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObservedEncryption {
    /// What is recorded; none if nothing was ever to be encrypted.
    recorded: Option<EncryptionState>,
    /// The request for another key, as the annotation has it.
    request: RotationRequest,
    /// How far it is within its phase.
    progress: RotationProgress,
    /// Whether nothing is left to be rewritten but what the tenant's API server refuses.
    is_refused: bool,
}

impl ObservedEncryption {
    /// A tenant of which this is recorded, with this request.
    pub(super) fn new(recorded: Option<EncryptionState>, request: RotationRequest, progress: RotationProgress) -> Self {
        Self {
            recorded,
            request,
            progress,
            is_refused: false,
        }
    }

    /// The same, with whether the tenant's API server refuses the rewriting of all that is left.
    #[must_use]
    pub(super) fn with_refusal(self, is_refused: bool) -> Self {
        Self { is_refused, ..self }
    }

    /// The state, if something is encrypted or to be decrypted.
    fn in_effect(&self) -> Option<&EncryptionState> {
        self.recorded.as_ref().filter(|state| !state.resources.is_empty())
    }

    /// The condition EncryptedAtRest; none if nothing is encrypted and nothing is to be.
    pub(super) fn condition(&self) -> Option<ConditionUpdate> {
        let unmet = |reason, message: String| Some(ConditionUpdate::mark_false(ENCRYPTED_AT_REST, reason, message));
        if let RotationProgress::Failed(message) = &self.progress {
            return unmet("EncryptionFailed", format!("{message}; Berth tries again"));
        }
        let state = self.in_effect()?;
        if self.progress == RotationProgress::Sleeps {
            return unmet(
                SleepState::Sleeping.name(),
                "what the tenant stores is rewritten when the tenant is awake".into(),
            );
        }
        if state.phase != EncryptionPhase::Completed {
            // Somebody has to look for the reason in the tenant. The phase alone is nothing that anybody has to know at once.
            let is_refused = self.is_refused && state.phase == EncryptionPhase::Rewriting;
            let reason = if is_refused {
                REWRITE_REFUSED
            } else {
                state.phase.name()
            };
            return unmet(reason, describe(state, &self.progress));
        }
        let resources: Vec<&str> = state.target.resources.iter().map(String::as_str).collect();
        let key = state.target.key.as_deref().unwrap_or_default();
        let encrypted = format!("{} are encrypted with the key {key}", resources.join(", "));
        let message = match self.request {
            RotationRequest::Invalid => format!(
                "{encrypted}; the annotation {} is not a time: set it to one such as 2026-05-05T12:00:00Z, or remove it",
                labels::ENCRYPTION_KEY_ROTATION_REQUESTED_AT
            ),
            RotationRequest::At(at) if state.requested_at.is_none_or(|last| at > last) => {
                format!("{encrypted}; another key follows at {at}")
            }
            RotationRequest::At(_) | RotationRequest::None => encrypted,
        };
        Some(ConditionUpdate::mark_true(ENCRYPTED_AT_REST, "Encrypted", message))
    }

    /// Sets what the status says of the encryption, and removes the condition if there is none.
    pub(super) fn write_to(&self, status: &mut TenantClusterStatus) {
        status.encryption = self.in_effect().map(|state| EncryptionStatus {
            phase: state.phase,
            since: Time(whole_seconds(state.since)),
            key_name: state.target.key.clone(),
            resources: state.resources.iter().cloned().collect(),
            requested_at: state.requested_at.map(|at| Time(whole_seconds(at))),
        });
        if self.condition().is_none() {
            status.conditions.retain(|known| known.type_ != ENCRYPTED_AT_REST);
        }
    }
}

fn describe(state: &EncryptionState, progress: &RotationProgress) -> String {
    let what = match state.phase {
        EncryptionPhase::Distributing => "API servers are made to read what will be stored",
        EncryptionPhase::Writing => "API servers are made to store objects as their class says",
        EncryptionPhase::Rewriting | EncryptionPhase::Completed => "objects that are stored otherwise are rewritten",
    };
    match progress {
        RotationProgress::Waits(missing) => format!("{what}: {missing}"),
        RotationProgress::Done | RotationProgress::Sleeps | RotationProgress::Failed(_) => what.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_plane::encryption::Target;
    use jiff::Timestamp;
    use std::collections::BTreeSet;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn state(phase: EncryptionPhase, resources: &[&str]) -> EncryptionState {
        let resources: BTreeSet<String> = resources.iter().map(ToString::to_string).collect();
        EncryptionState {
            phase,
            since: at(10),
            requested_at: Some(at(5)),
            target: Target {
                key: Some("k".into()),
                resources: resources.clone(),
            },
            previous: Target::default(),
            ever: resources.clone(),
            resources,
        }
    }

    fn condition(
        state: Option<EncryptionState>,
        request: RotationRequest,
        progress: RotationProgress,
    ) -> Option<ConditionUpdate> {
        ObservedEncryption::new(state, request, progress).condition()
    }

    #[test]
    fn the_condition_follows_the_phase() {
        let none = RotationRequest::None;
        assert_eq!(condition(None, none, RotationProgress::Done), None);
        assert_eq!(
            condition(None, none, RotationProgress::Failed("no".into()))
                .unwrap()
                .reason,
            "EncryptionFailed"
        );
        // After everything was decrypted.
        assert_eq!(
            condition(
                Some(state(EncryptionPhase::Completed, &[])),
                none,
                RotationProgress::Done
            ),
            None
        );
        for phase in [
            EncryptionPhase::Distributing,
            EncryptionPhase::Writing,
            EncryptionPhase::Rewriting,
        ] {
            let waits = RotationProgress::Waits("wait".into());
            let unmet = condition(Some(state(phase, &["secrets"])), none, waits).unwrap();
            assert_eq!((unmet.status, unmet.reason), (Some(false), phase.name()));
            assert!(unmet.message.ends_with(": wait"), "{}", unmet.message);
            let asleep = condition(Some(state(phase, &["secrets"])), none, RotationProgress::Sleeps).unwrap();
            assert_eq!(asleep.reason, "Sleeping");
        }
    }

    #[test]
    fn a_refusal_is_a_reason_of_its_own_while_objects_are_rewritten() {
        let reason = |phase: EncryptionPhase, progress: RotationProgress| {
            let observed = ObservedEncryption::new(Some(state(phase, &["secrets"])), RotationRequest::None, progress);
            observed.with_refusal(true).condition().unwrap().reason
        };
        let waits = || RotationProgress::Waits("one was refused".into());
        assert_eq!(reason(EncryptionPhase::Rewriting, waits()), "RewriteRefused");
        assert_eq!(reason(EncryptionPhase::Writing, waits()), "Writing");
        assert_eq!(reason(EncryptionPhase::Rewriting, RotationProgress::Sleeps), "Sleeping");
        assert_eq!(reason(EncryptionPhase::Completed, RotationProgress::Done), "Encrypted");
    }

    #[test]
    fn what_is_encrypted_stays_so_whatever_was_requested() {
        for (request, end) in [
            (RotationRequest::None, "with the key k"),
            (RotationRequest::At(at(5)), "with the key k"),
            (
                RotationRequest::At(at(60)),
                "; another key follows at 1970-01-01T00:01:00Z",
            ),
            (RotationRequest::Invalid, "or remove it"),
        ] {
            let completed = state(EncryptionPhase::Completed, &["configmaps", "secrets"]);
            let met = condition(Some(completed), request, RotationProgress::Done).unwrap();
            assert_eq!((met.status, met.reason), (Some(true), "Encrypted"));
            assert!(
                met.message.starts_with("configmaps, secrets are encrypted"),
                "{}",
                met.message
            );
            assert!(met.message.ends_with(end), "{}", met.message);
        }
    }

    #[test]
    fn the_status_says_what_is_recorded_and_nothing_once_it_is_off() {
        let mut status = TenantClusterStatus::default();
        let recorded = state(EncryptionPhase::Rewriting, &["secrets"]);
        ObservedEncryption::new(Some(recorded), RotationRequest::None, RotationProgress::Done).write_to(&mut status);
        let written = status.encryption.clone().unwrap();
        assert_eq!(
            (written.phase, written.key_name.as_deref()),
            (EncryptionPhase::Rewriting, Some("k"))
        );
        assert_eq!(written.resources, ["secrets"]);
        let off = ObservedEncryption::new(None, RotationRequest::None, RotationProgress::Done);
        off.write_to(&mut status);
        assert_eq!(status, TenantClusterStatus::default());
    }
}
