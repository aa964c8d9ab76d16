//! Objects that Kubernetes stores and control cannot read.

use berth_tests::{
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use http::{Method, Request};
use kube::Client;
use serde_json::{Value, json};
use std::sync::Arc;

const NAMESPACE: &str = "unreadable";

/// A request whose answer is not parsed: no type of this client holds these objects.
async fn send(client: &Client, method: Method, path: &str, body: &Value) -> kube::Result<String> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(body.to_string().into_bytes());
    client.request_text(request.unwrap()).await
}

/// An object with a writer at a time that is later than any of this client, and with fields that are deeper than it reads.
fn with_writers(mut object: Value, api_version: &str) -> Value {
    let deep = (0..200).fold(json!({}), |inner, _| json!({"f:a": inner}));
    let writer = |manager: &str, time: &str, fields: Value| {
        json!({"manager": manager, "operation": "Update", "apiVersion": api_version, "fieldsType": "FieldsV1", "time": time,
            "fieldsV1": {"f:metadata": {"f:labels": {"f:absent": fields}}}})
    };
    object["metadata"]["managedFields"] = json!([
        writer("late", "9999-12-31T00:00:00Z", json!({})),
        writer("deep", "2026-01-01T00:00:00Z", deep)
    ]);
    object
}

/// People of a team can write such objects in their namespace, with labels by which control watches them.
pub(crate) async fn objects_that_control_cannot_read_stop_nothing(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, NAMESPACE).await;
    let labels = json!({"berth.dev/tenant": "x"});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bad", "labels": labels}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-apiserver", "labels": labels},
        "spec": {"ports": [{"port": 443}]}});
    let mut tenant = json!(cluster("bad", &[]));
    tenant["metadata"]["namespace"] = NAMESPACE.into();
    let berth = "/apis/berth.dev/v1alpha1";
    let tenants = format!("{berth}/namespaces/{NAMESPACE}/tenantclusters");
    let core = |plural: &str| format!("/api/v1/namespaces/{NAMESPACE}/{plural}");
    for (path, object, version) in [
        (core("secrets"), secret, "v1"),
        (core("services"), service, "v1"),
        (tenants.clone(), tenant, "berth.dev/v1alpha1"),
    ] {
        let stored = send(&host.client, Method::POST, &path, &with_writers(object, version)).await;
        let stored = stored.unwrap();
        assert!(
            stored.contains("9999-12-31"),
            "the API server does not keep it: {stored}"
        );
    }
    // It lists everything anew.
    host.stop_control("first").await;
    host.start_control("first").await;
    let other = Tenant::create(&host, "unreadable-other", &cluster("other", &[("train", "h100", 1)])).await;
    // Its own tenant runs as well, and ends.
    let bad = format!("{tenants}/bad");
    until_true("the tenant is ready", SOON, async || {
        let text = send(&host.client, Method::GET, &bad, &Value::Null).await.unwrap();
        text.contains(r#""status":"True","type":"Ready""#)
    })
    .await;
    for path in [core("secrets/bad"), core("services/kube-apiserver"), bad.clone()] {
        send(&host.client, Method::DELETE, &path, &Value::Null).await.unwrap();
    }
    until_true("the tenant is gone", SOON, async || {
        send(&host.client, Method::GET, &bad, &Value::Null).await.is_err()
    })
    .await;
    other.delete(&host).await;
}
