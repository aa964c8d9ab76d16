//! Schedules that control publishes: pods are held back, warned and ended, by the syncer's own clock.

use crate::{
    objects::{create, events, eventually, is_phase, origin, pod},
    refusals,
    setup::{CONTROL_PLANE, Clusters, WORKLOADS},
};
use berth_api::{TENANT_SCHEDULE, TenantSchedule};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, ResourceQuota},
    policy::v1::PodDisruptionBudget,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::time::Duration;

/// The schedule of the tenant, as control publishes it.
struct Published(Api<TenantSchedule>);

impl Published {
    fn new(clusters: &Clusters) -> Self {
        Self(Api::namespaced(clusters.host_admin.clone(), CONTROL_PLANE))
    }

    async fn set(&self, tenant: &[Value], batch: &[Value]) {
        let workloads = json!({"selector": {"matchLabels": {"tier": "batch"}}});
        let rules = match batch {
            [] => json!([]),
            periods => json!([{"policyName": "batch-nights", "workloads": workloads, "periods": periods}]),
        };
        let schedule = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSchedule", "metadata": {"name": TENANT_SCHEDULE},
            "spec": {"tenant": tenant, "workloads": rules},
        });
        let params = PatchParams::apply("berth-tests").force();
        self.0
            .patch(TENANT_SCHEDULE, &params, &Patch::Apply(&schedule))
            .await
            .unwrap();
    }

    async fn delete(&self) {
        self.0.delete(TENANT_SCHEDULE, &DeleteParams::default()).await.unwrap();
    }
}

/// A period from so many seconds after now.
fn period(after: i64, state: &str, more: &Value) -> Value {
    let from = Timestamp::now().checked_add(SignedDuration::from_secs(after)).unwrap();
    let mut period = json!({"from": from.to_string(), "state": state});
    if state != "Running" {
        period["policyName"] = "batch-nights".into();
        period["windowName"] = "night".into();
    }
    for (key, value) in more.as_object().unwrap() {
        period[key] = value.clone();
    }
    period
}

fn labelled(name: &str, tier: &str) -> Value {
    let mut pod = pod(name, &json!({}));
    pod["metadata"]["labels"]["tier"] = tier.into();
    pod
}

/// Reason and message of a condition of a pod.
async fn condition(pods: &Api<Pod>, name: &str, kind: &str) -> Option<(String, String)> {
    let status = pods.get_opt(name).await.unwrap()?.status?;
    let mut conditions = status.conditions?.into_iter();
    let found = conditions.find(|condition| condition.type_ == kind)?;
    Some((found.reason.unwrap_or_default(), found.message.unwrap_or_default()))
}

async fn is_on_host(clusters: &Clusters, name: &str) -> bool {
    clusters.host_pods().await.iter().any(|pod| origin(pod) == name)
}

pub async fn schedules_hold_and_end_pods(clusters: &Clusters) {
    let (pods, published) = (clusters.tenant_api::<Pod>(), Published::new(clusters));
    create(&pods, labelled("running", "batch")).await;
    create(&pods, labelled("web", "web")).await;
    for name in ["running", "web"] {
        eventually("it runs", async || is_phase(&pods, name, "Running").await).await;
    }
    pods_that_may_not_start_wait(clusters, &pods, &published).await;
    pods_are_warned_and_run_again(clusters, &pods, &published).await;
    budgets_hold_until_their_time_is_over(clusters, &pods, &published).await;
    replacements_wait_and_do_not_spin(clusters, &pods, &published).await;
    a_tenant_that_refuses_everything_keeps_no_pod(clusters, &pods, &published).await;
    a_stop_of_the_tenant_comes_by_the_clock(clusters, &pods, &published).await;
    assert!(published.0.list(&ListParams::default()).await.unwrap().items.is_empty());
    pods.delete("web", &DeleteParams::default()).await.unwrap();
}

