//! Since when nodes are idle, and since when they are free. The time for which they are idle is kept in memory and written on the node, so that a new control
//! continues with it. An unknown time is taken to be now, so that no node is released too early. How long nodes are free is kept in memory alone: it begins
//! anew with each control, so free nodes are kept for a gang for longer then, and until it starts if control starts again and again before they are for others.

use berth_api::labels;
use berth_planner::Seconds;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Since when nodes are idle or free, by name.
#[derive(Default)]
pub struct IdleTracker {
    idle: Mutex<HashMap<String, Seconds>>,
    free: Mutex<HashMap<String, Seconds>>,
}

impl IdleTracker {
    /// Records whether a node is in use, and returns since when it is idle. A time before `owned_since` belongs to another tenant.
    pub fn track(&self, node: &Node, in_use: bool, owned_since: Seconds, now: Seconds) -> Option<Seconds> {
        let name = node.name_any();
        forget(&self.free, &name);
        let mut all = lock(&self.idle);
        if in_use {
            all.remove(&name);
            return None;
        }
        let known = all.get(&name).copied().or_else(|| recorded_idle_since(node));
        let since = known.filter(|since| (owned_since..=now).contains(since)).unwrap_or(now);
        all.insert(name, since);
        Some(since)
    }

    /// Records that a node is free, and returns since when it is. A time before the node was created belongs to another one of its name.
    pub fn track_free(&self, node: &Node, now: Seconds) -> Seconds {
        let name = node.name_any();
        forget(&self.idle, &name);
        let mut all = lock(&self.free);
        let created = node
            .creation_timestamp()
            .map_or(Seconds::MIN, |created| created.0.as_second());
        let known = all.get(&name).copied();
        let since = known.filter(|since| (created..=now).contains(since)).unwrap_or(now);
        all.insert(name, since);
        since
    }

    /// Removes a node that has no tenant and is not free.
    pub fn forget(&self, node: &str) {
        forget(&self.idle, node);
        forget(&self.free, node);
    }

    /// Removes nodes that were deleted. `nodes`: the names of all that there are.
    pub fn forget_deleted<'n>(&self, nodes: impl ExactSizeIterator<Item = &'n str>) {
        let (mut idle, mut free) = (lock(&self.idle), lock(&self.free));
        // A node is in one of them at most.
        if idle.len() + free.len() > nodes.len() {
            let names: HashSet<&str> = nodes.collect();
            idle.retain(|name, _| names.contains(name.as_str()));
            free.retain(|name, _| names.contains(name.as_str()));
        }
    }
}

fn lock(times: &Mutex<HashMap<String, Seconds>>) -> MutexGuard<'_, HashMap<String, Seconds>> {
    times.lock().unwrap_or_else(PoisonError::into_inner)
}

fn forget(times: &Mutex<HashMap<String, Seconds>>, node: &str) {
    lock(times).remove(node);
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
    fn a_node_is_free_since_it_was_first_seen_so_until_it_has_a_tenant_again() {
        let (tracker, free) = (IdleTracker::default(), node(None));
        assert_eq!(tracker.track_free(&free, 100), 100);
        assert_eq!(tracker.track_free(&free, 130), 100);
        assert_eq!(
            tracker.track(&free, false, 140, 140),
            Some(140),
            "it is not idle since 100"
        );
        assert_eq!(tracker.track_free(&free, 150), 150);
        tracker.forget("n");
        assert_eq!(tracker.track_free(&free, 160), 160);
        assert_eq!(tracker.track_free(&free, 155), 155, "the clock was set back");
    }

    #[test]
    fn deleted_nodes_are_forgotten() {
        let tracker = IdleTracker::default();
        let other: Node = serde_json::from_value(json!({"metadata": {"name": "other"}})).unwrap();
        assert_eq!(tracker.track_free(&node(None), 100), 100);
        assert_eq!(tracker.track_free(&other, 100), 100);
        tracker.forget_deleted(["n"].into_iter());
        assert_eq!(tracker.track_free(&node(None), 110), 100);
        assert_eq!(tracker.track_free(&other, 110), 110);
        assert_eq!(tracker.track(&other, false, 50, 120), Some(120));
        tracker.forget_deleted(["n"].into_iter());
        assert_eq!(
            tracker.track(&other, false, 50, 130),
            Some(130),
            "those of tenants, too"
        );
        assert_eq!(tracker.track_free(&node(None), 140), 100);
    }

    #[test]
    fn a_new_node_of_an_old_name_is_free_since_now() {
        let tracker = IdleTracker::default();
        assert_eq!(tracker.track_free(&node(None), 100), 100);
        let new = json!({"metadata": {"name": "n", "creationTimestamp": "1970-01-01T00:02:00Z"}});
        let new: Node = serde_json::from_value(new).unwrap();
        assert_eq!(tracker.track_free(&new, 130), 130);
        assert_eq!(tracker.track_free(&new, 140), 130);
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
