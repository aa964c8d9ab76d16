//! Snapshots of what tenants store, and restores: everything of the snapshot is there again, and nothing else.

use crate::{
    encryption::{create_secret, read_secret, set_rules, until_encrypted},
    sleep::{create_namespace_as_eve, kill_control},
};
use berth_api::{
    SnapshotPhase, TenantClass, TenantSnapshot, TenantSnapshotSpec, TenantSnapshotStatus,
    conditions::{self, READY, RESTORED},
    labels,
};
use berth_control::apply::is_status;
use berth_tests::{
    command_line::CommandLine,
    files::example,
    objects::{apply, expect_rejected},
    sleep::{request, status},
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// Objects in the namespace of the tenant that is deleted and comes back.
const MAPS: usize = 150;
/// That namespace.
const WORK: &str = "work";

/// Applies the objects. An API server that is replaced meanwhile, as after a rotation of keys, ends connections.
async fn fill(tenant: &Tenant) {
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": WORK}});
    let maps = (0..MAPS).map(|number| {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("map-{number}")},
            "data": {"number": number.to_string()}})
    });
    for (namespace, object) in std::iter::once(("", namespace)).chain(maps.map(|map| (WORK, map))) {
        until("an object is applied", SOON, async || {
            let applied = apply(&tenant.client, namespace, &object).await;
            applied.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }
}

/// The numbers in the ConfigMaps of the namespace.
async fn read_maps(tenant: &Tenant) -> Result<BTreeMap<String, String>, String> {
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), WORK);
    let listed = maps.list(&ListParams::default()).await;
    let items = listed.map_err(|error| error.to_string())?.items;
    let numbers = items.into_iter().filter_map(|map| {
        let number = map.data?.remove("number")?;
        Some((map.metadata.name?, number))
    });
    Ok(numbers.collect())
}

