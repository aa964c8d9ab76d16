//! Kinds that the tenant's class names.

use crate::{
    limits::{count_on_host, until_beyond},
    objects::{create, eventually},
    setup::{Clusters, WORKLOADS},
};
use berth_api::{
    SchedulingMode, SyncPolicy, TenantLimits, labels,
    sync_policy::{FieldReference, SyncedKind},
};
use k8s_openapi::{
    api::core::v1::{Event, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

fn kind() -> SyncedKind {
    let reference = |path: &str, kind: &str| FieldReference {
        path: path.into(),
        kind: kind.into(),
    };
    SyncedKind {
        group: "example.com".into(),
        version: "v1".into(),
        kind: "Widget".into(),
        resource: "widgets".into(),
        fields: vec!["spec".into()],
        status: true,
        references: vec![
            reference("spec.secretName", "Secret"),
            reference("spec.others[].name", "Widget.example.com"),
            reference("status.leader", "Widget.example.com"),
        ],
        selectors: vec!["spec.selector".into()],
        denied_fields: vec!["spec.hostPath".into()],
        annotations: vec!["example.com/*".into()],
        labels: vec!["tier".into()],
    }
}

async fn define(client: &Client) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    create(
        &crds,
        json!({"metadata": {"name": "widgets.example.com"}, "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Widget", "plural": "widgets", "singular": "widget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}}],
        }}),
    )
    .await;
    let widgets = widgets(client, "default");
    eventually("widgets are served", async || {
        widgets.list(&ListParams::default()).await.is_ok()
    })
    .await;
}

fn widgets(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Widget"));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

async fn make(api: &Api<DynamicObject>, name: &str, spec: &Value) {
    let object = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name,
        "annotations": {"example.com/size": "large", "note": "mine"}}, "spec": spec});
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn wait_for_event(clusters: &Clusters, about: &str, reason: &str, text: &str) {
    let events = clusters.tenant_api::<Event>();
    eventually(&format!("{about} has an Event {reason}"), async || {
        let list = events.list(&ListParams::default()).await.unwrap();
        list.iter().any(|event| {
            event.involved_object.name.as_deref() == Some(about)
                && event.involved_object.kind.as_deref() == Some("Widget")
                && event.involved_object.api_version.as_deref() == Some("example.com/v1")
                && event.reason.as_deref() == Some(reason)
                && event.message.as_deref().is_some_and(|message| message.contains(text))
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_the_class_names_goes_both_ways() {
    let policy = SyncPolicy {
        kinds: vec![kind()],
        ..SyncPolicy::default()
    };
    let clusters = Clusters::start_with(policy, SchedulingMode::Host).await;
    // The tenant may use the kind before the host serves it: an Event says so, and all other kinds are synced.
    define(&clusters.tenant_admin).await;
    let syncer = clusters.syncer().await;
    let (here, there) = (
        widgets(&clusters.tenant_admin, "default"),
        widgets(&clusters.host_admin, WORKLOADS),
    );
    create(
        &clusters.tenant_api::<Secret>(),
        json!({"metadata": {"name": "cert"}, "stringData": {"a": "b"}}),
    )
    .await;
    let spec = json!({"secretName": "cert", "others": [{"name": "two"}], "size": 3, "selector": {"matchLabels": {"app": "x"}}});
    make(&here, "one", &spec).await;
    wait_for_event(&clusters, "one", "KindUnavailable", "does not serve").await;

    define(&clusters.host_admin).await;
    let on_host = async |name: &str| {
        let list = there.list(&ListParams::default()).await.unwrap().into_iter();
        list.into_iter()
            .find(|widget| widget.annotations().get(labels::ORIGIN_NAME).map(String::as_str) == Some(name))
    };
    eventually("the widget is on the host", async || on_host("one").await.is_some()).await;
    make(&here, "two", &json!({"size": 1})).await;
    eventually("the second is on the host", async || on_host("two").await.is_some()).await;
    let (one, two) = (on_host("one").await.unwrap(), on_host("two").await.unwrap());
    assert_eq!(one.data["spec"]["others"][0]["name"], two.name_any().as_str());
    assert_eq!(one.annotations()["example.com/size"], "large");
    assert!(!one.annotations().contains_key("note"));
    assert_eq!(
        one.data["spec"]["selector"]["matchLabels"][labels::TENANT_OBJECT_NAMESPACE],
        "default"
    );
    let secrets = clusters.host_api::<Secret>();
    let secret = one.data["spec"]["secretName"].as_str().unwrap().to_owned();
    secrets.get(&secret).await.expect("the Secret is on the host");

    // The host's controller reports; the status in the tenant has the tenant's names.
    let status = json!({"status": {"leader": two.name_any(), "note": format!("{} leads", two.name_any())}});
    there
        .patch_status(&one.name_any(), &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
    eventually("the status is in the tenant", async || {
        let status = here.get("one").await.unwrap().data["status"].clone();
        status["leader"] == "two" && status["note"] == "two leads"
    })
    .await;

    // Changes are synced to the host; a field that the class does not offer is denied and the host object stays as it is.
    let change = |patch: Value| async {
        here.patch("one", &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap()
    };
    change(json!({"spec": {"size": 5}})).await;
    eventually("the change arrives", async || {
        on_host("one").await.unwrap().data["spec"]["size"] == 5
    })
    .await;
    change(json!({"spec": {"hostPath": "/etc"}})).await;
    wait_for_event(&clusters, "one", "FieldDenied", "spec.hostPath").await;
    assert_eq!(on_host("one").await.unwrap().data["spec"].get("hostPath"), None);

    // The host counts them.
    let limits = TenantLimits {
        custom_objects: 2,
        ..TenantLimits::default()
    };
    let quotas = count_on_host(&clusters, "count/widgets.example.com", &limits).await;
    make(&here, "beyond", &json!({"size": 1})).await;
    until_beyond(&clusters, "beyond", "spec.limits.customObjects").await;
    assert!(on_host("beyond").await.is_none());
    quotas.delete("berth-limits", &DeleteParams::default()).await.unwrap();
    eventually("it is on the host once there is room", async || {
        on_host("beyond").await.is_some()
    })
    .await;

    here.delete("one", &DeleteParams::default()).await.unwrap();
    eventually("widget and Secret are gone from the host", async || {
        on_host("one").await.is_none() && secrets.get_opt(&secret).await.unwrap().is_none()
    })
    .await;
    syncer.stop().await;
}
