//! How long to wait before a crashed process is started again.

use std::time::Duration;

/// The first pause.
const SHORTEST: Duration = Duration::from_millis(200);
/// No pause is longer.
const LONGEST: Duration = Duration::from_secs(10);
/// A process that was up this long counts as healthy: the next crash begins with the first pause again.
const HEALTHY: Duration = Duration::from_secs(30);

/// Doubling pauses, forgotten after a healthy run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    next: Duration,
}

impl Backoff {
    /// Nothing has crashed yet.
    pub(crate) fn new() -> Self {
        Self { next: SHORTEST }
    }

    /// The process ended after `uptime`: how long to wait before the next start.
    pub(crate) fn after_crash(&mut self, uptime: Duration) -> Duration {
        if uptime >= HEALTHY {
            self.next = SHORTEST;
        }
        let pause = self.next;
        self.next = (pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new();
        let pauses: Vec<_> = (0..8)
            .map(|_| backoff.after_crash(Duration::ZERO).as_millis())
            .collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 10_000, 10_000]);
    }

    #[test]
    fn a_healthy_run_resets() {
        let mut backoff = Backoff::new();
        for _ in 0..5 {
            backoff.after_crash(Duration::from_secs(29));
        }
        assert_eq!(backoff.after_crash(Duration::from_secs(30)), SHORTEST);
        assert_eq!(backoff.after_crash(Duration::ZERO), SHORTEST * 2);
    }
}
