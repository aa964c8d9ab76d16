//! Requested nodes in the status and the Events of a pool.

use super::HostNodePoolContext;
use crate::controllers::nodes::requested::Request;
use berth_api::system::NAMESPACE;
use berth_api::{
    HostNodePool, RequestedNodes,
    conditions::{ConditionUpdate, NODES_REQUESTED},
};
use kube::{
    Resource,
    runtime::events::{Event, EventType},
};

/// The pool's numbers and its condition; nothing for a pool without autoscaling. Before the first plan the
/// last report stays.
pub fn report_requested_nodes(
    pool: &HostNodePool,
    request: Option<Request>,
) -> (Option<RequestedNodes>, Option<ConditionUpdate>) {
    if pool.spec.autoscaling.is_none() {
        return (None, None);
    }
    let Some(request) = request else {
        return (pool.status.as_ref().and_then(|status| status.requested), None);
    };
    let requested = RequestedNodes {
        nodes: request.nodes,
        pods: request.pods,
    };
    (Some(requested), Some(requested_condition(&request)))
}

fn requested_condition(request: &Request) -> ConditionUpdate {
    let Request { nodes, pods, held_back } = request;
    let more = held_back
        .as_ref()
        .map(|limit| format!("; no more is requested: {limit}"));
    let more = more.unwrap_or_default();
    let reason = |fine: &'static str| if more.is_empty() { fine } else { "LimitReached" };
    if *pods == 0 {
        let message = format!("no pod waits for a new node{more}");
        return ConditionUpdate::mark_false(NODES_REQUESTED, reason("NoPendingPods"), message);
    }
    let message = format!("{pods} placeholders in {NAMESPACE} request {nodes} new nodes{more}");
    ConditionUpdate::mark_true(NODES_REQUESTED, reason("PodsPending"), message)
}

/// Publishes an Event if more nodes are requested than before.
pub async fn publish_requested_nodes(
    context: &HostNodePoolContext,
    pool: &HostNodePool,
    before: Option<RequestedNodes>,
    after: Option<RequestedNodes>,
) {
    let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
    if after.nodes <= before.nodes {
        return;
    }
    let event = Event {
        type_: EventType::Normal,
        reason: NODES_REQUESTED.into(),
        note: Some(format!(
            "{} placeholders in {NAMESPACE} request {} nodes from an autoscaler",
            after.pods, after.nodes
        )),
        action: "RequestNodes".into(),
        secondary: None,
    };
    context.recorder.publish(&event, &pool.object_ref(&())).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{AutoscalingSpec, HostNodePoolSpec, HostNodePoolStatus};

    fn pool(autoscaling: bool) -> HostNodePool {
        let mut pool = HostNodePool::new("h100", HostNodePoolSpec::default());
        pool.spec.autoscaling = autoscaling.then(AutoscalingSpec::default);
        pool.status = Some(HostNodePoolStatus {
            requested: Some(RequestedNodes { nodes: 3, pods: 9 }),
            ..HostNodePoolStatus::default()
        });
        pool
    }

    fn request(pods: u32, held_back: Option<&str>) -> Request {
        Request {
            nodes: 1,
            pods,
            held_back: held_back.map(ToOwned::to_owned),
        }
    }

    #[test]
    fn only_pools_with_autoscaling_report_requested_nodes() {
        assert_eq!(
            report_requested_nodes(&pool(false), Some(request(1, None))),
            (None, None)
        );
        let (requested, update) = report_requested_nodes(&pool(true), None);
        assert_eq!((requested.unwrap().pods, update), (9, None));
    }

    #[test]
    fn limits_are_reported() {
        let of = |pods, limit| {
            report_requested_nodes(&pool(true), Some(request(pods, limit)))
                .1
                .unwrap()
        };
        assert_eq!((of(0, None).status, of(0, None).reason), (Some(false), "NoPendingPods"));
        assert_eq!((of(8, None).status, of(8, None).reason), (Some(true), "PodsPending"));
        let bound = of(8, Some("it is full"));
        assert_eq!(bound.reason, "LimitReached");
        assert!(
            bound.message.ends_with("; no more is requested: it is full"),
            "{}",
            bound.message
        );
    }
}
