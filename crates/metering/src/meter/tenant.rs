//! What the meter knows about one tenant.

use super::{Cut, pending::Pending};
use crate::{
    calendar::{DAY, Month, day_of_second, position_in_month, second_of, timestamp_of},
    item::{Identity, Item},
    record::{self, Lines, Through},
    summary::Summaries,
};
use berth_api::{MonthlyUsage, UsageRecord, UsageResource, UsageTenant};
use jiff::Timestamp;
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
};

/// How much of the past is counted at most, in seconds.
const LONGEST_GAP: i64 = 31 * DAY;
/// How long what was counted waits for its record, in seconds.
const WRITE_INTERVAL: i64 = 15 * 60;

/// What the meter knows about one tenant. Times are seconds of the epoch.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    identity: UsageTenant,
    /// The record of the latest month that has one, as it is stored.
    stored: Option<UsageRecord>,
    /// Of the stored records.
    summaries: Summaries,
    /// Everything before it is in records or in `pending`. It never goes back.
    observed_through: i64,
    /// Whether it was observed by this process.
    is_observed: bool,
    pending: Pending,
    /// The nodes that it had when it was observed last.
    nodes: Nodes,
    /// Whether it used something when it was observed last.
    is_in_use: bool,
    /// When it lost a node last that is not known to be in a record.
    left_at: Option<i64>,
    /// Whether it exists.
    pub(super) exists: bool,
}

/// Amounts of nodes and of their GPUs, by resource, pool and since when they are held.
type Nodes = BTreeMap<(UsageResource, Option<String>, Option<Timestamp>), i64>;

impl Tenant {
    /// A tenant without a record: it is counted from its creation on.
    pub(super) fn new(identity: &Identity) -> Self {
        Self::begin(identity.tenant.clone(), second_of(identity.created), None)
    }

    /// The tenant of a record: it is counted from where the record ends. None if the record has no month.
    pub(super) fn of_record(record: UsageRecord) -> Option<Self> {
        let (_, through) = record::metered(&record)?;
        Some(Self::begin(record.spec.tenant.clone(), through, Some(record)))
    }

    fn begin(identity: UsageTenant, observed_through: i64, stored: Option<UsageRecord>) -> Self {
        let mut summaries = Summaries::default();
        if let Some(record) = &stored {
            summaries.store(record);
        }
        Self {
            identity,
            stored,
            summaries,
            observed_through,
            is_observed: false,
            pending: Pending::default(),
            nodes: Nodes::new(),
            is_in_use: false,
            left_at: None,
            exists: false,
        }
    }

    /// By how many seconds what is counted already is ahead of the clock.
    pub(super) fn seconds_ahead(&self, now: i64) -> i64 {
        self.observed_through.saturating_sub(now).max(0)
    }

    /// Counts what it uses, up to now. Returns what is too long ago to be counted.
    pub(super) fn observe(&mut self, now: Timestamp, items: &[&Item]) -> Option<Cut> {
        let second = second_of(now);
        let earliest = second.saturating_sub(LONGEST_GAP);
        let mut first_cut: Option<i64> = None;
        let mut has_left = false;
        for item in items {
            let from = match item.since {
                Some(since) => second_of(since).max(self.observed_through),
                None if self.is_observed => self.observed_through,
                // Nothing shows that it was there before.
                None => second,
            };
            let to = item.until.map_or(second, |until| second_of(until).min(second));
            if item.amount <= 0 || from >= to {
                continue;
            }
            // What proves that may not be there for long.
            has_left |= item.until.is_some() && is_of_node(item);
            if from < earliest {
                first_cut = Some(first_cut.map_or(from, |first| first.min(from)));
            }
            self.pending.add(&item.key, from.max(earliest), to, item.amount);
        }
        self.pending.settle();
        self.observed_through = self.observed_through.max(second);
        self.is_observed = true;
        self.is_in_use = items.iter().any(|item| item.is_held(now));
        let nodes = nodes_of(now, items);
        if has_left || has_lost_some(&self.nodes, &nodes) {
            self.left_at = Some(self.observed_through);
        }
        self.nodes = nodes;
        first_cut.map(|from| Cut {
            tenant: self.identity.clone(),
            from: timestamp_of(from),
            counted_from: timestamp_of(earliest),
        })
    }

    /// Takes what the API server has: what was written, or what somebody else has written meanwhile.
    pub(super) fn store(&mut self, record: UsageRecord) {
        let Some((month, through)) = record::metered(&record) else {
            return;
        };
        if let Some(stored) = self.stored.as_mut()
            && record::metered(stored).is_some_and(|(of, known)| of == month && through < known)
        {
            // Somebody has restored it from a backup. What it lacks is known here, and is written into it.
            stored.metadata = record.metadata;
            return;
        }
        self.summaries.store(&record);
        self.pending.drop_before(through);
        self.observed_through = self.observed_through.max(through);
        if self.left_at.is_some_and(|left| left <= through) {
            self.left_at = None;
        }
        if self.stored_month().is_none_or(|stored| stored <= month) {
            self.stored = Some(record);
        }
    }

