//! TenantClusters of a user who may write them, and who may use one class and one pool.

use super::{dry_run, expect_denied, rbac, with};
use berth_api::{NodeGroup, SnapshotTrigger, TenantCluster, TenantSnapshot, labels};
use berth_tests::{
    tenant::{cluster, ensure_namespace, patient},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};

pub(super) const USER: &str = "team-member";
const NAMESPACE: &str = "adv-use";
const CLASS_DENIED: &str = "spec.className";
const POOL_DENIED: &str = "spec.nodeGroups[].poolName";
const FINALIZER_DENIED: &str = "metadata.finalizers";

/// A request of the team. It is never accepted by control: there is no such version.
pub(super) fn request(name: &str, class: Option<&str>, pools: &[&str]) -> TenantCluster {
    let mut request = cluster(name, &[]);
    request.spec.version = Some("v1.99.0".into());
    request.spec.class_name = class.map(ToOwned::to_owned);
    let groups = pools.iter().enumerate();
    request.spec.node_groups = groups
        .map(|(index, pool)| NodeGroup::private(&format!("g{index}"), pool, 1))
        .collect();
    request
}

/// A role in a namespace, and its binding to the user. The rules name cluster-scoped objects: RBAC looks at the namespace of the
/// question.
pub(super) async fn grant(admin: &Client, namespace: &str, name: &str, rules: &Value) {
    rbac::grant(admin, namespace, name, &rbac::user(USER), rules).await;
}

pub(super) fn rule(resource: &str, verb: &str, names: &[&str]) -> Value {
    let rule = json!({"apiGroups": ["berth.dev"], "resources": [resource], "verbs": [verb]});
    if names.is_empty() {
        return rule;
    }
    super::with(&rule, &json!({"resourceNames": names}))
}

