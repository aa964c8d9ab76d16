//! A server of a team's own for groups of its API, in a pod, that answers control with what would end or stop it.

use crate::{
    pods::{SOON, Space, pod, with},
    teams::{CLASS_OF_SPEECH, speech},
};
use berth_api::{TenantClass, conditions, labels, system};
use berth_local::images::Image;
use berth_tests::{
    files::binary,
    hostile_api::{Group, REFUSAL, register, unregister},
    objects::apply,
    tenant::Tenant,
    test_cluster::TestCluster,
    wait::until,
};
use futures::FutureExt;
use k8s_openapi::{
    api::core::v1::{ConfigMap, Node, Pod},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
};

/// Of the namespace, the server, its Service, and the manifest.
const NAME: &str = "hostile-api";
/// An image that only this test uses, and its program.
const IMAGE: &str = "ghcr.io/berth-dev/hostile-api:test";
const PROGRAM: &str = "hostile_api";
/// The definition in the manifest.
const DEFINITION: &str = "wardens.platform.example";

/// What the manifest has besides objects of the server's kinds.
fn others() -> [Value; 3] {
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": DEFINITION},
        "spec": {
            "group": "platform.example", "scope": "Cluster",
            "names": {"plural": "wardens", "singular": "warden", "kind": "Warden", "listKind": "WardenList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    let warden = json!({"apiVersion": "platform.example/v1", "kind": "Warden", "metadata": {"name": NAME}, "spec": {"by": "platform"}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": "default"},
        "data": {"by": "platform"}});
    [map, definition, warden]
}

/// Starts the server in a pod, and registers it for its groups.
async fn serve(host: &TestCluster, space: &Space) {
    let nodes: Api<Node> = Api::all(space.client.clone());
    let nodes = nodes.list(&ListParams::default()).await.unwrap();
    let nodes: Vec<String> = nodes.iter().map(ResourceExt::name_any).collect();
    let image = Image::new(IMAGE, &binary(PROGRAM), "/usr/local/bin/hostile_api").with_arguments(&["0.0.0.0:8443"]);
    host.import_images(&[image], Some(&nodes)).await.unwrap();
    let container = json!({
        "name": "main", "image": IMAGE,
        "readinessProbe": {"tcpSocket": {"port": 8443}, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 30},
    });
    let metadata = json!({"metadata": {"name": NAME, "labels": {"app": NAME}}});
    space
        .apply(with(pod(NAME, json!({"containers": [container]})), metadata))
        .await;
    space
        .apply(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": NAME},
            "spec": {"selector": {"app": NAME}, "ports": [{"port": 443, "targetPort": 8443}]}}),
        )
        .await;
    space.ready(NAME).await;
    register(&space.client, space.name, NAME, 443).await;
}

/// Gives the class of the tenant these manifests.
async fn set_manifests(host: &TestCluster, manifests: &Value) {
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    let patch = Patch::Merge(json!({"spec": {"manifests": manifests}}));
    classes
        .patch(CLASS_OF_SPEECH, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Gives the class a manifest with objects of the server's kinds and others.
async fn add_manifest(host: &TestCluster) {
    let hostile = Group::ALL.map(|group| {
        json!({"apiVersion": group.api_version(), "kind": group.kind(), "metadata": {"name": NAME, "namespace": "default"}})
    });
    let texts: Vec<String> = hostile
        .iter()
        .chain(&others())
        .map(|object| serde_json::to_string_pretty(object).unwrap())
        .collect();
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "labels": {(labels::MANIFESTS): labels::MANIFESTS_ALLOWED}},
        "data": {"objects.yaml": texts.join("\n---\n")}});
    apply(&host.client, system::NAMESPACE, &map).await.unwrap();
    let manifests = json!([{"name": NAME, "version": "v1", "configMapRef": {"name": NAME}}]);
    set_manifests(host, &manifests).await;
}

fn maps(tenant: &Tenant) -> Api<ConfigMap> {
    Api::namespaced(tenant.client.clone(), "default")
}

fn wardens(tenant: &Tenant) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("platform.example", "v1", "Warden");
    Api::all_with(
        tenant.client.clone(),
        &ApiResource::from_gvk_with_plural(&kind, "wardens"),
    )
}

/// Waits until the other objects are as the manifest says.
async fn until_others_are_applied(tenant: &Tenant) {
    let (maps, wardens) = (maps(tenant), wardens(tenant));
    until("the other objects are as the manifest says", SOON, async || {
        let map = maps.get(NAME).await.map_err(|error| error.to_string())?;
        let warden = wardens.get(NAME).await.map_err(|error| error.to_string())?;
        let of_map = map.data.as_ref().and_then(|data| data.get("by"));
        let of_warden = &warden.data["spec"]["by"];
        if of_map.is_some_and(|by| by == "platform") && of_warden == "platform" {
            Ok(())
        } else {
            Err(format!("{of_map:?}, {of_warden}"))
        }
    })
    .await;
}

