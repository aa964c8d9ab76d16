//! The clock of control: that of the host's API server.
//!
//! Times in objects outlive the control that wrote them, and the machine of the next one may have another clock. With one that is
//! ahead, the time limits of all nodes would seem to be over, and every tenant with a TTL would be deleted. So time is read from
//! the API server, the same for all controls, and counted from there without the clock of the machine. Control begins its work
//! once the host has said the time ([`Clock::wait_for_host`]).
//!
//! One of several API servers can have a wrong clock for a while. A time that is far from the one before is believed at once if the clock of the machine says
//! the same, and else only if the host says it for an hour. Otherwise tenants would expire, and so would records of usage, and a month to come would be billed.
//!
//! What nothing depends on but what people read, such as the time of an Event, is by the clock of the machine. So are certificates, both when they
//! are made and when they are renewed.

pub(crate) use berth_api::whole_seconds;

use berth_runtime::{answers::read_time, locks::lock};
use jiff::{SignedDuration, Timestamp};
use kube::{Client, client::Body};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// How often the time is read.
const INTERVAL: Duration = Duration::from_secs(30);
/// Time for the answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the time is read again that is not known.
const RETRY: Duration = Duration::from_secs(1);
/// Differences up to this are none: a header has whole seconds and travels.
const TOLERANCE: SignedDuration = SignedDuration::from_secs(5);
/// Differences from this on are a jump: a clock is wrong, or was, or machines stood still.
const JUMP: SignedDuration = SignedDuration::from_mins(30);
/// How many times in a row the host has to say a time after a jump until that is the time: an hour.
const CONFIRMATIONS: u32 = 120;

/// The time by the clock of the host. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// A time, and when it was. None: the host has not said the time, and the clock of the machine counts.
    base: Option<(Timestamp, Instant)>,
    /// What the host said last, if that is not believed yet.
    jump: Option<Jump>,
    /// How many more times in a row the host has to say the time that it said first, as the clock of the machine said another one; 0: it is confirmed.
    unconfirmed: u32,
    /// By how many seconds the time is ahead, in tests.
    ahead: i64,
}

/// A time of the host that is far from the one before.
#[derive(Clone, Copy, Debug)]
struct Jump {
    /// By how much the host is ahead; negative: behind.
    ahead: SignedDuration,
    /// How many times in a row it has said so.
    times: u32,
}

/// Why the time of the host is not known.
#[derive(Debug, thiserror::Error)]
enum ClockError {
    #[error("it does not answer: {0}")]
    Unanswered(#[from] kube::Error),
    #[error("its answer has no time that can be read, in the header Date")]
    NoTime,
}

impl State {
    /// The time `by` the clock of the machine, if the host has not said it.
    fn time(&self, by: Timestamp) -> Timestamp {
        let counted = self
            .base
            .and_then(|(time, at)| time.checked_add(SignedDuration::try_from(at.elapsed()).ok()?).ok());
        counted.unwrap_or(by)
    }

    /// Takes the time of the host, unless it is about the same, or not believed yet: time should not jump.
    fn correct(&mut self, host: Timestamp, machine: Timestamp) {
        let known = self.time(machine);
        let difference = known.duration_since(host);
        self.jump = self.find_jump(known, host, machine);
        if let Some(jump) = self.jump {
            if self.unconfirmed > 0 {
                // The host has not said the same all the time.
                self.unconfirmed = CONFIRMATIONS;
            }
            tracing::warn!(
                seconds = jump.ahead.as_secs(),
                "the clock of the host's API server has jumped, and that of the machine of control has not: control goes on \
                 with the time before, for an hour"
            );
            return;
        }
        self.unconfirmed = if agree(host, machine) {
            0
        } else if self.base.is_none() {
            CONFIRMATIONS
        } else {
            self.unconfirmed.saturating_sub(1)
        };
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

    /// Whether the host says a time that is not believed yet, as nothing else confirms it.
    fn find_jump(&self, known: Timestamp, host: Timestamp, machine: Timestamp) -> Option<Jump> {
        let ahead = host.duration_since(known);
        let is_known = self.base.is_some();
        if !is_known || agree(host, known) || agree(host, machine) {
            return None;
        }
        let same = self.jump.filter(|before| (before.ahead - ahead).abs() < JUMP);
        let times = same.map_or(1, |before| before.times + 1);
        (times < CONFIRMATIONS).then_some(Jump { ahead, times })
    }
}

/// Whether two clocks say about the same, as far as jumps matter.
fn agree(one: Timestamp, other: Timestamp) -> bool {
    one.duration_since(other).abs() < JUMP
}

impl Clock {
    /// The time.
    pub fn now(&self) -> Timestamp {
        let state = self.state();
        let now = state.time(Timestamp::now());
        now.saturating_add(SignedDuration::from_secs(state.ahead))
            .unwrap_or(now)
    }

    /// Whether the host has said the time. Until then it is that of the machine, by which nothing is decided that cannot be undone.
    pub fn is_known(&self) -> bool {
        self.state().base.is_some()
    }

    /// Whether the host has said the time, and either the machine says about the same, or the host has said it for an hour. By another time, nothing is
    /// deleted for good.
    pub(crate) fn is_confirmed(&self) -> bool {
        let state = self.state();
        state.base.is_some() && state.unconfirmed == 0
    }

    /// Waits until the host has said the time.
    pub(crate) async fn wait_for_host(&self, client: &Client) {
        while !self.is_known() {
            if let Err(error) = self.read(client).await {
                tracing::warn!(%error, "control waits for the time of the host's API server");
                tokio::time::sleep(RETRY).await;
            }
        }
    }

