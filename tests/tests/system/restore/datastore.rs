//! The tenants' etcd is restored from a snapshot that is older than the host.
//!
//! What both sides have runs on, and nothing runs twice. Volumes stay. Who was removed meanwhile has no right. A tenant that the snapshot
//! does not have is stopped, and nothing of it is deleted on the host before somebody decides that.

use super::{administrator, back_up, commands};
use crate::{deletion::datastore, sleep::create_namespace_as_eve};
use berth_api::{
    TenantClass,
    conditions::DATASTORE_READY,
    labels,
    names::{TenantId, host_name},
};
use berth_tests::{
    objects::{apply, gpu_pod, phase},
    processes::{find, kill, until_replaced},
    shell::Shell,
    sleep::{processes, status},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::{
    core::v1::{ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod},
    storage::v1::StorageClass,
};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::{collections::BTreeMap, fmt::Debug, fs, sync::Arc, time::Duration};

/// Name of the namespace, the classes and the volumes.
const NAME: &str = "restore";
/// Name of the objects from before the snapshot.
const BEFORE: &str = "before";
/// Name of those from after it.
const AFTER: &str = "after";

pub(crate) async fn tenants_are_as_in_the_backup_and_what_it_lacks_is_not_lost(host: Arc<TestCluster>) {
    offer_volumes(&host).await;
    let mut wanted = cluster("kept", &[("train", "h100", 1)]);
    wanted.spec.class_name = Some(NAME.into());
    wanted.spec.access = serde_json::from_value(json!({"admins": [{"kind": "User", "name": "eve"}]})).unwrap();
    let (wanted_too, wanted_later) = (cluster("gone", &[]), cluster("newer", &[("train", "h100", 1)]));
    let (kept, gone) = tokio::join!(
        Tenant::create(&host, NAME, &wanted),
        Tenant::create(&host, NAME, &wanted_too)
    );
    fill(&host, &kept, BEFORE, true).await;
    let shell = administrator(&host).await;
    back_up(&shell).await;

    fill(&host, &kept, AFTER, true).await;
    remove_eve(&host, &kept).await;
    gone.delete(&host).await;
    let newer = Tenant::create(&host, NAME, &wanted_later).await;
    fill(&host, &newer, AFTER, false).await;
    let (pods, volume) = (on_host::<Pod>(&host, &kept).await, volume_of(&host, &kept, AFTER).await);
    let of_newer = on_host::<Pod>(&host, &newer).await;

    restore(&host, &shell).await;
    until_as_in_the_backup(&host, &kept).await;
    let pods_now = on_host::<Pod>(&host, &kept).await;
    assert_eq!(pods_now.get(BEFORE), pods.get(BEFORE), "the pod was created again");
    until("the volume without its claim is kept", SOON, async || {
        let state = state_of(&host, &volume).await;
        if state == ("Released".into(), "Retain".into()) {
            Ok(())
        } else {
            Err(state)
        }
    })
    .await;
    shell.run(&commands("grep Released", &[])).await;
    let bound = volume_of(&host, &kept, BEFORE).await;
    assert_eq!(state_of(&host, &bound).await, ("Bound".into(), "Delete".into()));
    delete_keys_without_a_tenant(&host, &shell, &gone.id).await;

    until_stopped(&host, &newer).await;
    assert_eq!(on_host::<Pod>(&host, &newer).await, of_newer);
    let newer = begin_anew(&host, &shell, &newer).await;
    let kept = Tenant::ready(&host, NAME, "kept").await;
    tokio::join!(kept.delete(&host), newer.delete(&host));
    clean_up(&host).await;
}

/// Two volumes, a class of the host with them, and a class of tenants that offers it.
async fn offer_volumes(host: &TestCluster) {
    let storage = json!({"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": NAME},
        "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "Immediate"});
    apply(&host.client, "", &storage).await.unwrap();
    for name in volume_names() {
        let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {"name": name, "labels": {labels::ALLOW_ANY_CLAIM: "true"}},
            "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": NAME,
                "persistentVolumeReclaimPolicy": "Delete", "hostPath": {"path": format!("/tmp/berth-{name}")}}});
        apply(&host.client, "", &volume).await.unwrap();
    }
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME},
        "spec": {"sync": {"storage": {"classes": [NAME]}}}});
    apply(&host.client, "", &class).await.unwrap();
}

