//! Which classes and pools a TenantCluster may have in its namespace: pure. Two admission policies of the host check the same when a
//! name is added; namespaces, classes and pools may change afterwards.

use berth_api::{
    DEFAULT_CLASS, HostNodePool, NodeGroup, TenantClass, TenantCluster,
    conditions::{ACCEPTED, ConditionUpdate},
};
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Reason: no class applies, and the platform gives nothing without one.
pub(super) const NO_CLASS: &str = "NoClass";
/// Reason: the class does not allow the namespace.
pub(super) const CLASS_NOT_ALLOWED: &str = "ClassNotAllowed";
/// Reason: a pool does not allow the namespace.
pub(super) const POOL_NOT_ALLOWED: &str = "PoolNotAllowed";

/// What a TenantCluster gets that names no class while there is no class `default`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WithoutClass {
    /// Nothing: it is not accepted.
    #[default]
    Deny,
    /// Berth's built-in defaults: an empty class.
    BuiltInDefaults,
}

/// The namespace of a TenantCluster.
pub(super) struct Namespace<'a> {
    pub(super) name: &'a str,
    /// Its labels, if the watch has seen it.
    pub(super) labels: Option<&'a BTreeMap<String, String>>,
}

/// The class that applies to a spec.
pub(super) enum Applied<'a> {
    /// None: the spec names none, and there is no class `default`.
    None,
    /// One that does not exist.
    Missing,
    /// This one.
    Class(&'a TenantClass),
}

/// Whether the class may apply in the namespace. A class that does not exist is not decided here.
///
/// # Errors
/// The condition Accepted.
pub(super) fn check_class(
    applied: &Applied<'_>,
    namespace: &Namespace<'_>,
    without_class: WithoutClass,
) -> Result<(), ConditionUpdate> {
    let class = match applied {
        Applied::None if without_class == WithoutClass::Deny => return reject(NO_CLASS, describe_no_class()),
        Applied::None | Applied::Missing => return Ok(()),
        Applied::Class(class) => class,
    };
    match class.spec.allowed_namespaces.allows(namespace.labels) {
        Some(true) => Ok(()),
        Some(false) => reject(CLASS_NOT_ALLOWED, describe_class(&class.name_any(), namespace.name)),
        None => reject_unknown_namespace(namespace.name),
    }
}

/// Whether all groups may have their pools in the namespace. Pools that do not exist are not decided here.
///
/// # Errors
/// The condition Accepted.
pub(super) fn check_pools(
    groups: &[NodeGroup],
    pools: &BTreeMap<String, (HostNodePool, usize)>,
    namespace: &Namespace<'_>,
) -> Result<(), ConditionUpdate> {
    for group in groups {
        let Some((pool, _)) = pools.get(&group.pool_name) else {
            continue;
        };
        match pool.spec.allowed_namespaces.allows(namespace.labels) {
            Some(true) => {}
            Some(false) => return reject(POOL_NOT_ALLOWED, describe_pool(&group.pool_name, namespace.name)),
            None => return reject_unknown_namespace(namespace.name),
        }
    }
    Ok(())
}

/// Name of the class whose rules a running tenant has; `running` is the class that it was accepted with last. Without one it is
/// `default` as soon as that exists, if the spec names none.
pub(in crate::controllers) fn running_class(
    cluster: &TenantCluster,
    running: Option<&str>,
    exists: impl Fn(&str) -> bool,
) -> Option<String> {
    let default = || cluster.spec.class_name.is_none() && exists(DEFAULT_CLASS);
    running
        .or_else(|| default().then_some(DEFAULT_CLASS))
        .map(ToOwned::to_owned)
}

pub(super) fn describe_no_class() -> String {
    format!(
        "spec.className is empty and there is no TenantClass {DEFAULT_CLASS}; set spec.className to a class, or ask the platform team to \
         create the class {DEFAULT_CLASS}"
    )
}

pub(super) fn describe_class(class: &str, namespace: &str) -> String {
    format!(
        "TenantClass {class} does not allow namespace {namespace}; set spec.className to another class, or ask the platform team to \
         allow the namespace in the class's spec.allowedNamespaces"
    )
}

