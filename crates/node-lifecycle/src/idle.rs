//! Since when nodes are idle. The time is kept in memory and written on the node, so that a new control continues with it. An
//! unknown time is taken to be now, so that no node is released too early.

use berth_api::labels;
use berth_planner::Seconds;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

/// Since when nodes are idle, by name.
#[derive(Default)]
pub struct IdleTracker(Mutex<HashMap<String, Seconds>>);

impl IdleTracker {
    /// Records whether a node is in use, and returns since when it is idle. A time before `owned_since` belongs to another tenant.
    pub fn track(&self, node: &Node, in_use: bool, owned_since: Seconds, now: Seconds) -> Option<Seconds> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = node.name_any();
        if in_use {
            all.remove(&name);
            return None;
        }
        let known = all.get(&name).copied().or_else(|| recorded_idle_since(node));
        let since = known.filter(|since| (owned_since..=now).contains(since)).unwrap_or(now);
        all.insert(name, since);
        Some(since)
    }

    /// Removes a node that has no tenant.
    pub fn forget(&self, node: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }
}

/// Since when a node is idle, as it has that written on it; none if it is not, or if that is not written yet.
pub fn recorded_idle_since(node: &Node) -> Option<Seconds> {
    let text = node.annotations().get(labels::IDLE_SINCE)?;
    Some(text.parse::<Timestamp>().ok()?.as_second())
}

/// The annotation that writes the idle time on the node (`None`: must be absent); none if the node has it already.
pub fn annotation(node: &Node, since: Option<Seconds>) -> Option<(&'static str, Option<String>)> {
    if recorded_idle_since(node) == since && (since.is_some() || !node.annotations().contains_key(labels::IDLE_SINCE)) {
        return None;
    }
    let text = since
        .and_then(|since| Timestamp::from_second(since).ok())
        .map(|since| since.to_string());
    Some((labels::IDLE_SINCE, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(since: Option<&str>) -> Node {
        let annotations = since.map(|since| json!({labels::IDLE_SINCE: since}));
        serde_json::from_value(json!({"metadata": {"name": "n", "annotations": annotations}})).unwrap()
    }

    #[test]
    fn idle_time_begins_at_the_first_observation() {
        let idle = IdleTracker::default();
        assert_eq!(idle.track(&node(None), false, 50, 100), Some(100));
        assert_eq!(idle.track(&node(None), false, 50, 130), Some(100));
        assert_eq!(idle.track(&node(None), true, 50, 140), None);
        assert_eq!(idle.track(&node(None), false, 50, 150), Some(150));
    }

    #[test]
    fn a_new_control_continues_recorded_idle_times_that_are_possible() {
        let text = Some("1970-01-01T00:01:40Z");
        assert_eq!(IdleTracker::default().track(&node(text), false, 50, 130), Some(100));
        assert_eq!(
            IdleTracker::default().track(&node(text), false, 120, 130),
            Some(130),
            "another tenant's"
        );
        assert_eq!(
            IdleTracker::default().track(&node(text), false, 50, 90),
            Some(90),
            "of the future"
        );
        assert_eq!(
            IdleTracker::default().track(&node(Some("soon")), false, 50, 90),
            Some(90)
        );
    }

    #[test]
    fn idle_time_is_written_only_when_it_changed() {
        let text = Some("1970-01-01T00:01:40Z");
        assert_eq!(annotation(&node(text), Some(100)), None);
        assert_eq!(annotation(&node(None), None), None);
        assert_eq!(annotation(&node(text), None), Some((labels::IDLE_SINCE, None)));
        let written = annotation(&node(None), Some(100));
        assert_eq!(written, Some((labels::IDLE_SINCE, text.map(str::to_owned))));
    }
}
