//! Properties that hold whatever the metrics are.

use super::{evaluate, policy};
use crate::{
    evidence::Verdict,
    pass::States,
    pod::GpuPod,
    query::Aggregation,
    series::SeriesTable,
    testing::{self, NOW, SIGNALS},
};
use berth_api::IdleReclaimMode;
use proptest::prelude::*;
use std::slice;

/// Values of the three aggregates of one signal; none: no row.
type Cell = (Option<f64>, Option<f64>, Option<f64>);

fn cells() -> impl Strategy<Value = Vec<Cell>> {
    let now = f64::from(u32::try_from(NOW).unwrap());
    let peak = prop_oneof![Just(Some(0.0)), Just(None), (0.0..500.0_f64).prop_map(Some)];
    let coverage = prop_oneof![Just(Some(60.0)), Just(None), (0.0..61.0_f64).prop_map(Some)];
    let last = prop_oneof![Just(Some(now)), Just(None), (now - 4000.0..now).prop_map(Some)];
    prop::collection::vec((peak, coverage, last), 8)
}

/// A table of a pod with two GPUs; `cells` are the four signals of the first, then those of the second.
fn table_of(pod: &GpuPod, cells: &[Cell]) -> SeriesTable {
    let mut table = SeriesTable::default();
    for (place, (peak, coverage, last)) in cells.iter().enumerate() {
        let index = u32::try_from(place / 4).unwrap();
        for (aggregation, value) in [
            (Aggregation::Peak, peak),
            (Aggregation::Coverage, coverage),
            (Aggregation::LastSample, last),
        ] {
            if let Some(value) = value {
                table.record(&testing::row(pod, index), SIGNALS[place % 4], aggregation, *value);
            }
        }
    }
    table
}

fn verdict_of(pod: &GpuPod, cells: &[Cell]) -> Verdict {
    let enforce = policy(IdleReclaimMode::Enforce);
    let table = table_of(pod, cells);
    evaluate(&enforce, slice::from_ref(pod), table, &States::new(), NOW)[0].verdict
}

proptest! {
    #[test]
    fn a_missing_row_is_never_idle(mut cells in cells(), place in 0..8_usize, which in 0..3_usize) {
        match which {
            0 => cells[place].0 = None,
            1 => cells[place].1 = None,
            _ => cells[place].2 = None,
        }
        prop_assert_ne!(verdict_of(&testing::pod("a", 2), &cells), Verdict::Idle);
    }

    #[test]
    fn more_activity_never_makes_a_pod_idle(cells in cells(), place in 0..8_usize, more in 0.0..100.0_f64) {
        let pod = testing::pod("a", 2);
        let before = verdict_of(&pod, &cells);
        let mut busier = cells;
        busier[place].0 = busier[place].0.map(|peak| peak + more);
        prop_assert!(verdict_of(&pod, &busier) >= before);
    }

    #[test]
    fn less_coverage_and_older_samples_never_make_a_pod_idle(
        cells in cells(), place in 0..8_usize, fewer in 0.0..60.0_f64, older in 0.0..4000.0_f64,
    ) {
        let pod = testing::pod("a", 2);
        let before = verdict_of(&pod, &cells);
        let mut worse = cells;
        worse[place].1 = worse[place].1.map(|coverage| coverage - fewer);
        worse[place].2 = worse[place].2.map(|last| last - older);
        if before != Verdict::Idle {
            prop_assert_ne!(verdict_of(&pod, &worse), Verdict::Idle);
        }
    }

    #[test]
    fn a_pod_is_idle_only_with_every_row_of_every_gpu(cells in cells()) {
        let is_complete = cells.iter().enumerate().all(|(place, (peak, coverage, last))| {
            let limit = if place % 4 == 3 { 150.0 } else { 0.0 };
            peak.is_some_and(|peak| peak <= limit)
                && coverage.is_some_and(|coverage| coverage >= 57.0)
                && last.is_some_and(|last| last >= f64::from(u32::try_from(NOW - 120).unwrap()))
        });
        let verdict = verdict_of(&testing::pod("a", 2), &cells);
        prop_assert_eq!(verdict == Verdict::Idle, is_complete);
    }
}
