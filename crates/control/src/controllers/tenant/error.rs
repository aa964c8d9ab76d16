//! Why the reconcile of a tenant could not finish, by the step that failed.

use super::connection::ConnectionError;
use crate::error::ReconcileError;
use berth_api::conditions::{
    CONTROL_PLANE_READY, ConditionUpdate, DATASTORE_READY, DELETING, ENDPOINT_READY, EXPIRING, INFRASTRUCTURE_READY,
    NODES_READY, SYNCER_READY,
};

/// Reason of a Service of the API server that the host does not store, with the annotations of the team for example.
pub(super) const EXTERNAL_SERVICE_FAILED: &str = "ExternalServiceFailed";

/// Reason while endpoints that the tenant has made itself cannot be deleted.
const ENDPOINT_DELETION_FAILED: &str = "EndpointDeletionFailed";

/// The step that failed, and why.
#[derive(Debug, thiserror::Error)]
pub enum TenantError {
    /// Adding the finalizer.
    #[error("finalizer: {0}")]
    Finalizer(#[source] ReconcileError),
    /// Reading or recording the settings that the tenant was accepted with.
    #[error("settings: {0}")]
    Settings(#[source] ReconcileError),
    /// Reading which Projects there are.
    #[error("quota: {0}")]
    Quota(#[source] ReconcileError),
    /// Deleting the objects of kinds that the class does not list any more.
    #[error("withdrawn kinds: {0}")]
    WithdrawnKinds(#[source] ReconcileError),
    /// Reading the host's Service ranges, nodes and API servers.
    #[error("host network: {0}")]
    HostNetwork(#[source] ReconcileError),
    /// Applying the two namespaces.
    #[error("namespaces: {0}")]
    Namespaces(#[source] ReconcileError),
    /// Applying the limits of the workload namespace.
    #[error("limits: {0}")]
    Limits(#[source] ReconcileError),
    /// Loading or creating the certificate authorities.
    #[error("certificate authorities: {0}")]
    Authorities(#[source] ReconcileError),
    /// The keys with which the tenant's objects are encrypted.
    #[error("encryption: {0}")]
    Encryption(#[source] ReconcileError),
    /// Preparing user, role and key range in etcd, and deleting there what must not be there when an API server starts.
    #[error("datastore: {0}")]
    Datastore(#[source] ReconcileError),
    /// Reserving a Service range and ports.
    #[error("address of the API server: {0}")]
    Address(#[source] ReconcileError),
    /// Applying the Service through which the team reaches the API server.
    #[error("external Service: {0}")]
    ExternalService(#[source] ReconcileError),
    /// Applying the NetworkPolicies.
    #[error("network policies: {0}")]
    NetworkPolicies(#[source] ReconcileError),
    /// Making a client for the tenant's API server.
    #[error("connection to the tenant: {0}")]
    Connection(#[source] ConnectionError),
    /// Reserving the address of the tenant's DNS.
    #[error("DNS: {0}")]
    Dns(#[source] ReconcileError),
    /// Issuing and storing certificates.
    #[error("certificates: {0}")]
    Certificates(#[source] ReconcileError),
    /// Starting the API server.
    #[error("API server: {0}")]
    ApiServer(#[source] ReconcileError),
    /// Applying the syncer's ServiceAccount and its roles.
    #[error("identity of the syncer: {0}")]
    SyncerIdentity(#[source] ReconcileError),
    /// Publishing the kubeconfig.
    #[error("kubeconfig: {0}")]
    Kubeconfig(#[source] ReconcileError),
    /// Reading what the host says of the kinds of the class.
    #[error("kinds of the class: {0}")]
    Kinds(#[source] ReconcileError),
    /// Applying the first objects in the tenant.
    #[error("bootstrap objects: {0}")]
    Bootstrap(#[source] ReconcileError),
    /// Deleting the endpoints of a tenant that sleeps.
    #[error("endpoints of the tenant's own: {0}")]
    OwnEndpoints(#[source] ReconcileError),
    /// Starting the controller manager, the scheduler, the syncer or DNS.
    #[error("components: {0}")]
    Components(#[source] ReconcileError),
    /// Registering the metrics API in the tenant.
    #[error("metrics API: {0}")]
    MetricsApi(#[source] ReconcileError),
    /// Publishing the tenant's nodes.
    #[error("nodes: {0}")]
    TenantNodes(#[source] ReconcileError),
    /// Publishing what schedules let the tenant's pods do.
    #[error("schedule: {0}")]
    TenantSchedule(#[source] ReconcileError),
    /// Deleting a tenant that has expired.
    #[error("expiration: {0}")]
    Expiration(#[source] ReconcileError),
    /// Writing the status.
    #[error("status: {0}")]
    Status(#[source] ReconcileError),
    /// Deleting the tenant.
    #[error(transparent)]
    Cleanup(#[from] CleanupError),
}

/// The step of a deletion that failed, and why.
#[derive(Debug, thiserror::Error)]
pub enum CleanupError {
    /// Looking for namespaces of tenants that are gone.
    #[error("orphaned namespaces: {0}")]
    Orphans(#[source] ReconcileError),
    /// Deleting the tenant's Secret for Argo CD.
    #[error("Argo CD: {0}")]
    ArgoCd(#[source] ReconcileError),
    /// Stopping the components.
    #[error("components: {0}")]
    Components(#[source] ReconcileError),
    /// Deleting the endpoints that the tenant has made itself.
    #[error("endpoints of the tenant's own: {0}")]
    OwnEndpoints(#[source] ReconcileError),
    /// Deleting the tenant's pods.
    #[error("pods: {0}")]
    Pods(#[source] ReconcileError),
    /// Deleting the workload namespace.
    #[error("workload namespace: {0}")]
    WorkloadNamespace(#[source] ReconcileError),
    /// Removing user, role and keys from etcd.
    #[error("datastore: {0}")]
    Datastore(#[source] ReconcileError),
    /// Removing files.
    #[error("files: {0}")]
    Files(#[source] ReconcileError),
    /// Deleting the syncer's ClusterRole and its binding.
    #[error("cluster role: {0}")]
    ClusterRole(#[source] ReconcileError),
    /// Deleting the tenant's policies that are in no namespace.
    #[error("network policies: {0}")]
    NetworkPolicies(#[source] ReconcileError),
    /// Deleting the control-plane namespace.
    #[error("control-plane namespace: {0}")]
    ControlPlaneNamespace(#[source] ReconcileError),
}

impl CleanupError {
    /// The reason of the condition Deleting and of the Event, and the result in metrics.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Orphans(_) => "OrphanLookupFailed",
            Self::ArgoCd(_) => "ArgoCDDeletionFailed",
            Self::Components(_) => "StoppingFailed",
            Self::OwnEndpoints(_) => ENDPOINT_DELETION_FAILED,
            Self::Pods(_) => "PodDeletionFailed",
            Self::WorkloadNamespace(_) | Self::ControlPlaneNamespace(_) => "NamespaceDeletionFailed",
            Self::Datastore(_) => "DatastoreDeletionFailed",
            Self::Files(_) => "FileDeletionFailed",
            Self::ClusterRole(_) => "ClusterRoleDeletionFailed",
            Self::NetworkPolicies(_) => "NetworkPolicyDeletionFailed",
        }
    }
}

/// Puts an error into the variant of its step: `.map_err(in_step(TenantError::Namespaces))`.
pub(super) fn in_step<E: Into<ReconcileError>, S>(step: fn(ReconcileError) -> S) -> impl FnOnce(E) -> S {
    move |error| step(error.into())
}

impl TenantError {
    /// Condition and reason of the step, and its cause if that may have a reason of its own.
    fn step(&self) -> (&'static str, &'static str, Option<&ReconcileError>) {
        match self {
            Self::Finalizer(cause) => (INFRASTRUCTURE_READY, "FinalizerFailed", Some(cause)),
            Self::Settings(cause) => (INFRASTRUCTURE_READY, "SettingsFailed", Some(cause)),
            Self::WithdrawnKinds(cause) => (INFRASTRUCTURE_READY, "WithdrawnKindsFailed", Some(cause)),
            Self::Quota(cause) => (INFRASTRUCTURE_READY, "QuotaFailed", Some(cause)),
            Self::HostNetwork(cause) => (INFRASTRUCTURE_READY, "HostNetworkFailed", Some(cause)),
            Self::Namespaces(cause) => (INFRASTRUCTURE_READY, "NamespacesFailed", Some(cause)),
            Self::Limits(cause) => (INFRASTRUCTURE_READY, "LimitsFailed", Some(cause)),
            Self::Authorities(cause) => (INFRASTRUCTURE_READY, "AuthoritiesFailed", Some(cause)),
            Self::Encryption(cause) => (INFRASTRUCTURE_READY, "EncryptionFailed", Some(cause)),
            Self::Address(cause) => (INFRASTRUCTURE_READY, "AddressFailed", Some(cause)),
            Self::NetworkPolicies(cause) => (INFRASTRUCTURE_READY, "NetworkPoliciesFailed", Some(cause)),
            Self::OwnEndpoints(cause) => (INFRASTRUCTURE_READY, ENDPOINT_DELETION_FAILED, Some(cause)),
            Self::Datastore(cause) => (DATASTORE_READY, "DatastoreFailed", Some(cause)),
            Self::ExternalService(cause) => (ENDPOINT_READY, EXTERNAL_SERVICE_FAILED, Some(cause)),
            Self::Connection(_) => (CONTROL_PLANE_READY, "ConnectionFailed", None),
            Self::Dns(cause) => (CONTROL_PLANE_READY, "DNSFailed", Some(cause)),
            Self::Certificates(cause) => (CONTROL_PLANE_READY, "CertificatesFailed", Some(cause)),
            Self::ApiServer(cause) => (CONTROL_PLANE_READY, "APIServerFailed", Some(cause)),
            Self::Kubeconfig(cause) => (CONTROL_PLANE_READY, "KubeconfigFailed", Some(cause)),
            Self::Kinds(cause) => (CONTROL_PLANE_READY, "KindsFailed", Some(cause)),
            Self::Bootstrap(cause) => (CONTROL_PLANE_READY, "BootstrapFailed", Some(cause)),
            Self::Components(cause) => (CONTROL_PLANE_READY, "ComponentsFailed", Some(cause)),
            Self::MetricsApi(cause) => (CONTROL_PLANE_READY, "MetricsAPIFailed", Some(cause)),
            Self::SyncerIdentity(cause) => (SYNCER_READY, "SyncerIdentityFailed", Some(cause)),
            Self::TenantNodes(cause) => (NODES_READY, "PublishingFailed", Some(cause)),
            Self::TenantSchedule(cause) => (INFRASTRUCTURE_READY, "SchedulePublishingFailed", Some(cause)),
            Self::Expiration(cause) => (EXPIRING, "ExpirationFailed", Some(cause)),
            Self::Status(cause) => (INFRASTRUCTURE_READY, "StatusFailed", Some(cause)),
            Self::Cleanup(error) => (DELETING, error.reason(), None),
        }
    }

    /// The reason of the condition and of the Event, and the result in metrics: one for each step, and one for each thing that
    /// people must resolve.
    pub fn reason(&self) -> &'static str {
        match self.step() {
            (_, _, Some(ReconcileError::Blocked { reason, .. })) => reason,
            (_, reason, _) => reason,
        }
    }

    /// Whether the tenant or its team decides how often the step fails: the tenant's API server failed or refused, with its webhooks for example, or the
    /// host refused the Service with the annotations of the team.
    pub(super) fn is_of_tenant(&self) -> bool {
        matches!(
            self,
            Self::Bootstrap(_) | Self::MetricsApi(_) | Self::ExternalService(_)
        )
    }

    /// Whether an object on the host may be missing that control remembers as applied: not if it could only not delete others.
    pub(super) fn may_lack_objects(&self) -> bool {
        let only_deletes = match self {
            Self::WithdrawnKinds(cause) => !matches!(cause, ReconcileError::Apply(_)),
            Self::OwnEndpoints(_) => true,
            _ => false,
        };
        !self.is_of_tenant() && !only_deletes
    }

    /// The condition of the step that failed.
    pub fn condition(&self) -> ConditionUpdate {
        let (kind, _, cause) = self.step();
        let message = match cause {
            // It says itself what to do.
            Some(blocked @ ReconcileError::Blocked { .. }) => blocked.to_string(),
            _ => self.to_string(),
        };
        ConditionUpdate::mark_false(kind, self.reason(), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{apply::ApplyError, control_plane::CertificateError};

    #[test]
    fn a_connection_that_cannot_be_made_has_the_reason_of_its_step() {
        let error = TenantError::Connection(CertificateError::Missing("ca.key".into()).into());
        assert_eq!(error.reason(), "ConnectionFailed");
        assert!(error.to_string().contains("the stored PKI lacks ca.key"), "{error}");
    }

    #[test]
    fn only_steps_that_the_tenant_or_its_team_lets_fail_are_of_the_tenant() {
        let blocked = || ReconcileError::Blocked {
            reason: "Reason",
            message: "message".into(),
        };
        for of_tenant in [
            TenantError::Bootstrap,
            TenantError::MetricsApi,
            TenantError::ExternalService,
        ] {
            assert!(of_tenant(blocked()).is_of_tenant());
        }
        for of_host in [TenantError::Kinds, TenantError::SyncerIdentity, TenantError::Components] {
            assert!(!of_host(blocked()).is_of_tenant());
            assert!(of_host(blocked()).may_lack_objects());
        }
    }

    #[test]
    fn a_deletion_that_fails_says_nothing_of_what_was_applied() {
        let api = |source| ReconcileError::Api {
            what: "try it",
            source: Box::new(source),
        };
        let refused = || api(kube::Error::LinesCodecMaxLineLengthExceeded);
        assert!(!TenantError::WithdrawnKinds(refused()).may_lack_objects());
        assert!(!TenantError::OwnEndpoints(refused()).may_lack_objects());
        let role = ApplyError {
            object: "Role".into(),
            source: Box::new(kube::Error::LinesCodecMaxLineLengthExceeded),
        };
        assert!(TenantError::WithdrawnKinds(role.into()).may_lack_objects());
        assert!(TenantError::Namespaces(refused()).may_lack_objects());
    }
}
