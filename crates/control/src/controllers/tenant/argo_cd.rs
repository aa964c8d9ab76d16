//! What is known of the registration of a tenant in Argo CD, and what the status says of it: pure.

use crate::error::ReconcileError;
use berth_api::{
    TenantClusterStatus,
    conditions::{ARGO_CD_REGISTERED, ConditionUpdate},
};

/// Reason while rights of Argo CD in a tenant remain that does not answer.
pub(super) const REVOKING: &str = "Revoking";

/// Where the Secret of the tenant for Argo CD is, as it is recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Recorded {
    /// It was not read yet.
    #[default]
    Unknown,
    /// There is none.
    Nowhere,
    /// In this namespace.
    In(String),
}

/// The registration of a tenant in Argo CD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ObservedRegistration {
    /// Nothing is known now: the tenant does not answer. What the status says stays.
    NotObserved,
    /// It is not registered, nor to be.
    NotRegistered,
    /// It is to be registered, and the platform names no Argo CD.
    NotConfigured,
    /// Its class registers tenants by their names at the gateway, and the platform has none. A Secret that exists stays as it is.
    NoGateway {
        /// The class.
        class: String,
        /// Whether there is a Secret from before.
        has_secret: bool,
    },
    /// It is registered: namespace and name of the Secret, and its name in Argo CD.
    Registered { secret: String, name: String },
    /// The Secret is deleted, and the rights of Argo CD in the tenant remain until that answers.
    Revoking,
    /// The registration could not be made or ended, as the reason and the message say.
    Failed { reason: &'static str, message: String },
}

impl ObservedRegistration {
    pub(super) fn from_error(error: &ReconcileError) -> Self {
        let reason = match error {
            ReconcileError::Blocked { reason, .. } => *reason,
            _ => "RegistrationFailed",
        };
        Self::Failed {
            reason,
            message: error.to_string(),
        }
    }

    /// The condition ArgoCDRegistered, if something is known.
    pub(super) fn condition(&self) -> Option<ConditionUpdate> {
        let unmet = |reason, message: &str| Some(ConditionUpdate::mark_false(ARGO_CD_REGISTERED, reason, message));
        match self {
            Self::NotObserved | Self::NotRegistered => None,
            Self::NotConfigured => unmet(
                "ArgoCDNotConfigured",
                "the platform names no namespace of Argo CD; remove spec.integrations.argoCD, or ask the platform team to set the \
                 chart's integrations.argoCD.namespace",
            ),
            Self::NoGateway { class, has_secret: _ } => unmet(
                "GatewayNotConfigured",
                &format!(
                    "TenantClass {class} registers tenants by their names at the gateway, and the platform has no gateway; ask the \
                     platform team to set the chart's gateway.enabled, or the class's spec.integrations.argoCD.server to Service"
                ),
            ),
            Self::Registered { secret, name } => Some(ConditionUpdate::mark_true(
                ARGO_CD_REGISTERED,
                "Registered",
                format!("Argo CD finds the tenant as {name}, by Secret {secret}"),
            )),
            Self::Revoking => unmet(
                REVOKING,
                "the Secret is deleted; Argo CD's rights in the tenant are removed when its API server answers, or before it starts again",
            ),
            Self::Failed { reason, message } => unmet(*reason, message),
        }
    }

    /// Removes the condition from the status of a tenant that is not registered.
    pub(super) fn write_to(&self, status: &mut TenantClusterStatus) {
        if *self == Self::NotRegistered {
            status
                .conditions
                .retain(|condition| condition.type_ != ARGO_CD_REGISTERED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::conditions;
    use jiff::Timestamp;

    #[test]
    fn the_condition_stays_while_the_tenant_does_not_answer_and_goes_with_the_registration() {
        let registered = ObservedRegistration::Registered {
            secret: "argocd/berth-a".into(),
            name: "a.team".into(),
        };
        let update = registered.condition().unwrap();
        assert!(update.is_true() && update.message.contains("a.team"), "{update:?}");
        let mut status = TenantClusterStatus {
            conditions: conditions::merge(&[], &[update], None, Timestamp::UNIX_EPOCH),
            ..TenantClusterStatus::default()
        };
        let before = status.clone();
        for kept in [
            ObservedRegistration::NotObserved,
            ObservedRegistration::Revoking,
            registered,
        ] {
            kept.write_to(&mut status);
            assert_eq!(status, before);
        }
        assert_eq!(ObservedRegistration::NotObserved.condition(), None);
        ObservedRegistration::NotRegistered.write_to(&mut status);
        assert_eq!(status, TenantClusterStatus::default());
    }

    #[test]
    fn what_people_must_resolve_has_a_reason_of_its_own() {
        let blocked = ReconcileError::Blocked {
            reason: "SecretExists",
            message: "delete it".into(),
        };
        let condition = ObservedRegistration::from_error(&blocked).condition().unwrap();
        assert_eq!((condition.status, condition.reason), (Some(false), "SecretExists"));
        assert_eq!(condition.message, "delete it");
    }
}
