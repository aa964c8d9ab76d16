//! Images that nodes may pull by themselves and that are not the tenant's, tried as a tenant's admin through the tenant's own API server.

use berth_api::TenantClass;
use berth_tests::{
    objects::apply,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Name of the class and the tenant.
const NAME: &str = "imagery";
const NAMESPACE: &str = "adv-images";
const OWN: &str = "registry.example.com/adv-images/imagery/app:1";
const FOREIGN: &str = "registry.example.com/adv-other/imagery/app:1";

fn class() -> Value {
    let images = ["docker.io/library/*", "registry.example.com/{namespace}/{tenant}/*"];
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME},
        "spec": {"sync": {"pods": {"images": images}}}})
}

async fn create(pods: &Api<Pod>, name: &str, spec: &Value) {
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec});
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod)
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// Waits until the condition of a pod says that this field is denied.
async fn until_denied(pods: &Api<Pod>, name: &str, field: &str) {
    until(&format!("{name}: {field} is denied"), SOON, async || {
        let status = pods.get(name).await.map_err(|error| error.to_string())?.status;
        let conditions = status.and_then(|status| status.conditions).unwrap_or_default();
        let found = conditions.iter().any(|condition| {
            let message = condition.message.as_deref().unwrap_or_default();
            condition.type_ == "berth.dev/Synced" && condition.status == "False" && message.contains(field)
        });
        if found { Ok(()) } else { Err(format!("{conditions:?}")) }
    })
    .await;
}

/// Pods with an image that is not the tenant's, and the field that has it.
fn refused() -> Vec<(&'static str, Value, &'static str)> {
    let running = |image: &str| json!({"containers": [{"name": "c", "image": image}]});
    vec![
        ("foreign", running(FOREIGN), "spec.containers[0].image"),
        (
            "longer-registry",
            running("registry.example.com.evil.example/adv-images/imagery/app"),
            "spec.containers[0].image",
        ),
        (
            "other-port",
            running("registry.example.com:443/adv-images/imagery/app"),
            "spec.containers[0].image",
        ),
        (
            "other-case",
            running("Registry.example.com/adv-images/imagery/app"),
            "spec.containers[0].image",
        ),
        (
            "winding",
            running("registry.example.com/adv-images/imagery/../../adv-other/app"),
            "spec.containers[0].image",
        ),
        (
            "id",
            running("sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"),
            "spec.containers[0].image",
        ),
        ("start-of-an-id", running("cafe"), "spec.containers[0].image"),
        (
            "init",
            json!({"containers": [{"name": "c", "image": OWN}], "initContainers": [{"name": "i", "image": FOREIGN}]}),
            "spec.initContainers[0].image",
        ),
        (
            "volume",
            json!({"containers": [{"name": "c", "image": OWN}], "volumes": [{"name": "v", "image": {"reference": FOREIGN}}]}),
            "spec.volumes[0].image.reference",
        ),
    ]
}

pub(crate) async fn a_team_runs_and_mounts_only_images_of_its_class(host: Arc<TestCluster>) {
    apply(&host.client, "", &class()).await.unwrap();
    let mut wanted = cluster(NAME, &[("a", "h100", 1)]);
    wanted.spec.class_name = Some(NAME.into());
    let tenant = Tenant::create(&host, NAMESPACE, &wanted).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    for (name, spec, _) in refused() {
        create(&pods, name, &spec).await;
    }
    for (name, _, field) in refused() {
        until_denied(&pods, name, field).await;
    }
    let volumes = json!([{"name": "v", "image": {"reference": OWN}}]);
    let own = json!({"containers": [{"name": "c", "image": OWN}], "initContainers": [{"name": "i", "image": "busybox"}], "volumes": volumes});
    create(&pods, "own", &own).await;
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let placed = until("its own image has a node", SOON, async || {
        let mut list = on_host.list(&ListParams::default()).await.unwrap().items;
        assert!(list.len() <= 1, "another one reached the host: {list:?}");
        let placed = list.pop().filter(|pod| {
            let spec = pod.spec.as_ref();
            spec.is_some_and(|spec| spec.node_name.is_some())
        });
        placed.ok_or("not yet")
    })
    .await;
    changes(&pods, &on_host, &placed.name_any()).await;
    tenant.delete(&host).await;
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}

/// Images that come into a pod which has a node, and a label that policies may need.
async fn changes(pods: &Api<Pod>, on_host: &Api<Pod>, host_name: &str) {
    let params = PatchParams::default();
    let other =
        json!({"metadata": {"labels": {"later": "yes"}}, "spec": {"containers": [{"name": "c", "image": FOREIGN}]}});
    pods.patch("own", &params, &Patch::Strategic(&other)).await.unwrap();
    until_denied(pods, "own", "spec.containers[0].image").await;
    let debug = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": FOREIGN}]}});
    pods.patch_subresource("ephemeralcontainers", "own", &params, &Patch::Strategic(&debug))
        .await
        .unwrap();
    until("its status says why it waits", SOON, async || {
        let status = pods.get("own").await.map_err(|error| error.to_string())?.status;
        let statuses = status.and_then(|status| status.ephemeral_container_statuses);
        let found = statuses.iter().flatten().any(|container| {
            let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
            waiting.is_some_and(|waiting| {
                let message = waiting.message.as_deref().unwrap_or_default();
                waiting.reason.as_deref() == Some("FieldDenied")
                    && message.contains("spec.ephemeralContainers[0].image")
            })
        });
        if found { Ok(()) } else { Err(format!("{statuses:?}")) }
    })
    .await;
    let live = until("the label is on the host", SOON, async || {
        let live = on_host.get(host_name).await.map_err(|error| error.to_string())?;
        let is_there = live.labels().contains_key("pod.berth.dev/later");
        if is_there { Ok(live) } else { Err("not yet".to_owned()) }
    })
    .await;
    let spec = live.spec.unwrap();
    assert_eq!(spec.containers[0].image.as_deref(), Some(OWN));
    assert_eq!(spec.ephemeral_containers, None);
}
