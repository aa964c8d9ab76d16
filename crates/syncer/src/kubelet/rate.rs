//! How many logs, commands and forwarded ports a tenant may begin on the host.
//!
//! API servers hand requests for them out to no queue: their priority and fairness leaves requests out that last long, however short one
//! is. Each of them costs the host's API server a handshake and a connection to a kubelet, so the syncer limits them for its tenant. One namespace has
//! half of that at most, so that others can go on.

use super::request::Denial;
use axum::http::StatusCode;
use berth_sync_rules::admission::writes::Pace;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Requests a second, in the long run.
const RATE: u64 = 50;
/// Requests at once: as many as there may be [`super::CONNECTIONS`].
const AT_ONCE: u64 = 384;
/// Both for the pods of one namespace.
const RATE_OF_NAMESPACE: u64 = RATE / 2;
const AT_ONCE_IN_NAMESPACE: u64 = AT_ONCE / 2;
/// With more namespaces those are forgotten that have begun none lately.
const MANY: usize = 256;

/// The rate of one tenant.
pub(super) struct Rate(Mutex<Paces>);

struct Paces {
    all: Pace,
    by_namespace: HashMap<Arc<str>, Pace>,
}

impl Rate {
    /// A rate of which nothing is used at `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self(Mutex::new(Paces {
            all: Pace::with_allowance(AT_ONCE, RATE, now),
            by_namespace: HashMap::new(),
        }))
    }

    /// Counts a request for a pod of a namespace. Returns the time after which it may be made.
    ///
    /// # Errors
    /// That would be too late. Nothing was counted.
    pub(super) fn take(&self, namespace: &Arc<str>, now: Instant) -> Result<Duration, Denial> {
        let mut paces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if paces.by_namespace.len() >= MANY {
            paces
                .by_namespace
                .retain(|_, pace| !pace.has(AT_ONCE_IN_NAMESPACE, now));
        }
        let whole = || Pace::with_allowance(AT_ONCE_IN_NAMESPACE, RATE_OF_NAMESPACE, now);
        let mut own = paces.by_namespace.get(namespace).copied().unwrap_or_else(whole);
        let mut all = paces.all;
        let own_wait = own.take(1, now);
        let own_wait = own_wait.map_err(|_| denial("pods of a namespace of your cluster", RATE_OF_NAMESPACE))?;
        let wait = all.take(1, now).map_err(|_| denial("your cluster", RATE))?;
        paces.all = all;
        paces.by_namespace.insert(Arc::clone(namespace), own);
        Ok(wait.max(own_wait))
    }
}

fn denial(whose: &str, rate: u64) -> Denial {
    let message =
        format!("more than {rate} logs, commands and forwarded ports of {whose} begin in a second; try again later");
    Denial::new(StatusCode::TOO_MANY_REQUESTS, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts requests for pods of a namespace that may be made within some seconds. Returns their waits.
    fn take_all(rate: &Rate, namespace: &str, now: Instant) -> Vec<Duration> {
        let namespace = Arc::from(namespace);
        (0..1000).map_while(|_| rate.take(&namespace, now).ok()).collect()
    }

    fn at_once(waits: &[Duration]) -> usize {
        waits.iter().filter(|wait| wait.is_zero()).count()
    }

    #[test]
    fn many_begin_at_once_and_then_some_each_second() {
        let start = Instant::now();
        let rate = Rate::new(start);
        assert_eq!(usize::try_from(AT_ONCE), Ok(super::super::CONNECTIONS));
        let waits = take_all(&rate, "team", start);
        assert!(waits.is_sorted());
        assert_eq!(
            (at_once(&waits), waits.len()),
            (192, 192 + 125),
            "five seconds of them wait"
        );
        let denied = rate.take(&"team".into(), start).unwrap_err();
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(take_all(&rate, "team", start + Duration::from_secs(1)).len(), 25);
    }

    #[test]
    fn a_namespace_that_begins_many_leaves_half_to_others() {
        let start = Instant::now();
        let rate = Rate::new(start);
        let mut now = start;
        let mut of_others = 0;
        for _ in 0..60 {
            take_all(&rate, "busy", now);
            let others = take_all(&rate, "other", now);
            of_others += others.len();
            assert!(!others.is_empty(), "after {:?}", now - start);
            now += Duration::from_secs(1);
        }
        assert!(of_others > 60 * 20, "{of_others}");
    }

    #[test]
    fn namespaces_that_begin_no_more_are_forgotten() {
        let start = Instant::now();
        let rate = Rate::new(start);
        for number in 0..10_000_u64 {
            let now = start + Duration::from_secs(number);
            assert!(rate.take(&number.to_string().into(), now).is_ok());
        }
        assert!(rate.0.lock().unwrap().by_namespace.len() <= MANY);
    }
}
