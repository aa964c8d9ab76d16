//! Replacing the credentials of a tenant: the state of it in the status, and the requests for that and for another key of its encryption.

use crate::{TenantCluster, labels};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A step of the replacement of the authority that signs a tenant's client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RotationPhase {
    /// The API server is made to trust a new authority besides the one that signs.
    Trusting,
    /// Every client certificate is issued anew, by the new authority.
    Issuing,
    /// The API server is made to trust the new authority alone.
    Revoking,
    /// Certificates of the earlier authority are refused.
    Completed,
}

impl RotationPhase {
    /// Its name, also as the reason of the condition.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trusting => "Trusting",
            Self::Issuing => "Issuing",
            Self::Revoking => "Revoking",
            Self::Completed => "Completed",
        }
    }
}

/// The last rotation of the credentials of a tenant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsStatus {
    /// The request that it follows: the value of the annotation `berth.dev/credentials-rotation-requested-at`.
    pub requested_at: Time,
    /// Its step. Completed: client certificates that were issued before are refused.
    pub phase: RotationPhase,
    /// Since when it is at this step.
    pub since: Time,
}

/// A request for new credentials, or for another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RotationRequest {
    /// There is none.
    None,
    /// The annotation has a value that is not a time.
    Invalid,
    /// Made at this time.
    At(Timestamp),
}

impl TenantCluster {
    /// The request for new credentials: [`labels::CREDENTIALS_ROTATION_REQUESTED_AT`]. One from before the creation of the object is none:
    /// all of its credentials are newer.
    pub fn rotation_request(&self) -> RotationRequest {
        self.rotation_requested_by(labels::CREDENTIALS_ROTATION_REQUESTED_AT)
    }

    /// The request for another key of the encryption of what is stored: [`labels::ENCRYPTION_KEY_ROTATION_REQUESTED_AT`]. One from before the
    /// creation of the object is none.
    pub fn encryption_key_rotation_request(&self) -> RotationRequest {
        self.rotation_requested_by(labels::ENCRYPTION_KEY_ROTATION_REQUESTED_AT)
    }

    /// The request in an annotation.
    fn rotation_requested_by(&self, annotation: &str) -> RotationRequest {
        let Some(text) = self.annotations().get(annotation) else {
            return RotationRequest::None;
        };
        let Ok(at) = text.trim().parse::<Timestamp>() else {
            return RotationRequest::Invalid;
        };
        let created = self.metadata.creation_timestamp.as_ref().map(|created| created.0);
        if created.is_some_and(|created| at < created) {
            return RotationRequest::None;
        }
        RotationRequest::At(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantClusterSpec;

    #[test]
    fn a_request_is_a_time_after_the_creation() {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        assert_eq!(cluster.rotation_request(), RotationRequest::None);
        let at = |text: &str| RotationRequest::At(text.parse().unwrap());
        cluster.metadata.creation_timestamp = Some(Time("2026-05-05T12:00:00Z".parse().unwrap()));
        for (text, expected) in [
            ("2026-05-05T11:59:59Z", RotationRequest::None),
            ("2026-05-05T12:00:00Z", at("2026-05-05T12:00:00Z")),
            (" 2026-05-05T15:00:00+02:00 ", at("2026-05-05T13:00:00Z")),
            ("now", RotationRequest::Invalid),
            ("", RotationRequest::Invalid),
        ] {
            let annotations = [(labels::CREDENTIALS_ROTATION_REQUESTED_AT.to_owned(), text.to_owned())];
            cluster.metadata.annotations = Some(annotations.into());
            assert_eq!(cluster.rotation_request(), expected, "{text:?}");
            assert_eq!(cluster.encryption_key_rotation_request(), RotationRequest::None);
            let annotations = [(labels::ENCRYPTION_KEY_ROTATION_REQUESTED_AT.to_owned(), text.to_owned())];
            cluster.metadata.annotations = Some(annotations.into());
            assert_eq!(cluster.encryption_key_rotation_request(), expected, "{text:?}");
        }
    }

    #[test]
    fn phases_have_the_names_of_the_api() {
        for phase in [
            RotationPhase::Trusting,
            RotationPhase::Issuing,
            RotationPhase::Revoking,
            RotationPhase::Completed,
        ] {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.name());
        }
    }
}
