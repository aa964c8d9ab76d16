//! What a gateway does not give away: places, memory and time.

use crate::setup::{SOON, Setup, add_tenant, echo, host_name, is_closed, limits, read_name, start, timeouts};
use berth_gateway::{
    Options,
    server::{Limits, Timeouts},
};
use berth_runtime::sockets;
use clap::Parser;
use ipnet::IpNet;
use std::{io, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpSocket, TcpStream},
    time::{sleep, timeout},
};
use tokio_rustls::client::TlsStream;

/// Load balancers of which all clients of the test are one.
fn proxies() -> Vec<IpNet> {
    vec!["127.0.0.0/8".parse().unwrap()]
}

/// A connection to `vision` from the address 192.0.2.`last`, as a load balancer names it.
async fn connect_from(setup: &Setup, last: u8) -> io::Result<TlsStream<TcpStream>> {
    let mut stream = TcpStream::connect(setup.address).await.unwrap();
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02";
    stream.write_all(header).await.unwrap();
    stream.write_all(&[last, 10, 0, 0, 1, 1, 1, 1, 187]).await.unwrap();
    setup.connect_over(stream, &host_name("vision")).await
}

/// Waits until so many connections were refused whose tenant is not known.
async fn until_refused(setup: &Setup, reason: &str, count: usize) {
    let labels = format!("tenant_namespace=\"\",tenant=\"\",reason=\"{reason}\"");
    setup
        .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} {count}"))
        .await;
}

#[tokio::test]
async fn a_tenant_with_too_many_connections_disturbs_no_other() {
    let one = Limits {
        of_tenant: 1,
        ..limits()
    };
    let setup = start(one, timeouts(), Vec::new()).await;
    let first = setup.connect_to("vision").await;
    let error = setup.connect(&host_name("vision")).await.unwrap_err();
    assert!(error.to_string().contains("InternalError"), "{error}");
    setup.connect_to("speech").await;
    drop(first);
    setup
        .until_metric("berth_gateway_open_connections{tenant_namespace=\"team-a\",tenant=\"vision\"} 0")
        .await;
    setup.connect_to("vision").await;
}

#[tokio::test]
async fn sources_are_limited_by_the_address_that_the_load_balancer_names() {
    let one = Limits {
        of_source: 1,
        ..limits()
    };
    let setup = start(one, timeouts(), proxies()).await;
    let mut first = connect_from(&setup, 1).await.unwrap();
    assert!(
        connect_from(&setup, 1).await.is_err(),
        "a second connection of the same address"
    );
    let mut other = connect_from(&setup, 2).await.unwrap();
    for stream in [&mut first, &mut other] {
        read_name(stream, "vision").await;
    }
    // Without a header nothing is believed.
    assert!(setup.connect(&host_name("vision")).await.is_err());
    until_refused(&setup, "invalid-proxy-header", 1).await;
}

#[tokio::test]
async fn one_source_does_not_take_all_places_of_a_tenant() {
    let flags = ["--max-connections-per-tenant=4", "--max-connections-per-source=4"];
    let command = ["berth-gateway", "--domain=example.com"].into_iter().chain(flags);
    let few = Options::try_parse_from(command).unwrap().limits();
    let setup = start(few, timeouts(), proxies()).await;
    let mut open = Vec::new();
    while let Ok(mut stream) = connect_from(&setup, 1).await {
        read_name(&mut stream, "vision").await;
        open.push(stream);
    }
    assert_eq!(open.len(), 1);
    let labels = "tenant_namespace=\"team-a\",tenant=\"vision\",reason=\"tenant-source-limit\"";
    setup
        .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} 1"))
        .await;
    read_name(&mut connect_from(&setup, 2).await.unwrap(), "vision").await;
}

/// A connection that says nothing, which the gateway has accepted: it counts for its source.
async fn connect_silently(setup: &Setup) -> TcpStream {
    TcpStream::connect(setup.address).await.unwrap()
}

#[tokio::test]
async fn silent_connections_keep_nobody_out() {
    let few = |connections, handshakes| Limits {
        connections,
        handshakes,
        ..limits()
    };
    // Their own places are taken, or those of all connections.
    for few in [few(100, 3), few(3, 100)] {
        let setup = start(few, timeouts(), Vec::new()).await;
        let mut first = connect_silently(&setup).await;
        let _others = [connect_silently(&setup).await, connect_silently(&setup).await];
        let mut stream = setup.connect_to("vision").await;
        assert!(is_closed(&mut first).await);
        until_refused(&setup, "handshake-limit", 1).await;
        echo(&mut stream, b"here").await;
    }
}

