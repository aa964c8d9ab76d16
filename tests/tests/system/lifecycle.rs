//! Everyday use: examples, upgrades, and several tenants at once.

use berth_api::labels;
use berth_kubernetes_versions::{KUBERNETES_DEFAULT, KUBERNETES_PREVIOUS, emulation::EMULATED};
use berth_tests::{
    objects::{apply_example, nodes_of_pods, nodes_of_tenant},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    batch::v1::Job,
    core::v1::{ConfigMap, Event, Node, Pod, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::sync::Arc;

pub(crate) async fn examples_run_on_the_tenants_own_nodes(host: Arc<TestCluster>) {
    let vision = cluster("vision", &[("train", "h100", 2)]);
    let speech = cluster("speech", &[("serve", "l40s", 1)]);
    let (vision, speech) = tokio::join!(
        Tenant::create(&host, "life-vision", &vision),
        Tenant::create(&host, "life-speech", &speech)
    );

    apply_example(&vision.client, "default", "workloads/training-job.yaml").await;
    apply_example(&speech.client, "default", "workloads/inference-deployment.yaml").await;
    let jobs: Api<Job> = Api::namespaced(vision.client.clone(), "default");
    until_true("the Job is complete", SOON, async || {
        jobs.get("train")
            .await
            .is_ok_and(|job| job.status.is_some_and(|status| status.succeeded == Some(2)))
    })
    .await;
    let deployments: Api<Deployment> = Api::namespaced(speech.client.clone(), "default");
    until_true("the Deployment is available", SOON, async || {
        deployments
            .get("transcribe")
            .await
            .is_ok_and(|d| d.status.is_some_and(|status| status.available_replicas == Some(2)))
    })
    .await;

    for (tenant, count) in [(&vision, 2), (&speech, 1)] {
        let owned = nodes_of_tenant(&host.client, tenant.id.slug()).await;
        assert_eq!(owned.len(), count);
        let seen: Api<Node> = Api::all(tenant.client.clone());
        let seen = seen.list(&ListParams::default()).await.unwrap();
        let mut names: Vec<String> = seen.iter().map(ResourceExt::name_any).collect();
        names.sort();
        assert_eq!(names, owned, "a tenant sees its own nodes and no other");
        for node in &seen {
            let taints = node
                .spec
                .as_ref()
                .and_then(|spec| spec.taints.clone())
                .unwrap_or_default();
            assert!(
                taints.iter().all(|taint| taint.key != labels::TENANT),
                "Berth's own taint is not mirrored"
            );
            let gpus = node
                .status
                .as_ref()
                .and_then(|s| s.allocatable.as_ref())
                .and_then(|a| a.get("nvidia.com/gpu"));
            assert!(gpus.is_some(), "the node's GPUs are mirrored");
        }
        let on_host = nodes_of_pods(&host.client, &tenant.id.workload_namespace()).await;
        assert!(
            on_host.iter().all(|node| owned.contains(node)),
            "{on_host:?} are not all in {owned:?}"
        );
    }

    // Only what pods refer to is synced, under names of the host's, and no host token is mounted anywhere.
    let workloads = vision.id.workload_namespace();
    let maps: Api<ConfigMap> = Api::namespaced(host.client.clone(), &workloads);
    let ours = ListParams::default().labels(&format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER));
    let settings = maps.list(&ours).await.unwrap();
    assert!(settings.iter().any(|map| {
        map.annotations()
            .get(labels::ORIGIN_NAME)
            .is_some_and(|n| n == "train-settings")
    }));
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), &workloads);
    assert!(secrets.list(&ours).await.unwrap().iter().any(|s| {
        s.annotations()
            .get(labels::ORIGIN_NAME)
            .is_some_and(|n| n == "dataset-key")
    }));
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &workloads);
    for pod in pods.list(&ours).await.unwrap() {
        let spec = pod.spec.clone().unwrap();
        assert_eq!(spec.automount_service_account_token, Some(false));
        let text = serde_json::to_string(&spec.volumes).unwrap();
        assert!(
            !text.contains("serviceAccountToken"),
            "a token of the host is mounted: {text}"
        );
        assert_eq!(pod.labels()[labels::TENANT], vision.id.slug());
        let selector = spec.node_selector.unwrap_or_default();
        assert_eq!(selector.get(labels::TENANT).map(String::as_str), Some(vision.id.slug()));
    }
    let events: Api<Event> = Api::namespaced(vision.client.clone(), "default");
    until_true("the team sees the scheduler's Events", SOON, async || {
        events
            .list(&ListParams::default())
            .await
            .is_ok_and(|list| list.iter().any(|e| e.reason.as_deref() == Some("Scheduled")))
    })
    .await;
    for event in events.list(&ListParams::default()).await.unwrap() {
        let text = format!("{:?}", event.message);
        assert!(
            !text.contains(&workloads),
            "an Event names the host's namespace: {text}"
        );
    }
    tokio::join!(vision.delete(&host), speech.delete(&host));
}

/// From a version that is emulated, over one with programs of its own, to the default: each reads what the one before
/// it stored.
pub(crate) async fn every_version_runs_and_is_upgraded_to_the_next(host: Arc<TestCluster>) {
    let emulated = EMULATED[0].version;
    let mut older = cluster("older", &[]);
    older.spec.version = Some(emulated.into());
    let mut tenant = Tenant::create(&host, "life-older", &older).await;
    let tenants = host.tenants(&tenant.namespace);
    let kept = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "kept"}, "data": {"a": "b"}});
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
    maps.patch("kept", &PatchParams::apply("test"), &Patch::Apply(&kept))
        .await
        .unwrap();
    let minor = |version: &str| version.split('.').nth(1).unwrap_or_default().to_owned();
    for version in [emulated, KUBERNETES_PREVIOUS, KUBERNETES_DEFAULT] {
        host.patch_tenant(&tenant.namespace, "older", &json!({ "version": version }))
            .await;
        until_true(&format!("the API server is {version}"), SOON, async || {
            let served = tenant.client.apiserver_version().await;
            // `gitVersion` is that of the program, whichever version it emulates.
            served.is_ok_and(|served| served.emulation_minor.as_deref() == Some(&minor(version)))
        })
        .await;
        tenant = Tenant::ready(&host, &tenant.namespace, "older").await;
        until("status.version follows", SOON, async || {
            let status = tenants.get("older").await.unwrap().status.unwrap_or_default();
            let versions = (status.version, status.upgrading_to);
            if versions == (Some(version.into()), None) {
                Ok(())
            } else {
                Err(versions)
            }
        })
        .await;
        let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
        assert_eq!(maps.get("kept").await.unwrap().data.unwrap()["a"], "b", "{version}");
    }

    let downgrade = json!({"spec": {"version": KUBERNETES_PREVIOUS}});
    let refused = tenants
        .patch("older", &PatchParams::default(), &Patch::Merge(&downgrade))
        .await
        .unwrap_err();
    assert!(refused.to_string().contains("cannot go down"), "{refused}");
    tenant.delete(&host).await;
}

pub(crate) async fn five_tenants_at_once(host: Arc<TestCluster>) {
    let names = ["one", "two", "three", "four", "five"];
    let clusters: Vec<_> = names.iter().map(|name| cluster(name, &[])).collect();
    let tenants = futures::future::join_all(
        clusters
            .iter()
            .map(|cluster| Tenant::create(&host, "life-five", cluster)),
    )
    .await;
    for tenant in &tenants {
        assert!(tenant.client.apiserver_version().await.is_ok());
    }
    futures::future::join_all(tenants.iter().map(|tenant| tenant.delete(&host))).await;
}
