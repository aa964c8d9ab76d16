//! Whether a spec can be carried out. What a tenant that runs is held to, whatever its spec says, is in [`running`].

mod running;

use super::{
    access::{self, Applied, Namespace, WithoutClass, reject},
    settings::{self, Settings},
    version,
};
use crate::{
    authentication,
    control_plane::GatewayConfig,
    controllers::tenant_class::class_of,
    network::{NetworkConfig, host_network},
    runtime::ControlPlaneRuntime,
    stores::{PoolsWithNodes, Stores},
};
use berth_api::{
    ControlPlaneServiceType, NodeMode, SchedulingMode, TenantClass, TenantCluster, TenantClusterSpec, TenantLimits,
    conditions::{ACCEPTED, ConditionUpdate},
};
use ipnet::IpNet;
use k8s_openapi::api::core::v1 as core_v1;
use kube::{ResourceExt, core::PartialObjectMeta, runtime::reflector::ObjectRef};
use std::{cell::OnceCell, collections::BTreeMap, sync::Arc};

/// Validates specs against the classes, pools and versions that there are now. Counting the nodes of the pools is shared by all.
pub struct Validator<'a> {
    stores: &'a Stores,
    network: &'a NetworkConfig,
    without_class: WithoutClass,
    available: AvailableCapacity,
    blocked: OnceCell<Vec<IpNet>>,
}

/// Whether the tenant's ServiceAccounts can have the issuer of its settings, and no issuer of people has their URL.
fn check_issuer(
    settings: &Settings,
    cluster: &TenantCluster,
    gateway: Option<&GatewayConfig>,
) -> Result<(), ConditionUpdate> {
    let url = gateway.map(|gateway| gateway.url(cluster));
    authentication::check_service_account_issuer(&settings.authentication.rules, url.as_deref())
        .map_err(|why| ConditionUpdate::mark_false(ACCEPTED, settings::AUTHENTICATION_NOT_ALLOWED, why))
}

impl<'a> Validator<'a> {
    /// For the host as it is now.
    pub fn new(
        stores: &'a Stores,
        runtime: &dyn ControlPlaneRuntime,
        network: &'a NetworkConfig,
        without_class: WithoutClass,
    ) -> Self {
        Self {
            available: AvailableCapacity {
                versions: runtime.versions(),
                pools: stores.pools_with_nodes(),
                uses_pods: runtime.uses_pods(),
            },
            stores,
            network,
            without_class,
            blocked: OnceCell::new(),
        }
    }

    /// Whether the spec can be carried out.
    pub fn accepts(&self, cluster: &TenantCluster) -> bool {
        self.resolve(cluster).is_ok()
    }

    /// The limits that a spec asks for. None: it cannot be carried out.
    pub fn limits(&self, cluster: &TenantCluster) -> Option<TenantLimits> {
        self.resolve(cluster).ok().map(|settings| settings.limits)
    }

    /// The settings that a spec asks for.
    ///
    /// # Errors
    /// The condition Accepted, which says why it cannot be carried out.
    pub(super) fn resolve(&self, cluster: &TenantCluster) -> Result<Settings, ConditionUpdate> {
        let blocked: &[IpNet] = if cluster.spec.network.egress.is_some() {
            // Computed only when needed: few specs have egress rules. Addresses of nodes are closed to tenants all the same; root on a node reports any,
            // and could have the specs of others rejected.
            self.blocked.get_or_init(|| {
                let nodes = self.stores.nodes.state();
                let nodes = nodes.iter().map(Arc::as_ref);
                let flags = self.network.blocked_by_flags();
                host_network::collect_with_addresses((nodes, Vec::new()), [], Vec::new(), &flags).blocked
            })
        } else {
            &[]
        };
        let (name, object) = self.namespace_of(cluster);
        let namespace = Namespace {
            name: &name,
            labels: object.as_ref().map(|object| object.labels()),
        };
        let class_name = class_of(cluster, |name| self.class(name).is_some());
        let class = class_name.as_deref().and_then(|name| self.class(name));
        let applied = match (&class_name, &class) {
            (None, _) => Applied::None,
            (Some(_), None) => Applied::Missing,
            (Some(_), Some(class)) => Applied::Class(class),
        };
        access::check_class(&applied, &namespace, self.without_class)?;
        let settings = settings::resolve(cluster, |name| self.class(name), &self.available.versions, blocked)?;
        check_issuer(&settings, cluster, self.network.gateway.as_ref())?;
        validate(&cluster.spec, (&settings.version, settings.scheduling), &self.available)?;
        version::check(cluster, &settings.version)?;
        access::check_pools(&cluster.spec.node_groups, &self.available.pools, &namespace)?;
        Ok(settings)
    }