fn volume_names() -> [String; 2] {
    [BEFORE, AFTER].map(|name| format!("{NAME}-{name}"))
}

/// Creates a ConfigMap, a pod and, with a class that offers volumes, a claim, and waits until the pod runs and the claim is bound.
async fn fill(host: &TestCluster, tenant: &Tenant, name: &str, has_volumes: bool) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    apply(&tenant.client, "default", &map).await.unwrap();
    if has_volumes {
        let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": NAME,
                "resources": {"requests": {"storage": "1Gi"}}}});
        apply(&tenant.client, "default", &claim).await.unwrap();
    }
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    // A new tenant makes its ServiceAccount a moment later.
    until("the pod is created", SOON, async || {
        pods.create(&PostParams::default(), &gpu_pod(name, 1)).await
    })
    .await;
    until_true("the pod runs", SOON, async || {
        pods.get(name).await.is_ok_and(|pod| phase(&pod) == "Running")
    })
    .await;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(tenant.client.clone(), "default");
    until_true("the claim is bound", SOON, async || {
        let claim = claims.get_opt(name).await.ok().flatten();
        let phase = claim.and_then(|claim| claim.status?.phase);
        phase.as_deref() == has_volumes.then_some("Bound")
    })
    .await;
    assert!(on_host::<Pod>(host, tenant).await.contains_key(name));
}

/// UIDs of the objects of a kind that a tenant has on the host, by their names in the tenant.
async fn on_host<K>(host: &TestCluster, tenant: &Tenant) -> BTreeMap<String, String>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let objects: Api<K> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let found = objects.list(&ListParams::default()).await.unwrap();
    let name_and_uid = |object: &K| Some((object.annotations().get(labels::ORIGIN_NAME)?.clone(), object.uid()?));
    found.iter().filter_map(name_and_uid).collect()
}

/// The volume of a claim of the tenant.
async fn volume_of(host: &TestCluster, tenant: &Tenant, claim: &str) -> String {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let name = host_name("PersistentVolumeClaim", "default", claim);
    let spec = claims.get(&name).await.unwrap().spec.unwrap();
    spec.volume_name.expect("a bound claim")
}

/// The phase and the reclaim policy of a volume.
async fn state_of(host: &TestCluster, volume: &str) -> (String, String) {
    let volumes: Api<PersistentVolume> = Api::all(host.client.clone());
    let volume = volumes.get(volume).await.unwrap();
    let phase = volume.status.and_then(|status| status.phase);
    let policy = volume.spec.and_then(|spec| spec.persistent_volume_reclaim_policy);
    (phase.unwrap_or_default(), policy.unwrap_or_default())
}

/// Takes the role of an admin away, and waits until that is in effect.
async fn remove_eve(host: &TestCluster, tenant: &Tenant) {
    until("eve is an admin", SOON, async || {
        create_namespace_as_eve(tenant, BEFORE).await
    })
    .await;
    host.patch_tenant(NAME, "kept", &json!({"access": {"admins": []}}))
        .await;
    until_true("eve is no admin any more", SOON, async || {
        let denied = create_namespace_as_eve(tenant, BEFORE).await;
        matches!(denied, Err(kube::Error::Api(status)) if status.code == 403)
    })
    .await;
}

/// Restores the snapshot as the page says, with the processes of this machine in the place of pods.
async fn restore(host: &TestCluster, shell: &Shell) {
    host.stop_control("first").await;
    for process in berth_process::statuses(&host.tenant_records()) {
        kill(&process);
    }
    shell.run(&commands("Retain", &[])).await;
    let peer = format!("https://{}", host.datastore().peer_address);
    let replaced = [("berth-etcd-0", "datastore"), ("https://127.0.0.1:2380", peer.as_str())];
    shell
        .run(&commands(
            "etcdutl snapshot restore berth.db --data-dir data",
            &replaced,
        ))
        .await;
    let etcd = find(&host.home().run(), "datastore").unwrap();
    // The one that runs keeps the files that it has open. It is started again at once.
    let data = host.home().data("datastore");
    fs::rename(&data, shell.folder().join("lost")).unwrap();
    fs::rename(shell.folder().join("data"), &data).unwrap();
    kill(&etcd);
    until_replaced(&host.home().run(), &etcd).await;
    host.start_control("first").await;
}

