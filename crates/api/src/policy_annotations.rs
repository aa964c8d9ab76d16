//! Policy annotations: the rules of a class, as annotations of a tenant's workload namespace. The host's admission
//! policies (ValidatingAdmissionPolicy) read them, so that they confine a syncer to its class even if its credential is stolen.
//!
//! Each annotation is a list, separated by commas. Without the annotation, nothing is allowed. [`MAX_TERMINATION_GRACE_PERIOD`]
//! is a number; without it, the default of classes holds. Without [`IMAGES`], every image is allowed: the namespaces of tenants that
//! exist get annotations of a new release only after its policies. Only control may change them.

use crate::NetworkLimits;
use crate::sync_policy::{
    PRIORITY_STEPS, PriorityBand, ServiceAccountMapping, SharedNodesPolicy, SyncPolicy, SyncedKind,
};
use std::collections::BTreeMap;

/// Service accounts of the workload namespace that pods may use, besides the one without permissions.
pub const SERVICE_ACCOUNTS: &str = "allow.berth.dev/service-accounts";
/// Audiences of tokens of these service accounts that pods may mount, as `account:audience`.
pub const TOKEN_AUDIENCES: &str = "allow.berth.dev/token-audiences";
/// Variables of containers by which container runtimes give devices or drivers of the node.
pub const DEVICE_VARIABLES: &str = "allow.berth.dev/device-variables";
/// Capabilities that containers may add on the tenant's own nodes, besides those of the Pod Security level `baseline`. A namespace with this
/// annotation has the level `privileged`, and the admission policies enforce `baseline`.
pub const CAPABILITIES: &str = "allow.berth.dev/capabilities";
/// RuntimeClasses that pods may name.
pub const RUNTIME_CLASSES: &str = "allow.berth.dev/runtime-classes";
/// Schedulers that pods may name, besides the default one.
pub const SCHEDULERS: &str = "allow.berth.dev/schedulers";
/// PriorityClasses that pods may have.
pub const PRIORITY_CLASSES: &str = "allow.berth.dev/priority-classes";
/// CSI drivers of inline volumes.
pub const INLINE_DRIVERS: &str = "allow.berth.dev/inline-drivers";
/// StorageClasses of claims.
pub const STORAGE_CLASSES: &str = "allow.berth.dev/storage-classes";
/// VolumeAttributesClasses of claims.
pub const ATTRIBUTES_CLASSES: &str = "allow.berth.dev/volume-attributes-classes";
/// VolumeSnapshotClasses of snapshots.
pub const SNAPSHOT_CLASSES: &str = "allow.berth.dev/volume-snapshot-classes";
/// Types of Services besides `ClusterIP`.
pub const SERVICE_TYPES: &str = "allow.berth.dev/service-types";
/// Classes of load balancers that Services may name.
pub const LOAD_BALANCER_CLASSES: &str = "allow.berth.dev/load-balancer-classes";
/// IngressClasses of Ingresses.
pub const INGRESS_CLASSES: &str = "allow.berth.dev/ingress-classes";
/// Annotations of Ingresses and routes that controllers read.
pub const INGRESS_ANNOTATIONS: &str = "allow.berth.dev/ingress-annotations";
/// Annotations of pods.
pub const POD_ANNOTATIONS: &str = "allow.berth.dev/pod-annotations";
/// Annotations of Services.
pub const SERVICE_ANNOTATIONS: &str = "allow.berth.dev/service-annotations";
/// Annotations of objects of further kinds, as `resource.group:key`.
pub const KIND_ANNOTATIONS: &str = "allow.berth.dev/kind-annotations";
/// Labels of Ingresses and routes.
pub const INGRESS_LABELS: &str = "allow.berth.dev/ingress-labels";
/// Labels of pods under their own keys.
pub const POD_LABELS: &str = "allow.berth.dev/pod-labels";
/// Labels of Services.
pub const SERVICE_LABELS: &str = "allow.berth.dev/service-labels";
/// Labels of objects of further kinds, as `resource.group:key`.
pub const KIND_LABELS: &str = "allow.berth.dev/kind-labels";
/// Gateways that routes may be attached to, as `namespace/name`.
pub const GATEWAYS: &str = "allow.berth.dev/gateways";
/// Host names of Ingresses and routes.
pub const HOSTNAMES: &str = "allow.berth.dev/hostnames";
/// DeviceClasses of claims.
pub const DEVICE_CLASSES: &str = "allow.berth.dev/device-classes";
/// Drivers to which claims may carry configuration.
pub const CONFIG_DRIVERS: &str = "allow.berth.dev/config-drivers";
/// HostNodePools of mode `Shared` on whose nodes pods may run.
pub const SHARED_POOLS: &str = "allow.berth.dev/shared-pools";
/// Features that pods on shared nodes must not use: [`CACHED_IMAGES`], [`HOST_USERS`].
pub const NOT_ON_SHARED_NODES: &str = "deny.berth.dev/on-shared-nodes";
/// In [`NOT_ON_SHARED_NODES`]: images on the node that are used without a request to their registry.
pub const CACHED_IMAGES: &str = "cached-images";
/// In [`NOT_ON_SHARED_NODES`]: the node's user namespace.
pub const HOST_USERS: &str = "host-users";