pub(crate) async fn a_user_names_only_classes_and_pools_that_rbac_lets_it_use(host: Arc<TestCluster>) {
    let admin = &host.client;
    let (other, all) = ("adv-use-other", "adv-use-all");
    for namespace in [NAMESPACE, other, all] {
        ensure_namespace(admin, namespace).await;
        grant(admin, namespace, "editor", &json!([rule("tenantclusters", "*", &[])])).await;
    }
    let named = json!([
        rule("tenantclasses", "use", &["training"]),
        rule("hostnodepools", "use", &["h100"])
    ]);
    grant(admin, NAMESPACE, "use", &named).await;
    let every = json!([rule("tenantclasses", "use", &[]), rule("hostnodepools", "use", &[])]);
    grant(admin, all, "use", &every).await;
    let client = patient(&host.kubeconfig_for(USER, &[]).unwrap()).await;
    let of = |namespace: &str| Api::<TenantCluster>::namespaced(client.clone(), namespace);
    let clusters = of(NAMESPACE);
    let create = async |clusters: &Api<TenantCluster>, class: Option<&str>, pools: &[&str]| {
        clusters.create(&dry_run(), &request("new", class, pools)).await
    };
    until("the rights hold", SOON, async || {
        create(&clusters, Some("training"), &["h100", "h100"]).await?;
        create(&of(all), None, &["h100"]).await
    })
    .await;

    // The API server compiles the policies one after the other once they are installed.
    until("the policy is enforced", SOON, async || {
        match create(&clusters, Some("gold"), &[]).await {
            Err(_) => Ok(()),
            Ok(_) => Err("a class without the right was allowed"),
        }
    })
    .await;

    for class in [Some("gold"), Some("default"), None] {
        expect_denied(CLASS_DENIED, create(&clusters, class, &[]).await);
    }
    for pools in [&["l40s"][..], &["h100", "l40s"], &["no-such-pool"]] {
        expect_denied(POOL_DENIED, create(&clusters, Some("training"), pools).await);
    }
    // Rights in one namespace are none in another.
    expect_denied(CLASS_DENIED, create(&of(other), Some("training"), &[]).await);

    let many: Vec<String> = (0..32).map(|index| format!("pool-{index}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    create(&of(all), Some("gold"), &many).await.unwrap();
    expect_denied(POOL_DENIED, create(&clusters, Some("training"), &many[..16]).await);
    expect_denied("at most 16", create(&clusters, Some("training"), &["h100"; 17]).await);

    changes(&host, &clusters).await;
    for namespace in [NAMESPACE, other, all] {
        for name in ["editor", "use"] {
            let api: Api<k8s_openapi::api::rbac::v1::RoleBinding> = Api::namespaced(admin.clone(), namespace);
            let _ = api.delete(name, &DeleteParams::default()).await;
        }
    }
}

/// What the platform gave may be changed by the team; names that it adds need the right.
async fn changes(host: &TestCluster, clusters: &Api<TenantCluster>) {
    let by_admin = host.tenants(NAMESPACE);
    by_admin
        .create(&PostParams::default(), &request("given", Some("gold"), &["l40s"]))
        .await
        .unwrap();
    by_admin
        .create(&PostParams::default(), &request("plain", None, &[]))
        .await
        .unwrap();
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = async |name: &str, patch: &Value| clusters.patch(name, &params, &Patch::Merge(patch)).await;
    let groups = |pools: &[&str]| {
        let groups = request("given", None, pools).spec.node_groups;
        json!({"spec": {"nodeGroups": groups}})
    };
    for allowed in [
        json!({"metadata": {"labels": {"team": "a"}}}),
        json!({"spec": {"className": "training"}}),
        groups(&["l40s", "l40s", "h100"]),
        groups(&[]),
    ] {
        change("given", &allowed).await.unwrap();
    }
    // Without a class it had `default` all along.
    change("plain", &json!({"spec": {"className": "default"}}))
        .await
        .unwrap();
    for (message, denied) in [
        (CLASS_DENIED, json!({"spec": {"className": "silver"}})),
        (CLASS_DENIED, json!({"spec": {"className": null}})),
        (POOL_DENIED, groups(&["l40s", "cpu"])),
    ] {
        expect_denied(message, change("given", &denied).await);
    }
    let replaced = request("given", Some("silver"), &["l40s"]);
    let replaced = serde_json::to_value(replaced).unwrap();
    let applied = clusters
        .patch(
            "given",
            &PatchParams {
                dry_run: true,
                ..PatchParams::apply("team").force()
            },
            &Patch::Apply(&replaced),
        )
        .await;
    expect_denied(CLASS_DENIED, applied);
    clusters_that_control_could_not_write(&by_admin, clusters).await;
    // Without it, the object would be gone before what was created for it.
    let finalizers = |names: &[&str]| json!({"metadata": {"finalizers": names}});
    let by_platform = PatchParams::default();
    let set = Patch::Merge(finalizers(&[labels::FINALIZER, "example.com/other"]));
    by_admin.patch("given", &by_platform, &set).await.unwrap();
    change("given", &finalizers(&[labels::FINALIZER])).await.unwrap();
    let none: &[&str] = &[];
    for left in [none, &["example.com/other"]] {
        expect_denied(FINALIZER_DENIED, change("given", &finalizers(left)).await);
    }
    let remove = Patch::Merge(finalizers(&[]));
    by_admin.patch("given", &by_platform, &remove).await.unwrap();
    for name in ["given", "plain"] {
        by_admin.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// A TenantCluster of 1.5 MiB has no status, and cannot be deleted: its class would have no effect.
async fn clusters_that_control_could_not_write(by_admin: &Api<TenantCluster>, clusters: &Api<TenantCluster>) {
    let annotated = |length: usize| json!({"metadata": {"annotations": {"example.com/a": "a".repeat(length)}}});
    let labelled = || {
        let all = (0..1000).map(|n| (format!("{}.example.com/{n}", "a".repeat(63)), json!("a".repeat(63))));
        json!({"metadata": {"labels": all.collect::<serde_json::Map<_, _>>()}})
    };
    let issuers = json!({"spec": {"authentication": {"jwt": [{
        "issuer": {"url": "https://example.com", "audiences": ["a"], "certificateAuthority": "a".repeat(30_000)},
        "claimMappings": {"username": {"expression": "a".repeat(2_000)}},
    }]}}});
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = async |patch: &Value| clusters.patch("plain", &dry_run, &Patch::Merge(patch)).await;
    change(&annotated(100_000)).await.unwrap();
    change(&issuers).await.unwrap();
    for denied in [annotated(200_000), with(&annotated(180_000), &issuers)] {
        expect_denied("a TenantCluster may have at most", change(&denied).await);
    }
    // Their keys are in the managed fields as well, so that either limit may answer.
    expect_denied("", change(&labelled()).await);
    // One from before the limit may get smaller.
    let params = PatchParams::default();
    by_admin
        .patch("plain", &params, &Patch::Merge(annotated(210_000)))
        .await
        .unwrap();
    change(&annotated(205_000)).await.unwrap();
    expect_denied("a TenantCluster may have at most", change(&annotated(215_000)).await);
    let none = json!({"metadata": {"annotations": null}});
    by_admin.patch("plain", &params, &Patch::Merge(none)).await.unwrap();

    // API servers keep who wrote which field.
    let many: serde_json::Map<_, _> = (0..1000).map(|n| (format!("example.com/key-{n}"), json!(""))).collect();
    let applied = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "plain", "annotations": many}});
    let mut denied = None;
    for manager in 0..20 {
        let params = PatchParams::apply(&format!("manager-{manager}"));
        denied = clusters.patch("plain", &params, &Patch::Apply(&applied)).await.err();
        if denied.is_some() {
            break;
        }
    }
    let denied = denied
        .expect("20 writers of 1,000 annotations each were allowed")
        .to_string();
    assert!(denied.contains("too many writers"), "{denied}");
}

/// A user with every right on TenantClusters of its namespace, their status included.
pub(crate) async fn a_user_gives_its_tenant_no_quota(host: Arc<TestCluster>) {
    let namespace = "adv-quota";
    ensure_namespace(&host.client, namespace).await;
    let rules = json!([
        rule("tenantclusters", "*", &[]),
        rule("tenantclusters/status", "*", &[]),
        rule("tenantsnapshots", "*", &[]),
        rule("tenantsnapshots/status", "*", &[]),
        rule("tenantclasses", "use", &[])
    ]);
    grant(&host.client, namespace, "editor", &rules).await;
    let client = patient(&host.kubeconfig_for(USER, &[]).unwrap()).await;
    let snapshots = Api::<TenantSnapshot>::namespaced(client.clone(), namespace);
    let clusters = Api::<TenantCluster>::namespaced(client, namespace);
    until("the rights hold", SOON, async || {
        clusters.create(&dry_run(), &request("rich", None, &[])).await
    })
    .await;
    let quota = json!({"projectName": "p", "reserved": {"tenantclusters": 1}});
    let mut with_status = request("rich", None, &[]);
    with_status.status = serde_json::from_value(json!({"quota": quota})).unwrap();
    clusters.create(&PostParams::default(), &with_status).await.unwrap();
    let created = clusters.get("rich").await.unwrap();
    assert!(created.status.is_none_or(|status| status.quota.is_none()));

    let params = dry_run_of_a_patch();
    let is_enforced = async || {
        let patch = Patch::Merge(json!({"status": {"version": "v1.99.0"}}));
        match clusters.patch_status("rich", &params, &patch).await {
            Err(_) => Ok(()),
            Ok(_) => Err("a change of the status was allowed"),
        }
    };
    until("the policy is enforced", SOON, is_enforced).await;
    for status in [
        json!({"quota": quota}),
        json!({"controlPlaneNamespace": "berth-rich-cp"}),
        json!({"conditions": []}),
    ] {
        let patch = json!({"status": status});
        let patched = clusters.patch_status("rich", &params, &Patch::Merge(&patch)).await;
        expect_denied("only the platform may write the status", patched);
    }
    snapshots_are_small_and_their_status_is_control_s(&snapshots).await;
    nobody_says_why_a_snapshot_was_taken(&Api::namespaced(host.client.clone(), namespace), &snapshots).await;
    nobody_takes_the_finalizer_from_a_snapshot(&Api::namespaced(host.client.clone(), namespace), &snapshots).await;
    control_writes_the_status_whoever_owns_it(&clusters, "rich").await;
    control_removes_what_another_has_applied(&host.tenants(namespace), "rich").await;
    clusters.delete("rich", &DeleteParams::default()).await.unwrap();
}

/// Who can write into the object store as well could choose what is restored, and many large objects would take the memory of control.
async fn snapshots_are_small_and_their_status_is_control_s(snapshots: &Api<TenantSnapshot>) {
    let snapshot: TenantSnapshot = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot", "metadata": {"name": "forged"},
        "spec": {"tenantClusterName": "rich"},
    }))
    .unwrap();
    snapshots.create(&PostParams::default(), &snapshot).await.unwrap();
    let params = dry_run_of_a_patch();
    let forged = Patch::Merge(json!({"status": {"phase": "Completed", "checksum": "ab"}}));
    let patched = snapshots.patch_status("forged", &params, &forged).await;
    expect_denied("only the platform may write the status", patched);
    let annotate = async |length: usize| {
        let patch = json!({"metadata": {"annotations": {"example.com/a": "a".repeat(length)}}});
        snapshots.patch("forged", &params, &Patch::Merge(patch)).await
    };
    annotate(10_000).await.unwrap();
    expect_denied("a TenantSnapshot may have at most", annotate(20_000).await);
    snapshots.delete("forged", &DeleteParams::default()).await.unwrap();
}

