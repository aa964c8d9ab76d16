//! In which order a pass works, and how long it waits for servers that are not the platform's.
//!
//! A tenant can serve API groups by servers of its own, and convert objects of its kinds by webhooks. One that does not answer takes the
//! time of its own kinds, and of nothing else: the groups that API servers serve themselves come first, and their answers have no time limit
//! where nobody in the tenant can register another server for them. Changes have time limits anywhere, as webhooks see them. Kinds that were
//! too slow come last in the next pass, one by one, and those first that had no turn.

use super::{
    PASS_LIMIT,
    messages::{LATE, SLOW},
    objects::ObjectKey,
};
use crate::control_plane::served_groups;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::{Instant, timeout_at};

/// Time for one answer about kinds that a server of the tenant's may serve.
const ANSWER_LIMIT: Duration = Duration::from_secs(3);
/// The same for changes in groups that API servers serve themselves, which webhooks of the tenant see. An API server waits ten seconds for a webhook, unless it says otherwise, and may go on without its answer.
const WRITE_LIMIT: Duration = Duration::from_secs(12);
/// A kind that had less time than this before the end of the pass is not called too slow: others may have taken the time.
const LEAST_LIMIT: Duration = Duration::from_secs(2);
/// What is left of a pass after kinds with time limits: namespaces and definitions are deleted after what is in them.
const RESERVE: Duration = Duration::from_secs(5);
/// What is left of a pass after these, so that it is not cut off.
const LAST_RESERVE: Duration = Duration::from_secs(1);

/// Group and name of a kind.
pub(super) type Kind = (String, String);

/// A part of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Kinds of groups that API servers serve themselves.
    Own,
    /// Kinds of other groups.
    Others,
    /// A kind that was too slow in the pass before.
    Slow(Kind),
    /// What has others in it, and is to be deleted.
    Containers,
}

/// Whose turn it is, and for how long.
pub(super) struct Turns {
    own_groups: BTreeSet<&'static str>,
    /// Whether it is certain that API servers serve these themselves.
    are_own_certain: bool,
    begun: Instant,
    /// When kinds with time limits have to be done.
    until: Instant,
    slow_before: Vec<Kind>,
    /// Kinds that were too slow in this pass, in the order in which that was noticed. They are not asked again in it.
    slow: Vec<Kind>,
    /// Kinds for which there was no time left.
    late: BTreeSet<Kind>,
}

impl Turns {
    /// Those of a pass that begins now.
    pub(super) fn new(slow_before: Vec<Kind>) -> Self {
        let begun = Instant::now();
        Self {
            own_groups: served_groups().collect(),
            are_own_certain: false,
            begun,
            until: begun + PASS_LIMIT.saturating_sub(RESERVE),
            slow_before,
            slow: Vec::new(),
            late: BTreeSet::new(),
        }
    }

    /// From now on answers about groups that API servers serve themselves have no time limit: nobody in the tenant has another server for them.
    /// Changes have one anywhere: webhooks with match conditions of their own see those of the platform in any tenant.
    pub(super) fn trust_own_groups(&mut self) {
        self.are_own_certain = true;
    }

    /// When the pass began.
    pub(super) const fn begun(&self) -> Instant {
        self.begun
    }

