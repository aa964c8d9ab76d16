//! The pods that wait for a place, in their order: higher priorities first, as the host's scheduler would take them; then
//! namespaces take turns; then first come, first served.

use super::LONG_WAIT;
use berth_sync_rules::model::resource::Name;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

/// A gang in the tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::engine) struct Gang {
    /// Namespace and name.
    pub(in crate::engine) name: Name,
    /// Pods that start together.
    pub(in crate::engine) size: usize,
}

/// A pod that asks for a place.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Request {
    /// Name in the tenant.
    pub(in crate::engine) name: Name,
    /// Priority in the tenant.
    pub(in crate::engine) priority: i64,
    /// The gang that it belongs to.
    pub(in crate::engine) gang: Option<Gang>,
    /// The user whose pod it is, if users have limits.
    pub(in crate::engine) user: Option<Arc<str>>,
}

/// A pod that waits.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) since: Instant,
    position: Position,
    /// Whether [`Line::take_late`] has returned it.
    is_late: bool,
}

/// Priority, round of the namespace, number: the least comes first.
type Position = (Reverse<i64>, u64, u64);

/// The pods that wait.
#[derive(Debug, Default)]
pub(in crate::engine) struct Line {
    order: BTreeMap<Position, Name>,
    waiting: HashMap<Name, Waiting>,
    /// Positions of the members of a gang.
    gangs: HashMap<Name, BTreeSet<Position>>,
    /// Of each priority for which pods wait.
    rounds: HashMap<i64, Rounds>,
    next_number: u64,
}

/// The turns of the namespaces: in each round, each of them has one pod.
#[derive(Debug, Default)]
struct Rounds {
    waiting: usize,
    /// The round of the last pod that was taken.
    current: u64,
    namespaces: HashMap<Arc<str>, Turns>,
}

/// The turns of one namespace.
#[derive(Debug, Default)]
struct Turns {
    waiting: usize,
    /// The round of its last pod.
    last: u64,
}

impl Rounds {
    /// The round of a further pod of a namespace.
    fn enter(&mut self, namespace: &Arc<str>) -> u64 {
        self.waiting += 1;
        let turns = self.namespaces.entry(Arc::clone(namespace)).or_default();
        turns.waiting += 1;
        turns.last = (turns.last + 1).max(self.current);
        turns.last
    }

    /// A pod of a namespace waits no more.
    fn leave(&mut self, namespace: &str) {
        self.waiting -= 1;
        if let Some(turns) = self.namespaces.get_mut(namespace) {
            turns.waiting -= 1;
            if turns.waiting == 0 {
                // Rounds that are still to come are no turns that it has had: its pods there were removed.
                turns.last = turns.last.min(self.current);
            }
        }
    }
}

impl Line {
    /// Number of pods that wait.
    pub(in crate::engine) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no pod waits.
    pub(in crate::engine) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The request of a pod that waits.
    pub(super) fn get(&self, name: &Name) -> Option<&Request> {
        self.waiting.get(name).map(|waiting| &waiting.request)
    }

    /// Since when a pod waits.
    pub(in crate::engine) fn since(&self, name: &Name) -> Option<Instant> {
        self.waiting.get(name).map(|waiting| waiting.since)
    }

    /// Adds a pod at the end of those of its priority and namespace, unless it waits already.
    pub(in crate::engine) fn add(&mut self, request: Request, now: Instant) {
        if self.waiting.contains_key(&request.name) {
            return;
        }
        let rounds = self.rounds.entry(request.priority).or_default();
        let round = rounds.enter(&request.name.namespace);
        let position = (Reverse(request.priority), round, self.next_number);
        self.next_number += 1;
        self.order.insert(position, request.name.clone());
        if let Some(gang) = &request.gang {
            self.gangs.entry(gang.name.clone()).or_default().insert(position);
        }
        let waiting = Waiting {
            since: now,
            position,
            is_late: false,
            request,
        };
        self.waiting.insert(waiting.request.name.clone(), waiting);
    }

    /// Removes a pod.
    pub(super) fn remove(&mut self, name: &Name) -> Option<Waiting> {
        let removed = self.waiting.remove(name)?;
        self.order.remove(&removed.position);
        if let Some(gang) = &removed.request.gang
            && let Some(members) = self.gangs.get_mut(&gang.name)
        {
            members.remove(&removed.position);
            if members.is_empty() {
                self.gangs.remove(&gang.name);
            }
        }
        let priority = removed.request.priority;
        if let Some(rounds) = self.rounds.get_mut(&priority) {
            rounds.leave(&removed.request.name.namespace);
            if rounds.waiting == 0 {
                self.rounds.remove(&priority);
            }
        }
        Some(removed)
    }

    /// The pods that have waited for [`LONG_WAIT`], each of them once.
    pub(in crate::engine) fn take_late(&mut self, now: Instant) -> Vec<Name> {
        let is_due = |pod: &Waiting| !pod.is_late && now.saturating_duration_since(pod.since) >= LONG_WAIT;
        let due = self.waiting.values_mut().filter(|pod| is_due(pod));
        due.map(|pod| {
            pod.is_late = true;
            pod.request.name.clone()
        })
        .collect()
    }

