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
        let tenant = json!({"spec": {"containers": [{"name": "main"}]}});
        let pods: Vec<(Name, Value, Value)> = pods
            .iter()
            .map(|pod| (pod.clone(), tenant.clone(), json!({})))
            .collect();
        Self::of(pods)
    }

    /// The same with these pods: each with its name, and with spec and status of both sides.
    fn of(pods: Vec<(Name, Value, Value)>) -> Arc<Self> {
        let engine = test_engine::engine();
        for (pod, mut tenant, mut host) in pods {
            tenant["metadata"] = json!({"name": "p", "uid": "u"});
            host["metadata"] = json!({"name": "h", "annotations": {"berth.dev/origin-uid": "u"}});
            host["spec"] = json!({"nodeName": "gpu-1"});
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
        self.request(&format!("/containerLogs/{pod}/main?follow=true")).await
    }

    /// Makes a request that may be upgraded. Returns the head of the answer, and the connection.
    async fn request(self: &Arc<Self>, path: &str) -> (String, DuplexStream) {
        let (mut client, server) = tokio::io::duplex(64 << 10);
        let fixture = Arc::clone(self);
        tokio::spawn(async move {
            let (cache, node) = (fixture.engine.cache(), Name::new("", "gpu-1"));
            let handle = |request| fixture.kubelet.answer(cache, &node, request);
            drop(serve::http(server, IDLE, handle).await);
        });
        let upgrade = if path.starts_with("/containerLogs") {
            ""
        } else {
            "connection: upgrade\r\nupgrade: spdy/3.1\r\n"
        };
        let head = format!("GET {path} HTTP/1.1\r\nhost: a\r\n{upgrade}\r\n");
        client.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(client.read_u8().await.unwrap());
        }
        (String::from_utf8(answer).unwrap().to_lowercase(), client)
    }

    /// The status with which a log, a command and an attached terminal of a container are answered. The host answers logs alone, so that one
    /// that reaches it has 200, and the others have 502.
    async fn statuses(self: &Arc<Self>, pod: &Name, container: &str) -> [u16; 3] {
        let mut statuses = [0; 3];
        for (status, path) in statuses.iter_mut().zip([
            format!("/containerLogs/{pod}/{container}"),
            format!("/exec/{pod}/{container}?command=id&output=1"),
            format!("/attach/{pod}/{container}?output=1"),
        ]) {
            let (answer, _connection) = self.request(&path).await;
            *status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        }
        statuses
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

const REACHES_THE_HOST: [u16; 3] = [200, 502, 502];
const IS_UNKNOWN: [u16; 3] = [404; 3];

#[tokio::test]
async fn containers_of_the_platform_are_not_reached_by_the_name_of_an_ephemeral_one() {
    let (taken, own) = (Name::new("team", "p"), Name::new("team", "q"));
    // The host refused the ephemeral container, because the platform has one of that name in the pod. The tenant's pod keeps it.
    let tenant = json!({"spec": {"containers": [{"name": "main"}], "ephemeralContainers": [{"name": "mesh"}]}});
    let injected = json!({"status": {"containerStatuses": [{"name": "main"}, {"name": "mesh"}]}});
    let accepted = json!({"status": {
        "containerStatuses": [{"name": "main"}], "ephemeralContainerStatuses": [{"name": "mesh"}]}});
    let fixture = Fixture::of(vec![
        (taken.clone(), tenant.clone(), injected),
        (own.clone(), tenant, accepted),
    ]);
    assert_eq!(fixture.statuses(&taken, "mesh").await, IS_UNKNOWN);
    assert_eq!(fixture.statuses(&taken, "main").await, REACHES_THE_HOST);
    assert_eq!(fixture.statuses(&own, "mesh").await, REACHES_THE_HOST);
    assert_eq!(fixture.statuses(&own, "other").await, IS_UNKNOWN);
}

#[tokio::test]
async fn containers_that_have_not_started_are_answered_as_by_a_kubelet() {
    let pod = Name::new("team", "p");
    let tenant = json!({"spec": {
        "containers": [{"name": "main"}], "initContainers": [{"name": "prepare"}], "ephemeralContainers": [{"name": "debug"}]}});
    let fixture = Fixture::of(vec![(pod.clone(), tenant, json!({"status": {"phase": "Pending"}}))]);
    // The host's kubelet knows why.
    for container in ["main", "prepare"] {
        assert_eq!(fixture.statuses(&pod, container).await, REACHES_THE_HOST, "{container}");
    }
    assert_eq!(fixture.statuses(&pod, "debug").await, [400, 500, 500]);
    for (path, message) in [
        (
            "/containerLogs/team/p/debug",
            r#"container "debug" in pod "p" is waiting to start: ContainerCreating"#,
        ),
        ("/exec/team/p/debug?command=id", r#"container not found ("debug")"#),
    ] {
        let (_, mut connection) = fixture.request(path).await;
        let mut body = String::new();
        connection.read_to_string(&mut body).await.unwrap();
        assert_eq!(body, message);
    }
}
