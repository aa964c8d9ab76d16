//! Lets the tenant's large writes wait for their turn ([`berth_sync_rules::admission::writes`]).

use berth_runtime::locks::lock;
use berth_sync_rules::admission::{
    review::{Denial, Verdict},
    writes::{ALLOWANCE, LARGE, Pace, Write},
};
use std::{
    sync::Mutex,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// Writes that wait at a time: few of the connections of the API servers, so that Services never wait for one.
const WAITING: usize = 16;

/// The pace of the tenant's writes, and the places of those that wait.
#[derive(Debug)]
pub(crate) struct Turns {
    pace: Mutex<Pace>,
    places: Semaphore,
}

impl Turns {
    /// Turns for writes of `rate` bytes a second, with what a syncer starts with.
    pub(crate) fn new(rate: u64) -> Self {
        Self {
            pace: Mutex::new(Pace::at_start(ALLOWANCE, rate, Instant::now())),
            places: Semaphore::new(WAITING),
        }
    }

    /// Answers a request once it is its turn; at once if that would take too long.
    pub(crate) async fn answer(&self, write: &Write) -> Verdict {
        let Ok(_place) = self.places.try_acquire() else {
            return Verdict::Deny(self.denial(Duration::from_secs(1)));
        };
        let taken = lock(&self.pace).take(write.bytes, Instant::now());
        match taken {
            Ok(wait) => {
                tokio::time::sleep(wait).await;
                Verdict::Allow(Vec::new())
            }
            Err(later) => Verdict::Deny(self.denial(later)),
        }
    }

    fn denial(&self, later: Duration) -> Denial {
        let rate = lock(&self.pace).rate();
        let seconds = later.as_secs() + 1;
        let message = format!(
            "the tenant writes more than {rate} bytes a second in objects of more than {LARGE} bytes, and shares its datastore with other \
             tenants: try again in {seconds} s, or ask the platform team to raise spec.limits.datastoreWriteBytesPerSecond of the class"
        );
        Denial::too_many(message, seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    const RATE: u64 = 1 << 20;

    fn write(bytes: u64) -> Write {
        Write { uid: "u".into(), bytes }
    }

    #[tokio::test(start_paused = true)]
    async fn writes_wait_for_their_turn_and_the_rest_is_asked_to_come_again() {
        let turns = Arc::new(Turns::new(RATE));
        let allowed = Verdict::Allow(Vec::new());
        let at_start = write(ALLOWANCE / 10);
        assert_eq!(turns.answer(&at_start).await, allowed, "what a syncer starts with");
        let waiting: Vec<_> = (0..WAITING)
            .map(|_| {
                let turns = Arc::clone(&turns);
                tokio::spawn(async move { turns.answer(&write(20_000)).await })
            })
            .collect();
        tokio::task::yield_now().await;
        let Verdict::Deny(denial) = turns.answer(&write(20_000)).await else {
            panic!("more wait than there are places")
        };
        assert_eq!((denial.code, denial.retry_after), (429, Some(1 + 1)));
        for waited in waiting {
            assert_eq!(waited.await.unwrap(), allowed);
        }
        let Verdict::Deny(denial) = turns.answer(&write(8 << 20)).await else {
            panic!("eight seconds are too long")
        };
        assert!(denial.message.contains("1048576 bytes a second"), "{}", denial.message);
    }
}
