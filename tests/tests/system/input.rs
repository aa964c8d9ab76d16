//! Wrong input is refused at the earliest place, with a message that says what to do, and leaves nothing half-made.

use berth_api::{Phase, conditions, labels, names::TenantId};
use berth_tests::{
    objects::{apply, expect_rejected},
    tenant::{cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

fn tenant(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": name}, "spec": spec})
}

fn group(name: &str, count: i64) -> Value {
    json!({"name": name, "poolName": "h100", "replicas": count})
}

fn group_of(more: &Value) -> Value {
    let mut group = json!({"name": "a", "poolName": "h100"});
    for (key, value) in more.as_object().into_iter().flatten() {
        group[key] = value.clone();
    }
    tenant("ok", &json!({"nodeGroups": [group]}))
}

/// Each mode of a node group has fields of its own.
async fn groups_have_the_fields_of_their_mode(host: &TestCluster) {
    for (group, expected) in [
        (json!({}), "mode Private needs replicas"),
        (
            json!({"replicas": 1, "maxReplicas": 2}),
            "mode Dynamic needs maxReplicas",
        ),
        (json!({"mode": "Dynamic"}), "mode Dynamic needs maxReplicas"),
        (
            json!({"mode": "Dynamic", "maxReplicas": 2, "replicas": 2}),
            "mode Private needs replicas",
        ),
        (
            json!({"mode": "Dynamic", "minReplicas": 3, "maxReplicas": 2}),
            "minReplicas must not be greater than maxReplicas",
        ),
        (json!({"mode": "Shared", "replicas": 1}), "Private needs replicas"),
    ] {
        let error = apply(&host.client, "input-schema", &group_of(&group)).await;
        let error = error.expect_err(&group.to_string()).to_string();
        assert!(error.contains(expected), "{expected:?} is not in: {error}");
    }
}

pub(crate) async fn schemas_reject_invalid_tenants(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, "input-schema").await;
    groups_have_the_fields_of_their_mode(&host).await;
    let long = "a".repeat(41);
    let refused = [
        (tenant("1st", &json!({})), "starts with a letter"),
        (tenant(&long, &json!({})), "at most 40 characters"),
        (tenant("a.b", &json!({})), "DNS label"),
        (tenant("ok", &json!({"version": "1.37.1"})), "spec.version"),
        (tenant("ok", &json!({"version": "v1.37"})), "spec.version"),
        (tenant("ok", &json!({"version": "v1.37.1; rm -rf /"})), "spec.version"),
        (
            tenant("ok", &json!({"nodeGroups": [group("a", -1)]})),
            "greater than or equal to 0",
        ),
        (
            tenant("ok", &json!({"nodeGroups": [group("a", 1025)]})),
            "less than or equal to 1024",
        ),
        (
            tenant("ok", &json!({"nodeGroups": [group("A b", 1)]})),
            "spec.nodeGroups[0].name",
        ),
        (
            tenant("ok", &json!({"nodeGroups": [group("a", 1), group("a", 1)]})),
            "a",
        ),
        (
            tenant(
                "ok",
                &json!({"nodeGroups": [{"name": "a", "poolName": "../etc", "replicas": 1}]}),
            ),
            "spec.nodeGroups[0].poolName",
        ),
        (
            tenant(
                "ok",
                &json!({"nodeGroups": [{"name": "a", "poolName": "h100", "replicas": 1, "mode": "Stolen"}]}),
            ),
            "mode",
        ),
        (tenant("ok", &json!({"nodeGroups": "all"})), "nodeGroups"),
        (
            tenant(
                "ok",
                &json!({"network": {"egress": {"allow": [{"cidr": "10.0.0.1/8"}]}}}),
            ),
            "cidr must be a network by its first address",
        ),
        (
            tenant(
                "ok",
                &json!({"network": {"egress": {"allow": [{"cidr": "::ffff:10.0.0.0/104"}]}}}),
            ),
            "cidr must be a network",
        ),
        (
            tenant(
                "ok",
                &json!({"network": {"egress": {"allow": [{"cidr": "10.0.0.0/8", "ports": [0]}]}}}),
            ),
            "greater than or equal to 1",
        ),
        (
            tenant(
                "ok",
                &json!({"network": {"ingress": {"allow": [{"cidr": "10.0.0.0/8", "namespace": "a"}]}}}),
            ),
            "exactly one of cidr and namespace",
        ),
    ];
    for (object, expected) in refused {
        expect_rejected(&host.client, "input-schema", &object, expected).await;
    }
    let pool = |name: &str, spec: Value| json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": name}, "spec": spec});
    let refused = [
        (pool("all", json!({"nodeSelector": {}})), "nodeSelector"),
        (
            pool("own", json!({"nodeSelector": {"berth.dev/tenant": "x"}})),
            "set by Berth itself",
        ),
        (
            pool("res", json!({"nodeSelector": {"a": "b"}, "gpuResourceName": "gpu"})),
            "spec.gpuResourceName",
        ),
        (pool("none", json!({"nodeSelector": {"a": "b"}, "modes": []})), "modes"),
        (pool("UP", json!({"nodeSelector": {"a": "b"}})), "UP"),
    ];
    for (object, expected) in refused {
        expect_rejected(&host.client, "", &object, expected).await;
    }
}

pub(crate) async fn impossible_spec_is_reported_and_creates_nothing(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, "input-accept").await;
    let tenants = host.tenants("input-accept");
    let mut old = cluster("old", &[]);
    old.spec.version = Some("v1.20.0".into());
    let cases = [
        (old, "UnsupportedVersion", "set spec.version to"),
        (
            cluster("nowhere", &[("a", "b200", 1)]),
            "UnknownPool",
            "there is no HostNodePool \"b200\"; use one of ",
        ),
        (
            cluster("greedy", &[("a", "h100", 900)]),
            "NotEnoughNodes",
            "of pool h100, which has 5",
        ),
    ];
    for (cluster, reason, expected) in cases {
        let created = tenants.create(&PostParams::default(), &cluster).await.unwrap();
        let name = created.name_any();
        let refused = until(&format!("{name} has the reason {reason}"), SOON, async || {
            let cluster = tenants.get(&name).await.map_err(|error| error.to_string())?;
            let status = cluster.status.clone().unwrap_or_default();
            match status.conditions.iter().find(|c| c.type_ == conditions::ACCEPTED) {
                Some(condition) if condition.reason == reason => Ok((cluster.clone(), condition.message.clone())),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert!(refused.1.contains(expected), "{}", refused.1);
        let status = refused.0.status.clone().unwrap();
        assert_eq!(status.phase, Some(Phase::Pending));
        assert!(refused.0.finalizers().is_empty() && status.endpoint.is_none());
        let id = TenantId::new(&name, &created.uid().unwrap());
        let namespaces: Api<Namespace> = Api::all(host.client.clone());
        let made = namespaces
            .list(&ListParams::default().labels(&format!("{}={}", labels::TENANT, id.slug())))
            .await
            .unwrap();
        assert!(
            made.items.is_empty(),
            "namespaces were made for a spec that cannot be carried out"
        );
        // Such an object is gone at once when it is deleted.
        tenants.delete(&name, &DeleteParams::default()).await.unwrap();
        assert!(tenants.get_opt(&name).await.unwrap().is_none());
    }
}

pub(crate) async fn a_foreign_secret_is_not_overwritten(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, "input-secret").await;
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), "input-secret");
    let own = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "mine-kubeconfig"}, "stringData": {"kubeconfig": "mine"}});
    apply(&host.client, "input-secret", &own).await.unwrap();
    let tenants = host.tenants("input-secret");
    tenants
        .create(&PostParams::default(), &cluster("mine", &[]))
        .await
        .unwrap();
    until("the condition says that the Secret exists", SOON, async || {
        let cluster = tenants.get("mine").await.map_err(|error| error.to_string())?;
        let conditions = cluster.status.unwrap_or_default().conditions;
        conditions
            .iter()
            .find(|c| c.reason == "SecretExists")
            .map(|c| c.message.clone())
            .ok_or(format!("{conditions:?}"))
    })
    .await;
    assert_eq!(
        secrets.get("mine-kubeconfig").await.unwrap().data.unwrap()["kubeconfig"].0,
        b"mine"
    );
    // Once the Secret is deleted, the tenant becomes ready by itself.
    secrets
        .delete("mine-kubeconfig", &DeleteParams::default())
        .await
        .unwrap();
    berth_tests::tenant::Tenant::ready(&host, "input-secret", "mine")
        .await
        .delete(&host)
        .await;
}
