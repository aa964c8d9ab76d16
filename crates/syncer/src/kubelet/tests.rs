//! Tests of what may be open, with an API server that asks and a host whose logs are silent.

use super::*;
use crate::{engine::test_engine, store::fake_server::watch_server, tls::tests::DAY};
use berth_pki::CertificateAuthority;
use berth_sync_rules::model::{resource::Side, store::Stored};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

/// Kubelets of a tenant whose pods all run on one node.
struct Fixture {
    engine: Arc<Engine>,
    kubelet: Kubelet,
}

impl Fixture {
    fn new(pods: &[Name]) -> Arc<Self> {
        let engine = test_engine::engine();
        for pod in pods {
            let tenant = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"containers": [{"name": "main"}]}});
            let host = json!({"metadata": {"name": "h", "annotations": {"berth.dev/origin-uid": "u"}}, "spec": {"nodeName": "gpu-1"}});
            for (side, object) in [(Side::Tenant, tenant), (Side::Host, host)] {
                let store = engine.cache().stores.of(side, KindId::Pod);
                store.watched(pod.clone(), Stored::from(object));
            }
        }
        let authority = CertificateAuthority::create("kubelet", DAY).unwrap();
        // It answers each request with a body that never comes.
        let host = watch_server(Vec::new());
        Arc::new(Self {
            engine,
            kubelet: Kubelet::new(host, Arc::new(Certificates::new(authority))),
        })
    }

    /// Follows the log of a pod. Returns the head of the answer, and the connection.
    async fn follow(self: &Arc<Self>, pod: &Name) -> (String, DuplexStream) {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        let fixture = Arc::clone(self);
        tokio::spawn(async move {
            let (cache, node) = (fixture.engine.cache(), Name::new("", "gpu-1"));
            let handle = |request| fixture.kubelet.answer(cache, &node, request);
            drop(serve::http(server, IDLE, handle).await);
        });
        let head = format!("GET /containerLogs/{pod}/main?follow=true HTTP/1.1\r\nhost: a\r\n\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(client.read_u8().await.unwrap());
        }
        (String::from_utf8(answer).unwrap().to_lowercase(), client)
    }
}

#[tokio::test]
async fn logs_of_a_silent_pod_leave_places_to_others() {
    let [silent, same, other] =
        [("team", "silent"), ("team", "same"), ("other", "a")].map(|(namespace, name)| Name::new(namespace, name));
    let fixture = Fixture::new(&[silent.clone(), same.clone(), other.clone()]);
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS / 4 {
        let (answer, connection) = fixture.follow(&silent).await;
        assert!(answer.starts_with("http/1.1 200"), "{answer}");
        open.push(connection);
    }
    let (answer, mut denied) = fixture.follow(&silent).await;
    assert!(answer.starts_with("http/1.1 429"), "{answer}");
    // The connection ends, so that its place is free.
    let mut rest = Vec::new();
    denied.read_to_end(&mut rest).await.unwrap();
    for pod in [&same, &other] {
        let (answer, _connection) = fixture.follow(pod).await;
        assert!(answer.starts_with("http/1.1 200"), "{pod}: {answer}");
    }
    // What is closed is free again, once that is noticed.
    open.pop();
    let mut tries = 0;
    while !fixture.follow(&silent).await.0.starts_with("http/1.1 200") {
        tries += 1;
        assert!(tries < 1000);
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_connection_is_for_one_request() {
    let pod = Name::new("team", "a");
    let fixture = Fixture::new(std::slice::from_ref(&pod));
    let (answer, _connection) = fixture.follow(&pod).await;
    assert!(answer.contains("connection: close"), "{answer}");
    let (answer, mut connection) = fixture.follow(&Name::new("team", "unknown")).await;
    assert!(answer.starts_with("http/1.1 404"), "{answer}");
    let mut rest = Vec::new();
    connection.read_to_end(&mut rest).await.unwrap();
}
