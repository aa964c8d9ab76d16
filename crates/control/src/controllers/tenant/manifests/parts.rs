//! In which order a pass works, and how long it waits for servers that are not the platform's.
//!
//! A tenant can serve API groups by servers of its own, and convert objects of its kinds by webhooks. One that does not answer takes the
//! time of its own kinds, and of nothing else: the groups that API servers serve themselves come first, and completely.

use super::{PASS_LIMIT, objects::ObjectKey};
use crate::control_plane::served_groups;
use std::{collections::BTreeSet, time::Duration};
use tokio::time::{Instant, timeout_at};

/// Time for one answer about kinds of other groups.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// What is left of a pass after other groups: namespaces and definitions are deleted after what is in them.
const RESERVE: Duration = Duration::from_secs(5);
/// What is wrong with a kind that is not waited for any longer.
const SLOW: &str = "the server of its API group in the tenant did not answer in time; look there for an APIService of the group, and for \
                    webhooks of its CustomResourceDefinition, that do not answer. Berth tries again";

/// Group and name of a kind.
pub(super) type Kind = (String, String);

/// A part of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Kinds of groups that API servers serve themselves.
    Own,
    /// Kinds of other groups.
    Others,
    /// Those of them that were too slow in the pass before.
    Slow,
    /// What has others in it, and is to be deleted.
    Containers,
}

impl Part {
    /// All of them, in order.
    pub(super) const ALL: [Self; 4] = [Self::Own, Self::Others, Self::Slow, Self::Containers];
}

/// Whose turn it is, and for how long.
pub(super) struct Turns {
    own_groups: BTreeSet<&'static str>,
    /// When other groups have to be done.
    until: Instant,
    slow_before: BTreeSet<Kind>,
    /// Kinds that were too slow in this pass. They are not asked again in it.
    pub(super) slow: BTreeSet<Kind>,
}

impl Turns {
    /// Those of a pass that begins now.
    pub(super) fn new(slow_before: BTreeSet<Kind>) -> Self {
        Self {
            own_groups: served_groups().collect(),
            until: Instant::now() + PASS_LIMIT.saturating_sub(RESERVE),
            slow_before,
            slow: BTreeSet::new(),
        }
    }

    /// When an object is applied.
    pub(super) fn part_of(&self, key: &ObjectKey) -> Part {
        if self.own_groups.contains(key.group.as_str()) {
            Part::Own
        } else if self.slow_before.contains(&key.group_and_kind()) {
            Part::Slow
        } else {
            Part::Others
        }
    }

    /// When an object is deleted.
    pub(super) fn part_of_deletion(&self, key: &ObjectKey) -> Part {
        if key.has_others() {
            Part::Containers
        } else {
            self.part_of(key)
        }
    }

    /// Waits for an answer about objects of a kind.
    ///
    /// # Errors
    /// The kind is too slow.
    pub(super) async fn wait<T>(&mut self, key: &ObjectKey, call: impl Future<Output = T>) -> Result<T, String> {
        let call = Box::pin(call);
        if self.part_of(key) == Part::Own {
            return Ok(call.await);
        }
        let kind = key.group_and_kind();
        if self.slow.contains(&kind) {
            return Err(SLOW.into());
        }
        let until = self.until.min(Instant::now() + ANSWER_LIMIT);
        timeout_at(until, call).await.map_err(|_| {
            self.slow.insert(kind);
            SLOW.to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;

    fn key(group: &str, kind: &str) -> ObjectKey {
        ObjectKey {
            group: group.into(),
            kind: kind.into(),
            namespace: None,
            name: "a".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_too_slow_is_asked_once_in_a_pass_and_comes_last_in_the_next() {
        let mut turns = Turns::new(BTreeSet::new());
        let started = Instant::now();
        let guard = key("platform.example", "Guard");
        assert_eq!(turns.part_of(&guard), Part::Others);
        for _ in 0..500 {
            assert!(turns.wait(&guard, pending::<()>()).await.is_err());
        }
        assert!(started.elapsed() < 2 * ANSWER_LIMIT);
        assert_eq!(
            turns.wait(&key("platform.example", "Other"), async { 1 }).await,
            Ok(1),
            "it is another kind"
        );
        let next = Turns::new(turns.slow);
        assert_eq!(next.part_of(&guard), Part::Slow);
        assert_eq!(next.part_of(&key("platform.example", "Other")), Part::Others);
    }

    #[tokio::test(start_paused = true)]
    async fn many_slow_kinds_take_a_part_of_the_pass() {
        let mut turns = Turns::new(BTreeSet::new());
        let started = Instant::now();
        for number in 0..100 {
            let kind = key("platform.example", &format!("Guard{number}"));
            assert!(turns.wait(&kind, pending::<()>()).await.is_err());
        }
        assert!(started.elapsed() < PASS_LIMIT, "{:?}", started.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn groups_that_api_servers_serve_themselves_have_no_limit() {
        let mut turns = Turns::new(BTreeSet::new());
        for group in ["", "rbac.authorization.k8s.io", "admissionregistration.k8s.io"] {
            let object = key(group, "A");
            assert_eq!(turns.part_of(&object), Part::Own, "{group}");
            let answer = tokio::time::sleep(2 * ANSWER_LIMIT);
            assert_eq!(turns.wait(&object, answer).await, Ok(()), "{group}");
        }
        assert_eq!(
            turns.part_of(&key("gateway.networking.k8s.io", "Gateway")),
            Part::Others
        );
    }

    #[test]
    fn what_has_others_in_it_is_deleted_after_them() {
        let turns = Turns::new(BTreeSet::new());
        for (group, kind) in [("", "Namespace"), ("apiextensions.k8s.io", "CustomResourceDefinition")] {
            assert_eq!(turns.part_of(&key(group, kind)), Part::Own);
            assert_eq!(turns.part_of_deletion(&key(group, kind)), Part::Containers);
        }
        assert_eq!(turns.part_of_deletion(&key("", "ConfigMap")), Part::Own);
    }
}
