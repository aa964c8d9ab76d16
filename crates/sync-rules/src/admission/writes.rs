//! How fast a tenant may write large objects into the datastore that it shares with other tenants.
//!
//! The limits of what a tenant stores are measured about once a minute, and count no history: whoever writes fast enough fills the
//! datastore before they take hold. API servers limit how many requests run at a time, not how many bytes they write. So each write above
//! [`LARGE`] takes its bytes from an allowance that grows again at the [pace](Pace) of the tenant's class. Smaller writes are limited by how
//! many an API server handles.

use serde::Deserialize;
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    time::{Duration, Instant},
};

/// Path at which the syncer answers about large writes.
pub const PATH: &str = "/writes";
/// Bytes of an object as text, with status and managed fields, above which a write takes from the allowance: several times what pods and
/// Deployments have.
pub const LARGE: u32 = 16 << 10;
/// Bytes that a tenant may write at once: the largest charts with their `CustomResourceDefinitions` are a few megabytes.
pub const ALLOWANCE: u64 = 32 << 20;
/// The part of an allowance, one in so many, that is left when a process starts.
const PART_AT_START: u64 = 10;
/// Longest time that a write waits for its turn. The API server gives up after ten seconds.
const LONGEST: Duration = Duration::from_secs(5);

/// A write that the API server asks about, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Identifies the request; the response repeats it.
    pub uid: String,
    /// Bytes of the object.
    pub bytes: u64,
}

#[derive(Deserialize)]
struct Review<'a> {
    #[serde(rename = "apiVersion")]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    request: Request<'a>,
}

#[derive(Deserialize)]
struct Request<'a> {
    uid: Cow<'a, str>,
    #[serde(borrow)]
    object: &'a RawValue,
}

impl Write {
    /// Reads an `AdmissionReview`. The object is measured and not read.
    ///
    /// # Errors
    /// It is none.
    pub fn read(review: &[u8]) -> Result<Self, &'static str> {
        let review: Review<'_> = serde_json::from_slice(review).map_err(|_| "not an AdmissionReview with an object")?;
        if review.api_version != "admission.k8s.io/v1" {
            return Err("not an AdmissionReview of admission.k8s.io/v1");
        }
        Ok(Self {
            uid: review.request.uid.into_owned(),
            bytes: review.request.object.get().len() as u64,
        })
    }
}

/// The pace at which a tenant may write: a token bucket, kept as the time at which its allowance is whole again (the generic cell rate
/// algorithm, ITU-T I.371).
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Bytes a second.
    rate: u64,
    /// Bytes that may be written at once.
    allowance: u64,
    /// When everything that was written is made up for.
    whole_at: Instant,
}

impl Pace {
    /// A pace of `rate` bytes a second, at least one, with a tenth of the allowance at `now`. For a process that starts: what was taken before, it does
    /// not know, and teams can cause restarts.
    pub fn at_start(allowance: u64, rate: u64, now: Instant) -> Self {
        let mut pace = Self::with_allowance(allowance, rate, now);
        pace.reserve(allowance - allowance / PART_AT_START, now);
        pace
    }

    /// The same with the whole allowance.
    pub fn with_allowance(allowance: u64, rate: u64, now: Instant) -> Self {
        Self {
            rate: rate.max(1),
            allowance,
            whole_at: now,
        }
    }

    /// Bytes a second.
    pub fn rate(&self) -> u64 {
        self.rate
    }

    /// Takes `bytes` from the allowance. Returns the time after which they may be written.
    ///
    /// # Errors
    /// That would be too late. The error is the time after which the same write may be asked for again; nothing was taken.
    pub fn take(&mut self, bytes: u64, now: Instant) -> Result<Duration, Duration> {
        let wait = self.wait_for(bytes, now);
        if wait > LONGEST {
            return Err(wait.saturating_sub(LONGEST));
        }
        Ok(self.reserve(bytes, now))
    }

    /// Whether `bytes` may be written at once.
    pub fn has(&self, bytes: u64, now: Instant) -> bool {
        self.wait_for(bytes, now).is_zero()
    }

    /// Takes `bytes` if they may be written at once. Returns whether they may.
    pub fn take_at_once(&mut self, bytes: u64, now: Instant) -> bool {
        let may = self.has(bytes, now);
        if may {
            self.reserve(bytes, now);
        }
        may
    }

    /// Takes `bytes` however long that is. Returns the time after which they may be written.
    pub fn reserve(&mut self, bytes: u64, now: Instant) -> Duration {
        let wait = self.wait_for(bytes, now);
        self.whole_at = self.whole_at.max(now) + self.time_for(bytes);
        wait
    }

    /// The time after which `bytes` may be written. Nothing is taken.
    pub fn wait_for(&self, bytes: u64, now: Instant) -> Duration {
        let whole_at = self.whole_at.max(now) + self.time_for(bytes);
        whole_at
            .duration_since(now)
            .saturating_sub(self.time_for(self.allowance))
    }

