//! Large objects with the credential of a kubelet: a few thousand would fill the host's datastore.

use super::{
    dry_run, expect_denied,
    kubelets::{kubelet_of, mirror_pod, on_network_of_node},
};
use crate::shared::attacker;
use base64::{Engine, engine::general_purpose::STANDARD};
use berth_pki::CertificateRequest;
use berth_tests::{objects::nodes_of_tenant, test_cluster::TestCluster};
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        core::v1::{Event, Node, Pod},
    },
};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, GroupVersionKind, ObjectMeta, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

const DENIED: &str = "may not write an object of this size";

pub(crate) async fn a_stolen_kubelet_credential_writes_no_large_objects(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let node = nodes_of_tenant(&host.client, tenant.id.slug()).await.remove(0);
    let kubelet = kubelet_of(&host, &node).await;
    for namespace in ["default", "kube-system"] {
        events(&kubelet, namespace, &node).await;
    }
    certificate_requests(&kubelet, &node).await;
    static_pods(&host, &kubelet, &node).await;
    for (object, most) in [
        (
            json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
                "metadata": {"name": node, "namespace": "kube-node-lease"}, "spec": {"holderIdentity": node}}),
            32 * 1024,
        ),
        (
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": node}, "spec": {"drivers": []}}),
            128 * 1024,
        ),
    ] {
        write(&kubelet, &object).await.unwrap();
        let mut filled = object;
        filled["metadata"]["annotations"] = json!({"example.com/note": "a".repeat(most)});
        expect_denied(DENIED, write(&kubelet, &filled).await);
    }
}

/// An Event about the node, or about a pod of the platform.
async fn events(kubelet: &Client, namespace: &str, node: &str) {
    let event = |message: String| -> Event {
        serde_json::from_value(json!({
            "metadata": {"name": format!("{node}.1")},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "p"},
            "type": "Normal", "reason": "NodeReady", "message": message, "count": 1,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
            "source": {"component": "kubelet", "host": node}, "reportingComponent": "kubelet", "reportingInstance": node,
        }))
        .unwrap()
    };
    let events: Api<Event> = Api::namespaced(kubelet.clone(), namespace);
    let ready = format!("Node {node} status is now: NodeReady");
    events.create(&dry_run(), &event(ready)).await.unwrap();
    for length in [33_000, 1_400_000] {
        let created = events.create(&dry_run(), &event("a".repeat(length))).await;
        expect_denied(DENIED, created);
    }
}

/// As a kubelet renews its certificate; API servers ignore what follows the request, and store it.
async fn certificate_requests(kubelet: &Client, node: &str) {
    let request = CertificateRequest::create("ECDSAP384").unwrap();
    let pem = |rest: &str| {
        let body = STANDARD.encode(&request.request_der);
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{body}\n-----END CERTIFICATE REQUEST-----\n{rest}")
    };
    let object = |rest: &str| CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(format!("csr-{node}")),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem(rest).into_bytes()),
            // For the signer of kubelets, the request would have to name the node.
            signer_name: "example.com/nodes".into(),
            usages: Some(vec!["digital signature".into(), "client auth".into()]),
            ..CertificateSigningRequestSpec::default()
        },
        ..CertificateSigningRequest::default()
    };
    let requests: Api<CertificateSigningRequest> = Api::all(kubelet.clone());
    requests.create(&dry_run(), &object("")).await.unwrap();
    let filled = requests.create(&dry_run(), &object(&"a".repeat(1_000_000))).await;
    expect_denied(DENIED, filled);
}

/// There may be as many as a kubelet likes.
async fn static_pods(host: &TestCluster, kubelet: &Client, node: &str) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let mut pod = on_network_of_node(&mirror_pod(&nodes.get(node).await.unwrap()));
    let pods: Api<Pod> = Api::namespaced(kubelet.clone(), "default");
    pods.create(&dry_run(), &pod).await.unwrap();
    let annotations: &mut BTreeMap<String, String> = pod.metadata.annotations.get_or_insert_default();
    annotations.insert("example.com/note".into(), "a".repeat(128 * 1024));
    expect_denied(DENIED, pods.create(&dry_run(), &pod).await);
}

/// Applies an object, as a dry run.
async fn write(client: &Client, object: &Value) -> kube::Result<DynamicObject> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let api_version = text(&object["apiVersion"]);
    let (group, version) = api_version.split_once('/').unwrap();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &text(&object["kind"])));
    let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    };
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::apply("kubelet").force()
    };
    let name = text(&object["metadata"]["name"]);
    api.patch(&name, &params, &Patch::Apply(object)).await
}