    /// Reads the time of the host again and again, until `stop`. While the host does not say it, the time is counted on.
    pub(crate) async fn follow(self, client: Client, stop: CancellationToken) {
        loop {
            let reading = async {
                tokio::time::sleep(INTERVAL).await;
                self.read(&client).await
            };
            tokio::select! {
                () = stop.cancelled() => return,
                read = reading => {
                    if let Err(error) = read {
                        tracing::debug!(%error, "the time of the host was not read");
                    }
                }
            }
        }
    }

    /// Reads the time of the host once.
    async fn read(&self, client: &Client) -> Result<(), ClockError> {
        let request = http::Request::get("/version").body(Body::empty());
        let request = request.map_err(kube::Error::HttpError)?;
        let answer = tokio::time::timeout(TIMEOUT, client.send(request)).await;
        let answer = answer.unwrap_or_else(|elapsed| Err(kube::Error::Service(elapsed.into())))?;
        let host = read_time(&answer).ok_or(ClockError::NoTime)?;
        self.state().correct(host, Timestamp::now());
        Ok(())
    }

    /// Sets how many seconds it is ahead; negative: behind. Only tests of clocks that jump do that.
    pub fn set_ahead(&self, seconds: i64) {
        self.state().ahead = seconds;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        lock(&self.0)
    }
}

#[cfg(test)]
impl Clock {
    /// A clock as if the host had just said that it is `now`.
    pub(crate) fn at(now: Timestamp) -> Self {
        let clock = Self::default();
        clock.state().base = Some((now, Instant::now()));
        clock
    }

    /// Sets how many more times the host has to say this time until it is confirmed.
    pub(crate) fn set_unconfirmed(&self, times: u32) {
        self.state().unconfirmed = times;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

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
        clock.wait_for_host(&client).await;
        let now = clock.now().as_second();
        assert!((1_000..1_060).contains(&now), "{now}");
    }

    #[tokio::test]
    async fn without_the_time_of_the_host_it_is_not_known() {
        for date in [None, Some("yesterday")] {
            let clock = Clock::default();
            assert!(matches!(clock.read(&host(date)).await, Err(ClockError::NoTime)));
            assert!(!clock.is_known());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn control_waits_for_the_time_of_the_host() {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&asked);
        // It does not answer, then it says no time, then it does.
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            async move {
                if number == 0 {
                    return Err(std::io::Error::other("refused"));
                }
                let answer = http::Response::builder();
                let answer = match number {
                    1 => answer,
                    _ => answer.header(http::header::DATE, "Thu, 01 Jan 1970 00:16:40 GMT"),
                };
                Ok(answer.body(Body::empty()).unwrap())
            }
        });
        let clock = Clock::default();
        clock.wait_for_host(&Client::new(service, "default")).await;
        assert!(clock.is_known());
        assert_eq!(asked.load(Ordering::SeqCst), 3);
    }

    /// The time by a clock that was right at second 100,000, once the host and the machine say these times.
    fn corrected(host: i64, machine: i64) -> i64 {
        let mut state = State::default();
        state.correct(at(100_000), at(100_000));
        state.correct(at(host), at(machine));
        state.time(at(0)).as_second()
    }

    #[test]
    fn a_jump_of_the_host_is_believed_if_the_machine_says_the_same() {
        let (day, year) = (86_400, 31_536_000);
        assert_eq!(corrected(100_000 + year, 100_000), 100_000);
        assert_eq!(corrected(0, 100_000), 100_000);
        assert_eq!(
            corrected(100_000 + year, 100_000 + day),
            100_000,
            "the machine says another time"
        );
        // The machines stood still.
        assert_eq!(corrected(100_000 + day, 100_060 + day), 100_000 + day);
        assert_eq!(corrected(101_700, 5), 101_700, "no jump");
    }

    #[test]
    fn a_jump_of_the_host_is_believed_after_an_hour() {
        let mut state = State::default();
        state.correct(at(100_000), at(100_000));
        let says = |state: &mut State, host: i64, times: u32| {
            for _ in 0..times {
                state.correct(at(host), at(100_000));
            }
            state.time(at(0)).as_second()
        };
        assert_eq!(says(&mut state, 900_000, CONFIRMATIONS - 1), 100_000);
        // Another API server answers, with the right time or with a third one.
        assert_eq!(says(&mut state, 100_000, 1), 100_000);
        assert_eq!(says(&mut state, 900_000, CONFIRMATIONS - 1), 100_000);
        assert_eq!(says(&mut state, 500_000, 1), 100_000);
        assert_eq!(says(&mut state, 900_000, CONFIRMATIONS - 1), 100_000);
        assert_eq!(says(&mut state, 900_030, 1), 900_030);
        assert_eq!(says(&mut state, 900_030, 1), 900_030);
    }

    #[test]
    fn the_first_time_of_the_host_is_confirmed_by_the_machine_or_by_an_hour() {
        let clock = Clock::default();
        let says = |host: i64, machine: i64, times: u32| {
            for _ in 0..times {
                clock.state().correct(at(host), at(machine));
            }
            clock.is_confirmed()
        };
        assert!(!clock.is_confirmed(), "the host has said nothing");
        assert!(!says(900_000, 100_000, 1));
        // Another API server answers, with the time of the machine.
        assert!(says(100_000, 100_000, 1));
        assert_eq!(clock.now().as_second(), 100_000);
        assert!(says(100_001, 900_000, 1), "the machine is not asked again");

        *clock.state() = State::default();
        assert!(!says(900_000, 100_000, CONFIRMATIONS));
        // Another API server answers, with a third time.
        assert!(!says(500_000, 100_000, 1));
        assert!(!says(900_000, 100_000, CONFIRMATIONS - 1));
        assert!(says(900_000, 100_000, 1));
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
