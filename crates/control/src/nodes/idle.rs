//! Since when nodes are idle. It is kept in memory and written on the node, so that a new control goes on counting. What is
//! not known begins now: a node is never given back too early.

use berth_api::labels;
use berth_planner::Seconds;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Since when nodes are idle, by name.
#[derive(Default)]
pub struct Idle(Mutex<HashMap<String, Seconds>>);

impl Idle {
    /// Takes note of whether a node is in use, and gives since when it is idle. `owned_since`: what was written before that
    /// is about another tenant.
    pub fn note(&self, node: &Node, in_use: bool, owned_since: Seconds, now: Seconds) -> Option<Seconds> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = node.name_any();
        if in_use {
            all.remove(&name);
            return None;
        }
        let known = all.get(&name).copied().or_else(|| written(node));
        let since = known.filter(|since| (owned_since..=now).contains(since)).unwrap_or(now);
        all.insert(name, since);
        Some(since)
    }

    /// Forgets a node that has no owner.
    pub fn forget(&self, node: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }
}

/// What the node says.
fn written(node: &Node) -> Option<Seconds> {
    let text = node.annotations().get(labels::IDLE_SINCE)?;
    Some(text.parse::<Timestamp>().ok()?.as_second())
}

/// The merge patch that writes it on the node; none if that is what is there.
pub fn patch(node: &Node, since: Option<Seconds>) -> Option<Value> {
    if written(node) == since && (since.is_some() || !node.annotations().contains_key(labels::IDLE_SINCE)) {
        return None;
    }
    let text = since
        .and_then(|since| Timestamp::from_second(since).ok())
        .map(|since| since.to_string());
    Some(json!({"metadata": {
        "resourceVersion": node.resource_version(), "annotations": {labels::IDLE_SINCE: text},
    }}))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(since: Option<&str>) -> Node {
        let annotations = since.map(|since| json!({labels::IDLE_SINCE: since}));
        serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}})).unwrap()
    }

    #[test]
    fn it_counts_from_when_it_was_seen_first() {
        let idle = Idle::default();
        assert_eq!(idle.note(&node(None), false, 50, 100), Some(100));
        assert_eq!(idle.note(&node(None), false, 50, 130), Some(100));
        assert_eq!(idle.note(&node(None), true, 50, 140), None);
        assert_eq!(idle.note(&node(None), false, 50, 150), Some(150));
    }

    #[test]
    fn a_new_control_goes_on_counting_but_believes_nothing_impossible() {
        let text = Some("1970-01-01T00:01:40Z");
        assert_eq!(Idle::default().note(&node(text), false, 50, 130), Some(100));
        assert_eq!(
            Idle::default().note(&node(text), false, 120, 130),
            Some(130),
            "another tenant's"
        );
        assert_eq!(
            Idle::default().note(&node(text), false, 50, 90),
            Some(90),
            "of the future"
        );
        assert_eq!(Idle::default().note(&node(Some("soon")), false, 50, 90), Some(90));
    }

    #[test]
    fn it_is_written_when_it_changed() {
        let text = Some("1970-01-01T00:01:40Z");
        assert_eq!(patch(&node(text), Some(100)), None);
        assert_eq!(patch(&node(None), None), None);
        let annotations = |patch: Value| patch["metadata"]["annotations"].clone();
        assert_eq!(
            annotations(patch(&node(text), None).unwrap()),
            json!({labels::IDLE_SINCE: null})
        );
        let written = patch(&node(None), Some(100)).unwrap();
        assert_eq!(annotations(written)[labels::IDLE_SINCE], "1970-01-01T00:01:40Z");
    }
}