/// Most seconds that pods may take to end, as in `sync.pods.maxTerminationGracePeriodSeconds` of the class.
pub const MAX_TERMINATION_GRACE_PERIOD: &str = "limit.berth.dev/max-termination-grace-period-seconds";

/// Images that pods may run and mount, as in `sync.pods.images` of the class: a list. Without it every image is allowed.
pub const IMAGES: &str = "limit.berth.dev/images";

/// Present if the Project of the tenant limits its users: pods must be created with the scheduling gate
/// [`USER_QUOTA_GATE`](crate::labels::USER_QUOTA_GATE). The value is [`USER_QUOTAS_LIMITED`].
pub const USER_QUOTAS: &str = "limit.berth.dev/user-quotas";
/// Value of [`USER_QUOTAS`].
pub const USER_QUOTAS_LIMITED: &str = "true";

/// Networks that NetworkPolicies may open for egress.
pub const EGRESS_CIDRS: &str = "allow.berth.dev/egress-cidrs";
/// Networks that NetworkPolicies may open for ingress.
pub const INGRESS_CIDRS: &str = "allow.berth.dev/ingress-cidrs";
/// Namespaces of the host that NetworkPolicies may let in.
pub const INGRESS_NAMESPACES: &str = "allow.berth.dev/ingress-namespaces";
/// Networks that NetworkPolicies must leave closed, within those that they may open.
pub const BLOCKED_CIDRS: &str = "deny.berth.dev/cidrs";
/// Networks of the host without pods, in which no endpoint may lie.
pub const CLOSED_TO_ENDPOINTS: &str = "deny.berth.dev/endpoint-cidrs";

/// What the keys of all of these begin with.
const PREFIXES: [&str; 3] = ["allow.berth.dev/", "deny.berth.dev/", "limit.berth.dev/"];

/// Keys of policy annotations that a namespace has and that are not wanted there. `found` are all of its annotations.
pub fn find_surplus<'a>(
    wanted: &BTreeMap<String, String>,
    found: &'a BTreeMap<String, String>,
) -> impl Iterator<Item = &'a str> {
    let is_policy = |key: &str| PREFIXES.iter().any(|prefix| key.starts_with(*prefix));
    found
        .keys()
        .map(String::as_str)
        .filter(move |key| is_policy(key) && !wanted.contains_key(*key))
}

/// The annotations for networks outside the tenant.
pub fn of_network(limits: &NetworkLimits) -> BTreeMap<String, String> {
    let NetworkLimits {
        blocked,
        closed: _,
        egress,
        ingress,
        endpoint_cidrs: _,
        closed_to_endpoints: _,
        families: _,
        api_server_hosts: _,
    } = limits;
    [
        (EGRESS_CIDRS, egress.iter().map(|rule| rule.cidr.clone()).collect()),
        (
            INGRESS_CIDRS,
            ingress.iter().filter_map(|rule| rule.cidr.clone()).collect(),
        ),
        (
            INGRESS_NAMESPACES,
            ingress.iter().filter_map(|rule| rule.namespace.clone()).collect(),
        ),
        (BLOCKED_CIDRS, blocked.clone()),
    ]
    .into_iter()
    .filter(|(_, list): &(&str, Vec<String>)| !list.is_empty())
    .map(|(key, list)| (key.to_owned(), list.join(",")))
    .collect()
}

/// The annotation for endpoints, if there is something to close.
pub fn of_endpoints(closed: &[String]) -> Option<(String, String)> {
    (!closed.is_empty()).then(|| (CLOSED_TO_ENDPOINTS.to_owned(), closed.join(",")))
}

