//! Connections reach the server that they name, within limits.

use crate::setup::{MANY, SOON, add_tenant, echo, host_name, is_closed, key, limits, start, timeouts};
use berth_gateway::server::Timeouts;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_reach_the_server_that_they_name() {
    let setup = Arc::new(start(limits(), timeouts(), Vec::new()).await);
    let mut clients = JoinSet::new();
    for index in 0..MANY {
        let setup = Arc::clone(&setup);
        clients.spawn(async move {
            let name = ["vision", "speech"][index % 2];
            let mut stream = setup.connect_to(name).await;
            let bytes = vec![u8::try_from(index % 256).unwrap(); 100_000];
            echo(&mut stream, &bytes).await;
            stream
        });
    }
    let open = clients.join_all().await;
    setup
        .until_metric("berth_gateway_open_connections{tenant_namespace=\"team-a\",tenant=\"vision\"} 100")
        .await;
    drop(open);
    setup
        .until_metric("berth_gateway_open_connections{tenant_namespace=\"team-a\",tenant=\"vision\"} 0")
        .await;
    setup
        .until_metric("berth_gateway_connections_total{tenant_namespace=\"team-a\",tenant=\"speech\"} 100")
        .await;
}

#[tokio::test]
async fn unknown_and_missing_names_are_refused_with_an_alert() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    for host in ["vision.team-b.example.com", "example.com", "127.0.0.1"] {
        let error = setup.connect(host).await.unwrap_err();
        assert!(error.to_string().contains("UnrecognisedName"), "{host}: {error}");
    }
    for (reason, count) in [("unknown-server-name", 2), ("no-server-name", 1)] {
        let labels = format!("tenant_namespace=\"\",tenant=\"\",reason=\"{reason}\"");
        setup
            .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} {count}"))
            .await;
    }
    // The name decides which server answers, and its certificate says so: a wrong name never reaches another tenant.
    setup.connect_to("vision").await;
}

#[tokio::test]
async fn silent_and_wrong_clients_are_dropped() {
    let short = Timeouts {
        handshake: Duration::from_secs(1),
        ..timeouts()
    };
    let setup = start(limits(), short, Vec::new()).await;
    let mut silent = TcpStream::connect(setup.address).await.unwrap();
    let mut half = TcpStream::connect(setup.address).await.unwrap();
    half.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    let mut http = TcpStream::connect(setup.address).await.unwrap();
    http.write_all(b"GET /version HTTP/1.1\r\n\r\n").await.unwrap();
    for stream in [&mut silent, &mut half, &mut http] {
        assert!(is_closed(stream).await);
    }
    for (reason, count) in [("handshake-timeout", 2), ("invalid-client-hello", 1)] {
        let labels = format!("tenant_namespace=\"\",tenant=\"\",reason=\"{reason}\"");
        setup
            .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} {count}"))
            .await;
    }
    // One that is through is not dropped.
    let mut stream = setup.connect_to("vision").await;
    sleep(2 * short.handshake).await;
    echo(&mut stream, b"still here").await;
}

#[tokio::test]
async fn the_connections_of_a_deleted_tenant_are_closed() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    let (mut gone, mut other) = (setup.connect_to("vision").await, setup.connect_to("speech").await);
    setup.table.delete_tenant(&key("vision"));
    assert!(is_closed(&mut gone).await);
    assert!(setup.connect(&host_name("vision")).await.is_err());
    echo(&mut other, b"still here").await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_an_alert() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    add_tenant(&setup.table, "broken", "3", closed);
    let error = setup.connect(&host_name("broken")).await.unwrap_err();
    assert!(error.to_string().contains("InternalError"), "{error}");
    let labels = "tenant_namespace=\"team-a\",tenant=\"broken\",reason=\"backend-unavailable\"";
    setup
        .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} 1"))
        .await;
}

#[tokio::test]
async fn connections_go_on_while_the_gateway_drains_and_are_closed_then() {
    let short = Timeouts {
        drain: Duration::from_secs(4),
        ..timeouts()
    };
    let setup = start(limits(), short, Vec::new()).await;
    let mut stream = setup.connect_to("vision").await;
    setup.stop.cancel();
    let start = Instant::now();
    while TcpStream::connect(setup.address).await.is_ok() {
        assert!(start.elapsed() < SOON, "connections are still accepted");
        sleep(Duration::from_millis(10)).await;
    }
    echo(&mut stream, b"still here").await;
    assert!(is_closed(&mut stream).await);
    timeout(SOON, setup.served).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_gateway_without_connections_ends_at_once() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    drop(setup.connect_to("vision").await);
    let start = Instant::now();
    setup.stop.cancel();
    timeout(SOON, setup.served).await.unwrap().unwrap();
    assert!(start.elapsed() < SOON / 2);
}
