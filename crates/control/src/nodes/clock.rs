//! The time by which nodes are handed on.

use jiff::{SignedDuration, Timestamp};
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

/// The clock of the machine, by so many seconds ahead as it is told. Copies are told the same.
///
/// Nothing but tests of what a clock that jumps does tells it anything.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    /// The time.
    pub fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        now.saturating_add(SignedDuration::from_secs(self.0.load(Ordering::Relaxed)))
            .unwrap_or(now)
    }

    /// Sets how many seconds it is ahead; fewer than none: behind.
    pub fn set_ahead(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_jump_together() {
        let clock = Clock::default();
        let of_control = clock.clone();
        clock.set_ahead(-3600);
        assert!(of_control.now() < Timestamp::now() - SignedDuration::from_mins(59));
    }
}
