//! Pods that the host removes: they go in the tenant as in a cluster of its own.

use crate::{
    objects::{create, events, eventually, is_phase, origin, phase, pod},
    setup::Clusters,
};
use berth_api::labels::ORIGIN_UID;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    apps::v1::{Deployment, StatefulSet},
    batch::v1::{Job, JobStatus},
    core::v1::{Pod, PodCondition},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use std::time::Duration;

/// The reason of the Event on a pod that the host removes.
const EVENT: &str = "DeletionByPlatform";
/// How long a pod changes all the time: longer than the syncer waits before it writes a status again.
const RESTLESS: Duration = Duration::from_secs(2);

pub async fn pods_go_with_their_host_pods(clusters: &Clusters) {
    a_removed_pod_has_failed_when_it_goes(clusters).await;
    a_deletion_in_the_tenant_stays_as_it_is(clusters).await;
    controllers_replace_removed_pods(clusters).await;
    jobs_count_removed_pods_as_failed(clusters).await;
    a_pod_that_its_tenant_keeps_fails(clusters).await;
    a_pod_that_changes_all_the_time_goes_with_its_last_status(clusters).await;
}

/// A syncer that was down finds what the host removes. Of a host pod that is gone by then, it cannot know who removed it.
pub async fn removals_are_noticed_after_a_restart(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let on_host = clusters.host_api::<Pod>();
    let syncer = clusters.syncer().await;
    for name in ["held", "lost"] {
        create(&pods, pod(name, &json!({}))).await;
        eventually("it runs", async || is_phase(&pods, name, "Running").await).await;
    }
    syncer.kill().await;
    let held = Held::of(clusters, &pods.get("held").await.unwrap()).await;
    held.evict().await;
    let lost = host_pod(clusters, &pods.get("lost").await.unwrap()).await;
    on_host
        .delete(&lost, &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    eventually("the other one is gone", async || {
        on_host.get_opt(&lost).await.unwrap().is_none()
    })
    .await;

    let syncer = clusters.syncer().await;
    eventually("the pod is deleted as on the host", async || {
        let pod = pods.get("held").await.unwrap();
        pod.metadata.deletion_timestamp.is_some() && is_disrupted(&pod, "EvictionByEvictionAPI")
    })
    .await;
    eventually("a pod of which nothing is left has failed", async || {
        let pod = pods.get("lost").await.unwrap();
        phase(&pod) == "Failed" && is_disrupted(&pod, "NodeLost")
    })
    .await;
    assert_eq!(pods.get("lost").await.unwrap().metadata.deletion_timestamp, None);
    held.release().await;
    pods.delete("lost", &DeleteParams::default()).await.unwrap();
    for name in ["held", "lost"] {
        until_gone(&pods, name).await;
    }
    syncer.stop().await;
}

async fn a_removed_pod_has_failed_when_it_goes(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let mut kept = pod("removed", &json!({"terminationGracePeriodSeconds": 40}));
    // The finalizer keeps it in the tenant, to see how it ended.
    kept["metadata"]["finalizers"] = json!(["example.com/kept"]);
    create(&pods, kept).await;
    eventually("it runs", async || is_phase(&pods, "removed", "Running").await).await;
    let held = Held::of(clusters, &pods.get("removed").await.unwrap()).await;
    held.evict().await;
    eventually("it is deleted as on the host", async || {
        pods.get("removed").await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    let ending = pods.get("removed").await.unwrap();
    assert_eq!(ending.metadata.deletion_grace_period_seconds, Some(40));
    assert_eq!(phase(&ending), "Running", "{ending:?}");
    assert!(is_disrupted(&ending, "EvictionByEvictionAPI"), "{ending:?}");
    assert_eq!(condition(&ending, "Ready").unwrap().status, "False");
    let on_host = clusters.host_api::<Pod>().get(&held.name).await.unwrap();
    assert_eq!(
        on_host.metadata.deletion_grace_period_seconds,
        Some(40),
        "it keeps its time"
    );

    held.succeed().await;
    eventually("a process that ended well has failed", async || {
        let pod = pods.get("removed").await.unwrap();
        let reason = pod.status.as_ref().and_then(|status| status.reason.as_deref());
        phase(&pod) == "Failed" && reason == Some("EvictionByEvictionAPI")
    })
    .await;
    held.release().await;
    eventually("its time is over", async || {
        let pod = pods.get("removed").await.unwrap();
        pod.metadata.deletion_grace_period_seconds == Some(0)
    })
    .await;
    let messages = events(clusters, "removed", EVENT).await;
    let expected = "The platform removes the pod from its node: Eviction API: evicting (EvictionByEvictionAPI)";
    assert_eq!(messages, [expected]);
    keep_no_longer(&pods, "removed").await;
    until_gone(&pods, "removed").await;
}

async fn a_deletion_in_the_tenant_stays_as_it_is(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("own", &json!({}))).await;
    eventually("it runs", async || is_phase(&pods, "own", "Running").await).await;
    let held = Held::of(clusters, &pods.get("own").await.unwrap()).await;
    pods.delete("own", &DeleteParams::default().grace_period(70))
        .await
        .unwrap();
    held.evict().await;
    held.succeed().await;
    eventually("the host's status arrives", async || {
        is_phase(&pods, "own", "Succeeded").await
    })
    .await;
    let own = pods.get("own").await.unwrap();
    assert_eq!(own.metadata.deletion_grace_period_seconds, Some(70));
    assert!(events(clusters, "own", EVENT).await.is_empty());
    held.release().await;
    until_gone(&pods, "own").await;
}

/// A Deployment when the host begins to remove its pod, a StatefulSet when that is gone.
async fn controllers_replace_removed_pods(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let template = |app: &str| json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
    let of = |app: &str| {
        json!({"metadata": {"name": app}, "spec": {"selector": {"matchLabels": {"app": app}}, "serviceName": app,
            "template": template(app)}})
    };
    let mut deployment = of("stateless");
    deployment["spec"].as_object_mut().unwrap().remove("serviceName");
    create(&clusters.tenant_api::<Deployment>(), deployment).await;
    create(&clusters.tenant_api::<StatefulSet>(), of("stateful")).await;
    let mut held = Vec::new();
    for app in ["stateless", "stateful"] {
        let first = until_other_runs(&pods, &format!("app={app}"), &[]).await;
        let host = Held::of(clusters, &first).await;
        host.evict().await;
        held.push((app, first, host));
    }
    let (app, first, host) = &held[0];
    let selector = format!("app={app}");
    until_other_runs(&pods, &selector, &[first.uid().unwrap()]).await;
    let ending = pods.get(&first.name_any()).await.unwrap();
    assert!(ending.metadata.deletion_timestamp.is_some(), "it has not ended");
    host.release().await;
    until_gone(&pods, &first.name_any()).await;

    let (app, first, host) = &held[1];
    eventually("its pod ends", async || {
        let pod = pods.get(&first.name_any()).await.unwrap();
        assert_eq!(pod.uid(), first.uid(), "two pods have one name");
        pod.metadata.deletion_timestamp.is_some()
    })
    .await;
    host.release().await;
    let second = until_other_runs(&pods, &format!("app={app}"), &[first.uid().unwrap()]).await;
    assert_eq!(second.name_any(), first.name_any());
    let in_background = DeleteParams::background();
    let deployments = clusters.tenant_api::<Deployment>();
    deployments.delete("stateless", &in_background).await.unwrap();
    let sets = clusters.tenant_api::<StatefulSet>();
    sets.delete("stateful", &in_background).await.unwrap();
}

async fn jobs_count_removed_pods_as_failed(clusters: &Clusters) {
    let (jobs, pods) = (clusters.tenant_api::<Job>(), clusters.tenant_api::<Pod>());
    let ignored = json!({"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]});
    for (name, policy) in [("counts", Value::Null), ("ignores", ignored)] {
        let template = json!({"metadata": {"annotations": {"simulation.berth.dev/run-for": "1h"}},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "train", "image": "train:1"}]}});
        create(
            &jobs,
            json!({"metadata": {"name": name}, "spec": {"template": template, "podFailurePolicy": policy}}),
        )
        .await;
        let selector = format!("batch.kubernetes.io/job-name={name}");
        let first = until_other_runs(&pods, &selector, &[]).await;
        let held = Held::of(clusters, &first).await;
        held.evict().await;
        let status = async || jobs.get(name).await.unwrap().status.unwrap_or_default();
        if policy.is_null() {
            eventually("it counts a failure although the pod has not ended", async || {
                status().await.failed == Some(1)
            })
            .await;
            until_other_runs(&pods, &selector, &[first.uid().unwrap()]).await;
        }
        held.succeed().await;
        held.release().await;
        until_other_runs(&pods, &selector, &[first.uid().unwrap()]).await;
        until_gone(&pods, &first.name_any()).await;
        let JobStatus { succeeded, failed, .. } = status().await;
        let failures = i32::from(policy.is_null());
        assert_eq!(
            (succeeded.unwrap_or_default(), failed.unwrap_or_default()),
            (0, failures),
            "{name}"
        );
        jobs.delete(name, &DeleteParams::background()).await.unwrap();
    }
}

/// A policy of the tenant keeps the pod there, and not on the host.
async fn a_pod_that_its_tenant_keeps_fails(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(clusters.tenant_admin.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(clusters.tenant_admin.clone());
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["DELETE"]});
    create(
        &policies,
        json!({"metadata": {"name": "keep"}, "spec": {"matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "oldObject.metadata.name != 'kept'", "message": "it stays"}]}}),
    )
    .await;
    create(
        &bindings,
        json!({"metadata": {"name": "keep"}, "spec": {"policyName": "keep", "validationActions": ["Deny"]}}),
    )
    .await;
    create(&pods, pod("kept", &json!({}))).await;
    eventually("it runs", async || is_phase(&pods, "kept", "Running").await).await;
    let dry_run = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    eventually("it cannot be deleted", async || {
        pods.delete("kept", &dry_run).await.is_err()
    })
    .await;
    let held = Held::of(clusters, &pods.get("kept").await.unwrap()).await;
    held.evict().await;
    eventually("it is not ready", async || {
        let pod = pods.get("kept").await.unwrap();
        condition(&pod, "Ready").unwrap().status == "False" && is_disrupted(&pod, "EvictionByEvictionAPI")
    })
    .await;
    held.succeed().await;
    held.release().await;
    eventually("it has failed", async || is_phase(&pods, "kept", "Failed").await).await;
    assert_eq!(pods.get("kept").await.unwrap().metadata.deletion_timestamp, None);
    bindings.delete("keep", &DeleteParams::default()).await.unwrap();
    policies.delete("keep", &DeleteParams::default()).await.unwrap();
    eventually("it can be deleted", async || {
        pods.delete("kept", &DeleteParams::default()).await.is_ok()
    })
    .await;
}

/// Nearly every write of its status meets another version of the pod than the syncer knows.
async fn a_pod_that_changes_all_the_time_goes_with_its_last_status(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let name = "restless";
    create(&pods, pod(name, &json!({}))).await;
    eventually("it runs", async || is_phase(&pods, name, "Running").await).await;
    let held = Held::of(clusters, &pods.get(name).await.unwrap()).await;
    held.evict().await;
    eventually("it is deleted as on the host", async || {
        pods.get(name).await.unwrap().metadata.deletion_timestamp.is_some()
    })
    .await;
    let version = pods.get(name).await.unwrap().resource_version().unwrap();
    let of_pod = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut changes = pods.watch(&of_pod, &version).await.unwrap().boxed();
    let writers: Vec<_> = (0..3)
        .map(|_| tokio::spawn(annotate_all_the_time(pods.clone(), name)))
        .collect();
    held.succeed().await;
    held.release().await;
    let stop = async {
        tokio::time::sleep(RESTLESS).await;
        for writer in writers {
            writer.abort();
        }
    };
    let last = async {
        loop {
            if let WatchEvent::Deleted(pod) = changes.next().await.unwrap().unwrap() {
                return pod;
            }
        }
    };
    let ((), last) = tokio::join!(stop, last);
    assert_eq!(phase(&last), "Failed", "{last:?}");
}

async fn annotate_all_the_time(pods: Api<Pod>, name: &str) {
    for number in 0_u64.. {
        let annotation = json!({"metadata": {"annotations": {"example.com/number": number.to_string()}}});
        let _ = pods
            .patch(name, &PatchParams::default(), &Patch::Merge(annotation))
            .await;
    }
}

/// A host pod that does not go before the test releases it.
struct Held {
    api: Api<Pod>,
    name: String,
}

impl Held {
    /// The host pod of a pod of the tenant.
    async fn of(clusters: &Clusters, pod: &Pod) -> Self {
        let held = Self {
            api: clusters.host_api(),
            name: host_pod(clusters, pod).await,
        };
        let slow = Patch::Merge(json!({"metadata": {"annotations": {"simulation.berth.dev/stop-after": "1h"}}}));
        let parameters = PatchParams::default();
        held.api.patch(&held.name, &parameters, &slow).await.unwrap();
        held
    }

    async fn evict(&self) {
        self.api.evict(&self.name, &EvictParams::default()).await.unwrap();
    }

    /// Its containers exit with 0 now.
    async fn succeed(&self) {
        let container = json!({"name": "main", "image": "app:1", "imageID": "app:1", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "finishedAt": Timestamp::now().to_string()}}});
        let status = json!({"status": {"phase": "Succeeded", "containerStatuses": [container]}});
        self.api
            .patch_status(&self.name, &PatchParams::default(), &Patch::Merge(status))
            .await
            .unwrap();
    }

    /// It is gone, as when its kubelet has reported its end.
    async fn release(&self) {
        let at_once = DeleteParams::default().grace_period(0);
        self.api.delete(&self.name, &at_once).await.unwrap();
    }
}

/// The name of the host pod of a pod of the tenant.
async fn host_pod(clusters: &Clusters, pod: &Pod) -> String {
    let hosts = clusters.host_pods().await;
    let is_its = |host: &&Pod| host.annotations().get(ORIGIN_UID) == pod.metadata.uid.as_ref();
    let host = hosts.iter().find(is_its).unwrap();
    assert_eq!(origin(host), pod.name_any());
    host.name_any()
}

/// Waits until a pod runs that is none of these and does not end.
async fn until_other_runs(pods: &Api<Pod>, selector: &str, uids: &[String]) -> Pod {
    let mut found = None;
    eventually("another pod runs", async || {
        let all = pods.list(&ListParams::default().labels(selector)).await.unwrap();
        found = all.into_iter().find(|pod| {
            let is_other = pod.uid().is_some_and(|uid| !uids.contains(&uid));
            is_other && phase(pod) == "Running" && pod.metadata.deletion_timestamp.is_none()
        });
        found.is_some()
    })
    .await;
    found.unwrap()
}

async fn until_gone(pods: &Api<Pod>, name: &str) {
    eventually(&format!("{name} is gone"), async || {
        pods.get_opt(name).await.unwrap().is_none()
    })
    .await;
}

async fn keep_no_longer(pods: &Api<Pod>, name: &str) {
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch(name, &PatchParams::default(), &release).await.unwrap();
}

fn condition(pod: &Pod, type_: &str) -> Option<PodCondition> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == type_).cloned()
}

fn is_disrupted(pod: &Pod, reason: &str) -> bool {
    condition(pod, "DisruptionTarget")
        .is_some_and(|condition| condition.status == "True" && condition.reason.as_deref() == Some(reason))
}
