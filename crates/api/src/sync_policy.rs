//! Which objects of a tenant the syncer copies to the host, and which host objects the tenant sees. Part of a
//! [`TenantClass`](crate::TenantClass); control passes the same structure to the tenant's syncer.
//!
//! Every list is an allow-list and empty by default. The syncer rejects everything else, with an Event and a condition on the
//! object.

use crate::images::IMAGE_PATTERN;
pub use crate::shared_nodes::SharedNodesPolicy;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// In a list of names: every name.
pub const ANY: &str = "*";

/// Whether a list of names contains `name` or [`ANY`].
pub fn allows(list: &[String], name: &str) -> bool {
    list.iter().any(|known| known == name || known == ANY)
}

/// What a list of annotations or labels may contain: a key, or `domain/*`. Lists are joined with commas in
/// [policy annotations](crate::policy_annotations), so no entry has one.
const KEY_PATTERN: &str =
    r"^(([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/\*)$";

/// An audience of a token. As with annotations, no entry has a comma.
const AUDIENCE_PATTERN: &str = r"^[^,\s]+$";

/// Whether a list of annotations or labels contains `key`: itself, or `domain/*` for its domain.
pub fn lists_key(list: &[String], key: &str) -> bool {
    let domain = key.split_once('/').map(|(domain, _)| domain);
    list.iter()
        .any(|listed| listed == key || domain.is_some_and(|domain| listed.strip_suffix("/*") == Some(domain)))
}

/// The rules of a class for its tenants' objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SyncPolicy {
    /// Rules for pods.
    pub pods: PodPolicy,
    /// Rules for volumes.
    pub storage: StoragePolicy,
    /// Rules for Services and their endpoints.
    pub services: ServicePolicy,
    /// Rules for Ingresses and the routes of the Gateway API.
    pub ingress: IngressPolicy,
    /// Rules for devices by dynamic resource allocation.
    pub devices: DevicePolicy,
    /// Rules for nodes that several tenants use at the same time.
    pub shared_nodes: SharedNodesPolicy,
    /// Tenants' service accounts whose pods run under a service account of the host, for cloud identities. All others run
    /// under one that may do nothing.
    #[schemars(length(max = 64))]
    pub service_accounts: Vec<ServiceAccountMapping>,
    /// Further kinds to sync, for which the host has controllers.
    #[schemars(length(max = 32))]
    pub kinds: Vec<SyncedKind>,
}

