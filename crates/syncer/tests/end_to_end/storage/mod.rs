//! Claims, volumes, classes and snapshots, on a host whose storage the test simulates.

mod provisioner;

use crate::{
    limits::{count_on_host, until_beyond},
    objects::{create, events, eventually, is_phase, origin, pod},
    setup::{Clusters, Syncer, WORKLOADS},
};
use berth_api::{SchedulingMode, SyncPolicy, TenantLimits, sync_policy::StoragePolicy};
use k8s_openapi::{
    api::{apps::v1::StatefulSet, core::v1::Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use provisioner::{DRIVER, Provisioner};
use serde_json::{Value, json};

/// Group, version and kind.
type Kind = (&'static str, &'static str, &'static str);
const CLAIM: Kind = ("", "v1", "PersistentVolumeClaim");
const VOLUME: Kind = ("", "v1", "PersistentVolume");
const CLASS: Kind = ("storage.k8s.io", "v1", "StorageClass");
const CSI_DRIVER: Kind = ("storage.k8s.io", "v1", "CSIDriver");
const SNAPSHOT: Kind = ("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
const SNAPSHOT_CLASS: Kind = ("snapshot.storage.k8s.io", "v1", "VolumeSnapshotClass");
const SNAPSHOT_CONTENT: Kind = ("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent");

/// Objects of a kind as JSON; `namespace` is empty for cluster-scoped kinds.
fn api(client: &Client, (group, version, kind): Kind, namespace: &str) -> Api<DynamicObject> {
    let mut resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    if kind.ends_with("Class") {
        resource.plural = format!("{}es", kind.to_lowercase());
    }
    if namespace.is_empty() {
        Api::all_with(client.clone(), &resource)
    } else {
        Api::namespaced_with(client.clone(), namespace, &resource)
    }
}

fn tenants(clusters: &Clusters, kind: Kind) -> Api<DynamicObject> {
    let is_namespaced = [CLAIM, SNAPSHOT].contains(&kind);
    api(&clusters.tenant_admin, kind, if is_namespaced { "default" } else { "" })
}

async fn make(api: &Api<DynamicObject>, (group, version, kind): Kind, mut object: Value) {
    object["apiVersion"] = format!("{group}/{version}").trim_start_matches('/').into();
    object["kind"] = kind.into();
    create(api, object).await;
}

async fn field(api: &Api<DynamicObject>, name: &str, pointer: &str) -> Option<Value> {
    api.get_opt(name).await.unwrap()?.data.pointer(pointer).cloned()
}

async fn merge(api: &Api<DynamicObject>, name: &str, patch: Value) {
    let patch = Patch::Merge(patch);
    api.patch(name, &PatchParams::default(), &patch).await.unwrap();
}

async fn remove(api: &Api<DynamicObject>, name: &str) {
    api.delete(name, &DeleteParams::default()).await.unwrap();
}

async fn count(api: &Api<DynamicObject>) -> usize {
    api.list(&ListParams::default()).await.unwrap().items.len()
}

/// The host's object for one of the tenant's.
async fn on_host(clusters: &Clusters, kind: Kind, name: &str) -> Option<DynamicObject> {
    let all = api(&clusters.host_admin, kind, WORKLOADS)
        .list(&ListParams::default())
        .await
        .unwrap();
    all.into_iter().find(|object| {
        object
            .annotations()
            .get("berth.dev/origin-name")
            .is_some_and(|origin| origin == name)
    })
}

/// The kinds of snapshots, as far as the test needs them.
async fn define_snapshots(client: &Client) {
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (kind, scope) in [
        (SNAPSHOT, "Namespaced"),
        (SNAPSHOT_CLASS, "Cluster"),
        (SNAPSHOT_CONTENT, "Cluster"),
    ] {
        let singular = kind.2.to_lowercase();
        let plural = if singular.ends_with('s') {
            format!("{singular}es")
        } else {
            format!("{singular}s")
        };
        let schema = json!({"type": "object", "properties": {"spec": open, "status": open,
            "driver": {"type": "string"}, "deletionPolicy": {"type": "string"}, "parameters": open}});
        let annotations =
            json!({"api-approved.kubernetes.io": "https://github.com/kubernetes-csi/external-snapshotter/pull/814"});
        let crd = json!({"metadata": {"name": format!("{plural}.{}", kind.0), "annotations": annotations}, "spec": {
            "group": kind.0, "scope": scope, "names": {"kind": kind.2, "plural": plural, "singular": singular},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": schema}}]}});
        create(&crds, crd).await;
        let objects = api(client, kind, "");
        eventually("snapshots are served", async || {
            objects.list(&ListParams::default()).await.is_ok()
        })
        .await;
    }
}

/// Creates what the host offers, and more.
async fn prepare(clusters: &Clusters) {
    let host = &clusters.host_admin;
    for (name, mode) in [
        ("fast", "Immediate"),
        ("late", "WaitForFirstConsumer"),
        ("hidden", "Immediate"),
    ] {
        let default = (name == "fast").to_string();
        let class = json!({"metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": default}},
            "provisioner": DRIVER, "parameters": {"server": "10.0.0.1"}, "volumeBindingMode": mode, "allowVolumeExpansion": true});
        make(&api(host, CLASS, ""), CLASS, class).await;
    }
    let driver = json!({"metadata": {"name": DRIVER}, "spec": {"attachRequired": false}});
    make(&api(host, CSI_DRIVER, ""), CSI_DRIVER, driver).await;
    for client in [host, &clusters.tenant_admin] {
        define_snapshots(client).await;
    }
    let default = json!({"snapshot.storage.kubernetes.io/is-default-class": "true"});
    let daily =
        json!({"metadata": {"name": "daily", "annotations": default}, "driver": DRIVER, "deletionPolicy": "Delete"});
    make(&api(host, SNAPSHOT_CLASS, ""), SNAPSHOT_CLASS, daily).await;
}

fn claim(name: &str, spec: &Value) -> Value {
    let mut claim = json!({"metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}});
    for (key, value) in spec.as_object().unwrap() {
        claim["spec"][key] = value.clone();
    }
    claim
}

fn mounting(volume: &Value) -> Value {
    json!({"volumes": [volume], "containers": [{"name": "main", "image": "app:1",
        "volumeMounts": [{"name": volume["name"], "mountPath": "/data"}]}]})
}

async fn is_bound(clusters: &Clusters, claim: &str) -> bool {
    field(&tenants(clusters, CLAIM), claim, "/status/phase").await == Some("Bound".into())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn volumes() {
    let policy = SyncPolicy {
        storage: StoragePolicy {
            classes: vec!["fast".into(), "late".into()],
            snapshot_classes: vec!["daily".into()],
            ..StoragePolicy::default()
        },
        ..SyncPolicy::default()
    };
    let mut clusters = Clusters::start_with(policy, SchedulingMode::Host).await;
    prepare(&clusters).await;
    let provisioner = Provisioner::start(clusters.host_admin.clone());
    let syncer = clusters.syncer().await;
    classes_are_mirrored(&clusters).await;
    a_stateful_set_has_its_volumes(&clusters).await;
    a_volume_grows(&clusters).await;
    a_block_device_is_one(&clusters).await;
    a_snapshot_is_restored(&clusters).await;
    snapshots_are_counted_on_the_host(&clusters).await;
    an_ephemeral_volume_comes_and_goes_with_its_pod(&clusters).await;
    classes_that_are_not_offered_are_reported(&clusters).await;
    a_claim_in_use_stays(&clusters).await;
    let syncer = a_class_is_taken_back_and_offered_again(&mut clusters, syncer).await;
    a_claim_whose_volume_is_gone_is_lost(&clusters).await;
    nothing_is_left(&clusters).await;
    syncer.stop().await;
    drop(provisioner);
}

async fn classes_are_mirrored(clusters: &Clusters) {
    let classes = tenants(clusters, CLASS);
    eventually("the offered classes", async || {
        let mut names: Vec<String> = classes
            .list(&ListParams::default())
            .await
            .unwrap()
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        names.sort();
        names == ["fast", "late"]
    })
    .await;
    assert_eq!(field(&classes, "fast", "/parameters").await, None);
    eventually("driver and snapshot class", async || {
        field(&tenants(clusters, CSI_DRIVER), DRIVER, "/spec/attachRequired").await == Some(false.into())
            && field(&tenants(clusters, SNAPSHOT_CLASS), "daily", "/driver").await == Some(DRIVER.into())
    })
    .await;
    merge(&classes, "fast", json!({"allowVolumeExpansion": false})).await;
    eventually("the change is undone, with an Event", async || {
        field(&classes, "fast", "/allowVolumeExpansion").await == Some(true.into())
            && !events(clusters, "fast", "ReadOnly").await.is_empty()
    })
    .await;
    remove(&classes, "late").await;
    eventually("it is back", async || {
        field(&classes, "late", "/provisioner").await.is_some()
    })
    .await;
    let own = json!({"metadata": {"name": "own"}, "provisioner": "example.com/own"});
    make(&classes, CLASS, own).await;
    eventually("an Event reports the team's own class", async || {
        !events(clusters, "own", "NotSynced").await.is_empty()
    })
    .await;
}

async fn a_stateful_set_has_its_volumes(clusters: &Clusters) {
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

async fn a_volume_grows(clusters: &Clusters) {
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

async fn a_block_device_is_one(clusters: &Clusters) {
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

async fn a_snapshot_is_restored(clusters: &Clusters) {
    let snapshots = tenants(clusters, SNAPSHOT);
    let source = json!({"persistentVolumeClaimName": "data-db-1"});
    let monday = json!({"metadata": {"name": "monday"}, "spec": {"source": source}});
    make(&snapshots, SNAPSHOT, monday).await;
    eventually("the snapshot is taken", async || {
        field(&snapshots, "monday", "/status/readyToUse").await == Some(true.into())
    })
    .await;
    let class = field(&snapshots, "monday", "/spec/volumeSnapshotClassName").await;
    assert_eq!(class, Some("daily".into()));
    let content = field(&snapshots, "monday", "/status/boundVolumeSnapshotContentName").await;
    assert_eq!(content, None);
    let source = json!({"apiGroup": SNAPSHOT.0, "kind": SNAPSHOT.2, "name": "monday"});
    let restored = claim("restored", &json!({"dataSource": source}));
    make(&tenants(clusters, CLAIM), CLAIM, restored).await;
    eventually("the restored volume is bound", async || {
        is_bound(clusters, "restored").await
    })
    .await;
    let host = on_host(clusters, CLAIM, "restored").await.unwrap();
    let snapshot = on_host(clusters, SNAPSHOT, "monday").await.unwrap();
    assert_eq!(host.data["spec"]["dataSource"]["name"], snapshot.name_any());

    let content = json!({"metadata": {"name": "own"}, "spec": {"driver": DRIVER}});
    make(&tenants(clusters, SNAPSHOT_CONTENT), SNAPSHOT_CONTENT, content).await;
    eventually("an Event reports the team's own content", async || {
        let messages = events(clusters, "own", "NotSynced").await;
        messages.iter().any(|text| text.contains("Contents of snapshots"))
    })
    .await;
}

/// There is one.
async fn snapshots_are_counted_on_the_host(clusters: &Clusters) {
    let limits = TenantLimits {
        volume_snapshots: 1,
        ..TenantLimits::default()
    };
    let counted = "count/volumesnapshots.snapshot.storage.k8s.io";
    let quotas = count_on_host(clusters, counted, &limits).await;
    let snapshots = tenants(clusters, SNAPSHOT);
    let source = json!({"persistentVolumeClaimName": "data-db-1"});
    let tuesday = json!({"metadata": {"name": "tuesday"}, "spec": {"source": source}});
    make(&snapshots, SNAPSHOT, tuesday).await;
    until_beyond(clusters, "tuesday", "spec.limits.volumeSnapshots").await;
    assert!(on_host(clusters, SNAPSHOT, "tuesday").await.is_none());
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
    eventually("the snapshot is taken once there is room", async || {
        field(&snapshots, "tuesday", "/status/readyToUse").await == Some(true.into())
    })
    .await;
    snapshots.delete("tuesday", &DeleteParams::default()).await.unwrap();
}

async fn an_ephemeral_volume_comes_and_goes_with_its_pod(clusters: &Clusters) {
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

async fn classes_that_are_not_offered_are_reported(clusters: &Clusters) {
    let claims = tenants(clusters, CLAIM);
    make(&claims, CLAIM, claim("greedy", &json!({"storageClassName": "hidden"}))).await;
    make(&claims, CLAIM, claim("chosen", &json!({"volumeName": "theirs"}))).await;
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": "greedy"}});
    create(&clusters.tenant_api::<Pod>(), pod("hopeful", &mounting(&volume))).await;
    for (about, text) in [
        ("greedy", "the class hidden is not offered: use one of fast, late"),
        ("chosen", "spec.volumeName: volumes are made for claims"),
        ("hopeful", "it needs the PersistentVolumeClaim greedy, which is denied"),
    ] {
        eventually(&format!("{about}: {text}"), async || {
            let messages = events(clusters, about, "FieldDenied").await;
            messages.iter().any(|message| message.contains(text))
        })
        .await;
    }
    for name in ["greedy", "chosen"] {
        assert!(on_host(clusters, CLAIM, name).await.is_none());
    }
    assert!(clusters.host_pods().await.iter().all(|pod| origin(pod) != "hopeful"));
    let own = json!({"metadata": {"name": "disk"}, "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"],
        "nfs": {"server": "10.0.0.1", "path": "/"}}});
    make(&tenants(clusters, VOLUME), VOLUME, own).await;
    eventually("an Event reports the team's own volume", async || {
        !events(clusters, "disk", "NotSynced").await.is_empty()
    })
    .await;
    let pods = clusters.tenant_api::<Pod>();
    pods.delete("hopeful", &DeleteParams::default()).await.unwrap();
}

async fn a_claim_in_use_stays(clusters: &Clusters) {
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

/// What runs with a class that is taken back goes on until that is withdrawn, nothing new mounts it, and the data stays.
async fn a_class_is_taken_back_and_offered_again(clusters: &mut Clusters, syncer: Syncer) -> Syncer {
    const CLAIM_OF_CLASS: &str = "cache-db-0";
    let pods = clusters.tenant_api::<Pod>();
    let is_denied = async |clusters: &Clusters, pod: &str| {
        let messages = events(clusters, pod, "FieldDenied").await;
        messages.iter().any(|message| message.contains("the StorageClass late"))
    };
    syncer.stop().await;
    let offered = clusters.policy.clone();
    clusters.policy.storage.classes = vec!["fast".into()];
    let syncer = clusters.syncer().await;
    let before = pods.get("db-0").await.unwrap().uid();
    let volume = json!({"name": "data", "persistentVolumeClaim": {"claimName": CLAIM_OF_CLASS}});
    create(&pods, pod("late-comer", &mounting(&volume))).await;
    eventually("a new pod is denied", async || is_denied(clusters, "late-comer").await).await;
    assert!(is_phase(&pods, "db-0", "Running").await);
    assert_eq!(pods.get("db-0").await.unwrap().uid(), before);
    pods.delete("late-comer", &DeleteParams::default()).await.unwrap();

    syncer.stop().await;
    clusters.withdrawn_storage_classes = ["late".to_owned()].into();
    let syncer = clusters.syncer().await;
    eventually("the pod ends, and the next one is denied", async || {
        let now = pods.get_opt("db-0").await.unwrap();
        now.is_some_and(|now| now.uid() != before)
            && is_denied(clusters, "db-0").await
            && clusters.host_pods().await.iter().all(|pod| origin(pod) != "db-0")
    })
    .await;
    assert!(is_bound(clusters, CLAIM_OF_CLASS).await, "the data stays");
    assert!(on_host(clusters, CLAIM, CLAIM_OF_CLASS).await.is_some());

    syncer.stop().await;
    clusters.policy = offered;
    clusters.withdrawn_storage_classes.clear();
    let syncer = clusters.syncer().await;
    eventually("it runs again", async || is_phase(&pods, "db-0", "Running").await).await;
    syncer
}

async fn a_claim_whose_volume_is_gone_is_lost(clusters: &Clusters) {
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

async fn nothing_is_left(clusters: &Clusters) {
    remove(&tenants(clusters, VOLUME), "disk").await;
    remove(&tenants(clusters, SNAPSHOT), "monday").await;
    let sets = clusters.tenant_api::<StatefulSet>();
    sets.delete("db", &DeleteParams::default()).await.unwrap();
    let claims = tenants(clusters, CLAIM);
    claims
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .unwrap();
    eventually("nothing is left on either side", async || {
        let host = &clusters.host_admin;
        count(&claims).await == 0
            && count(&tenants(clusters, VOLUME)).await == 0
            && count(&tenants(clusters, SNAPSHOT)).await == 0
            && count(&api(host, CLAIM, WORKLOADS)).await == 0
            && count(&api(host, VOLUME, "")).await == 0
            && count(&api(host, SNAPSHOT, WORKLOADS)).await == 0
    })
    .await;
}
