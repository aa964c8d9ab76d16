//! Windows of schedules, in which pods do not count as idle.

use super::Fleet;
use berth_api::IdleReclaimMode;
use serde_json::{Value, json};

#[tokio::test]
async fn what_a_schedule_restricts_does_not_count_as_idle() {
    for (workloads, is_restricted) in [
        (Value::Null, true),
        (json!({"namespaces": ["ml"]}), true),
        (json!({"namespaces": ["web"]}), false),
        (json!({"selector": {"matchLabels": {"tier": "batch"}}}), false),
    ] {
        let mut fleet = Fleet::new(IdleReclaimMode::Enforce);
        fleet.put_policy(&workloads);
        fleet.gpu.set(Some(0.0));
        fleet.run(60).await;
        assert_eq!(fleet.evictions() == 0, is_restricted, "{workloads}");
        assert_eq!(fleet.step().is_none(), is_restricted, "{workloads}");
    }
}

#[tokio::test]
async fn the_time_of_a_step_starts_again_after_a_window() {
    let mut fleet = Fleet::idle_for(35, IdleReclaimMode::Enforce).await;
    assert_eq!(fleet.step().as_deref(), Some("CheckpointRequested"));
    fleet.put_policy(&Value::Null);
    fleet.context.schedules.forget("closed");
    fleet.run(60).await;
    assert_eq!(
        (fleet.step().as_deref(), fleet.evictions()),
        (Some("CheckpointRequested"), 0)
    );
    fleet.host.remove("/apis/berth.dev/v1alpha1/schedulepolicies/closed");
    fleet.context.schedules.forget("closed");
    fleet.run(10).await;
    assert_eq!(fleet.evictions(), 0);
    fleet.run(2).await;
    assert!(fleet.evictions() >= 1);
}
