//! Deleting a tenant leaves nothing, whenever and however it is done.

use berth_api::{labels, names::TenantId};
use berth_control::{
    apply::is_status,
    control_plane::API_SERVER,
    datastore::{Datastore, DatastoreConfig},
    runtime::kubeconfig_path,
};
use berth_tests::{
    objects::{gpu_pod, nodes_of_tenant, phase},
    processes,
    tenant::{Tenant, cluster, ensure_namespace, patient_with, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, Namespace, Pod, Secret},
    rbac::v1::{ClusterRole, ClusterRoleBinding},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::Kubeconfig,
};
use std::{sync::Arc, time::Duration};

/// The tenants' etcd, as control uses it.
pub(crate) fn datastore(host: &TestCluster) -> Datastore {
    let access = host.datastore();
    let config = DatastoreConfig {
        endpoints: vec![access.endpoint],
        ca_cert: access.ca_cert,
        ca_key: access.ca_key,
    };
    Datastore::open(&config).unwrap()
}

/// Descriptions of everything that is left of a tenant.
async fn remains(host: &TestCluster, namespace: &str, name: &str, id: &TenantId) -> Vec<String> {
    let mut remains = Vec::new();
    let ours = ListParams::default().labels(&format!("{}={}", labels::TENANT, id.slug()));
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    for found in namespaces.list(&ours).await.unwrap() {
        remains.push(format!("namespace {}", found.name_any()));
    }
    for name in [id.control_plane_namespace(), id.workload_namespace()] {
        if namespaces.get_opt(&name).await.unwrap().is_some() {
            remains.push(format!("namespace {name}"));
        }
    }
    let roles: Api<ClusterRole> = Api::all(host.client.clone());
    for found in roles.list_metadata(&ours).await.unwrap() {
        remains.push(format!("ClusterRole {}", found.name_any()));
    }
    let bindings: Api<ClusterRoleBinding> = Api::all(host.client.clone());
    for found in bindings.list_metadata(&ours).await.unwrap() {
        remains.push(format!("ClusterRoleBinding {}", found.name_any()));
    }
    for node in nodes_of_tenant(&host.client, id.slug()).await {
        remains.push(format!("node {node}"));
    }
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(host.client.clone());
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        let taints = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        if taints.iter().any(|taint| taint.value.as_deref() == Some(id.slug())) {
            remains.push(format!("taint on {}", node.name_any()));
        }
    }
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), namespace);
    if secrets.get_opt(&format!("{name}-kubeconfig")).await.unwrap().is_some() {
        remains.push("kubeconfig Secret".into());
    }
    match datastore(host).describe_tenant(id).await {
        Ok(found) => remains.extend(found),
        // Without an answer, the check is repeated.
        Err(error) => remains.push(format!("the datastore does not answer: {error}")),
    }
    let processes = berth_process::statuses(&host.tenant_records());
    remains.extend(
        processes
            .into_iter()
            .filter(|p| p.name.contains(id.slug()))
            .map(|p| format!("process {}", p.name)),
    );
    let home = host.home();
    for path in [
        home.tenants().join(id.hash()),
        kubeconfig_path(&home.kubeconfigs(), namespace, name),
    ] {
        if path.exists() {
            remains.push(path.display().to_string());
        }
    }
    remains
}

/// The kubeconfig Secret goes with its owner, by the host's garbage collector, which takes a moment.
async fn assert_nothing_remains(host: &TestCluster, namespace: &str, name: &str, id: &TenantId) {
    until_true("the kubeconfig Secret is collected", SOON, async || {
        let secrets: Api<Secret> = Api::namespaced(host.client.clone(), namespace);
        secrets.get_opt(&format!("{name}-kubeconfig")).await.unwrap().is_none()
    })
    .await;
    // Normally nothing remains by now. An object whose finalizer was added while it was being deleted goes at once, and
    // what was made for it follows.
    until("nothing remains", SOON, async || {
        match Box::pin(remains(host, namespace, name, id)).await {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        }
    })
    .await;
}

