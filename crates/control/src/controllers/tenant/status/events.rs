//! The Events of a status that changed: pure.

use super::{
    super::{
        argo_cd::REVOKING,
        compliance, node_groups,
        remaining::{NAMESPACE_BLOCKED, PODS_OVERDUE},
        restore,
        schedule::STOPS_SOON,
        unused_nodes,
    },
    conditions::SLEEPING,
};
use berth_api::{
    TenantClusterStatus,
    conditions::{AWAKE, COMPLIANT, EXPIRING, NODES_READY, READY},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::events::{Event, EventType};

/// The Events of a status that changed: one for each change of a node group, each pause after nodes that were not used, each violation that begins or is enforced, and each
/// condition with a new status or reason.
pub(super) fn events(before: &TenantClusterStatus, after: &TenantClusterStatus) -> Vec<Event> {
    let groups = node_groups::events(&before.node_groups, &after.node_groups)
        .into_iter()
        .map(|(reason, message)| event(EventType::Normal, reason, NODES_READY, &message));
    let conditions = changed_conditions(&before.conditions, &after.conditions).map(|condition| {
        // A tenant that expires is a warning, one that does not is none.
        let is_met = (condition.status == "True") != (condition.type_ == EXPIRING);
        // Sleep is no fault.
        let is_unmet = !is_met && condition.type_ != AWAKE && !is_transient(&condition.reason);
        let is_warning = is_unmet || [PODS_OVERDUE, NAMESPACE_BLOCKED, STOPS_SOON].contains(&condition.reason.as_str());
        let type_ = if is_warning {
            EventType::Warning
        } else {
            EventType::Normal
        };
        let message = format!("{}: {}", condition.type_, condition.message);
        event(type_, &condition.reason, &condition.type_, &message)
    });
    let violations = compliance::events(&before.violations, &after.violations)
        .into_iter()
        .map(|(reason, message)| event(EventType::Warning, &reason, COMPLIANT, &message));
    let unused = unused_nodes::messages(&before.unused_nodes, &after.unused_nodes)
        .into_iter()
        .map(|message| event(EventType::Warning, "NodesUnused", NODES_READY, &message));
    groups.chain(unused).chain(violations).chain(conditions).collect()
}

fn event(type_: EventType, reason: &str, action: &str, message: &str) -> Event {
    Event {
        type_,
        reason: reason.into(),
        note: Some(message.into()),
        action: action.into(),
        secondary: None,
    }
}

/// Conditions whose status or reason is new, without the summary, and without that of violations: each of them has an Event.
fn changed_conditions<'a>(
    before: &'a [Condition],
    after: &'a [Condition],
) -> impl Iterator<Item = &'a Condition> + use<'a> {
    after.iter().filter(move |condition| {
        condition.type_ != READY
            && (condition.type_ != COMPLIANT || condition.status == "True")
            && !before
                .iter()
                .any(|b| b.type_ == condition.type_ && b.status == condition.status && b.reason == condition.reason)
    })
}

/// Whether a reason says that something is merely under way.
fn is_transient(reason: &str) -> bool {
    let is_of_restore = restore::TRANSIENT.contains(&reason);
    is_of_restore
        || matches!(
            reason,
            "Starting"
                | "Assigning"
                | "Draining"
                | "Waiting"
                | "Pruning"
                | "Trusting"
                | "Issuing"
                | REVOKING
                | SLEEPING
                | "Distributing"
                | "Writing"
                | "Rewriting"
                | "Restoring"
        )
}
