//! Quotas of [`Organization`](crate::Organization)s and [`Project`](crate::Project)s.
//!
//! Words and meanings are Kueue's for a tree of cohorts, with one difference: the nominal quota of an Organization contains
//! those of its Projects.

use crate::{TenantLimits, limits::quota_resources, quantity};
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeMap};

/// A resource that quotas of Organizations and Projects limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TreeResource {
    /// GPUs of one pool that are assigned to tenants; nodes in a pool without GPUs.
    #[serde(rename = "gpus")]
    Gpus,
    /// TenantClusters.
    #[serde(rename = "tenantclusters")]
    TenantClusters,
    /// Bytes in the datastore: limits.datastoreBytes of the class of each tenant.
    #[serde(rename = "datastore.bytes")]
    DatastoreBytes,
    /// Objects in the datastore: limits.datastoreObjects of the class of each tenant.
    #[serde(rename = "datastore.objects")]
    DatastoreObjects,
    /// Pods on the host: limits.pods of the class of each tenant.
    #[serde(rename = "pods")]
    Pods,
    /// Services on the host: limits.services of the class of each tenant.
    #[serde(rename = "services")]
    Services,
    /// Node ports of Services: limits.nodePorts of the class of each tenant.
    #[serde(rename = "services.nodeports")]
    NodePorts,
    /// Services of type LoadBalancer: limits.loadBalancers of the class of each tenant.
    #[serde(rename = "services.loadbalancers")]
    LoadBalancers,
    /// PersistentVolumeClaims: limits.persistentVolumeClaims of the class of each tenant.
    #[serde(rename = "persistentvolumeclaims")]
    PersistentVolumeClaims,
    /// Bytes of volumes: limits.requestsStorage of the class of each tenant.
    #[serde(rename = "requests.storage")]
    RequestsStorage,
}

impl TreeResource {
    /// All of them that a tenant reserves before it is created. GPUs follow demand instead.
    pub const RESERVED: [Self; 9] = [
        Self::TenantClusters,
        Self::DatastoreBytes,
        Self::DatastoreObjects,
        Self::Pods,
        Self::Services,
        Self::NodePorts,
        Self::LoadBalancers,
        Self::PersistentVolumeClaims,
        Self::RequestsStorage,
    ];

