//! The limits of a tenant that the host's `ResourceQuota` enforces.

use crate::{Amount, TenantLimits, qualified_name::is_qualified_name, quantity, sync_policy::SyncedKind};
use std::collections::BTreeMap;

/// A limit as the host's `ResourceQuota` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaResource {
    /// Its name in the `ResourceQuota`.
    pub resource: &'static str,
    /// The field of [`TenantLimits`].
    pub field: &'static str,
    /// What it counts, in messages.
    pub counts: &'static str,
}

const fn counting(resource: &'static str, field: &'static str, counts: &'static str) -> QuotaResource {
    QuotaResource {
        resource,
        field,
        counts,
    }
}

/// The limits that the host's `ResourceQuota` enforces.
const QUOTA_RESOURCES: [QuotaResource; 18] = [
    counting("count/pods", "pods", "pods (ended ones included)"),
    counting("count/services", "services", "Services"),
    counting("services.nodeports", "nodePorts", "node ports"),
    counting("services.loadbalancers", "loadBalancers", "load balancers"),
    counting(
        "count/endpointslices.discovery.k8s.io",
        "endpointSlices",
        "EndpointSlices",
    ),
    counting(
        "count/persistentvolumeclaims",
        "persistentVolumeClaims",
        "PersistentVolumeClaims",
    ),
    counting("requests.storage", "requestsStorage", "requested storage"),
    counting(
        "count/volumesnapshots.snapshot.storage.k8s.io",
        "volumeSnapshots",
        "VolumeSnapshots",
    ),
    counting("count/ingresses.networking.k8s.io", "ingresses", "Ingresses"),
    counting("count/httproutes.gateway.networking.k8s.io", "routes", "HTTPRoutes"),
    counting("count/grpcroutes.gateway.networking.k8s.io", "routes", "GRPCRoutes"),
    counting("count/tlsroutes.gateway.networking.k8s.io", "routes", "TLSRoutes"),
    counting(
        "count/networkpolicies.networking.k8s.io",
        "networkPolicies",
        "NetworkPolicies",
    ),
    counting("count/secrets", "secrets", "Secrets"),
    counting("count/configmaps", "configMaps", "ConfigMaps"),
    counting(
        "count/poddisruptionbudgets.policy",
        "podDisruptionBudgets",
        "PodDisruptionBudgets",
    ),
    counting(
        "count/resourceclaims.resource.k8s.io",
        "resourceClaims",
        "ResourceClaims",
    ),
    counting(
        "count/resourceclaimtemplates.resource.k8s.io",
        "resourceClaims",
        "ResourceClaimTemplates",
    ),
];

/// Begins the names of numbers of objects in a `ResourceQuota`.
const COUNT: &str = "count/";

impl TenantLimits {
    /// The limits as `spec.hard` of a `ResourceQuota`, of a class with these kinds in `sync.kinds`.
    pub fn quota(&self, kinds: &[SyncedKind]) -> BTreeMap<String, String> {
        let Self {
            pods,
            waiting_pods: _,
            services,
            node_ports,
            load_balancers,
            endpoint_slices,
            persistent_volume_claims,
            requests_storage,
            volume_size: _,
            volume_snapshots,
            ingresses,
            routes,
            custom_objects,
            network_policies,
            secrets,
            config_maps,
            pod_disruption_budgets,
            resource_claims,
            resources,
            default_request: _,
            datastore_bytes: _,
            datastore_write_bytes_per_second: _,
            host_bytes: _,
            host_write_bytes_per_second: _,
            endpoint_changes_per_second: _,
            controller_requests_per_second: _,
            datastore_objects: _,
            custom_resource_definitions: _,
            max_requests_in_flight: _,
            max_mutating_requests_in_flight: _,
        } = self;
        let counts = [
            ("count/pods", *pods),
            ("count/services", *services),
            ("services.nodeports", *node_ports),
            ("services.loadbalancers", *load_balancers),
            ("count/endpointslices.discovery.k8s.io", *endpoint_slices),
            ("count/persistentvolumeclaims", *persistent_volume_claims),
            ("count/volumesnapshots.snapshot.storage.k8s.io", *volume_snapshots),
            ("count/ingresses.networking.k8s.io", *ingresses),
            ("count/httproutes.gateway.networking.k8s.io", *routes),
            ("count/grpcroutes.gateway.networking.k8s.io", *routes),
            ("count/tlsroutes.gateway.networking.k8s.io", *routes),
            ("count/networkpolicies.networking.k8s.io", *network_policies),
            // On the host each pod may have a Secret of its own, with its tokens.
            ("count/secrets", secrets.saturating_add(*pods)),
            ("count/configmaps", *config_maps),
            ("count/poddisruptionbudgets.policy", *pod_disruption_budgets),
            ("count/resourceclaims.resource.k8s.io", *resource_claims),
            ("count/resourceclaimtemplates.resource.k8s.io", *resource_claims),
        ];
        // A class may have been accepted before such a kind was an error. The host would reject the whole `ResourceQuota`.
        let counted = kinds.iter().filter_map(SyncedKind::quota_resource);
        let custom = counted.map(|resource| (resource, custom_objects.to_string()));
        let storage = requests_storage
            .iter()
            .map(|storage| ("requests.storage".to_owned(), storage.clone()));
        let named = resources
            .iter()
            .map(|limit| (limit.resource.clone(), limit.quantity.to_string()));
        counts
            .into_iter()
            .map(|(resource, count)| (resource.to_owned(), count.to_string()))
            .chain(custom)
            .chain(storage)
            .chain(named)
            .collect()
    }

