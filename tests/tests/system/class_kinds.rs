//! Kinds that a class syncs besides those that Berth knows.

use crate::classes::{class, of_class, until_class};
use berth_control::control_plane::SYNCER;
use berth_tests::{
    objects::apply,
    tenant::Tenant,
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::{
    api::rbac::v1::Role, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Api;
use serde_json::json;
use std::sync::Arc;

pub(crate) async fn additional_kinds_need_a_definition_and_permissions(host: Arc<TestCluster>) {
    let kind = |name: &str, group: &str, version: &str, kind: &str, plural: &str| {
        let kinds = json!([{"group": group, "version": version, "kind": kind, "resource": plural}]);
        class(name, &json!({"sync": {"kinds": kinds}}))
    };
    for (object, reason, expected) in [
        (
            kind("gangs", "scheduling.k8s.io", "v1beta1", "PodGroup", "podgroups"),
            "Ready",
            "can use",
        ),
        (
            kind("absent", "scheduling.k8s.io", "v1", "PodGroup", "podgroups"),
            "KindNotServed",
            "tenants run without it",
        ),
        (
            kind(
                "rights",
                "rbac.authorization.k8s.io",
                "v1",
                "RoleBinding",
                "rolebindings",
            ),
            "InvalidRules",
            "decide on rights",
        ),
        (
            kind("denied", "batch", "v1", "CronJob", "cronjobs"),
            "KindNotPermitted",
            "berth.dev/aggregate-to-control",
        ),
    ] {
        apply(&host.client, "", &object).await.unwrap();
        let name = object["metadata"]["name"].as_str().unwrap();
        let message = until_class(&host, name, reason, 0).await;
        assert!(message.contains(expected), "{message}");
    }
    // A class with a kind that cannot be synced does not keep its tenants from running; one that can be is in the role.
    let denied = Tenant::create(&host, "class-kinds", &of_class("denied", "denied")).await;
    let gangs = Tenant::create(&host, "class-kinds", &of_class("gangs", "gangs")).await;
    for (tenant, resource, expected) in [(&denied, "cronjobs", false), (&gangs, "podgroups", true)] {
        let roles: Api<Role> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
        let rules = roles.get(SYNCER).await.unwrap().rules.unwrap_or_default();
        let granted = rules
            .iter()
            .any(|rule| rule.resources.iter().flatten().any(|name| name == resource));
        assert_eq!(granted, expected, "{resource}: {rules:?}");
    }
    // The tenant's API server serves groups of pods, too: the scheduler knows them.
    let served = gangs.client.list_api_group_resources("scheduling.k8s.io/v1beta1").await;
    let served = served.unwrap().resources;
    assert!(served.iter().any(|resource| resource.name == "podgroups"), "{served:?}");
    denied.delete(&host).await;
    gangs.delete(&host).await;
}

pub(crate) async fn a_kind_of_the_host_is_defined_in_the_tenant(host: Arc<TestCluster>) {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "gangs.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "gangs", "singular": "gang", "kind": "Gang", "listKind": "GangList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                }}},
            }],
        },
    });
    let kinds = json!([{"group": "example.com", "version": "v1", "kind": "Gang", "resource": "gangs"}]);
    apply(&host.client, "", &class("crd", &json!({"sync": {"kinds": kinds}})))
        .await
        .unwrap();
    until_class(&host, "crd", "KindNotPermitted", 0).await;
    let rights = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "gangs-for-tenants", "labels": {"berth.dev/aggregate-to-control": "true"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["gangs", "gangs/status"],
                   "verbs": ["get", "list", "watch", "create", "patch", "delete"]}],
    });
    apply(&host.client, "", &rights).await.unwrap();
    until_class(&host, "crd", "KindNotServed", 0).await;
    let tenant = Tenant::create(&host, "class-crd", &of_class("crd", "crd")).await;
    // From here on everything follows by itself.
    apply(&host.client, "", &definition).await.unwrap();
    until_class(&host, "crd", "Ready", 1).await;
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client.clone());
    until_true("the tenant has the definition", SOON, async || {
        definitions.get_opt("gangs.example.com").await.unwrap().is_some()
    })
    .await;
    let roles: Api<Role> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    until_true("the syncer has the rights", SOON, async || {
        let rules = roles.get(SYNCER).await.unwrap().rules.unwrap_or_default();
        rules
            .iter()
            .any(|rule| rule.resources.iter().flatten().any(|name| name == "gangs"))
    })
    .await;
    let gang =
        json!({"apiVersion": "example.com/v1", "kind": "Gang", "metadata": {"name": "one"}, "spec": {"size": 4}});
    until("the tenant accepts objects of the kind", SOON, async || {
        apply(&tenant.client, "default", &gang).await
    })
    .await;
    tenant.delete(&host).await;
}
