//! What runs and is forbidden, by the rules of now.

use super::{
    super::{
        access::{self, CLASS_NOT_ALLOWED, NO_CLASS, Namespace, POOL_NOT_ALLOWED, WithoutClass},
        settings::{self, Settings},
    },
    Forbidden, Withdrawal,
};
use crate::{authentication, network};
use berth_api::{HostNodePool, NodeGroup, StorageOffer, TenantClass, Violation, sync_policy::allows};
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// Reason: a pool does not offer the mode of a node group that has nodes.
pub(in super::super) const MODE_NOT_OFFERED: &str = "ModeNotOffered";
/// Reasons: the class no longer offers what claims, or inline volumes of pods, are made with.
pub(super) const STORAGE_CLASS_NOT_ALLOWED: &str = "StorageClassNotAllowed";
pub(super) const ATTRIBUTES_CLASS_NOT_ALLOWED: &str = "VolumeAttributesClassNotAllowed";
pub(super) const INLINE_DRIVER_NOT_ALLOWED: &str = "InlineDriverNotAllowed";
/// Kinds of the objects that forbid something, as in [`Violation::object`].
const CLASS: &str = "TenantClass";
const POOL: &str = "HostNodePool";

/// What a tenant runs with.
pub(in super::super) struct Running<'a> {
    pub(in super::super) settings: &'a Settings,
    /// The node groups of the spec.
    pub(in super::super) groups: &'a [NodeGroup],
    /// Group and pool of each of its nodes.
    pub(in super::super) held: BTreeSet<(String, String)>,
}

/// The rules that apply to it now.
pub(in super::super) struct Rules<'a> {
    pub(in super::super) without_class: WithoutClass,
    pub(in super::super) namespace: Namespace<'a>,
    /// Its class, if that exists.
    pub(in super::super) class: Option<&'a TenantClass>,
    pub(in super::super) pools: &'a BTreeMap<String, (HostNodePool, usize)>,
}

/// Everything that runs and is not allowed. A class that was deleted, and a pool that was deleted, forbid nothing.
pub(in super::super) fn find_forbidden(running: &Running<'_>, rules: &Rules<'_>) -> Vec<Forbidden> {
    let mut found = Vec::new();
    match rules.class {
        Some(class) => find_forbidden_by_class(running, class, &rules.namespace, &mut found),
        None if running.settings.class.is_none() && rules.without_class == WithoutClass::Deny => {
            found.push(Forbidden {
                reason: NO_CLASS,
                object: object(CLASS, berth_api::DEFAULT_CLASS),
                message: access::describe_no_class(),
                withdrawal: Withdrawal::Nothing,
                grace: 0,
            });
        }
        None => {}
    }
    for (name, (pool, _)) in rules.pools {
        find_forbidden_by_pool(running, name, pool, &rules.namespace, &mut found);
    }
    found
}

fn find_forbidden_by_class(
    running: &Running<'_>,
    class: &TenantClass,
    namespace: &Namespace<'_>,
    found: &mut Vec<Forbidden>,
) {
    let (name, spec, settings) = (class.name_any(), &class.spec, running.settings);
    let mut add = |reason, message, withdrawal| {
        found.push(Forbidden {
            reason,
            object: object(CLASS, &name),
            message,
            withdrawal,
            grace: spec.enforcement_grace_period(),
        });
    };
    if spec.allowed_namespaces.allows(namespace.labels) == Some(false) {
        let message = access::describe_class(&name, namespace.name);
        add(CLASS_NOT_ALLOWED, message, Withdrawal::AllNodes);
    }
    // Settings without a class are Berth's own.
    if settings.class.is_none() {
        return;
    }
    if !spec.allows_version(&settings.version) {
        let message = format!(
            "TenantClass {name} no longer allows Kubernetes {}; set spec.version to one of {}. Berth never changes the version itself",
            settings.version,
            spec.versions.join(", ")
        );
        add("VersionNotAllowed", message, Withdrawal::Nothing);
    }
    let (_, errors) = network::restrict_to_class(&settings.network, &spec.network);
    if !errors.is_empty() {
        let message = format!(
            "TenantClass {name} no longer allows networks of spec.network: {}",
            errors.join("; ")
        );
        add("NetworkNotAllowed", message, Withdrawal::Networks);
    }
    if let Some(error) = settings::find_service_error(settings, &spec.control_plane.service) {
        add("EndpointNotAllowed", error.message, Withdrawal::Service);
    }
    if !settings.authentication.from_class
        && let Err(message) = authentication::check(&settings.authentication.rules, spec)
    {
        let message = format!("TenantClass {name} no longer allows the issuers of spec.authentication: {message}");
        add(settings::AUTHENTICATION_NOT_ALLOWED, message, Withdrawal::Issuers);
    }
    let policy = &spec.integrations.argo_cd;
    let registered = settings.argo_cd.as_ref();
    if let Some(message) = registered.and_then(|registered| policy.find_error(&name, namespace.name, registered)) {
        add(settings::ARGO_CD_NOT_ALLOWED, message, Withdrawal::ArgoCd);
    }
    let shared = settings.sync.shared_nodes.pools.iter();
    for pool in shared.filter(|pool| !allows(&spec.sync.shared_nodes.pools, pool)) {
        let message = format!(
            "TenantClass {name} no longer allows the shared pool {pool}; remove its group from spec.nodeGroups"
        );
        add("SharedPoolNotAllowed", message, Withdrawal::SharedPool(pool.clone()));
    }
}