/// Waits until the condition says of each kind of the server what is wrong with it, and of no other.
async fn until_the_kinds_are_named(host: &TestCluster, tenant: &Tenant) {
    let tenants = host.tenants(&tenant.namespace);
    let object = |group: Group, why: &str| format!("manifest {NAME}: {} default/{NAME}: {why}", group.kind());
    let expected = [
        object(Group::Chain, REFUSAL),
        object(
            Group::Silent,
            "the server of its API group in the tenant did not answer in time",
        ),
        object(
            Group::Long,
            &format!(
                "the list of kinds of {} in the tenant is longer than Berth reads",
                Group::Long.api_version()
            ),
        ),
    ];
    until("ManifestsApplied names these kinds only", SOON, async || {
        let cluster = tenants.get(&tenant.name).await.map_err(|error| error.to_string())?;
        let all = cluster.status.map(|status| status.conditions).unwrap_or_default();
        let found = all.into_iter().find(|c| c.type_ == conditions::MANIFESTS_APPLIED);
        let says = |text: &String| found.as_ref().is_some_and(|found| found.message.contains(text));
        let counts = found.as_ref().map(|found| found.message.matches("manifest ").count());
        let is_named = expected.iter().all(says) && counts == Some(expected.len());
        if is_named && found.as_ref().is_some_and(|found| found.reason == "ApplyFailed") {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .await;
}

async fn nothing_else_is_kept_back(host: &TestCluster, space: &Space) {
    let tenant = space.tenant;
    serve(host, space).await;
    add_manifest(host).await;
    until_others_are_applied(tenant).await;
    until_the_kinds_are_named(host, tenant).await;
    // The team of a tenant of this version can change them.
    maps(tenant).delete(NAME, &DeleteParams::default()).await.unwrap();
    let mine = Patch::Merge(json!({"spec": {"by": "team"}}));
    wardens(tenant)
        .patch(NAME, &PatchParams::default(), &mine)
        .await
        .unwrap();
    until_others_are_applied(tenant).await;
}

/// What is left of the manifest is deleted, once the server is not registered any more.
async fn until_nothing_is_left(tenant: &Tenant) {
    let maps = maps(tenant);
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client.clone());
    until("what the manifest had is deleted", SOON, async || {
        let map = maps.get_opt(NAME).await.map_err(|error| error.to_string())?;
        let definition = definitions.get_opt(DEFINITION).await;
        let definition = definition.map_err(|error| error.to_string())?;
        if map.is_none() && definition.is_none() {
            Ok(())
        } else {
            Err(format!(
                "a map: {}, a definition: {}",
                map.is_some(),
                definition.is_some()
            ))
        }
    })
    .await;
}

/// The pods of control, and how often their containers were started again.
async fn starts_of_control(host: &TestCluster) -> Vec<(Option<String>, i32)> {
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), system::NAMESPACE);
    let of_control = ListParams::default().labels("app.kubernetes.io/name=berth-control");
    let pods = pods.list(&of_control).await.unwrap();
    let starts = |pod: &Pod| {
        let status = pod.status.iter();
        let containers = status.flat_map(|status| status.container_statuses.iter().flatten());
        containers.map(|container| container.restart_count).sum::<i32>()
    };
    pods.iter().map(|pod| (pod.uid(), starts(pod))).collect()
}

/// Lists that name kinds without end, a server that does not answer, and a list that is too long: the objects of these kinds wait, with a
/// message, and control does everything else.
pub(crate) async fn hostile_servers_keep_back_their_own_kinds_only(host: Arc<TestCluster>) {
    let space = Space::new(speech(&host).await, NAME).await;
    let before = starts_of_control(&host).await;
    assert!(!before.is_empty(), "control has no pod");
    let checks = AssertUnwindSafe(nothing_else_is_kept_back(&host, &space));
    let result = checks.catch_unwind().await;
    // Other tests use the tenant and its class.
    unregister(&space.client).await;
    set_manifests(&host, &Value::Null).await;
    let _ = space.pods.delete(NAME, &DeleteParams::default()).await;
    if let Err(panic) = result {
        resume_unwind(panic);
    }
    until_nothing_is_left(space.tenant).await;
    assert_eq!(starts_of_control(&host).await, before, "control was started again");
}
