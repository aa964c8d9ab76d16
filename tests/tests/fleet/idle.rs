//! A pod whose GPUs do nothing, by the metrics of a Prometheus in this process: its warnings and its eviction on a real API server.

use crate::setup::{CLOCK, Control, SOON, Team, until_all_free};
use berth_api::{
    IdleReclaim, IdleReclaimMode, IdleStatus, IdleStep, NodeGroup, TenantClass, TenantClassSpec, conditions,
};
use berth_tests::{
    gpu_metrics::StandIn,
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

fn class(mode: IdleReclaimMode) -> TenantClass {
    let spec = TenantClassSpec {
        idle_reclaim: IdleReclaim {
            mode,
            window: "30m".into(),
            grace_period: "0s".into(),
            checkpoint_period: "0s".into(),
            startup_grace_period: "0s".into(),
            minimum_runtime: "0s".into(),
            ..IdleReclaim::default()
        },
        ..TenantClassSpec::default()
    };
    TenantClass::new("idle", spec)
}

async fn idle_status(team: &Team) -> IdleStatus {
    let status = team.cluster().await.status.unwrap_or_default();
    status.idle.unwrap_or_default()
}

async fn idle_condition(team: &Team) -> Option<(String, String)> {
    let pod: Pod = team.pods.get_opt("train").await.unwrap()?;
    let conditions = pod.status?.conditions?;
    let condition = conditions
        .into_iter()
        .find(|condition| condition.type_ == conditions::GPUS_IDLE)?;
    Some((condition.status, condition.reason.unwrap_or_default()))
}

pub(crate) async fn a_pod_with_idle_gpus_is_warned_and_evicted(host: Arc<TestCluster>) {
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let dry_run = class(IdleReclaimMode::DryRun);
    classes.create(&PostParams::default(), &dry_run).await.unwrap();
    let team = Team::create(
        &host,
        "idle-gpus",
        Some("idle"),
        vec![NodeGroup::dynamic("burst", "h100", 0, 4)],
    )
    .await;
    team.run("train", 8, &json!({})).await;
    until_true("the pod runs", SOON, async || team.running().await == 1).await;

    let first = Control::first().take().unwrap();
    first.stop();
    let gpus = StandIn::default();
    gpus.set_pod(Some((team.id.workload_namespace(), "train".into())));
    gpus.set_activity(0.4);
    let source = gpus.serve().await;
    *Control::first() = Some(Control::start_with(&host, Some(source)));
    // The pod has run for longer than the window, by the clock of control.
    CLOCK.set_ahead(7200);
    until("it is active", SOON, async || {
        let status = idle_status(&team).await;
        if status.gpus == 8 && status.idle_gpus == 0 && status.unknown_gpus.is_empty() {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;

    gpus.set_activity(0.0);
    until("the dry run reports it", SOON, async || {
        let status = idle_status(&team).await;
        match status.workloads.first() {
            Some(workload) if workload.step == IdleStep::Reclaimable => Ok(()),
            _ => Err(format!("{status:?}")),
        }
    })
    .await;
    assert_eq!((team.running().await, idle_condition(&team).await), (1, None));
    let status = team.cluster().await.status.unwrap();
    assert_eq!(status.node_groups.len(), 1, "the status has two writers");

    let enforce = json!({"spec": {"idleReclaim": {"mode": "Enforce"}}});
    let params = PatchParams::default();
    classes.patch("idle", &params, &Patch::Merge(&enforce)).await.unwrap();
    let mut seen = BTreeSet::new();
    until("the pod is evicted", SOON, async || {
        seen.extend(idle_condition(&team).await);
        let pod = team.pods.get_opt("train").await.map_err(|error| error.to_string())?;
        if pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some()) {
            Ok(())
        } else {
            Err(format!("{:?}", idle_status(&team).await))
        }
    })
    .await;
    assert!(seen.iter().all(|(status, _)| status == "True"), "{seen:?}");
    until_warned(&host, &team).await;
    until_true("its node goes back", SOON, async || team.held().await == 0).await;
    until_all_free(&host).await;

    CLOCK.set_ahead(0);
    let metered = Control::first().take().unwrap();
    metered.stop();
    *Control::first() = Some(Control::start(&host));
    team.delete(&host).await;
    classes.delete("idle", &DeleteParams::default()).await.unwrap();
    until_all_free(&host).await;
}

/// There is an Event for each step, on the host pod: the syncer copies it into the tenant.
async fn until_warned(host: &TestCluster, team: &Team) {
    let events: Api<Event> = Api::namespaced(host.client.clone(), &team.id.workload_namespace());
    let of_reason = ListParams::default().fields("reason=GPUsIdle");
    until("there is an Event for each step", SOON, async || {
        let list = events.list(&of_reason).await.map_err(|error| error.to_string())?;
        let messages: BTreeSet<String> = list
            .iter()
            .filter(|event| event.involved_object.name.as_deref() == Some("train"))
            .filter_map(|event| event.message.clone())
            .collect();
        let says = |part: &str| messages.iter().any(|message| message.contains(part));
        if says("have done nothing since") && says("Write a checkpoint now") && says("The pods are evicted") {
            Ok(())
        } else {
            Err(format!(
                "{messages:?} of {:?}",
                list.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
            ))
        }
    })
    .await;
}