async fn delete_work(tenant: &Tenant) {
    let namespaces: Api<Namespace> = Api::all(tenant.client.clone());
    until("the namespace is gone", SOON, async || {
        match namespaces.delete(WORK, &DeleteParams::default()).await {
            Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await;
}

fn snapshots(host: &TestCluster, namespace: &str) -> Api<TenantSnapshot> {
    Api::namespaced(host.client.clone(), namespace)
}

/// Takes a snapshot, and waits until it is completed.
async fn take(host: &TestCluster, tenant: &Tenant, name: &str) -> TenantSnapshotStatus {
    let spec = TenantSnapshotSpec {
        tenant_cluster_name: tenant.name.clone(),
        ttl: None,
    };
    let snapshots = snapshots(host, &tenant.namespace);
    let created = snapshots
        .create(&PostParams::default(), &TenantSnapshot::new(name, spec))
        .await;
    created.unwrap();
    until("the snapshot is completed", SOON, async || {
        let snapshot = snapshots.get(name).await.map_err(|error| error.to_string())?;
        match snapshot.phase() {
            SnapshotPhase::Completed => Ok(snapshot.status.unwrap_or_default()),
            _ => Err(format!("{:?}", snapshot.status)),
        }
    })
    .await
}

/// The file of a snapshot.
fn file(host: &TestCluster, status: &TenantSnapshotStatus) -> PathBuf {
    host.home().snapshots().join(status.location.as_ref().unwrap())
}

async fn ask(host: &TestCluster, tenant: &Tenant, snapshot: &str) {
    let patch = json!({"metadata": {"annotations": {labels::RESTORE_SNAPSHOT: snapshot}}});
    let tenants = host.tenants(&tenant.namespace);
    let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
    tenants.patch(&tenant.name, &params, &patch).await.unwrap();
}

/// Waits until the tenant was set back to a snapshot and is ready.
async fn until_restored(host: &TestCluster, tenant: &Tenant, snapshot: &str) {
    until(&format!("{} is set back", tenant.name), 2 * SOON, async || {
        let status = status(host, tenant).await?;
        let restore = status.restore.clone();
        let is_done =
            restore.is_some_and(|restore| restore.snapshot_name == snapshot && restore.completed_at.is_some());
        let is_met = |kind| conditions::is_true(&status.conditions, kind);
        if is_done && is_met(RESTORED) && is_met(READY) {
            Ok(())
        } else {
            Err(format!("{:?} {:?}", status.restore, status.conditions))
        }
    })
    .await;
}

/// Whether the last restore ended before it had begun, so that somebody has to ask again.
async fn is_interrupted(host: &TestCluster, tenant: &Tenant) -> Result<bool, String> {
    let cluster = host.tenants(&tenant.namespace).get(&tenant.name).await;
    let cluster = cluster.map_err(|error| error.to_string())?;
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let is_interrupted = conditions.any(|condition| condition.type_ == RESTORED && condition.reason == "Interrupted");
    Ok(is_interrupted && cluster.requested_restore().is_none())
}

/// Whether the tenant's API server answers that eve may not create a namespace.
async fn is_forbidden_to_eve(tenant: &Tenant, name: &str) -> bool {
    let created = create_namespace_as_eve(tenant, name).await;
    created.is_err_and(|error| is_status(&error, 403))
}

/// Deletes all snapshots of the namespace of a tenant, and the tenant.
async fn delete(host: &TestCluster, tenant: &Tenant) {
    let (snapshots, all) = (snapshots(host, &tenant.namespace), ListParams::default());
    snapshots
        .delete_collection(&DeleteParams::default(), &all)
        .await
        .unwrap();
    until("the snapshots are gone", SOON, async || {
        match snapshots.list(&all).await {
            Ok(list) if list.items.is_empty() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    tenant.delete(host).await;
}

/// Waits until a restore was refused for a reason.
async fn until_refused(host: &TestCluster, tenant: &Tenant, reason: &str) {
    until(&format!("the restore is refused: {reason}"), SOON, async || {
        let cluster = host.tenants(&tenant.namespace).get(&tenant.name).await;
        let cluster = cluster.map_err(|error| error.to_string())?;
        let status = cluster.status.clone().unwrap_or_default();
        let restored = status.conditions.iter().find(|condition| condition.type_ == RESTORED);
        match restored {
            Some(found) if found.reason == reason && cluster.requested_restore().is_none() => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
}

pub(crate) async fn a_tenant_is_set_back_to_a_snapshot_and_who_was_removed_has_no_right(host: Arc<TestCluster>) {
    let mut wanted = cluster("undo", &[]);
    wanted.spec.access = serde_json::from_value(json!({"admins": [{"kind": "User", "name": "eve"}]})).unwrap();
    let tenant = Tenant::create(&host, "snapshots-undo", &wanted).await;
    fill(&tenant).await;
    until("eve is an admin", SOON, async || {
        create_namespace_as_eve(&tenant, "before").await
    })
    .await;
    let (user, name) = (CommandLine::of_administrator(&host), "snapshots-undo/undo");
    let create = ["snapshot", "create", name, "--name", "kept", "--ttl", "24h", "--wait"];
    let (out, _) = user.run(&create, 0).await;
    let taken = snapshots(&host, &tenant.namespace).get("kept").await.unwrap();
    let taken = taken.status.unwrap();
    let objects = taken.objects.unwrap();
    assert_eq!(
        out,
        format!("TenantSnapshot snapshots-undo/kept is completed: {objects} objects.\n")
    );
    assert!(objects > MAPS as u64, "{taken:?}");
    assert!(file(&host, &taken).exists());

    let nobody = json!({"access": {"admins": []}});
    host.patch_tenant(&tenant.namespace, &tenant.name, &nobody).await;
    until_true("eve is no admin any more", SOON, async || {
        is_forbidden_to_eve(&tenant, "between").await
    })
    .await;
    delete_work(&tenant).await;
    let later = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}});
    apply(&tenant.client, "default", &later).await.unwrap();

    // In the snapshot she is an admin. She must have no right at any time, also not before control has written anything in the tenant.
    let is_admin = async {
        while create_namespace_as_eve(&tenant, "after").await.is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    ask(&host, &tenant, "kept").await;
    tokio::select! {
        () = until_restored(&host, &tenant, "kept") => {}
        () = is_admin => panic!("eve is an admin of the tenant that is set back"),
    }
    let maps = until("the objects are there again", SOON, async || read_maps(&tenant).await).await;
    assert_eq!(maps.len(), MAPS);
    assert_eq!(maps["map-7"], "7");
    let others: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
    assert!(
        others.get_opt("later").await.unwrap().is_none(),
        "it is newer than the snapshot"
    );
    assert!(is_forbidden_to_eve(&tenant, "after").await);
    // What was there before is saved, and the way back is open.
    let saved = status(&host, &tenant).await.unwrap().restore.unwrap().saved_as.unwrap();
    let restore = ["snapshot", "restore", name, &saved, "--wait"];
    let (_, err) = user.run(&restore, 2).await;
    assert!(
        err.contains("volumes whose reclaim policy is Delete") && err.contains("--yes"),
        "{err}"
    );
    let (out, err) = user.run(&[&restore[..], &["--yes"]].concat(), 0).await;
    assert_eq!(out, format!("TenantCluster {name} was set back to {saved}.\n"));
    assert!(err.contains("· Restored is False"), "{err}");
    until_restored(&host, &tenant, &saved).await;
    until("what is newer is there again", SOON, async || others.get("later").await).await;
    let file = file(&host, &taken);
    let (out, _) = user.run(&["snapshot", "list", name, "-o", "name"], 0).await;
    let listed: Vec<&str> = out.lines().collect();
    let of_saved = format!("tenantsnapshot.berth.dev/{saved}");
    assert!(
        listed.contains(&"tenantsnapshot.berth.dev/kept") && listed.contains(&of_saved.as_str()),
        "{out}"
    );
    let (out, _) = user.run(&["snapshot", "list", "-A"], 0).await;
    assert!(
        out.starts_with("NAMESPACE") && out.contains("\nsnapshots-undo "),
        "{out}"
    );
    let (out, _) = user.run(&["snapshot", "get", "snapshots-undo/kept"], 0).await;
    assert!(out.contains("Phase:      Completed"), "{out}");
    let delete_kept = ["snapshot", "delete", "snapshots-undo/kept"];
    let (out, _) = user.run(&delete_kept, 0).await;
    assert_eq!(out, "TenantSnapshot snapshots-undo/kept is deleted, with its file.\n");
    assert!(!file.exists());
    let (_, err) = user.run(&delete_kept, 3).await;
    assert!(err.contains("there is no TenantSnapshot snapshots-undo/kept"), "{err}");
    user.run(&[&delete_kept[..], &["--ignore-not-found"]].concat(), 0).await;
    delete(&host, &tenant).await;
}

pub(crate) async fn damaged_and_foreign_snapshots_are_refused_and_nothing_is_touched(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "snapshots-refused", &cluster("refused", &[])).await;
    let other = Tenant::create(&host, "snapshots-refused", &cluster("other", &[])).await;
    fill(&tenant).await;
    let taken = take(&host, &tenant, "damaged").await;
    take(&host, &other, "foreign").await;
    let path = file(&host, &taken);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let later = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "later"}});
    apply(&tenant.client, "default", &later).await.unwrap();
    for (snapshot, reason) in [
        ("damaged", "SnapshotDamaged"),
        ("foreign", "OtherTenant"),
        ("none", "SnapshotNotFound"),
    ] {
        ask(&host, &tenant, snapshot).await;
        until_refused(&host, &tenant, reason).await;
    }
    let user = CommandLine::of_administrator(&host);
    for (snapshot, status, expected) in [
        ("damaged", 1, "was not set back: the snapshot cannot be restored"),
        ("foreign", 1, "a snapshot of another tenant"),
        ("none", 3, "there is no TenantSnapshot snapshots-refused/none"),
    ] {
        let restore = [
            "snapshot",
            "restore",
            "snapshots-refused/refused",
            snapshot,
            "--yes",
            "--wait",
        ];
        let (_, err) = user.run(&restore, status).await;
        assert!(err.contains(expected), "{err}");
    }
    let maps: Api<ConfigMap> = Api::namespaced(tenant.client.clone(), "default");
    maps.get("later").await.unwrap();
    assert_eq!(read_maps(&tenant).await.unwrap().len(), MAPS);
    assert!(status(&host, &tenant).await.unwrap().restore.is_none());
    delete(&host, &tenant).await;
    other.delete(&host).await;
}

pub(crate) async fn control_is_killed_while_a_tenant_is_set_back(host: Arc<TestCluster>) {
    const CLASS: &str = "snapshots-killed";
    set_rules(&host, CLASS, &json!({})).await;
    let mut wanted = cluster("killed", &[]);
    wanted.spec.class_name = Some(CLASS.into());
    let tenant = Tenant::create(&host, CLASS, &wanted).await;
    let first = until_encrypted(&host, &tenant, None).await;
    request(&host, &tenant, labels::ENCRYPTION_KEY_ROTATION_REQUESTED_AT).await;
    let key = until_encrypted(&host, &tenant, Some(&first)).await;
    create_secret(&tenant, "from-the-snapshot").await;
    fill(&tenant).await;
    let taken = take(&host, &tenant, "kept").await;
    assert_eq!(taken.encryption_keys, [key]);
    delete_work(&tenant).await;
    for after in [&[0, 150][..], &[50, 300], &[400], &[900, 100]] {
        ask(&host, &tenant, "kept").await;
        until("the restore has begun", SOON, async || {
            let cluster = host.tenants(&tenant.namespace).get(&tenant.name).await;
            let cluster = cluster.map_err(|error| error.to_string())?;
            cluster
                .requested_restore()
                .map_or(Ok(()), |name| Err(format!("{name} {:?}", cluster.status)))
        })
        .await;
        kill_control(&host, after).await;
        until("the objects of the snapshot are there", 2 * SOON, async || {
            if is_interrupted(&host, &tenant).await? {
                // It was killed after it had removed the annotation, and before it had recorded the restore.
                ask(&host, &tenant, "kept").await;
            }
            match read_maps(&tenant).await?.len() {
                MAPS => Ok(()),
                other => Err(format!("{other} {:?}", status(&host, &tenant).await)),
            }
        })
        .await;
        until_restored(&host, &tenant, "kept").await;
        let secret = until("the Secret is read", SOON, async || read_secret(&tenant).await).await;
        assert_eq!(secret, "from-the-snapshot");
        delete_work(&tenant).await;
    }
    delete(&host, &tenant).await;
}

pub(crate) async fn schemas_reject_invalid_snapshots(host: Arc<TestCluster>) {
    const NAMESPACE: &str = "snapshots-schemas";
    ensure_namespace(&host.client, NAMESPACE).await;
    let object = |kind: &str, spec: Value| {
        let metadata = json!({"name": "snapshots-schemas"});
        json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    let snapshot = |spec: Value| (NAMESPACE, object("TenantSnapshot", spec));
    let class = |snapshots: Value| ("", object("TenantClass", json!({ "snapshots": snapshots })));
    for ((namespace, object), expected) in [
        (snapshot(json!({})), "spec.tenantClusterName"),
        (snapshot(json!({"tenantClusterName": "A"})), "spec.tenantClusterName"),
        (
            snapshot(json!({"tenantClusterName": "a", "ttl": "59s"})),
            "ttl must be at least 1m",
        ),
        (snapshot(json!({"tenantClusterName": "a", "ttl": "a day"})), "spec.ttl"),
        (class(json!({"max": 1001})), "spec.snapshots.max"),
        (
            class(json!({"schedule": {"cron": "@daily"}})),
            "spec.snapshots.schedule.cron",
        ),
        (
            class(json!({"schedule": {"cron": "0 2 * * *", "timeZone": "../etc"}})),
            "spec.snapshots.schedule.timeZone",
        ),
        (
            class(json!({"schedule": {"cron": "0 2 * * *", "keep": 0}})),
            "spec.snapshots.schedule.keep",
        ),
    ] {
        expect_rejected(&host.client, namespace, &object, expected).await;
    }
    let (namespace, of_nobody) = snapshot(json!({"tenantClusterName": "nobody"}));
    apply(&host.client, namespace, &of_nobody).await.unwrap();
    let (namespace, of_another) = snapshot(json!({"tenantClusterName": "another"}));
    let error = apply(&host.client, namespace, &of_another).await.unwrap_err();
    assert!(error.to_string().contains("is immutable"), "{error}");
    let snapshots = snapshots(&host, NAMESPACE);
    snapshots
        .delete("snapshots-schemas", &DeleteParams::default())
        .await
        .unwrap();
}

pub(crate) async fn the_examples_of_snapshots_are_valid(host: Arc<TestCluster>) {
    const NAMESPACE: &str = "snapshots-examples";
    ensure_namespace(&host.client, NAMESPACE).await;
    let params = PatchParams::apply("berth-tests").dry_run();
    let mut wanted = example::<TenantSnapshot>("tenants/snapshot.yaml").remove(0);
    wanted.metadata.namespace = Some(NAMESPACE.into());
    let snapshots = snapshots(&host, NAMESPACE);
    let stored = snapshots.patch("before-upgrade", &params, &Patch::Apply(&wanted)).await;
    assert_eq!(stored.unwrap().spec, wanted.spec, "nothing was pruned or defaulted");
    let wanted = example::<TenantClass>("classes/snapshots.yaml").remove(0);
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let stored = classes.patch("snapshots", &params, &Patch::Apply(&wanted)).await;
    let (stored, wanted) = (stored.unwrap().spec.snapshots, wanted.spec.snapshots);
    assert_eq!(stored, wanted, "nothing was pruned or defaulted");
}
