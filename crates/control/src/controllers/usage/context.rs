//! What the controller of usage works with.

use super::memory::Memory;
use crate::{clock::Clock, metrics::UsageMetrics, stores::Stores};
use berth_metering::Meter;
use berth_runtime::locks::lock;
use jiff::Timestamp;
use kube::Client;
use std::sync::{Mutex, MutexGuard};

/// What the controller of usage works with. One per process.
pub struct UsageContext {
    /// The host's API server.
    pub client: Client,
    /// Views of the host.
    pub stores: Stores,
    /// The time.
    pub clock: Clock,
    /// For how many months records are kept besides the current one. 0: usage is not recorded.
    pub retention_months: u32,
    /// Counters.
    pub metrics: UsageMetrics,
    /// What was counted.
    pub state: UsageState,
}

/// What was counted, from one pass to the next.
#[derive(Default)]
pub struct UsageState(Mutex<Counted>);

#[derive(Default)]
pub(super) struct Counted {
    pub(super) meter: Meter,
    /// Whether the meter has the stored records. Before, nothing may be counted.
    pub(super) is_loaded: bool,
    pub(super) memory: Memory,
    /// When usage was counted last; before, when the first pass began.
    pub(super) observed_at: Option<Timestamp>,
    /// By how many seconds the clock was behind what is counted already, when usage was counted last.
    pub(super) clock_behind: i64,
    /// When all records that have expired were deleted.
    pub(super) expired_at: Option<Timestamp>,
}

impl UsageState {
    pub(super) fn lock(&self) -> MutexGuard<'_, Counted> {
        lock(&self.0)
    }
}