/// Waits until both sides have what the snapshot has. Eve must have no right at any time.
async fn until_as_in_the_backup(host: &TestCluster, tenant: &Tenant) {
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
    let is_restored = until("both sides are as in the backup", SOON, async || {
        let map = maps.get_opt(AFTER).await.map_err(|error| error.to_string())?;
        maps.get(BEFORE).await.map_err(|error| error.to_string())?;
        let pods = on_host::<Pod>(host, tenant).await;
        let claims = on_host::<PersistentVolumeClaim>(host, tenant).await;
        if map.is_none() && [&pods, &claims].iter().all(|all| all.keys().eq([BEFORE])) {
            Ok(())
        } else {
            Err(format!("{map:?} {pods:?} {claims:?}"))
        }
    });
    let is_admin = async {
        while create_namespace_as_eve(tenant, AFTER).await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = is_restored => {}
        () = is_admin => panic!("eve is an admin again"),
    }
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    assert_eq!(phase(&pods.get(BEFORE).await.unwrap()), "Running");
}

/// Keys of a tenant that was deleted after the snapshot stay until somebody deletes them.
async fn delete_keys_without_a_tenant(host: &TestCluster, shell: &Shell, id: &TenantId) {
    let datastore = datastore(host);
    let user = id.etcd_user();
    assert!(datastore.count_keys(id).await.unwrap() > 0);
    assert!(!datastore.delete_leftover(&user).await.unwrap());
    let replaced = [("HASH", id.hash())];
    shell.run(&commands("etcdctl del --prefix", &replaced)).await;
    assert_eq!(datastore.count_keys(id).await.unwrap(), 0);
    assert!(datastore.delete_leftover(&user).await.unwrap());
    // What is known of its restores is beside its own keys.
    let end = format!("/berth-restore-ends/of-a-test-{}", id.hash());
    shell.run(&format!("etcdctl put {end} 0")).await;
    shell.run(&commands("--keys-only \"/berth-restore\"", &replaced)).await;
    shell
        .run(&format!("test -z \"$(etcdctl get --prefix --keys-only {end})\""))
        .await;
}

async fn until_stopped(host: &TestCluster, tenant: &Tenant) {
    until("the tenant is stopped", SOON, async || {
        let conditions = status(host, tenant).await?.conditions;
        let condition = conditions.iter().find(|condition| condition.type_ == DATASTORE_READY);
        let left = processes(host, tenant);
        if condition.is_some_and(|condition| condition.reason == "DatastoreReplaced") && left.is_empty() {
            Ok(())
        } else {
            Err(format!("{condition:?} {left:?}"))
        }
    })
    .await;
}

/// Lets a tenant begin with what the datastore has of it, which is nothing.
async fn begin_anew(host: &TestCluster, shell: &Shell, tenant: &Tenant) -> Tenant {
    let namespace = tenant.id.control_plane_namespace();
    let replaced = [("CONTROL-PLANE-NAMESPACE", namespace.as_str())];
    shell.run(&commands("delete configmap datastore", &replaced)).await;
    let tenant = Tenant::ready(host, &tenant.namespace, &tenant.name).await;
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
    assert!(maps.get_opt(AFTER).await.unwrap().is_none());
    until_true("nothing of before is left on the host", SOON, async || {
        on_host::<Pod>(host, &tenant).await.is_empty()
    })
    .await;
    tenant
}

async fn clean_up(host: &TestCluster) {
    let volumes: Api<PersistentVolume> = Api::all(host.client.clone());
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let storage: Api<StorageClass> = Api::all(host.client.clone());
    let now = DeleteParams::default();
    for name in volume_names() {
        // That of the claim which was deleted with its tenant may be gone.
        let _ = volumes.delete(&name, &now).await;
    }
    classes.delete(NAME, &now).await.unwrap();
    storage.delete(NAME, &now).await.unwrap();
}
