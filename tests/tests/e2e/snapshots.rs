//! Snapshots and restores where control planes are pods, and the store is a bucket of a real S3 server, which the values of the chart name.

use crate::{
    berth::{BERTH, Part, new_pods_run},
    pods::{SOON, Space, only, server},
    teams::vision,
};
use berth_api::{TenantSnapshot, labels};
use berth_control::control_plane::API_SERVER;
use berth_tests::{
    command_line::CommandLine,
    helm::chart,
    objects::apply,
    sleep::status,
    tenant::Tenant,
    test_cluster::TestCluster,
    versitygw::{KEY_ID, SECRET, Versitygw},
    wait::until,
};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{ConfigMap, Namespace, Pod, Secret},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::time::{sleep, timeout};

const BUCKET: &str = "snapshots";
/// The Secret with the credentials for it.
const CREDENTIALS: &str = "berth-snapshots";
/// The snapshot to which the tenant is set back.
const SNAPSHOT: &str = "kept";
const CONTROL: &str = "berth-control";
/// How often it is looked whether API servers run: they are gone for some seconds.
const LOOK: Duration = Duration::from_millis(50);

/// A pod on the host: its UID, the ID of its container and how often that was restarted.
type Life = (String, String, i32);

/// The pods on the host whose containers were started, of a namespace of the tenant, by their names there.
async fn lives(host: &TestCluster, space: &Space) -> BTreeMap<String, Life> {
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &space.tenant.id.workload_namespace());
    let mut lives = BTreeMap::new();
    for pod in pods.list(&ListParams::default()).await.unwrap() {
        let annotation = |key: &str| pod.annotations().get(key).cloned();
        if annotation(labels::ORIGIN_NAMESPACE).as_deref() != Some(space.name) {
            continue;
        }
        let name = annotation(labels::ORIGIN_NAME).unwrap();
        let containers = pod.status.clone().unwrap_or_default().container_statuses;
        for container in containers.unwrap_or_default() {
            if let Some(id) = container.container_id {
                lives.insert(name.clone(), (pod.uid().unwrap(), id, container.restart_count));
            }
        }
    }
    lives
}

/// Upgrades or rolls back Berth, and waits until nothing of the control before is left: it may still lead.
async fn change_control(host: &TestCluster, helm: &[&str]) {
    let control = Part::of_berth(host, CONTROL);
    let before: BTreeSet<String> = control.list().await.iter().filter_map(ResourceExt::uid).collect();
    let helm = [helm, &["--wait", "--timeout", "4m"][..]].concat();
    host.helm(&helm).await.unwrap();
    until("the control before is gone", SOON, async || {
        let pods = control.list().await;
        let left = pods
            .iter()
            .filter_map(ResourceExt::uid)
            .find(|uid| before.contains(uid));
        left.map_or(Ok(()), Err)
    })
    .await;
}

/// Lets control use a bucket, as `docs/guides/snapshots.md` says.
async fn set_store(host: &TestCluster, user: &CommandLine, server: &Versitygw) {
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": CREDENTIALS},
        "stringData": {"AWS_ACCESS_KEY_ID": KEY_ID, "AWS_SECRET_ACCESS_KEY": SECRET}});
    apply(&host.client, BERTH, &secret).await.unwrap();
    let values = json!({"snapshots": {"url": format!("s3://{BUCKET}/berth"), "region": "us-east-1", "endpoint": server.endpoint,
        "allowHTTP": true, "credentialsSecret": CREDENTIALS}});
    let file = user.folder().join("snapshots.yaml");
    std::fs::write(&file, values.to_string()).unwrap();
    let (chart, file) = (chart().display().to_string(), file.display().to_string());
    let upgrade = [
        "upgrade",
        "berth",
        &chart,
        "--reset-then-reuse-values",
        "--values",
        &file,
    ];
    change_control(host, &upgrade).await;
}

fn config_map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"from": name}})
}

/// Creates a pod and a Deployment that run, and a ConfigMap in both namespaces. Returns the pod.
async fn fill(space: &Space, other: &Space) -> Pod {
    let labels = json!({"app": "web"});
    space
        .apply(
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {
            "replicas": 1, "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": only(server())}}}),
        )
        .await;
    space.apply(config_map("settings")).await;
    other.apply(config_map("settings")).await;
    space.create("work", only(server())).await;
    let deployments: Api<Deployment> = space.api();
    until("the pod of the Deployment is available", SOON, async || {
        let web = deployments.get("web").await.map_err(|error| error.to_string())?;
        let status = web.status.unwrap_or_default();
        if status.available_replicas == Some(1) {
            Ok(())
        } else {
            Err(format!("{status:?}"))
        }
    })
    .await;
    space.ready("work").await
}