pub(crate) async fn deleted_tenant_leaves_nothing(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "del-full", &cluster("full", &[("train", "h100", 1)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("a", 8)).await.unwrap();
    until_true("the pod runs", SOON, async || {
        pods.get("a").await.is_ok_and(|pod| phase(&pod) == "Running")
    })
    .await;
    until("the check sees everything", SOON, async || {
        let before = Box::pin(remains(&host, "del-full", "full", &tenant.id)).await;
        let all = [
            "namespace",
            "node",
            "taint",
            "kubeconfig",
            "ClusterRole ",
            "ClusterRoleBinding ",
            "user",
            "role",
            "keys",
            "process",
            "full.yaml",
        ];
        let unseen = all
            .iter()
            .find(|kind| !before.iter().any(|thing| thing.contains(*kind)));
        unseen.map_or(Ok(()), |kind| Err(format!("it cannot see {kind}: {before:?}")))
    })
    .await;
    let (datastore, user) = (datastore(&host), tenant.id.etcd_user());
    let stays = !datastore.delete_leftover(&user).await.unwrap();
    assert!(stays, "the user of a tenant that stores something was deleted");
    assert!(datastore.list_identities().await.unwrap().contains(&user));
    tenant.delete(&host).await;
    assert_nothing_remains(&host, "del-full", "full", &tenant.id).await;

    // As a call does that had timed out.
    datastore.create_tenant(&tenant.id).await.unwrap();
    assert!(datastore.list_identities().await.unwrap().contains(&user));
    assert!(datastore.delete_leftover(&user).await.unwrap());
    assert!(datastore.describe_tenant(&tenant.id).await.unwrap().is_empty());
    datastore.create_tenant(&tenant.id).await.unwrap();
    let names = datastore.list_identities().await.unwrap();
    assert!(names.contains(&user), "a tenant that exists after all has no user");
    // As control does for a tenant whose database is another one.
    for _ in 0..2 {
        datastore.delete_user(&tenant.id).await.unwrap();
        assert!(datastore.describe_tenant(&tenant.id).await.unwrap().is_empty());
    }
    datastore.create_tenant(&tenant.id).await.unwrap();
    assert!(datastore.list_identities().await.unwrap().contains(&user));
    assert!(datastore.delete_leftover(&user).await.unwrap());
}

pub(crate) async fn tenant_is_deleted_during_its_creation(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, "del-early").await;
    let tenants = host.tenants("del-early");
    for milliseconds in [0, 50, 200, 600, 1500, 3000] {
        let name = format!("early-{milliseconds}");
        let created = tenants
            .create(&PostParams::default(), &cluster(&name, &[("serve", "h100", 1)]))
            .await
            .unwrap();
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        tenants.delete(&name, &DeleteParams::default()).await.unwrap();
        until_gone(&host, "del-early", &name).await;
        let id = TenantId::new(&name, &created.uid().unwrap());
        assert_nothing_remains(&host, "del-early", &name, &id).await;
    }
}

pub(crate) async fn tenant_is_deleted_twice_and_without_its_api_server(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "del-dead", &cluster("dead", &[])).await;
    let records = host.tenant_records();
    let server = processes::find(&records, &format!("{}.{API_SERVER}", tenant.id.slug())).unwrap();
    let tenants = host.tenants("del-dead");
    processes::kill(&server);
    tenants.delete("dead", &DeleteParams::default()).await.unwrap();
    // A second delete changes nothing; by then the object may be gone.
    if let Err(error) = tenants.delete("dead", &DeleteParams::default()).await {
        assert!(is_status(&error, 404), "{error}");
    }
    until_gone(&host, "del-dead", "dead").await;
    assert_nothing_remains(&host, "del-dead", "dead", &tenant.id).await;
}

pub(crate) async fn removed_finalizer_leaves_nothing(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "del-hand", &cluster("hand", &[("train", "h100", 1)])).await;
    let tenants = host.tenants("del-hand");
    let bare = serde_json::json!({"metadata": {"finalizers": null}});
    host.stop_control("first").await;
    tenants
        .patch("hand", &PatchParams::default(), &Patch::Merge(&bare))
        .await
        .unwrap();
    tenants.delete("hand", &DeleteParams::default()).await.unwrap();
    assert!(tenants.get_opt("hand").await.unwrap().is_none());
    host.start_control("first").await;
    assert_nothing_remains(&host, "del-hand", "hand", &tenant.id).await;
}

pub(crate) async fn new_tenant_of_the_same_name_starts_empty(host: Arc<TestCluster>) {
    let cluster = cluster("again", &[]);
    let first = Tenant::create(&host, "del-again", &cluster).await;
    let maps: Api<ConfigMap> = Api::namespaced(first.client.clone(), "default");
    let map = ConfigMap {
        metadata: kube::api::ObjectMeta {
            name: Some("mine".into()),
            ..Default::default()
        },
        ..Default::default()
    };
    maps.create(&PostParams::default(), &map).await.unwrap();
    first.delete(&host).await;
    let second = Tenant::create(&host, "del-again", &cluster).await;
    assert_ne!(first.id.hash(), second.id.hash());
    let maps: Api<ConfigMap> = Api::namespaced(second.client.clone(), "default");
    assert!(maps.get_opt("mine").await.unwrap().is_none());
    // The first one's certificate opens nothing of the second, also for a client that trusts the second's server.
    let mut stale = Kubeconfig::from_yaml(&second.kubeconfig).unwrap();
    let user = Kubeconfig::from_yaml(&first.kubeconfig).unwrap().auth_infos.remove(0);
    stale.auth_infos[0].auth_info = user.auth_info;
    let maps: Api<ConfigMap> = Api::namespaced(patient_with(stale).await, "default");
    let refused = maps.list(&ListParams::default()).await.map(|list| list.items.len());
    assert!(
        refused.as_ref().is_err_and(|error| is_status(error, 401)),
        "{refused:?}"
    );
    second.delete(&host).await;
}
