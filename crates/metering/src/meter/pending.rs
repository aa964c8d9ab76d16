//! What was counted and is not in a stored record yet.

use crate::{
    calendar::{DAY, Month, day_of_second},
    item::LineKey,
};
use std::collections::BTreeMap;

/// The most pieces of a key that are kept apart. More are put together by day.
const MOST_PIECES: usize = 64;

/// What was counted, by key and time. The time is kept so that what another control has recorded meanwhile is not counted twice.
#[derive(Clone, Debug, Default)]
pub(super) struct Pending(BTreeMap<LineKey, Vec<Piece>>);

/// What was used between two seconds of one day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    /// The first second of the epoch.
    pub(super) from: i64,
    /// The second after the last one.
    pub(super) to: i64,
    /// Amount of all of these seconds.
    pub(super) amount: i64,
}

impl Pending {
    /// Adds an amount for each second from `from` until before `to`.
    pub(super) fn add(&mut self, key: &LineKey, mut from: i64, to: i64, each_second: i64) {
        // A pass adds thousands of times, and a key has eight texts.
        let pieces = match self.0.get_mut(key) {
            Some(pieces) => pieces,
            None => self.0.entry(key.clone()).or_default(),
        };
        while from < to {
            let midnight = from.div_euclid(DAY).saturating_add(1).saturating_mul(DAY);
            let end = to.min(midnight);
            let amount = each_second.saturating_mul(end - from);
            match pieces.last_mut() {
                // Nodes of one pool are mostly held for the same time.
                Some(last) if (last.from, last.to) == (from, end) => last.amount = last.amount.saturating_add(amount),
                _ => pieces.push(Piece { from, to: end, amount }),
            }
            from = end;
        }
    }

    /// Puts pieces together that can be without a loss, and by day if there are many.
    pub(super) fn settle(&mut self) {
        self.0.retain(|_, pieces| !pieces.is_empty());
        for pieces in self.0.values_mut() {
            pieces.sort_unstable();
            join(pieces, Piece::is_same_time);
            join(pieces, Piece::is_continued_by);
            if pieces.len() > MOST_PIECES {
                join(pieces, |first, second| day(first) == day(second));
            }
        }
    }

    /// Drops what was used before a second. Of a piece that begins before it the part that follows stays.
    pub(super) fn drop_before(&mut self, second: i64) {
        for pieces in self.0.values_mut() {
            pieces.retain_mut(|piece| piece.drop_before(second));
        }
        self.0.retain(|_, pieces| !pieces.is_empty());
    }

    /// The first second in which something was used.
    pub(super) fn first_second(&self) -> Option<i64> {
        self.0.values().flatten().map(|piece| piece.from).min()
    }

    /// What was used in a month.
    pub(super) fn of_month(&self, month: Month) -> impl Iterator<Item = (&LineKey, Piece)> + '_ {
        let of_keys = self
            .0
            .iter()
            .flat_map(|(key, pieces)| pieces.iter().map(move |piece| (key, *piece)));
        of_keys.filter(move |(_, piece)| Month::of(day_of_second(piece.from)) == month)
    }
}

impl Piece {
    fn is_same_time(&self, other: &Self) -> bool {
        (self.from, self.to) == (other.from, other.to)
    }

    /// Whether the other follows on the same day with the same amount for each second.
    fn is_continued_by(&self, other: &Self) -> bool {
        let product = |amount: i64, seconds: i64| i128::from(amount) * i128::from(seconds);
        self.to == other.from
            && day(self) == day(other)
            && product(self.amount, other.to - other.from) == product(other.amount, self.to - self.from)
    }

    /// Drops what is before a second. Returns false if nothing is left.
    fn drop_before(&mut self, second: i64) -> bool {
        if second >= self.to {
            return false;
        }
        if second > self.from {
            let dropped = i128::from(self.amount) * i128::from(second - self.from) / i128::from(self.to - self.from);
            // At most the amount itself.
            self.amount -= i64::try_from(dropped).unwrap_or(self.amount);
            self.from = second;
        }
        true
    }
}

/// The day of a piece, counted from the epoch.
fn day(piece: &Piece) -> i64 {
    piece.from.div_euclid(DAY)
}

