//! Pods of a tenant whose class allows more: priorities, accounts of the host, runtime classes, schedulers.

use crate::{
    late_denials,
    objects::{create, events, eventually, is_phase, origin, pod},
    setup::{Clusters, Syncer},
};
use berth_api::{
    SchedulingMode, SyncPolicy,
    sync_policy::{PRIORITY_STEPS, PriorityBand, ServiceAccountMapping},
};
use k8s_openapi::api::{
    core::v1::{Pod, ServiceAccount},
    node::v1::RuntimeClass,
    scheduling::v1::PriorityClass,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;

/// A scheduler that does not run: its part is the test's.
const SCHEDULER: &str = "batch";

fn policy() -> SyncPolicy {
    let mut policy = SyncPolicy::default();
    policy.pods.priority = Some(PriorityBand {
        lowest: 0,
        highest: 1100,
    });
    policy.pods.runtime_classes = vec!["kata".into()];
    policy.pods.schedulers = vec![SCHEDULER.into()];
    policy.pods.scheduling_window = Some(2);
    policy.service_accounts = vec![ServiceAccountMapping {
        namespace: "default".into(),
        name: "s3-reader".into(),
        host_name: "vision-s3".into(),
        audiences: Vec::new(),
    }];
    policy
}

/// Makes the PriorityClasses of the class's band on the host, as control does.
pub async fn make_priority_classes(clusters: &Clusters) {
    let classes: Api<PriorityClass> = Api::all(clusters.host_admin.clone());
    for step in 0..PRIORITY_STEPS {
        for (preempts, how) in [(true, "PreemptLowerPriority"), (false, "Never")] {
            let name = PriorityBand::class_name(berth_api::DEFAULT_CLASS, step, preempts);
            let value = clusters.policy.pods.priority.unwrap().value(step);
            let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": how});
            create(&classes, class).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_class() {
    let mut clusters = Clusters::start_with(policy(), SchedulingMode::Host).await;
    make_priority_classes(&clusters).await;
    // Objects of the platform.
    let runtime_classes: Api<RuntimeClass> = Api::all(clusters.host_admin.clone());
    for name in ["kata", "of-the-platform"] {
        let overhead = json!({"podFixed": {"memory": "64Mi"}});
        let class = json!({"metadata": {"name": name}, "handler": "kata-qemu", "overhead": overhead});
        create(&runtime_classes, class).await;
    }
    create(
        &clusters.host_api::<ServiceAccount>(),
        json!({"metadata": {"name": "vision-s3"}}),
    )
    .await;

    let syncer = clusters.syncer().await;
    runtime_classes_are_mirrored_and_used(&clusters).await;
    let syncer = what_the_class_takes_away_is_withdrawn_from_pods_that_wait(&mut clusters, syncer).await;
    let syncer = late_denials::pods_that_run_keep_what_is_denied_by_now(&mut clusters, syncer, policy()).await;
    accounts_are_mapped(&clusters).await;
    an_important_pod_preempts_another(&clusters).await;
    a_flood_waits_until_the_scheduler_tries_it(&clusters).await;
    syncer.stop().await;
}

async fn runtime_classes_are_mirrored_and_used(clusters: &Clusters) {
    let mirrored: Api<RuntimeClass> = Api::all(clusters.tenant_admin.clone());
    eventually("the class is mirrored", async || {
        mirrored.get_opt("kata").await.unwrap().is_some()
    })
    .await;
    assert!(mirrored.get_opt("of-the-platform").await.unwrap().is_none());
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("boxed", &json!({"runtimeClassName": "kata"}))).await;
    eventually("it runs", async || is_phase(&pods, "boxed", "Running").await).await;
    let host = clusters.host_pods().await;
    let host = host.iter().find(|pod| origin(pod) == "boxed").unwrap().spec.as_ref();
    assert_eq!(host.unwrap().runtime_class_name.as_deref(), Some("kata"));
    assert_eq!(host.unwrap().overhead.as_ref().unwrap()["memory"].0, "64Mi");
    // A change by the tenant is undone.
    let patch = Patch::Merge(json!({"metadata": {"labels": {"mine": "yes"}}}));
    mirrored.patch("kata", &PatchParams::default(), &patch).await.unwrap();
    eventually("the change is undone", async || {
        let labels = mirrored.get("kata").await.unwrap().metadata.labels;
        labels.is_none_or(|labels| !labels.contains_key("mine"))
    })
    .await;
    pods.delete("boxed", &DeleteParams::default()).await.unwrap();
}

/// A pod that waits for a node would start later with what the class took away.
async fn what_the_class_takes_away_is_withdrawn_from_pods_that_wait(clusters: &mut Clusters, syncer: Syncer) -> Syncer {
    let pods = clusters.tenant_api::<Pod>();
    let spec = json!({"runtimeClassName": "kata", "nodeSelector": {"nvidia.com/gpu.product": "none-has-it"}});
    create(&pods, pod("late", &spec)).await;
    let on_host = async |clusters: &Clusters| clusters.host_pods().await.iter().any(|pod| origin(pod) == "late");
    eventually("it waits on the host", async || on_host(clusters).await).await;

    syncer.stop().await;
    clusters.policy.pods.runtime_classes.clear();
    let syncer = clusters.syncer().await;
    eventually("it is taken back", async || !on_host(clusters).await).await;
    eventually("an Event says why", async || {
        let messages = events(clusters, "late", "FieldDenied").await;
        messages.iter().any(|message| message.contains("spec.runtimeClassName"))
    })
    .await;

    syncer.stop().await;
    clusters.policy = policy();
    let syncer = clusters.syncer().await;
    eventually("it is back with the offer", async || on_host(clusters).await).await;
    pods.delete("late", &DeleteParams::default()).await.unwrap();
    syncer
}

async fn accounts_are_mapped(clusters: &Clusters) {
    create(
        &clusters.tenant_api::<ServiceAccount>(),
        json!({"metadata": {"name": "s3-reader"}}),
    )
    .await;
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("reader", &json!({"serviceAccountName": "s3-reader"}))).await;
    eventually("it runs", async || is_phase(&pods, "reader", "Running").await).await;
    let host = clusters.host_pods().await;
    let host = host
        .iter()
        .find(|pod| origin(pod) == "reader")
        .unwrap()
        .spec
        .clone()
        .unwrap();
    assert_eq!(host.service_account_name.as_deref(), Some("vision-s3"));
    assert_eq!(host.automount_service_account_token, Some(false));
    pods.delete("reader", &DeleteParams::default()).await.unwrap();
}

async fn an_important_pod_preempts_another(clusters: &Clusters) {
    let classes: Api<PriorityClass> = Api::all(clusters.tenant_admin.clone());
    create(&classes, json!({"metadata": {"name": "urgent"}, "value": 100_000})).await;
    let pods = clusters.tenant_api::<Pod>();
    let gpus = json!([{"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]);
    for name in ["batch-0", "batch-1"] {
        // The finalizer keeps the pod, to see why it ended.
        let mut batch = pod(name, &json!({"containers": gpus}));
        batch["metadata"]["finalizers"] = json!(["example.com/kept"]);
        create(&pods, batch).await;
        eventually("it runs", async || is_phase(&pods, name, "Running").await).await;
    }
    create(
        &pods,
        pod("now", &json!({"containers": gpus, "priorityClassName": "urgent"})),
    )
    .await;
    eventually(
        "the urgent one runs in place of another, which says why it ended",
        async || {
            let mut ended = 0;
            for name in ["batch-0", "batch-1"] {
                let batch = pods.get(name).await.unwrap();
                let conditions = batch
                    .status
                    .clone()
                    .and_then(|status| status.conditions)
                    .unwrap_or_default();
                let preempted = conditions.iter().any(|condition| {
                    condition.type_ == "DisruptionTarget"
                        && condition.reason.as_deref() == Some("PreemptionByScheduler")
                });
                ended += usize::from(batch.metadata.deletion_timestamp.is_some() && preempted);
            }
            ended == 1 && is_phase(&pods, "now", "Running").await
        },
    )
    .await;
    for name in ["batch-0", "batch-1"] {
        assert!(events(clusters, name, "DeletionByPlatform").await.is_empty());
        let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
        pods.patch(name, &PatchParams::default(), &release).await.unwrap();
    }
}

async fn a_flood_waits_until_the_scheduler_tries_it(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let spec = json!({"schedulerName": SCHEDULER});
    for index in 0..4 {
        create(&pods, pod(&format!("flood-{index}"), &spec)).await;
    }
    let on_host = async || {
        let mut host = clusters.host_pods().await;
        host.retain(|pod| origin(pod).starts_with("flood-"));
        host
    };
    eventually("two are on the host", async || on_host().await.len() == 2).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(on_host().await.len(), 2, "as many as the class lets wait");

    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"});
    let tried = Patch::Strategic(json!({"status": {"conditions": [condition]}}));
    let first = on_host().await.remove(0).metadata.name.unwrap();
    clusters
        .host_api::<Pod>()
        .patch_status(&first, &PatchParams::default(), &tried)
        .await
        .unwrap();
    eventually("a pod that was tried makes room", async || on_host().await.len() >= 3).await;

    pods.delete("flood-3", &DeleteParams::default()).await.unwrap();
    eventually("a pod that waits can be deleted", async || {
        pods.get_opt("flood-3").await.unwrap().is_none()
    })
    .await;

    create(&pods, pod("flood-late", &spec)).await;
    eventually("without a scheduler pods come nevertheless", async || {
        on_host().await.iter().any(|pod| origin(pod) == "flood-late")
    })
    .await;
    for name in ["flood-0", "flood-1", "flood-2", "flood-late"] {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    eventually("all are gone", async || on_host().await.is_empty()).await;
}
