//! What is kept of each claim: its volume, and snapshots of it.
//!
//! A snapshot has the data of its volume for as long as it exists. If it did not count, a team could keep data for nothing, and make a claim of it when it needs
//! it. Snapshots of a volume share most of what they have with it and with each other. So of a volume and its snapshots one counts: the claim, or, when it is gone, the
//! largest snapshot. A snapshot names its claim, and a claim of the same name may have another volume: a snapshot is of the last one that was created before it.
//! A snapshot without a size has that of its claim.

use super::{
    ClaimUse, Using,
    snapshot::{SnapshotUse, SourceClaim, UnrecordedSource},
};
use jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A name for what counts, and what that is from now on; none: nothing. A claim has its namespace and name, what snapshots keep of one that is gone a
/// name that no claim has.
pub(super) type Counted = (String, Option<Using<ClaimUse>>);

/// When a claim was created that is gone. None: this process did not know of it, and nothing is written into its snapshots.
type Created = Option<Timestamp>;

/// What is kept of each claim.
#[derive(Debug, Default)]
pub(super) struct KeptClaims {
    /// By namespace and name of the claim.
    kept: HashMap<String, Kept>,
    /// The claim that each snapshot is of, by namespace and name of the snapshot.
    sources: HashMap<String, String>,
    /// Whether all claims that exist are known. Before, a snapshot would count for a claim that exists.
    has_all_claims: bool,
    /// Snapshots, by namespace and name, that had their turn to be written since all others had one.
    tried: HashSet<String>,
}

/// What is kept of the claims of one name.
#[derive(Debug, Default)]
struct Kept {
    /// None: it is gone, or has no volume.
    claim: Option<Using<ClaimUse>>,
    /// Claims that are gone of which there are snapshots, by when they were created.
    gone: BTreeMap<Timestamp, Gone>,
    /// By namespace and name.
    snapshots: BTreeMap<String, SnapshotUse>,
    /// The claims that are gone of which a snapshot counts.
    counted: BTreeSet<Created>,
}

/// A claim that is gone.
#[derive(Debug)]
struct Gone {
    /// When that was noticed.
    at: Timestamp,
    /// What it used, in MiB.
    mebibytes: i64,
}

impl KeptClaims {
    /// Sets a claim; none if it has no volume or is gone. `at` is the time of the change. Returns what counts of the claims of this name.
    pub(super) fn put_claim(&mut self, name: &str, claim: Option<Using<ClaimUse>>, at: Timestamp) -> Vec<Counted> {
        let kept = self.kept.entry(name.to_owned()).or_default();
        if let Some(before) = &kept.claim {
            let mebibytes = before.amount.mebibytes;
            kept.gone.insert(before.since, Gone { at, mebibytes });
        }
        if let Some(claim) = &claim {
            kept.gone.remove(&claim.since);
        }
        kept.claim = claim;
        self.count(name)
    }

    /// Forgets all claims but these. Returns what counts of each claim.
    pub(super) fn retain_claims(&mut self, names: &HashSet<String>, at: Timestamp) -> Vec<Counted> {
        self.has_all_claims = true;
        let mut counted = Vec::new();
        for name in self.kept.keys().cloned().collect::<Vec<String>>() {
            counted.extend(if names.contains(&name) {
                self.count(&name)
            } else {
                self.put_claim(&name, None, at)
            });
        }
        counted
    }

    /// Sets a snapshot; none if it is gone. Returns what counts of the claims that are concerned.
    pub(super) fn put_snapshot(&mut self, name: &str, snapshot: Option<SnapshotUse>) -> Vec<Counted> {
        let before = self.sources.remove(name);
        if let Some(claim) = &before
            && let Some(kept) = self.kept.get_mut(claim)
        {
            kept.snapshots.remove(name);
        }
        let mut concerned: Vec<String> = before.into_iter().collect();
        if let Some(snapshot) = snapshot {
            let claim = snapshot.claim.clone();
            let kept = self.kept.entry(claim.clone()).or_default();
            kept.snapshots.insert(name.to_owned(), snapshot);
            self.sources.insert(name.to_owned(), claim.clone());
            concerned.push(claim);
        }
        concerned.dedup();
        concerned.iter().flat_map(|claim| self.count(claim)).collect()
    }

