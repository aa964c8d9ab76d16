//! Events that the API servers of a tenant could not write into their audit log, as their metrics count them: pure.

use std::collections::BTreeMap;

/// Processes whose counts are remembered: more than run at a time.
const MOST_PROCESSES: usize = 16;

/// What was counted. Several API servers may serve a tenant, of which each counts from its start on, and control reads one of them at a time.
#[derive(Debug, Default)]
pub(super) struct AuditErrors {
    /// The last count of each process, by the bits of when it has started: these are in the order of the times.
    counts: BTreeMap<u64, u64>,
    /// Errors that nobody has taken.
    new: u64,
}

impl AuditErrors {
    /// Notes the count of an API server that has started at this time, in seconds since the epoch. The first count of all says nothing of when these errors
    /// were, and another control has counted them.
    pub(super) fn note(&mut self, started_at: f64, count: u64) {
        let is_first = self.counts.is_empty();
        let before = self.counts.insert(started_at.to_bits(), count);
        self.new += match before {
            Some(before) => count.saturating_sub(before),
            None if is_first => 0,
            None => count,
        };
        if self.counts.len() > MOST_PROCESSES {
            self.counts.pop_first();
        }
    }

    /// How many errors there are since this was asked last; none if nothing was ever counted.
    pub(super) fn take(&mut self) -> Option<u64> {
        (!self.counts.is_empty()).then(|| std::mem::take(&mut self.new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_each_process_count_once_whichever_is_read() {
        let mut errors = AuditErrors::default();
        assert_eq!(errors.take(), None);
        errors.note(10.0, 5);
        assert_eq!(errors.take(), Some(0), "they may be old");
        errors.note(10.0, 7);
        errors.note(20.0, 3);
        errors.note(10.0, 7);
        assert_eq!(errors.take(), Some(5));
        errors.note(20.0, 3);
        errors.note(30.0, 0);
        assert_eq!(errors.take(), Some(0));
        errors.note(30.0, 1);
        assert_eq!(errors.take(), Some(1));
    }

    #[test]
    fn the_earliest_processes_are_forgotten() {
        let mut errors = AuditErrors::default();
        for start in 0..100_u32 {
            errors.note(f64::from(start), 1);
        }
        assert_eq!(errors.counts.len(), MOST_PROCESSES);
        assert!(errors.counts.contains_key(&99.0_f64.to_bits()) && !errors.counts.contains_key(&83.0_f64.to_bits()));
        assert_eq!(errors.take(), Some(99));
    }
}
