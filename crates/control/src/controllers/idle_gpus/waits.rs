//! How long a pass waits for the API server of a tenant.
//!
//! A team decides how long some answers take: by webhooks, before something is written, and for kinds that are none of Kubernetes' own, by
//! servers and by webhooks that convert objects. What does not answer takes the time of its own kind, and of nothing else. It is not asked again
//! in the same pass, and in the next one after all others.

use crate::tenant_errors::message;
use kube::Error;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::{Instant, timeout};

/// Time for what the API server answers alone.
const SERVER_LIMIT: Duration = Duration::from_secs(10);
/// Time for that in the last steps of a pass, of all workloads of a tenant together. A server that is always just in time uses it up as well.
const LAST_LIMIT: Duration = Duration::from_secs(30);
/// Time for one answer on which the team decides.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// Time for all of them in the warnings of a pass, and again in its last steps: for those about kinds that are none of Kubernetes' own, and
/// apart from these for writes of Kubernetes' own.
const TEAM_LIMIT: Duration = Duration::from_secs(8);
/// Kinds that are remembered as slow. With more, none is: they are found again.
const MAX_SLOW: usize = 100;

/// Why an object of a tenant could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectError {
    /// The API server refuses, or its answer cannot be read.
    #[error("{}", message(.0))]
    Api(#[source] Box<Error>),
    /// It was the same when something of the kind was read before in this pass. The text says what.
    #[error("{0}")]
    Kind(String),
    /// What the team's servers or webhooks have to do with it takes too long.
    #[error(
        "the servers and webhooks of the tenant for this kind did not answer in time; look there for an APIService of the API group, and for \
         webhooks for the kind, that do not answer"
    )]
    SlowKind,
    /// The API server itself is too slow.
    #[error("the tenant's API server did not answer in time")]
    SlowServer,
}

impl From<Error> for ObjectError {
    fn from(error: Error) -> Self {
        Self::Api(Box::new(error))
    }
}

impl ObjectError {
    /// Whether the API server rejects one object, for example by admission of the tenant. It does so again in the next pass.
    pub(super) fn is_rejected(&self) -> bool {
        let Self::Api(error) = self else {
            return false;
        };
        match error.as_ref() {
            Error::Api(status) => (400..500).contains(&status.code) && ![401, 408, 429].contains(&status.code),
            _ => false,
        }
    }
}

/// On whom an answer depends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// On the API server alone: it is asked for an object of a kind of Kubernetes' own.
    Server,
    /// On webhooks of the team for writes of this kind of Kubernetes' own.
    Webhooks(String),
    /// On servers and webhooks of the team for this kind, by group and name.
    Kind(String, String),
}

/// How long a pass still waits for one tenant.
#[derive(Clone, Debug)]
pub(super) struct Waits {
    /// What is left for the API server alone.
    server: Duration,
    /// What is left for it in the last steps of all workloads.
    last: Duration,
    /// What is left for writes of Kubernetes' own kinds.
    webhooks: Duration,
    /// What is left for other kinds.
    kinds: Duration,
    /// What was too slow in this pass. It is not asked any more.
    slow: BTreeSet<Source>,
    /// What was too slow when it was asked last, in an earlier pass.
    before: BTreeSet<Source>,
    /// Whether that is asked now.
    asks_all: bool,
}

impl Default for Waits {
    fn default() -> Self {
        Self {
            server: SERVER_LIMIT,
            last: LAST_LIMIT,
            webhooks: TEAM_LIMIT,
            kinds: TEAM_LIMIT,
            slow: BTreeSet::new(),
            before: BTreeSet::new(),
            asks_all: true,
        }
    }
}

impl Waits {
    /// Those of the next pass. What was too slow is not asked before [`Waits::ask_all`].
    pub(super) fn next_pass(self) -> Self {
        let Self { slow, mut before, .. } = self;
        before.extend(slow);
        if before.len() > MAX_SLOW {
            before.clear();
        }
        Self {
            before,
            asks_all: false,
            ..Self::default()
        }
    }

    /// Those of the last steps, after the warnings of the same pass. What was too slow in these is not asked again.
    pub(super) fn last_steps(self) -> Self {
        Self {
            slow: self.slow,
            before: self.before,
            ..Self::default()
        }
    }

