//! Claims of a tenant and the volumes that are made for them.

use super::{CLAIM, VOLUME, api, claim, field, is_bound, make, merge, mounting, on_host, remove, tenants};
use crate::{
    objects::{create, events, eventually, is_phase, origin, pod},
    setup::{Clusters, WORKLOADS},
};
use k8s_openapi::api::{apps::v1::StatefulSet, core::v1::Pod};
use kube::{
    ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

pub(super) async fn a_stateful_set_has_its_volumes(clusters: &Clusters) {
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let template = json!({"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [
        {"name": "main", "image": "db:1", "volumeMounts": [mount("data"), mount("cache")]}]}});
    let set = json!({"metadata": {"name": "db"}, "spec": {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}},
        "template": template,
        "volumeClaimTemplates": [claim("data", &json!({})), claim("cache", &json!({"storageClassName": "late"}))]}});
    let sets = clusters.tenant_api::<StatefulSet>();
    create(&sets, set).await;
    eventually("both replicas are ready", async || {
        let status = sets.get("db").await.unwrap().status;
        status.and_then(|status| status.ready_replicas) == Some(2)
    })
    .await;
    for name in ["data-db-0", "data-db-1", "cache-db-0", "cache-db-1"] {
        eventually("it is bound", async || is_bound(clusters, name).await).await;
        let volume = field(&tenants(clusters, CLAIM), name, "/spec/volumeName")
            .await
            .unwrap();
        let spec = field(&tenants(clusters, VOLUME), volume.as_str().unwrap(), "/spec")
            .await
            .unwrap();
        assert_eq!(spec["claimRef"]["name"], name);
        assert_eq!(spec["claimRef"]["namespace"], "default");
        let printed = spec.to_string();
        assert!(
            !printed.contains("secret-handle") && !printed.contains(WORKLOADS),
            "{printed}"
        );
        eventually("its volume is bound", async || {
            let phase = field(&tenants(clusters, VOLUME), volume.as_str().unwrap(), "/status/phase").await;
            phase == Some("Bound".into())
        })
        .await;
    }
    let class = field(&tenants(clusters, CLAIM), "data-db-0", "/spec/storageClassName").await;
    assert_eq!(class, Some("fast".into()), "the tenant's default");
}

pub(super) async fn a_volume_grows(clusters: &Clusters) {
    let claims = tenants(clusters, CLAIM);
    let larger = json!({"spec": {"resources": {"requests": {"storage": "20Gi"}}}});
    merge(&claims, "data-db-0", larger).await;
    eventually("claim and volume have grown", async || {
        let volume = field(&claims, "data-db-0", "/spec/volumeName").await.unwrap();
        let size = field(
            &tenants(clusters, VOLUME),
            volume.as_str().unwrap(),
            "/spec/capacity/storage",
        )
        .await;
        size == Some("20Gi".into()) && field(&claims, "data-db-0", "/status/capacity/storage").await == size
    })
    .await;
}

pub(super) async fn a_block_device_is_one(clusters: &Clusters) {
    let raw = claim("raw", &json!({"volumeMode": "Block", "storageClassName": "late"}));
    make(&tenants(clusters, CLAIM), CLAIM, raw).await;
    let container =
        json!({"name": "main", "image": "app:1", "volumeDevices": [{"name": "disk", "devicePath": "/dev/xvda"}]});
    let volumes = json!([{"name": "disk", "persistentVolumeClaim": {"claimName": "raw"}}]);
    let pods = clusters.tenant_api::<Pod>();
    create(
        &pods,
        pod("raw", &json!({"containers": [container], "volumes": volumes})),
    )
    .await;
    eventually("it runs", async || is_phase(&pods, "raw", "Running").await).await;
    let host = clusters
        .host_pods()
        .await
        .into_iter()
        .find(|pod| origin(pod) == "raw")
        .unwrap();
    let devices = host.spec.unwrap().containers[0].volume_devices.clone().unwrap();
    assert_eq!(devices[0].device_path, "/dev/xvda");
    let volume = field(&tenants(clusters, CLAIM), "raw", "/spec/volumeName")
        .await
        .unwrap();
    let mode = field(&tenants(clusters, VOLUME), volume.as_str().unwrap(), "/spec/volumeMode").await;
    assert_eq!(mode, Some("Block".into()));
    pods.delete("raw", &DeleteParams::default()).await.unwrap();
}

