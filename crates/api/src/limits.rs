//! How much one tenant may store and create. Part of a [`TenantClass`](crate::TenantClass).
//!
//! Everything that a tenant can create in any number costs its neighbours something: etcd of the host, etcd of the tenants,
//! addresses, ports, time of controllers. The defaults are far above what a team of hundreds uses and far below what
//! disturbs a host that is sized as Kubernetes is tested: 150,000 pods, 10,000 Services and 8 GiB in etcd.

use crate::{Amount, host_resource, quantity};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Name of the `ResourceQuota` and of the `LimitRange` in a tenant's workload namespace.
pub const LIMITS_NAME: &str = "berth-limits";

/// Limit of one resource of the host's `ResourceQuota`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceLimit {
    /// Name as in a `ResourceQuota`: `requests.cpu`, `requests.memory`, `requests.ephemeral-storage`, `requests.` and the name of an
    /// extended resource (`requests.nvidia.com/mig-1g.10gb`), `<name of a StorageClass>.storageclass.storage.k8s.io/requests.storage`,
    /// or `<name of a DeviceClass>.deviceclass.resource.k8s.io/devices`.
    #[schemars(length(max = host_resource::MAX_LENGTH), regex(pattern = host_resource::whole_pattern()))]
    pub resource: String,
    /// What the tenant may have of it, at most, in whole units: CPUs, bytes, devices.
    pub quantity: Amount,
}

/// What a container on the host requests that has neither a request nor a limit, if a class limits the resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DefaultRequest {
    /// CPU, if `resources` limits `requests.cpu`.
    #[schemars(length(max = 20), regex(pattern = r"^[1-9][0-9]*m?$"))]
    pub cpu: String,
    /// Memory, if `resources` limits `requests.memory`.
    #[schemars(length(max = 20), regex(pattern = r"^[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?$"))]
    pub memory: String,
}

impl Default for DefaultRequest {
    fn default() -> Self {
        // Small: a node that is full by what the tenant's own scheduler counts has room for it.
        Self {
            cpu: "10m".into(),
            memory: "16Mi".into(),
        }
    }
}

