//! GPUs on which several containers take turns.

use super::*;

/// What is decided about a pod that requests three units and has these shares of one GPU, of which the last one shows an activity.
fn verdict(shares: &[&str], activity: f64) -> Verdict {
    let pod = testing::pod("train", 3);
    let mut table = SeriesTable::default();
    for share in shares {
        let row = RowLabels {
            share: (*share).into(),
            ..testing::row(&pod, 0)
        };
        for signal in SIGNALS {
            testing::record_idle(&mut table, &row, signal);
        }
        if shares.last() == Some(share) {
            table.record(&row, Signal::Engine, Aggregation::Peak, activity);
        }
    }
    let policy = policy(IdleReclaimMode::Enforce);
    let decisions = evaluate(&policy, slice::from_ref(&pod), table, &States::new(), NOW);
    decisions[0].verdict
}

/// Otherwise a team keeps a GPU for ever by a request for more shares than there are GPUs.
#[test]
fn shares_of_one_gpu_are_all_that_a_pod_requests() {
    let missing = Verdict::Unknown(Unknown::MissingSeries);
    let more = Verdict::Unknown(Unknown::MoreDevicesThanRequested);
    let cases: [(&[&str], f64, Verdict); 5] = [
        (&["0", "1", "3"], 0.0, Verdict::Idle),
        (&["0", "1", "3"], 0.1, Verdict::Active),
        (&["0", "1"], 0.0, missing),
        (&["0", "1", "2", "3"], 0.0, more),
        // The exporter does not name the shares: the pod may have some of another GPU.
        (&[""], 0.0, missing),
    ];
    for (shares, activity, expected) in cases {
        assert_eq!(verdict(shares, activity), expected, "{shares:?} {activity}");
    }
}
