//! A keyed work queue: each key waits at most once, is never processed twice at the same time, and is processed again if
//! it was added meanwhile.
//!
//! Unlike a list of events, a keyed queue is bounded by the number of objects, and a slow or failing key delays no
//! other. Keys of different groups take turns, so that a group with thousands of keys delays no other by more than one.

use crate::locks::lock;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// A key that can wait in a queue.
pub trait QueueKey: Clone + Eq + Hash {
    /// The group of the key. Groups take turns; keys of a group are taken in the order in which they became due.
    fn group(&self) -> u64;
}

/// A key returned by [`Queue::take`]; give it back with [`Queue::done`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken<K> {
    /// The key to process.
    pub key: K,
    /// How long it waited after it was due.
    pub queued_for: Duration,
}

/// The queue. Cheap to clone; all clones share one queue.
#[derive(Debug)]
pub struct Queue<K>(Arc<Shared<K>>);

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[derive(Debug)]
struct Shared<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

#[derive(Debug)]
struct State<K> {
    /// Keys that wait, by group; no list is empty.
    ready: HashMap<u64, VecDeque<(K, Instant)>>,
    /// The groups in `ready`, in the order of their turns.
    turns: VecDeque<u64>,
    waiting: usize,
    keys: HashMap<K, Where>,
    delayed: BinaryHeap<Reverse<(Instant, u64)>>,
    delayed_keys: HashMap<u64, K>,
    next_ticket: u64,
}

/// The state of a key. A key can be delayed (`due`) and, at the same time, waiting or in process: it is processed again
/// at `due` at the latest.
#[derive(Clone, Copy, Debug, Default)]
struct Where {
    waiting: bool,
    working: bool,
    /// Added while it was processed: it waits again as soon as it is done.
    again: bool,
    due: Option<(Instant, u64)>,
}

impl Where {
    fn is_idle(self) -> bool {
        !self.waiting && !self.working && self.due.is_none()
    }
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State {
                ready: HashMap::new(),
                turns: VecDeque::new(),
                waiting: 0,
                keys: HashMap::new(),
                delayed: BinaryHeap::new(),
                delayed_keys: HashMap::new(),
                next_ticket: 0,
            }),
            changed: Notify::new(),
        }))
    }
}

impl<K: QueueKey> Queue<K> {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State<K>> {
        lock(&self.0.state)
    }

    /// Puts a key at the end, unless it waits already. A key that is being processed waits again once it is done.
    pub fn add(&self, key: K) {
        self.state().push(key, Instant::now());
        self.0.changed.notify_one();
    }

    /// Puts a key into the queue after `delay`, unless it is due earlier.
    pub fn add_after(&self, key: K, delay: Duration) {
        let due = Instant::now() + delay;
        let mut state = self.state();
        let place = state.keys.entry(key.clone()).or_default();
        if place.waiting || place.due.is_some_and(|(earlier, _)| earlier <= due) {
            return;
        }
        let earlier = place.due.take();
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        if let Some((_, old)) = earlier {
            state.delayed_keys.remove(&old);
        }
        if let Some(place) = state.keys.get_mut(&key) {
            place.due = Some((due, ticket));
        }
        state.delayed_keys.insert(ticket, key);
        state.delayed.push(Reverse((due, ticket)));
        drop(state);
        self.0.changed.notify_one();
    }