/// The annotations for tenants of the class `class` with these rules. `default_priority` is the host's PriorityClass that
/// pods without one get.
pub fn annotations(policy: &SyncPolicy, class: &str, default_priority: Option<&str>) -> BTreeMap<String, String> {
    let types = [
        ("NodePort", policy.services.node_ports),
        ("LoadBalancer", policy.services.load_balancers),
    ];
    let gateways = policy.ingress.gateways.iter();
    // Here an empty list is a list: it allows no image.
    let images = policy.pods.images.iter();
    let images = images.map(|list| (IMAGES.to_owned(), list.join(",")));
    [
        (
            SERVICE_ACCOUNTS,
            policy
                .service_accounts
                .iter()
                .map(|mapping| mapping.host_name.clone())
                .collect(),
        ),
        (TOKEN_AUDIENCES, token_audiences(policy)),
        (DEVICE_VARIABLES, policy.pods.device_variables.clone()),
        (CAPABILITIES, policy.pods.capabilities.clone()),
        (RUNTIME_CLASSES, policy.pods.runtime_classes.clone()),
        (SCHEDULERS, policy.pods.schedulers.clone()),
        (PRIORITY_CLASSES, priority_classes(policy, class, default_priority)),
        (INLINE_DRIVERS, policy.storage.inline_drivers.clone()),
        (STORAGE_CLASSES, policy.storage.classes.clone()),
        (ATTRIBUTES_CLASSES, policy.storage.attributes_classes.clone()),
        (SNAPSHOT_CLASSES, policy.storage.snapshot_classes.clone()),
        (
            SERVICE_TYPES,
            types
                .into_iter()
                .filter(|(_, allowed)| *allowed)
                .map(|(name, _)| name.to_owned())
                .collect(),
        ),
        (LOAD_BALANCER_CLASSES, policy.services.load_balancer_classes.clone()),
        (INGRESS_CLASSES, policy.ingress.classes.clone()),
        (INGRESS_ANNOTATIONS, policy.ingress.annotations.clone()),
        (POD_ANNOTATIONS, policy.pods.annotations.clone()),
        (SERVICE_ANNOTATIONS, policy.services.annotations.clone()),
        (KIND_ANNOTATIONS, of_kinds(policy, |kind| &kind.annotations)),
        (INGRESS_LABELS, policy.ingress.labels.clone()),
        (POD_LABELS, policy.pods.labels.clone()),
        (SERVICE_LABELS, policy.services.labels.clone()),
        (KIND_LABELS, of_kinds(policy, |kind| &kind.labels)),
        (
            GATEWAYS,
            gateways
                .map(|gateway| format!("{}/{}", gateway.namespace, gateway.name))
                .collect(),
        ),
        (HOSTNAMES, policy.ingress.hostnames.clone()),
        (DEVICE_CLASSES, policy.devices.classes.clone()),
        (CONFIG_DRIVERS, policy.devices.config_drivers.clone()),
        (SHARED_POOLS, policy.shared_nodes.pools.clone()),
        (NOT_ON_SHARED_NODES, not_on_shared_nodes(&policy.shared_nodes)),
        (
            MAX_TERMINATION_GRACE_PERIOD,
            policy
                .pods
                .max_termination_grace_period_seconds
                .map(|seconds| seconds.to_string())
                .into_iter()
                .collect(),
        ),
    ]
    .into_iter()
    .filter(|(_, list): &(&str, Vec<String>)| !list.is_empty())
    .map(|(key, list)| (key.to_owned(), list.join(",")))
    .chain(images)
    .collect()
}

fn token_audiences(policy: &SyncPolicy) -> Vec<String> {
    let of_mapping = |mapping: &ServiceAccountMapping| {
        let account = &mapping.host_name;
        let audiences = mapping.audiences.iter();
        audiences
            .map(|audience| format!("{account}:{audience}"))
            .collect::<Vec<_>>()
    };
    policy.service_accounts.iter().flat_map(of_mapping).collect()
}

/// The keys that further kinds list, each with its resource.
fn of_kinds(policy: &SyncPolicy, listed: impl Fn(&SyncedKind) -> &[String]) -> Vec<String> {
    let of_kind = |kind: &SyncedKind| {
        let resource = if kind.group.is_empty() {
            kind.resource.clone()
        } else {
            format!("{}.{}", kind.resource, kind.group)
        };
        let keys = listed(kind).iter();
        keys.map(|key| format!("{resource}:{key}")).collect::<Vec<_>>()
    };
    policy.kinds.iter().flat_map(of_kind).collect()
}

