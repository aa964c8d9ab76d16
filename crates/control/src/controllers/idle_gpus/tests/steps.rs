//! The steps from the first warning to the last one, and what takes them back.

use super::{CLUSTER, Fleet};
use crate::{
    controllers::idle_gpus::tenants::Memory,
    metrics::{GpuActivityLabels, ResultLabels, TenantLabels},
};
use berth_api::{IdleReclaimMode, names::TenantId};
use serde_json::{Value, json};
use std::time::Duration;

fn labels_of_tenant() -> TenantLabels {
    TenantLabels {
        tenant_namespace: "team".into(),
        tenant: "vision".into(),
    }
}

#[tokio::test]
async fn an_idle_pod_is_warned_and_evicted_in_the_end() {
    let mut fleet = Fleet::idle_for(1, IdleReclaimMode::Enforce).await;
    assert_eq!(fleet.step().as_deref(), Some("Warned"));
    assert_eq!(
        (fleet.condition()["status"].as_str(), fleet.events()),
        (Some("True"), 1)
    );
    fleet.run(15).await;
    assert_eq!(fleet.step().as_deref(), Some("WarnedAgain"));
    fleet.run(24).await;
    assert_eq!(fleet.step().as_deref(), Some("CheckpointRequested"));
    assert_eq!((fleet.events(), fleet.evictions()), (3, 0));
    fleet.run(2).await;
    assert_eq!(fleet.step().as_deref(), Some("Reclaimable"));
    assert!(fleet.evictions() >= 1);
    assert_eq!(fleet.condition()["reason"], "Reclaimable");
}

#[tokio::test]
async fn gaps_are_not_asked_for_while_a_gpu_works() {
    let mut fleet = Fleet::new(IdleReclaimMode::Enforce);
    fleet.gpu.set(Some(0.5));
    fleet.run(1).await;
    // The time of the server, and the peaks of four signals.
    assert_eq!(fleet.gpu.answered(), 1 + 4);
    fleet.gpu.set(Some(0.0));
    fleet.run(1).await;
    assert_eq!(fleet.gpu.answered(), 5 + 1 + 12);
    fleet.run(1).await;
    assert_eq!(fleet.gpu.answered(), 5 + 1 + 12 + 1 + 8, "there were none a minute ago");
}

#[tokio::test]
async fn metrics_of_gpus_are_never_removed_while_the_class_reclaims_them() {
    let mut fleet = Fleet::idle_for(1, IdleReclaimMode::DryRun).await;
    let metrics = fleet.context.metrics.clone();
    let labels = GpuActivityLabels {
        tenant_namespace: "team".into(),
        tenant: "vision".into(),
        activity: "idle",
    };
    let idle = metrics.gpus.family.get(&labels).unwrap().clone();
    assert_eq!(idle.get(), 1);
    fleet.gpu.set(Some(0.5));
    fleet.run(1).await;
    assert_eq!(idle.get(), 0, "a scrape finds the same gauge all the time");
    fleet.set_mode(IdleReclaimMode::Off);
    fleet.run(1).await;
    assert!(metrics.gpus.family.get(&labels).is_none());
}

#[tokio::test(start_paused = true)]
async fn idle_seconds_are_those_that_passed() {
    let mut fleet = Fleet::new(IdleReclaimMode::DryRun);
    fleet.gpu.set(Some(0.0));
    let labels = labels_of_tenant();
    fleet.run(1).await;
    let seconds = |fleet: &Fleet| fleet.context.metrics.idle_gpu_seconds.get_or_create(&labels).get();
    assert_eq!(seconds(&fleet), 0);
    for _ in 0..4 {
        // A pause of a minute, and a pass that takes a while.
        tokio::time::advance(Duration::from_millis(75_500)).await;
        fleet.run(1).await;
    }
    assert_eq!(seconds(&fleet), 302);
}

#[tokio::test]
async fn metrics_of_a_tenant_that_is_gone_are_removed() {
    let mut fleet = Fleet::idle_for(2, IdleReclaimMode::Enforce).await;
    let metrics = fleet.context.metrics.clone();
    let labels = labels_of_tenant();
    fleet.set_mode(IdleReclaimMode::Off);
    fleet.run(1).await;
    assert!(metrics.idle_gpu_seconds.get(&labels).is_some(), "it still exists");
    let mut cluster = fleet.host.get(CLUSTER).unwrap();
    cluster["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    fleet.host.insert(CLUSTER, cluster);
    fleet.run(1).await;
    assert!(metrics.idle_gpu_seconds.get(&labels).is_none());
    assert!(fleet.memory.counted.is_empty());
}

#[tokio::test]
async fn activity_takes_the_warning_back() {
    let mut fleet = Fleet::idle_for(20, IdleReclaimMode::Enforce).await;
    fleet.gpu.set(Some(0.3));
    fleet.run(2).await;
    assert_eq!(fleet.step(), None);
    let condition = fleet.condition();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&json!("False"), &json!("Active"))
    );
    fleet.run(60).await;
    assert_eq!(fleet.evictions(), 0);
}

