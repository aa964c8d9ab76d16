//! Tells people of what happens to nodes: Events on the Node, and on pods whose node is taken back; counters.

use super::Pass;
use crate::{
    metrics::HandoverLabels,
    nodes::{
        executor::pods::PodsOnNode,
        record::{NodeRecord, State},
    },
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Resource, ResourceExt,
    runtime::events::{Event, EventType},
};

/// Reason of the Event on pods whose node is taken back. There is still time for a checkpoint.
const NODE_RECLAIMED: &str = "NodeReclaimed";

/// Tells of a node that has another record now.
pub(super) async fn changed(pass: &Pass<'_>, node: &Node, before: Option<&NodeRecord>, after: Option<&NodeRecord>) {
    let metrics = &pass.context.metrics;
    let was = before.map(|record| record.state);
    let is = after.map(|record| record.state);
    if let Some(before) = before
        && was != is
    {
        let labels = HandoverLabels {
            state: before.state.name(),
        };
        let seconds = u32::try_from(before.elapsed(pass.now)).unwrap_or(u32::MAX);
        metrics
            .handover_seconds
            .get_or_create(&labels)
            .observe(f64::from(seconds));
    }
    let words = after.map(|record| record.reason.clone()).unwrap_or_default();
    let (kind, reason) = match (was, is) {
        (Some(State::Draining), Some(State::Draining)) => (EventType::Warning, "DrainBlocked"),
        // Fellows that it waits for, labels of its GPUs: no news.
        (Some(was), Some(is)) if was == is && !is_sooner(before, after) => return,
        (_, Some(State::Quarantined)) => {
            metrics.quarantines.inc();
            tracing::warn!(node = node.name_any(), why = words, "node quarantined");
            (EventType::Warning, "Quarantined")
        }
        (_, Some(state)) => {
            let tenant = after.map(|record| record.uid.as_str()).unwrap_or_default();
            tracing::info!(
                node = node.name_any(),
                state = state.name(),
                tenant,
                why = words,
                "node goes on"
            );
            (EventType::Normal, state.name())
        }
        (_, None) => (EventType::Normal, "Free"),
    };
    let note = if words.is_empty() {
        format!("node is {}", is.map_or("Free", State::name))
    } else {
        words
    };
    publish(pass, node, kind, reason, &note).await;
    if let Some(after) = after
        && was != is
        && after.state == State::Cordoned
    {
        warn_pods(pass, node, after).await;
    }
}

/// Tells of a node whose record was put right.
pub(super) async fn mended(pass: &Pass<'_>, node: &Node, record: &NodeRecord) {
    let state = record.state.name();
    tracing::warn!(node = node.name_any(), state, "mended what was taken off the node");
    let note = format!("what somebody took off the node or changed there is put right: it is {state}");
    publish(pass, node, EventType::Warning, "RecordMended", &note).await;
}

/// Tells of a free node that cannot be promised.
pub(super) async fn refused(pass: &Pass<'_>, node: &Node, why: &str) {
    tracing::warn!(node = node.name_any(), why, "node cannot be promised; others are");
    let note = format!("no tenant gets the node for now, its record is not accepted: {why}");
    publish(pass, node, EventType::Warning, "PromiseRefused", &note).await;
}

/// Whether all that changed is when a cordoned node is taken back.
fn is_sooner(before: Option<&NodeRecord>, after: Option<&NodeRecord>) -> bool {
    before.zip(after).is_some_and(|(before, after)| {
        after.state == State::Cordoned && before.since == after.since && before.cordoned_until != after.cordoned_until
    })
}

/// Tells the pods of a node that is taken back.
async fn warn_pods(pass: &Pass<'_>, node: &Node, record: &NodeRecord) {
    let Ok(pods) = PodsOnNode::list(pass.context, &node.name_any()).await else {
        return;
    };
    let when = record
        .cordoned_until
        .map_or_else(String::new, |until| format!(" at {until}"));
    let note = format!(
        "node {} is taken back: the pod is evicted{when}; save what is needed",
        node.name_any()
    );
    for pod in &pods.of_tenants {
        publish(pass, pod, EventType::Warning, NODE_RECLAIMED, &note).await;
    }
}

async fn publish<K: Resource<DynamicType = ()>>(pass: &Pass<'_>, on: &K, type_: EventType, reason: &str, note: &str) {
    let event = Event {
        type_,
        reason: reason.into(),
        note: Some(note.chars().take(1000).collect()),
        action: "HandOver".into(),
        secondary: None,
    };
    // An Event that is lost harms nobody: the node says the same.
    if let Err(error) = pass.context.recorder.publish(&event, &on.object_ref(&())).await {
        tracing::debug!(%error, "event not written");
    }
}
