//! Slots: how many reconciles work at the same time.
//!
//! A tenant decides how long calls to its API server take: its webhooks may never answer. So a reconcile lends its slot to others
//! while it waits for something of a tenant ([`Slot::lend`]), and each wait has a time limit. Whatever tenants do, they hold no
//! slot. As a key is reconciled once at a time, no more reconciles wait than there are tenants. All waits of a reconcile together are limited as well:
//! one that is given up writes no status.

use berth_runtime::locks::lock;
use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

/// Time for all waits of a reconcile but [`Slot::lend_in_full`], each as long as it may take.
const WAITS: Duration = Duration::from_secs(50);
/// Time for each wait once that is used up: enough for what answers at once, so that what does not answer keeps nothing from being tried.
const LEAST_WAIT: Duration = Duration::from_secs(2);

/// All slots. Cheap to clone; all clones share them.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Semaphore>);

impl Slots {
    /// This many slots.
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    /// Waits for a slot. Cancel-safe.
    pub async fn take(&self) -> Slot {
        Slot {
            permit: Mutex::new(self.acquire().await),
            waited: Mutex::default(),
            slots: self.clone(),
        }
    }

    async fn acquire(&self) -> Option<OwnedSemaphorePermit> {
        // It fails if the semaphore is closed, which nothing does.
        Arc::clone(&self.0).acquire_owned().await.ok()
    }
}

/// A slot. It is free again when this is dropped.
#[derive(Debug)]
pub struct Slot {
    slots: Slots,
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// For how long its reconcile has waited for the tenant.
    waited: Mutex<Duration>,
}

impl Slot {
    /// Waits at most `limit` for `call`, which waits for something of a tenant, and not longer than [`Slot::shorten`] says. Others have the slot meanwhile.
    /// None: the limit has passed.
    pub async fn lend<T>(&self, limit: Duration, call: impl Future<Output = T>) -> Option<T> {
        let limited = async {
            let start = Instant::now();
            let result = timeout(self.shorten(limit), call).await.ok();
            *self.waited() += start.elapsed();
            result
        };
        self.leave_to_others_during(limited).await
    }

    /// As [`Slot::lend`], however long the reconcile has waited before: for one call of a reconcile, which would come no further in less time.
    pub async fn lend_in_full<T>(&self, limit: Duration, call: impl Future<Output = T>) -> Option<T> {
        let limited = async { timeout(limit, call).await.ok() };
        self.leave_to_others_during(limited).await
    }

    async fn leave_to_others_during<T>(&self, call: impl Future<Output = T>) -> T {
        self.put(None);
        let result = call.await;
        let permit = self.slots.acquire().await;
        self.put(permit);
        result
    }

    /// How long a wait may take that begins now, if it may take this long in a reconcile that has not waited yet.
    pub fn shorten(&self, limit: Duration) -> Duration {
        let left = WAITS.saturating_sub(*self.waited());
        limit.min(left.max(LEAST_WAIT))
    }

    fn waited(&self) -> MutexGuard<'_, Duration> {
        lock(&self.waited)
    }

    fn put(&self, permit: Option<OwnedSemaphorePermit>) {
        *lock(&self.permit) = permit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn reconciles_that_wait_for_tenants_leave_their_slots_to_others() {
        let slots = Slots::new(2);
        let waiting: Vec<_> = (0..100)
            .map(|_| {
                let slots = slots.clone();
                tokio::spawn(async move {
                    let slot = slots.take().await;
                    slot.lend(30 * SECOND, pending::<()>()).await
                })
            })
            .collect();
        tokio::time::sleep(SECOND).await;
        let start = Instant::now();
        for _ in 0..100 {
            let slot = slots.take().await;
            tokio::time::sleep(SECOND / 10).await;
            drop(slot);
        }
        assert!(start.elapsed() < 15 * SECOND, "no wait for a slot");
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), None, "the limit has passed");
        }
        assert_eq!(slots.0.available_permits(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn after_the_call_a_slot_is_needed_again() {
        let slots = Slots::new(1);
        let slot = Arc::new(slots.take().await);
        let lent = {
            let slot = Arc::clone(&slot);
            tokio::spawn(async move { slot.lend(SECOND, async { 7 }).await })
        };
        // The slot is not lent before the task runs: this waits until it is.
        let other = slots.take().await;
        tokio::time::sleep(SECOND).await;
        assert!(!lent.is_finished());
        drop(other);
        assert_eq!(lent.await.unwrap(), Some(7));
        assert!(timeout(SECOND, slots.take()).await.is_err(), "it has its slot again");
        drop(slot);
        assert!(timeout(SECOND, slots.take()).await.is_ok());
    }

    /// A reconcile that takes 100 s is given up, and its status is not written.
    #[tokio::test(start_paused = true)]
    async fn a_reconcile_ends_although_nothing_of_its_tenant_answers() {
        let slot = Slots::new(1).take().await;
        let start = Instant::now();
        for limit in [6, 20, 32, 3, 5, 3, 3, 10, 10, 5, 5, 5] {
            assert_eq!(slot.lend(limit * SECOND, pending::<()>()).await, None);
            // Each is tried, and what answers has its answer.
            assert_eq!(slot.lend(limit * SECOND, async { 7 }).await, Some(7));
        }
        assert!(start.elapsed() <= 70 * SECOND, "{:?}", start.elapsed());
        let full = 20 * SECOND;
        assert_eq!(slot.lend_in_full(full, pending::<()>()).await, None);
        assert!(start.elapsed() <= 90 * SECOND, "{:?}", start.elapsed());
        assert_eq!(slot.shorten(SECOND), SECOND);
    }

    #[tokio::test(start_paused = true)]
    async fn only_time_in_which_it_waits_counts() {
        let slot = Slots::new(1).take().await;
        tokio::time::sleep(10 * WAITS).await;
        assert_eq!(slot.shorten(WAITS), WAITS);
        slot.lend(WAITS, tokio::time::sleep(30 * SECOND)).await;
        let left = slot.shorten(WAITS);
        assert!(left <= 20 * SECOND && left > 19 * SECOND, "{left:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_is_given_up_leaves_no_slot_behind() {
        let slots = Slots::new(1);
        let slot = slots.take().await;
        assert!(timeout(SECOND, slot.lend(30 * SECOND, pending::<()>())).await.is_err());
        drop(slot);
        assert_eq!(slots.0.available_permits(), 1);
    }
}