    fn time_for(&self, bytes: u64) -> Duration {
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.rate);
        Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX / 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const RATE: u64 = 4 << 20;
    const MEBIBYTE: u64 = 1 << 20;
    const NONE: Duration = Duration::ZERO;

    #[test]
    fn a_review_is_measured_by_its_object_alone() {
        let object = json!({"kind": "ConfigMap", "data": {"a": "x".repeat(20_000), "quoted": "\"\n"}});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u", "operation": "UPDATE", "object": object, "oldObject": {"data": {"a": "y".repeat(90_000)}}}});
        let write = Write::read(review.to_string().as_bytes()).unwrap();
        assert_eq!(
            write,
            Write {
                uid: "u".into(),
                bytes: object.to_string().len() as u64
            }
        );
        for other in [
            json!({}),
            json!({"apiVersion": "admission.k8s.io/v1beta1", "request": {"uid": "u", "object": {}}}),
        ] {
            assert!(Write::read(other.to_string().as_bytes()).is_err());
        }
    }

    #[test]
    fn the_allowance_is_free_and_then_writes_wait_until_they_are_refused() {
        let start = Instant::now();
        let mut pace = Pace::with_allowance(ALLOWANCE, RATE, start);
        for _ in 0..32 {
            assert_eq!(pace.take(MEBIBYTE, start), Ok(NONE));
        }
        let waits: Vec<_> = (0..20).map(|_| pace.take(MEBIBYTE, start).unwrap()).collect();
        assert_eq!(waits.first(), Some(&Duration::from_millis(250)));
        assert_eq!(waits.last(), Some(&LONGEST));
        let refused = pace.take(MEBIBYTE, start).unwrap_err();
        assert_eq!(refused, Duration::from_millis(250));
        assert_eq!(
            pace.take(MEBIBYTE, start + refused),
            Ok(LONGEST),
            "nothing was taken by what was refused"
        );
    }

    #[test]
    fn the_allowance_grows_again_and_not_beyond_itself() {
        let start = Instant::now();
        let mut pace = Pace::with_allowance(ALLOWANCE, RATE, start);
        assert_eq!(pace.take(ALLOWANCE, start), Ok(NONE));
        let later = start + Duration::from_secs(1);
        assert_eq!(pace.take(RATE, later), Ok(NONE));
        let much_later = start + Duration::from_hours(1);
        assert_eq!(pace.take(ALLOWANCE, much_later), Ok(NONE));
        assert_eq!(pace.take(RATE, much_later), Ok(Duration::from_secs(1)));
    }

    #[test]
    fn a_process_that_starts_has_a_tenth_of_the_allowance() {
        let start = Instant::now();
        let mut pace = Pace::at_start(600, 1, start);
        assert!(!pace.take_at_once(61, start) && pace.take_at_once(60, start));
        let whole = start + Duration::from_mins(10);
        assert!(pace.take_at_once(600, whole) && !pace.take_at_once(1, whole));
    }

    #[test]
    fn no_pace_is_a_division_by_zero_or_an_overflow() {
        let now = Instant::now();
        assert!(Pace::with_allowance(ALLOWANCE, 0, now).take(u64::MAX, now).is_err());
        assert_eq!(
            Pace::with_allowance(ALLOWANCE, u64::MAX, now).take(8 << 20, now),
            Ok(NONE)
        );
    }

    #[test]
    fn what_cannot_wait_delays_what_follows() {
        let start = Instant::now();
        let mut pace = Pace::with_allowance(MEBIBYTE, MEBIBYTE, start);
        assert!(pace.take_at_once(MEBIBYTE, start));
        assert!(!pace.take_at_once(1024, start), "nothing is left");
        assert_eq!(pace.reserve(60 * MEBIBYTE, start), Duration::from_mins(1));
        let later = start + Duration::from_mins(1);
        assert!(!pace.take_at_once(1024, later));
        assert!(pace.take_at_once(MEBIBYTE, later + Duration::from_secs(1)));
    }

    proptest! {
        /// Whatever is asked for at whatever times, no more is written in any time than the allowance and the pace give.
        #[test]
        fn no_more_is_written_than_the_pace_allows(writes in prop::collection::vec((0_u64..2_000_000, 0_u64..500), 1..300)) {
            let start = Instant::now();
            let (mut pace, mut now, mut written) = (Pace::with_allowance(ALLOWANCE, RATE, start), start, 0);
            for (bytes, pause) in writes {
                now += Duration::from_millis(pause);
                if let Ok(wait) = pace.take(bytes, now) {
                    prop_assert!(wait <= LONGEST);
                    written += bytes;
                    let seconds = (now + wait).duration_since(start).as_secs_f64();
                    #[allow(clippy::cast_precision_loss, reason = "the sums are far below 2^52")]
                    let allowed = ALLOWANCE as f64 + seconds * RATE as f64;
                    #[allow(clippy::cast_precision_loss, reason = "the sums are far below 2^52")]
                    let sum = written as f64;
                    prop_assert!(sum <= allowed + 1000.0, "{sum} of {allowed}");
                }
            }
        }
    }
}