#[tokio::test]
async fn an_hour_without_prometheus_changes_nothing() {
    let mut fleet = Fleet::idle_for(35, IdleReclaimMode::Enforce).await;
    let before = (fleet.step(), fleet.condition());
    assert_eq!(before.0.as_deref(), Some("CheckpointRequested"));
    fleet.gpu.set(None);
    fleet.run(60).await;
    assert_eq!((fleet.step(), fleet.condition()), before);
    fleet.gpu.set(Some(0.0));
    fleet.run(10).await;
    assert_eq!(
        (fleet.step(), fleet.evictions()),
        (before.0, 0),
        "the time starts again"
    );
    fleet.run(2).await;
    assert!(fleet.evictions() >= 1);
}

#[tokio::test]
async fn a_dry_run_only_reports() {
    let mut fleet = Fleet::idle_for(60, IdleReclaimMode::DryRun).await;
    assert_eq!(fleet.step().as_deref(), Some("Reclaimable"));
    assert_eq!(
        (fleet.condition(), fleet.events(), fleet.evictions()),
        (Value::Null, 0, 0)
    );
    // A team that was not warned loses no pod.
    fleet.set_mode(IdleReclaimMode::Enforce);
    fleet.run(2).await;
    assert_eq!(fleet.step().as_deref(), Some("Warned"));
    assert_eq!(fleet.evictions(), 0);
}

#[tokio::test]
async fn a_new_control_continues_where_the_status_is() {
    let mut fleet = Fleet::idle_for(35, IdleReclaimMode::Enforce).await;
    fleet.memory = Memory::default();
    fleet.run(1).await;
    assert_eq!(fleet.step().as_deref(), Some("CheckpointRequested"));
}

#[tokio::test]
async fn a_class_that_stops_reclaiming_takes_everything_back() {
    let mut fleet = Fleet::idle_for(20, IdleReclaimMode::Enforce).await;
    fleet.set_mode(IdleReclaimMode::Off);
    fleet.run(2).await;
    assert_eq!(fleet.step(), None);
    assert_eq!(fleet.condition()["status"], "False");
}

#[tokio::test]
async fn a_spec_that_is_not_accepted_keeps_no_rule_away() {
    let mut fleet = Fleet::idle_for(20, IdleReclaimMode::Enforce).await;
    let mut cluster = fleet.host.get(CLUSTER).unwrap();
    cluster["spec"]["className"] = json!("silver");
    fleet.host.insert(CLUSTER, cluster);
    fleet.run(2).await;
    assert_eq!(fleet.step().as_deref(), Some("WarnedAgain"));
    assert_eq!(fleet.condition()["status"], "True");
}

#[tokio::test]
async fn the_time_of_a_step_starts_when_the_pods_are_warned() {
    let mut fleet = Fleet::idle_for(15, IdleReclaimMode::Enforce).await;
    // The first call writes the status, the second one sets the condition.
    fleet.script.fail_call(fleet.script.calls().len() + 1);
    fleet.run(1).await;
    let failed = fleet.script.failed().unwrap_or_default();
    assert!(failed.contains("pods/train-host/status"), "{failed}");
    assert_eq!(fleet.condition()["reason"], "Warned");
    fleet.run(15).await;
    assert_eq!(fleet.condition()["reason"], "WarnedAgain");
    assert_eq!(fleet.step().as_deref(), Some("WarnedAgain"));
    fleet.run(1).await;
    assert_eq!(fleet.step().as_deref(), Some("CheckpointRequested"));
}

#[tokio::test]
async fn a_pod_that_the_host_refuses_to_change_is_not_evicted_and_keeps_nothing_from_others() {
    let mut fleet = Fleet::new(IdleReclaimMode::Enforce);
    let namespace = "berth-w".to_owned();
    let other = fleet.run_pod(&TenantId::new("vision", "tenant-uid"), &namespace, "web");
    fleet.gpu.known().others.push((namespace, other));
    // As an admission policy does.
    fleet
        .host
        .refuse_writes(Some(("/pods/train-host", 422, "denied by a policy")));
    fleet.gpu.set(Some(0.0));
    fleet.run(42).await;
    let cluster = fleet.host.get(CLUSTER).unwrap();
    let workloads = cluster["status"]["idle"]["workloads"].as_array().unwrap();
    let step = |name: &str| {
        let workload = workloads.iter().find(|workload| workload["name"] == name);
        workload.unwrap()["step"].clone()
    };
    assert_eq!((step("train"), step("web")), (json!("Warned"), json!("Reclaimable")));
    let is_evicted = |pod: &str| {
        let calls = fleet.script.calls();
        calls
            .iter()
            .any(|call| call.text.ends_with(&format!("/pods/{pod}/eviction")))
    };
    assert!(is_evicted("web-host"));
    assert!(!is_evicted("train-host"));
}

#[tokio::test]
async fn without_a_class_that_asks_for_it_prometheus_is_not_asked() {
    let mut fleet = Fleet::new(IdleReclaimMode::Off);
    fleet.run(3).await;
    assert!(fleet.script.calls().is_empty());
    let passes = &fleet.context.metrics.idle_passes;
    assert_eq!(passes.get_or_create(&ResultLabels { result: "ok" }).get(), 0);
}
