//! Whose turn it is. Tenants decide how long their API servers take: work in them goes on side by side, and one that takes long delays itself.

use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use std::{collections::HashSet, mem, pin::pin, time::Duration};
use tokio::time::{Instant, timeout_at};

/// How long the others wait for a tenant before they go on beside it.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// How long the API server of a tenant takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Pace {
    /// Whether it did not answer in time. Pods of the tenant are evicted without a look at their owners.
    pub(super) is_slow: bool,
    /// Whether it took long in this pass.
    is_late: bool,
    /// Whether it did in the pass before.
    was_late: bool,
    /// When the pass began that looked into the tenant last.
    looked_at: Option<Instant>,
}

impl Pace {
    /// Begins a pass.
    pub(super) fn begin_pass(&mut self) {
        self.was_late = mem::take(&mut self.is_late);
    }

    /// Notes that a pass looked into the tenant, and how long that took.
    pub(super) fn look(&mut self, pass: Instant, took: Duration) {
        self.looked_at = Some(pass);
        self.note(took);
    }

    /// Notes how long something took.
    pub(super) fn note(&mut self, took: Duration) {
        self.is_late |= took > PATIENCE;
    }

    /// Whether others need not wait for it: it took long a short while ago, and will be asked nevertheless.
    pub(super) const fn is_late(&self) -> bool {
        (self.is_late || self.was_late) && !self.is_slow
    }

    /// The place among all tenants: the least comes first. Of those that are as quick, the one comes first that was looked at longest ago.
    pub(super) const fn place(&self, has_slow_kinds: bool) -> (bool, bool, Option<Instant>) {
        (self.is_slow, has_slow_kinds || self.is_late(), self.looked_at)
    }
}

/// Work that goes on side by side, at most one piece for each tenant.
pub(super) struct Turns<'a, T> {
    running: FuturesUnordered<BoxFuture<'a, (&'a str, T)>>,
    /// Tenants for which something goes on.
    busy: HashSet<&'a str>,
    /// What has ended since it was asked for last.
    ended: Vec<T>,
}

impl<'a, T: Send + 'a> Turns<'a, T> {
    pub(super) fn new() -> Self {
        Self {
            running: FuturesUnordered::new(),
            busy: HashSet::new(),
            ended: Vec::new(),
        }
    }

    pub(super) fn is_busy(&self, tenant: &str) -> bool {
        self.busy.contains(tenant)
    }

    /// Pieces of work that go on.
    pub(super) fn count_busy(&self) -> usize {
        self.busy.len()
    }

    /// What has ended.
    pub(super) fn take_ended(&mut self) -> Vec<T> {
        mem::take(&mut self.ended)
    }

    /// Begins work for a tenant that is not busy, and waits for its end, but not for longer than `patience`.
    pub(super) async fn begin(
        &mut self,
        tenant: &'a str,
        patience: Duration,
        work: impl Future<Output = T> + Send + 'a,
    ) {
        self.busy.insert(tenant);
        self.running.push(work.map(move |done| (tenant, done)).boxed());
        let until = Instant::now() + patience;
        while self.busy.contains(tenant) {
            match timeout_at(until, self.running.next()).await {
                Ok(Some(ended)) => self.end(ended),
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Waits for something else while the work goes on.
    pub(super) async fn beside<A>(&mut self, other: impl Future<Output = A>) -> A {
        let mut other = pin!(other);
        loop {
            tokio::select! {
                biased;
                answer = &mut other => return answer,
                Some(ended) = self.running.next(), if !self.busy.is_empty() => self.end(ended),
            }
        }
    }

    /// Waits until a piece of work has ended. Returns whether there was one.
    pub(super) async fn wait(&mut self) -> bool {
        let Some(ended) = self.running.next().await else {
            return false;
        };
        self.end(ended);
        true
    }

    fn end(&mut self, (tenant, done): (&'a str, T)) {
        self.busy.remove(tenant);
        self.ended.push(done);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::time::sleep;

    const LONG: Duration = Duration::from_secs(20);

    /// Work that takes a while.
    async fn take(name: &'static str, time: Duration) -> &'static str {
        if !time.is_zero() {
            sleep(time).await;
        }
        name
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_that_are_quick_take_turns() {
        let mut turns = Turns::new();
        for name in ["a", "b", "a", "c"] {
            turns.begin(name, PATIENCE, take(name, PATIENCE / 2)).await;
            assert_eq!((turns.take_ended(), turns.count_busy()), (vec![name], 0));
        }
        assert!(!turns.wait().await, "nothing is left");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_takes_long_delays_only_itself() {
        let mut turns = Turns::new();
        let started = Instant::now();
        for name in ["slow", "slower"] {
            turns.begin(name, PATIENCE, take(name, LONG)).await;
        }
        assert_eq!(started.elapsed().as_secs(), 2 * PATIENCE.as_secs());
        turns.begin("known", Duration::ZERO, take("known", LONG)).await;
        turns.begin("quick", PATIENCE, take("quick", Duration::ZERO)).await;
        assert_eq!(
            started.elapsed().as_secs(),
            2 * PATIENCE.as_secs(),
            "those that are known are not waited for"
        );
        assert_eq!((turns.take_ended(), turns.count_busy()), (vec!["quick"], 3));
        assert!(turns.is_busy("slow") && !turns.is_busy("quick"));
        while turns.wait().await {}
        assert_eq!(turns.take_ended(), ["slow", "slower", "known"]);
        let took = (2 * PATIENCE + LONG).as_secs();
        assert_eq!(started.elapsed().as_secs(), took, "they went on side by side");
    }

    #[tokio::test(start_paused = true)]
    async fn work_goes_on_while_something_else_is_waited_for() {
        let mut turns = Turns::new();
        turns.begin("slow", Duration::ZERO, take("slow", LONG)).await;
        assert_eq!(turns.beside(take("answer", 2 * LONG)).await, "answer");
        assert_eq!(turns.take_ended(), ["slow"]);
        assert_eq!(
            turns.beside(take("answer", LONG)).await,
            "answer",
            "also if there is none"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn tenants_that_take_long_come_after_the_others_until_they_are_quick() {
        let (first, second) = (Instant::now(), Instant::now() + LONG);
        let mut pace = Pace::default();
        let quick = Pace::default();
        assert_eq!(pace.place(false), quick.place(false));
        pace.look(first, PATIENCE * 2);
        assert!(pace.is_late() && pace.place(false) > quick.place(false));
        pace.begin_pass();
        assert!(pace.is_late(), "in the next pass");
        pace.look(second, PATIENCE);
        pace.begin_pass();
        assert!(!pace.is_late());
        assert!(quick.place(true) > pace.place(false), "it has kinds that do not answer");
        let mut other = Pace::default();
        other.look(first, PATIENCE);
        assert!(
            other.place(false) < pace.place(false),
            "it was not looked at for longer"
        );
        other.is_slow = true;
        assert!(other.place(false) > quick.place(true) && !other.is_late());
    }
}