/// Limits of one tenant. Those of objects count on the host, in the tenant's workload namespace; those of the datastore count
/// what the tenant's API server stores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantLimits {
    /// Pods, with those that have ended and were not deleted. The tenant's controller manager deletes the oldest ended pods
    /// once there are more than half as many (or 12,500, the default of Kubernetes, if that is less).
    #[schemars(range(min = 1, max = 1_000_000))]
    pub pods: u32,
    /// Pods on the host that have no node, because none has room for them or for another reason. Half of them may ask the scheduler for the
    /// same. One in sixteen, but 64 in any case, may be pods for which it allocates devices of a DeviceClass. Others wait in the tenant until one of these has a node or is gone; a gang starts together, also beyond the limit, if it has no
    /// more pods. Whenever something changes, the host's scheduler, which has one queue for all tenants, tries pods without a node again before
    /// new ones.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub waiting_pods: u32,
    /// Services. Each has an address of the host's Service range, which all tenants share.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub services: u32,
    /// Node ports of Services, also those of load balancers. The host has 2,768 of them by default.
    #[schemars(range(min = 0, max = 100_000))]
    pub node_ports: u32,
    /// Services of type LoadBalancer.
    #[schemars(range(min = 0, max = 100_000))]
    pub load_balancers: u32,
    /// EndpointSlices: those that the host makes for Services, and those that the tenant writes. One has up to 100
    /// endpoints, and a pod is an endpoint of each Service that selects it.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub endpoint_slices: u32,
    /// `PersistentVolumeClaims`.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub persistent_volume_claims: u32,
    /// Storage that all `PersistentVolumeClaims` together may request, for example `50Ti`. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20), regex(pattern = r"^[1-9][0-9]*(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"))]
    pub requests_storage: Option<String>,
    /// Storage that one `PersistentVolumeClaim` may request, for example `2Ti`. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 20), regex(pattern = r"^[1-9][0-9]*(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"))]
    pub volume_size: Option<String>,
    /// `VolumeSnapshots`. Each takes storage that `requestsStorage` does not count.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub volume_snapshots: u32,
    /// Ingresses. Controllers of the host read all of them, and some write one configuration from all.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub ingresses: u32,
    /// Routes of the Gateway API: so many of each kind. Controllers of the host write the configuration of a Gateway from all of its routes.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub routes: u32,
    /// Objects of the kinds in `sync.kinds`: so many of each kind.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub custom_objects: u32,
    /// `NetworkPolicies`. Each is evaluated on every node with a pod that it selects.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub network_policies: u32,
    /// Secrets that pods or Ingresses use; others stay in the tenant. Those that Berth adds, one for each pod, do not count.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub secrets: u32,
    /// `ConfigMaps` that pods use; others stay in the tenant.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub config_maps: u32,
    /// `PodDisruptionBudgets`. The host compares each with every pod of the tenant that changes.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub pod_disruption_budgets: u32,
    /// `ResourceClaims`, with those that are made from templates for pods.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub resource_claims: u32,
    /// Further resources that all pods and claims of the tenant together may request on the host. Each resource once. Absent: no
    /// limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["resource"])
    )]
    pub resources: Vec<ResourceLimit>,
    /// What containers without requests request, of the resources that `resources` limits: the host rejects pods without requests
    /// for CPU or memory where these are limited.
    pub default_request: DefaultRequest,
    /// Size of all objects that the tenant's API server stores, as it estimates it, and of what etcd has besides. Above, it
    /// creates nothing more except what the system itself needs; above 110 percent, no object can grow either. All tenants
    /// share one etcd, which accepts no write of any tenant once it is full.
    #[schemars(length(max = 20), regex(pattern = r"^[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?$"))]
    pub datastore_bytes: String,
    /// Bytes a second that the tenant may write in objects of more than 16 KiB, after 32 MiB at once. More wait for five seconds, and then get
    /// the answer 429, after which clients of Kubernetes try again. It keeps a tenant from filling the shared etcd with history before
    /// `datastoreBytes` is measured.
    #[schemars(length(max = 20), regex(pattern = r"^[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?$"))]
    pub datastore_write_bytes_per_second: String,
    /// Size of all objects that the tenant's syncer has on the host, as JSON: pods with their status, tokens, `ConfigMaps`, Services and the rest.
    /// Above, it creates nothing more there, and lets nothing grow. etcd of the host and its API servers, which keep all pods in memory,
    /// are those of all tenants.
    #[schemars(length(max = 20), regex(pattern = r"^[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?$"))]
    pub host_bytes: String,
    /// Bytes a second that the tenant's syncer may write on the host in objects of more than 16 KiB, after 32 MiB at once. More wait. The same
    /// again in smaller objects, after 128 MiB at once. Less than `datastoreWriteBytesPerSecond`, because etcd of the host keeps its history
    /// for up to ten minutes.
    #[schemars(length(max = 20), regex(pattern = r"^[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?$"))]
    pub host_write_bytes_per_second: String,
    /// Services whose endpoints may change in a second, in the long run; those of ten minutes may change at once. A Service counts once in ten
    /// seconds. Above, the Services that change most have no endpoints on the host for ten minutes or more: controllers of the host, which write
    /// the endpoints of all tenants' Services, would let those of others wait.
    #[schemars(range(min = 1, max = 1000))]
    pub endpoint_changes_per_second: u32,
    /// Requests a second that the tenant's objects may cost controllers of the host, in the long run; those of ten minutes may be used at once. A pod
    /// with `resourceClaims` takes one for each of them, and one more, and two for each PersistentVolumeClaim that it mounts. A PersistentVolumeClaim takes
    /// seven when it is made there and five when it changes, a VolumeSnapshot five, a ResourceClaim or its template one for eight CEL expressions. What is
    /// above waits: these controllers make a few requests a second for all tenants together. Claims without a volume take up to half of it.
    #[schemars(range(min = 1, max = 1000))]
    pub controller_requests_per_second: u32,
    /// Number of all objects that the tenant's API server stores, or of the tenant's keys in etcd if these are more. etcd keeps
    /// all keys in memory.
    #[schemars(range(min = 1000, max = 100_000_000))]
    pub datastore_objects: u64,
    /// `CustomResourceDefinitions`, with those of `sync.kinds`. The tenant's API server and its controllers keep a schema, a cache
    /// and watches for each.
    #[schemars(range(min = 1, max = 100_000))]
    pub custom_resource_definitions: u64,
    /// Requests that only read and that each API server of the tenant handles at the same time (`--max-requests-inflight`). Together with
    /// `maxMutatingRequestsInFlight` it is what priority and fairness shares out among the tenant's users: more requests wait, and are
    /// rejected after a while. For more, give kube-apiserver more memory in the chart's `tenants.resources`.
    #[schemars(range(min = 20, max = 3000))]
    pub max_requests_in_flight: u32,
    /// Requests that write and that each API server of the tenant handles at the same time (`--max-mutating-requests-inflight`). A body has
    /// up to 3 MiB and is in memory at least twice.
    #[schemars(range(min = 10, max = 1000))]
    pub max_mutating_requests_in_flight: u32,
}