    /// Takes the first pod.
    pub(super) fn take_first(&mut self) -> Option<Waiting> {
        let (position, name) = self.order.first_key_value()?;
        let ((Reverse(priority), round, _), name) = (*position, name.clone());
        if let Some(rounds) = self.rounds.get_mut(&priority) {
            rounds.current = round;
        }
        self.remove(&name)
    }

    /// The request of the first pod.
    pub(in crate::engine) fn first(&self) -> Option<&Request> {
        let (_, name) = self.order.first_key_value()?;
        self.get(name)
    }

    /// Takes a pod, which may be the first one: then it was the turn of its namespace.
    pub(in crate::engine) fn take(&mut self, name: &Name) {
        if self.first().is_some_and(|first| first.name == *name) {
            self.take_first();
        } else {
            self.remove(name);
        }
    }

    /// Takes the first member of a gang.
    pub(super) fn take_member(&mut self, gang: &Name) -> Option<Waiting> {
        let position = self.gangs.get(gang)?.first()?;
        let name = self.order.get(position)?.clone();
        self.remove(&name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(line: &mut Line, namespace: &str, name: &str, priority: i64) {
        let request = Request {
            name: Name::new(namespace, name),
            priority,
            gang: None,
            user: None,
        };
        line.add(request, Instant::now());
    }

    fn take(line: &mut Line) -> String {
        line.take_first().unwrap().request.name.to_string()
    }

    #[test]
    fn namespaces_take_turns() {
        let mut line = Line::default();
        for name in ["1", "2", "3", "4"] {
            add(&mut line, "a", name, 0);
        }
        add(&mut line, "b", "1", 0);
        add(&mut line, "b", "2", 0);
        assert_eq!(
            [take(&mut line), take(&mut line), take(&mut line)],
            ["a/1", "b/1", "a/2"]
        );
        // A namespace that comes later waits for one pod of each of the others at most.
        add(&mut line, "c", "1", 0);
        assert_eq!(
            [take(&mut line), take(&mut line), take(&mut line)],
            ["b/2", "c/1", "a/3"]
        );
        assert_eq!(take(&mut line), "a/4");
        assert!(line.is_empty() && line.order.is_empty() && line.rounds.is_empty());
    }

    #[test]
    fn a_namespace_whose_waiting_pods_are_deleted_does_not_lose_its_next_turns() {
        let mut line = Line::default();
        for index in 0..1000 {
            add(&mut line, "a", &index.to_string(), 0);
        }
        for name in ["1", "2", "3"] {
            add(&mut line, "b", name, 0);
        }
        assert_eq!([take(&mut line), take(&mut line)], ["a/0", "b/1"]);
        for index in 1..1000 {
            line.remove(&Name::new("a", &index.to_string()));
        }
        add(&mut line, "a", "next", 0);
        assert_eq!(
            [take(&mut line), take(&mut line), take(&mut line)],
            ["b/2", "a/next", "b/3"]
        );
    }

    #[test]
    fn higher_priorities_come_first() {
        let mut line = Line::default();
        add(&mut line, "a", "low", -1);
        add(&mut line, "a", "normal", 0);
        add(&mut line, "b", "high", 100);
        assert_eq!(
            [take(&mut line), take(&mut line), take(&mut line)],
            ["b/high", "a/normal", "a/low"]
        );
    }

    #[test]
    fn a_pod_waits_once_and_keeps_its_position() {
        let mut line = Line::default();
        for name in ["1", "2", "1"] {
            add(&mut line, "a", name, 0);
        }
        assert_eq!(line.len(), 2);
        assert!(line.since(&Name::new("a", "1")).is_some());
        assert_eq!(take(&mut line), "a/1");
    }

    #[test]
    fn a_pod_that_waits_for_long_is_named_once() {
        let mut line = Line::default();
        add(&mut line, "a", "1", 0);
        let now = Instant::now();
        assert!(line.take_late(now).is_empty());
        assert_eq!(line.take_late(now + LONG_WAIT), [Name::new("a", "1")]);
        assert!(line.take_late(now + LONG_WAIT * 2).is_empty());
    }

    #[test]
    fn what_is_removed_leaves_nothing() {
        let mut line = Line::default();
        let gang = Gang {
            name: Name::new("a", "train"),
            size: 2,
        };
        for name in ["1", "2"] {
            let request = Request {
                name: Name::new("a", name),
                priority: 0,
                gang: Some(gang.clone()),
                user: None,
            };
            line.add(request, Instant::now());
        }
        assert!(line.remove(&Name::new("a", "1")).is_some());
        assert!(line.remove(&Name::new("a", "1")).is_none());
        assert_eq!(line.take_member(&gang.name).unwrap().request.name, Name::new("a", "2"));
        assert!(line.take_member(&gang.name).is_none());
        assert!(line.order.is_empty() && line.gangs.is_empty() && line.rounds.is_empty());
    }
}
