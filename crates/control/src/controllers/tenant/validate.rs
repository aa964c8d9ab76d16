//! Whether a spec can be carried out: pure, so that every refusal has a test.

use berth_api::{
    EndpointType, NodeMode, NodePool, Scheduling, TenantClusterSpec, conditions::ACCEPTED, conditions::Finding,
};
use std::collections::BTreeMap;

/// What a spec is held against.
#[derive(Clone, Debug, Default)]
pub struct Offer {
    /// Kubernetes versions that can be run, newest first.
    pub versions: Vec<String>,
    /// Pools by name, with the number of nodes that belong to each (whoever has them now).
    pub pools: BTreeMap<String, (NodePool, usize)>,
    /// Whether control planes are pods, which Services can lead to.
    pub uses_pods: bool,
}

/// Whether `spec` can be carried out with what is on offer. `scheduling`: who places pods, as the class and the spec say.
///
/// # Errors
/// The finding for the condition Accepted, whose message says what to change.
pub fn validate(spec: &TenantClusterSpec, scheduling: Scheduling, offer: &Offer) -> Result<(), Finding> {
    let TenantClusterSpec {
        version,
        nodes,
        // Resolved together with the class.
        class: _,
        scheduling: _,
        // As many as can be: always one where they are processes.
        control_plane: _,
        endpoint,
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
    let kind = endpoint.as_ref().map(|endpoint| endpoint.kind).unwrap_or_default();
    if !offer.uses_pods && kind != EndpointType::ClusterIp {
        return refuse(
            "EndpointNotOffered",
            format!(
                "control planes are processes of one machine here and are reached there; set spec.endpoint.type to {}",
                EndpointType::ClusterIp.as_str()
            ),
        );
    }
    let mut asked: BTreeMap<&str, usize> = BTreeMap::new();
    for group in nodes {
        let Some((pool, total)) = offer.pools.get(&group.pool) else {
            let names: Vec<String> = offer.pools.keys().cloned().collect();
            return refuse(
                "UnknownPool",
                format!(
                    "spec.nodes[{}]: there is no NodePool {:?}; use {}",
                    group.name,
                    group.pool,
                    any_of(&names)
                ),
            );
        };
        if !pool.spec.modes.contains(&group.mode) {
            return refuse(
                "ModeNotOffered",
                format!(
                    "spec.nodes[{}]: pool {} does not offer mode {:?}",
                    group.name, group.pool, group.mode
                ),
            );
        }
        if group.mode == NodeMode::Dynamic && scheduling == Scheduling::Tenant {
            return refuse(
                "DynamicNeedsHostScheduling",
                format!(
                    "spec.nodes[{}]: nodes follow pods that wait on the host, and with scheduling: tenant they wait in the \
                     tenant, where nobody sees them; set spec.scheduling to host, or the group's mode to private",
                    group.name
                ),
            );
        }
        let sum = asked.entry(&group.pool).or_default();
        *sum = sum.saturating_add(usize::try_from(group.floor()).unwrap_or(usize::MAX));
        // A pool to which an autoscaler adds nodes has those that it may have.
        let most = pool.spec.autoscaling.as_ref().map(|autoscaling| autoscaling.max_nodes);
        let most = most.map(|most| most.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX)));
        let total = most.unwrap_or_default().max(*total);
        if *sum > total {
            return refuse(
                "NotEnoughNodes",
                format!(
                    "spec.nodes[{}]: {sum} nodes of pool {} are asked for in all, and the pool has {total}; lower the \
                     count or add nodes that match the pool's nodeSelector",
                    group.name, group.pool
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
    use berth_api::{EndpointSpec, NodeGroup, NodePoolSpec};

    fn offer() -> Offer {
        let spec = NodePoolSpec::default();
        Offer {
            versions: vec!["v1.37.1".into(), "v1.36.4".into()],
            pools: BTreeMap::from([("h100".into(), (NodePool::new("h100", spec), 4))]),
            uses_pods: false,
        }
    }

    fn spec(version: &str, groups: &[(&str, &str, u32)]) -> TenantClusterSpec {
        let nodes = groups
            .iter()
            .map(|(name, pool, count)| NodeGroup::private(name, pool, *count));
        TenantClusterSpec {
            version: version.into(),
            nodes: nodes.collect(),
            ..TenantClusterSpec::default()
        }
    }

    fn refusal(spec: &TenantClusterSpec) -> (&'static str, String) {
        let finding = validate(spec, Scheduling::Host, &offer()).unwrap_err();
        assert_eq!(finding.status, Some(false), "{finding:?}");
        (finding.reason, finding.message)
    }

    #[test]
    fn what_is_on_offer_is_accepted() {
        assert!(
            validate(
                &spec("v1.37.1", &[("a", "h100", 3), ("b", "h100", 1)]),
                Scheduling::Host,
                &offer()
            )
            .is_ok()
        );
        assert!(validate(&spec("v1.36.4", &[]), Scheduling::Host, &offer()).is_ok());
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
        exposed.endpoint = Some(EndpointSpec {
            kind: EndpointType::NodePort,
            ..EndpointSpec::default()
        });
        assert_eq!(refusal(&exposed).0, "EndpointNotOffered");
        let mut dynamic = spec("v1.37.1", &[]);
        dynamic.nodes = vec![NodeGroup::dynamic("a", "h100", 0, 8)];
        let mut offer = offer();
        offer
            .pools
            .values_mut()
            .for_each(|(pool, _)| pool.spec.modes.push(NodeMode::Dynamic));
        assert!(validate(&dynamic, Scheduling::Host, &offer).is_ok());
        let finding = validate(&dynamic, Scheduling::Tenant, &offer).unwrap_err();
        assert_eq!(finding.reason, "DynamicNeedsHostScheduling");
        let huge = spec("v1.37.1", &[("a", "h100", u32::MAX), ("b", "h100", u32::MAX)]);
        assert_eq!(refusal(&huge).0, "NotEnoughNodes");
    }
}
