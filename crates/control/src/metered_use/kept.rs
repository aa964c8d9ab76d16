//! What is kept of each claim: its volume, and snapshots of it.
//!
//! A snapshot has the data of its volume for as long as it exists. If it did not count, a team could keep data for nothing, and make a claim of it when it needs
//! it. Snapshots of a volume share most of what they have with it and with each other. So of a claim and its snapshots what is larger counts, once.

use super::{ClaimUse, Using};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashMap, HashSet};

/// A claim, by namespace and name, and what counts of it from now on; none: nothing.
pub(super) type Counted = (String, Option<Using<ClaimUse>>);

/// What is kept of each claim.
#[derive(Debug, Default)]
pub(super) struct KeptClaims {
    /// By namespace and name of the claim.
    kept: HashMap<String, Kept>,
    /// The claim that each snapshot is of, by namespace and name of the snapshot.
    sources: HashMap<String, String>,
    /// Whether all claims that exist are known. Before, a snapshot would count for a claim that exists.
    has_all_claims: bool,
}

#[derive(Debug, Default)]
struct Kept {
    /// None: it is gone, or has no volume.
    claim: Option<Using<ClaimUse>>,
    /// When it was noticed that it is gone.
    gone_at: Option<Timestamp>,
    /// By namespace and name.
    snapshots: BTreeMap<String, Using<ClaimUse>>,
}

impl KeptClaims {
    /// Sets a claim; none if it has no volume or is gone. `at` is the time of the change.
    pub(super) fn put_claim(&mut self, name: &str, claim: Option<Using<ClaimUse>>, at: Timestamp) -> Counted {
        let kept = self.kept.entry(name.to_owned()).or_default();
        if claim.is_none() && kept.claim.is_some() {
            kept.gone_at = Some(at);
        }
        kept.claim = claim;
        self.count(name.to_owned())
    }

    /// Forgets all claims but these. Returns what counts of each claim.
    pub(super) fn retain_claims(&mut self, names: &HashSet<String>, at: Timestamp) -> Vec<Counted> {
        self.has_all_claims = true;
        let mut counted = Vec::new();
        for name in self.kept.keys().cloned().collect::<Vec<String>>() {
            counted.push(if names.contains(&name) {
                self.count(name)
            } else {
                self.put_claim(&name, None, at)
            });
        }
        counted
    }

    /// Sets a snapshot, with the claim that it is of; none if it is gone or not ready. Returns what counts of the claims that are concerned.
    pub(super) fn put_snapshot(&mut self, name: &str, snapshot: Option<(String, Using<ClaimUse>)>) -> Vec<Counted> {
        let before = self.sources.remove(name);
        if let Some(claim) = &before
            && let Some(kept) = self.kept.get_mut(claim)
        {
            kept.snapshots.remove(name);
        }
        let mut concerned: Vec<String> = before.into_iter().collect();
        if let Some((claim, using)) = snapshot {
            let kept = self.kept.entry(claim.clone()).or_default();
            kept.snapshots.insert(name.to_owned(), using);
            self.sources.insert(name.to_owned(), claim.clone());
            concerned.push(claim);
        }
        concerned.dedup();
        concerned.into_iter().map(|claim| self.count(claim)).collect()
    }

    /// Forgets all snapshots but these. Returns what counts of the claims that are concerned.
    pub(super) fn retain_snapshots(&mut self, names: &HashSet<String>) -> Vec<Counted> {
        let gone = self.sources.keys().filter(|name| !names.contains(*name));
        let gone: Vec<String> = gone.cloned().collect();
        gone.iter().flat_map(|name| self.put_snapshot(name, None)).collect()
    }

    /// What counts of a claim. One of which nothing is kept is forgotten.
    fn count(&mut self, name: String) -> Counted {
        let Some(kept) = self.kept.get(&name) else {
            return (name, None);
        };
        let counted = kept.count(self.has_all_claims);
        if kept.claim.is_none() && kept.snapshots.is_empty() {
            self.kept.remove(&name);
        }
        (name, counted)
    }
}

