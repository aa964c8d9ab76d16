//! Whether a spec can be carried out: pure, so that every refusal has a test.

use berth_api::{
    ControlPlaneServiceType, HostNodePool, NodeMode, SchedulingMode, TenantClusterSpec, conditions::ACCEPTED,
    conditions::Finding,
};
use std::collections::BTreeMap;

/// What a spec is held against.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Kubernetes versions that can be run, newest first.
    pub versions: Vec<String>,
    /// Pools by name, with the number of nodes that belong to each (whoever has them now).
    pub pools: BTreeMap<String, (HostNodePool, usize)>,
    /// Whether control planes are pods, which Services can lead to.
    pub uses_pods: bool,
}

/// Whether `spec` can be carried out with what is on offer. `scheduling`: who places pods, as the class and the spec say.
///
/// # Errors
/// The finding for the condition Accepted, whose message says what to change.
pub fn validate(spec: &TenantClusterSpec, scheduling: SchedulingMode, offer: &Offer) -> Result<(), Finding> {
    let TenantClusterSpec {
        version,
        node_groups,
        // Resolved together with the class.
        class_name: _,
        scheduling_mode: _,
        // Of replicas there are as many as can be: always one where they are processes.
        control_plane: _,
        network: _,
    } = spec;
    if !offer.versions.contains(version) {
        return refuse(
            "UnsupportedVersion",
            format!(
                "Kubernetes {version} is not available here; set spec.version to {}",
                any_of(&offer.versions)
            ),
        );
    }
    let kind = spec.service().kind;
    if !offer.uses_pods && kind != ControlPlaneServiceType::ClusterIp {
        return refuse(
            "EndpointNotOffered",
            format!(
                "control planes are processes of one machine here and are reached there; set spec.controlPlane.service.type to {}",
                ControlPlaneServiceType::ClusterIp.as_str()
            ),
        );
    }
    let mut asked: BTreeMap<&str, usize> = BTreeMap::new();
    for group in node_groups {
        let Some((pool, total)) = offer.pools.get(&group.pool_name) else {
            let names: Vec<String> = offer.pools.keys().cloned().collect();
            return refuse(
                "UnknownPool",
                format!(
                    "spec.nodeGroups[{}]: there is no HostNodePool {:?}; use {}",
                    group.name,
                    group.pool_name,
                    any_of(&names)
                ),
            );
        };
        if !pool.spec.modes.contains(&group.mode) {
            return refuse(
                "ModeNotOffered",
                format!(
                    "spec.nodeGroups[{}]: pool {} does not offer mode {:?}",
                    group.name, group.pool_name, group.mode
                ),
            );
        }
        if group.mode == NodeMode::Dynamic && scheduling == SchedulingMode::Tenant {
            return refuse(
                "DynamicNeedsHostScheduling",
                format!(
                    "spec.nodeGroups[{}]: nodes follow pods that wait on the host, and with schedulingMode: Tenant they wait in the \
                     tenant, where nobody sees them; set spec.schedulingMode to Host, or the group's mode to Private",
                    group.name
                ),
            );
        }
        let sum = asked.entry(&group.pool_name).or_default();
        *sum = sum.saturating_add(usize::try_from(group.minimum()).unwrap_or(usize::MAX));
        // A pool to which an autoscaler adds nodes has those that it may have.
        let most = pool.spec.autoscaling.as_ref().map(|autoscaling| autoscaling.max_nodes);
        let most = most.map(|most| most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)));
        let total = most.unwrap_or_default().max(*total);
        if *sum > total {
            return refuse(
                "NotEnoughNodes",
                format!(
                    "spec.nodeGroups[{}]: {sum} nodes of pool {} are asked for in all, and the pool has {total}; lower the \
                     number of replicas or add nodes that match the pool's nodeSelector",
                    group.name, group.pool_name
                ),
            );
        }
    }
    Ok(())
}

fn refuse(reason: &'static str, message: String) -> Result<(), Finding> {
    Err(Finding::no(ACCEPTED, reason, message))
}

fn any_of(names: &[String]) -> String {
    match names {
        [] => "nothing: none is there yet".into(),
        [one] => one.clone(),
        several => format!("one of {}", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{ControlPlaneService, ControlPlaneSpec, HostNodePoolSpec, NodeGroup};

    fn offer() -> Offer {
        let spec = HostNodePoolSpec::default();
        Offer {
            versions: vec!["v1.37.1".into(), "v1.36.4".into()],
            pools: BTreeMap::from([("h100".into(), (HostNodePool::new("h100", spec), 4))]),
            uses_pods: false,
        }
    }

    fn spec(version: &str, groups: &[(&str, &str, u32)]) -> TenantClusterSpec {
        let nodes = groups
            .iter()
            .map(|(name, pool, count)| NodeGroup::private(name, pool, *count));
        TenantClusterSpec {
            version: version.into(),
            node_groups: nodes.collect(),
            ..TenantClusterSpec::default()
        }
    }

    fn refusal(spec: &TenantClusterSpec) -> (&'static str, String) {
        let finding = validate(spec, SchedulingMode::Host, &offer()).unwrap_err();
        assert_eq!(finding.status, Some(false), "{finding:?}");
        (finding.reason, finding.message)
    }

    #[test]
    fn what_is_on_offer_is_accepted() {
        assert!(
            validate(
                &spec("v1.37.1", &[("a", "h100", 3), ("b", "h100", 1)]),
                SchedulingMode::Host,
                &offer()
            )
            .is_ok()
        );
        assert!(validate(&spec("v1.36.4", &[]), SchedulingMode::Host, &offer()).is_ok());
    }

    #[test]
    fn refusals_say_what_to_do() {
        let (reason, message) = refusal(&spec("v1.30.0", &[]));
        assert_eq!(reason, "UnsupportedVersion");
        assert!(
            message.ends_with("set spec.version to one of v1.37.1, v1.36.4"),
            "{message}"
        );
        let (reason, message) = refusal(&spec("v1.37.1", &[("a", "b200", 1)]));
        assert_eq!(reason, "UnknownPool");
        assert!(message.contains("\"b200\"; use h100"), "{message}");
        let (reason, message) = refusal(&spec("v1.37.1", &[("a", "h100", 3), ("b", "h100", 2)]));
        assert_eq!(reason, "NotEnoughNodes");
        assert!(
            message.contains("5 nodes of pool h100") && message.contains("the pool has 4"),
            "{message}"
        );
        let mut exposed = spec("v1.37.1", &[]);
        exposed.control_plane = Some(ControlPlaneSpec {
            service: ControlPlaneService {
                kind: ControlPlaneServiceType::NodePort,
                ..ControlPlaneService::default()
            },
            ..ControlPlaneSpec::default()
        });
        assert_eq!(refusal(&exposed).0, "EndpointNotOffered");
        let mut dynamic = spec("v1.37.1", &[]);
        dynamic.node_groups = vec![NodeGroup::dynamic("a", "h100", 0, 8)];
        let mut offer = offer();
        offer
            .pools
            .values_mut()
            .for_each(|(pool, _)| pool.spec.modes.push(NodeMode::Dynamic));
        assert!(validate(&dynamic, SchedulingMode::Host, &offer).is_ok());
        let finding = validate(&dynamic, SchedulingMode::Tenant, &offer).unwrap_err();
        assert_eq!(finding.reason, "DynamicNeedsHostScheduling");
        let huge = spec("v1.37.1", &[("a", "h100", u32::MAX), ("b", "h100", u32::MAX)]);
        assert_eq!(refusal(&huge).0, "NotEnoughNodes");
    }
}