/// Rules for pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodPolicy {
    /// RuntimeClasses of the host that tenants see and may use; `*` for all.
    #[schemars(length(max = 64))]
    pub runtime_classes: Vec<String>,
    /// Schedulers of the host, besides its default one, that pods may name.
    #[schemars(length(max = 16))]
    pub schedulers: Vec<String>,
    /// Images that pods may run and mount: the full name of a repository, such as `registry.example.com/base/cuda`, or `registry/folder/*` for
    /// all repositories below; `*` for all. Images without a registry are those of `docker.io`, and of `docker.io/library` without a
    /// folder. Tags and digests do not count. Parts of a name may be the placeholders `{tenant}` and `{namespace}`, for the name of the
    /// TenantCluster and its namespace: `registry.example.com/{namespace}/{tenant}/*` gives each tenant repositories of its own. List
    /// images that webhooks of the host put into pods here as well. Without the list every image is allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(min = 1, max = 64),
        inner(length(max = 255), regex(pattern = IMAGE_PATTERN)),
        extend("x-kubernetes-validations" = [
            {"rule": "self.all(i, !i.matches('^index[.]docker[.]io/|^docker[.]io/([^/*]+)$'))",
             "message": "images of Docker Hub are named docker.io/library/name or docker.io/folder/name"}
        ])
    )]
    pub images: Option<Vec<String>>,
    /// Environment variables that containers may set although container runtimes read them and give devices or drivers of
    /// the node for them, for example `NVIDIA_GDS`. A variable that chooses GPUs goes past the scheduler.
    #[schemars(length(max = 16), inner(length(max = 64), regex(pattern = "^[A-Z][A-Z0-9_]*$")))]
    pub device_variables: Vec<String>,
    /// Capabilities that containers may add besides those of the Pod Security level `baseline`, in pods that run on nodes of the tenant's
    /// own alone. Only `IPC_LOCK` is possible: with it a process locks as much memory as its container may use, as RDMA needs. Then
    /// the tenants' workload namespaces have the Pod Security level `privileged`, and the admission policy `berth-pod-security`
    /// alone enforces the rest of `baseline` there. Without Berth's admission policies no capability is given.
    #[schemars(length(max = 1), inner(regex(pattern = "^IPC_LOCK$")))]
    pub capabilities: Vec<String>,
    /// Priorities that the tenants' pods have on the host. Without a band they all have the host's default priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<PriorityBand>,
    /// Annotations that pods may carry to the host: a key, or `domain/*` for all keys of a domain. The node, its network and
    /// controllers of the host act on them. List keys that webhooks of the host put on pods here as well: the admission
    /// policies reject pods with other keys.
    #[schemars(length(max = 64), inner(length(max = 317), regex(pattern = KEY_PATTERN)))]
    pub annotations: Vec<String>,
    /// Labels that pods carry to the host under their own keys: a key, or `domain/*` for all keys of a domain. Programs of the host
    /// may act on them. List keys that webhooks of the host put on pods here as well. Selectors need no entry: host pods carry all
    /// labels under keys of Berth.
    #[schemars(length(max = 64), inner(length(max = 317), regex(pattern = KEY_PATTERN)))]
    pub labels: Vec<String>,
    /// Most seconds that a pod has to end, whatever its `terminationGracePeriodSeconds`, its probes or a deletion say. Pods
    /// that ask for more run with this, and an Event says so. Defaults to 600.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 86_400))]
    pub max_termination_grace_period_seconds: Option<u32>,
    /// Most pods of a tenant that may wait at the same time for a scheduler of the host to try them for the first time. Further pods
    /// are created on the host when it has tried others. Within this number the syncer finds out how many keep the scheduler
    /// busy without delaying the pods of other tenants. Each scheduler in `schedulers` counts its own. Defaults to 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub scheduling_window: Option<u32>,
    /// Whether pods that name no seccomp profile get that of the container runtime (`RuntimeDefault`). With false, the kubelet
    /// decides (`seccompDefault` of its configuration), but never for pods that may run on shared nodes. Defaults to true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seccomp_default: Option<bool>,
}

/// [`PodPolicy::max_termination_grace_period_seconds`] of a class that does not set it.
pub const DEFAULT_MAX_TERMINATION_GRACE_PERIOD_SECONDS: u32 = 600;

/// What a class may list in [`PodPolicy::capabilities`], as in its schema.
pub const EXTRA_CAPABILITIES: [&str; 1] = ["IPC_LOCK"];

/// [`PodPolicy::scheduling_window`] of a class that does not set it.
pub const DEFAULT_SCHEDULING_WINDOW: u32 = 64;

impl PodPolicy {
    /// [`PodPolicy::scheduling_window`], or its default.
    pub fn scheduling_window(&self) -> u32 {
        self.scheduling_window.unwrap_or(DEFAULT_SCHEDULING_WINDOW)
    }

    /// [`PodPolicy::max_termination_grace_period_seconds`], or its default.
    pub fn max_termination_grace_period_seconds(&self) -> u32 {
        self.max_termination_grace_period_seconds
            .unwrap_or(DEFAULT_MAX_TERMINATION_GRACE_PERIOD_SECONDS)
    }

    /// [`PodPolicy::seccomp_default`], or its default.
    pub fn seccomp_default(&self) -> bool {
        self.seccomp_default.unwrap_or(true)
    }
}

