//! The clock of control.

use jiff::{SignedDuration, Timestamp};
use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

/// The clock of the machine, ahead by a number of seconds that copies share. Only tests of clocks that jump set it.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    /// The time by this clock.
    pub fn now(&self) -> Timestamp {
        let now = Timestamp::now();
        now.saturating_add(SignedDuration::from_secs(self.0.load(Ordering::Relaxed)))
            .unwrap_or(now)
    }

    /// Sets how many seconds it is ahead; negative: behind.
    pub fn set_ahead(&self, seconds: i64) {
        self.0.store(seconds, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_clock_jump_together() {
        let clock = Clock::default();
        let of_control = clock.clone();
        clock.set_ahead(-3600);
        assert!(of_control.now() < Timestamp::now() - SignedDuration::from_mins(59));
    }
}
