//! Events that the API servers of a tenant could not write into their audit log, as their metrics count them: pure.

/// Processes whose counts are remembered: more than run at a time.
const MOST_PROCESSES: usize = 16;

/// What was counted. Several API servers may serve a tenant, of which each counts from its start on, and control reads one of them at a time.
#[derive(Debug, Default)]
pub(super) struct AuditErrors {
    /// When a count was noted first, in seconds since the epoch.
    since: Option<f64>,
    /// The last count of each process, by the bits of when it has started. The process that was read last is the last one.
    counts: Vec<(u64, u64)>,
    /// Errors that nobody has taken.
    new: u64,
}

impl AuditErrors {
    /// Notes the count of an API server that has started at `started_at`; both times in seconds since the epoch. The first count of one that was started
    /// before anything was noted says nothing of when these errors were, and another control has counted them.
    pub(super) fn note(&mut self, started_at: f64, count: u64, now: f64) {
        let since = *self.since.get_or_insert(now);
        let process = started_at.to_bits();
        let known = self.counts.iter().position(|(known, _)| *known == process);
        let before = match known {
            Some(index) => self.counts.remove(index).1,
            None if started_at < since => count,
            None => 0,
        };
        self.new = self.new.saturating_add(count.saturating_sub(before));
        self.counts.push((process, count));
        if self.counts.len() > MOST_PROCESSES {
            self.counts.remove(0);
        }
    }

    /// How many errors there are since this was asked last; none if nothing was ever counted.
    pub(super) fn take(&mut self) -> Option<u64> {
        self.since.is_some().then(|| std::mem::take(&mut self.new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_each_process_count_once_whichever_is_read() {
        let mut errors = AuditErrors::default();
        assert_eq!(errors.take(), None);
        errors.note(10.0, 5, 15.0);
        assert_eq!(errors.take(), Some(0), "they may be old");
        errors.note(10.0, 7, 25.0);
        errors.note(20.0, 3, 25.0);
        errors.note(10.0, 7, 25.0);
        assert_eq!(errors.take(), Some(5));
        errors.note(20.0, 3, 35.0);
        errors.note(30.0, 0, 35.0);
        assert_eq!(errors.take(), Some(0));
        errors.note(30.0, 1, 35.0);
        assert_eq!(errors.take(), Some(1));
    }

    #[test]
    fn what_another_replica_counted_before_control_was_started_is_no_new_error() {
        let mut errors = AuditErrors::default();
        errors.note(10.0, 0, 100.0);
        errors.note(20.0, 3, 130.0);
        assert_eq!(errors.take(), Some(0));
        errors.note(20.0, 4, 160.0);
        assert_eq!(errors.take(), Some(1));
    }

    #[test]
    fn a_process_that_is_read_is_remembered_however_many_others_start() {
        let mut errors = AuditErrors::default();
        errors.note(10.0, 0, 10.0);
        errors.note(10.0, 5, 10.0);
        assert_eq!(errors.take(), Some(5));
        for start in 11..100_u32 {
            errors.note(f64::from(start), 1, f64::from(start));
            errors.note(10.0, 5, f64::from(start));
        }
        assert_eq!(errors.counts.len(), MOST_PROCESSES);
        assert_eq!(errors.take(), Some(89), "one of each that was started");
    }

    #[test]
    fn counts_without_sense_end_nothing() {
        let mut errors = AuditErrors::default();
        errors.note(f64::NAN, 1, 1.0);
        for start in [2.0, 3.0] {
            errors.note(start, u64::MAX, 4.0);
        }
        assert_eq!(errors.take(), Some(u64::MAX));
    }
}
