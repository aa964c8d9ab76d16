//! A gateway that was taken over, whose identity has far more rights than the chart gives it: the policy leaves one annotation.

use super::{dry_run, expect_denied, rbac, tenant_clusters::request, with};
use berth_api::{HostNodePool, TenantClass, TenantClassSpec, TenantCluster, labels};
use berth_tests::{
    gateway::USER,
    tenant::{ensure_namespace, patient},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const NAMESPACE: &str = "adv-gateway";
const NAME: &str = "asleep";
const ROLE: &str = "adv-gateway";

/// Every right on everything of Berth but to bypass the policies.
async fn grant(admin: &Client) {
    let resources = [
        "tenantclusters",
        "tenantclusters/status",
        "tenantclasses",
        "hostnodepools",
    ];
    let rules = json!([{"apiGroups": ["berth.dev"], "resources": resources, "verbs": ["*"]}]);
    rbac::grant(admin, "", ROLE, &rbac::user(USER), &rules).await;
}

pub(crate) async fn a_stolen_gateway_token_sets_one_annotation(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, NAMESPACE).await;
    grant(&host.client).await;
    let by_admin = host.tenants(NAMESPACE);
    let mut asleep = request(NAME, None, &[]);
    asleep.metadata.labels = Some([("team".to_owned(), "a".to_owned())].into());
    asleep.metadata.annotations = Some([("example.com/note".to_owned(), "keep".to_owned())].into());
    by_admin.create(&PostParams::default(), &asleep).await.unwrap();
    let client = patient(&host.kubeconfig_for(USER, &[]).unwrap()).await;
    let clusters = Api::<TenantCluster>::namespaced(client.clone(), NAMESPACE);
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = async |patch: &Value| clusters.patch(NAME, &params, &Patch::Merge(patch)).await;
    let annotate = |value: Value| json!({"metadata": {"annotations": {labels::WAKE_REQUESTED_AT: value}}});

    until("the rights hold", SOON, async || {
        change(&annotate("2026-11-23T10:00:00.000001Z".into())).await
    })
    .await;
    until("the policy is enforced", SOON, async || {
        match change(&json!({"metadata": {"labels": {"team": "b"}}})).await {
            Err(_) => Ok(()),
            Ok(_) => Err("a change of a label was allowed"),
        }
    })
    .await;

    changes(&clusters, &change).await;
    for wrong in [
        "soon",
        "2026-11-23T10:00:00",
        "2026-11-23T10:00:00+01:00",
        "9".repeat(10_000).as_str(),
    ] {
        expect_denied("must be a time in UTC", change(&annotate(wrong.into())).await);
    }
    other_objects(&client, &clusters).await;

    // What is allowed, for good and twice.
    for at in ["2026-11-23T10:00:00Z", "2026-11-23T10:00:10.5Z"] {
        let patch = Patch::Merge(annotate(at.into()));
        let stored = clusters.patch(NAME, &PatchParams::default(), &patch).await.unwrap();
        assert_eq!(stored.metadata.annotations.unwrap()[labels::WAKE_REQUESTED_AT], at);
    }
    rbac::revoke(&host.client, ROLE).await;
    by_admin.delete(NAME, &DeleteParams::default()).await.unwrap();
}

/// Changes of the TenantCluster, each of which may come together with the annotation.
async fn changes(clusters: &Api<TenantCluster>, change: &impl AsyncFn(&Value) -> kube::Result<TenantCluster>) {
    let metadata = |more: Value| json!({"metadata": more});
    let wake = metadata(json!({"annotations": {labels::WAKE_REQUESTED_AT: "2026-11-23T10:00:00Z"}}));
    for (message, denied) in [
        ("no field of a TenantCluster", json!({"spec": {"version": "v1.99.1"}})),
        ("no field of a TenantCluster", json!({"spec": {"ttl": "1h"}})),
        (
            "no field of a TenantCluster",
            metadata(json!({"labels": {"team": "b"}})),
        ),
        (
            "no field of a TenantCluster",
            metadata(json!({"labels": {"team": null}})),
        ),
        ("no field of a TenantCluster", metadata(json!({"labels": null}))),
        (
            "no field of a TenantCluster",
            metadata(json!({"finalizers": ["example.com/stay"]})),
        ),
        (
            "no field of a TenantCluster",
            metadata(json!({"ownerReferences": [
                {"apiVersion": "v1", "kind": "ConfigMap", "name": "none", "uid": "00000000-0000-0000-0000-000000000000"}
            ]})),
        ),
        (
            "no annotation of a TenantCluster",
            metadata(json!({"annotations": {"example.com/note": "changed"}})),
        ),
        (
            "no annotation of a TenantCluster",
            metadata(json!({"annotations": {"example.com/note": null}})),
        ),
        (
            "no annotation of a TenantCluster",
            metadata(json!({"annotations": {"example.com/other": "new"}})),
        ),
    ] {
        expect_denied(message, change(&denied).await);
        expect_denied(message, change(&with(&denied, &wake)).await);
    }
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::apply("berth-gateway").force()
    };
    let mut applied = serde_json::to_value(request(NAME, None, &[])).unwrap();
    applied["spec"]["version"] = "v1.99.1".into();
    let outcome = clusters.patch(NAME, &params, &Patch::Apply(&applied)).await;
    expect_denied("TenantCluster", outcome);
}

/// The status, creation and deletion, and other kinds.
async fn other_objects(client: &Client, clusters: &Api<TenantCluster>) {
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let status = Patch::Merge(json!({"status": {"phase": "Ready"}}));
    // Another policy may be the first that denies it.
    expect_denied("TenantCluster", clusters.patch_status(NAME, &params, &status).await);
    let annotation =
        Patch::Merge(json!({"metadata": {"annotations": {labels::WAKE_REQUESTED_AT: "2026-11-23T10:00:00Z"}}}));
    expect_denied("TenantCluster", clusters.patch_status(NAME, &params, &annotation).await);
    expect_denied("", clusters.create(&dry_run(), &request("mine", None, &[])).await);
    let delete = DeleteParams {
        dry_run: true,
        ..DeleteParams::default()
    };
    let only = "may only update TenantClusters";
    expect_denied(only, clusters.delete(NAME, &delete).await);
    let labelled = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    let classes: Api<TenantClass> = Api::all(client.clone());
    let class = TenantClass::new("mine", TenantClassSpec::default());
    expect_denied(only, classes.create(&dry_run(), &class).await);
    let pools: Api<HostNodePool> = Api::all(client.clone());
    expect_denied(only, pools.patch("h100", &params, &labelled).await);
    expect_denied(only, pools.delete("h100", &delete).await);
}