/// Default of [`TenantLimits::max_requests_in_flight`]: a third of that of Kubernetes, which is for a cluster of up to a thousand nodes.
/// Bodies of 200 requests, 3 MiB each and twice in memory, stay within the memory limit of the API server, 2 GiB.
const REQUESTS_IN_FLIGHT: u32 = 133;
/// See [`REQUESTS_IN_FLIGHT`].
const MUTATING_REQUESTS_IN_FLIGHT: u32 = 67;

impl Default for TenantLimits {
    fn default() -> Self {
        Self {
            // A tenth of what one Kubernetes cluster is tested with.
            pods: 15_000,
            // Some seconds of the scheduler, if all of them are tried again at once.
            waiting_pods: 1000,
            services: 1000,
            node_ports: 200,
            load_balancers: 50,
            endpoint_slices: 10_000,
            persistent_volume_claims: 2000,
            requests_storage: None,
            volume_size: None,
            volume_snapshots: 2000,
            ingresses: 500,
            routes: 500,
            // A group of pods for each third pod.
            custom_objects: 5000,
            network_policies: 1000,
            secrets: 10_000,
            config_maps: 10_000,
            // One for each twelfth Service. Whenever a pod of the tenant changes, one thread that works for all tenants goes through them:
            // 2 ms if their selectors are as large as they may be.
            pod_disruption_budgets: 80,
            resource_claims: 15_000,
            resources: Vec::new(),
            default_request: DefaultRequest::default(),
            // Fifteen tenants at their limit leave etcd's 8 GiB some room for its history.
            datastore_bytes: "512Mi".into(),
            // In the minute until usage is measured, half of `datastore_bytes`.
            datastore_write_bytes_per_second: "4Mi".into(),
            // 35 KiB for each of `pods`, with its Secret.
            host_bytes: "512Mi".into(),
            // In ten minutes 300 MiB of each kind. 40 small pods a second, with their Secrets.
            host_write_bytes_per_second: "512Ki".into(),
            // A fifth of what controllers of the host write in a second by default.
            endpoint_changes_per_second: 4,
            // A quarter of what each controller of the host makes in a second by default. 1,500 pods with a claim of devices at once.
            controller_requests_per_second: 5,
            datastore_objects: 200_000,
            // As many as Kubernetes is tested with in one cluster.
            custom_resource_definitions: 500,
            max_requests_in_flight: REQUESTS_IN_FLIGHT,
            max_mutating_requests_in_flight: MUTATING_REQUESTS_IN_FLIGHT,
        }
    }
}

/// Ended pods that Kubernetes keeps by default.
const ENDED_PODS: u32 = 12_500;

/// See [`extension_bytes`]: some thousand objects of 30 KB.
const LEAST_EXTENSION_BYTES: u64 = 128 << 20;
/// See [`extension_bytes`].
const EXTENSION_SHARE: u64 = 4;

/// Bytes, as JSON, that a syncer keeps of all objects in its tenant that are of kinds which the tenant may serve by servers of its own:
/// `sync.kinds`, the Gateway API and snapshots. A quarter of `host_bytes`, which is [`TenantLimits::host_size`], as what they become on the host
/// counts there; 128 MiB at least. Nothing else limits them: what such a server lists is not in the tenant's datastore. Control gives syncers
/// memory for as many.
pub fn extension_bytes(host_bytes: u64) -> u64 {
    LEAST_EXTENSION_BYTES.max(host_bytes / EXTENSION_SHARE)
}

/// Memory that a syncer needs at most for a name of another object in one of its tenant's, such as that of a ConfigMap in a pod: 570 bytes for each
/// object that is named once, and a third of that for the same one again.
pub const BYTES_OF_REFERENCE: u64 = 640;
/// See [`most_references`]: 17 for each of 15,000 pods.
const LEAST_REFERENCES: u64 = 256 << 10;
/// See [`most_references`].
const HOST_BYTES_OF_REFERENCE: u64 = 2 << 10;

/// Names of other objects that the objects of a tenant may have, which a syncer keeps: a name in a pod takes a few bytes in the datastore. As many as
/// objects of `host_bytes`, which is [`TenantLimits::host_size`], may need. Control gives syncers memory for as many.
pub fn most_references(host_bytes: u64) -> u64 {
    LEAST_REFERENCES.max(host_bytes / HOST_BYTES_OF_REFERENCE)
}

impl TenantLimits {
    /// Ended pods that the tenant keeps: fewer than its pods may be, so that ended pods alone never use up the limit.
    pub fn ended_pods(&self) -> u32 {
        (self.pods / 2).clamp(1, ENDED_PODS)
    }

    /// [`TenantLimits::datastore_bytes`] as a number; the default if it cannot be read.
    pub fn datastore_size(&self) -> u64 {
        self.bytes(|limits| &limits.datastore_bytes)
    }

    /// [`TenantLimits::datastore_write_bytes_per_second`] as a number; the default if it cannot be read.
    pub fn write_rate(&self) -> u64 {
        self.bytes(|limits| &limits.datastore_write_bytes_per_second)
    }

