//! Manifests of a class in a tenant: applied, kept, and deleted when no manifest has them any more.

mod deleted;
mod failures;
mod kept;
mod kinds;
mod once;
mod servers;

use super::fixture::Fixture;
use serde_json::{Value, json};
use std::time::Duration;

/// Time until what is in the tenant is compared again: a minute, and a bit. Time is paused in these tests.
const NEXT_CHECK: Duration = Duration::from_secs(61);
const CLASS: &str = "/apis/berth.dev/v1alpha1/tenantclasses/gold";
const ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/reader";
const OTHER_ROLE: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles/writer";
/// An object of a kind for which the tenant needs a server or a definition.
const GUARD: &str = "apiVersion: platform.example/v1\nkind: Guard\nmetadata: {name: g1}\n";
/// A role of the manifest, besides objects of the kind Guard.
const WRITER: &str = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: writer}\n";

fn map_path(name: &str) -> String {
    format!("/api/v1/namespaces/berth-system/configmaps/{name}")
}

/// A ConfigMap with ClusterRoles of these names and this verb.
fn set_roles(fixture: &Fixture, map: &str, names: &[&str], verb: &str) {
    let documents: Vec<String> = names
        .iter()
        .map(|name| {
            format!(
                "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: {name}}}\n\
                 rules: [{{apiGroups: [''], resources: [pods], verbs: [{verb}]}}]\n"
            )
        })
        .collect();
    let data = documents.join("---\n");
    let map_object = json!({"metadata": {"name": map, "namespace": "berth-system"}, "data": {"roles.yaml": data}});
    fixture.host.insert(&map_path(map), map_object);
}

fn set_class(fixture: &Fixture, manifests: &Value) {
    let class = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass",
        "metadata": {"name": "gold", "uid": "gold"}, "spec": {"manifests": manifests}});
    fixture.host.insert(CLASS, class);
}

/// A tenant of a class with one manifest, whose ConfigMap has the role `reader`.
async fn with_manifest(mode: &str) -> Fixture {
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| cluster["spec"]["className"] = "gold".into());
    let served = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "rbac.authorization.k8s.io/v1",
        "resources": [{"name": "clusterroles", "singularName": "", "namespaced": false, "kind": "ClusterRole",
            "verbs": ["get", "list", "patch"]}]});
    fixture.tenant.serve("/apis/rbac.authorization.k8s.io/v1", served);
    set_roles(&fixture, "base", &["reader"], "get");
    set_class(&fixture, &manifest("v1", mode));
    assert!(fixture.reconcile_until_ready().await.is_empty());
    // The syncer may have become ready in the last one.
    fixture.reconcile().await.unwrap();
    fixture
}

fn manifest(version: &str, mode: &str) -> Value {
    json!([{"name": "base", "version": version, "mode": mode, "configMapRef": {"name": "base"}}])
}

fn applied(fixture: &Fixture) -> (Value, Value) {
    let condition = fixture.condition("ManifestsApplied").unwrap();
    (condition["status"].clone(), condition["reason"].clone())
}

/// The manifest with these documents, in a tenant that serves the kind Guard under these plural names.
fn set_guards(fixture: &Fixture, documents: &[&str], plurals: &[&str]) {
    let serve = |group: &str, kind: &str, plurals: &[&str]| {
        let resource = |plural: &&str| {
            json!({"name": plural, "singularName": "", "namespaced": false, "kind": kind,
                "verbs": ["get", "list", "patch"]})
        };
        let resources: Vec<Value> = plurals.iter().map(resource).collect();
        let list = json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/v1"),
            "resources": resources});
        fixture.tenant.serve(&format!("/apis/{group}/v1"), list);
    };
    serve(
        "apiextensions.k8s.io",
        "CustomResourceDefinition",
        &["customresourcedefinitions"],
    );
    serve("platform.example", "Guard", plurals);
    let data = documents.join("---\n");
    let map = json!({"metadata": {"name": "base", "namespace": "berth-system"}, "data": {"objects.yaml": data}});
    fixture.host.insert(&map_path("base"), map);
}
