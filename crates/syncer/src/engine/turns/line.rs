//! Lines of keys that wait for their turns.

use super::{EVENTS_BETWEEN_PODS, LONG_WAIT, Turn, now};
use crate::engine::queued_key::KeyOfKind;
use berth_runtime::{locks::lock, queue::Queue};
use berth_sync_rules::{admission::writes::Pace, model::resource::Key};
use std::{collections::HashMap, sync::Mutex, time::Duration};

/// Writes that wait for the same.
pub(super) struct Line {
    pub(super) pace: Mutex<Pace>,
    /// Keys in the order of their turns. Some may not need theirs any more.
    pub(super) queue: Queue<KeyOfKind>,
    pub(super) waiting: Mutex<Waiting>,
}

/// The keys that wait.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) keys: HashMap<Key, Asks>,
    /// Bytes, or requests, of all of them.
    pub(super) amount: u64,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Asks {
    pub(super) amount: u64,
    /// How often it has asked.
    times: u32,
}

impl Waiting {
    fn add(&mut self, key: &Key, amount: u64) {
        let asks = self.keys.entry(key.clone()).or_default();
        self.amount += amount.saturating_sub(asks.amount);
        asks.amount = asks.amount.max(amount);
        asks.times += 1;
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Asks> {
        let asks = self.keys.remove(key)?;
        self.amount -= asks.amount;
        Some(asks)
    }
}

impl Line {
    /// A line that starts with a part of its allowance.
    pub(super) fn new(allowance: u64, rate: u64) -> Self {
        Self {
            pace: Mutex::new(Pace::at_start(allowance, rate, now())),
            queue: Queue::new(),
            waiting: Mutex::default(),
        }
    }

    /// A key asks for an amount. It waits in any case unless `has_room`.
    pub(super) fn ask(&self, key: &Key, amount: u64, has_room: bool) -> Turn {
        let mut waiting = lock(&self.waiting);
        let mut pace = lock(&self.pace);
        if has_room && waiting.keys.is_empty() && pace.take_at_once(amount, now()) {
            return Turn::Now;
        }
        let wait = Duration::from_secs(waiting.amount / pace.rate());
        waiting.add(key, amount);
        self.queue.add(KeyOfKind(key.clone()));
        Turn::Later {
            takes_long: wait >= LONG_WAIT,
        }
    }

    /// The longest wait of the first pod in the line for Events.
    pub(super) fn pause_between_pods(&self) -> Duration {
        Duration::from_millis(EVENTS_BETWEEN_PODS * 1000 / lock(&self.pace).rate())
    }

    /// How often a key has asked that waits; 0 if it does not wait.
    pub(super) fn asked(&self, key: &Key) -> u32 {
        lock(&self.waiting).keys.get(key).map_or(0, |asks| asks.times)
    }
}