pub(super) async fn an_ephemeral_volume_comes_and_goes_with_its_pod(clusters: &Clusters) {
    let template = json!({"spec": claim("x", &json!({"storageClassName": "late"}))["spec"]});
    let volume = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}});
    let pods = clusters.tenant_api::<Pod>();
    create(&pods, pod("batch", &mounting(&volume))).await;
    eventually("it runs", async || is_phase(&pods, "batch", "Running").await).await;
    eventually("its claim is bound", async || is_bound(clusters, "batch-scratch").await).await;
    pods.delete("batch", &DeleteParams::default()).await.unwrap();
    eventually("its claim is gone on both sides", async || {
        tenants(clusters, CLAIM)
            .get_opt("batch-scratch")
            .await
            .unwrap()
            .is_none()
            && on_host(clusters, CLAIM, "batch-scratch").await.is_none()
    })
    .await;
}

pub(super) async fn a_node_that_is_not_the_tenants_alone_is_reported(clusters: &Clusters) {
    const NODE: &str = "volume.kubernetes.io/selected-node";
    let claims = tenants(clusters, CLAIM);
    let waiting = claim("waiting", &json!({"storageClassName": "late"}));
    make(&claims, CLAIM, waiting).await;
    eventually("it is on the host", async || {
        on_host(clusters, CLAIM, "waiting").await.is_some()
    })
    .await;
    // As schedulers do, once the claim exists.
    merge(
        &claims,
        "waiting",
        json!({"metadata": {"annotations": {NODE: "elsewhere"}}}),
    )
    .await;
    eventually("an Event says that no volume is made there", async || {
        let messages = events(clusters, "waiting", "FieldIgnored").await;
        messages.len() == 1 && messages[0].contains("elsewhere: it is no node of the tenant")
    })
    .await;
    let host = on_host(clusters, CLAIM, "waiting").await.unwrap();
    assert!(!host.annotations().contains_key(NODE));
    remove(&claims, "waiting").await;
}

pub(super) async fn a_claim_in_use_stays(clusters: &Clusters) {
    let claims = tenants(clusters, CLAIM);
    remove(&claims, "data-db-1").await;
    let sets = clusters.tenant_api::<StatefulSet>();
    let smaller = Patch::Merge(json!({"spec": {"replicas": 1}}));
    let in_use = claims.get("data-db-1").await.unwrap();
    assert!(in_use.metadata.deletion_timestamp.is_some());
    let host = on_host(clusters, CLAIM, "data-db-1").await.unwrap();
    assert!(host.metadata.deletion_timestamp.is_none(), "a pod uses it");
    sets.patch("db", &PatchParams::default(), &smaller).await.unwrap();
    eventually("it goes after its pod, on both sides", async || {
        claims.get_opt("data-db-1").await.unwrap().is_none() && on_host(clusters, CLAIM, "data-db-1").await.is_none()
    })
    .await;
}

pub(super) async fn a_claim_whose_volume_is_gone_is_lost(clusters: &Clusters) {
    let claims = tenants(clusters, CLAIM);
    let volume = field(&claims, "restored", "/spec/volumeName").await.unwrap();
    let host = on_host(clusters, CLAIM, "restored").await.unwrap();
    remove(&api(&clusters.host_admin, CLAIM, WORKLOADS), &host.name_any()).await;
    eventually("the claim is lost and its volume gone", async || {
        field(&claims, "restored", "/status/phase").await == Some("Lost".into())
            && tenants(clusters, VOLUME)
                .get_opt(volume.as_str().unwrap())
                .await
                .unwrap()
                .is_none()
    })
    .await;
    assert!(on_host(clusters, CLAIM, "restored").await.is_none());
}