/// Makes one of neighbors that fit, in sorted pieces.
fn join(pieces: &mut Vec<Piece>, fit: impl Fn(&Piece, &Piece) -> bool) {
    pieces.dedup_by(|second, first| {
        let is_one = fit(first, second);
        if is_one {
            first.to = first.to.max(second.to);
            first.amount = first.amount.saturating_add(second.amount);
        }
        is_one
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::UsageResource;
    use proptest::prelude::*;

    fn key() -> LineKey {
        LineKey::new(UsageResource::Gpu)
    }

    fn pieces(pending: &Pending) -> Vec<(i64, i64, i64)> {
        let all = pending.0.values().flatten();
        all.map(|piece| (piece.from, piece.to, piece.amount)).collect()
    }

    fn sum(pending: &Pending) -> i64 {
        pending.0.values().flatten().map(|piece| piece.amount).sum()
    }

    #[test]
    fn time_is_split_at_midnight() {
        let mut pending = Pending::default();
        pending.add(&key(), DAY - 10, 2 * DAY + 5, 2);
        assert_eq!(
            pieces(&pending),
            [(DAY - 10, DAY, 20), (DAY, 2 * DAY, 2 * DAY), (2 * DAY, 2 * DAY + 5, 10)]
        );
        let mut before_the_epoch = Pending::default();
        before_the_epoch.add(&key(), -5, 5, 1);
        assert_eq!(pieces(&before_the_epoch), [(-5, 0, 5), (0, 5, 5)]);
    }

    #[test]
    fn an_empty_time_is_nothing() {
        let mut pending = Pending::default();
        pending.add(&key(), 10, 10, 2);
        pending.add(&key(), 10, 5, 2);
        pending.settle();
        assert_eq!(pending.first_second(), None);
        assert!(pieces(&pending).is_empty());
    }

    #[test]
    fn observations_of_the_same_are_one_piece() {
        let mut pending = Pending::default();
        for minute in 0..15 {
            // Two nodes.
            pending.add(&key(), minute * 60, (minute + 1) * 60, 8);
            pending.add(&key(), minute * 60, (minute + 1) * 60, 8);
            pending.settle();
        }
        assert_eq!(pieces(&pending), [(0, 900, 14_400)]);
        // A third one comes in between.
        pending.add(&key(), 900, 960, 16);
        pending.add(&key(), 930, 960, 8);
        pending.settle();
        assert_eq!(pieces(&pending), [(0, 960, 15_360), (930, 960, 240)]);
        assert_eq!(pending.first_second(), Some(0));
    }

    #[test]
    fn another_amount_and_another_day_are_pieces_of_their_own() {
        let mut pending = Pending::default();
        pending.add(&key(), 0, 10, 1);
        pending.add(&key(), 10, 20, 2);
        pending.add(&key(), DAY - 10, DAY, 1);
        pending.add(&key(), DAY, DAY + 10, 1);
        pending.settle();
        assert_eq!(
            pieces(&pending),
            [(0, 10, 10), (10, 20, 20), (DAY - 10, DAY, 10), (DAY, DAY + 10, 10)]
        );
    }

    #[test]
    fn many_pieces_are_put_together_by_day() {
        let mut pending = Pending::default();
        for minute in 0..3_000 {
            pending.add(&key(), minute * 60, (minute + 1) * 60, minute + 1);
            pending.settle();
        }
        let whole = sum(&pending);
        assert_eq!(whole, (1..=3_000).sum::<i64>() * 60);
        assert!(pieces(&pending).len() <= MOST_PIECES + 3, "{}", pieces(&pending).len());
        // Each day keeps its amount.
        let first_day: i64 = pending.0[&key()]
            .iter()
            .filter(|piece| day(piece) == 0)
            .map(|piece| piece.amount)
            .sum();
        assert_eq!(first_day, (1..=1_440).sum::<i64>() * 60);
    }

    #[test]
    fn what_is_before_a_second_is_dropped() {
        let mut pending = Pending::default();
        pending.add(&key(), 0, 100, 3);
        pending.add(&LineKey::new(UsageResource::Node), 0, 50, 1);
        pending.drop_before(0);
        assert_eq!(sum(&pending), 350);
        pending.drop_before(50);
        assert_eq!(pieces(&pending), [(50, 100, 150)]);
        pending.drop_before(99);
        assert_eq!(pieces(&pending), [(99, 100, 3)]);
        pending.drop_before(100);
        assert_eq!(pending.first_second(), None);
    }

    #[test]
    fn huge_amounts_are_the_largest() {
        let mut pending = Pending::default();
        pending.add(&key(), 0, 10, i64::MAX);
        pending.add(&key(), 0, 10, i64::MAX);
        pending.add(&key(), 10, 20, i64::MAX);
        pending.settle();
        assert_eq!(pieces(&pending), [(0, 20, i64::MAX)]);
        pending.drop_before(10);
        assert_eq!(pieces(&pending), [(10, 20, i64::MAX - i64::MAX / 2)]);
    }

    #[test]
    fn months_have_their_own_pieces() {
        let start = "2026-12-01T00:00:00Z".parse::<jiff::Timestamp>().unwrap().as_second();
        let mut pending = Pending::default();
        pending.add(&key(), start - 10, start + 20, 1);
        let amounts = |month: &str| {
            let month: Month = month.parse().unwrap();
            pending
                .of_month(month)
                .map(|(_, piece)| piece.amount)
                .collect::<Vec<_>>()
        };
        assert_eq!(amounts("2026-11"), [10]);
        assert_eq!(amounts("2026-12"), [20]);
        assert_eq!(amounts("2027-12"), [0_i64; 0]);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_nothing_is_added(
            parts in proptest::collection::vec((0_i64..200_000, 0_i64..100_000, 0_i64..50), 0..40),
            at in 0_i64..300_000,
        ) {
            let mut pending = Pending::default();
            for (from, seconds, each) in &parts {
                pending.add(&key(), *from, from + seconds, *each);
            }
            let whole: i64 = parts.iter().map(|(_, seconds, each)| seconds * each).sum();
            prop_assert_eq!(sum(&pending), whole);
            let is_exact = pieces(&pending).len() <= MOST_PIECES;
            pending.settle();
            prop_assert_eq!(sum(&pending), whole);
            prop_assert!(pending.0.values().flatten().all(|piece| piece.from < piece.to));
            let mut rest = pending.clone();
            rest.drop_before(at);
            prop_assert!(sum(&rest) <= whole);
            prop_assert!(rest.first_second().is_none_or(|second| second >= at));
            if is_exact {
                let after = |from: i64, seconds: i64| ((from + seconds) - from.max(at)).max(0);
                let expected: i64 = parts.iter().map(|(from, seconds, each)| after(*from, *seconds) * each).sum();
                prop_assert_eq!(sum(&rest), expected);
            }
        }
    }
}