    /// [`TenantLimits::host_bytes`] as a number; the default if it cannot be read.
    pub fn host_size(&self) -> u64 {
        self.bytes(|limits| &limits.host_bytes)
    }

    /// [`TenantLimits::host_write_bytes_per_second`] as a number; the default if it cannot be read.
    pub fn host_write_rate(&self) -> u64 {
        self.bytes(|limits| &limits.host_write_bytes_per_second)
    }

    fn bytes(&self, field: fn(&Self) -> &str) -> u64 {
        parse_bytes(field(self))
            .or_else(|| parse_bytes(field(&Self::default())))
            .unwrap_or(u64::MAX)
    }

    /// The first quantity that cannot be read, with its field.
    pub fn find_invalid_quantity(&self) -> Option<(String, String)> {
        let invalid = |limit: &&ResourceLimit| limit.quantity.value().is_none();
        if let Some(limit) = self.resources.iter().find(invalid) {
            return Some((format!("resources[{}]", limit.resource), limit.quantity.to_string()));
        }
        let quantities = [
            ("requestsStorage", self.requests_storage.as_deref()),
            ("volumeSize", self.volume_size.as_deref()),
            ("datastoreBytes", Some(self.datastore_bytes.as_str())),
            (
                "datastoreWriteBytesPerSecond",
                Some(self.datastore_write_bytes_per_second.as_str()),
            ),
            ("hostBytes", Some(self.host_bytes.as_str())),
            (
                "hostWriteBytesPerSecond",
                Some(self.host_write_bytes_per_second.as_str()),
            ),
        ];
        quantities.into_iter().find_map(|(field, text)| {
            text.filter(|text| parse_bytes(text).is_none())
                .map(|text| (field.to_owned(), text.to_owned()))
        })
    }
}

/// A quantity as a number of bytes; none if it is none, or not positive.
fn parse_bytes(text: &str) -> Option<u64> {
    let bytes = quantity::parse(text)? / 1000;
    u64::try_from(bytes).ok().filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_limit_that_is_not_set_has_its_default() {
        let limits: TenantLimits = serde_json::from_value(json!({"pods": 100})).unwrap();
        assert_eq!((limits.pods, limits.services), (100, TenantLimits::default().services));
        let quota = limits.quota(&[]);
        assert_eq!(
            (quota["count/pods"].as_str(), quota["count/secrets"].as_str()),
            ("100", "10100")
        );
        assert!(!quota.contains_key("requests.storage"));
    }

    #[test]
    fn resources_by_name_are_numbers_or_quantities() {
        let text = json!({"resources": [
            {"resource": "requests.cpu", "quantity": 64},
            {"resource": "fast.storageclass.storage.k8s.io/requests.storage", "quantity": "10Ti"},
        ]});
        let limits: TenantLimits = serde_json::from_value(text.clone()).unwrap();
        assert_eq!(limits.find_invalid_quantity(), None);
        assert_eq!(limits.resource("requests.cpu"), Some(&Amount::Number(64)));
        assert_eq!(serde_json::to_value(&limits).unwrap()["resources"], text["resources"]);
    }

    #[test]
    fn ended_pods_never_use_up_the_limit() {
        for (pods, ended) in [(1, 1), (100, 50), (15_000, 7500), (1_000_000, 12_500)] {
            let limits = TenantLimits {
                pods,
                ..TenantLimits::default()
            };
            assert_eq!(limits.ended_pods(), ended);
        }
    }

    #[test]
    fn extensions_have_a_share_of_the_host_and_never_little() {
        let mib = |host: u64| extension_bytes(host << 20) >> 20;
        assert_eq!((mib(1), mib(512), mib(516)), (128, 128, 129));
        assert_eq!(mib(8192), 2048);
        assert_eq!(extension_bytes(u64::MAX), u64::MAX / 4);
    }

    #[test]
    fn quantities_are_read() {
        let mut limits = TenantLimits::default();
        assert_eq!(
            (limits.datastore_size(), limits.find_invalid_quantity()),
            (512 << 20, None)
        );
        assert_eq!(limits.write_rate(), 4 << 20);
        assert_eq!((limits.host_size(), limits.host_write_rate()), (512 << 20, 512 << 10));
        limits.volume_size = Some("2TB".into());
        assert_eq!(
            limits.find_invalid_quantity(),
            Some(("volumeSize".into(), "2TB".into()))
        );
        limits.resources = vec![ResourceLimit {
            resource: "requests.memory".into(),
            quantity: Amount::Text("999999999999999Pi".into()),
        }];
        let (field, _) = limits.find_invalid_quantity().unwrap();
        assert_eq!(field, "resources[requests.memory]");
    }
}