    /// The limit of a resource in [`TenantLimits::resources`].
    pub fn resource(&self, name: &str) -> Option<&Amount> {
        let limit = self.resources.iter().find(|limit| limit.resource == name)?;
        Some(&limit.quantity)
    }

    /// What containers request that have neither a request nor a limit, by resource: what the host's `ResourceQuota` needs to count
    /// their pods. `is_limited` says whether that limits a resource, by its name there.
    pub fn default_requests(&self, is_limited: impl Fn(&str) -> bool) -> BTreeMap<&'static str, &str> {
        let defaults = [
            ("requests.cpu", "cpu", self.default_request.cpu.as_str()),
            ("requests.memory", "memory", self.default_request.memory.as_str()),
        ];
        let limited = defaults.into_iter().filter(|(name, _, _)| is_limited(name));
        limited.map(|(_, resource, amount)| (resource, amount)).collect()
    }

    /// How much this many pods request of a resource of a `ResourceQuota` by [`TenantLimits::default_requests`], with one container each: in whole
    /// units, rounded up. 0 of a resource that has no default.
    pub fn requested_by_default(&self, name: &str, pods: u64) -> u64 {
        let amount = self.default_requests(|limited| limited == name).into_values().next();
        let thousandths = amount
            .and_then(quantity::parse)
            .unwrap_or(0)
            .saturating_mul(pods.into());
        let whole = thousandths.saturating_add(999).div_euclid(1000);
        u64::try_from(whole.max(0)).unwrap_or(u64::MAX)
    }
}

impl SyncedKind {
    /// What a `ResourceQuota` calls the number of objects of the kind; none if the host cannot count them, because it accepts no such name.
    pub fn quota_resource(&self) -> Option<String> {
        let resource = format!("{COUNT}{}.{}", self.resource, self.group);
        is_qualified_name(&resource).then_some(resource)
    }
}

/// The resource and group whose objects a resource of the tenant's `ResourceQuota` counts, if they are of a kind in `sync.kinds`: every other
/// kind that is counted has a limit of its own.
pub fn counted_custom_kind(resource: &str) -> Option<&str> {
    let kind = resource.strip_prefix(COUNT)?;
    quota_resource(resource).is_none().then_some(kind)
}

/// The limit that a resource of a `ResourceQuota` stands for; none if Berth sets none for it, or one for each kind in `sync.kinds`.
pub fn quota_resource(resource: &str) -> Option<&'static QuotaResource> {
    QUOTA_RESOURCES.iter().find(|known| known.resource == resource)
}

