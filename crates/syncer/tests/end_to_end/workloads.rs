//! What controllers of the tenant create: Deployments with what their pods reference, Jobs with GPUs.

use crate::{
    objects::{both, create, events, eventually, origin, phase},
    setup::Clusters,
};
use berth_api::names::host_name;
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{ConfigMap, Pod, Secret},
};
use kube::{
    ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

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
    what_somebody_else_does_to_a_config_map_is_undone(clusters).await;
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

/// The ConfigMap `settings` gets a key on the host, loses its own to binary data, and is made immutable there, as with a stolen credential. The next change of the
/// tenant's undoes each.
async fn what_somebody_else_does_to_a_config_map_is_undone(clusters: &Clusters) {
    let (tenants, hosts) = (clusters.tenant_api::<ConfigMap>(), clusters.host_api::<ConfigMap>());
    let name = host_name("ConfigMap", "default", "settings");
    for (mode, theirs) in [
        ("slower", json!({"data": {"added": "x"}})),
        (
            "even slower",
            json!({"data": {"mode": null}, "binaryData": {"mode": "eA=="}}),
        ),
        ("slowest", json!({"data": {"added": "x"}, "immutable": true})),
    ] {
        let params = PatchParams::default();
        hosts.patch(&name, &params, &Patch::Merge(theirs)).await.unwrap();
        let change = Patch::Merge(json!({"data": {"mode": mode}}));
        tenants.patch("settings", &params, &change).await.unwrap();
        eventually("it has what the tenant's has", async || {
            let found = hosts.get_opt(&name).await.unwrap();
            let data = found.and_then(|config| config.data).unwrap_or_default();
            data.len() == 1 && data.get("mode").is_some_and(|found| found == mode)
        })
        .await;
    }
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
    eventually("the evicted pod is gone and another runs", async || {
        let all = pods.list(&ListParams::default().labels("app=one")).await.unwrap();
        let is_gone = all.iter().all(|pod| pod.metadata.name.as_ref() != Some(&evicted));
        is_gone && all.iter().any(|pod| phase(pod) == "Running")
    })
    .await;
    deployments.delete("one", &DeleteParams::default()).await.unwrap();
}

/// The tenant's controller counts the pods of a budget, and the host's API server acts upon it.
pub async fn budgets_hold_on_the_host(clusters: &Clusters) {
    let deployment = json!({"metadata": {"name": "api"}, "spec": {"replicas": 3, "selector": {"matchLabels": {"app": "api"}},
        "template": {"metadata": {"labels": {"app": "api"}}, "spec": {"containers": [{"name": "main", "image": "api:1"}]}}}});
    create(&clusters.tenant_api::<Deployment>(), deployment).await;
    let (tenant, host) = both(clusters, "policy", "v1", "PodDisruptionBudget");
    tenant
        .create(json!({"metadata": {"name": "api"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "api"}}}}))
        .await;
    let allowed = |budget: &Value| budget["status"]["disruptionsAllowed"] == 1;
    tenant.until("api", "the tenant's controller counts", allowed).await;
    let name = host_name("PodDisruptionBudget", "default", "api");
    let budget = host.until(&name, "the host's agrees", allowed).await;
    assert_eq!(budget["spec"]["minAvailable"], 2);
    // A drain on the host may evict one pod, and has to wait for the next.
    let pods: Vec<Pod> = clusters.host_pods().await;
    let pods: Vec<&Pod> = pods
        .iter()
        .filter(|pod| origin(pod).starts_with("api-") && phase(pod) == "Running")
        .collect();
    assert_eq!(pods.len(), 3);
    let api = clusters.host_api::<Pod>();
    // All at the same time: otherwise the pod might be replaced in between, and the next one evicted.
    let params = EvictParams::default();
    let evictions = pods
        .iter()
        .map(|pod| api.evict(pod.metadata.name.as_deref().unwrap(), &params));
    let answers = futures::future::join_all(evictions).await;
    let answered = pods.iter().zip(&answers);
    let evicted: Vec<&str> = answered
        .filter_map(|(pod, answer)| answer.is_ok().then_some(origin(pod)))
        .collect();
    assert!(evicted.len() < 3, "the budget holds");
    // In the tenant the evicted pods are replaced, and no longer count as healthy.
    let of_team = clusters.tenant_api::<Pod>();
    eventually("the evicted pods are gone", async || {
        let pods = of_team.list(&ListParams::default().labels("app=api")).await.unwrap();
        pods.iter().all(|pod| !evicted.contains(&pod.name_any().as_str()))
    })
    .await;
    let is_as_before = |budget: &Value| budget["status"]["currentHealthy"] == 3 && allowed(budget);
    tenant
        .until("api", "three are healthy, and one may be disrupted", is_as_before)
        .await;
    tenant.delete("api").await;
    host.gone(&name).await;
}