    /// Its name in the API.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gpus => "gpus",
            Self::TenantClusters => "tenantclusters",
            Self::DatastoreBytes => "datastore.bytes",
            Self::DatastoreObjects => "datastore.objects",
            Self::Pods => "pods",
            Self::Services => "services",
            Self::NodePorts => "services.nodeports",
            Self::LoadBalancers => "services.loadbalancers",
            Self::PersistentVolumeClaims => "persistentvolumeclaims",
            Self::RequestsStorage => "requests.storage",
        }
    }

    /// What a tenant with these limits reserves of the resource. None: as much as there is, because the limits have none for it.
    pub fn reserved_by(self, limits: &TenantLimits) -> Option<u64> {
        match self {
            Self::Gpus => Some(0),
            Self::TenantClusters => Some(1),
            Self::DatastoreBytes => Some(limits.datastore_size()),
            Self::DatastoreObjects => Some(limits.datastore_objects),
            Self::Pods => Some(limits.pods.into()),
            Self::Services => Some(limits.services.into()),
            Self::NodePorts => Some(limits.node_ports.into()),
            Self::LoadBalancers => Some(limits.load_balancers.into()),
            Self::PersistentVolumeClaims => Some(limits.persistent_volume_claims.into()),
            Self::RequestsStorage => Amount::Text(limits.requests_storage.clone()?).value(),
        }
    }

    /// Lowers each limit to that of `most`, so that a tenant with `limits` reserves no more than one with `most`.
    pub fn lower_limits(limits: &mut TenantLimits, most: &TenantLimits) {
        for resource in Self::RESERVED {
            let amounts = (resource.reserved_by(limits), resource.reserved_by(most));
            let is_higher = match amounts {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(amount), Some(most)) => amount > most,
            };
            if is_higher {
                resource.copy_limit(limits, most);
            }
        }
    }

    fn copy_limit(self, limits: &mut TenantLimits, from: &TenantLimits) {
        match self {
            Self::Gpus | Self::TenantClusters => {}
            Self::DatastoreBytes => limits.datastore_bytes.clone_from(&from.datastore_bytes),
            Self::DatastoreObjects => limits.datastore_objects = from.datastore_objects,
            Self::Pods => limits.pods = from.pods,
            Self::Services => limits.services = from.services,
            Self::NodePorts => limits.node_ports = from.node_ports,
            Self::LoadBalancers => limits.load_balancers = from.load_balancers,
            Self::PersistentVolumeClaims => limits.persistent_volume_claims = from.persistent_volume_claims,
            Self::RequestsStorage => limits.requests_storage.clone_from(&from.requests_storage),
        }
    }

    /// The field of the class that sets how much a tenant reserves. None: it depends on no class.
    pub const fn class_field(self) -> Option<&'static str> {
        match self {
            Self::Gpus | Self::TenantClusters => None,
            Self::DatastoreBytes => Some("limits.datastoreBytes"),
            Self::DatastoreObjects => Some("limits.datastoreObjects"),
            Self::Pods => Some("limits.pods"),
            Self::Services => Some("limits.services"),
            Self::NodePorts => Some("limits.nodePorts"),
            Self::LoadBalancers => Some("limits.loadBalancers"),
            Self::PersistentVolumeClaims => Some("limits.persistentVolumeClaims"),
            Self::RequestsStorage => Some("limits.requestsStorage"),
        }
    }

    /// How much of the resource exists, by the used amounts of the host's `ResourceQuota`; a limit that stands for several kinds counts
    /// the one of which there are most. None: not all of them are known, or the `ResourceQuota` does not count it.
    pub fn used_in(self, used: impl Fn(&str) -> Option<u64>) -> Option<u64> {
        let field = self.class_field()?.strip_prefix("limits.")?;
        let counted = quota_resources(field).map(|counted| used(counted.resource));
        let amounts: Option<Vec<u64>> = counted.collect();
        amounts?.into_iter().max()
    }

    /// Whether amounts are bytes.
    pub const fn is_in_bytes(self) -> bool {
        matches!(self, Self::DatastoreBytes | Self::RequestsStorage)
    }
}

/// Quota of one resource. GPUs are limited pool by pool.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("(self.resource == 'gpus') == has(self.poolName)")
    .message("the resource gpus needs poolName, and no other resource has it")
    .field_path(".poolName"))]
pub struct TreeQuota {
    /// Resource that is limited. gpus: GPUs of one pool that tenants have (nodes, in a pool without GPUs). tenantclusters:
    /// TenantClusters. All others: the sum of what the classes of the tenants allow each of them in `limits`.
    pub resource: TreeResource,
    /// Name of the HostNodePool, for the resource gpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub pool_name: Option<String>,
    /// Amount that belongs to this level of the tree. That of an Organization contains those of its Projects; if it is less
    /// than their sum, the sum counts.
    pub nominal_quota: Amount,
    /// Amount that may be borrowed beyond the nominal quota. Defaults to as much as others lend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrowing_limit: Option<Amount>,
    /// Amount of the unused nominal quota that others may borrow. Defaults to all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lending_limit: Option<Amount>,
}

/// A whole number or a quantity such as `50Gi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Amount {
    /// A whole number.
    Number(i64),
    /// A quantity.
    Text(String),
}

impl Amount {
    /// The amount in whole units, rounded up. None if it is negative or no quantity.
    pub fn value(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            Self::Text(text) => {
                let thousandths = quantity::parse(text)?.checked_add(999)?;
                u64::try_from(thousandths.div_euclid(1000)).ok()
            }
        }
    }
}

impl From<u32> for Amount {
    fn from(number: u32) -> Self {
        Self::Number(number.into())
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> Cow<'static, str> {
        "Amount".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "pattern": "^[0-9]{1,15}(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$",
        })
    }
}

