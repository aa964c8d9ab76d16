//! What API servers answer, counted.

use crate::report::Report;
use berth_runtime::locks::lock;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard},
    time::{Duration, Instant},
};

/// A request that is not answered in this time has failed.
const LIMIT: Duration = Duration::from_secs(30);

/// An answer to a write.
#[derive(Debug)]
pub(super) enum Answer {
    /// The object is stored.
    Accepted,
    /// It is not.
    Refused { code: u16, message: String },
    /// The server did not answer, or not in time.
    None,
}

impl Answer {
    /// The answer to a request.
    pub(super) async fn of<T>(request: impl Future<Output = kube::Result<T>>) -> Self {
        match tokio::time::timeout(LIMIT, request).await {
            Ok(Ok(_)) => Self::Accepted,
            Ok(Err(kube::Error::Api(status))) => Self::Refused {
                code: status.code,
                message: status.message.clone(),
            },
            Ok(Err(_)) | Err(_) => Self::None,
        }
    }

    /// Whether the tenant may not do this, now or at all.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Refused { code: 403, .. })
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accepted => f.write_str("accepted"),
            Self::Refused { code, .. } => write!(f, "{code}"),
            Self::None => f.write_str("no answer"),
        }
    }
}

/// The first refusal of one kind of request.
#[derive(Debug)]
struct Refusal {
    /// Requests of the kind that were accepted before.
    accepted: u32,
    /// Since the beginning.
    after: Duration,
    message: String,
}

#[derive(Debug, Default)]
struct Counts {
    answers: BTreeMap<(&'static str, String), u32>,
    /// When each request was answered, in this order, and what.
    at: Vec<(Instant, String)>,
    refusals: BTreeMap<&'static str, Refusal>,
}

/// Answers to a tenant, by kind of request.
#[derive(Debug)]
pub(super) struct Tally {
    begun: Instant,
    counts: Mutex<Counts>,
}

impl Tally {
    /// An empty one. Times count from now.
    pub(super) fn begin() -> Self {
        Self {
            begun: Instant::now(),
            counts: Mutex::default(),
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        lock(&self.counts)
    }

    /// Counts an answer to a request of this kind.
    pub(super) fn count(&self, what: &'static str, answer: &Answer) {
        let mut counts = self.counts();
        if let Answer::Refused { code: 403, message } = answer {
            let accepted = (what, Answer::Accepted.to_string());
            let accepted = counts.answers.get(&accepted).copied().unwrap_or_default();
            counts.refusals.entry(what).or_insert_with(|| Refusal {
                accepted,
                after: self.begun.elapsed(),
                message: message.clone(),
            });
        }
        counts.at.push((Instant::now(), answer.to_string()));
        *counts.answers.entry((what, answer.to_string())).or_default() += 1;
    }

    /// When counting began.
    pub(super) fn begun(&self) -> Instant {
        self.begun
    }

    /// When each request was answered, in this order, and what.
    pub(super) fn answers(&self) -> Vec<(Instant, String)> {
        self.counts().at.clone()
    }

    /// Adds the counts to a report, and which requests were refused from when on.
    pub(super) fn add_to(&self, report: &mut Report) {
        let counts = self.counts();
        for ((what, answer), count) in &counts.answers {
            report.add(format!("greedy tenant, {what}: {answer}"), f64::from(*count), "");
        }
        for (what, refusal) in &counts.refusals {
            let Refusal {
                accepted,
                after,
                message,
            } = refusal;
            let what = format!("greedy tenant, {what}: before the first 403");
            report.note(format!("{what}: {accepted} accepted; {message}"));
            report.add(format!("{what}, accepted"), f64::from(*accepted), "");
            report.add(format!("{what}, time"), after.as_secs_f64(), "s");
        }
        if counts.refusals.is_empty() {
            report.note("no limit took hold at the greedy tenant's API server: nothing was answered 403");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_refusal_is_remembered_with_what_was_accepted_before() {
        let tally = Tally::begin();
        let refused = |message: &str| Answer::Refused {
            code: 403,
            message: message.to_owned(),
        };
        for answer in [
            Answer::Accepted,
            Answer::Accepted,
            refused("first"),
            Answer::Accepted,
            refused("second"),
            Answer::None,
        ] {
            tally.count("create Service", &answer);
        }
        tally.count("create Pod", &Answer::Accepted);
        let counts = tally.counts();
        let refusal = &counts.refusals["create Service"];
        assert_eq!((refusal.accepted, refusal.message.as_str()), (2, "first"));
        assert_eq!(counts.refusals.len(), 1);
        assert_eq!(counts.answers[&("create Service", "403".to_owned())], 2);
    }
}