    /// Forgets all snapshots but these. Returns what counts of the claims that are concerned.
    pub(super) fn retain_snapshots(&mut self, names: &HashSet<String>) -> Vec<Counted> {
        let gone = self.sources.keys().filter(|name| !names.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        gone.iter().flat_map(|name| self.put_snapshot(name, None)).collect()
    }

    /// So many snapshots of which it is known which claim they are of, and which do not say so. Those that were [tried](Self::note_tried) come last: some
    /// can never be written.
    pub(super) fn unrecorded_sources(&mut self, most: usize) -> Vec<UnrecordedSource> {
        if !self.has_all_claims {
            return Vec::new();
        }
        let was_tried = |found: &UnrecordedSource| self.tried.contains(&found.snapshot);
        let untried = self.list_unrecorded().filter(|found| !was_tried(found));
        let mut next: Vec<UnrecordedSource> = untried.take(most).collect();
        if next.len() < most {
            let tried = self.list_unrecorded().filter(was_tried);
            next.extend(tried.take(most - next.len()));
            self.tried.clear();
        }
        next
    }

    /// Records that a snapshot is written now.
    pub(super) fn note_tried(&mut self, snapshot: &str) {
        self.tried.insert(snapshot.to_owned());
    }

    fn list_unrecorded(&self) -> impl Iterator<Item = UnrecordedSource> {
        let of_claim = |kept: &Kept| {
            let sources = kept.snapshots.iter().filter_map(|(name, snapshot)| {
                let source = kept.source(snapshot)?;
                let is_recorded = snapshot
                    .source
                    .is_some_and(|recorded| recorded.created == source.created);
                (!is_recorded).then(|| UnrecordedSource {
                    snapshot: name.clone(),
                    uid: snapshot.uid.clone(),
                    source,
                })
            });
            sources.collect::<Vec<_>>()
        };
        self.kept.values().flat_map(of_claim)
    }

    /// What counts of the claims of a name. One of which nothing is kept is forgotten.
    fn count(&mut self, name: &str) -> Vec<Counted> {
        let Some(kept) = self.kept.get_mut(name) else {
            return Vec::new();
        };
        let mut of_gone = kept.count_gone();
        kept.gone.retain(|created, _| of_gone.contains_key(&Some(*created)));
        // The size of some is not known yet.
        of_gone.retain(|_, using| self.has_all_claims && using.amount.mebibytes > 0);
        let mut all = vec![(name.to_owned(), kept.claim.clone())];
        let ended = kept.counted.iter().filter(|created| !of_gone.contains_key(*created));
        all.extend(ended.map(|created| (name_of_gone(name, *created), None)));
        kept.counted = of_gone.keys().copied().collect();
        all.extend(
            of_gone
                .into_iter()
                .map(|(created, using)| (name_of_gone(name, created), Some(using))),
        );
        if kept.claim.is_none() && kept.snapshots.is_empty() {
            self.kept.remove(name);
        }
        all
    }
}

impl Kept {
    /// The claim that a snapshot is of, as far as that is known.
    fn source(&self, snapshot: &SnapshotUse) -> Option<SourceClaim> {
        let taken = snapshot.using.since;
        let existing = self.claim.as_ref().filter(|claim| claim.since <= taken);
        let existing = existing.map(|claim| SourceClaim {
            created: claim.since,
            mebibytes: claim.amount.mebibytes,
        });
        let gone = || {
            let (created, gone) = self.gone.range(..=taken).next_back()?;
            Some(SourceClaim {
                created: *created,
                mebibytes: gone.mebibytes,
            })
        };
        // What was seen counts more than what others can write.
        let written = || snapshot.source.filter(|source| source.created <= taken);
        existing.or_else(gone).or_else(written)
    }