/// Priorities on the host. The tenant's own priorities are mapped into it in order.
#[derive(KubeSchema, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.lowest < self.highest").message("lowest must be less than highest"))]
pub struct PriorityBand {
    /// Priority of the tenant's least important pods.
    #[schemars(range(min = -2_147_483_648i64, max = 1_000_000_000i64))]
    pub lowest: i32,
    /// Priority of the tenant's most important pods.
    #[schemars(range(min = -2_147_483_648i64, max = 1_000_000_000i64))]
    pub highest: i32,
}

/// Steps into which a [`PriorityBand`] is divided: one for priorities below zero, one for zero, and one for each order
/// of magnitude up to 10^9, the highest priority a user may define.
pub const PRIORITY_STEPS: u8 = 12;

impl PriorityBand {
    /// What the names of the host's PriorityClasses of all bands begin with.
    pub const NAME_PREFIX: &'static str = "berth-";
    /// What the names of those end with whose pods preempt no others.
    pub const NEVER_SUFFIX: &'static str = "-never";

    /// The step of a tenant's priority: 0 below zero, 1 for zero, then one more for each digit; below [`PRIORITY_STEPS`].
    pub fn step(priority: i64) -> u8 {
        match u64::try_from(priority) {
            Err(_) => 0,
            Ok(0) => 1,
            Ok(positive) => (u8::try_from(positive.ilog10()).unwrap_or(u8::MAX) + 2).min(PRIORITY_STEPS - 1),
        }
    }

    /// The priority on the host of a step: the steps divide the band evenly, the ends included.
    pub fn value(self, step: u8) -> i32 {
        let (lowest, width) = (i64::from(self.lowest), i64::from(self.highest) - i64::from(self.lowest));
        let step = i64::from(step.min(PRIORITY_STEPS - 1));
        // Between the ends of the band, which are both `i32`.
        i32::try_from(lowest + width * step / i64::from(PRIORITY_STEPS - 1)).unwrap_or(self.highest)
    }

    /// Name of the host's PriorityClass for a step of the class `class`. Control creates them, syncers set them in pods.
    pub fn class_name(class: &str, step: u8, preempts: bool) -> String {
        let (prefix, suffix) = (Self::NAME_PREFIX, if preempts { "" } else { Self::NEVER_SUFFIX });
        format!("{prefix}{class}-{step}{suffix}")
    }
}

/// Rules for volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StoragePolicy {
    /// StorageClasses of the host that tenants see and may use; `*` for all.
    #[schemars(length(max = 64))]
    pub classes: Vec<String>,
    /// VolumeAttributesClasses of the host that tenants see and may use; `*` for all.
    #[schemars(length(max = 64))]
    pub attributes_classes: Vec<String>,
    /// CSI drivers that pods may use in inline volumes.
    #[schemars(length(max = 64))]
    pub inline_drivers: Vec<String>,
    /// VolumeSnapshotClasses of the host that tenants see and may use; `*` for all.
    #[schemars(length(max = 64))]
    pub snapshot_classes: Vec<String>,
}

/// Rules for Services.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePolicy {
    /// Whether Services may have ports on the nodes.
    pub node_ports: bool,
    /// Whether Services may have load balancers of the host.
    pub load_balancers: bool,
    /// Classes of load balancers that may be named, besides the default one; `*` for all.
    #[schemars(length(max = 16))]
    pub load_balancer_classes: Vec<String>,
    /// Annotations that Services may carry to the host: a key, or `domain/*` for all keys of a domain. Load balancers and
    /// controllers of the host act on them. List keys that webhooks of the host put on Services here as well.
    #[schemars(length(max = 64), inner(length(max = 317), regex(pattern = KEY_PATTERN)))]
    pub annotations: Vec<String>,
    /// Labels that Services carry to the host: a key, or `domain/*` for all keys of a domain. Pools of load balancers and monitoring
    /// of the host select by them.
    #[schemars(length(max = 64), inner(length(max = 317), regex(pattern = KEY_PATTERN)))]
    pub labels: Vec<String>,
}

