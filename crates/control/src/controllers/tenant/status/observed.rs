//! What a reconcile observed of a tenant, from its outcome.

use super::super::{
    apply::{ControlPlane, Observed, ObservedIssuers, Outcome},
    argo_cd::ObservedRegistration,
    datastore_usage::ObservedUsage,
    encryption::ObservedEncryption,
    error::TenantError,
    manifests::ObservedManifests,
    rotation::ObservedRotation,
};
use berth_api::HostUsage;

/// What the tenant stores, if its API server was started.
pub(in super::super) fn observed_usage<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedUsage> {
    let Outcome::Prepared { control_plane, .. } = outcome else {
        return None;
    };
    match control_plane.as_ref() {
        ControlPlane::Started { started, .. } => Some(&started.datastore),
        ControlPlane::Asleep { .. } | ControlPlane::NotStarted(_) => None,
    }
}

/// What is known of the manifests of the class, if the tenant was looked at.
pub(super) fn observed_manifests<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedManifests> {
    observed(outcome).map(|observed| &observed.manifests)
}

/// The step that failed, if that is why the manifests of the class were not looked at.
pub(super) fn find_unobserved<'a>(outcome: &'a Outcome<'_>) -> Option<&'a TenantError> {
    let Outcome::Prepared { control_plane, .. } = outcome else {
        return None;
    };
    match control_plane.as_ref() {
        ControlPlane::NotStarted(error) => Some(error),
        ControlPlane::Started {
            started: _,
            serving: Err(error),
            observed,
        } if observed.manifests == ObservedManifests::NotObserved => Some(error),
        ControlPlane::Started { .. } | ControlPlane::Asleep { .. } => None,
    }
}

/// Whether nothing of the tenant runs for its team, because it sleeps.
pub(super) fn is_asleep(outcome: &Outcome<'_>) -> bool {
    matches!(outcome, Outcome::Prepared { control_plane, .. } if matches!(**control_plane, ControlPlane::Asleep { .. }))
}

/// Whether every API server of the tenant is as its settings say.
pub(super) fn has_rolled_out(outcome: &Outcome<'_>) -> bool {
    let Outcome::Prepared { control_plane, .. } = outcome else {
        return false;
    };
    matches!(control_plane.as_ref(), ControlPlane::Started { started, .. } if started.has_rolled_out)
}

/// What the tenant has on the host, if its syncer said it.
pub(super) fn observed_host_usage(outcome: &Outcome<'_>) -> Option<HostUsage> {
    observed(outcome)?.host_usage
}

/// What was observed of a tenant that is served.
fn observed<'a>(outcome: &'a Outcome<'_>) -> Option<&'a Observed> {
    let Outcome::Prepared { control_plane, .. } = outcome else {
        return None;
    };
    match control_plane.as_ref() {
        ControlPlane::Started { observed, .. } => Some(observed),
        ControlPlane::Asleep { .. } | ControlPlane::NotStarted(_) => None,
    }
}

/// What is known of the issuers of the API server, if that was started.
pub(super) fn observed_issuers<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedIssuers> {
    let Outcome::Prepared { control_plane, .. } = outcome else {
        return None;
    };
    match control_plane.as_ref() {
        ControlPlane::Started { started, .. } => Some(&started.authentication),
        ControlPlane::Asleep { .. } | ControlPlane::NotStarted(_) => None,
    }
}

/// What is known of the registration in Argo CD, if the tenant was looked at.
pub(super) fn observed_registration<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedRegistration> {
    match outcome {
        Outcome::Prepared { argo_cd, .. } => Some(argo_cd),
        Outcome::NeverAccepted | Outcome::SettingsUnknown(_) | Outcome::NotPrepared(_) => None,
    }
}

/// What is known of the rotation of the credentials, if the tenant was looked at.
pub(super) fn observed_rotation<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedRotation> {
    match outcome {
        Outcome::Prepared { rotation, .. } => Some(rotation),
        Outcome::NeverAccepted | Outcome::SettingsUnknown(_) | Outcome::NotPrepared(_) => None,
    }
}

/// What is known of the encryption of what it stores, if the tenant was looked at.
pub(super) fn observed_encryption<'a>(outcome: &'a Outcome<'_>) -> Option<&'a ObservedEncryption> {
    match outcome {
        Outcome::Prepared { encryption, .. } => Some(encryption),
        Outcome::NeverAccepted | Outcome::SettingsUnknown(_) | Outcome::NotPrepared(_) => None,
    }
}