/// Adds a tenant whose API server sends so many bytes at once and then nothing.
async fn add_sender(setup: &Setup, name: &str, uid: &str, bytes: usize) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    add_tenant(&setup.table, name, uid, listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                // The gateway closes the connection.
                let _ = stream.write_all(&vec![1; bytes]).await;
                sleep(2 * SOON).await;
            });
        }
    });
}

/// A client that asks for a tenant and reads nothing.
async fn connect_and_stall(setup: &Setup, name: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(setup.address).await.unwrap();
    stream.write_all(&setup.client_hello(&host_name(name))).await.unwrap();
    stream
}

#[tokio::test]
async fn a_client_that_reads_nothing_is_not_kept_and_an_idle_one_is() {
    let short = Timeouts {
        stall: Duration::from_secs(2),
        ..timeouts()
    };
    let setup = start(limits(), short, Vec::new()).await;
    // More than the buffers of all sockets hold, and what those of the client's connection hold.
    add_sender(&setup, "much", "3", 64 << 20).await;
    add_sender(&setup, "little", "4", 64 << 10).await;
    let mut idle = setup.connect_to("vision").await;
    let mut stalled = Vec::new();
    for name in ["much", "little"] {
        stalled.push(connect_and_stall(&setup, name).await);
    }
    let open = |name: &str, count: usize| {
        format!("berth_gateway_open_connections{{tenant_namespace=\"team-a\",tenant=\"{name}\"}} {count}")
    };
    for count in [1, 0] {
        for name in ["much", "little"] {
            setup.until_metric(&open(name, count)).await;
        }
    }
    sleep(2 * short.stall).await;
    setup.until_metric(&open("vision", 1)).await;
    echo(&mut idle, b"still here").await;
}

#[tokio::test]
async fn no_more_clients_that_read_nothing_are_kept_than_there_are_places() {
    const PLACES: usize = 3;
    const CLIENTS: usize = 10;
    let few = Limits {
        stalled: PLACES,
        ..limits()
    };
    let setup = start(few, timeouts(), Vec::new()).await;
    add_sender(&setup, "much", "3", 4 << 20).await;
    let mut stalled = Vec::new();
    for _ in 0..CLIENTS {
        stalled.push(connect_and_stall(&setup, "much").await);
    }
    let labels = "{tenant_namespace=\"team-a\",tenant=\"much\"}";
    for (name, count) in [
        ("displaced_connections_total", CLIENTS - PLACES),
        ("open_connections", PLACES),
    ] {
        setup
            .until_metric(&format!("berth_gateway_{name}{labels} {count}"))
            .await;
    }
    echo(&mut setup.connect_to("vision").await, b"still here").await;
}

/// Bytes that an API server reads before it reads no more. The kernel lets the buffers before it grow meanwhile.
const READ: usize = 64 << 20;

#[tokio::test]
async fn little_is_kept_for_an_api_server_that_reads_nothing() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    add_tenant(&setup.table, "busy", "3", listener.local_addr().unwrap());
    let mut client = TcpStream::connect(setup.address).await.unwrap();
    // So that neither end keeps much itself.
    sockets::limit_unsent(&client);
    client.write_all(&setup.client_hello(&host_name("busy"))).await.unwrap();
    let (mut server, _) = listener.accept().await.unwrap();
    sockets::limit_unread(&server);
    let reading = async {
        let mut buffer = vec![0; 64 << 10];
        let mut read = 0;
        while read < READ {
            read += server.read(&mut buffer).await.unwrap();
        }
        read
    };
    let writing = async {
        let buffer = vec![1; 64 << 10];
        let mut written = 0;
        while let Ok(taken) = timeout(Duration::from_secs(2), client.write(&buffer)).await {
            written += taken.unwrap();
        }
        written
    };
    let (read, written) = timeout(SOON, async { tokio::join!(reading, writing) }).await.unwrap();
    let kept = written.saturating_sub(read);
    assert!(kept < 3 << 19, "{kept} bytes");
}
