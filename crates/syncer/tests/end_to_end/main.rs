//! The syncer between real API servers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod setup;

use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{ConfigMap, Event, Node, Pod, Secret, Service},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use setup::{Clusters, WORKLOADS, create, eventually, origin, phase};
use std::{collections::BTreeMap, time::Instant};

fn pod(name: &str, spec: &Value) -> Value {
    let mut pod = json!({"metadata": {"name": name, "labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "app:1"}]}});
    for (key, value) in spec.as_object().unwrap() {
        pod["spec"][key] = value.clone();
    }
    pod
}

async fn events(clusters: &Clusters, about: &str, reason: &str) -> Vec<String> {
    let events = clusters
        .tenant_api::<Event>()
        .list(&ListParams::default())
        .await
        .unwrap();
    events
        .into_iter()
        .filter(|event| event.involved_object.name.as_deref() == Some(about) && event.reason.as_deref() == Some(reason))
        .filter_map(|event| event.message)
        .collect()
}

async fn is_phase(pods: &Api<Pod>, name: &str, wanted: &str) -> bool {
    pods.get_opt(name)
        .await
        .unwrap()
        .is_some_and(|pod| phase(&pod) == wanted)
}

async fn host_versions(clusters: &Clusters) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for pod in clusters.host_pods().await {
        versions.insert(format!("pod {}", origin(&pod)), pod.metadata.resource_version.unwrap());
    }
    for secret in clusters
        .host_api::<Secret>()
        .list(&ListParams::default())
        .await
        .unwrap()
    {
        versions.insert(
            format!("secret {}", secret.metadata.name.unwrap()),
            secret.metadata.resource_version.unwrap(),
        );
    }
    for config in clusters
        .host_api::<ConfigMap>()
        .list(&ListParams::default())
        .await
        .unwrap()
    {
        versions.insert(
            format!("config {}", config.metadata.name.unwrap()),
            config.metadata.resource_version.unwrap(),
        );
    }
    versions
}

/// One cluster pair for everything: starting them is what takes time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_life() {
    let clusters = Clusters::start().await;
    let syncer = clusters.syncer().await;
    nodes_appear(&clusters).await;
    a_deployment_runs(&clusters).await;
    a_gpu_job_completes(&clusters).await;
    a_service_has_one_address(&clusters).await;
    refusals_are_told(&clusters).await;
    changes_reach_running_pods(&clusters).await;
    deletions_follow(&clusters).await;
    an_evicted_pod_is_replaced(&clusters).await;
    gates_and_late_additions(&clusters).await;
    nodes_go(&clusters).await;
    syncer.stop().await;
    a_killed_syncer_goes_on(&clusters).await;
}

async fn nodes_appear(clusters: &Clusters) {
    let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
    eventually("two ready nodes", async || {
        let nodes = nodes.list(&ListParams::default()).await.unwrap();
        let ready = |node: &Node| {
            let conditions = node
                .status
                .as_ref()
                .and_then(|status| status.conditions.clone())
                .unwrap_or_default();
            conditions
                .iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        nodes.items.len() == 2 && nodes.iter().all(ready)
    })
    .await;
    // What a tenant does to labels of the host is undone, its own stay.
    let patch = json!({"metadata": {"labels": {"nvidia.com/gpu.product": "other", "mine": "yes"}}});
    nodes
        .patch("gpu-h100-01", &PatchParams::default(), &Patch::Merge(patch))
        .await
        .unwrap();
    eventually("the label is put back", async || {
        let labels = nodes.get("gpu-h100-01").await.unwrap().metadata.labels.unwrap();
        labels["nvidia.com/gpu.product"] != "other" && labels["mine"] == "yes"
    })
    .await;
}

async fn a_deployment_runs(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let deployments = clusters.tenant_api::<Deployment>();
    create(
        &clusters.tenant_api::<ConfigMap>(),
        json!({"metadata": {"name": "settings"}, "data": {"mode": "fast"}}),
    )
    .await;
    create(
        &clusters.tenant_api::<Secret>(),
        json!({"metadata": {"name": "creds"}, "stringData": {"key": "hush"}}),
    )
    .await;
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {
        "containers": [{"name": "main", "image": "web:1", "ports": [{"containerPort": 80}],
            "envFrom": [{"configMapRef": {"name": "settings"}}], "volumeMounts": [{"name": "creds", "mountPath": "/creds"}]}],
        "volumes": [{"name": "creds", "secret": {"secretName": "creds"}}]}});
    let web = json!({"metadata": {"name": "web"}, "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "web"}}, "template": template}});
    create(&deployments, web).await;
    eventually("three replicas are available", async || {
        deployments
            .get("web")
            .await
            .unwrap()
            .status
            .and_then(|status| status.available_replicas)
            == Some(3)
    })
    .await;
    for pod in pods.list(&ListParams::default().labels("app=web")).await.unwrap() {
        let status = pod.status.unwrap();
        assert!(status.pod_ip.is_some() && pod.spec.unwrap().node_name.unwrap().starts_with("gpu-h100"));
    }
    // Account token, root certificate, config and secret are on the host.
    let secrets = clusters.host_api::<Secret>();
    eventually("three token Secrets", async || {
        let tokens = secrets
            .list(&ListParams::default().labels("berth.dev/pod-token"))
            .await
            .unwrap();
        tokens
            .iter()
            .filter(|secret| {
                secret
                    .data
                    .as_ref()
                    .is_some_and(|data| data.values().any(|token| token.0.len() > 100))
            })
            .count()
            == 3
    })
    .await;
    let configs = clusters
        .host_api::<ConfigMap>()
        .list(&ListParams::default().labels("berth.dev/managed-by=syncer"))
        .await
        .unwrap();
    assert_eq!(configs.items.len(), 2, "settings and kube-root-ca.crt: {configs:?}");
    // A change of a referenced object arrives.
    let patch = Patch::Merge(json!({"data": {"mode": "slow"}}));
    clusters
        .tenant_api::<ConfigMap>()
        .patch("settings", &PatchParams::default(), &patch)
        .await
        .unwrap();
    eventually("the change arrives", async || {
        let configs = clusters
            .host_api::<ConfigMap>()
            .list(&ListParams::default())
            .await
            .unwrap();
        configs.iter().any(|config| {
            config
                .data
                .as_ref()
                .is_some_and(|data| data.get("mode").is_some_and(|mode| mode == "slow"))
        })
    })
    .await;
    eventually("the scheduler's Event is told", async || {
        let name = pods.list(&ListParams::default().labels("app=web")).await.unwrap().items[0]
            .metadata
            .name
            .clone()
            .unwrap();
        events(clusters, &name, "Scheduled")
            .await
            .iter()
            .any(|message| message.contains(&format!("default/{name}")))
    })
    .await;
}

async fn a_gpu_job_completes(clusters: &Clusters) {
    let jobs = clusters.tenant_api::<Job>();
    let template = json!({"metadata": {"annotations": {"simulation.berth.dev/run-for": "1s"}}, "spec": {"restartPolicy": "Never",
        "containers": [{"name": "train", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}});
    let job =
        json!({"metadata": {"name": "train"}, "spec": {"completions": 2, "parallelism": 2, "template": template}});
    create(&jobs, job).await;
    eventually("the job completes", async || {
        jobs.get("train")
            .await
            .unwrap()
            .status
            .and_then(|status| status.succeeded)
            == Some(2)
    })
    .await;
}

async fn a_service_has_one_address(clusters: &Clusters) {
    let service = json!({"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let created = create(&clusters.tenant_api::<Service>(), service).await;
    let address = created.spec.unwrap().cluster_ip.unwrap();
    eventually("the host has a Service of that address", async || {
        let services = clusters
            .host_api::<Service>()
            .list(&ListParams::default())
            .await
            .unwrap();
        services
            .iter()
            .any(|service| service.spec.as_ref().unwrap().cluster_ip.as_ref() == Some(&address))
    })
    .await;
    let node_port = json!({"metadata": {"name": "door"}, "spec": {"type": "NodePort", "selector": {"app": "web"}, "ports": [{"port": 80}]}});
    create(&clusters.tenant_api::<Service>(), node_port).await;
    eventually("the refusal is told", async || {
        events(clusters, "door", "FieldRefused")
            .await
            .iter()
            .any(|message| message.contains("spec.type: NodePort"))
    })
    .await;
}

async fn refusals_are_told(clusters: &Clusters) {
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
        let told = events(clusters, "escape", "FieldRefused").await;
        condition.is_some_and(|condition| {
            let message = condition.message.unwrap();
            condition.status == "False"
                && ["spec.hostNetwork", "spec.hostPID", "spec.volumes[0].hostPath"]
                    .iter()
                    .all(|field| message.contains(field))
                && told == [message]
        })
    })
    .await;
    assert!(clusters.host_pods().await.iter().all(|pod| origin(pod) != "escape"));
    pods.delete("escape", &DeleteParams::default()).await.unwrap();
}

async fn changes_reach_running_pods(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("change", &json!({}))).await;
    eventually("it runs", async || is_phase(&pods, "change", "Running").await).await;
    let host = async || {
        clusters
            .host_pods()
            .await
            .into_iter()
            .find(|pod| origin(pod) == "change")
            .unwrap()
    };
    // Somebody on the host adds a label; it stays.
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
            && labels.get("new").is_some_and(|value| value == "label")
            && !labels.contains_key("app")
            && labels.get("injected").is_some_and(|value| value == "by-host")
    })
    .await;
    pods.delete("change", &DeleteParams::default()).await.unwrap();
}

async fn deletions_follow(clusters: &Clusters) {
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

    // The same name again, while the host still has the old one.
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

    // What nobody references any more leaves the host.
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

async fn an_evicted_pod_is_replaced(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let deployments = clusters.tenant_api::<Deployment>();
    let template =
        json!({"metadata": {"labels": {"app": "one"}}, "spec": {"containers": [{"name": "main", "image": "one:1"}]}});
    let one = json!({"metadata": {"name": "one"}, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "one"}}, "template": template}});
    create(&deployments, one).await;
    let available = async || {
        deployments
            .get("one")
            .await
            .unwrap()
            .status
            .and_then(|status| status.available_replicas)
            == Some(1)
    };
    eventually("it is available", available).await;
    let victim = clusters
        .host_pods()
        .await
        .into_iter()
        .find(|pod| origin(pod).starts_with("one-"))
        .unwrap();
    let evicted = origin(&victim).to_owned();
    clusters
        .host_api::<Pod>()
        .delete(victim.metadata.name.as_ref().unwrap(), &DeleteParams::default())
        .await
        .unwrap();
    eventually("the evicted pod failed and another runs", async || {
        let all = pods.list(&ListParams::default().labels("app=one")).await.unwrap();
        let failed = all
            .iter()
            .any(|pod| pod.metadata.name.as_ref() == Some(&evicted) && phase(pod) == "Failed");
        let running = all
            .iter()
            .any(|pod| pod.metadata.name.as_ref() != Some(&evicted) && phase(pod) == "Running");
        failed && running
    })
    .await;
    deployments.delete("one", &DeleteParams::default()).await.unwrap();
}

