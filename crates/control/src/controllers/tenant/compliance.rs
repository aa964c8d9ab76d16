//! What runs for a tenant and is no longer allowed, and when it is withdrawn: pure.
//!
//! The condition Accepted is about the spec; [`COMPLIANT`] is about what runs. A class or a pool may forbid later what a tenant was
//! accepted with. Each such [`Forbidden`] thing is reported at once. When the grace period of the class or the pool is over it is
//! withdrawn. Since when it is forbidden is kept in the status of the TenantCluster ([`Violation`]).

use super::{
    access::{self, CLASS_NOT_ALLOWED, NO_CLASS, Namespace, POOL_NOT_ALLOWED, WithoutClass},
    settings::{self, Settings},
};
use crate::{
    authentication::{self, ResolvedAuthentication},
    network,
};
use berth_api::{
    ControlPlaneServiceType, HostNodePool, NodeGroup, NodeMode, StorageOffer, TenantClass, TenantClassSpec, Violation,
    conditions::{COMPLIANT, ConditionUpdate},
    sync_policy::allows,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

/// Reason: a pool no longer offers the mode of a node group.
pub(super) const MODE_NOT_OFFERED: &str = "ModeNotOffered";
/// Reasons: the class no longer offers what claims, or inline volumes of pods, are made with.
const STORAGE_CLASS_NOT_ALLOWED: &str = "StorageClassNotAllowed";
const ATTRIBUTES_CLASS_NOT_ALLOWED: &str = "VolumeAttributesClassNotAllowed";
const INLINE_DRIVER_NOT_ALLOWED: &str = "InlineDriverNotAllowed";
/// Reason of the Event when a grace period is over.
const ENFORCED: &str = "ViolationEnforced";
/// Kinds of the objects that forbid something, as in [`Violation::object`].
const CLASS: &str = "TenantClass";
const POOL: &str = "HostNodePool";

/// What is withdrawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Withdrawal {
    /// Nothing: Berth only reports it.
    Nothing,
    /// All nodes, shared ones too.
    AllNodes,
    /// The nodes of some groups. The planner releases them: see [`super::Validator::withdrawn_nodes`].
    OwnNodes,
    /// The nodes of a shared pool.
    SharedPool(String),
    /// Networks outside the tenant.
    Networks,
    /// Type and annotations of the Service of the API server.
    Service,
    /// Issuers whose tokens the API server accepts.
    Issuers,
    /// The registration in Argo CD.
    ArgoCd,
    /// Pods that use something of the host's storage. Claims and their volumes stay.
    Storage(StorageOffer),
}

/// Something that runs and that a class or a pool does not allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Forbidden {
    reason: &'static str,
    /// The class or the pool, or what of storage the class no longer offers.
    object: String,
    message: String,
    withdrawal: Withdrawal,
    /// Seconds until it is withdrawn.
    grace: i64,
}

/// What a tenant runs with.
pub(super) struct Running<'a> {
    pub(super) settings: &'a Settings,
    /// The node groups of the spec.
    pub(super) groups: &'a [NodeGroup],
    /// Group and pool of each of its nodes.
    pub(super) held: BTreeSet<(String, String)>,
}

/// The rules that apply to it now.
pub(super) struct Rules<'a> {
    pub(super) without_class: WithoutClass,
    pub(super) namespace: Namespace<'a>,
    /// Its class, if that exists.
    pub(super) class: Option<&'a TenantClass>,
    pub(super) pools: &'a BTreeMap<String, (HostNodePool, usize)>,
}

/// Everything that runs and is not allowed. A class that was deleted, and a pool that was deleted, forbid nothing.
pub(super) fn find_forbidden(running: &Running<'_>, rules: &Rules<'_>) -> Vec<Forbidden> {
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
pub(super) fn find_forbidden_storage(
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
            "HostNodePool {name} no longer offers the mode of the node groups {}; change their mode, or remove them from spec.nodeGroups",
            groups.join(", ")
        );
        add(MODE_NOT_OFFERED, message, Withdrawal::OwnNodes);
    }
}

/// Whether a pool does not allow the namespace. A namespace that is not known yet is not forbidden.
pub(super) fn pool_forbids(pool: &HostNodePool, namespace: &Namespace<'_>) -> bool {
    pool.spec.allowed_namespaces.allows(namespace.labels) == Some(false)
}

/// Names of the groups with nodes of their own whose mode the pool does not offer.
pub(super) fn groups_without_mode<'a>(
    groups: &'a [NodeGroup],
    name: &'a str,
    pool: &'a HostNodePool,
) -> impl Iterator<Item = String> + 'a {
    groups
        .iter()
        .filter(move |group| {
            group.pool_name == name && group.mode != NodeMode::Shared && !pool.spec.modes.contains(&group.mode)
        })
        .map(|group| group.name.clone())
}

fn object(kind: &str, name: &str) -> String {
    format!("{kind}/{name}")
}

/// The name of the pool that forbids something, if it is one.
pub(super) fn pool_of(violation: &Violation) -> Option<&str> {
    violation.object.strip_prefix(POOL)?.strip_prefix('/')
}

/// What is forbidden now, and what of it is withdrawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Assessment {
    pub(super) violations: Vec<Violation>,
    pub(super) withdrawals: Vec<Withdrawal>,
}