/// Control deletes the oldest that are of a schedule or of restores, by their label.
async fn nobody_says_why_a_snapshot_was_taken(of_platform: &Api<TenantSnapshot>, snapshots: &Api<TenantSnapshot>) {
    const DENIED: &str = "only the platform may set, change or remove berth.dev/snapshot-trigger";
    let params = dry_run_of_a_patch();
    let place = ("adv-quota", "rich");
    let labelled = |entries: Value| Patch::Merge(json!({"metadata": {"labels": entries}}));
    for trigger in [SnapshotTrigger::Schedule, SnapshotTrigger::BeforeRestore] {
        let forged = TenantSnapshot::of_berth("forged", place, trigger);
        expect_denied(DENIED, snapshots.create(&dry_run(), &forged).await);
    }
    let by_hand = TenantSnapshot::of_berth("by-hand", place, SnapshotTrigger::Manual);
    snapshots.create(&PostParams::default(), &by_hand).await.unwrap();
    let of_schedule = TenantSnapshot::of_berth("nightly", place, SnapshotTrigger::Schedule);
    of_platform.create(&PostParams::default(), &of_schedule).await.unwrap();
    for (name, trigger) in [
        ("by-hand", json!("schedule")),
        ("by-hand", json!("before-restore")),
        ("nightly", json!("before-restore")),
        ("nightly", Value::Null),
    ] {
        let patch = labelled(json!({labels::SNAPSHOT_TRIGGER: trigger}));
        expect_denied(DENIED, snapshots.patch(name, &params, &patch).await);
    }
    for name in ["by-hand", "nightly"] {
        let patch = labelled(json!({"example.com/reviewed": "yes"}));
        snapshots.patch(name, &params, &patch).await.unwrap();
        snapshots.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Its file would stay in the object store, beyond every limit.
async fn nobody_takes_the_finalizer_from_a_snapshot(
    of_platform: &Api<TenantSnapshot>,
    snapshots: &Api<TenantSnapshot>,
) {
    let finalizers = |names: &[&str]| Patch::Merge(json!({"metadata": {"finalizers": names}}));
    let snapshot = TenantSnapshot::of_berth("kept", ("adv-quota", "rich"), SnapshotTrigger::Manual);
    of_platform.create(&PostParams::default(), &snapshot).await.unwrap();
    let (by_platform, params) = (PatchParams::default(), dry_run_of_a_patch());
    let set = finalizers(&[labels::SNAPSHOT_FINALIZER]);
    of_platform.patch("kept", &by_platform, &set).await.unwrap();
    let more = finalizers(&[labels::SNAPSHOT_FINALIZER, "example.com/other"]);
    snapshots.patch("kept", &params, &more).await.unwrap();
    let none: &[&str] = &[];
    for left in [none, &["example.com/other"]] {
        let denied = "only the platform may remove berth.dev/snapshot-cleanup";
        expect_denied(denied, snapshots.patch("kept", &params, &finalizers(left)).await);
    }
    of_platform
        .patch("kept", &by_platform, &finalizers(none))
        .await
        .unwrap();
    of_platform.delete("kept", &DeleteParams::default()).await.unwrap();
}

/// Who may change an object may change who has written its status as well. By server-side apply, control would remove what that says is control's and
/// what it does not send.
async fn control_writes_the_status_whoever_owns_it(clusters: &Api<TenantCluster>, name: &str) {
    let written = async || {
        let is_written = async || {
            let cluster = clusters.get(name).await.unwrap();
            let status = cluster.status.unwrap_or_default();
            if status.observed_generation == cluster.metadata.generation && !status.conditions.is_empty() {
                Ok(cluster.metadata.managed_fields.unwrap_or_default())
            } else {
                Err("the status is not written yet")
            }
        };
        let entries = until("control has written the status", SOON, is_written).await;
        let status = json!(clusters.get(name).await.unwrap().status);
        let fields: BTreeSet<String> = { status.as_object().into_iter().flatten() }
            .map(|(field, _)| field.clone())
            .collect();
        (entries, fields)
    };
    let (entries, fields) = written().await;
    let is_of_status = |entry: &ManagedFieldsEntry| entry.subresource.as_deref() == Some("status");
    let own = entries.iter().find(|entry| is_of_status(entry)).unwrap();
    let forge = |manager: &str, owned: Value| ManagedFieldsEntry {
        manager: Some(manager.into()),
        operation: Some("Apply".into()),
        fields_v1: serde_json::from_value(json!({"f:status": owned})).unwrap(),
        ..own.clone()
    };
    let mut none = entries.clone();
    none.retain(|entry| !is_of_status(entry));
    let mut others = none.clone();
    others.push(forge("berth-control", json!({"f:phase": {}, "f:className": {}})));
    let mut pinned = none.clone();
    pinned.push(forge("pin", json!({"f:phase": {}, "f:conditions": {}})));
    let forged = [json!(none), json!(others), json!(pinned), json!([{}])];
    for (number, entries) in forged.into_iter().enumerate() {
        let patch = json!({"metadata": {"managedFields": entries}});
        clusters
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap();
        let next = json!({"spec": {"version": format!("v1.99.{}", number + 1)}});
        clusters
            .patch(name, &PatchParams::default(), &Patch::Merge(next))
            .await
            .unwrap();
        let now = written().await.1;
        assert!(fields.is_subset(&now), "{now:?} after {entries}");
    }
}

/// As somebody can also say of a violation that control has recorded: by server-side apply, control would not remove it.
async fn control_removes_what_another_has_applied(clusters: &Api<TenantCluster>, name: &str) {
    let violation = json!({"reason": "Pinned", "object": "o", "message": "m", "since": "2026-01-01T00:00:00Z"});
    let applied = json!({
        "apiVersion": TenantCluster::api_version(&()), "kind": TenantCluster::kind(&()), "metadata": {"name": name},
        "status": {"violations": [violation]},
    });
    let params = PatchParams::apply("pin");
    clusters
        .patch_status(name, &params, &Patch::Apply(&applied))
        .await
        .unwrap();
    until("control removes the violation", SOON, async || {
        let status = clusters.get(name).await.unwrap().status.unwrap_or_default();
        if status.violations.is_empty() {
            Ok(())
        } else {
            Err("the violation is still there")
        }
    })
    .await;
}

fn dry_run_of_a_patch() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}