async fn pods_that_may_not_start_wait(clusters: &Clusters, pods: &Api<Pod>, published: &Published) {
    // A pod that waits for a node on the host would start as soon as it got one.
    let mut waiting = labelled("waiting", "batch");
    waiting["spec"]["nodeSelector"] = json!({"no-such-label": "yes"});
    create(pods, waiting).await;
    eventually("it waits on the host", async || is_on_host(clusters, "waiting").await).await;
    published
        .set(
            &[],
            &[
                period(-60, "StartsForbidden", &json!({})),
                period(3600, "Running", &json!({})),
            ],
        )
        .await;
    eventually("it is withdrawn", async || !is_on_host(clusters, "waiting").await).await;
    create(pods, labelled("late", "batch")).await;
    eventually("condition and Event name the policy", async || {
        let Some((reason, message)) = condition(pods, "late", "berth.dev/Synced").await else {
            return false;
        };
        reason == "OutsideSchedule"
            && message.starts_with("SchedulePolicy batch-nights, window night, does not let this pod start now. It starts by itself from 20")
            && events(clusters, "late", "OutsideSchedule").await.contains(&message)
    })
    .await;
    create(pods, labelled("other", "web")).await;
    eventually("other pods start", async || is_phase(pods, "other", "Running").await).await;
    assert!(!is_on_host(clusters, "late").await);
    assert!(is_phase(pods, "running", "Running").await, "what runs goes on");
    pods.delete("waiting", &DeleteParams::default()).await.unwrap();
    pods.delete("other", &DeleteParams::default()).await.unwrap();
}

async fn pods_are_warned_and_run_again(clusters: &Clusters, pods: &Api<Pod>, published: &Published) {
    published
        .set(
            &[],
            &[
                period(-60, "Running", &json!({})),
                period(600, "Stopped", &json!({"warningPeriodSeconds": 3600})),
            ],
        )
        .await;
    eventually("the pod that waited runs, without the condition", async || {
        is_phase(pods, "late", "Running").await && condition(pods, "late", "berth.dev/Synced").await.is_none()
    })
    .await;
    eventually("pods that run are warned", async || {
        let warnings = events(clusters, "running", "StopsSoon").await;
        warnings.iter().any(|message| message.contains("stops this pod at"))
    })
    .await;
    assert!(events(clusters, "web", "StopsSoon").await.is_empty());
}

async fn budgets_hold_until_their_time_is_over(clusters: &Clusters, pods: &Api<Pod>, published: &Published) {
    let budgets: Api<PodDisruptionBudget> = clusters.tenant_api();
    let selector = json!({"matchLabels": {"tier": "batch"}});
    create(
        &budgets,
        json!({"metadata": {"name": "batch"}, "spec": {"minAvailable": 2, "selector": selector}}),
    )
    .await;
    eventually("the budget counts two pods", async || {
        let status = budgets.get("batch").await.unwrap().status;
        status.is_some_and(|status| (status.current_healthy, status.disruptions_allowed) == (Some(2), Some(0)))
    })
    .await;
    // The finalizer keeps the pod, to see how it ended.
    let keep = Patch::Merge(json!({"metadata": {"finalizers": ["example.com/kept"]}}));
    pods.patch("running", &PatchParams::default(), &keep).await.unwrap();
    let stop = |timeout: i64| {
        [
            period(-10, "Stopped", &json!({"evictionTimeoutSeconds": timeout})),
            period(3600, "Running", &json!({})),
        ]
    };
    published.set(&[], &stop(3600)).await;
    eventually("the budget delays the stop", async || {
        let delayed = events(clusters, "running", "StopDelayed").await;
        delayed
            .iter()
            .any(|message| message.contains("A PodDisruptionBudget keeps it"))
    })
    .await;
    assert!(is_phase(pods, "running", "Running").await);

    published.set(&[], &stop(0)).await;
    eventually("both end", async || {
        pods.get_opt("late").await.unwrap().is_none() && !is_on_host(clusters, "running").await
    })
    .await;
    eventually("its status says why", async || {
        let (reason, message) = condition(pods, "running", "DisruptionTarget").await.unwrap_or_default();
        reason == "OutsideSchedule"
            && message.starts_with("SchedulePolicy batch-nights, window night, stops this pod until 20")
    })
    .await;
    assert!(is_phase(pods, "web", "Running").await);
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch("running", &PatchParams::default(), &release).await.unwrap();
    budgets.delete("batch", &DeleteParams::default()).await.unwrap();
    published.delete().await;
}

