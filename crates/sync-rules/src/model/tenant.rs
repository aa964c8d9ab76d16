//! What the rules know about the tenant.

use super::json;
use berth_api::{NetworkLimits, SchedulingMode, StorageOffer, SyncPolicy, TenantLimits, labels};
use ipnet::IpNet;
use serde_json::Value;
use std::{collections::BTreeSet, sync::Arc};

/// The tenant and its place on the host: what translation needs to know.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Value of the tenant's label and taint on host nodes and objects.
    pub slug: String,
    /// Host namespace for everything the syncer creates.
    pub workload_namespace: String,
    /// Host namespace of `TenantNode` and `TenantSchedule` objects.
    pub control_plane_namespace: String,
    /// Host of the tenant's API server as pods reach it.
    pub api_server_host: String,
    /// Port of the tenant's API server as pods reach it.
    pub api_server_port: u16,
    /// Address of the tenant's DNS server, if it has one.
    pub dns_address: Option<String>,
    /// DNS domain of the tenant's cluster.
    pub cluster_domain: String,
    /// The rules of the tenant's class.
    pub policy: Arc<SyncPolicy>,
    /// The networks outside of the tenant that are open to it.
    pub network: Arc<NetworkLimits>,
    /// Name of the tenant's class.
    pub class_name: String,
    /// Who places the tenant's pods.
    pub scheduling: SchedulingMode,
    /// Whether users are counted.
    pub users: UserRules,
    /// What of storage the tenant's class no longer offers and whose grace period is over: pods that use it end.
    pub withdrawn_storage: BTreeSet<StorageOffer>,
    /// How much the tenant's objects may be on the host.
    pub host_limits: HostLimits,
    /// Addresses of Services that the tenant may not choose.
    pub reserved_service_addresses: Vec<IpNet>,
    /// UID of the `ServiceAccount` of the host with which the syncer writes; empty if it has another credential.
    pub host_account: String,
}

/// Limits of what the syncer writes on the host for the tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostLimits {
    /// Bytes of all objects, as JSON.
    pub bytes: u64,
    /// Bytes a second that are written in large objects, and in small ones.
    pub write_bytes_per_second: u64,
    /// Pods that are there without a node.
    pub waiting_pods: u32,
    /// Pods of one user with limits that are there until control lets them start.
    pub waiting_pods_of_user: u32,
    /// Services whose endpoints may change in a second, in the long run.
    pub endpoint_changes_per_second: u32,
    /// Requests a second that controllers of the host make because of what is written, in the long run.
    pub controller_requests_per_second: u32,
    /// Claims of devices, with those that are made there from templates.
    pub resource_claims: u32,
}

impl From<&TenantLimits> for HostLimits {
    fn from(limits: &TenantLimits) -> Self {
        Self {
            bytes: limits.host_size(),
            write_bytes_per_second: limits.host_write_rate(),
            waiting_pods: limits.waiting_pods,
            waiting_pods_of_user: limits.waiting_pods_of_user(),
            endpoint_changes_per_second: limits.endpoint_changes_per_second,
            controller_requests_per_second: limits.controller_requests_per_second,
            resource_claims: limits.resource_claims,
        }
    }
}

impl Default for HostLimits {
    fn default() -> Self {
        Self::from(&TenantLimits::default())
    }
}

/// What the host is to know of the users who create pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserRules {
    /// The tenant's API server stamps who created a pod. Without it, the annotation could be anybody's.
    pub are_stamped: bool,
    /// The tenant's Project limits its users: pods get a gate on the host, which control takes off.
    pub are_limited: bool,
}

impl Tenant {
    /// Labels that every host object of this tenant carries, given the tenant namespace it comes from.
    pub fn labels(&self, namespace: &str) -> [(&'static str, String); 3] {
        [
            (labels::TENANT, self.slug.clone()),
            (labels::MANAGED_BY, labels::MANAGED_BY_SYNCER.to_owned()),
            // A namespace's name is a DNS label, so it always fits a label's value.
            (labels::TENANT_OBJECT_NAMESPACE, namespace.to_owned()),
        ]
    }

    /// The hash by which a later comparison finds out that `content` was written. With another account it is another one: what somebody has written with a
    /// stolen credential, beside the hash of what was there, is written over once the account was replaced. A restart changes nothing.
    pub fn applied_hash(&self, content: &Value) -> String {
        json::salted_hash(&self.host_account, content)
    }
}

/// Fixed values for unit tests.
#[cfg(test)]
pub(crate) fn test_tenant() -> Tenant {
    Tenant {
        slug: "vision-aaaaaaaaaaaaa".into(),
        workload_namespace: "berth-vision-aaaaaaaaaaaaa".into(),
        control_plane_namespace: "berth-vision-aaaaaaaaaaaaa-cp".into(),
        api_server_host: "10.96.0.49".into(),
        api_server_port: 443,
        dns_address: None,
        cluster_domain: "cluster.local".into(),
        policy: Arc::default(),
        network: Arc::default(),
        class_name: berth_api::DEFAULT_CLASS.into(),
        scheduling: SchedulingMode::Host,
        users: UserRules::default(),
        withdrawn_storage: BTreeSet::new(),
        host_limits: HostLimits::default(),
        reserved_service_addresses: Vec::new(),
        host_account: String::new(),
    }
}