    /// Of each claim that is gone the largest snapshot, since there is one and the claim does not count any more.
    fn count_gone(&self) -> BTreeMap<Created, Using<ClaimUse>> {
        let existing = self.claim.as_ref().map(|claim| claim.since);
        let mut largest: BTreeMap<Created, Using<ClaimUse>> = BTreeMap::new();
        for snapshot in self.snapshots.values() {
            let source = self.source(snapshot);
            let created = source.map(|source| source.created);
            if created.is_some() && created == existing {
                continue;
            }
            let mut using = snapshot.using.clone();
            if let Some(gone) = created.and_then(|created| self.gone.get(&created)) {
                using.since = using.since.max(gone.at);
            }
            if using.amount.mebibytes == 0 && snapshot.is_taken {
                using.amount.mebibytes = source.map_or(0, |source| source.mebibytes);
            }
            let first = largest.get(&created).map_or(using.since, |most| most.since);
            let since = using.since.min(first);
            let most = largest.entry(created).or_insert_with(|| using.clone());
            if using.amount.mebibytes > most.amount.mebibytes {
                *most = using;
            }
            most.since = since;
        }
        largest
    }
}

/// A name for what snapshots keep of a claim that is gone. Names of objects have no spaces.
fn name_of_gone(claim: &str, created: Created) -> String {
    let created = created.map_or_else(|| "earlier".to_owned(), |created| created.to_string());
    format!("{claim} {created}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn using(class: &str, mebibytes: i64, since: i64) -> Using<ClaimUse> {
        Using {
            tenant: "vision-abc".into(),
            amount: ClaimUse {
                class: Some(class.into()),
                mebibytes,
            },
            since: at(since),
        }
    }

    fn claim(mebibytes: i64, since: i64) -> Using<ClaimUse> {
        using("fast", mebibytes, since)
    }

    fn snapshot(mebibytes: i64, since: i64) -> SnapshotUse {
        snapshot_of("ns/c", mebibytes, since)
    }

    fn snapshot_of(claim: &str, mebibytes: i64, since: i64) -> SnapshotUse {
        SnapshotUse {
            claim: claim.into(),
            using: using("daily", mebibytes, since),
            is_taken: mebibytes > 0,
            source: None,
            uid: "u".into(),
        }
    }

    /// What counts after all changes, by name: the class, MiB, and since when.
    #[derive(Default)]
    struct Log(BTreeMap<String, (String, i64, i64)>);

    impl Log {
        fn put(&mut self, counted: Vec<Counted>) -> Vec<(&str, i64, i64)> {
            for (name, using) in counted {
                let Some(using) = using else {
                    self.0.remove(&name);
                    continue;
                };
                let class = using.amount.class.unwrap_or_default();
                self.0
                    .insert(name, (class, using.amount.mebibytes, using.since.as_second()));
            }
            let all = self.0.values();
            all.map(|(class, mebibytes, since)| (class.as_str(), *mebibytes, *since))
                .collect()
        }
    }

    /// Knows that there are no claims so far.
    fn kept() -> (KeptClaims, Log) {
        let mut kept = KeptClaims::default();
        assert!(kept.retain_claims(&HashSet::new(), at(0)).is_empty());
        (kept, Log::default())
    }

    #[test]
    fn snapshots_count_once_their_claim_is_gone_and_only_the_largest() {
        let (mut kept, mut log) = kept();
        let existing = [("fast", 10, 5)];
        assert_eq!(log.put(kept.put_claim("ns/c", Some(claim(10, 5)), at(6))), existing);
        for (name, mebibytes, since) in [("ns/s1", 8, 5), ("ns/s2", 10, 30), ("ns/s3", 0, 35)] {
            let counted = kept.put_snapshot(name, Some(snapshot(mebibytes, since)));
            assert_eq!(log.put(counted), existing);
        }
        assert_eq!(log.put(kept.put_claim("ns/c", None, at(40))), [("daily", 10, 40)]);
        assert_eq!(log.put(kept.put_snapshot("ns/s2", None)), [("daily", 8, 40)]);
        assert_eq!(log.put(kept.put_snapshot("ns/s1", None)), [], "its size is not known");
        assert_eq!(
            log.put(kept.put_snapshot("ns/s3", Some(snapshot(9, 35)))),
            [("daily", 9, 40)]
        );
        assert_eq!(log.put(kept.put_snapshot("ns/s3", None)), []);
        assert!(kept.put_snapshot("ns/s3", None).is_empty(), "nothing is remembered");
        assert!(kept.kept.is_empty() && kept.sources.is_empty());
    }

    /// Otherwise a team keeps many volumes for the price of one, in snapshots of claims of one name.
    #[test]
    fn snapshots_of_different_volumes_count_each_also_if_their_claims_had_the_same_name() {
        let (mut kept, mut log) = kept();
        for number in 0..3 {
            let created = number * 100;
            log.put(kept.put_claim("ns/c", Some(claim(10, created)), at(created)));
            for (name, second) in [("a", 10), ("b", 20)] {
                log.put(kept.put_snapshot(&format!("ns/{name}{number}"), Some(snapshot(10, created + second))));
            }
            // That the second was gone, the watch did not see.
            if number != 1 {
                log.put(kept.put_claim("ns/c", None, at(created + 50)));
            }
        }
        let expected = [("daily", 10, 50), ("daily", 10, 200), ("daily", 10, 250)];
        assert_eq!(log.put(Vec::new()), expected);
        // An empty claim does not hide them.
        log.put(kept.put_claim("ns/c", Some(claim(1, 300)), at(300)));
        let [first, second, third] = expected;
        assert_eq!(log.put(Vec::new()), [("fast", 1, 300), first, second, third]);
        log.put(kept.put_snapshot("ns/a1", None));
        log.put(kept.put_snapshot("ns/b1", None));
        assert_eq!(kept.kept["ns/c"].gone.len(), 2, "nothing is remembered of the second");
        let left = [("fast", 1, 300), first, third];
        assert_eq!(log.put(Vec::new()), left);
        assert_eq!(log.put(kept.retain_snapshots(&HashSet::new())), left[..1]);
        assert!(kept.kept["ns/c"].gone.is_empty());
    }

    /// Otherwise a team waits for a restart of control, or uses a driver that reports no sizes.
    #[test]
    fn what_is_written_into_snapshots_outlives_this_process() {
        let (mut kept, mut log) = kept();
        let without_size = |since: i64| SnapshotUse {
            is_taken: true,
            ..snapshot(0, since)
        };
        for number in 0..2 {
            let created = number * 100;
            log.put(kept.put_claim("ns/c", Some(claim(10, created)), at(created)));
            let name = format!("ns/s{number}");
            log.put(kept.put_snapshot(&name, Some(without_size(created + 10))));
            log.put(kept.put_claim("ns/c", None, at(created + 50)));
        }
        assert_eq!(log.put(Vec::new()), [("daily", 10, 50), ("daily", 10, 150)]);
        let unrecorded = kept.unrecorded_sources(9);
        let sources = unrecorded
            .iter()
            .map(|found| (found.snapshot.as_str(), found.source.created.as_second()));
        assert_eq!(sources.collect::<Vec<_>>(), [("ns/s0", 0), ("ns/s1", 100)]);
        assert_eq!(kept.unrecorded_sources(1).len(), 1);
        // Another control finds them.
        let (mut next, mut log) = (KeptClaims::default(), Log::default());
        for found in &unrecorded {
            let recorded = SnapshotUse {
                source: Some(found.source),
                ..without_size(found.source.created.as_second() + 10)
            };
            log.put(next.put_snapshot(&found.snapshot, Some(recorded)));
        }
        assert_eq!(log.put(Vec::new()), [], "all claims are not known yet");
        log.put(next.retain_claims(&HashSet::new(), at(300)));
        assert_eq!(log.put(Vec::new()), [("daily", 10, 10), ("daily", 10, 110)]);
        assert!(next.unrecorded_sources(9).is_empty());
        // What somebody wrote who is not control does not count while it is known better, and is written again.
        let forged = SnapshotUse {
            source: Some(SourceClaim {
                created: at(0),
                mebibytes: 1,
            }),
            ..without_size(110)
        };
        log.put(kept.put_snapshot("ns/s1", Some(forged)));
        assert_eq!(kept.unrecorded_sources(9).len(), 2);
    }

    #[test]
    fn snapshots_that_cannot_be_written_do_not_hold_up_others() {
        let (mut kept, mut log) = kept();
        log.put(kept.put_claim("ns/c", Some(claim(10, 0)), at(1)));
        for number in 0..5 {
            log.put(kept.put_snapshot(&format!("ns/s{number}"), Some(snapshot(10, 20))));
        }
        let try_next = |kept: &mut KeptClaims| -> Vec<String> {
            let next = kept.unrecorded_sources(2);
            for found in &next {
                kept.note_tried(&found.snapshot);
            }
            next.into_iter().map(|found| found.snapshot).collect()
        };
        // None can be written. Each has a turn before any has another one, and all have another one.
        let turns: Vec<String> = (0..7).flat_map(|_| try_next(&mut kept)).collect();
        let all = BTreeSet::from(["ns/s0", "ns/s1", "ns/s2", "ns/s3", "ns/s4"]);
        for round in [&turns[..5], &turns[5..]] {
            assert_eq!(
                round.iter().map(String::as_str).collect::<BTreeSet<_>>(),
                all,
                "{turns:?}"
            );
        }
        // One that was not begun, because the time was over, does not come last.
        let begun = kept.unrecorded_sources(5);
        kept.note_tried(&begun[0].snapshot);
        assert!(!kept.unrecorded_sources(4).contains(&begun[0]));
    }

    #[test]
    fn a_claim_that_changes_is_the_same_claim() {
        let (mut kept, mut log) = kept();
        log.put(kept.put_claim("ns/c", Some(claim(10, 5)), at(6)));
        log.put(kept.put_snapshot("ns/s1", Some(snapshot(10, 20))));
        let larger = kept.put_claim("ns/c", Some(claim(20, 5)), at(30));
        assert_eq!(log.put(larger), [("fast", 20, 5)]);
        assert!(kept.kept["ns/c"].gone.is_empty());
    }

    #[test]
    fn a_snapshot_does_not_count_before_all_claims_are_known() {
        let (mut kept, mut log) = (KeptClaims::default(), Log::default());
        assert_eq!(log.put(kept.put_snapshot("ns/s1", Some(snapshot(10, 20)))), []);
        let of_gone = Some(snapshot_of("ns/gone", 7, 30));
        assert_eq!(log.put(kept.put_snapshot("ns/s2", of_gone)), []);
        log.put(kept.put_claim("ns/c", Some(claim(10, 5)), at(90)));
        let all = kept.retain_claims(&HashSet::from(["ns/c".to_owned()]), at(90));
        assert_eq!(log.put(all), [("fast", 10, 5), ("daily", 7, 30)]);
    }

    #[test]
    fn a_list_that_is_read_again_forgets_what_is_gone() {
        let (mut kept, mut log) = kept();
        log.put(kept.put_claim("ns/c", Some(claim(10, 5)), at(6)));
        log.put(kept.put_snapshot("ns/s1", Some(snapshot(10, 20))));
        let none = HashSet::new();
        assert_eq!(log.put(kept.retain_claims(&none, at(60))), [("daily", 10, 60)]);
        let still = HashSet::from(["ns/s1".to_owned()]);
        assert_eq!(log.put(kept.retain_snapshots(&still)), [("daily", 10, 60)]);
        assert_eq!(log.put(kept.retain_snapshots(&none)), []);
    }

    #[test]
    fn a_snapshot_of_another_claim_that_has_the_name_of_one_leaves_the_first() {
        let (mut kept, mut log) = kept();
        log.put(kept.put_snapshot("ns/s1", Some(snapshot(10, 20))));
        let of_other = Some(snapshot_of("ns/d", 3, 70));
        assert_eq!(log.put(kept.put_snapshot("ns/s1", of_other)), [("daily", 3, 70)]);
        assert!(!kept.kept.contains_key("ns/c"));
    }
}
