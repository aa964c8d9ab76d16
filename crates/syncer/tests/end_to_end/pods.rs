//! Single pods: denials, changes, deletions, gates.

use crate::{
    objects::{create, events, eventually, is_phase, origin, pod},
    setup::Clusters,
};
use berth_api::pod_labels;
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Pod, Secret},
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, WatchEvent, WatchParams};
use serde_json::json;

pub async fn denied_fields_are_reported(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let spec = json!({"hostNetwork": true, "hostPID": true, "volumes": [{"name": "root", "hostPath": {"path": "/"}}]});
    create(&pods, pod("escape", &spec)).await;
    eventually("condition and Event name the fields", async || {
        let status = pods.get("escape").await.unwrap().status.unwrap();
        let condition = status
            .conditions
            .unwrap_or_default()
            .into_iter()
            .find(|condition| condition.type_ == "berth.dev/Synced");
        let messages = events(clusters, "escape", "FieldDenied").await;
        condition.is_some_and(|condition| {
            let message = condition.message.unwrap();
            condition.status == "False"
                && ["spec.hostNetwork", "spec.hostPID", "spec.volumes[0].hostPath"]
                    .iter()
                    .all(|field| message.contains(field))
                && messages == [message]
        })
    })
    .await;
    assert!(clusters.host_pods().await.iter().all(|pod| origin(pod) != "escape"));
    pods.delete("escape", &DeleteParams::default()).await.unwrap();
}

pub async fn a_denied_change_stays_denied_when_the_host_reports(clusters: &Clusters) {
    const PROBE: &str = "example.com/probe";
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("refused", &json!({}))).await;
    eventually("it runs", async || is_phase(&pods, "refused", "Running").await).await;
    let condition = async |type_: &str| {
        let status = pods.get("refused").await.unwrap().status.unwrap();
        let mut conditions = status.conditions.unwrap_or_default().into_iter();
        conditions.find(|condition| condition.type_ == type_)
    };
    let is_denied = async || {
        let synced = condition("berth.dev/Synced").await;
        synced.is_some_and(|condition| condition.status == "False")
    };
    let change = json!({"metadata": {"annotations": {"io.katacontainers.config.hypervisor.path": "/tmp/x"}}});
    pods.patch("refused", &PatchParams::default(), &Patch::Merge(change))
        .await
        .unwrap();
    eventually("the change is denied", is_denied).await;
    let hosts = clusters.host_pods().await;
    let host = hosts.iter().find(|pod| origin(pod) == "refused").unwrap();
    for status in ["True", "False"] {
        let probe = json!({"status": {"conditions": [{"type": PROBE, "status": status}]}});
        let host_name = host.metadata.name.as_deref().unwrap();
        clusters
            .host_api::<Pod>()
            .patch_status(host_name, &PatchParams::default(), &Patch::Strategic(probe))
            .await
            .unwrap();
        eventually("what the host reports arrives", async || {
            condition(PROBE)
                .await
                .is_some_and(|condition| condition.status == status)
        })
        .await;
        assert!(is_denied().await, "the host has the earlier state of the pod");
    }
    pods.delete("refused", &DeleteParams::default()).await.unwrap();
}