pub(super) fn describe_pool(pool: &str, namespace: &str) -> String {
    format!(
        "HostNodePool {pool} does not allow namespace {namespace}; remove its groups from spec.nodeGroups, or ask the platform team \
         to allow the namespace in the pool's spec.allowedNamespaces"
    )
}

fn reject_unknown_namespace(namespace: &str) -> Result<(), ConditionUpdate> {
    reject(
        "NamespaceUnknown",
        format!("the labels of namespace {namespace} are not known yet; Berth tries again when they are"),
    )
}

/// The condition Accepted that rejects the spec, as an error.
pub(super) fn reject(reason: &'static str, message: String) -> Result<(), ConditionUpdate> {
    Err(ConditionUpdate::mark_false(ACCEPTED, reason, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{HostNodePoolSpec, TenantClassSpec, TenantClusterSpec};
    use serde_json::json;

    fn labels(team: &str) -> BTreeMap<String, String> {
        [("team".to_owned(), team.to_owned())].into()
    }

    fn for_vision() -> berth_api::AllowedNamespaces {
        let rule = json!({"from": "Selector", "selector": {"matchLabels": {"team": "vision"}}});
        serde_json::from_value(rule).unwrap()
    }

    fn reason(result: Result<(), ConditionUpdate>) -> &'static str {
        result.map_or_else(|rejection| rejection.reason, |()| "accepted")
    }

    #[test]
    fn a_class_decides_by_the_labels_of_the_namespace() {
        let spec = TenantClassSpec {
            allowed_namespaces: for_vision(),
            ..TenantClassSpec::default()
        };
        let class = TenantClass::new("gold", spec);
        let (vision, speech) = (labels("vision"), labels("speech"));
        for (labels, expected) in [
            (Some(&vision), "accepted"),
            (Some(&speech), CLASS_NOT_ALLOWED),
            (None, "NamespaceUnknown"),
        ] {
            let namespace = Namespace { name: "ns", labels };
            let result = check_class(&Applied::Class(&class), &namespace, WithoutClass::Deny);
            assert_eq!(reason(result), expected);
        }
    }

    #[test]
    fn without_a_class_the_platform_decides() {
        let namespace = Namespace {
            name: "ns",
            labels: None,
        };
        let check = |applied, without| reason(check_class(&applied, &namespace, without));
        assert_eq!(check(Applied::None, WithoutClass::Deny), NO_CLASS);
        assert_eq!(check(Applied::None, WithoutClass::BuiltInDefaults), "accepted");
        assert_eq!(
            check(Applied::Missing, WithoutClass::Deny),
            "accepted",
            "reported elsewhere"
        );
    }

    #[test]
    fn every_pool_must_allow_the_namespace() {
        let pool = |rule| {
            let spec = HostNodePoolSpec {
                allowed_namespaces: rule,
                ..HostNodePoolSpec::default()
            };
            (HostNodePool::new("p", spec), 1)
        };
        let pools = BTreeMap::from([
            ("open".to_owned(), pool(berth_api::AllowedNamespaces::default())),
            ("vision".to_owned(), pool(for_vision())),
        ]);
        let speech = labels("speech");
        let namespace = Namespace {
            name: "ns",
            labels: Some(&speech),
        };
        let groups =
            |pools: &[&str]| -> Vec<NodeGroup> { pools.iter().map(|pool| NodeGroup::private(pool, pool, 1)).collect() };
        let check = |names: &[&str]| reason(check_pools(&groups(names), &pools, &namespace));
        assert_eq!(check(&["open", "gone"]), "accepted");
        assert_eq!(check(&["open", "vision"]), POOL_NOT_ALLOWED);
    }

    #[test]
    fn a_running_tenant_has_the_class_that_it_was_accepted_with() {
        let cluster = |class: Option<&str>| {
            let spec = TenantClusterSpec {
                class_name: class.map(Into::into),
                ..TenantClusterSpec::default()
            };
            TenantCluster::new("a", spec)
        };
        let name = |class, running, default| running_class(&cluster(class), running, |_| default);
        assert_eq!(name(Some("silver"), Some("gold"), true).as_deref(), Some("gold"));
        assert_eq!(name(None, None, true).as_deref(), Some("default"));
        assert_eq!(name(Some("silver"), None, true), None, "the edit was not accepted");
        assert_eq!(name(None, None, false), None);
    }
}
