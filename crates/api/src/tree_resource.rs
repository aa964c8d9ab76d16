//! Names of what quotas of [`Organization`](crate::Organization)s and [`Project`](crate::Project)s limit.

use crate::{Amount, ControlPlaneServiceType, ResourceLimit, TenantLimits, host_quota::quota_resources, host_resource};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, collections::BTreeSet};

/// A resource that quotas of Organizations and Projects limit.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum TreeResource {
    /// GPUs that are assigned to tenants; nodes in a pool without GPUs.
    Gpus,
    /// TenantClusters.
    TenantClusters,
    /// Bytes in the datastore: limits.datastoreBytes of the class of each tenant.
    DatastoreBytes,
    /// Objects in the datastore: limits.datastoreObjects of the class of each tenant.
    DatastoreObjects,
    /// Pods on the host: limits.pods of the class of each tenant.
    Pods,
    /// Services on the host: limits.services of the class of each tenant.
    Services,
    /// Node ports of Services: limits.nodePorts of the class of each tenant, and that of its API server.
    NodePorts,
    /// Services of type LoadBalancer: limits.loadBalancers of the class of each tenant, and that of its API server.
    LoadBalancers,
    /// PersistentVolumeClaims: limits.persistentVolumeClaims of the class of each tenant.
    PersistentVolumeClaims,
    /// Bytes of volumes: limits.requestsStorage of the class of each tenant.
    RequestsStorage,
    /// A resource of the host's `ResourceQuota` (`requests.cpu`): limits.resources of the class of each tenant. The schema decides
    /// which names there are; a name that no class lists is reserved by no tenant.
    Host(String),
}

impl TreeResource {
    /// All of fixed name that a tenant reserves before it is created. GPUs follow demand instead.
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
    pub fn as_str(&self) -> &str {
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
            Self::Host(name) => name,
        }
    }

    /// What a tenant with these limits and this Service of its API server reserves of the resource, in whole units. None: as much as
    /// there is, because the limits have none for it.
    pub fn reserved_by(&self, limits: &TenantLimits, service: ControlPlaneServiceType) -> Option<u64> {
        let limit = self.limit_in(limits)?;
        Some(limit.saturating_add(self.used_by_service(service)))
    }

    /// How much of the resource the Service of an API server is, as the host's `ResourceQuota` would count it. It has one port, and
    /// Kubernetes gives a load balancer a node port as well. It is in the control-plane namespace, which has no `ResourceQuota`.
    pub fn used_by_service(&self, service: ControlPlaneServiceType) -> u64 {
        let is_counted = match self {
            Self::NodePorts => service != ControlPlaneServiceType::ClusterIp,
            Self::LoadBalancers => service == ControlPlaneServiceType::LoadBalancer,
            _ => false,
        };
        u64::from(is_counted)
    }

    /// What the limits allow of the resource. None: they do not limit it.
    fn limit_in(&self, limits: &TenantLimits) -> Option<u64> {
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
            Self::Host(name) => limits.resource(name)?.value(),
        }
    }

    /// Everything that tenants with any of these limits reserve, without GPUs.
    pub fn listed_in<'a>(limits: impl IntoIterator<Item = &'a TenantLimits>) -> BTreeSet<Self> {
        let names = limits.into_iter().flat_map(|limits| &limits.resources);
        let of_host = names.map(|limit| Self::Host(limit.resource.clone()));
        Self::RESERVED.into_iter().chain(of_host).collect()
    }

    /// Lowers each limit to that of `most`, so that a tenant with `limits` reserves no more than one with `most`.
    pub fn lower_limits(limits: &mut TenantLimits, most: &TenantLimits) {
        for resource in Self::listed_in([&*limits, most]) {
            let amounts = (resource.limit_in(limits), resource.limit_in(most));
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

    fn copy_limit(&self, limits: &mut TenantLimits, from: &TenantLimits) {
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
            Self::Host(name) => {
                let Some(quantity) = from.resource(name).cloned() else {
                    return;
                };
                limits.resources.retain(|limit| limit.resource != *name);
                limits.resources.push(ResourceLimit {
                    resource: name.clone(),
                    quantity,
                });
                limits.resources.sort_by(|a, b| a.resource.cmp(&b.resource));
            }
        }
    }

    /// The field of the class that sets how much a tenant reserves. None: it depends on no class.
    pub fn class_field(&self) -> Option<Cow<'static, str>> {
        let field = match self {
            Self::Gpus | Self::TenantClusters => return None,
            Self::DatastoreBytes => "limits.datastoreBytes",
            Self::DatastoreObjects => "limits.datastoreObjects",
            Self::Pods => "limits.pods",
            Self::Services => "limits.services",
            Self::NodePorts => "limits.nodePorts",
            Self::LoadBalancers => "limits.loadBalancers",
            Self::PersistentVolumeClaims => "limits.persistentVolumeClaims",
            Self::RequestsStorage => "limits.requestsStorage",
            Self::Host(name) => return Some(format!("{name} of limits.resources").into()),
        };
        Some(field.into())
    }

    /// The names by which the host's `ResourceQuota` counts it; none if it does not.
    pub fn counted_names(&self) -> Vec<&str> {
        if let Self::Host(name) = self {
            return vec![name.as_str()];
        }
        let field = self.class_field().unwrap_or_default();
        let field = field.strip_prefix("limits.").unwrap_or_default();
        quota_resources(field).map(|counted| counted.resource).collect()
    }

    /// How much of the resource exists, by the used amounts of the host's `ResourceQuota`; a limit that stands for several kinds counts
    /// the one of which there are most. None: not all of them are known, or the `ResourceQuota` does not count it.
    pub fn used_in(&self, used: impl Fn(&str) -> Option<u64>) -> Option<u64> {
        let amounts: Option<Vec<u64>> = self.counted_names().into_iter().map(used).collect();
        amounts?.into_iter().max()
    }
}