/// Since when each thing is forbidden, and whether its grace period is over. Something that the status does not have yet is not
/// withdrawn: it must be reported first.
pub(super) fn assess(found: Vec<Forbidden>, recorded: &[Violation], now: Timestamp) -> Assessment {
    let mut assessment = Assessment::default();
    for forbidden in found {
        let Forbidden {
            reason,
            object,
            message,
            withdrawal,
            grace,
        } = forbidden;
        let earlier = recorded
            .iter()
            .find(|earlier| earlier.reason == reason && earlier.object == object);
        // Whole seconds, as they are stored.
        let since = earlier.map_or_else(
            || Timestamp::from_second(now.as_second()).unwrap_or(now),
            |earlier| earlier.since.0,
        );
        let deadline = (withdrawal != Withdrawal::Nothing).then(|| deadline_after(since, grace));
        let enforced = earlier.is_some() && deadline.is_some_and(|deadline| deadline <= now);
        if enforced {
            assessment.withdrawals.push(withdrawal);
        }
        assessment.violations.push(Violation {
            reason: reason.into(),
            object,
            message,
            since: Time(since),
            deadline: deadline.map(Time),
            enforced,
        });
    }
    assessment
}

/// The end of a grace period of so many seconds.
pub(super) fn deadline_after(since: Timestamp, grace: i64) -> Timestamp {
    since.saturating_add(SignedDuration::from_secs(grace)).unwrap_or(since)
}

/// Withdraws from the settings what is no longer allowed and whose grace period is over. `rules` are those of the class.
pub(super) fn withdraw(settings: &mut Settings, rules: Option<&TenantClassSpec>, withdrawals: &[Withdrawal]) {
    for withdrawal in withdrawals {
        match withdrawal {
            Withdrawal::AllNodes => settings.sync.shared_nodes.pools.clear(),
            Withdrawal::SharedPool(pool) => settings.sync.shared_nodes.pools.retain(|shared| shared != pool),
            Withdrawal::Networks => {
                if let Some(rules) = rules {
                    settings.network = network::restrict_to_class(&settings.network, &rules.network).0;
                }
            }
            Withdrawal::Service => {
                if let Some(rules) = rules {
                    withdraw_service(settings, rules);
                }
            }
            Withdrawal::Issuers => {
                if let Some(rules) = rules {
                    settings.authentication = ResolvedAuthentication::of_class(&rules.authentication);
                }
            }
            Withdrawal::ArgoCd => settings.argo_cd = None,
            Withdrawal::Storage(offer) => {
                settings.withdrawn_storage.insert(offer.clone());
            }
            Withdrawal::Nothing | Withdrawal::OwnNodes => {}
        }
    }
}

/// Gives the API server a Service that the class allows: of type ClusterIP if possible.
fn withdraw_service(settings: &mut Settings, rules: &TenantClassSpec) {
    let rules = &rules.control_plane.service;
    let endpoint = &mut settings.endpoint;
    if !rules.types.is_empty() && !rules.types.contains(&endpoint.kind) {
        let first = rules.types.iter().copied().min();
        endpoint.kind = first.unwrap_or(ControlPlaneServiceType::ClusterIp);
    }
    let may_have_annotations = endpoint.kind == ControlPlaneServiceType::LoadBalancer;
    endpoint
        .annotations
        .retain(|key, _| may_have_annotations && rules.annotations.contains(key));
}

/// The condition Compliant of a tenant that runs.
pub(super) fn condition(violations: &[Violation]) -> ConditionUpdate {
    if violations.is_empty() {
        return ConditionUpdate::mark_true(
            COMPLIANT,
            "Allowed",
            "the class and the pools allow everything that the tenant runs with",
        );
    }
    let reason = if violations.iter().any(|violation| violation.enforced) {
        "Enforced"
    } else if violations.iter().any(|violation| violation.deadline.is_some()) {
        "EnforcementPending"
    } else {
        "NotEnforced"
    };
    let messages: Vec<String> = violations.iter().map(describe).collect();
    ConditionUpdate::mark_false(COMPLIANT, reason, messages.join(". "))
}

fn describe(violation: &Violation) -> String {
    let message = &violation.message;
    match &violation.deadline {
        None => message.clone(),
        Some(_) if violation.enforced => format!("{message}. The grace period is over: Berth withdraws it"),
        Some(deadline) => format!("{message}. Berth withdraws it at {}", deadline.0),
    }
}

/// A violation that began, and one whose grace period is over, as reason and message of an Event each.
pub(super) fn events(before: &[Violation], after: &[Violation]) -> Vec<(String, String)> {
    let mut events = Vec::new();
    for violation in after {
        let earlier = before
            .iter()
            .find(|earlier| earlier.reason == violation.reason && earlier.object == violation.object);
        match earlier {
            None => events.push((violation.reason.clone(), describe(violation))),
            Some(earlier) if violation.enforced && !earlier.enforced => {
                events.push((ENFORCED.into(), describe(violation)));
            }
            Some(_) => {}
        }
    }
    events
}

/// Time until the next grace period is over.
pub(super) fn until_next_deadline(violations: &[Violation], now: Timestamp) -> Option<Duration> {
    let pending = violations.iter().filter(|violation| !violation.enforced);
    let next = pending.filter_map(|violation| violation.deadline.as_ref()).min()?;
    let seconds = u64::try_from(next.0.as_second() - now.as_second()).unwrap_or_default();
    Some(Duration::from_secs(seconds.max(1)))
}

#[cfg(test)]
#[path = "compliance_tests.rs"]
mod tests;
