//! Evictions: only by what is known right before.

use super::{Fleet, POD};
use crate::{controllers::idle_gpus::tenants::Memory, metrics::ResultLabels};
use berth_api::IdleReclaimMode;
use std::time::Duration;

#[tokio::test]
async fn a_pod_that_wakes_after_the_pass_began_is_not_evicted() {
    let mut fleet = Fleet::due_next().await;
    // The pass in which the pod is due still finds it idle; before it gets to the eviction, the pod works.
    fleet.gpu.set_after_pass(Some(0.5));
    fleet.run(1).await;
    assert_eq!(fleet.step().as_deref(), Some("Reclaimable"));
    assert_eq!(fleet.evictions(), 0);
    let evictions = &fleet.context.metrics.idle_evictions;
    assert_eq!(evictions.get_or_create(&ResultLabels { result: "kept" }).get(), 1);
    fleet.run(1).await;
    assert_eq!((fleet.step(), fleet.evictions()), (None, 0));
    assert_eq!(fleet.condition()["reason"], "Active");
}

#[tokio::test]
async fn nothing_is_evicted_if_prometheus_does_not_answer_right_before() {
    let mut fleet = Fleet::due_next().await;
    fleet.gpu.set_after_pass(None);
    fleet.run(1).await;
    assert_eq!(fleet.step().as_deref(), Some("Reclaimable"));
    assert_eq!(fleet.evictions(), 0);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_evicted_by_an_answer_that_took_long() {
    for (seconds, is_evicted) in [(5, true), (10, false)] {
        let mut fleet = Fleet::due_next().await;
        // The queries of the pass are answered at once. The others come four at a time, after that for the clock.
        fleet.gpu.delay_after_pass(Duration::from_secs(seconds));
        fleet.run(1).await;
        assert_eq!(fleet.step().as_deref(), Some("Reclaimable"));
        assert_eq!(fleet.evictions() > 0, is_evicted, "{seconds} s");
    }
}

#[tokio::test]
async fn a_new_control_evicts_nothing_at_once() {
    let mut fleet = Fleet::idle_for(42, IdleReclaimMode::Enforce).await;
    assert_eq!(fleet.step().as_deref(), Some("Reclaimable"));
    let before = fleet.evictions();
    // What the GPU did in these hours is not known.
    fleet.minutes += 300;
    fleet.memory = Memory::default();
    fleet.run(10).await;
    assert_eq!(fleet.step().as_deref(), Some("CheckpointRequested"));
    assert_eq!(fleet.evictions(), before);
    fleet.run(2).await;
    assert!(fleet.evictions() > before);
}

#[tokio::test]
async fn nothing_is_evicted_while_the_status_cannot_be_written() {
    let mut fleet = Fleet::idle_for(40, IdleReclaimMode::Enforce).await;
    let before = fleet.script.calls().len();
    fleet.script.fail_call(before);
    fleet.run(1).await;
    let failed = fleet.script.failed().unwrap_or_default();
    assert!(failed.contains("tenantclusters/vision/status"), "{failed}");
    assert_eq!(fleet.evictions(), 0);
    fleet.run(1).await;
    assert_eq!(fleet.evictions(), 1);
}

/// Lets the host refuse evictions with this code, and metrics count them as this result.
async fn refuse_evictions(code: u16, refusal: &'static str, refused: &'static str) {
    let mut fleet = Fleet::due_next().await;
    fleet.host.refuse_writes(Some(("/eviction", code, refusal)));
    let deleted = format!("host DELETE {POD}");
    let count = |fleet: &Fleet| {
        let calls = fleet.script.calls();
        calls.iter().filter(|call| call.text == deleted).count()
    };
    fleet.run(60).await;
    assert_eq!((fleet.evictions(), count(&fleet)), (60, 0));
    fleet.run(1).await;
    assert_eq!((fleet.evictions(), count(&fleet)), (61, 1));
    let results = &fleet.context.metrics.idle_evictions;
    for (result, pods) in [(refused, 60), ("forced", 1)] {
        assert_eq!(results.get_or_create(&ResultLabels { result }).get(), pods, "{result}");
    }
}

#[tokio::test]
async fn a_budget_keeps_idle_gpus_for_a_while_only() {
    let refusal = "Cannot evict pod as it would violate the pod's disruption budget.";
    refuse_evictions(429, refusal, "blocked").await;
}

/// A team can have two budgets that select a pod. The API server never evicts it then.
#[tokio::test]
async fn two_budgets_keep_idle_gpus_for_a_while_only() {
    let refusal = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
    refuse_evictions(500, refusal, "failed").await;
}