async fn replacements_wait_and_do_not_spin(clusters: &Clusters, pods: &Api<Pod>, published: &Published) {
    let deployments: Api<Deployment> = clusters.tenant_api();
    let labels = json!({"tier": "batch", "app": "replaced"});
    create(
        &deployments,
        json!({"metadata": {"name": "replaced"}, "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "app:1"}], "terminationGracePeriodSeconds": 1},
        }}}),
    )
    .await;
    let of_deployment = async || {
        let found = pods.list(&ListParams::default().labels("app=replaced")).await.unwrap();
        let current = found
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none());
        current.collect::<Vec<Pod>>()
    };
    let ready = async || {
        let status = deployments.get("replaced").await.unwrap().status.unwrap_or_default();
        status.ready_replicas == Some(1)
    };
    eventually("it runs", ready).await;
    let first = of_deployment().await[0].uid();
    published
        .set(&[], &[period(-10, "Stopped", &json!({"evictionTimeoutSeconds": 60}))])
        .await;
    eventually("its pod is evicted, and another one waits", async || {
        let pods_now = of_deployment().await;
        let [pod] = &pods_now[..] else { return false };
        let waits = condition(pods, &pod.name_any(), "berth.dev/Synced").await;
        pod.uid() != first && waits.is_some_and(|(reason, _)| reason == "OutsideSchedule")
    })
    .await;
    let waiting = of_deployment().await[0].uid();
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(of_deployment().await[0].uid(), waiting, "pods that wait are not ended");
    published.delete().await;
    eventually("it runs when the policy is gone", ready).await;
    assert_eq!(of_deployment().await[0].uid(), waiting);
    deployments
        .delete("replaced", &DeleteParams::background())
        .await
        .unwrap();
    eventually("it is gone", async || of_deployment().await.is_empty()).await;
}

/// The tenant refuses the syncer the status, evictions and deletions of pods. One of the pods cannot be reconciled because of that, and another one has
/// finished as its status in the tenant says.
async fn a_tenant_that_refuses_everything_keeps_no_pod(clusters: &Clusters, pods: &Api<Pod>, published: &Published) {
    let statuses = [
        ("refused", json!({"message": "of the team"})),
        ("posed", json!({"phase": "Succeeded"})),
    ];
    for (name, _) in &statuses {
        create(pods, labelled(name, "batch")).await;
    }
    for (name, _) in &statuses {
        eventually("it runs", async || is_phase(pods, name, "Running").await).await;
    }
    refusals::refuse_pods(clusters, "refused").await;
    for (name, status) in &statuses {
        let change = Patch::Merge(json!({ "status": status }));
        pods.patch_status(name, &PatchParams::default(), &change).await.unwrap();
    }
    let stop = period(-10, "Stopped", &json!({"evictionTimeoutSeconds": 0}));
    published.set(&[], &[stop, period(3600, "Running", &json!({}))]).await;
    eventually("both end on the host", async || {
        !is_on_host(clusters, "refused").await && !is_on_host(clusters, "posed").await
    })
    .await;
    refusals::accept(clusters).await;
    published.delete().await;
    for (name, _) in &statuses {
        // The syncer may have deleted it by now, as the host has removed it.
        drop(pods.delete(name, &DeleteParams::default()).await);
        eventually("it is gone", async || pods.get_opt(name).await.unwrap().is_none()).await;
    }
}

/// Control is down: what was published is followed at its time. The host refuses pods as well, as control has it do.
async fn a_stop_of_the_tenant_comes_by_the_clock(clusters: &Clusters, pods: &Api<Pod>, published: &Published) {
    create(pods, labelled("all", "other")).await;
    eventually("it runs", async || is_phase(pods, "all", "Running").await).await;
    let stop = period(
        4,
        "Stopped",
        &json!({"warningPeriodSeconds": 0, "evictionTimeoutSeconds": 0}),
    );
    published.set(&[period(-60, "Running", &json!({})), stop], &[]).await;
    eventually("every pod ends", async || {
        !is_on_host(clusters, "all").await && !is_on_host(clusters, "web").await
    })
    .await;
    let quotas: Api<ResourceQuota> = Api::namespaced(clusters.host_admin.clone(), WORKLOADS);
    create(
        &quotas,
        json!({"metadata": {"name": "berth-limits"}, "spec": {"hard": {"count/pods": "0"}}}),
    )
    .await;
    create(pods, labelled("web", "web")).await;
    eventually("no pod starts", async || {
        let waits = condition(pods, "web", "berth.dev/Synced").await;
        waits.is_some_and(|(reason, _)| reason == "OutsideSchedule")
    })
    .await;
    // Control lifts the quota later than the syncer lets the pod start.
    published
        .set(
            &[period(-60, "Stopped", &json!({})), period(3, "Running", &json!({}))],
            &[],
        )
        .await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(events(clusters, "web", "QuotaExceeded").await.is_empty());
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
    eventually("it starts by itself", async || is_phase(pods, "web", "Running").await).await;
    published.delete().await;
}
