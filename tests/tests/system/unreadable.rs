//! Objects that Kubernetes stores and control cannot read.

use crate::platform_objects::{create_tenant, put_manifest};
use berth_api::names::host_name;
use berth_kubernetes_versions::KUBERNETES_DEFAULT;
use berth_tests::{
    objects::{gpu_pod, nodes_of_tenant, phase},
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use http::{Method, Request};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::PostParams};
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
    unreadable_pods_keep_neither_a_node_nor_a_tenant(&host, &other).await;
}

/// Gives a pod of the tenant on the host writers and a condition that control cannot read, as its syncer's credential can.
async fn spoil_pod(host: &TestCluster, tenant: &Tenant, name: &str) {
    let pods = format!("/api/v1/namespaces/{}/pods", tenant.id.workload_namespace());
    let path = format!("{pods}/{}", host_name("Pod", "default", name));
    until(&format!("{path} is changed"), SOON, async || {
        let text = send(&host.client, Method::GET, &path, &Value::Null).await?;
        let mut pod: Value = serde_json::from_str(&text).map_err(kube::Error::SerdeError)?;
        let mut conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.retain(|condition| condition["type"] != "example.com/late");
        conditions
            .push(json!({"type": "example.com/late", "status": "True", "lastTransitionTime": "9999-12-31T00:00:00Z"}));
        pod["status"]["conditions"] = conditions.into();
        // A conflict is tried again.
        let stored = send(&host.client, Method::PUT, &format!("{path}/status"), &pod).await?;
        let pod: Value = serde_json::from_str(&stored).map_err(kube::Error::SerdeError)?;
        send(&host.client, Method::PUT, &path, &with_writers(pod, "v1")).await
    })
    .await;
    let stored = send(&host.client, Method::GET, &path, &Value::Null).await.unwrap();
    assert!(stored.matches("9999-12-31").count() >= 2, "{stored}");
}

async fn unreadable_pods_keep_neither_a_node_nor_a_tenant(host: &TestCluster, tenant: &Tenant) {
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("placed", 8))
        .await
        .unwrap();
    until_true("the pod runs", SOON, async || {
        pods.get("placed").await.is_ok_and(|pod| phase(&pod) == "Running")
    })
    .await;
    spoil_pod(host, tenant, "placed").await;
    let none = json!({"nodeGroups": [{"name": "train", "poolName": "h100", "replicas": 0}]});
    host.patch_tenant(&tenant.namespace, &tenant.name, &none).await;
    until_true("the node is released", SOON, async || {
        nodes_of_tenant(&host.client, tenant.id.slug()).await.is_empty()
    })
    .await;
    pods.create(&PostParams::default(), &gpu_pod("waiting", 8))
        .await
        .unwrap();
    spoil_pod(host, tenant, "waiting").await;
    tenant.delete(host).await;
}

/// The team makes an object before the manifest has it, and with it a rule that opens the policy.
pub(crate) async fn manifests_hold_over_objects_that_control_cannot_read(host: Arc<TestCluster>) {
    let name = "unreadable-manifest";
    let limits = "{apiVersion: v1, kind: LimitRange, metadata: {name: a, namespace: default}, spec: {limits: []}}\n";
    let tenant = create_tenant(&host, name, KUBERNETES_DEFAULT, limits).await;
    let policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies";
    let open = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "deny"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}});
    let open = with_writers(open, "networking.k8s.io/v1");
    let stored = send(&tenant.client, Method::POST, policies, &open).await.unwrap();
    assert!(stored.contains("9999-12-31"), "{stored}");
    let closed = "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: default}, \
                  spec: {podSelector: {}, policyTypes: [Ingress]}}\n";
    put_manifest(&host, name, closed).await;
    let policy = format!("{policies}/deny");
    until_true("the policy denies everything", SOON, async || {
        let text = send(&tenant.client, Method::GET, &policy, &Value::Null).await.unwrap();
        text.contains(r#""berth.dev/managed-by":"platform""#) && !text.contains(r#""ingress":"#)
    })
    .await;
    tenant.delete(&host).await;
}