fn not_on_shared_nodes(rules: &SharedNodesPolicy) -> Vec<String> {
    let SharedNodesPolicy {
        pools,
        user_namespaces,
        cached_images,
    } = rules;
    [(!cached_images, CACHED_IMAGES), (*user_namespaces, HOST_USERS)]
        .into_iter()
        .filter(|(refused, _)| *refused && !pools.is_empty())
        .map(|(_, what)| what.to_owned())
        .collect()
}

fn priority_classes(policy: &SyncPolicy, class: &str, default_priority: Option<&str>) -> Vec<String> {
    let steps = (0..PRIORITY_STEPS).flat_map(|step| [(step, true), (step, false)]);
    match policy.pods.priority {
        Some(_) => steps
            .map(|(step, preempts)| PriorityBand::class_name(class, step, preempts))
            .collect(),
        None => default_priority.map(ToOwned::to_owned).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync_policy::GatewayReference;

    #[test]
    fn a_class_that_allows_nothing_has_no_annotations() {
        assert_eq!(annotations(&SyncPolicy::default(), "default", None), BTreeMap::new());
    }

    #[test]
    fn rules_that_are_not_wanted_are_surplus_and_annotations_of_others_are_not() {
        let map = |keys: &[&str]| -> BTreeMap<String, String> {
            keys.iter().map(|key| ((*key).to_owned(), "x".to_owned())).collect()
        };
        let found = map(&[
            SHARED_POOLS,
            CAPABILITIES,
            CLOSED_TO_ENDPOINTS,
            USER_QUOTAS,
            "berth.dev/owner-uid",
            "example.com/a",
        ]);
        let wanted = map(&[SHARED_POOLS, RUNTIME_CLASSES]);
        let surplus: Vec<&str> = find_surplus(&wanted, &found).collect();
        assert_eq!(surplus, [CAPABILITIES, CLOSED_TO_ENDPOINTS, USER_QUOTAS]);
    }

    #[test]
    fn a_class_that_limits_the_grace_period_says_so() {
        let mut policy = SyncPolicy::default();
        policy.pods.max_termination_grace_period_seconds = Some(90);
        let limited = annotations(&policy, "gold", None);
        assert_eq!(limited[MAX_TERMINATION_GRACE_PERIOD], "90");
    }

    #[test]
    fn lists_are_separated_by_commas() {
        let mut policy = SyncPolicy::default();
        policy.services.node_ports = true;
        policy.services.load_balancers = true;
        policy.ingress.hostnames = vec!["*.a.example.com".into(), "b.example.com".into()];
        policy.ingress.gateways = vec![GatewayReference {
            namespace: "edge".into(),
            name: "public".into(),
        }];
        policy.service_accounts = vec![ServiceAccountMapping {
            namespace: "ml".into(),
            name: "train".into(),
            host_name: "s3-reader".into(),
            audiences: Vec::new(),
        }];
        insta::assert_yaml_snapshot!(annotations(&policy, "gold", Some("normal")));
    }

    #[test]
    fn audiences_belong_to_their_account() {
        let mapping = |name: &str, host_name: &str, audiences: &[&str]| ServiceAccountMapping {
            namespace: "ml".into(),
            name: name.into(),
            host_name: host_name.into(),
            audiences: audiences.iter().map(ToString::to_string).collect(),
        };
        let mut policy = SyncPolicy {
            service_accounts: vec![mapping("train", "s3-reader", &[])],
            ..SyncPolicy::default()
        };
        assert!(!annotations(&policy, "gold", None).contains_key(TOKEN_AUDIENCES));
        policy.service_accounts = vec![
            mapping(
                "train",
                "s3-reader",
                &["sts.amazonaws.com", "https://vault.example.com:8200"],
            ),
            mapping("serve", "other", &["sts.amazonaws.com"]),
        ];
        assert_eq!(
            annotations(&policy, "gold", None)[TOKEN_AUDIENCES],
            "s3-reader:sts.amazonaws.com,s3-reader:https://vault.example.com:8200,other:sts.amazonaws.com"
        );
    }

    #[test]
    fn annotations_and_labels_of_kinds_name_their_resource() {
        let mut policy = SyncPolicy::default();
        policy.pods.annotations = vec!["example.com/a".into(), "tools.example.com/*".into()];
        policy.services.annotations = vec!["metallb.io/address-pool".into()];
        policy.kinds = vec![SyncedKind {
            group: "example.com".into(),
            resource: "widgets".into(),
            annotations: vec!["a".into(), "example.com/*".into()],
            labels: vec!["tier".into()],
            ..SyncedKind::default()
        }];
        policy.pods.labels = vec!["app".into()];
        policy.services.labels = vec!["pool".into(), "example.com/*".into()];
        policy.ingress.labels = vec!["shard".into()];
        let with = annotations(&policy, "gold", None);
        assert_eq!(with[POD_ANNOTATIONS], "example.com/a,tools.example.com/*");
        assert_eq!(with[SERVICE_ANNOTATIONS], "metallb.io/address-pool");
        assert_eq!(
            with[KIND_ANNOTATIONS],
            "widgets.example.com:a,widgets.example.com:example.com/*"
        );
        assert_eq!(with[KIND_LABELS], "widgets.example.com:tier");
        assert_eq!(with[POD_LABELS], "app");
        assert_eq!(with[SERVICE_LABELS], "pool,example.com/*");
        assert_eq!(with[INGRESS_LABELS], "shard");
    }

    #[test]
    fn networks_that_are_closed_to_endpoints_are_listed() {
        let closed = ["10.96.0.0/16".to_owned(), "192.168.5.1/32".to_owned()];
        let (key, list) = of_endpoints(&closed).unwrap();
        assert_eq!(
            (key.as_str(), list.as_str()),
            (CLOSED_TO_ENDPOINTS, "10.96.0.0/16,192.168.5.1/32")
        );
        assert_eq!(of_endpoints(&[]), None);
    }

    #[test]
    fn variables_that_a_class_gives_are_listed() {
        let mut policy = SyncPolicy::default();
        policy.pods.device_variables = vec!["NVIDIA_GDS".into(), "NVIDIA_MOFED".into()];
        assert_eq!(
            annotations(&policy, "gold", None)[DEVICE_VARIABLES],
            "NVIDIA_GDS,NVIDIA_MOFED"
        );
    }

    #[test]
    fn images_are_limited_by_a_list_even_if_it_is_empty() {
        let mut policy = SyncPolicy::default();
        assert!(!annotations(&policy, "gold", None).contains_key(IMAGES));
        policy.pods.images = Some(Vec::new());
        assert_eq!(annotations(&policy, "gold", None)[IMAGES], "");
        policy.pods.images = Some(vec!["docker.io/library/*".into(), "localhost:5000/cuda".into()]);
        assert_eq!(
            annotations(&policy, "gold", None)[IMAGES],
            "docker.io/library/*,localhost:5000/cuda"
        );
    }

    #[test]
    fn capabilities_that_a_class_gives_are_listed() {
        let mut policy = SyncPolicy::default();
        assert!(!annotations(&policy, "gold", None).contains_key(CAPABILITIES));
        policy.pods.capabilities = vec!["IPC_LOCK".into()];
        assert_eq!(annotations(&policy, "gold", None)[CAPABILITIES], "IPC_LOCK");
    }

    #[test]
    fn restrictions_on_shared_nodes_are_listed_with_the_pools() {
        let mut policy = SyncPolicy::default();
        policy.shared_nodes.user_namespaces = true;
        assert_eq!(annotations(&policy, "gold", None), BTreeMap::new());
        policy.shared_nodes.pools = vec!["cpu".into(), "build".into()];
        let with = annotations(&policy, "gold", None);
        assert_eq!(with[SHARED_POOLS], "cpu,build");
        assert_eq!(with[NOT_ON_SHARED_NODES], "cached-images,host-users");
        (policy.shared_nodes.user_namespaces, policy.shared_nodes.cached_images) = (false, true);
        assert!(!annotations(&policy, "gold", None).contains_key(NOT_ON_SHARED_NODES));
    }

    #[test]
    fn priority_classes_are_those_of_the_class_or_the_default_of_the_host() {
        let mut policy = SyncPolicy::default();
        let default = annotations(&policy, "gold", Some("normal"));
        assert_eq!(default[PRIORITY_CLASSES], "normal");
        policy.pods.priority = Some(PriorityBand { lowest: 0, highest: 10 });
        let band = annotations(&policy, "gold", Some("normal"));
        assert_eq!(band[PRIORITY_CLASSES].split(',').count(), 24);
        assert!(band[PRIORITY_CLASSES].starts_with("berth-gold-0,berth-gold-0-never,"));
    }
}