    /// Those of the next workload in the last steps: each has the time of the API server for itself, as long as there is some for all of them.
    pub(super) fn next_workload(self) -> Self {
        Self {
            server: SERVER_LIMIT.min(self.last),
            asks_all: true,
            ..self
        }
    }

    /// From now on also asks what was too slow in earlier passes. Returns whether there is something.
    pub(super) fn ask_all(&mut self) -> bool {
        self.asks_all = true;
        !self.before.is_empty()
    }

    /// Whether something in the tenant was too slow.
    pub(super) fn has_slow(&self) -> bool {
        !self.slow.is_empty() || !self.before.is_empty()
    }

    /// Whether the API server itself was too slow.
    pub(super) const fn is_server_slow(&self) -> bool {
        self.server.is_zero()
    }

    /// Whether there is time to ask.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn check(&self, source: &Source) -> Result<(), ObjectError> {
        if self.is_server_slow() {
            return Err(ObjectError::SlowServer);
        }
        let is_late = !self.asks_all && self.before.contains(source);
        if self.slow.contains(source) || is_late || self.left(source).is_zero() {
            return Err(ObjectError::SlowKind);
        }
        Ok(())
    }

    /// Waits for an answer.
    ///
    /// # Errors
    /// There is none in time, or it is an error.
    pub(super) async fn wait<T>(
        &mut self,
        source: Source,
        call: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ObjectError> {
        // Here, so that the future of the caller is small.
        let call = Box::pin(call);
        self.check(&source)?;
        let left = self.left(&source);
        let limit = match source {
            Source::Server => left,
            Source::Webhooks(_) | Source::Kind(..) => left.min(ANSWER_LIMIT),
        };
        let started = Instant::now();
        let answer = timeout(limit, call).await;
        let took = started.elapsed();
        let left = left.saturating_sub(took);
        match source {
            Source::Server => {
                self.server = left;
                self.last = self.last.saturating_sub(took);
            }
            Source::Webhooks(_) => self.webhooks = left,
            Source::Kind(..) => self.kinds = left,
        }
        if let Ok(answer) = answer {
            self.before.remove(&source);
            return answer.map_err(ObjectError::from);
        }
        if source == Source::Server {
            return Err(ObjectError::SlowServer);
        }
        // Others may have taken the time of this one.
        if limit == ANSWER_LIMIT {
            self.slow.insert(source);
        }
        Err(ObjectError::SlowKind)
    }

    const fn left(&self, source: &Source) -> Duration {
        match source {
            Source::Server => self.server,
            Source::Webhooks(_) => self.webhooks,
            Source::Kind(..) => self.kinds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;
    use std::future::{pending, ready};

    fn kind(name: &str) -> Source {
        Source::Kind("a.example".into(), name.into())
    }

    fn webhooks(kind: &str) -> Source {
        Source::Webhooks(kind.into())
    }

    async fn hang(waits: &mut Waits, source: Source) -> ObjectError {
        waits.wait(source, pending::<kube::Result<()>>()).await.unwrap_err()
    }

    async fn answers(waits: &mut Waits, source: Source) -> bool {
        waits.wait(source, ready(Ok(()))).await.is_ok()
    }

    /// An answer that takes this time.
    async fn answer_late(waits: &mut Waits, source: Source, time: Duration) {
        let answer = async {
            tokio::time::sleep(time).await;
            Ok(())
        };
        drop(waits.wait(source, answer).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_answer_takes_the_time_of_its_kind_only() {
        let mut waits = Waits::default();
        let started = Instant::now();
        for _ in 0..500 {
            assert!(matches!(hang(&mut waits, kind("Pool")).await, ObjectError::SlowKind));
            hang(&mut waits, webhooks("Deployment")).await;
        }
        assert_eq!(started.elapsed().as_secs(), 2 * ANSWER_LIMIT.as_secs());
        for source in [kind("Other"), webhooks("Pod"), Source::Server] {
            assert!(answers(&mut waits, source.clone()).await, "{source:?}");
        }
        assert!(!waits.is_server_slow());
        assert!(waits.check(&kind("Pool")).is_err() && waits.check(&kind("Other")).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn many_kinds_that_do_not_answer_leave_kubernetes_own_their_time() {
        let mut waits = Waits::default();
        let started = Instant::now();
        for number in 0..1000 {
            hang(&mut waits, kind(&format!("Pool{number}"))).await;
        }
        assert_eq!(started.elapsed().as_secs(), TEAM_LIMIT.as_secs());
        assert!(waits.slow.len() < 10, "those that had their time: {:?}", waits.slow);
        assert!(answers(&mut waits, webhooks("Deployment")).await && answers(&mut waits, Source::Server).await);
        // Answers that come late take the same time.
        let mut waits = Waits::default().last_steps();
        let started = Instant::now();
        for number in 0..1000 {
            answer_late(&mut waits, kind(&format!("Pool{number}")), ANSWER_LIMIT / 2).await;
        }
        assert_eq!(started.elapsed().as_secs(), TEAM_LIMIT.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_too_slow_is_asked_last_until_it_answers() {
        let mut waits = Waits::default();
        hang(&mut waits, kind("Pool")).await;
        for _ in 0..3 {
            waits = waits.next_pass();
            assert!(!answers(&mut waits, kind("Pool")).await, "not before the others");
            assert!(answers(&mut waits, kind("Other")).await);
            // Nothing of it is looked at in these passes.
            assert!(waits.ask_all());
        }
        waits = waits.last_steps().next_workload();
        assert!(
            waits.has_slow() && answers(&mut waits, kind("Pool")).await,
            "it was not asked before"
        );
        waits = waits.next_pass();
        assert!(!waits.has_slow() && answers(&mut waits, kind("Pool")).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_too_slow_in_the_warnings_is_not_asked_in_the_last_steps() {
        let mut waits = Waits::default();
        hang(&mut waits, kind("Pool")).await;
        waits = waits.last_steps();
        for _ in 0..3 {
            waits = waits.next_workload();
            assert!(!answers(&mut waits, kind("Pool")).await);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn little_is_remembered_of_what_is_slow() {
        let mut waits = Waits::default();
        for number in 0..1000 {
            hang(&mut waits, kind(&format!("Pool{number}"))).await;
            waits = waits.next_pass();
            waits.ask_all();
            assert!(waits.before.len() <= MAX_SLOW);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_asked_of_a_server_that_is_too_slow() {
        let mut waits = Waits::default();
        assert!(matches!(
            hang(&mut waits, Source::Server).await,
            ObjectError::SlowServer
        ));
        for source in [kind("Pool"), webhooks("Pod"), Source::Server] {
            assert!(!answers(&mut waits, source).await);
        }
        assert!(waits.is_server_slow());
        // Also of one each of whose answers comes in time.
        waits = waits.next_workload();
        while !waits.is_server_slow() {
            answer_late(&mut waits, Source::Server, Duration::from_secs(2)).await;
        }
        assert!(!answers(&mut waits, kind("Pool")).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_always_just_in_time_has_no_more_time_for_all_workloads() {
        let mut waits = Waits::default().last_steps();
        let started = Instant::now();
        for _ in 0..100 {
            waits = waits.next_workload();
            for _ in 0..3 {
                answer_late(&mut waits, Source::Server, Duration::from_secs(3)).await;
            }
        }
        assert_eq!(started.elapsed().as_secs(), LAST_LIMIT.as_secs());
        assert!(waits.is_server_slow(), "its pods are evicted");
        waits = waits.next_pass();
        assert!(answers(&mut waits, Source::Server).await);
    }

    #[tokio::test]
    async fn messages_are_what_the_server_says_or_what_to_do() {
        use http_body_util::{BodyExt, Full, Limited};

        let status = Status::failure("no such luck\x1b", "Forbidden").with_code(403).boxed();
        let refused = ObjectError::from(Error::Api(status));
        assert_eq!(refused.to_string(), "no such luck\u{fffd}");
        assert!(refused.is_rejected());
        let body = Limited::new(Full::new(&b"long"[..]), 1);
        let too_long = ObjectError::from(Error::Service(body.collect().await.unwrap_err()));
        assert!(!too_long.is_rejected());
        let text = too_long.to_string();
        assert!(
            text.contains("longer than Berth reads") && text.contains("APIService"),
            "{text}"
        );
    }
}
