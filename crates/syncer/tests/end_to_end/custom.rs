//! Kinds that the tenant's class names.

use crate::{
    limits::{count_on_host, until_beyond},
    objects::{create, eventually, origin, pod},
    setup::{Clusters, WORKLOADS},
};
use berth_api::{
    SchedulingMode, SyncPolicy, TenantLimits, labels,
    sync_policy::{FieldReference, SyncedKind},
};
use k8s_openapi::{
    api::core::v1::{Event, Pod, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::{net::TcpListener, time::Duration};

/// After so long, an API server that answers has answered.
const SOON: Duration = Duration::from_secs(5);

/// A kind that a class can name.
pub fn kind() -> SyncedKind {
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
            reference("spec.claimTemplateName", "ResourceClaimTemplate"),
            reference("status.leader", "Widget.example.com"),
        ],
        selectors: vec!["spec.selector".into()],
        denied_fields: vec!["spec.hostPath".into()],
        annotations: vec!["example.com/*".into()],
        labels: vec!["tier".into()],
    }
}

/// Serves the kind.
pub async fn define(client: &Client) {
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

/// Stores objects as v2 from now on, and converts them as `conversion` says.
async fn store_as_v2(client: &Client, conversion: &Value) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}})
    };
    let spec = json!({"versions": [version("v1", false), version("v2", true)], "conversion": conversion});
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let patch = Patch::Merge(json!({"spec": spec}));
    crds.patch("widgets.example.com", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// The objects of the kind in a namespace.
pub fn widgets(client: &Client, namespace: &str) -> Api<DynamicObject> {
    widgets_as(client, namespace, "v1")
}

fn widgets_as(client: &Client, namespace: &str, version: &str) -> Api<DynamicObject> {
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", version, "Widget"));
    Api::namespaced_with(client.clone(), namespace, &resource)
}

/// A widget on the host, by its name in the tenant.
async fn find_on_host(there: &Api<DynamicObject>, name: &str) -> Option<DynamicObject> {
    let list = there.list(&ListParams::default()).await.unwrap().into_iter();
    list.into_iter()
        .find(|widget| widget.annotations().get(labels::ORIGIN_NAME).map(String::as_str) == Some(name))
}

/// Creates an object of the kind.
pub async fn make(api: &Api<DynamicObject>, name: &str, spec: &Value) {
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
    let on_host = async |name: &str| find_on_host(&there, name).await;
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

/// Makes a definition with whose webhook the tenant's API server cannot list the widgets any more. The webhook accepts connections, and
/// nobody ever reads from them.
async fn break_definition(clusters: &Clusters) -> TcpListener {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/convert", silent.local_addr().unwrap());
    let webhook = json!({"clientConfig": {"url": url}, "conversionReviewVersions": ["v1"]});
    store_as_v2(
        &clusters.tenant_admin,
        &json!({"strategy": "Webhook", "webhook": webhook}),
    )
    .await;
    let newer = widgets_as(&clusters.tenant_admin, "default", "v2");
    let two =
        json!({"apiVersion": "example.com/v2", "kind": "Widget", "metadata": {"name": "two"}, "spec": {"size": 2}});
    let two: DynamicObject = serde_json::from_value(two).unwrap();
    eventually("an object of the other version is stored", async || {
        let created = tokio::time::timeout(SOON, newer.create(&PostParams::default(), &two)).await;
        matches!(created, Ok(Ok(_))) || matches!(created, Ok(Err(kube::Error::Api(status))) if status.code == 409)
    })
    .await;
    let here = widgets(&clusters.tenant_admin, "default");
    // Until the webhook has timed out for the first time, half a minute, the API server answers from what it knew before.
    let known = ListParams::default().match_any();
    eventually("widgets cannot be listed", async || {
        for _ in 0..3 {
            if !matches!(here.list(&known).await, Err(kube::Error::Api(_))) {
                return false;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        true
    })
    .await;
    silent
}

/// Definitions come and go while the syncer runs.
async fn a_definition_that_is_made_again_works(clusters: &Clusters) {
    let there = widgets(&clusters.host_admin, WORKLOADS);
    let crds: Api<CustomResourceDefinition> = Api::all(clusters.tenant_admin.clone());
    crds.delete("widgets.example.com", &DeleteParams::default())
        .await
        .unwrap();
    eventually("the definition and its objects are gone", async || {
        let is_defined = crds.get_opt("widgets.example.com").await.unwrap().is_some();
        !is_defined && find_on_host(&there, "one").await.is_none()
    })
    .await;
    define(&clusters.tenant_admin).await;
    let here = widgets(&clusters.tenant_admin, "default");
    make(&here, "three", &json!({"size": 3})).await;
    eventually("widgets of the new definition are synced", async || {
        find_on_host(&there, "three").await.is_some()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_definition_whose_webhook_never_answers_holds_no_other_kind_up() {
    let policy = SyncPolicy {
        kinds: vec![kind()],
        ..SyncPolicy::default()
    };
    let clusters = Clusters::start_with(policy, SchedulingMode::Host).await;
    define(&clusters.tenant_admin).await;
    define(&clusters.host_admin).await;
    let syncer = clusters.syncer().await;
    let (here, there) = (
        widgets(&clusters.tenant_admin, "default"),
        widgets(&clusters.host_admin, WORKLOADS),
    );
    let pods = clusters.tenant_api::<Pod>();
    let has_pod = async |name: &str| {
        let is_kept = |pod: &&Pod| origin(pod) == name && pod.metadata.deletion_timestamp.is_none();
        clusters.host_pods().await.iter().any(|pod| is_kept(&pod))
    };
    create(
        &clusters.tenant_api::<Secret>(),
        json!({"metadata": {"name": "cert"}, "stringData": {"a": "b"}}),
    )
    .await;
    make(&here, "one", &json!({"secretName": "cert", "size": 1})).await;
    create(&pods, pod("before", &json!({}))).await;
    eventually("widget and pod are on the host", async || {
        find_on_host(&there, "one").await.is_some() && has_pod("before").await
    })
    .await;
    let one = find_on_host(&there, "one").await.unwrap();
    let secret = one.data["spec"]["secretName"].as_str().unwrap().to_owned();
    syncer.stop().await;

    let _silent = break_definition(&clusters).await;
    let syncer = clusters.syncer().await;
    eventually("the syncer goes on without widgets", async || {
        syncer.metrics.unlisted_kinds.get() == 1
    })
    .await;
    create(&pods, pod("during", &json!({}))).await;
    pods.delete("before", &DeleteParams::default()).await.unwrap();
    eventually("pods are created and deleted on the host", async || {
        has_pod("during").await && !has_pod("before").await
    })
    .await;
    let kept = find_on_host(&there, "one").await.expect("the widget is on the host");
    assert_eq!(
        (kept.uid(), kept.resource_version()),
        (one.uid(), one.resource_version())
    );
    let secrets = clusters.host_api::<Secret>();
    secrets.get(&secret).await.expect("what it uses is on the host");
    assert!(find_on_host(&there, "two").await.is_none());

    store_as_v2(&clusters.tenant_admin, &json!({"strategy": "None", "webhook": null})).await;
    let change = Patch::Merge(json!({"spec": {"size": 7}}));
    eventually("the widget can be changed", async || {
        let params = PatchParams::default();
        let changed = tokio::time::timeout(SOON, here.patch("one", &params, &change)).await;
        matches!(changed, Ok(Ok(_)))
    })
    .await;
    eventually("both widgets are synced without a restart", async || {
        let one = find_on_host(&there, "one").await;
        one.is_some_and(|one| one.data["spec"]["size"] == 7) && find_on_host(&there, "two").await.is_some()
    })
    .await;
    eventually("no kind is missing", async || syncer.metrics.unlisted_kinds.get() == 0).await;
    secrets.get(&secret).await.expect("what it uses is still there");
    a_definition_that_is_made_again_works(&clusters).await;
    syncer.stop().await;
}