/// Rules for Ingresses and routes.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.hostnames) || self.hostnames.all(h, \
        h.matches('^([^{}.]+|[{]tenant[}]|[{]namespace[}])([.]([^{}.]+|[{]tenant[}]|[{]namespace[}]))*$'))")
    .message("placeholders in hostnames are {tenant} and {namespace}, each as a whole label, as in *.{tenant}.{namespace}.example.com")
    .field_path(".hostnames"))]
pub struct IngressPolicy {
    /// IngressClasses of the host that tenants see and may use; `*` for all.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub classes: Vec<String>,
    /// GatewayClasses of the host that tenants see; `*` for all.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub gateway_classes: Vec<String>,
    /// Gateways of the host to which the tenants' routes may be attached.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub gateways: Vec<GatewayReference>,
    /// Host names that Ingresses and routes may serve: `app.example.com`, `*.example.com` for every name below, or `*` for
    /// every name, and for rules that name none. Labels may be the placeholders `{tenant}` and `{namespace}`, for the name of the
    /// TenantCluster and its namespace: `*.{tenant}.{namespace}.example.com` gives each tenant names of its own. All tenants of the
    /// class may use names without placeholders.
    #[serde(default)]
    #[schemars(
        length(max = 64),
        inner(
            length(max = 253),
            regex(
                pattern = r"^(\*|(\*\.)?([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?|\{tenant\}|\{namespace\})(\.([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?|\{tenant\}|\{namespace\}))+)$"
            )
        )
    )]
    pub hostnames: Vec<String>,
    /// Annotations that Ingresses and routes may carry to the host, besides plain settings of ingress-nginx: a key, or
    /// `domain/*` for all keys of a domain.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub annotations: Vec<String>,
    /// Labels that Ingresses and routes carry to the host: a key, or `domain/*` for all keys of a domain.
    #[serde(default)]
    #[schemars(length(max = 64), inner(length(max = 317), regex(pattern = KEY_PATTERN)))]
    pub labels: Vec<String>,
}

/// A Gateway of the host. In the tenant, routes name it as if it were in any namespace of the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GatewayReference {
    /// Namespace on the host.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Rules for devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DevicePolicy {
    /// DeviceClasses of the host that tenants see and may use; `*` for all.
    #[schemars(length(max = 64))]
    pub classes: Vec<String>,
    /// Drivers to which claims may carry configuration; `*` for all.
    #[schemars(length(max = 64))]
    pub config_drivers: Vec<String>,
}

/// Pods of one service account of the tenant run under one of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAccountMapping {
    /// Namespace in the tenant.
    #[schemars(length(min = 1, max = 63))]
    pub namespace: String,
    /// Name in the tenant.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Name of the service account in the tenant's workload namespace on the host. The platform makes it.
    #[schemars(length(min = 1, max = 253))]
    pub host_name: String,
    /// Audiences of the tokens of the host's account that webhooks of the host may add to these pods, for example
    /// `sts.amazonaws.com`. Never list an audience of the host's API server. Without audiences pods with such tokens are rejected.
    /// Mappings with the same host name share their audiences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8), inner(length(min = 1, max = 256), regex(pattern = AUDIENCE_PATTERN)))]
    pub audiences: Vec<String>,
}