/// A controller of the tenant and the host's kubelet write conditions at the same time.
pub async fn conditions_of_others_are_never_lost(clusters: &Clusters) {
    const PROBE: &str = "example.com/probe";
    const GATE: &str = "example.com/open";
    let pods = clusters.tenant_api::<Pod>();
    create(
        &pods,
        pod("shared", &json!({"readinessGates": [{"conditionType": GATE}]})),
    )
    .await;
    eventually("it runs", async || is_phase(&pods, "shared", "Running").await).await;
    let hosts = clusters.host_pods().await;
    let host = hosts.iter().find(|pod| origin(pod) == "shared").unwrap();
    let host_name = host.metadata.name.as_deref().unwrap();
    let on_host = clusters.host_api::<Pod>();
    let message = async |type_: &str| {
        let status = pods.get("shared").await.unwrap().status.unwrap();
        let mut conditions = status.conditions.unwrap_or_default().into_iter();
        let condition = conditions.find(|condition| condition.type_ == type_);
        condition.and_then(|condition| condition.message)
    };
    let parameters = PatchParams::default();
    for round in 0..30 {
        let round = round.to_string();
        let change = |type_: &str| {
            Patch::Strategic(json!({"status": {"conditions": [{"type": type_, "status": "True", "message": round}]}}))
        };
        let (probe, gate) = (change(PROBE), change(GATE));
        let (one, other) = tokio::join!(
            on_host.patch_status(host_name, &parameters, &probe),
            pods.patch_status("shared", &parameters, &gate)
        );
        one.unwrap();
        other.unwrap();
        eventually("what the host reports arrives", async || {
            message(PROBE).await.as_deref() == Some(round.as_str())
        })
        .await;
        assert_eq!(
            message(GATE).await.as_deref(),
            Some(round.as_str()),
            "the tenant's condition"
        );
    }
    pods.delete("shared", &DeleteParams::default()).await.unwrap();
}

