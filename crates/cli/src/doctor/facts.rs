//! What `berth doctor` knows of a host cluster. Reading it and judging it are apart.

use berth_api::{HostNodePool, RateCard, TenantClass};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::batch::v1::CronJob;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;

/// Something that was read, or why it was not.
pub(super) type Read<T> = Result<T, String>;

/// The facts.
#[derive(Debug)]
pub(super) struct Facts {
    /// The time on this machine when the host answered.
    pub(super) now: Timestamp,
    /// The time in an answer of the host.
    pub(super) host_time: Read<Timestamp>,
    /// `gitVersion` of the host's API server.
    pub(super) version: Read<String>,
    /// Whether `/readyz/etcd` answers with success.
    pub(super) etcd_ready: Read<bool>,
    /// `/metrics` of the API server.
    pub(super) metrics: Read<String>,
    pub(super) definitions: Read<Vec<CustomResourceDefinition>>,
    pub(super) cluster_roles: Read<Vec<ClusterRole>>,
    pub(super) cluster_role_bindings: Read<Vec<ClusterRoleBinding>>,
    /// Roles in the namespace of Berth.
    pub(super) roles: Read<Vec<Role>>,
    /// RoleBindings in the namespace of Berth.
    pub(super) role_bindings: Read<Vec<RoleBinding>>,
    /// What renews the certificates of Berth's etcd; none if Berth has no etcd of its own.
    pub(super) certificates_job: Read<Option<CronJob>>,
    pub(super) policies: Read<Vec<ValidatingAdmissionPolicy>>,
    /// Control's Deployment; none if Berth was not installed by its chart.
    pub(super) control: Read<Option<Deployment>>,
    /// The Deployment of the gateway; none if there is no gateway, or it was not installed by the chart.
    pub(super) gateway: Read<Option<Deployment>>,
    /// Control's Lease.
    pub(super) lease: Read<Option<Lease>>,
    pub(super) daemon_sets: Read<Vec<DaemonSet>>,
    /// The configuration of Cilium; none if there is no such ConfigMap.
    pub(super) cilium: Read<Option<ConfigMap>>,
    pub(super) nodes: Read<Vec<Node>>,
    pub(super) pools: Read<Vec<HostNodePool>>,
    pub(super) classes: Read<Vec<TenantClass>>,
    pub(super) rate_cards: Read<Vec<RateCard>>,
    pub(super) runtime_classes: Read<Vec<RuntimeClass>>,
    pub(super) storage_classes: Read<Vec<StorageClass>>,
    pub(super) volumes: Read<Vec<PersistentVolume>>,
    pub(super) certificates: Read<Vec<Certificate>>,
    pub(super) validating: Read<Vec<ValidatingWebhookConfiguration>>,
    pub(super) mutating: Read<Vec<MutatingWebhookConfiguration>>,
    pub(super) endpoints: Read<Vec<EndpointSlice>>,
}

/// The times of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Certificate {
    /// Secret and key.
    pub(super) place: String,
    /// When Berth should have renewed it.
    pub(super) renew_at: Timestamp,
    /// When it expires.
    pub(super) not_after: Timestamp,
}