    fn class(&self, name: &str) -> Option<Arc<TenantClass>> {
        self.stores.classes.get(&ObjectRef::new(name))
    }

    /// The namespace of a TenantCluster, and its object if the watch has seen it.
    fn namespace_of(&self, cluster: &TenantCluster) -> (String, Option<Arc<PartialObjectMeta<core_v1::Namespace>>>) {
        let name = cluster.namespace().unwrap_or_default();
        let object = self.stores.team_namespaces.get(&ObjectRef::new(&name));
        (name, object)
    }
}

/// What a spec is validated against.
#[derive(Clone, Debug, Default)]
pub struct AvailableCapacity {
    /// Kubernetes versions that can be run, newest first.
    pub versions: Vec<String>,
    /// Pools by name, with the number of nodes that belong to each, assigned or not.
    pub pools: Arc<PoolsWithNodes>,
    /// Whether control planes are pods, which Services can select.
    pub uses_pods: bool,
}

/// Whether `spec` can be carried out with what is available. `version` and `scheduling` are what the spec, the class or what runs sets.
///
/// # Errors
/// The condition Accepted, whose message says what to change.
pub fn validate(
    spec: &TenantClusterSpec,
    (version, scheduling): (&str, SchedulingMode),
    available: &AvailableCapacity,
) -> Result<(), ConditionUpdate> {
    let TenantClusterSpec {
        node_groups,
        // Resolved together with the class.
        version: _,
        class_name: _,
        scheduling_mode: _,
        // Any number of replicas is valid: control planes that are processes always have one.
        control_plane: _,
        network: _,
        integrations: _,
        // Every duration is valid: the class limits it.
        ttl: _,
        expire_after_idle: _,
        sleep: _,
        // Resolved together with the class.
        authentication: _,
        // The schema checks everything.
        access: _,
    } = spec;
    if !available.versions.iter().any(|offered| offered == version) {
        return reject(
            settings::UNSUPPORTED_VERSION,
            format!(
                "Kubernetes {version} is not available here; {}",
                suggest("set spec.version to", "version", &available.versions)
            ),
        );
    }
    let kind = spec.service().kind;
    if !available.uses_pods && kind != ControlPlaneServiceType::ClusterIp {
        return reject(
            "EndpointNotOffered",
            format!(
                "control planes are processes of one machine here and are reached there; set spec.controlPlane.service.type to {}",
                ControlPlaneServiceType::ClusterIp.as_str()
            ),
        );
    }
    let mut requested: BTreeMap<&str, usize> = BTreeMap::new();
    for group in node_groups {
        let Some((pool, total)) = available.pools.get(&group.pool_name) else {
            let names: Vec<String> = available.pools.keys().cloned().collect();
            return reject(
                "UnknownPool",
                format!(
                    "spec.nodeGroups[{}]: there is no HostNodePool {:?}; {}",
                    group.name,
                    group.pool_name,
                    suggest("use", "pool", &names)
                ),
            );
        };
        if !pool.spec.modes.contains(&group.mode) {
            let modes: Vec<String> = pool.spec.modes.iter().map(|mode| format!("{mode:?}")).collect();
            return reject(
                "ModeNotOffered",
                format!(
                    "spec.nodeGroups[{}]: pool {} does not offer mode {:?}; {}",
                    group.name,
                    group.pool_name,
                    group.mode,
                    suggest("set the mode to", "mode", &modes)
                ),
            );
        }
        if group.mode == NodeMode::Dynamic && scheduling == SchedulingMode::Tenant {
            return reject(
                "DynamicNeedsHostScheduling",
                format!(
                    "spec.nodeGroups[{}]: nodes follow pods that wait on the host, and with schedulingMode: Tenant they wait in the \
                     tenant, where Berth does not see them; set spec.schedulingMode to Host, or the group's mode to Private",
                    group.name
                ),
            );
        }
        let sum = requested.entry(&group.pool_name).or_default();
        *sum = sum.saturating_add(usize::try_from(group.minimum()).unwrap_or(usize::MAX));
        // A pool with autoscaling counts with the nodes that it may have.
        let most = pool.spec.autoscaling.as_ref().map(|autoscaling| autoscaling.max_nodes);
        let most = most.map(|most| most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)));
        let total = most.unwrap_or_default().max(*total);
        if *sum > total {
            return reject(
                "NotEnoughNodes",
                format!(
                    "spec.nodeGroups[{}]: the groups request {sum} nodes of pool {}, which has {total}; lower the \
                     number of replicas or add nodes that match the pool's nodeSelector",
                    group.name, group.pool_name
                ),
            );
        }
    }
    Ok(())
}