/// What of the host's storage a tenant uses that its class does not offer. A tenant may use it although its spec is accepted, which names nothing
/// of it. `used` is the number of claims or pods that use each, `grace` the grace period of the class in seconds.
pub(in super::super) fn find_forbidden_storage(
    settings: &Settings,
    used: &BTreeMap<StorageOffer, usize>,
    grace: i64,
) -> Vec<Forbidden> {
    let policy = &settings.sync.storage;
    let unoffered = used.iter().filter(|(offer, _)| !offer.is_offered(policy));
    unoffered
        .map(|(offer, count)| {
            let (reason, uses, advice) = describe_use(offer, *count);
            Forbidden {
                reason,
                // Each has a grace period of its own.
                object: offer.to_string(),
                message: format!(
                    "TenantClass {} does not offer the {} {}, {uses} end when this is withdrawn. {advice}, or ask the platform team to list it \
                     in the class's {}",
                    settings.class_name(),
                    offer.kind(),
                    offer.name(),
                    offer.field()
                ),
                withdrawal: Withdrawal::Storage(offer.clone()),
                grace,
            }
        })
        .collect()
}

/// Whether something is forbidden that [`find_forbidden_storage`] finds.
pub(super) fn is_of_storage(violation: &Violation) -> bool {
    let reasons = [
        STORAGE_CLASS_NOT_ALLOWED,
        ATTRIBUTES_CLASS_NOT_ALLOWED,
        INLINE_DRIVER_NOT_ALLOWED,
    ];
    reasons.contains(&violation.reason.as_str())
}

/// Why a use of something that is not offered is reported, who uses it, and what to do.
fn describe_use(offer: &StorageOffer, count: usize) -> (&'static str, String, &'static str) {
    let of_claims = format!(
        "which {count} PersistentVolumeClaims of the tenant have: no new pod can mount them, and pods that run with them"
    );
    match offer {
        StorageOffer::StorageClass(_) => (
            STORAGE_CLASS_NOT_ALLOWED,
            of_claims,
            "The claims and their data stay. Move the data to claims of another class and delete these",
        ),
        StorageOffer::AttributesClass(_) => (
            ATTRIBUTES_CLASS_NOT_ALLOWED,
            of_claims,
            "The claims and their data stay. Give the claims another VolumeAttributesClass",
        ),
        StorageOffer::InlineDriver(_) => (
            INLINE_DRIVER_NOT_ALLOWED,
            format!(
                "which makes inline volumes for {count} pods of the tenant: no new pod can have them, and these pods"
            ),
            "Use PersistentVolumeClaims",
        ),
    }
}

fn find_forbidden_by_pool(
    running: &Running<'_>,
    name: &str,
    pool: &HostNodePool,
    namespace: &Namespace<'_>,
    found: &mut Vec<Forbidden>,
) {
    let mut add = |reason, message, withdrawal| {
        found.push(Forbidden {
            reason,
            object: object(POOL, name),
            message,
            withdrawal,
            grace: pool.spec.enforcement_grace_period(),
        });
    };
    let is_held = running.held.iter().any(|(_, pool)| pool == name);
    if pool_forbids(pool, namespace) {
        let message = || access::describe_pool(name, namespace.name);
        if is_held {
            add(POOL_NOT_ALLOWED, message(), Withdrawal::OwnNodes);
        } else if running
            .settings
            .sync
            .shared_nodes
            .pools
            .iter()
            .any(|shared| shared == name)
        {
            add(POOL_NOT_ALLOWED, message(), Withdrawal::SharedPool(name.into()));
        }
    }
    let is_forbidden = |group: &String| {
        let holds = (group.clone(), name.to_owned());
        running.held.contains(&holds)
    };
    let groups: Vec<String> = groups_without_mode(running.groups, name, pool)
        .filter(is_forbidden)
        .collect();
    if !groups.is_empty() {
        let message = format!(
            "HostNodePool {name} does not offer the mode of the node groups {}; change their mode, or remove them from spec.nodeGroups",
            groups.join(", ")
        );
        add(MODE_NOT_OFFERED, message, Withdrawal::OwnNodes);
    }
}

/// Whether a pool does not allow the namespace. A namespace that is not known yet is not forbidden.
pub(in super::super) fn pool_forbids(pool: &HostNodePool, namespace: &Namespace<'_>) -> bool {
    pool.spec.allowed_namespaces.allows(namespace.labels) == Some(false)
}

/// Names of the groups whose mode the pool does not offer. One whose mode is Shared by now may have nodes that it got in another mode.
pub(in super::super) fn groups_without_mode<'a>(
    groups: &'a [NodeGroup],
    name: &'a str,
    pool: &'a HostNodePool,
) -> impl Iterator<Item = String> + 'a {
    groups
        .iter()
        .filter(move |group| group.pool_name == name && !pool.spec.modes.contains(&group.mode))
        .map(|group| group.name.clone())
}

fn object(kind: &str, name: &str) -> String {
    format!("{kind}/{name}")
}

/// The name of the pool that forbids something, if it is one.
pub(in super::super) fn pool_of(violation: &Violation) -> Option<&str> {
    violation.object.strip_prefix(POOL)?.strip_prefix('/')
}
