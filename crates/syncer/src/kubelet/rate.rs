//! How many logs, commands and forwarded ports a tenant may begin on the host.
//!
//! API servers hand requests for them out to no queue: their priority and fairness leaves requests out that last long, however short one
//! is. Each of them costs the host's API server a handshake and a connection to a kubelet, so the syncer limits them for its tenant.
//!
//! The role `view` in one namespace is enough to ask for logs all the time. So logs have three quarters at most, and so have commands and forwarded ports,
//! which need other rights. Of each, one namespace has half of all at most. While requests wait for others of the cluster, each counts more for its
//! namespace: some namespaces that ask for much leave something to one that asks for little.

use super::{
    request::{Action, Denial},
    shares::describe,
};
use axum::http::StatusCode;
use berth_runtime::locks::lock;
use berth_sync_rules::admission::writes::Pace;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

/// Requests a second, in the long run.
const RATE: u64 = 50;
/// Requests at once: as many as there may be [`super::CONNECTIONS`].
const AT_ONCE: u64 = 384;
/// Both for logs, and for the rest.
const RATE_OF_KIND: u64 = RATE * 3 / 4;
const AT_ONCE_OF_KIND: u64 = AT_ONCE * 3 / 4;
/// The same for the pods of one namespace.
const RATE_OF_NAMESPACE: u64 = RATE / 2;
const AT_ONCE_IN_NAMESPACE: u64 = AT_ONCE / 2;
/// With more namespaces those are forgotten that have begun none lately.
const MANY: usize = 256;

/// The rate of one tenant.
pub(super) struct Rate(Mutex<Paces>);

struct Paces {
    all: Pace,
    logs: Pace,
    commands: Pace,
    /// Of logs, and of the rest.
    by_namespace: HashMap<(bool, Arc<str>), Pace>,
}

impl Rate {
    /// A rate of which nothing is used at `now`.
    pub(super) fn new(now: Instant) -> Self {
        let of_kind = Pace::with_allowance(AT_ONCE_OF_KIND, RATE_OF_KIND, now);
        Self(Mutex::new(Paces {
            all: Pace::with_allowance(AT_ONCE, RATE, now),
            logs: of_kind,
            commands: of_kind,
            by_namespace: HashMap::new(),
        }))
    }

    /// Counts a request for a pod of a namespace. Returns the time after which it may be made.
    ///
    /// # Errors
    /// That would be too late. Nothing was counted.
    pub(super) fn take(&self, namespace: &Arc<str>, action: Action, now: Instant) -> Result<Duration, Denial> {
        let is_log = !action.is_stream();
        let mut paces = lock(&self.0);
        if paces.by_namespace.len() >= MANY {
            paces
                .by_namespace
                .retain(|_, pace| !pace.has(AT_ONCE_IN_NAMESPACE, now));
        }
        let key = (is_log, Arc::clone(namespace));
        let whole = || Pace::with_allowance(AT_ONCE_IN_NAMESPACE, RATE_OF_NAMESPACE, now);
        let mut own = paces.by_namespace.get(&key).copied().unwrap_or_else(whole);
        let (mut all, mut of_kind) = (paces.all, if is_log { paces.logs } else { paces.commands });
        let wait = all.take(1, now);
        let wait = wait.map_err(|_| denial("logs, commands and forwarded ports", "your cluster", RATE))?;
        let wait_of_kind = of_kind.take(1, now);
        let wait_of_kind = wait_of_kind.map_err(|_| denial(describe(is_log), "your cluster", RATE_OF_KIND))?;
        let wait = wait.max(wait_of_kind);
        let own_wait = own.take(1 + wait.as_secs(), now);
        let own_wait = own_wait.map_err(|_| {
            denial(
                describe(is_log),
                "pods of a namespace of your cluster",
                RATE_OF_NAMESPACE,
            )
        })?;
        paces.all = all;
        if is_log {
            paces.logs = of_kind;
        } else {
            paces.commands = of_kind;
        }
        paces.by_namespace.insert(key, own);
        Ok(wait.max(own_wait))
    }
}

fn denial(what: &str, whose: &str, rate: u64) -> Denial {
    let message = format!(
        "{what} of {whose} begin too often: at most {rate} a second, and fewer while others wait; try again later"
    );
    Denial::new(StatusCode::TOO_MANY_REQUESTS, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts logs of pods of a namespace that may be made within some seconds. Returns their waits.
    fn take_all(rate: &Rate, namespace: &str, now: Instant) -> Vec<Duration> {
        let namespace = Arc::from(namespace);
        (0..1000)
            .map_while(|_| rate.take(&namespace, Action::Log, now).ok())
            .collect()
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
        let denied = rate.take(&"team".into(), Action::Log, start).unwrap_err();
        assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(take_all(&rate, "team", start + Duration::from_secs(1)).len(), 25);
    }

    #[test]
    fn a_namespace_that_begins_many_leaves_some_to_others() {
        let start = Instant::now();
        let rate = Rate::new(start);
        let mut of_others = 0;
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            take_all(&rate, "busy", now);
            let others = take_all(&rate, "other", now);
            of_others += others.len();
            assert!(!others.is_empty(), "after {second} s");
        }
        assert!(of_others > 60 * 10, "{of_others}");
    }

    #[test]
    fn namespaces_that_ask_for_logs_all_the_time_leave_some_to_one_that_asks_for_few() {
        let start = Instant::now();
        let rate = Rate::new(start);
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            take_all(&rate, "busy", now);
            take_all(&rate, "busy-too", now);
            for _ in 0..3 {
                let few = rate.take(&"few".into(), Action::Log, now);
                assert!(few.is_ok(), "after {second} s: {few:?}");
            }
        }
    }

    #[test]
    fn logs_leave_some_to_commands_in_the_same_namespace() {
        let start = Instant::now();
        let rate = Rate::new(start);
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            for namespace in ["team", "another", "third"] {
                take_all(&rate, namespace, now);
            }
            for action in [Action::Exec, Action::Attach, Action::PortForward] {
                let command = rate.take(&"team".into(), action, now);
                assert!(command.is_ok(), "after {second} s: {command:?}");
            }
        }
    }

    #[test]
    fn namespaces_that_begin_no_more_are_forgotten() {
        let start = Instant::now();
        let rate = Rate::new(start);
        for number in 0..10_000_u64 {
            let now = start + Duration::from_secs(number);
            assert!(rate.take(&number.to_string().into(), Action::Log, now).is_ok());
        }
        assert!(rate.0.lock().unwrap().by_namespace.len() <= MANY);
    }
}
