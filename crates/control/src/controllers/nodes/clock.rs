//! The clock of control: that of the host's API server.
//!
//! Times on nodes outlive the control that wrote them, and the machine of the next one may have another clock. With one that is
//! ahead, the time limits of all nodes would seem to be over, and nodes that are being recycled would be quarantined. So time
//! is read from the API server, the same for all controls, and counted from there without the clock of the machine.

use crate::error::{ReconcileError, api};
use berth_runtime::answers::read_time;
use jiff::{SignedDuration, Timestamp};
use kube::{Client, client::Body};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// How often the time is read.
const INTERVAL: Duration = Duration::from_secs(30);
/// Time for the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Differences up to this are none: a header has whole seconds and travels.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(5);

/// The time by the clock of the host. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// A time, and when it was. None: the host has not said the time, and the clock of the machine counts.
    base: Option<(Timestamp, Instant)>,
    /// When the host was asked last.
    read_at: Option<Instant>,
    /// By how many seconds the time is ahead, in tests.
    ahead: i64,
}

impl State {
    /// The time `by` the clock of the machine, if the host has not said it.
    fn time(&self, by: Timestamp) -> Timestamp {
        let counted = self
            .base
            .and_then(|(time, at)| time.checked_add(SignedDuration::try_from(at.elapsed()).ok()?).ok());
        counted.unwrap_or(by)
    }

    /// Takes the time of the host, unless it is about the same: time should not jump.
    fn correct(&mut self, host: Timestamp, machine: Timestamp) {
        let known = self.time(machine);
        let difference = known.duration_since(host);
        let time = if difference.abs() <= TOLERANCE {
            known
        } else {
            tracing::warn!(
                seconds = difference.as_secs(),
                "the clock of control differs from that of the host's API server, which counts"
            );
            host
        };
        self.base = Some((time, Instant::now()));
    }
}

impl Clock {
    /// The time.
    pub fn now(&self) -> Timestamp {
        let state = self.state();
        let now = state.time(Timestamp::now());
        now.saturating_add(SignedDuration::from_secs(state.ahead))
            .unwrap_or(now)
    }

    /// Reads the time of the host, if that was not done a short while ago. A host that does not say the time leaves it as it is.
    ///
    /// # Errors
    /// The host does not answer, and its time is not known.
    pub(crate) async fn synchronize(&self, client: &Client) -> Result<(), ReconcileError> {
        if self.state().read_at.is_some_and(|at| at.elapsed() < INTERVAL) {
            return Ok(());
        }
        let Ok(request) = http::Request::get("/version").body(Body::empty()) else {
            return Ok(());
        };
        let answer = tokio::time::timeout(TIMEOUT, client.send(request)).await;
        let answer = answer.unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into())));
        let mut state = self.state();
        match answer {
            Ok(answer) => {
                if let Some(host) = read_time(&answer) {
                    state.correct(host, Timestamp::now());
                }
            }
            Err(error) if state.base.is_none() => return Err(api("read the time of the host")(error)),
            // The time is counted on.
            Err(error) => tracing::debug!(%error, "the time of the host was not read"),
        }
        state.read_at = Some(Instant::now());
        Ok(())
    }

    /// Sets how many seconds it is ahead; negative: behind. Only tests of clocks that jump do that.
    pub fn set_ahead(&self, seconds: i64) {
        self.state().ahead = seconds;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// An API server that answers with this header, and refuses the request itself.
    fn host(date: Option<&'static str>) -> Client {
        let service = tower::service_fn(move |_: http::Request<Body>| async move {
            let mut answer = http::Response::builder().status(403);
            if let Some(date) = date {
                answer = answer.header(http::header::DATE, date);
            }
            Ok::<_, Infallible>(answer.body(Body::empty()).unwrap())
        });
        Client::new(service, "default")
    }

    #[test]
    fn copies_of_a_clock_jump_together() {
        let clock = Clock::default();
        let of_control = clock.clone();
        clock.set_ahead(-3600);
        assert!(of_control.now() < Timestamp::now() - SignedDuration::from_mins(59));
    }

    #[tokio::test]
    async fn the_time_is_that_of_the_host() {
        let clock = Clock::default();
        let client = host(Some("Thu, 01 Jan 1970 00:16:40 GMT"));
        clock.synchronize(&client).await.unwrap();
        let now = clock.now().as_second();
        assert!((1_000..1_060).contains(&now), "{now}");
    }

    #[tokio::test]
    async fn a_host_that_does_not_say_the_time_changes_nothing() {
        for date in [None, Some("yesterday")] {
            let clock = Clock::default();
            clock.synchronize(&host(date)).await.unwrap();
            assert!(clock.now().duration_since(Timestamp::now()).abs() < SignedDuration::from_secs(1));
        }
    }

    #[test]
    fn the_clock_of_the_machine_is_not_looked_at_again() {
        let mut state = State::default();
        assert_eq!(state.time(at(9)), at(9));
        state.correct(at(100), at(102));
        assert_eq!(
            state.time(at(8_000)).as_second(),
            102,
            "about the same: it does not jump"
        );
        state.correct(at(101), at(8_000));
        assert_eq!(state.time(at(8_000)).as_second(), 102);
        state.correct(at(110), at(8_000));
        assert_eq!(state.time(at(8_000)).as_second(), 110);
    }
}
