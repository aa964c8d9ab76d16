//! The drain of a node that has left its shared pool. Its stages and time limits are those of a node that leaves its tenant,
//! see [`DrainStage`]. Its start is an annotation of the node.

use crate::{Assignment, node::was_shared, transitions::DrainStage};
use berth_api::{HostNodePool, RecyclingTimeouts, labels};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use std::sync::Arc;

/// By how many seconds the clocks of two controls may differ.
const SKEW: i64 = 30;

/// The drain of a node that has left its shared pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedNodeDrain {
    /// When it began.
    pub since: Timestamp,
    /// Whether the node says so.
    pub is_recorded: bool,
    pub stage: DrainStage,
    /// The reason to write on the node and to publish, if its stage has not been announced.
    pub announcement: Option<String>,
}

/// The drain of a node from which these pods (`namespace/name`) have to leave. None if it is shared, or if its assignment
/// decides.
pub fn find_drain(
    node: &Node,
    pods: &[String],
    timeouts: &RecyclingTimeouts,
    now: Timestamp,
) -> Option<SharedNodeDrain> {
    if !was_shared(node) || Assignment::read(node).is_some() {
        return None;
    }
    let annotation = |key: &str| node.annotations().get(key).map(String::as_str).unwrap_or_default();
    // After a clock went back, a time in the future would hold up the drain: it begins again.
    let recorded = annotation(labels::SHARED_UNTIL)
        .parse::<Timestamp>()
        .ok()
        .filter(|since| since.as_second() <= now.as_second().saturating_add(SKEW));
    let since = recorded.unwrap_or(now);
    let stage = DrainStage::after((now.as_second() - since.as_second()).max(0), timeouts);
    let is_announced = annotation(labels::REASON).starts_with(stage.announcement());
    Some(SharedNodeDrain {
        since,
        is_recorded: recorded.is_some(),
        stage,
        announcement: (!is_announced && !pods.is_empty()).then(|| stage.announce(since, timeouts, pods)),
    })
}

/// The time limits of a node that has left its shared pool: those of that pool, or the default ones if it is gone.
pub fn timeouts_after_sharing(node: &Node, pools: &[Arc<HostNodePool>]) -> RecyclingTimeouts {
    let before = node.annotations().get(labels::PREVIOUS_SHARED_POOL);
    let pool = pools.iter().find(|pool| pool.metadata.name.as_ref() == before);
    pool.map(|pool| pool.spec.timeouts.clone()).unwrap_or_default()
}

/// The pool for single tenants that a node is in now.
pub fn pool_after_sharing<'a>(node: &Node, pools: &'a [Arc<HostNodePool>]) -> Option<&'a HostNodePool> {
    let mut matching = pools.iter().filter(|pool| pool.spec.selects(node.labels()));
    let pool = matching.next()?;
    (matching.next().is_none() && !pool.spec.is_shared()).then(|| &**pool)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::HostNodePoolSpec;
    use serde_json::{Value, json};

    const LEFT: i64 = 100_000;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn node(annotations: &Value) -> Node {
        serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}})).unwrap()
    }

    fn left(reason: &str) -> Node {
        node(
            &json!({labels::PREVIOUS_SHARED_POOL: "cpu", labels::SHARED_UNTIL: at(LEFT).to_string(), labels::REASON: reason}),
        )
    }

    fn drain(node: &Node, now: i64) -> Option<SharedNodeDrain> {
        let pods = ["berth-a/p".to_owned()];
        find_drain(node, &pods, &RecyclingTimeouts::default(), at(now))
    }

    #[test]
    fn pods_are_evicted_then_warned_then_deleted() {
        let limit = RecyclingTimeouts::default().drain();
        let mut reason = String::new();
        let mut announced = Vec::new();
        for (after, stage) in [
            (0, DrainStage::Evict),
            (limit / 2 - 1, DrainStage::Evict),
            (limit / 2, DrainStage::Warn),
            (limit - 1, DrainStage::Warn),
            (limit, DrainStage::Delete),
            (limit * 100, DrainStage::Delete),
        ] {
            let drain = drain(&left(&reason), LEFT + after).unwrap();
            assert_eq!((drain.stage, drain.since, drain.is_recorded), (stage, at(LEFT), true));
            if let Some(text) = drain.announcement {
                announced.push(text.clone());
                reason = text;
            }
        }
        let [warning, deletion] = announced.as_slice() else {
            panic!("each stage is announced once: {announced:?}");
        };
        assert!(
            warning.contains(&at(LEFT + limit).to_string()) && warning.contains("berth-a/p"),
            "{warning}"
        );
        assert!(deletion.contains("600 s to end at most"), "{deletion}");
    }

    #[test]
    fn a_drain_without_a_start_begins_now() {
        for since in [Value::Null, "yesterday".into(), at(LEFT + 3600).to_string().into()] {
            let node = node(
                &json!({labels::PREVIOUS_SHARED_POOL: "cpu", labels::SHARED_UNTIL: since.as_str().unwrap_or_default()}),
            );
            let drain = drain(&node, LEFT).unwrap();
            assert_eq!(
                (drain.since, drain.is_recorded, drain.stage),
                (at(LEFT), false, DrainStage::Evict)
            );
        }
    }

    #[test]
    fn an_empty_node_is_not_announced() {
        let now = at(LEFT + 1_000_000);
        let drain = find_drain(&left(""), &[], &RecyclingTimeouts::default(), now).unwrap();
        assert_eq!((drain.stage, drain.announcement), (DrainStage::Delete, None));
    }

    #[test]
    fn shared_and_assigned_nodes_are_not_drained_here() {
        assert_eq!(drain(&node(&json!({})), LEFT), None);
        let mut shared = left("");
        shared.labels_mut().insert(labels::SHARED_POOL.into(), "cpu".into());
        assert_eq!(drain(&shared, LEFT), None);
        let mut assigned = left("");
        assigned.annotations_mut().insert(labels::OWNER_UID.into(), "u".into());
        assert_eq!(drain(&assigned, LEFT), None);
    }

    #[test]
    fn the_limits_are_those_of_the_shared_pool() {
        let pool = |name: &str, label: &str, mode: &str| {
            let spec = json!({"nodeSelector": {label: "yes"}, "modes": [mode], "timeouts": {"drain": "10m"}});
            let spec: HostNodePoolSpec = serde_json::from_value(spec).unwrap();
            Arc::new(HostNodePool::new(name, spec))
        };
        let pools = [pool("cpu", "cpu", "Shared"), pool("own", "own", "Private")];
        assert_eq!(timeouts_after_sharing(&left(""), &pools).drain(), 600);
        assert_eq!(timeouts_after_sharing(&left(""), &[]).drain(), 3600);
        let mut moved = left("");
        assert!(pool_after_sharing(&moved, &pools).is_none());
        moved.labels_mut().insert("own".into(), "yes".into());
        assert_eq!(
            pool_after_sharing(&moved, &pools).map(ResourceExt::name_any).as_deref(),
            Some("own")
        );
        moved.labels_mut().insert("cpu".into(), "yes".into());
        assert!(
            pool_after_sharing(&moved, &pools).is_none(),
            "it is in two pools, and so in none"
        );
    }
}