/// A namespaced kind that the host has controllers for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SyncedKind {
    /// API group, for example `scheduling.k8s.io`.
    #[schemars(length(min = 1, max = 253))]
    pub group: String,
    /// Version, the same on both sides, for example `v1beta1`.
    #[schemars(length(min = 1, max = 63))]
    pub version: String,
    /// Kind, for example `PodGroup`.
    #[schemars(length(min = 1, max = 63))]
    pub kind: String,
    /// Name of the resource in URLs, for example `podgroups`.
    #[schemars(length(min = 1, max = 63))]
    pub resource: String,
    /// Fields of the object besides its metadata that are copied; everything else is refused.
    #[serde(default = "spec_only")]
    #[schemars(length(min = 1, max = 64))]
    pub fields: Vec<String>,
    /// Whether the status comes back. Host names in its texts are mapped; fields listed in `references` as well.
    #[serde(default = "yes")]
    pub status: bool,
    /// Fields that name other objects of the tenant.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub references: Vec<FieldReference>,
    /// Fields that are label selectors of pods: narrowed to the tenant and the namespace. Where an object has none, it gets one of all pods of its
    /// namespace in the tenant.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub selectors: Vec<String>,
    /// Fields that are rejected although a field above them is copied.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub denied_fields: Vec<String>,
    /// Annotations that are copied: a key, or `domain/*` for all keys of a domain.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(max = 317), regex(pattern = KEY_PATTERN)))]
    pub annotations: Vec<String>,
    /// Labels that are copied: a key, or `domain/*` for all keys of a domain.
    #[serde(default)]
    #[schemars(length(max = 16), inner(length(max = 317), regex(pattern = KEY_PATTERN)))]
    pub labels: Vec<String>,
}

fn spec_only() -> Vec<String> {
    vec!["spec".into()]
}

fn yes() -> bool {
    true
}

/// A field that names another object in the same namespace of the tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldReference {
    /// Path of the field, for example `spec.secretName` or `spec.tls[].secretName`.
    #[schemars(length(min = 1, max = 512))]
    pub path: String,
    /// Kind of the object, for example `Secret`; with its group if it is not a kind that Berth knows, for example
    /// `Workload.scheduling.k8s.io`. The object is brought to the host as long as it is named.
    #[schemars(length(min = 1, max = 317))]
    pub kind: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_keep_the_order_of_priorities() {
        let priorities = [
            -2_147_483_648,
            -1,
            0,
            1,
            9,
            10,
            99,
            1000,
            1_000_000,
            999_999_999,
            1_000_000_000,
            2_000_001_000,
        ];
        let steps: Vec<u8> = priorities
            .iter()
            .map(|priority| PriorityBand::step(*priority))
            .collect();
        assert_eq!(steps, [0, 0, 1, 2, 2, 3, 3, 5, 8, 10, 11, 11]);
    }

    #[test]
    fn steps_fill_the_band_and_never_leave_it() {
        for (lowest, highest) in [(0, 1100), (i32::MIN, 1_000_000_000), (-5, -4)] {
            let band = PriorityBand { lowest, highest };
            let values: Vec<i32> = (0..PRIORITY_STEPS).map(|step| band.value(step)).collect();
            assert!(
                values.is_sorted() && values[0] == lowest && values[11] == highest,
                "{values:?}"
            );
            assert_eq!(band.value(200), highest);
        }
    }

    #[test]
    fn nothing_is_allowed_by_default() {
        let policy: SyncPolicy = serde_json::from_str("{}").unwrap();
        assert_eq!(policy, SyncPolicy::default());
        assert!(!allows(&policy.storage.classes, "any"));
        assert!(allows(&["*".into()], "any") && allows(&["a".into()], "a") && !allows(&["a".into()], "b"));
    }

    #[test]
    fn annotations_are_listed_by_key_or_by_domain() {
        let list = ["note", "example.com/a", "tools.example.com/*"].map(ToOwned::to_owned);
        for key in ["note", "example.com/a", "tools.example.com/anything"] {
            assert!(lists_key(&list, key), "{key}");
        }
        for key in [
            "example.com/b",
            "sub.tools.example.com/a",
            "tools.example.com",
            "notes",
            "*",
        ] {
            assert!(!lists_key(&list, key), "{key}");
        }
        assert!(!lists_key(&["*".into()], "note"));
    }
}
