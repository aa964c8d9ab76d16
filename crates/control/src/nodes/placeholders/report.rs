//! What is said on a pool about nodes that are asked for.

use super::Request;
use crate::context::Context;
use berth_api::system::NAMESPACE;
use berth_api::{
    HostNodePool, RequestedNodes,
    conditions::{Finding, NODES_REQUESTED},
};
use kube::{
    Resource,
    runtime::events::{Event, EventType},
};

/// The pool's numbers and its condition; nothing for a pool without autoscaling. Before the first plan nobody knows, and
/// what was said last stays.
pub fn report(pool: &HostNodePool, request: Option<Request>) -> (Option<RequestedNodes>, Option<Finding>) {
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
    (Some(requested), Some(finding(&request)))
}

fn finding(request: &Request) -> Finding {
    let Request { nodes, pods, held_back } = request;
    let more = held_back
        .as_ref()
        .map(|words| format!("; more is not asked for: {words}"));
    let more = more.unwrap_or_default();
    let reason = |fine: &'static str| if more.is_empty() { fine } else { "BoundReached" };
    if *pods == 0 {
        let words = format!("nothing waits for nodes that are not there{more}");
        return Finding::no(NODES_REQUESTED, reason("NothingWaits"), words);
    }
    let words = format!("{pods} pods in {NAMESPACE} ask for nodes, of which {nodes} have to come{more}");
    Finding::yes(NODES_REQUESTED, reason("PodsWait"), words)
}

/// Tells of nodes that were not asked for before.
pub async fn tell(
    context: &Context,
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
            "an autoscaler is asked for {} nodes by {} pods in {NAMESPACE}",
            after.nodes, after.pods
        )),
        action: "AskForNodes".into(),
        secondary: None,
    };
    // An Event that is lost harms nobody: the status says the same.
    if let Err(error) = context.recorder.publish(&event, &pool.object_ref(&())).await {
        tracing::debug!(%error, "event not written");
    }
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
    fn only_pools_that_grow_say_anything_and_only_what_is_known() {
        assert_eq!(report(&pool(false), Some(request(1, None))), (None, None));
        let (requested, finding) = report(&pool(true), None);
        assert_eq!((requested.unwrap().pods, finding), (9, None));
    }

    #[test]
    fn bounds_are_told() {
        let of = |pods, words| report(&pool(true), Some(request(pods, words))).1.unwrap();
        assert_eq!((of(0, None).status, of(0, None).reason), (Some(false), "NothingWaits"));
        assert_eq!((of(8, None).status, of(8, None).reason), (Some(true), "PodsWait"));
        let bound = of(8, Some("it is full"));
        assert_eq!(bound.reason, "BoundReached");
        assert!(
            bound.message.ends_with("; more is not asked for: it is full"),
            "{}",
            bound.message
        );
    }
}