fn suggest(action: &str, noun: &str, names: &[String]) -> String {
    match names {
        [] => format!("no {noun} is available yet"),
        [one] => format!("{action} {one}"),
        several => format!("{action} one of {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{ControlPlaneService, ControlPlaneSpec, HostNodePool, HostNodePoolSpec, NodeGroup};

    fn available() -> AvailableCapacity {
        let spec = HostNodePoolSpec::default();
        AvailableCapacity {
            versions: vec!["v1.37.1".into(), "v1.36.4".into()],
            pools: Arc::new([("h100".into(), (HostNodePool::new("h100", spec), 4))].into()),
            uses_pods: false,
        }
    }

    fn spec(groups: &[(&str, &str, u32)]) -> TenantClusterSpec {
        let nodes = groups
            .iter()
            .map(|(name, pool, count)| NodeGroup::private(name, pool, *count));
        TenantClusterSpec {
            node_groups: nodes.collect(),
            ..TenantClusterSpec::default()
        }
    }

    /// A version that is available, and the host schedules pods.
    const PLAIN: (&str, SchedulingMode) = ("v1.37.1", SchedulingMode::Host);

    fn rejection(spec: &TenantClusterSpec) -> (&'static str, String) {
        rejection_of(spec, PLAIN)
    }

    fn rejection_of(spec: &TenantClusterSpec, resolved: (&str, SchedulingMode)) -> (&'static str, String) {
        let rejection = validate(spec, resolved, &available()).unwrap_err();
        assert_eq!(rejection.status, Some(false), "{rejection:?}");
        (rejection.reason, rejection.message)
    }

    #[test]
    fn a_spec_within_the_available_capacity_is_accepted() {
        let groups = spec(&[("a", "h100", 3), ("b", "h100", 1)]);
        assert!(validate(&groups, PLAIN, &available()).is_ok());
        let older = ("v1.36.4", SchedulingMode::Host);
        assert!(validate(&spec(&[]), older, &available()).is_ok());
    }

    #[test]
    fn rejections_say_what_to_do() {
        let (reason, message) = rejection_of(&spec(&[]), ("v1.30.0", SchedulingMode::Host));
        assert_eq!(reason, "UnsupportedVersion");
        assert!(
            message.ends_with("set spec.version to one of v1.37.1, v1.36.4"),
            "{message}"
        );
        let (reason, message) = rejection(&spec(&[("a", "b200", 1)]));
        assert_eq!(reason, "UnknownPool");
        assert!(message.contains("\"b200\"; use h100"), "{message}");
        let (reason, message) = rejection(&spec(&[("a", "h100", 3), ("b", "h100", 2)]));
        assert_eq!(reason, "NotEnoughNodes");
        assert!(message.contains("5 nodes of pool h100, which has 4"), "{message}");
        let mut exposed = spec(&[]);
        exposed.control_plane = Some(ControlPlaneSpec {
            service: ControlPlaneService {
                kind: ControlPlaneServiceType::NodePort,
                ..ControlPlaneService::default()
            },
            ..ControlPlaneSpec::default()
        });
        assert_eq!(rejection(&exposed).0, "EndpointNotOffered");
        let mut dynamic = spec(&[]);
        dynamic.node_groups = vec![NodeGroup::dynamic("a", "h100", 0, 8)];
        let (reason, message) = rejection(&dynamic);
        assert_eq!(reason, "ModeNotOffered");
        assert!(message.ends_with("Dynamic; set the mode to Private"), "{message}");
        let mut available = available();
        for (pool, _) in Arc::make_mut(&mut available.pools).values_mut() {
            pool.spec.modes.push(NodeMode::Dynamic);
        }
        assert!(validate(&dynamic, PLAIN, &available).is_ok());
        let in_tenant = ("v1.37.1", SchedulingMode::Tenant);
        let unscheduled = validate(&dynamic, in_tenant, &available).unwrap_err();
        assert_eq!(unscheduled.reason, "DynamicNeedsHostScheduling");
        let huge = spec(&[("a", "h100", u32::MAX), ("b", "h100", u32::MAX)]);
        assert_eq!(rejection(&huge).0, "NotEnoughNodes");
    }
}