impl Kept {
    fn count(&self, has_all_claims: bool) -> Option<Using<ClaimUse>> {
        let snapshots = || self.snapshots.values().filter(move |_| has_all_claims);
        let largest = snapshots().max_by_key(|snapshot| snapshot.amount.mebibytes);
        let Some(claim) = &self.claim else {
            let first = snapshots().map(|snapshot| snapshot.since).min()?;
            return Some(Using {
                // Before, the claim counted.
                since: self.gone_at.map_or(first, |gone_at| gone_at.max(first)),
                ..largest?.clone()
            });
        };
        let mut counted = claim.clone();
        // One of a larger claim that had the same name.
        let of_snapshots = largest.map_or(0, |largest| largest.amount.mebibytes);
        counted.amount.mebibytes = counted.amount.mebibytes.max(of_snapshots);
        Some(counted)
    }
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

    fn counted(mebibytes: i64, since: i64, class: &str) -> Counted {
        ("ns/c".into(), Some(using(class, mebibytes, since)))
    }

    fn snapshot(mebibytes: i64, since: i64) -> Option<(String, Using<ClaimUse>)> {
        Some(("ns/c".into(), using("daily", mebibytes, since)))
    }

    /// Knows that there are no claims so far.
    fn kept() -> KeptClaims {
        let mut kept = KeptClaims::default();
        assert!(kept.retain_claims(&HashSet::new(), at(0)).is_empty());
        kept
    }

    #[test]
    fn snapshots_count_once_their_claim_is_gone_and_only_the_largest() {
        let mut kept = kept();
        let claim = Some(using("fast", 10, 5));
        assert_eq!(kept.put_claim("ns/c", claim, at(6)), counted(10, 5, "fast"));
        for (name, mebibytes, since) in [("ns/s1", 8, 20), ("ns/s2", 10, 30)] {
            assert_eq!(
                kept.put_snapshot(name, snapshot(mebibytes, since)),
                [counted(10, 5, "fast")]
            );
        }
        assert_eq!(kept.put_claim("ns/c", None, at(40)), counted(10, 40, "daily"));
        assert_eq!(kept.put_snapshot("ns/s2", None), [counted(8, 40, "daily")]);
        assert_eq!(kept.put_snapshot("ns/s1", None), [("ns/c".to_owned(), None)]);
        assert!(kept.put_snapshot("ns/s1", None).is_empty(), "nothing is remembered");
        assert!(kept.kept.is_empty() && kept.sources.is_empty());
    }

    #[test]
    fn a_small_claim_does_not_hide_snapshots_of_a_large_one_that_had_its_name() {
        let mut kept = kept();
        kept.put_snapshot("ns/s1", snapshot(1000, 20));
        let claim = Some(using("fast", 1, 50));
        assert_eq!(kept.put_claim("ns/c", claim, at(50)), counted(1000, 50, "fast"));
    }

    #[test]
    fn a_snapshot_does_not_count_before_all_claims_are_known() {
        let mut kept = KeptClaims::default();
        assert_eq!(
            kept.put_snapshot("ns/s1", snapshot(10, 20)),
            [("ns/c".to_owned(), None)]
        );
        let mut of_other = snapshot(7, 30);
        if let Some((claim, _)) = &mut of_other {
            *claim = "ns/gone".into();
        }
        kept.put_snapshot("ns/s2", of_other);
        kept.put_claim("ns/c", Some(using("fast", 10, 5)), at(90));
        let mut all = kept.retain_claims(&HashSet::from(["ns/c".to_owned()]), at(90));
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        let of_gone = ("ns/gone".to_owned(), Some(using("daily", 7, 30)));
        assert_eq!(all, [counted(10, 5, "fast"), of_gone]);
    }

    #[test]
    fn a_list_that_is_read_again_forgets_what_is_gone() {
        let mut kept = kept();
        kept.put_claim("ns/c", Some(using("fast", 10, 5)), at(6));
        kept.put_snapshot("ns/s1", snapshot(10, 20));
        let none = HashSet::new();
        assert_eq!(kept.retain_claims(&none, at(60)), [counted(10, 60, "daily")]);
        let still = HashSet::from(["ns/s1".to_owned()]);
        assert!(kept.retain_snapshots(&still).is_empty());
        assert_eq!(kept.retain_snapshots(&none), [("ns/c".to_owned(), None)]);
    }

    #[test]
    fn a_snapshot_of_another_claim_that_has_the_name_of_one_leaves_the_first() {
        let mut kept = kept();
        kept.put_snapshot("ns/s1", snapshot(10, 20));
        let now = kept.put_snapshot("ns/s1", Some(("ns/d".into(), using("daily", 3, 70))));
        let of_other = ("ns/d".to_owned(), Some(using("daily", 3, 70)));
        assert_eq!(now, [("ns/c".to_owned(), None), of_other]);
    }
}