    /// Whether there is a stored record of it, of whatever month.
    pub(super) fn has_record(&self) -> bool {
        self.stored.is_some()
    }

    /// What its stored records say of a month and of the month before, the later one first.
    pub(super) fn summaries(&self, month: Month) -> Vec<MonthlyUsage> {
        self.summaries.of_two_months(month)
    }

    /// The record was deleted: what is known is written into a new one.
    pub(super) fn forget_version(&mut self, record: &UsageRecord) {
        let Some((month, _)) = record::metered(record) else {
            return;
        };
        if let Some(stored) = self
            .stored
            .as_mut()
            .filter(|stored| stored.spec.month == record.spec.month)
        {
            stored.metadata = record::metadata(&self.identity, month);
        }
    }

    /// Whether everything that is known is stored.
    pub(super) fn is_stored(&self) -> bool {
        self.next_month().is_none()
    }

    /// The first second in which it used something that is not stored.
    pub(super) fn unrecorded_since(&self) -> Option<i64> {
        self.pending.first_second()
    }

    /// The record that has to be written next, if it has to be now.
    pub(super) fn due(&self, now: Timestamp) -> Option<UsageRecord> {
        let month = self.next_month()?;
        let stored = self.stored.as_ref();
        let is_urgent = !self.exists
            || self.left_at.is_some()
            || month.end() <= now
            || self.is_in_use != stored.is_some_and(|record| record.spec.in_use);
        (is_urgent || self.has_waited(second_of(now))).then(|| self.record(month))
    }

    /// The record that has to be written next.
    pub(super) fn unsaved(&self) -> Option<UsageRecord> {
        self.next_month().map(|month| self.record(month))
    }

    /// The earliest month whose record is not what it should be. The months are written in their order: what is before the end of the latest
    /// record counts as stored.
    fn next_month(&self) -> Option<Month> {
        let first = self.pending.first_second().map(month_of_second);
        let open = self.stored.as_ref().filter(|record| record.spec.in_use);
        let to_close = open.and_then(record::metered).filter(|(month, through)| {
            let (end, is_over) = (second_of(month.end()), month_of_second(self.observed_through) > *month);
            self.is_observed && *through < end && (is_over || !self.is_in_use)
        });
        to_close.map(|(month, _)| month).into_iter().chain(first).min()
    }

    fn stored_month(&self) -> Option<Month> {
        let record = self.stored.as_ref()?;
        Some(record::metered(record)?.0)
    }

    /// Whether a moment has passed since the last write that comes every [`WRITE_INTERVAL`], and for each tenant at another time.
    fn has_waited(&self, now: i64) -> bool {
        let mut hasher = DefaultHasher::new();
        self.identity.uid.hash(&mut hasher);
        let interval = WRITE_INTERVAL.unsigned_abs();
        let offset = i64::try_from(hasher.finish() % interval).unwrap_or_default();
        let count = |second: i64| second.saturating_sub(offset).div_euclid(WRITE_INTERVAL);
        let since = self.pending.first_second().unwrap_or(now);
        count(now) > count(since)
    }

    /// The record of a month: what is stored and what is pending.
    fn record(&self, month: Month) -> UsageRecord {
        let stored = self.stored.as_ref().filter(|_| self.stored_month() == Some(month));
        let mut lines = stored.map(Lines::of).unwrap_or_default();
        for (key, piece) in self.pending.of_month(month) {
            lines.add(key, position_in_month(day_of_second(piece.from)), piece.amount);
        }
        let end = second_of(month.end());
        let through = Through {
            at: timestamp_of(self.observed_through.min(end)),
            is_in_use: self.is_in_use && self.observed_through < end,
        };
        lines.record(&self.identity, month, stored, through)
    }
}

fn is_of_node(item: &Item) -> bool {
    matches!(item.key.resource, UsageResource::Gpu | UsageResource::Node)
}

/// The nodes and their GPUs of items that are held.
fn nodes_of(now: Timestamp, items: &[&Item]) -> Nodes {
    let mut nodes = Nodes::new();
    for item in items {
        if is_of_node(item) && item.is_held(now) {
            let place = (item.key.resource, item.key.pool_name.clone(), item.since);
            let amount = nodes.entry(place).or_default();
            *amount = amount.saturating_add(item.amount);
        }
    }
    nodes
}

/// Whether something of what was there is not there any more.
fn has_lost_some(before: &Nodes, now: &Nodes) -> bool {
    before
        .iter()
        .any(|(place, amount)| now.get(place).is_none_or(|left| left < amount))
}

fn month_of_second(second: i64) -> Month {
    Month::of(day_of_second(second))
}
