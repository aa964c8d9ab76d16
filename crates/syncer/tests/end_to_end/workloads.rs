//! What controllers of the tenant create: Deployments with what their pods reference, Jobs with GPUs.

use crate::{
    objects::{create, events, eventually, origin, phase},
    setup::Clusters,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{ConfigMap, Pod, Secret},
};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::json;

pub async fn a_deployment_runs(clusters: &Clusters) {
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
    // Account token, root certificate, config and Secret are on the host.
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
    // A change of a referenced object is synced.
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
    eventually("the scheduler's Event is in the tenant", async || {
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

pub async fn a_gpu_job_completes(clusters: &Clusters) {
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

pub async fn an_evicted_pod_is_replaced(clusters: &Clusters) {
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