/// What the `ResourceQuota` counts for a field of [`TenantLimits`].
pub(crate) fn quota_resources(field: &str) -> impl Iterator<Item = &'static QuotaResource> {
    QUOTA_RESOURCES.iter().filter(move |known| known.field == field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ResourceLimit;
    use serde_json::Value;
    use std::collections::BTreeSet;

    #[test]
    fn every_limit_of_the_quota_has_a_field_and_the_other_way_round() {
        let limits = TenantLimits {
            requests_storage: Some("50Ti".into()),
            volume_size: Some("2Ti".into()),
            ..TenantLimits::default()
        };
        let quota = limits.quota(&[]);
        let known: BTreeSet<&str> = QUOTA_RESOURCES.iter().map(|known| known.resource).collect();
        assert_eq!(quota.keys().map(String::as_str).collect::<BTreeSet<_>>(), known);
        let Value::Object(fields) = serde_json::to_value(&limits).unwrap() else {
            panic!("no object");
        };
        let elsewhere = [
            "volumeSize",
            "waitingPods",
            "datastoreBytes",
            "datastoreWriteBytesPerSecond",
            "hostBytes",
            "hostWriteBytesPerSecond",
            "endpointChangesPerSecond",
            "controllerRequestsPerSecond",
            "datastoreObjects",
            "customResourceDefinitions",
            "maxRequestsInFlight",
            "maxMutatingRequestsInFlight",
            "defaultRequest",
            "customObjects",
        ];
        let fields: BTreeSet<&str> = fields
            .keys()
            .map(String::as_str)
            .filter(|field| !elsewhere.contains(field))
            .collect();
        assert_eq!(
            QUOTA_RESOURCES.iter().map(|known| known.field).collect::<BTreeSet<_>>(),
            fields
        );
    }

    fn kind(resource: &str, group: &str) -> SyncedKind {
        SyncedKind {
            resource: resource.into(),
            group: group.into(),
            ..SyncedKind::default()
        }
    }

    #[test]
    fn a_kind_that_the_host_cannot_count_is_not_part_of_the_quota() {
        let limits = TenantLimits::default();
        let widgets = kind("widgets", "example.com");
        for uncounted in [
            kind("azuremanagedmachinepooltemplates", "infrastructure.cluster.x-k8s.io"),
            kind("foo/bar", "example.com"),
            kind("widgets", "example.com."),
            kind("wid gets", "example.com"),
        ] {
            assert_eq!(uncounted.quota_resource(), None, "{uncounted:?}");
            assert_eq!(
                limits.quota(&[uncounted, widgets.clone()]),
                limits.quota(std::slice::from_ref(&widgets))
            );
        }
    }

    #[test]
    fn objects_of_each_further_kind_are_counted() {
        let limits = TenantLimits {
            custom_objects: 7,
            ..TenantLimits::default()
        };
        let kinds = [kind("podgroups", "scheduling.k8s.io"), kind("widgets", "example.com")];
        let quota = limits.quota(&kinds);
        assert_eq!(quota.len(), limits.quota(&[]).len() + 2);
        for name in ["podgroups.scheduling.k8s.io", "widgets.example.com"] {
            let resource = format!("count/{name}");
            assert_eq!(quota[&resource], "7");
            assert_eq!(counted_custom_kind(&resource), Some(name));
        }
        for name in [
            "count/pods",
            "count/httproutes.gateway.networking.k8s.io",
            "requests.cpu",
        ] {
            assert_eq!(counted_custom_kind(name), None, "{name}");
        }
    }

    fn limit(resource: &str, quantity: &str) -> ResourceLimit {
        ResourceLimit {
            resource: resource.into(),
            quantity: Amount::Text(quantity.into()),
        }
    }

    /// Default requests of what the class limits.
    fn defaults(limits: &TenantLimits) -> BTreeMap<&str, &str> {
        limits.default_requests(|name| limits.resource(name).is_some())
    }

    #[test]
    fn resources_by_name_are_part_of_the_quota_and_have_default_requests() {
        let mig = "requests.nvidia.com/mig-1g.10gb";
        let mut limits = TenantLimits {
            resources: vec![limit("requests.cpu", "64"), limit(mig, "0")],
            ..TenantLimits::default()
        };
        let quota = limits.quota(&[]);
        assert_eq!((quota["requests.cpu"].as_str(), quota[mig].as_str()), ("64", "0"));
        assert_eq!(defaults(&limits), BTreeMap::from([("cpu", "10m")]));
        limits.resources.push(limit("requests.memory", "1Ti"));
        limits.default_request.memory = "1Gi".into();
        assert_eq!(defaults(&limits), BTreeMap::from([("cpu", "10m"), ("memory", "1Gi")]));
        assert!(defaults(&TenantLimits::default()).is_empty());
    }

    #[test]
    fn pods_without_requests_request_the_default_in_whole_units() {
        let limits = TenantLimits::default();
        for (name, pods, expected) in [
            ("requests.cpu", 0, 0),
            ("requests.cpu", 20, 1),
            ("requests.cpu", 101, 2),
            ("requests.memory", 20, 20 * (16 << 20)),
            ("requests.memory", u64::MAX, u64::MAX),
            ("requests.storage", 20, 0),
        ] {
            assert_eq!(limits.requested_by_default(name, pods), expected, "{name} {pods}");
        }
    }
}
