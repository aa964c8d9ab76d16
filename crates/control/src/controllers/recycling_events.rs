//! Events on nodes that are drained, and on their pods.

use crate::events::EventRecorder;
use berth_node_lifecycle::transitions::DrainStage;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Resource,
    runtime::events::{Event, EventType},
};

/// Reason of the Event on pods whose node is reclaimed. There is still time for a checkpoint.
const NODE_RECLAIMED: &str = "NodeReclaimed";
/// Reason of the Event on a node whose pods cannot be evicted.
const DRAIN_BLOCKED: &str = "DrainBlocked";
/// Reason of the Event on a node whose pods are deleted whatever disruption budgets say.
const DRAIN_FORCED: &str = "DrainForced";

/// The reason of the Event on a node whose pods hold up its drain.
pub(super) fn drain_reason(stage: DrainStage) -> &'static str {
    match stage {
        DrainStage::Delete => DRAIN_FORCED,
        DrainStage::Evict | DrainStage::Warn => DRAIN_BLOCKED,
    }
}

/// Publishes on pods that they lose their node.
pub(super) async fn warn_pods(recorder: &EventRecorder, pods: &[Pod], message: &str) {
    for pod in pods {
        publish(recorder, pod, EventType::Warning, NODE_RECLAIMED, message).await;
    }
}

/// Publishes an Event about the recycling of a node.
pub(super) async fn publish<K: Resource<DynamicType = ()>>(
    recorder: &EventRecorder,
    on: &K,
    type_: EventType,
    reason: &str,
    message: &str,
) {
    let event = Event {
        type_,
        reason: reason.into(),
        note: Some(message.into()),
        action: "Recycle".into(),
        secondary: None,
    };
    recorder.publish(&event, &on.object_ref(&())).await;
}