/// Scheduling gates, readiness gates, in-place resize and ephemeral containers.
async fn gates_and_late_additions(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    let container = json!({"name": "main", "image": "app:1", "resources": {"requests": {"cpu": "1"}}});
    let spec = json!({"containers": [container], "schedulingGates": [{"name": "example.com/wait"}],
        "readinessGates": [{"conditionType": "example.com/open"}]});
    create(&pods, pod("gated", &spec)).await;
    let host = async || {
        clusters
            .host_pods()
            .await
            .into_iter()
            .find(|pod| origin(pod) == "gated")
    };
    eventually("a gated host pod", async || {
        host()
            .await
            .is_some_and(|pod| pod.spec.unwrap().scheduling_gates.is_some_and(|gates| gates.len() == 1))
    })
    .await;
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

async fn nodes_go(clusters: &Clusters) {
    let nodes: Api<Node> = Api::all(clusters.tenant_admin.clone());
    create(&nodes, json!({"metadata": {"name": "made-by-hand"}})).await;
    clusters.withdraw_node("gpu-h100-02").await;
    eventually("only the node that control publishes is left", async || {
        let left = nodes.list(&ListParams::default()).await.unwrap();
        left.items.len() == 1 && left.items[0].metadata.name.as_deref() == Some("gpu-h100-01")
    })
    .await;
    let events: Api<Event> = Api::namespaced(clusters.tenant_admin.clone(), "default");
    eventually("the tenant is told about its own node", async || {
        let events = events.list(&ListParams::default()).await.unwrap();
        events
            .iter()
            .any(|event| event.reason.as_deref() == Some("NodeRefused"))
    })
    .await;
    clusters.publish_nodes(&["gpu-h100-02"]).await;
}

async fn a_killed_syncer_goes_on(clusters: &Clusters) {
    const PODS: usize = 200;
    let pods = clusters.tenant_api::<Pod>();
    let syncer = clusters.syncer().await;
    for number in 0..PODS {
        create(&pods, pod(&format!("many-{number}"), &json!({}))).await;
    }
    syncer.kill().await;
    let start = Instant::now();
    let syncer = clusters.syncer().await;
    eventually("every pod runs", async || {
        let all = pods.list(&ListParams::default()).await.unwrap();
        all.iter()
            .filter(|pod| pod.metadata.name.as_ref().unwrap().starts_with("many-") && phase(pod) == "Running")
            .count()
            == PODS
    })
    .await;
    eprintln!("all {PODS} pods ran {:?} after the restart", start.elapsed());
    let count = clusters
        .host_pods()
        .await
        .iter()
        .filter(|pod| origin(pod).starts_with("many-"))
        .count();
    assert_eq!(count, PODS, "none twice");
    let tokens = async || {
        let all = clusters
            .host_api::<Secret>()
            .list(&ListParams::default().labels("berth.dev/pod-token"))
            .await
            .unwrap();
        all.items.len()
    };
    eventually("every pod has its tokens", async || tokens().await >= PODS).await;

    // A restart with nothing to do writes nothing.
    syncer.stop().await;
    let before = host_versions(clusters).await;
    let start = Instant::now();
    let syncer = clusters.syncer().await;
    eprintln!(
        "ready {:?} after a restart with {} host objects",
        start.elapsed(),
        before.len()
    );
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(host_versions(clusters).await, before);
    let mut writes = String::new();
    prometheus_client::encoding::text::encode(&mut writes, &registry(&syncer.metrics)).unwrap();
    let host_writes: Vec<_> = writes
        .lines()
        .filter(|line| {
            let reads = ["verb=\"get\"", "verb=\"list\""];
            line.contains("api_call_seconds_count")
                && line.contains("side=\"host\"")
                && !reads.iter().any(|verb| line.contains(verb))
        })
        .collect();
    assert!(host_writes.is_empty(), "{host_writes:?} in {WORKLOADS}");
    syncer.stop().await;
}

fn registry(metrics: &berth_syncer::metrics::Metrics) -> prometheus_client::registry::Registry {
    let mut registry = prometheus_client::registry::Registry::default();
    metrics.register(&mut registry);
    registry
}
