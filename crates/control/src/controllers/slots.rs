//! Slots: how many reconciles work at the same time.
//!
//! A tenant decides how long calls to its API server take: its webhooks may never answer. So a reconcile lends its slot to others
//! while it waits for something of a tenant ([`Slot::lend`]), and each wait has a time limit. Whatever tenants do, they hold no
//! slot. As a key is reconciled once at a time, no more reconciles wait than there are tenants.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

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
}

impl Slot {
    /// Waits at most `limit` for `call`, which waits for something of a tenant. Others have the slot meanwhile. None: the limit
    /// has passed.
    pub async fn lend<T>(&self, limit: Duration, call: impl Future<Output = T>) -> Option<T> {
        self.put(None);
        let result = tokio::time::timeout(limit, call).await.ok();
        let permit = self.slots.acquire().await;
        self.put(permit);
        result
    }

    fn put(&self, permit: Option<OwnedSemaphorePermit>) {
        *self.permit.lock().unwrap_or_else(PoisonError::into_inner) = permit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::time::{Instant, timeout};

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

    #[tokio::test(start_paused = true)]
    async fn a_reconcile_that_is_given_up_leaves_no_slot_behind() {
        let slots = Slots::new(1);
        let slot = slots.take().await;
        assert!(timeout(SECOND, slot.lend(30 * SECOND, pending::<()>())).await.is_err());
        drop(slot);
        assert_eq!(slots.0.available_permits(), 1);
    }
}
