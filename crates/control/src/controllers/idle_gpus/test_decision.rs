//! The decision about a workload that tests begin with.

use berth_api::IdleStep;
use berth_idle_reclaim::{
    evidence::Verdict,
    ladder::{LadderState, UnknownTime},
    pass::Decision,
    workload::WorkloadName,
};

/// A workload without pods that is idle since second 0, and has been at this step since then.
pub(super) fn idle_at(step: IdleStep, name: &str) -> Decision {
    Decision {
        workload: WorkloadName {
            name: name.into(),
            ..WorkloadName::default()
        },
        pods: Vec::new(),
        gpus: 0,
        profile: None,
        verdict: Verdict::Idle,
        is_opted_out: false,
        state: Some(LadderState {
            idle_since: 0,
            step,
            step_since: 0,
            paused: false,
            unknown: UnknownTime::default(),
        }),
        next_step_at: None,
        awaits_pods: false,
    }
}
