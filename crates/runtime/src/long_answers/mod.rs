//! Answers that are long: of those that share places, few are read at the same time.
//!
//! Who collects an answer has all of it in memory, and while it is parsed once more. Each has a limit of its own, but many can be as long as that at
//! the same time, as servers that others run decide on it. So an answer that becomes long waits for one of few places before more of it is read,
//! in the order in which they come.
//!
//! None waits for ever. Who has a place needs nothing else to come to an end, as a request has one place at most. A task waits for the place and
//! takes it back after a time: a future that is polled no further, such as those beside one that is worked on, keeps it no longer. Those who have
//! servers that are slow on purpose can make other long answers wait, for the time of a place each. Short ones wait for nothing.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tokio::{
    sync::{Semaphore, oneshot},
    time::{Instant, Sleep, sleep, sleep_until, timeout},
};

/// The places. Clones share them.
#[derive(Clone, Debug)]
pub struct LongAnswers {
    places: Arc<Semaphore>,
    time: Duration,
}

impl LongAnswers {
    /// So many places, and the time for which an answer may have one.
    pub fn new(places: usize, time: Duration) -> Self {
        Self {
            places: Arc::new(Semaphore::new(places)),
            time,
        }
    }

    /// That of an answer, which has none yet.
    pub(crate) fn place(&self) -> Place {
        Place {
            all: self.clone(),
            claim: None,
        }
    }

    /// Asks for a place.
    fn claim(&self) -> Claim {
        let (take, taken) = oneshot::channel();
        let (give_back, given_back) = oneshot::channel();
        tokio::spawn(self.clone().keep(take, given_back));
        Claim {
            taken,
            until: None,
            give_back,
        }
    }

    /// Waits for a place, and keeps it until it is given back or its time is over.
    async fn keep(self, take: oneshot::Sender<Instant>, mut given_back: oneshot::Receiver<Duration>) {
        let place = tokio::select! {
            biased;
            _ = &mut given_back => return,
            place = self.places.acquire_owned() => place,
        };
        // Nobody closes the semaphore. Without a receiver the answer was given up.
        let Ok(_place) = place else { return };
        if take.send(Instant::now()).is_err() {
            return;
        }
        if let Ok(Ok(after)) = timeout(self.time, given_back).await {
            sleep(after).await;
        }
    }
}

/// An answer was ended because it is long and does not come to an end.
#[derive(Debug, thiserror::Error)]
#[error("a long answer did not come to an end within {} s", .0.as_secs())]
pub(crate) struct TooSlow(Duration);

/// The place of an answer. Dropped, it is given back at once.
#[derive(Debug)]
pub(crate) struct Place {
    all: LongAnswers,
    /// None if none is needed.
    claim: Option<Claim>,
}

/// A place that an answer has, or waits for.
#[derive(Debug)]
struct Claim {
    /// When it was taken.
    taken: oneshot::Receiver<Instant>,
    /// Until when it may be kept; none while the answer waits.
    until: Option<Pin<Box<Sleep>>>,
    /// Gives it back, after so much time.
    give_back: oneshot::Sender<Duration>,
}

impl Place {
    /// Waits for a place, which the answer keeps from then on. Returns whether it has got it just now. An error if it has had it for too long.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<bool, TooSlow>> {
        let all = &self.all;
        let claim = self.claim.get_or_insert_with(|| all.claim());
        let is_new = claim.until.is_none();
        if is_new {
            // Its task ends earlier only with the runtime.
            let Ok(since) = ready!(Pin::new(&mut claim.taken).poll(context)) else {
                return Poll::Ready(Err(TooSlow(all.time)));
            };
            claim.until = Some(Box::pin(sleep_until(since + all.time)));
        }
        let until = claim.until.as_mut();
        let is_over = until.is_some_and(|until| until.as_mut().poll(context).is_ready());
        Poll::Ready(if is_over { Err(TooSlow(all.time)) } else { Ok(is_new) })
    }

    /// Gives the place back, if there is one, after so much time. An answer that waits for one waits no longer.
    pub(crate) fn give_back(&mut self, after: Duration) {
        if let Some(claim) = self.claim.take() {
            // Without a receiver the time is over, and another answer may have it.
            let _ = claim.give_back.send(after);
        }
    }
}

#[cfg(test)]
mod tests;