    /// All parts of the pass, in order.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut parts = vec![Part::Own, Part::Others];
        parts.extend(self.slow_before.iter().cloned().map(Part::Slow));
        parts.push(Part::Containers);
        parts
    }

    /// Begins a part.
    pub(super) fn begin(&mut self, part: &Part) {
        if *part == Part::Containers {
            self.until = self.end();
        }
    }

    /// When the pass has to be done, so that it is not cut off.
    fn end(&self) -> Instant {
        self.begun + PASS_LIMIT.saturating_sub(LAST_RESERVE)
    }

    /// Whether API servers serve a group themselves.
    pub(super) fn is_own_group(&self, group: &str) -> bool {
        self.own_groups.contains(group)
    }

    /// Whether there is no time limit for answers about a kind.
    fn is_certain(&self, key: &ObjectKey) -> bool {
        self.are_own_certain && self.is_own_group(&key.group)
    }

    /// When an object is applied.
    pub(super) fn part_of(&self, key: &ObjectKey) -> Part {
        let kind = key.group_and_kind();
        if self.slow_before.contains(&kind) {
            Part::Slow(kind)
        } else if self.is_own_group(&key.group) {
            Part::Own
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
    /// The kind is too slow, or there is no time left for it.
    pub(super) async fn read<T>(&mut self, key: &ObjectKey, call: impl Future<Output = T>) -> Result<T, String> {
        if self.is_certain(key) {
            return Ok(Box::pin(call).await);
        }
        self.wait(key, ANSWER_LIMIT, call).await
    }

    /// Waits for the answer to a change of an object of a kind.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(super) async fn write<T>(&mut self, key: &ObjectKey, call: impl Future<Output = T>) -> Result<T, String> {
        let is_own = self.is_own_group(&key.group);
        let limit = if is_own { WRITE_LIMIT } else { ANSWER_LIMIT };
        self.wait(key, limit, call).await
    }

    async fn wait<T>(&mut self, key: &ObjectKey, limit: Duration, call: impl Future<Output = T>) -> Result<T, String> {
        let call = Box::pin(call);
        let kind = key.group_and_kind();
        if self.slow.contains(&kind) {
            return Err(SLOW.into());
        }
        let until = if self.is_certain(key) { self.end() } else { self.until };
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            self.late.insert(kind);
            return Err(LATE.into());
        }
        if let Ok(answer) = timeout_at(Instant::now() + limit.min(left), call).await {
            return Ok(answer);
        }
        if left < LEAST_LIMIT {
            self.late.insert(kind);
            return Err(LATE.into());
        }
        self.slow.push(kind);
        Err(SLOW.into())
    }

    /// Kinds that come last in the next pass, in this order. Those that were slow before and had no turn stay among them.
    pub(super) fn slow_kinds(&self) -> Vec<Kind> {
        let had_no_turn = |kind: &&Kind| self.late.contains(*kind) && !self.slow.contains(*kind);
        let waiting = self.slow_before.iter().filter(had_no_turn);
        waiting.chain(&self.slow).cloned().collect()
    }
}

