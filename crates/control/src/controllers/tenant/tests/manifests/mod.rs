//! Manifests of a class in a tenant: applied, kept, and deleted when no manifest has them any more.

mod deleted;
mod failures;
mod gone;
mod kept;
mod kinds;
mod once;
mod own_groups;
mod servers;

use super::fixture::Fixture;
use crate::testing::{ScriptedRuntime, VERSION};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::sleep;

/// Time until what is in the tenant is compared again: a minute, and a bit. Time is paused in these tests.
const NEXT_CHECK: Duration = Duration::from_secs(61);
/// Time until a pass is repeated that failed or has not deleted everything.
const RETRY: Duration = Duration::from_secs(10);
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
    set_data(fixture, map, &json!({"roles.yaml": documents.join("---\n")}));
}

/// A ConfigMap with this data.
fn set_data(fixture: &Fixture, map: &str, data: &Value) {
    let map_object = json!({"metadata": {"name": map, "namespace": "berth-system"}, "data": data});
    fixture.host.insert(&map_path(map), map_object);
}

fn set_class(fixture: &Fixture, manifests: &Value) {
    fixture.set_class(&json!({ "manifests": manifests }));
}

/// A tenant of a class with one manifest, whose ConfigMap has the role `reader`.
async fn with_manifest(mode: &str) -> Fixture {
    Box::pin(with_manifest_in(VERSION, mode)).await
}

/// The same in a tenant of this version of Kubernetes.
async fn with_manifest_in(version: &str, mode: &str) -> Fixture {
    let mut fixture = Fixture::new();
    let mut runtime = ScriptedRuntime::new(&fixture.script);
    runtime.versions = vec![version.into()];
    fixture.context.runtime = Arc::new(runtime);
    fixture.change_tenant(|cluster| {
        cluster["spec"]["className"] = "gold".into();
        cluster["spec"]["version"] = version.into();
    });
    serve_kind(
        &fixture,
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        false,
        &["clusterroles"],
    );
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

/// Reconciles until the manifests are applied and what is to be deleted is gone.
async fn until_applied(fixture: &mut Fixture) {
    for _ in 0..6 {
        Box::pin(fixture.reconcile()).await.unwrap();
        if applied(fixture) == ("True".into(), "Applied".into()) {
            return;
        }
        sleep(RETRY).await;
    }
    panic!("not applied: {:#}", fixture.status());
}

/// What the condition says.
fn message(fixture: &Fixture) -> String {
    fixture.condition("ManifestsApplied").unwrap()["message"].to_string()
}

/// Serves a kind in a version of a group, or of the core group, under these plural names.
fn serve_kind(fixture: &Fixture, group_version: &str, kind: &str, is_namespaced: bool, plurals: &[&str]) {
    let resource = |plural: &&str| {
        json!({"name": plural, "singularName": "", "namespaced": is_namespaced, "kind": kind,
            "verbs": ["get", "list", "patch"]})
    };
    let resources: Vec<Value> = plurals.iter().map(resource).collect();
    let list =
        json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources});
    let apis = if group_version.contains('/') { "apis" } else { "api" };
    fixture.tenant.serve(&format!("/{apis}/{group_version}"), list);
}

/// The manifest with these documents, in a tenant that serves the kind Guard under these plural names.
fn set_guards(fixture: &Fixture, documents: &[&str], plurals: &[&str]) {
    let definition = "CustomResourceDefinition";
    serve_kind(
        fixture,
        "apiextensions.k8s.io/v1",
        definition,
        false,
        &["customresourcedefinitions"],
    );
    serve_kind(fixture, "platform.example/v1", "Guard", false, plurals);
    set_documents(fixture, documents);
}

/// The manifest with these documents.
fn set_documents(fixture: &Fixture, documents: &[&str]) {
    set_data(fixture, "base", &json!({"objects.yaml": documents.join("---\n")}));
}

/// Path of the APIService of version `v1` of a group in the tenant.
fn registration(group: &str) -> String {
    format!("/apis/apiregistration.k8s.io/v1/apiservices/v1.{group}")
}

/// Sets this APIService, which leads to a server of the team's or to none.
fn set_registration(fixture: &Fixture, group: &str, is_foreign: bool) {
    let mut service = json!({"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": {"name": format!("v1.{group}")},
        "spec": {"group": group, "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}});
    if is_foreign {
        service["spec"]["insecureSkipTLSVerify"] = true.into();
        service["spec"]["service"] = json!({"namespace": "default", "name": "evil", "port": 443});
    }
    fixture.tenant.insert(&registration(group), service);
}