pub async fn changes_reach_running_pods(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    // Of a volume without sources API servers write that its list is null: policies must not fail over that, or nothing of the pod changes any more.
    let spec = json!({"volumes": [{"name": "empty", "projected": {}}]});
    create(&pods, pod("change", &spec)).await;
    eventually("it runs", async || is_phase(&pods, "change", "Running").await).await;
    let host = async || {
        clusters
            .host_pods()
            .await
            .into_iter()
            .find(|pod| origin(pod) == "change")
            .unwrap()
    };
    // A label that is added on the host stays.
    let host_name = host().await.metadata.name.unwrap();
    let injected = Patch::Merge(json!({"metadata": {"labels": {"injected": "by-host"}}}));
    clusters
        .host_api::<Pod>()
        .patch(&host_name, &PatchParams::default(), &injected)
        .await
        .unwrap();
    let patch = json!({"metadata": {"labels": {"app": null, "new": "label"}}, "spec": {"containers": [{"name": "main", "image": "app:2"}]}});
    pods.patch("change", &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .unwrap();
    eventually("image and labels arrive, and what went is gone", async || {
        let pod = host().await;
        let labels = pod.metadata.labels.unwrap();
        pod.spec.unwrap().containers[0].image.as_deref() == Some("app:2")
            && labels
                .get(&pod_labels::host_key("new"))
                .is_some_and(|value| value == "label")
            && !labels.contains_key(&pod_labels::host_key("app"))
            && labels.get("injected").is_some_and(|value| value == "by-host")
    })
    .await;
    pods.delete("change", &DeleteParams::default()).await.unwrap();
}

pub async fn deletions_follow(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let gone = async |name: &str| {
        let in_tenant = pods.get_opt(name).await.unwrap().is_none();
        in_tenant && clusters.host_pods().await.iter().all(|pod| origin(pod) != name)
    };
    create(&pods, pod("graceful", &json!({"terminationGracePeriodSeconds": 5}))).await;
    create(&pods, pod("forced", &json!({}))).await;
    eventually("both run", async || {
        is_phase(&pods, "graceful", "Running").await && is_phase(&pods, "forced", "Running").await
    })
    .await;
    pods.delete("graceful", &DeleteParams::default()).await.unwrap();
    pods.delete("forced", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    eventually("both are gone on both sides", async || {
        gone("graceful").await && gone("forced").await
    })
    .await;

    // The same name again, while the host still has the old pod.
    let first = create(&pods, pod("again", &json!({}))).await;
    eventually("it runs", async || is_phase(&pods, "again", "Running").await).await;
    pods.delete("again", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
    let second = create(&pods, pod("again", &json!({}))).await;
    assert_ne!(first.metadata.uid, second.metadata.uid);
    eventually("the new one runs", async || {
        let host = clusters
            .host_pods()
            .await
            .into_iter()
            .find(|pod| origin(pod) == "again");
        let of_second = host.is_some_and(|pod| {
            pod.metadata.annotations.unwrap().get("berth.dev/origin-uid") == second.metadata.uid.as_ref()
        });
        of_second && is_phase(&pods, "again", "Running").await
    })
    .await;
    pods.delete("again", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();

    // An object that is no longer referenced is removed from the host.
    clusters
        .tenant_api::<Deployment>()
        .delete("web", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the secret leaves the host", async || {
        let secrets = clusters
            .host_api::<Secret>()
            .list(&ListParams::default())
            .await
            .unwrap();
        secrets
            .iter()
            .all(|secret| secret.metadata.annotations.as_ref().unwrap()["berth.dev/origin-name"] != "creds")
    })
    .await;
}

/// The default class gives pods ten minutes, whatever their spec and their deletion say.
pub async fn the_time_to_end_is_limited(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let handler = json!({"preStop": {"sleep": {"seconds": 3600}}});
    let containers = json!([{"name": "main", "image": "app:1", "lifecycle": handler}]);
    let spec = json!({"terminationGracePeriodSeconds": 86_400, "containers": containers});
    create(&pods, pod("endless", &spec)).await;
    eventually("it runs", async || is_phase(&pods, "endless", "Running").await).await;
    let all = clusters.host_pods().await;
    let host = all.into_iter().find(|pod| origin(pod) == "endless").unwrap();
    assert_eq!(host.spec.unwrap().termination_grace_period_seconds, Some(600));
    eventually("an Event names the fields", async || {
        let messages = events(clusters, "endless", "FieldIgnored").await;
        ["spec.terminationGracePeriodSeconds", "lifecycle.preStop.sleep.seconds"]
            .iter()
            .all(|field| messages.iter().any(|message| message.contains(field)))
    })
    .await;

    let name = host.metadata.name.unwrap();
    let from = WatchParams::default().fields(&format!("metadata.name={name}"));
    let version = host.metadata.resource_version.unwrap();
    let host_pods = clusters.host_api::<Pod>();
    let mut changes = host_pods.watch(&from, &version).await.unwrap().boxed();
    pods.delete("endless", &DeleteParams::default().grace_period(86_400))
        .await
        .unwrap();
    let grace = loop {
        match changes.try_next().await.unwrap() {
            Some(WatchEvent::Modified(pod)) if pod.metadata.deletion_timestamp.is_some() => {
                break pod.metadata.deletion_grace_period_seconds;
            }
            Some(WatchEvent::Modified(_) | WatchEvent::Bookmark(_)) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(grace, Some(600));
    eventually("the tenant's pod ends with the host's", async || {
        pods.get_opt("endless").await.unwrap().is_none()
    })
    .await;
}

/// Controllers of the host would go through them as through all pods that wait.
async fn pods_with_gates_stay_in_the_tenant(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let gated = json!({"schedulingGates": [{"name": "example.com/wait"}]});
    for number in 0..200 {
        create(&pods, pod(&format!("many-gated-{number}"), &gated)).await;
    }
    create(&pods, pod("after-gated", &json!({}))).await;
    eventually("a later pod runs", async || {
        is_phase(&pods, "after-gated", "Running").await
    })
    .await;
    let on_host = clusters.host_pods().await;
    let gated = on_host.iter().filter(|pod| origin(pod).contains("gated"));
    assert_eq!(gated.map(origin).collect::<Vec<_>>(), ["after-gated"]);
    pods.delete("after-gated", &DeleteParams::default()).await.unwrap();
    for number in 0..200 {
        let name = format!("many-gated-{number}");
        pods.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

/// Scheduling gates, readiness gates, in-place resize and ephemeral containers.
pub async fn gates_and_late_additions(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let container = json!({"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "1"}}});
    let spec = json!({"containers": [container], "schedulingGates": [{"name": "example.com/wait"}],
        "readinessGates": [{"conditionType": "example.com/open"}]});
    create(&pods, pod("gated", &spec)).await;
    Box::pin(pods_with_gates_stay_in_the_tenant(clusters)).await;
    let host = async || {
        clusters
            .host_pods()
            .await
            .into_iter()
            .find(|pod| origin(pod) == "gated")
    };
    assert!(host().await.is_none());
    let conditions = pods.get("gated").await.unwrap().status.unwrap().conditions;
    let mut conditions = conditions.into_iter().flatten();
    assert!(conditions.any(|condition| condition.reason.as_deref() == Some("SchedulingGated")));
    let open = json!({"spec": {"schedulingGates": [{"name": "example.com/wait", "$patch": "delete"}]}});
    pods.patch("gated", &PatchParams::default(), &Patch::Strategic(open))
        .await
        .unwrap();
    eventually("it runs, not ready", async || is_phase(&pods, "gated", "Running").await).await;
    let ready = async || {
        let conditions = pods
            .get("gated")
            .await
            .unwrap()
            .status
            .unwrap()
            .conditions
            .unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    assert!(!ready().await);
    let condition = json!({"status": {"conditions": [{"type": "example.com/open", "status": "True"}]}});
    pods.patch_status("gated", &PatchParams::default(), &Patch::Strategic(condition))
        .await
        .unwrap();
    eventually("the gate opens on the host, and the pod is ready", ready).await;

    let resize = json!({"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}});
    pods.patch_subresource("resize", "gated", &PatchParams::default(), &Patch::Strategic(resize))
        .await
        .unwrap();
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "tools:1", "targetContainerName": "main"}]}});
    pods.patch_ephemeral_containers("gated", &PatchParams::default(), &Patch::Strategic(debug))
        .await
        .unwrap();
    eventually("both arrive", async || {
        let spec = host().await.unwrap().spec.unwrap();
        let requests = spec.containers[0].resources.clone().unwrap().requests.unwrap();
        requests["cpu"].0 == "2" && spec.ephemeral_containers.is_some_and(|all| all[0].name == "debug")
    })
    .await;
    pods.delete("gated", &DeleteParams::default()).await.unwrap();
}

/// Labels and annotations that a pod reads from a downward API volume follow their changes; its full host name is that
/// of the tenant's cluster; missing objects are reported under the tenant's names.
pub async fn pods_see_themselves_as_in_a_cluster_of_their_own(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let item = json!({"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}});
    let spec = json!({"hostname": "db-0", "subdomain": "db", "setHostnameAsFQDN": true,
        "volumes": [{"name": "info", "downwardAPI": {"items": [item]}}],
        "initContainers": [{"name": "sidecar", "image": "side:1", "restartPolicy": "Always"}],
        "hostAliases": [{"ip": "10.1.2.3", "hostnames": ["db.example.com"]}]});
    create(&pods, pod("itself", &spec)).await;
    eventually("it runs", async || is_phase(&pods, "itself", "Running").await).await;
    let host = async || {
        let all = clusters.host_pods().await;
        all.into_iter().find(|pod| origin(pod) == "itself").unwrap()
    };
    let first = host().await.spec.unwrap();
    assert_eq!(
        first.hostname_override.as_deref(),
        Some("db-0.db.default.svc.cluster.local")
    );
    assert_eq!(first.host_aliases.unwrap()[0].ip, "10.1.2.3");
    assert_eq!(
        first.init_containers.unwrap()[0].restart_policy.as_deref(),
        Some("Always")
    );
    let patch = Patch::Merge(json!({"metadata": {"labels": {"stage": "canary"}}}));
    pods.patch("itself", &PatchParams::default(), &patch).await.unwrap();
    eventually("the volume's text has the new label", async || {
        let annotations = host().await.metadata.annotations.unwrap();
        annotations
            .iter()
            .any(|(key, value)| key.starts_with("downward.berth.dev/") && value.contains("stage=\"canary\""))
    })
    .await;
    pods.delete("itself", &DeleteParams::default()).await.unwrap();
}