/// Objects by their kinds, in the order in which the kinds come first.
pub(super) fn by_kind<T: Copy>(objects: &[T], kind: impl Fn(T) -> Kind) -> Vec<Vec<T>> {
    let mut places: BTreeMap<Kind, usize> = BTreeMap::new();
    let mut kinds: Vec<Vec<T>> = Vec::new();
    for object in objects {
        let place = *places.entry(kind(*object)).or_insert_with(|| {
            kinds.push(Vec::new());
            kinds.len() - 1
        });
        kinds[place].push(*object);
    }
    kinds
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::pending;
    use tokio::time::sleep;

    fn key(group: &str, kind: &str) -> ObjectKey {
        ObjectKey {
            group: group.into(),
            kind: kind.into(),
            namespace: None,
            name: "a".into(),
        }
    }

    fn guard(number: usize) -> ObjectKey {
        key("platform.example", &format!("Guard{number}"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_that_is_too_slow_is_asked_once_in_a_pass_and_comes_last_in_the_next() {
        let mut turns = Turns::new(Vec::new());
        let started = Instant::now();
        let (slow, other) = (guard(1), guard(2));
        assert_eq!(turns.part_of(&slow), Part::Others);
        for _ in 0..500 {
            assert_eq!(turns.read(&slow, pending::<()>()).await, Err(SLOW.into()));
        }
        assert!(started.elapsed() < 2 * ANSWER_LIMIT);
        assert_eq!(turns.write(&other, async { 1 }).await, Ok(1), "it is another kind");
        let next = Turns::new(turns.slow_kinds());
        let part = Part::Slow(slow.group_and_kind());
        assert_eq!(next.part_of(&slow), part);
        assert_eq!(next.part_of(&other), Part::Others);
        assert_eq!(next.parts(), [Part::Own, Part::Others, part, Part::Containers]);
    }

    #[tokio::test(start_paused = true)]
    async fn many_slow_kinds_take_a_part_of_the_pass_and_all_have_their_turns() {
        let mut slow = Vec::new();
        let mut tried = BTreeSet::new();
        for _ in 0..4 {
            let mut turns = Turns::new(slow);
            let started = Instant::now();
            let before: Vec<Kind> = turns.slow_before.clone();
            let others = (0..20).map(|number| guard(number).group_and_kind());
            let others = others.filter(|kind| !before.contains(kind));
            for (group, kind) in others.chain(before.iter().cloned()) {
                let is_slow = turns.read(&key(&group, &kind), pending::<()>()).await == Err(SLOW.into());
                if is_slow {
                    tried.insert(kind);
                }
            }
            assert!(started.elapsed() < PASS_LIMIT, "{:?}", started.elapsed());
            turns.begin(&Part::Containers);
            let namespace = key("", "Namespace");
            assert_eq!(turns.write(&namespace, async { 1 }).await, Ok(1), "some time is left");
            slow = turns.slow_kinds();
        }
        assert_eq!(tried.len(), 20, "five in a pass");
    }

    #[tokio::test(start_paused = true)]
    async fn a_kind_for_which_others_left_no_time_is_not_called_slow() {
        let mut turns = Turns::new(vec![guard(2).group_and_kind()]);
        turns.trust_own_groups();
        // A large first pass over kinds of Kubernetes.
        let role = key("rbac.authorization.k8s.io", "ClusterRole");
        let half = PASS_LIMIT.saturating_sub(RESERVE + Duration::from_secs(1)) / 2;
        for _ in 0..2 {
            assert_eq!(turns.write(&role, sleep(half)).await, Ok(()));
        }
        for guard in [guard(1), guard(2)] {
            assert_eq!(turns.read(&guard, pending::<()>()).await, Err(LATE.into()));
            assert_eq!(
                turns.read(&guard, async { 1 }).await,
                Err(LATE.into()),
                "not sent at all"
            );
        }
        assert_eq!(turns.slow_kinds(), [guard(2).group_and_kind()], "as before");
    }

    #[tokio::test(start_paused = true)]
    async fn answers_of_groups_that_api_servers_serve_themselves_have_no_limit_where_that_is_certain() {
        let mut turns = Turns::new(Vec::new());
        turns.trust_own_groups();
        for group in ["", "rbac.authorization.k8s.io", "admissionregistration.k8s.io"] {
            let object = key(group, "A");
            assert_eq!(turns.part_of(&object), Part::Own, "{group}");
            assert_eq!(turns.read(&object, sleep(PASS_LIMIT)).await, Ok(()), "{group}");
        }
        assert_eq!(
            turns.part_of(&key("gateway.networking.k8s.io", "Gateway")),
            Part::Others
        );
    }

    #[tokio::test(start_paused = true)]
    async fn elsewhere_a_kind_of_these_groups_that_is_too_slow_comes_last() {
        let (hidden, other) = (key("networking.k8s.io", "NetworkPolicy"), key("", "ConfigMap"));
        let mut turns = Turns::new(Vec::new());
        assert_eq!(turns.part_of(&hidden), Part::Own);
        assert_eq!(turns.read(&hidden, pending::<()>()).await, Err(SLOW.into()));
        // A webhook that is ignored in the end.
        assert_eq!(turns.write(&other, sleep(Duration::from_secs(10))).await, Ok(()));
        let next = Turns::new(turns.slow_kinds());
        assert_eq!(next.part_of(&hidden), Part::Slow(hidden.group_and_kind()));
        assert_eq!(next.part_of(&other), Part::Own);
    }

    #[tokio::test(start_paused = true)]
    async fn a_webhook_takes_the_time_of_the_kind_whose_changes_it_sees_in_any_tenant() {
        let (hidden, other) = (key("", "Namespace"), key("", "ConfigMap"));
        let mut turns = Turns::new(Vec::new());
        turns.trust_own_groups();
        for _ in 0..3 {
            assert_eq!(turns.write(&hidden, pending::<()>()).await, Err(SLOW.into()));
        }
        assert_eq!(turns.read(&hidden, async { 1 }).await, Ok(1), "no webhook sees it");
        for key in [&other, &guard(1)] {
            assert_eq!(turns.write(key, async { 1 }).await, Ok(1));
        }
        let mut next = Turns::new(turns.slow_kinds());
        next.trust_own_groups();
        assert_eq!(next.part_of(&hidden), Part::Slow(hidden.group_and_kind()));
        assert_eq!(next.part_of(&other), Part::Own);
    }

    #[test]
    fn what_has_others_in_it_is_deleted_after_them() {
        let turns = Turns::new(Vec::new());
        for (group, kind) in [("", "Namespace"), ("apiextensions.k8s.io", "CustomResourceDefinition")] {
            assert_eq!(turns.part_of(&key(group, kind)), Part::Own);
            assert_eq!(turns.part_of_deletion(&key(group, kind)), Part::Containers);
        }
        assert_eq!(turns.part_of_deletion(&key("", "ConfigMap")), Part::Own);
    }

    #[test]
    fn kinds_keep_the_order_in_which_they_come() {
        let objects = [("b", 1), ("a", 2), ("b", 3), ("c", 4)];
        let kinds = by_kind(&objects, |(kind, _)| (String::new(), kind.to_owned()));
        assert_eq!(kinds, [vec![("b", 1), ("b", 3)], vec![("a", 2)], vec![("c", 4)]]);
    }
}