/// Use of one quota.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TreeQuotaStatus {
    /// Resource that is limited.
    pub resource: TreeResource,
    /// Name of the HostNodePool, for the resource gpus.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool_name: Option<String>,
    /// Nominal quota; for an Organization at least the sum of those of its Projects.
    pub nominal_quota: u64,
    /// Amount that tenants have reserved. For gpus: GPUs of nodes that are assigned to tenants or reserved for them.
    pub used: u64,
    /// Part of `used` beyond the nominal quota.
    pub borrowed: u64,
}

/// What control has reserved for a tenant of the quotas of its Project and Organization.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QuotaReservation {
    /// Name of the Project of the tenant's namespace.
    pub project_name: String,
    /// Amounts by resource.
    #[serde(default)]
    pub reserved: BTreeMap<String, u64>,
    /// Part of `reserved` beyond what the limits of the tenant allow now, by resource. It stays reserved until it is known that so many
    /// objects, or bytes, are deleted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub above_limits: BTreeMap<String, u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn amounts_are_numbers_or_quantities() {
        for (value, amount) in [
            (json!(10), Some(10)),
            (json!("10"), Some(10)),
            (json!("50Gi"), Some(50 << 30)),
            (json!("2k"), Some(2000)),
            (json!("1500m"), Some(2)),
            (json!(-1), None),
            (json!("-1"), None),
            (json!("many"), None),
        ] {
            let read: Amount = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(read.value(), amount, "{value}");
            assert_eq!(serde_json::to_value(read).unwrap(), value);
        }
    }

    #[test]
    fn limits_are_lowered_and_never_raised() {
        let limits = |pods: u32, services: u32, storage: Option<&str>, bytes: &str| TenantLimits {
            pods,
            services,
            requests_storage: storage.map(Into::into),
            datastore_bytes: bytes.into(),
            ..TenantLimits::default()
        };
        let lowered = |mut higher: TenantLimits, most: &TenantLimits| {
            TreeResource::lower_limits(&mut higher, most);
            higher
        };
        let most = limits(10, 10, Some("1Ti"), "1Gi");
        assert_eq!(
            lowered(limits(20, 5, None, "2000Mi"), &most),
            limits(10, 5, Some("1Ti"), "1Gi")
        );
        let unlimited = limits(10, 10, None, "1Gi");
        let less = limits(9, 9, Some("1Gi"), "512Mi");
        assert_eq!(lowered(less.clone(), &unlimited), less);
    }

    #[test]
    fn a_tenant_reserves_the_limits_of_its_class() {
        let mut limits = TenantLimits::default();
        let of = |limits: &TenantLimits, resource: TreeResource| resource.reserved_by(limits);
        assert_eq!(of(&limits, TreeResource::TenantClusters), Some(1));
        assert_eq!(of(&limits, TreeResource::DatastoreBytes), Some(512 << 20));
        assert_eq!(of(&limits, TreeResource::RequestsStorage), None);
        limits.requests_storage = Some("2Ti".into());
        assert_eq!(of(&limits, TreeResource::RequestsStorage), Some(2 << 40));
    }

    #[test]
    fn a_resource_has_one_name() {
        for resource in TreeResource::RESERVED.into_iter().chain([TreeResource::Gpus]) {
            assert_eq!(serde_json::to_value(resource).unwrap(), json!(resource.as_str()));
        }
    }

    #[test]
    fn what_exists_is_read_from_the_quota_of_the_host() {
        let used = |resource: &str| match resource {
            "count/pods" => Some(7),
            "requests.storage" => Some(50 << 30),
            _ => None,
        };
        assert_eq!(TreeResource::Pods.used_in(used), Some(7));
        assert_eq!(TreeResource::RequestsStorage.used_in(used), Some(50 << 30));
        assert_eq!(TreeResource::Services.used_in(used), None, "not known");
        for other in [
            TreeResource::TenantClusters,
            TreeResource::DatastoreBytes,
            TreeResource::Gpus,
        ] {
            assert_eq!(other.used_in(|_| Some(1)), None, "the ResourceQuota does not count it");
        }
    }
}