    /// Waits for the next key. Groups take turns; keys of a group are taken in the order in
    /// which they became due. Cancel-safe.
    pub async fn take(&self) -> Taken<K> {
        loop {
            let changed = self.0.changed.notified();
            let next_due = {
                let mut state = self.state();
                let now = Instant::now();
                state.promote(now);
                if let Some((key, since)) = state.pop() {
                    let place = state.keys.entry(key.clone()).or_default();
                    place.waiting = false;
                    place.working = true;
                    if state.waiting > 0 {
                        // Notify stores one permit only: pass it on, so that no worker sleeps while keys wait.
                        self.0.changed.notify_one();
                    }
                    return Taken {
                        key,
                        queued_for: now.saturating_duration_since(since),
                    };
                }
                state.delayed.peek().map(|Reverse((due, _))| *due)
            };
            match next_due {
                Some(due) => tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep_until(due) => {}
                },
                None => changed.await,
            }
        }
    }

    /// Takes this very key, unless it waits or is being processed. Returns whether it did; then it is given back as others are.
    pub fn claim(&self, key: &K) -> bool {
        let mut state = self.state();
        let place = state.keys.entry(key.clone()).or_default();
        let is_free = !place.waiting && !place.working;
        place.working |= is_free;
        is_free
    }

    /// Gives a key back. If it was added meanwhile, it waits again.
    pub fn done(&self, key: &K) {
        let mut state = self.state();
        let Some(place) = state.keys.get_mut(key) else { return };
        place.working = false;
        if std::mem::take(&mut place.again) {
            state.push(key.clone(), Instant::now());
            drop(state);
            self.0.changed.notify_one();
        } else if place.is_idle() {
            state.keys.remove(key);
        }
    }

    /// Number of keys that wait now, without those that are delayed or being processed.
    pub fn len(&self) -> usize {
        self.state().waiting
    }

    /// Whether no key waits now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<K: QueueKey> State<K> {
    fn push(&mut self, key: K, since: Instant) {
        let place = self.keys.entry(key.clone()).or_default();
        if place.working {
            place.again = true;
        } else if !place.waiting {
            place.waiting = true;
            self.waiting += 1;
            let group = key.group();
            let keys = self.ready.entry(group).or_default();
            if keys.is_empty() {
                self.turns.push_back(group);
            }
            keys.push_back((key, since));
        }
    }

    /// Takes the next key of the next group.
    fn pop(&mut self) -> Option<(K, Instant)> {
        let group = self.turns.pop_front()?;
        let keys = self.ready.get_mut(&group)?;
        let next = keys.pop_front();
        if keys.is_empty() {
            self.ready.remove(&group);
        } else {
            self.turns.push_back(group);
        }
        self.waiting -= usize::from(next.is_some());
        next
    }

    /// Moves keys that are due from `delayed` to `ready`.
    fn promote(&mut self, now: Instant) {
        while let Some(Reverse((due, ticket))) = self.delayed.peek().copied() {
            if due > now {
                break;
            }
            self.delayed.pop();
            let Some(key) = self.delayed_keys.remove(&ticket) else {
                continue;
            };
            if let Some(place) = self.keys.get_mut(&key) {
                place.due = None;
            }
            self.push(key, due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl QueueKey for &'static str {
        fn group(&self) -> u64 {
            0
        }
    }

    impl QueueKey for usize {
        fn group(&self) -> u64 {
            (*self / 1000) as u64
        }
    }

    #[tokio::test]
    async fn groups_take_turns() {
        let queue = Queue::new();
        for key in [1, 2, 3, 4, 1001, 1002, 2001] {
            queue.add(key);
        }
        let mut order = Vec::new();
        while !queue.is_empty() {
            let key = queue.take().await.key;
            if key == 2 {
                queue.add(3001);
            }
            order.push(key);
        }
        assert_eq!(order, [1, 1001, 2001, 2, 1002, 3, 3001, 4]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_is_processed_once() {
        let queue = Queue::new();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.take().await.key, "a");
        queue.add("a");
        queue.add("a");
        assert_eq!(queue.take().await.key, "b");
        assert!(
            tokio::time::timeout(Duration::from_secs(1), queue.take())
                .await
                .is_err(),
            "a is being processed"
        );
        queue.done(&"a");
        assert_eq!(queue.take().await.key, "a");
        queue.done(&"a");
        queue.done(&"b");
        assert!(queue.state().keys.is_empty(), "no state of idle keys is kept");
    }

    #[tokio::test(start_paused = true)]
    async fn delayed_keys_are_taken_when_due_and_the_earliest_delay_wins() {
        let queue = Queue::new();
        queue.add_after("late", Duration::from_secs(10));
        queue.add_after("soon", Duration::from_secs(2));
        queue.add_after("late", Duration::from_secs(5));
        queue.add_after("late", Duration::from_secs(20));
        let start = Instant::now();
        assert_eq!(queue.take().await.key, "soon");
        assert_eq!(start.elapsed().as_secs(), 2);
        assert_eq!(queue.take().await.key, "late");
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.done(&"soon");
        queue.done(&"late");
        assert!(
            tokio::time::timeout(Duration::from_mins(1), queue.take())
                .await
                .is_err()
        );
        assert!(queue.state().keys.is_empty() && queue.state().delayed_keys.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_immediate_add_overtakes_a_delay_and_keeps_it() {
        let queue = Queue::new();
        queue.add_after("a", Duration::from_secs(5));
        queue.add("a");
        assert_eq!(queue.take().await.key, "a");
        queue.done(&"a");
        let start = Instant::now();
        assert_eq!(queue.take().await.key, "a");
        assert_eq!(start.elapsed().as_secs(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn only_a_key_that_neither_waits_nor_is_processed_is_claimed() {
        let queue = Queue::new();
        assert!(queue.claim(&"a"));
        assert!(!queue.claim(&"a"), "it is being processed");
        queue.add("a");
        queue.done(&"a");
        assert!(!queue.claim(&"a"), "it waits again");
        assert_eq!(queue.take().await.key, "a");
        queue.done(&"a");
        queue.add_after("a", Duration::from_secs(1));
        assert!(queue.claim(&"a"), "it is not due");
        let early = tokio::time::timeout(Duration::from_secs(5), queue.take()).await;
        assert!(early.is_err(), "it is still being processed");
        queue.done(&"a");
        assert_eq!(queue.take().await.key, "a");
        queue.done(&"a");
        assert!(queue.state().keys.is_empty());
    }

    #[tokio::test]
    async fn no_two_workers_process_the_same_key() {
        let queue = Queue::new();
        let working = Arc::new(Mutex::new(std::collections::HashSet::new()));
        let total = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let workers: Vec<_> = (0..8)
            .map(|_| {
                let (queue, working, total) = (queue.clone(), Arc::clone(&working), Arc::clone(&total));
                tokio::spawn(async move {
                    loop {
                        let taken: Taken<usize> = queue.take().await;
                        assert!(working.lock().unwrap().insert(taken.key), "two workers on one key");
                        tokio::task::yield_now().await;
                        working.lock().unwrap().remove(&taken.key);
                        queue.done(&taken.key);
                        total.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for key in 0..1000 {
            queue.add(key % 100);
            if key % 10 == 0 {
                tokio::task::yield_now().await;
            }
        }
        while !queue.is_empty() || !queue.state().keys.is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(total.load(std::sync::atomic::Ordering::Relaxed) >= 100);
        for worker in workers {
            worker.abort();
        }
    }
}
