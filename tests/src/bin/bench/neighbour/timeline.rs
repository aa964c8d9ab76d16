//! When a neighbour's writes were slow, and beside which of the greedy tenant's. Pure.

use super::{small_writes::Write, tally::Answer};
use crate::report::{milliseconds, percentile};
use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

/// Length of one line.
const WINDOW: Duration = Duration::from_secs(10);
/// A request is work of the servers for so long before it is answered, at most, if it does not wait for its turn.
const WORK: Duration = Duration::from_millis(100);

/// What happened in one window.
#[derive(Debug, Default)]
struct Happened {
    /// Milliseconds that the neighbour's writes took.
    delays: Vec<f64>,
    /// The greedy tenant's requests, by what was answered.
    answers: BTreeMap<String, u32>,
}

/// A line for each ten seconds since `begun`: the neighbour's `writes`, and what the greedy tenant was answered. Earlier ones are left out.
pub(super) fn lines(begun: Instant, writes: &[Write], answers: &[(Instant, String)]) -> Vec<String> {
    let window = |at: Instant| Some(at.checked_duration_since(begun)?.as_secs() / WINDOW.as_secs());
    let mut windows: BTreeMap<u64, Happened> = BTreeMap::new();
    for write in writes {
        if let Some(window) = window(write.at) {
            windows.entry(window).or_default().delays.push(milliseconds(write.took));
        }
    }
    for (at, answer) in answers {
        if let Some(window) = window(*at) {
            let answers = &mut windows.entry(window).or_default().answers;
            *answers.entry(answer.clone()).or_default() += 1;
        }
    }
    let line = |(window, happened): (u64, Happened)| {
        let [half, slow, most] = [50.0, 90.0, 100.0].map(|percent| percentile(&happened.delays, percent));
        let answers: Vec<String> = happened
            .answers
            .iter()
            .map(|(answer, count)| format!("{count} {answer}"))
            .collect();
        let answers = if answers.is_empty() {
            "nothing".to_owned()
        } else {
            answers.join(", ")
        };
        format!(
            "from {} s: neighbour's writes p50 {half:.1}, p90 {slow:.1}, p100 {most:.1} ms; greedy tenant answered: {answers}",
            window * WINDOW.as_secs()
        )
    };
    windows.into_iter().map(line).collect()
}

/// Milliseconds of the neighbour's writes beside which the servers worked on a request of the greedy tenant that was accepted, and of the
/// others. Answers are in the order of time.
pub(super) fn split(writes: &[Write], answers: &[(Instant, String)]) -> (Vec<f64>, Vec<f64>) {
    let accepted = Answer::Accepted.to_string();
    let accepted: Vec<Instant> = answers
        .iter()
        .filter(|(_, answer)| *answer == accepted)
        .map(|(at, _)| *at)
        .collect();
    let is_beside = |write: &&Write| {
        let next = accepted.partition_point(|at| *at < write.at);
        accepted.get(next).is_some_and(|at| *at <= write.at + write.took + WORK)
    };
    let (beside, others): (Vec<&Write>, Vec<&Write>) = writes.iter().partition(is_beside);
    let delays = |writes: Vec<&Write>| writes.into_iter().map(|write| milliseconds(write.took)).collect();
    (delays(beside), delays(others))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(begun: Instant, at: u64, took: u64) -> Write {
        Write {
            at: begun + Duration::from_millis(at),
            took: Duration::from_millis(took),
        }
    }

    fn answer(begun: Instant, at: u64, what: &str) -> (Instant, String) {
        (begun + Duration::from_millis(at), what.to_owned())
    }

    #[test]
    fn each_window_has_a_line() {
        let begun = Instant::now();
        let writes = [write(begun, 0, 4), write(begun, 9_999, 6), write(begun, 10_000, 50)];
        let answers = [
            answer(begun, 1, "accepted"),
            answer(begun, 2, "accepted"),
            answer(begun, 3, "429"),
            answer(begun, 20_000, "403"),
        ];
        assert_eq!(
            lines(begun, &writes, &answers),
            [
                "from 0 s: neighbour's writes p50 4.0, p90 6.0, p100 6.0 ms; greedy tenant answered: 1 429, 2 accepted",
                "from 10 s: neighbour's writes p50 50.0, p90 50.0, p100 50.0 ms; greedy tenant answered: nothing",
                "from 20 s: neighbour's writes p50 NaN, p90 NaN, p100 NaN ms; greedy tenant answered: 1 403",
            ]
        );
    }

    #[test]
    fn what_was_earlier_is_left_out() {
        let earlier = Instant::now();
        let begun = earlier + Duration::from_secs(1);
        let none = lines(begun, &[write(earlier, 0, 4)], &[answer(earlier, 0, "429")]);
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn writes_beside_accepted_ones_are_separated() {
        let begun = Instant::now();
        let answers = [
            answer(begun, 1_000, "accepted"),
            answer(begun, 3_000, "429"),
            answer(begun, 5_000, "accepted"),
        ];
        let writes = [
            write(begun, 800, 20),
            // The servers are at it already.
            write(begun, 900, 1),
            write(begun, 1_000, 2),
            write(begun, 1_001, 3),
            write(begun, 3_000, 4),
            write(begun, 4_999, 5),
            write(begun, 5_001, 6),
        ];
        assert_eq!(
            split(&writes, &answers),
            (vec![1.0, 2.0, 5.0], vec![20.0, 3.0, 4.0, 6.0])
        );
    }
}
