//! What a control plane is rendered from.

use super::{component::Form, dns_customization::DnsCustomization, endpoints::Endpoints};
use berth_api::{
    ClassAudit, DatastoreUsage, DnsPolicy, NetworkLimits, SchedulingMode, StorageOffer, SyncPolicy,
    TenantAuthentication, TenantLimits, names::TenantId,
};
use ipnet::IpNet;
use std::{collections::BTreeSet, net::IpAddr};

/// Domain of every tenant's cluster.
pub const CLUSTER_DOMAIN: &str = "cluster.local";

/// Everything that a control plane is rendered from.
#[derive(Clone, Debug)]
pub struct ControlPlaneInput<'a> {
    /// The tenant.
    pub tenant: &'a TenantId,
    /// Kubernetes version.
    pub version: &'a str,
    /// Name of the tenant's class.
    pub class: &'a str,
    /// Whether the host or the tenant schedules its pods.
    pub scheduling: SchedulingMode,
    /// What the syncer syncs, and by which rules.
    pub policy: &'a SyncPolicy,
    /// What of storage was withdrawn from the tenant.
    pub withdrawn_storage: &'a BTreeSet<StorageOffer>,
    /// How much it may store and create.
    pub limits: &'a TenantLimits,
    /// How much it stores, and what is denied for that reason.
    pub datastore_usage: DatastoreUsage,
    /// Whether the tenant's Project limits its users.
    pub limits_users: bool,
    /// OIDC issuers whose tokens its API server accepts.
    pub authentication: &'a TenantAuthentication,
    /// Seconds for which a token of one of its ServiceAccounts is valid at most; 3600 at least.
    pub max_token_seconds: i64,
    /// What its API server writes into an audit log; none: it has no audit log.
    pub audit: Option<&'a ClassAudit>,
    /// Whether the components are processes or pods.
    pub form: Form,
    /// Networks outside the tenant that it may reach and be reached from.
    pub network: &'a NetworkLimits,
    /// Addresses of the components.
    pub endpoints: &'a Endpoints,
    /// Address range of the tenant's own Services; its first address is `default/kubernetes`.
    pub service_range: &'a ServiceRange,
    /// Addresses of Services that the tenant may not choose.
    pub reserved_service_addresses: &'a [IpNet],
    /// Where the tenant's objects are stored.
    pub datastore: &'a DatastoreInput,
    /// How to reach the host cluster.
    pub host: &'a HostInput,
    /// The tenant's DNS, if it has one.
    pub dns: Option<&'a DnsInput>,
}

/// The address range of a tenant's own Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceRange {
    /// The range, for example 10.96.0.48/29.
    pub cidr: String,
    /// The first address: `default/kubernetes` in the tenant, and a Service on the host.
    pub first: IpAddr,
    /// The range of the other address family, if the host has both.
    pub secondary: Option<String>,
}

impl ServiceRange {
    /// As kube-apiserver takes it: one range, or one of each family.
    pub fn flag(&self) -> String {
        std::iter::once(self.cidr.as_str())
            .chain(self.secondary.as_deref())
            .collect::<Vec<_>>()
            .join(",")
    }
}

/// The etcd in which a tenant's API server stores its objects.
#[derive(Clone, Debug)]
pub struct DatastoreInput {
    /// Endpoints of etcd.
    pub endpoints: Vec<String>,
    /// CA that signed etcd's serving certificates.
    pub ca_pem: String,
}

/// How a syncer reaches the host cluster.
#[derive(Clone, Debug)]
pub struct HostInput {
    /// URL of the host's API server.
    pub server: String,
    /// CA of the host's API server.
    pub ca_pem: String,
    /// DNS domain of the host cluster. Tenants cannot resolve its names.
    pub cluster_domain: String,
}

/// Everything that a tenant's DNS server is rendered from.
#[derive(Clone, Debug)]
pub struct DnsInput {
    /// Address of the DNS Service.
    pub address: IpAddr,
    /// DNS settings of the tenant's class.
    pub policy: DnsPolicy,
    /// Domains that are never forwarded, among them the host cluster's.
    pub blocked_domains: Vec<String>,
    /// The tenant's customization. CoreDNS is not rendered until it is known.
    pub customization: Option<DnsCustomization>,
}
