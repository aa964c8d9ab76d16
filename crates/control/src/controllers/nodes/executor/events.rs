//! Events on nodes and on pods whose node is reclaimed, logs and counters.

use super::Pass;
use crate::{
    controllers::{pods_on_node::PodsOnNode, recycling_events},
    metrics::RecyclingLabels,
};
use berth_node_lifecycle::{Assignment, AssignmentState, transitions::DrainStage};
use k8s_openapi::api::core::v1::Node;
use kube::{Resource, ResourceExt, runtime::events::EventType};

/// Publishes that a node has another assignment now.
pub(super) async fn publish_change(
    pass: &Pass<'_>,
    node: &Node,
    before: Option<&Assignment>,
    after: Option<&Assignment>,
) {
    let was = before.map(|assignment| assignment.state);
    let is = after.map(|assignment| assignment.state);
    if let Some(before) = before
        && was != is
    {
        observe_time_in_state(pass, before);
    }
    let why = after.map(|assignment| assignment.reason.clone()).unwrap_or_default();
    let (kind, reason) = match (was, is) {
        (Some(AssignmentState::Draining), Some(AssignmentState::Draining)) => {
            let stage = after.map_or(DrainStage::Warn, |after| drain_stage(pass, node, after));
            (EventType::Warning, recycling_events::drain_reason(stage))
        }
        // Only the number of nodes that it waits for, or a label of its GPUs, changed: no Event.
        (Some(was), Some(is)) if was == is && !is_reclaimed_earlier(before, after) => return,
        (_, Some(AssignmentState::Quarantined)) => {
            pass.metrics.quarantines.inc();
            tracing::warn!(node = node.name_any(), why, "node quarantined");
            (EventType::Warning, "Quarantined")
        }
        (_, Some(state)) => {
            let tenant = after.map(|assignment| assignment.uid.as_str()).unwrap_or_default();
            tracing::info!(
                node = node.name_any(),
                state = state.name(),
                tenant,
                why,
                "node changed its state"
            );
            (EventType::Normal, state.name())
        }
        (_, None) => (EventType::Normal, "Free"),
    };
    let message = if why.is_empty() {
        format!("node is {}", is.map_or("Free", AssignmentState::name))
    } else {
        why
    };
    publish(pass, node, kind, reason, &message).await;
    match after {
        Some(after) if was != is && after.state == AssignmentState::Cordoned => {
            let message = reclaim_message(pass, node, after);
            warn_pods(pass, node, &message).await;
        }
        Some(after) if was == is && after.state == AssignmentState::Draining => {
            let message = format!("node {} is reclaimed: {}", node.name_any(), after.reason);
            warn_pods(pass, node, &message).await;
        }
        _ => {}
    }
}

fn drain_stage(pass: &Pass<'_>, node: &Node, assignment: &Assignment) -> DrainStage {
    let timeouts = pass.pool_spec(node, assignment).timeouts;
    DrainStage::after(assignment.elapsed(pass.now), &timeouts)
}

fn observe_time_in_state(pass: &Pass<'_>, left: &Assignment) {
    let labels = RecyclingLabels {
        state: left.state.name(),
    };
    let seconds = u32::try_from(left.elapsed(pass.now)).unwrap_or(u32::MAX);
    let histogram = pass.metrics.recycling_seconds.get_or_create(&labels);
    histogram.observe(f64::from(seconds));
}

/// Publishes that an assignment was written again.
pub(super) async fn publish_drift_corrected(pass: &Pass<'_>, node: &Node, assignment: &Assignment) {
    let state = assignment.state.name();
    tracing::warn!(
        node = node.name_any(),
        state,
        "corrected the drift of a node's assignment"
    );
    let message =
        format!("the assignment was changed or removed on the node and has been restored: the node is {state}");
    publish(pass, node, EventType::Warning, "DriftCorrected", &message).await;
}

/// Publishes that a free node cannot be reserved.
pub(super) async fn publish_reservation_rejected(pass: &Pass<'_>, node: &Node, why: &str) {
    tracing::warn!(node = node.name_any(), why, "node cannot be reserved; others are");
    let message = format!("the node cannot be assigned for now: the API server rejected its assignment: {why}");
    publish(pass, node, EventType::Warning, "ReservationRejected", &message).await;
}

/// Publishes the risks that the validation of a node found.
pub(super) async fn publish_risks(pass: &Pass<'_>, node: &Node, risks: &str) {
    tracing::warn!(node = node.name_any(), risks, "the set-up of a node has risks");
    let message = format!("the set-up of the node has risks, and it can be assigned all the same: {risks}");
    publish(pass, node, EventType::Warning, "RisksFound", &message).await;
}

/// Whether all that changed is that a cordoned node is reclaimed earlier.
fn is_reclaimed_earlier(before: Option<&Assignment>, after: Option<&Assignment>) -> bool {
    before.zip(after).is_some_and(|(before, after)| {
        after.state == AssignmentState::Cordoned
            && before.since == after.since
            && before.cordoned_until != after.cordoned_until
    })
}

/// The message for the pods of a cordoned node: when they are evicted, and how long a budget can hold that up.
fn reclaim_message(pass: &Pass<'_>, node: &Node, assignment: &Assignment) -> String {
    let when = assignment
        .cordoned_until
        .map_or_else(String::new, |until| format!(" at {until}"));
    let limit = pass.pool_spec(node, assignment).timeouts.drain();
    format!(
        "node {} is reclaimed: the pod is evicted{when}, and deleted {limit} s later if a PodDisruptionBudget forbids that; \
         save what is needed",
        node.name_any()
    )
}

/// Publishes on the pods of a node that it is reclaimed.
async fn warn_pods(pass: &Pass<'_>, node: &Node, message: &str) {
    let Ok(pods) = PodsOnNode::list(&pass.client, &node.name_any()).await else {
        return;
    };
    recycling_events::warn_pods(pass.recorder, &pods.of_tenants, message).await;
}

async fn publish<K: Resource<DynamicType = ()>>(
    pass: &Pass<'_>,
    on: &K,
    type_: EventType,
    reason: &str,
    message: &str,
) {
    recycling_events::publish(pass.recorder, on, type_, reason, message).await;
}