/// Deletes what the snapshot has, and creates what it does not have.
async fn change(space: &Space, other: &Space) {
    let maps: Api<ConfigMap> = space.api();
    maps.delete("settings", &DeleteParams::default()).await.unwrap();
    space.apply(config_map("later")).await;
    let namespaces: Api<Namespace> = Api::all(space.client.clone());
    namespaces.delete(other.name, &DeleteParams::default()).await.unwrap();
    space.create("new", only(server())).await;
    space.ready("new").await;
    until("the namespace is gone", SOON, async || {
        match namespaces.get_opt(other.name).await {
            Ok(None) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Sets a tenant back, and kills control when none of its API servers is left.
async fn set_back(host: &TestCluster, tenant: &Tenant, user: &CommandLine) {
    let name = format!("{}/{}", tenant.namespace, tenant.name);
    let restore = ["snapshot", "restore", &name, SNAPSHOT, "--yes", "--wait"];
    let (servers, control) = (Part::of_tenant(host, tenant, API_SERVER), Part::of_berth(host, CONTROL));
    let killed = async {
        let ended = async {
            while !servers.list().await.is_empty() {
                sleep(LOOK).await;
            }
        };
        timeout(SOON, ended).await.expect("the API servers end");
        control.kill().await;
    };
    let ((out, _), ()) = tokio::join!(Box::pin(user.run(&restore, 0)), Box::pin(killed));
    assert_eq!(out, format!("TenantCluster {name} was set back to {SNAPSHOT}.\n"));
}

/// What was deleted is there again, and what is newer is not.
async fn check_objects(space: &Space, other: &Space) {
    for one in [space, other] {
        let maps: Api<ConfigMap> = one.api();
        let settings = until("what was deleted is there again", SOON, async || {
            maps.get("settings").await
        })
        .await;
        assert_eq!(settings.data.unwrap()["from"], "settings");
    }
    let (maps, pods): (Api<ConfigMap>, Api<Pod>) = (space.api(), space.api());
    until("what is newer is not there", SOON, async || {
        match (maps.get_opt("later").await, pods.get_opt("new").await) {
            (Ok(None), Ok(None)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

/// Files of the tenant's snapshots.
fn files(server: &Versitygw, tenant: &Tenant) -> Vec<PathBuf> {
    server.files(&format!("{BUCKET}/berth/{}/{}", tenant.namespace, tenant.name))
}

pub(crate) async fn a_tenant_in_pods_is_set_back_from_a_bucket_while_control_is_killed(host: Arc<TestCluster>) {
    let bucket = Versitygw::start_at(host.machine(), BUCKET).await;
    let user = CommandLine::of_administrator(&host);
    set_store(&host, &user, &bucket).await;
    let tenant = vision(&host).await;
    let space = Space::new(tenant, "set-back").await;
    let other = Space::new(tenant, "set-back-deleted").await;
    let work = fill(&space, &other).await;
    let before = lives(&host, &space).await;
    assert_eq!(before.len(), 2, "{before:?}");

    let name = format!("{}/{}", tenant.namespace, tenant.name);
    let create = ["snapshot", "create", &name, "--name", SNAPSHOT, "--wait"];
    user.run(&create, 0).await;
    assert_eq!(files(&bucket, tenant).len(), 1, "{}", bucket.log());
    change(&space, &other).await;
    assert!(lives(&host, &space).await.contains_key("new"));

    Box::pin(set_back(&host, tenant, &user)).await;
    Tenant::ready(&host, &tenant.namespace, &tenant.name).await;
    check_objects(&space, &other).await;
    until("what is newer is gone on the host", SOON, async || {
        let now = lives(&host, &space).await;
        if now.contains_key("new") { Err(now) } else { Ok(()) }
    })
    .await;
    // What both have runs on: with the same UIDs on both sides, in the same containers.
    assert_eq!(lives(&host, &space).await, before);
    assert_eq!(space.ready("work").await.uid(), work.uid());
    new_pods_run(&space, "after").await;

    let saved = status(&host, tenant).await.unwrap().restore.unwrap().saved_as;
    let saved = saved.expect("what was there before is saved");
    assert!(files(&bucket, tenant).len() > 1, "{}", bucket.log());
    let kept = format!("{}/{SNAPSHOT}", tenant.namespace);
    user.run(&["snapshot", "delete", &kept], 0).await;
    // Control was killed while it took this one, so that its object stays for half a minute: as long as control has the store.
    let snapshots: Api<TenantSnapshot> = Api::namespaced(host.client.clone(), &tenant.namespace);
    snapshots.delete(&saved, &DeleteParams::default()).await.unwrap();
    change_control(&host, &["rollback", "berth"]).await;
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), BERTH);
    secrets.delete(CREDENTIALS, &DeleteParams::default()).await.unwrap();
}
