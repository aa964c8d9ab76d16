//! A scheduling window for each scheduler of the host: each of them has a queue of its own, and one that does not run must not hold up
//! the pods of the others.

use super::{Admitted, Answer, Checked, Progress, Request, SchedulingWindow};
use berth_sync_rules::{
    kinds::pod::placement::{DEFAULT_SCHEDULER, SchedulingStage},
    model::resource::Name,
};
use std::{collections::HashMap, time::Instant};

/// The scheduling windows of a tenant, by the name of the scheduler. There are no more than the class allows names.
#[derive(Debug)]
pub(in crate::engine) struct SchedulingWindows {
    maximum: usize,
    by_scheduler: HashMap<String, SchedulingWindow>,
}

impl SchedulingWindows {
    /// Windows of at most `maximum` pods each.
    pub(in crate::engine) fn new(maximum: usize) -> Self {
        let of_default = (DEFAULT_SCHEDULER.to_owned(), SchedulingWindow::new(maximum));
        Self {
            maximum,
            by_scheduler: HashMap::from([of_default]),
        }
    }

    /// How many pods may have a place now.
    pub(in crate::engine) fn limit(&self) -> usize {
        self.by_scheduler.values().map(SchedulingWindow::limit).sum()
    }

    /// Pods with a place that count.
    pub(in crate::engine) fn used(&self) -> usize {
        self.by_scheduler.values().map(SchedulingWindow::used).sum()
    }

    /// Pods that wait for a place.
    pub(in crate::engine) fn waiting(&self) -> usize {
        self.by_scheduler.values().map(SchedulingWindow::waiting).sum()
    }

    /// As [`SchedulingWindow::rests_until`]: the earliest.
    pub(in crate::engine) fn rests_until(&self) -> Option<Instant> {
        self.by_scheduler
            .values()
            .filter_map(SchedulingWindow::rests_until)
            .min()
    }

    /// Whether a pod has a place or waits for one.
    pub(in crate::engine) fn knows(&self, name: &Name) -> bool {
        self.by_scheduler.values().any(|window| window.knows(name))
    }

    /// As [`SchedulingWindow::restore`], for a pod of a scheduler.
    pub(in crate::engine) fn restore(&mut self, scheduler: &str, request: Request, now: Instant) {
        self.of(scheduler).restore(request, now);
    }

    /// As [`SchedulingWindow::ask`], for a pod of a scheduler.
    pub(in crate::engine) fn ask(&mut self, scheduler: &str, request: Request, now: Instant) -> Answer {
        self.of(scheduler).ask(request, now)
    }

    /// As [`SchedulingWindow::observe`], in the windows that know the pod.
    pub(in crate::engine) fn observe(&mut self, name: &Name, stage: Option<SchedulingStage>, now: Instant) -> Progress {
        let mut progress = Progress::default();
        for window in self.by_scheduler.values_mut().filter(|window| window.knows(name)) {
            let Progress { tried_after, admitted } = window.observe(name, stage, now);
            progress.tried_after = progress.tried_after.or(tried_after);
            progress.admitted.extend(admitted);
        }
        progress
    }

    /// As [`SchedulingWindow::forget`].
    pub(in crate::engine) fn forget(&mut self, name: &Name, now: Instant) -> Vec<Admitted> {
        let windows = self.by_scheduler.values_mut();
        windows.flat_map(|window| window.forget(name, now)).collect()
    }

    /// As [`SchedulingWindow::check`].
    pub(in crate::engine) fn check(&mut self, now: Instant) -> Checked {
        let mut all = Checked::default();
        for window in self.by_scheduler.values_mut() {
            let Checked { admitted, late } = window.check(now);
            all.admitted.extend(admitted);
            all.late.extend(late);
        }
        all
    }

    fn of(&mut self, scheduler: &str) -> &mut SchedulingWindow {
        let maximum = self.maximum;
        self.by_scheduler
            .entry(scheduler.to_owned())
            .or_insert_with(|| SchedulingWindow::new(maximum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{
        test_requests::{name, request},
        window::TIMEOUT,
    };

    #[test]
    fn pods_of_a_scheduler_that_does_not_run_delay_no_others() {
        let now = Instant::now();
        let mut windows = SchedulingWindows::new(1);
        for of in ["b1", "b2"] {
            let waits = windows.ask("batch", request(of), now).waits.is_some();
            assert_eq!(waits, of == "b2");
        }
        windows.observe(&name("b1"), Some(SchedulingStage::Untried), now);
        assert_eq!(windows.ask(DEFAULT_SCHEDULER, request("d1"), now).waits, None);
        assert!(windows.ask(DEFAULT_SCHEDULER, request("d2"), now).waits.is_some());
        assert_eq!((windows.limit(), windows.used(), windows.waiting()), (2, 2, 2));
        // Only the window of the one that does not run opens.
        let later = now + TIMEOUT;
        windows.observe(&name("d1"), Some(SchedulingStage::Tried), later);
        let later = windows.rests_until().unwrap();
        let admitted = windows.check(later).admitted;
        assert_eq!(admitted.len(), 2, "one of each scheduler");
        assert!(windows.ask(DEFAULT_SCHEDULER, request("d3"), later).waits.is_some());
        assert_eq!(windows.ask("batch", request("b3"), later).waits, None);
        assert!(windows.ask(DEFAULT_SCHEDULER, request("d3"), later).waits.is_some());
    }

    #[test]
    fn a_pod_leaves_the_window_that_it_is_in() {
        let now = Instant::now();
        let mut windows = SchedulingWindows::new(1);
        windows.ask("batch", request("placed"), now);
        windows.ask("batch", request("waits"), now);
        assert!(windows.knows(&name("placed")) && windows.knows(&name("waits")));
        let admitted = windows.forget(&name("placed"), now);
        assert_eq!(admitted.len(), 1, "the place is for the other");
        windows.forget(&name("waits"), now);
        assert!(!windows.knows(&name("placed")) && !windows.knows(&name("waits")));
    }
}
