//! The API resources that the syncer uses, and the keys of its queue.

use super::kind_id::KindId;

use std::{fmt, hash::Hash, sync::Arc};

/// Which API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The tenant's own API server.
    Tenant,
    /// The host's API server.
    Host,
}

impl Side {
    /// `tenant` or `host`, for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tenant => "tenant",
            Self::Host => "host",
        }
    }
}

/// A kind of API object and where it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    /// API group; empty for the core group.
    pub group: &'static str,
    /// API version.
    pub version: &'static str,
    /// Kind, for example `Pod`.
    pub kind: &'static str,
    /// Name in URLs, for example `pods`.
    pub plural: &'static str,
}

impl Resource {
    const fn core(kind: &'static str, plural: &'static str) -> Self {
        Self::new("", "v1", kind, plural)
    }

    /// A kind of `group` (empty for the core group) and `version`.
    pub const fn new(group: &'static str, version: &'static str, kind: &'static str, plural: &'static str) -> Self {
        Self {
            group,
            version,
            kind,
            plural,
        }
    }

    /// `v1` or `group/v1`, as in objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// URL path of the collection; an empty namespace means cluster-scoped, or all namespaces.
    pub fn path(&self, namespace: &str) -> String {
        let base = if self.group.is_empty() {
            "/api".to_owned()
        } else {
            format!("/apis/{}", self.group)
        };
        if namespace.is_empty() {
            format!("{base}/{}/{}", self.version, self.plural)
        } else {
            format!("{base}/{}/namespaces/{namespace}/{}", self.version, self.plural)
        }
    }
}

/// `v1/Pod`.
pub const POD: Resource = Resource::core("Pod", "pods");
/// `v1/ConfigMap`.
pub const CONFIG_MAP: Resource = Resource::core("ConfigMap", "configmaps");
/// `v1/Secret`.
pub const SECRET: Resource = Resource::core("Secret", "secrets");
/// `v1/Service`.
pub const SERVICE: Resource = Resource::core("Service", "services");
/// `v1/Node`.
pub const NODE: Resource = Resource::core("Node", "nodes");
/// `v1/Event`.
pub const EVENT: Resource = Resource::core("Event", "events");
/// `v1/ServiceAccount`.
pub const SERVICE_ACCOUNT: Resource = Resource::core("ServiceAccount", "serviceaccounts");
/// `coordination.k8s.io/v1/Lease`.
pub const LEASE: Resource = Resource::new("coordination.k8s.io", "v1", "Lease", "leases");
/// `berth.dev/v1alpha1/TenantNode`.
pub const TENANT_NODE: Resource = Resource::new(berth_api::GROUP, berth_api::VERSION, "TenantNode", "tenantnodes");
/// `berth.dev/v1alpha1/TenantSchedule`.
pub const TENANT_SCHEDULE: Resource = Resource::new(
    berth_api::GROUP,
    berth_api::VERSION,
    "TenantSchedule",
    "tenantschedules",
);
/// `admissionregistration.k8s.io/v1/MutatingWebhookConfiguration`.
pub const MUTATING_WEBHOOK_CONFIGURATION: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "MutatingWebhookConfiguration",
    "mutatingwebhookconfigurations",
);
/// `v1/Namespace`.
pub const NAMESPACE: Resource = Resource::core("Namespace", "namespaces");

/// Namespace and name of an object in the tenant. The namespace is empty for cluster-scoped kinds. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Namespace, or empty.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl Name {
    /// The name of an object.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// A key of the queue: one object of one kind, under its name in the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// Which kind's rules apply.
    pub kind: KindId,
    /// The object's name in the tenant.
    pub name: Name,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.label(), self.name)
    }
}

/// Name of the host object for a tenant object of this kind.
pub fn host_name(kind: KindId, name: &Name) -> String {
    berth_api::names::host_name(kind.label(), &name.namespace, &name.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_group_and_scope() {
        assert_eq!(POD.path("a"), "/api/v1/namespaces/a/pods");
        assert_eq!(NODE.path(""), "/api/v1/nodes");
        assert_eq!(
            TENANT_NODE.path("cp"),
            "/apis/berth.dev/v1alpha1/namespaces/cp/tenantnodes"
        );
        assert_eq!(LEASE.api_version(), "coordination.k8s.io/v1");
    }
}