impl From<String> for TreeResource {
    fn from(name: String) -> Self {
        let mut known = Self::RESERVED.into_iter().chain([Self::Gpus]);
        known
            .find(|resource| resource.as_str() == name)
            .unwrap_or(Self::Host(name))
    }
}

impl From<TreeResource> for String {
    fn from(resource: TreeResource) -> Self {
        match resource {
            TreeResource::Host(name) => name,
            known => known.as_str().to_owned(),
        }
    }
}

impl JsonSchema for TreeResource {
    fn schema_name() -> Cow<'static, str> {
        "TreeResource".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let known = Self::RESERVED.into_iter().chain([Self::Gpus]);
        let mut names: Vec<String> = known.map(|resource| resource.as_str().replace('.', r"\.")).collect();
        names.push(host_resource::PATTERN.to_owned());
        json_schema!({
            "type": "string",
            "maxLength": host_resource::MAX_LENGTH,
            "pattern": format!("^({})$", names.join("|")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cpu(quantity: u32) -> ResourceLimit {
        ResourceLimit {
            resource: "requests.cpu".into(),
            quantity: quantity.into(),
        }
    }

    fn with_resources(resources: &[ResourceLimit]) -> TenantLimits {
        TenantLimits {
            resources: resources.to_vec(),
            ..TenantLimits::default()
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
    fn limits_of_host_resources_are_lowered_and_never_raised() {
        let lowered = |higher: &[ResourceLimit], most: &[ResourceLimit]| {
            let mut higher = with_resources(higher);
            TreeResource::lower_limits(&mut higher, &with_resources(most));
            higher.resources
        };
        assert_eq!(lowered(&[cpu(20)], &[cpu(10)]), [cpu(10)]);
        assert_eq!(lowered(&[cpu(5)], &[cpu(10)]), [cpu(5)]);
        // No limit is more than any.
        assert_eq!(lowered(&[], &[cpu(10)]), [cpu(10)]);
        assert_eq!(lowered(&[cpu(20)], &[]), [cpu(20)]);
    }

    #[test]
    fn a_tenant_reserves_the_limits_of_its_class() {
        let mut limits = TenantLimits::default();
        let of = |limits: &TenantLimits, resource: &TreeResource| {
            resource.reserved_by(limits, ControlPlaneServiceType::ClusterIp)
        };
        let memory = TreeResource::Host("requests.memory".into());
        assert_eq!(of(&limits, &TreeResource::TenantClusters), Some(1));
        assert_eq!(of(&limits, &TreeResource::DatastoreBytes), Some(512 << 20));
        assert_eq!(of(&limits, &TreeResource::RequestsStorage), None);
        assert_eq!(of(&limits, &memory), None);
        limits.requests_storage = Some("2Ti".into());
        limits.resources = vec![ResourceLimit {
            resource: "requests.memory".into(),
            quantity: Amount::Text("3Gi".into()),
        }];
        assert_eq!(of(&limits, &TreeResource::RequestsStorage), Some(2 << 40));
        assert_eq!(of(&limits, &memory), Some(3 << 30));
        assert!(TreeResource::listed_in([&limits]).contains(&memory));
    }

    #[test]
    fn the_service_of_the_api_server_counts_as_the_host_would_count_it() {
        let limits = TenantLimits {
            node_ports: 20,
            load_balancers: 0,
            ..TenantLimits::default()
        };
        for (service, node_ports, load_balancers) in [
            (ControlPlaneServiceType::ClusterIp, 20, 0),
            (ControlPlaneServiceType::NodePort, 21, 0),
            (ControlPlaneServiceType::LoadBalancer, 21, 1),
        ] {
            let of = |resource: TreeResource| resource.reserved_by(&limits, service);
            assert_eq!(of(TreeResource::NodePorts), Some(node_ports), "{service:?}");
            assert_eq!(of(TreeResource::LoadBalancers), Some(load_balancers), "{service:?}");
            assert_eq!(of(TreeResource::Services), Some(limits.services.into()), "{service:?}");
        }
    }

    #[test]
    fn what_exists_is_read_from_the_quota_of_the_host() {
        let cpu = TreeResource::Host("requests.cpu".into());
        let used = |resource: &str| match resource {
            "count/pods" => Some(7),
            "requests.cpu" => Some(3),
            "requests.storage" => Some(50 << 30),
            _ => None,
        };
        assert_eq!(TreeResource::Pods.used_in(used), Some(7));
        assert_eq!(cpu.used_in(used), Some(3));
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

    #[test]
    fn the_host_counts_some_resources_by_other_names() {
        let cpu = TreeResource::Host("requests.cpu".into());
        assert_eq!(cpu.counted_names(), ["requests.cpu"]);
        assert_eq!(TreeResource::Pods.counted_names(), ["count/pods"]);
        assert_eq!(TreeResource::LoadBalancers.counted_names(), ["services.loadbalancers"]);
        for other in [
            TreeResource::TenantClusters,
            TreeResource::DatastoreBytes,
            TreeResource::Gpus,
        ] {
            assert!(other.counted_names().is_empty(), "{other:?}");
        }
    }

    #[test]
    fn a_resource_has_one_name() {
        let known = TreeResource::RESERVED.into_iter().chain([TreeResource::Gpus]);
        for resource in known.chain([TreeResource::Host("requests.cpu".into())]) {
            let value = serde_json::to_value(&resource).unwrap();
            assert_eq!(value, json!(resource.as_str()));
            assert_eq!(serde_json::from_value::<TreeResource>(value).unwrap(), resource);
        }
    }
}
