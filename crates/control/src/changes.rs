//! Changes of stores, counted, and what is computed once for each of them.

use berth_runtime::{hashes::hash_of, locks::lock};
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use kube::{Resource, ResourceExt, runtime::watcher::Event};

/// How often some stores changed since the process started.
#[derive(Debug, Default)]
pub struct Changes {
    /// HostNodePools.
    pools: AtomicU64,
    /// Nodes that came and went, and labels of nodes: heartbeats do not count.
    nodes: AtomicU64,
    /// Organizations and Projects.
    levels: AtomicU64,
}

impl Changes {
    /// Changes of HostNodePools, and of which nodes there are with which labels.
    pub fn of_pools(&self) -> (u64, u64) {
        (self.pools.load(Ordering::SeqCst), self.nodes.load(Ordering::SeqCst))
    }

    /// Changes of Organizations and Projects.
    pub fn of_levels(&self) -> u64 {
        self.levels.load(Ordering::SeqCst)
    }

    fn counter(&self, kind: &str) -> Option<&AtomicU64> {
        match kind {
            "HostNodePool" => Some(&self.pools),
            "Node" => Some(&self.nodes),
            "Organization" | "Project" => Some(&self.levels),
            _ => None,
        }
    }

    /// Counts a change of all kinds.
    #[cfg(test)]
    pub(crate) fn count_all(&self) {
        for counter in [&self.pools, &self.nodes, &self.levels] {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Counts the events of one watch.
pub(crate) struct ChangeCounter {
    changes: Arc<Changes>,
    kind: String,
    /// Hash of the labels of each node.
    labels: HashMap<String, u64>,
}

impl ChangeCounter {
    /// Of a watch of this kind.
    pub(crate) fn new(changes: &Arc<Changes>, kind: &str) -> Self {
        Self {
            changes: Arc::clone(changes),
            kind: kind.to_owned(),
            labels: HashMap::new(),
        }
    }

    /// Counts an event after it is in the store, and before anything is reconciled because of it.
    pub(crate) fn count(&mut self, event: &Event<impl Resource>) {
        let Some(counter) = self.changes.counter(&self.kind) else {
            return;
        };
        let is_change = match event {
            Event::Apply(node) if self.kind == "Node" => {
                let hash = hash_of(node.labels());
                self.labels.insert(node.name_any(), hash) != Some(hash)
            }
            Event::Delete(object) => {
                self.labels.remove(&object.name_any());
                true
            }
            // What a list has is in the store when it is complete, and what it does not have is gone then.
            Event::Init | Event::InitApply(_) => false,
            Event::Apply(_) | Event::InitDone => true,
        };
        if is_change {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A value that is computed once for each version of what it is computed from.
#[derive(Debug)]
pub struct Cached<T, V> {
    last: Mutex<Option<(V, Arc<T>)>>,
    computed: AtomicU64,
}

impl<T, V> Default for Cached<T, V> {
    fn default() -> Self {
        Self {
            last: Mutex::new(None),
            computed: AtomicU64::new(0),
        }
    }
}

impl<T, V: PartialEq> Cached<T, V> {
    /// The value for this version, which has to be read before `compute` reads anything. Others that need it meanwhile wait.
    pub fn get(&self, version: V, compute: impl FnOnce() -> T) -> Arc<T> {
        let mut last = lock(&self.last);
        if let Some((known, value)) = last.as_ref()
            && *known == version
        {
            return Arc::clone(value);
        }
        let value = Arc::new(compute());
        self.computed.fetch_add(1, Ordering::Relaxed);
        *last = Some((version, Arc::clone(&value)));
        value
    }

    /// How often it was computed.
    pub fn computed(&self) -> u64 {
        self.computed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::{Node, Pod};
    use serde_json::json;

    fn node(label: &str, heartbeat: &str) -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"gpu": label}},
            "status": {"conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]},
        }))
        .unwrap()
    }

    #[test]
    fn labels_of_nodes_count_and_heartbeats_do_not() {
        let changes = Arc::new(Changes::default());
        let mut counter = ChangeCounter::new(&changes, "Node");
        let mut counted = |event: &Event<Node>| {
            counter.count(event);
            changes.of_pools().1
        };
        let (first, second) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:10Z");
        assert_eq!(counted(&Event::Init), 0);
        assert_eq!(
            counted(&Event::InitApply(node("h100", first))),
            0,
            "not in the store yet"
        );
        assert_eq!(counted(&Event::InitDone), 1);
        assert_eq!(counted(&Event::Apply(node("h100", first))), 2);
        assert_eq!(counted(&Event::Apply(node("h100", second))), 2);
        assert_eq!(counted(&Event::Apply(node("b200", second))), 3);
        assert_eq!(counted(&Event::Delete(node("b200", second))), 4);
        assert_eq!(counted(&Event::Apply(node("b200", second))), 5, "it is back");
        ChangeCounter::new(&changes, "Pod").count(&Event::Apply(Pod::default()));
        assert_eq!((changes.of_pools(), changes.of_levels()), ((0, 5), 0));
    }

    #[test]
    fn a_value_is_computed_once_for_each_version() {
        let cached = Cached::default();
        for (version, expected) in [(1, 1), (1, 1), (2, 2), (2, 2)] {
            assert_eq!(*cached.get(version, || version), expected);
        }
        assert_eq!(cached.computed(), 2);
    }
}
