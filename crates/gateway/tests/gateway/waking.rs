//! Connections to tenants that sleep: they are held, ask for a wake once, and are passed on.

use crate::setup::{
    SOON, Setup, add_service, add_tenant, echo, host_name, is_closed, key, limits, read_name, start, timeouts,
};
use berth_gateway::{
    Options,
    hold::HoldLimits,
    server::{Limits, Timeouts},
    sleep_state::{Activity, SleepState},
};
use clap::Parser;
use std::{sync::Arc, time::Duration};
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

const TENANTS: usize = 10;
const CONNECTIONS: usize = 100;

fn set(setup: &Setup, name: &str, activity: Activity) {
    let state = SleepState {
        activity,
        ..SleepState::default()
    };
    setup.table.put_tenant(key(name), "9", state);
}

async fn until_held(setup: &Setup, name: &str, count: usize) {
    let labels = format!("tenant_namespace=\"team-a\",tenant=\"{name}\"");
    setup
        .until_metric(&format!("berth_gateway_held_connections{{{labels}}} {count}"))
        .await;
}

async fn until_refused(setup: &Setup, name: &str, reason: &str, count: usize) {
    let labels = format!("tenant_namespace=\"team-a\",tenant=\"{name}\",reason=\"{reason}\"");
    setup
        .until_metric(&format!("berth_gateway_refusals_total{{{labels}}} {count}"))
        .await;
}

async fn until_requested(setup: &Setup, names: &[&str]) {
    let start = Instant::now();
    while setup.requests.names() != names {
        assert!(start.elapsed() < SOON, "requested: {:?}", setup.requests.names());
        sleep(Duration::from_millis(10)).await;
    }
}

/// An address at which nothing listens.
async fn closed_address() -> std::net::SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_connections_to_each_sleeper_cause_one_request_each_and_all_pass() {
    // All from one source, with the limits that a gateway has by default.
    let default = Options::try_parse_from(["berth-gateway", "--domain=example.com"]).unwrap();
    let setup = Arc::new(start(default.limits(), timeouts(), Vec::new()).await);
    let names: Vec<String> = (0..TENANTS).map(|index| format!("s{index}")).collect();
    let mut clients = JoinSet::new();
    for name in &names {
        set(&setup, name, Activity::Sleeping);
        for _ in 0..CONNECTIONS {
            let (setup, name) = (Arc::clone(&setup), name.clone());
            clients.spawn(async move {
                let mut stream = setup.connect_to(&name).await;
                echo(&mut stream, b"awake").await;
            });
        }
    }
    for name in &names {
        until_held(&setup, name, CONNECTIONS).await;
    }
    let expected: Vec<&str> = names.iter().map(String::as_str).collect();
    until_requested(&setup, &expected).await;
    // Others do not wait for them.
    echo(&mut setup.connect_to("speech").await, b"here").await;
    for name in &names {
        let server = setup.start_server(name).await;
        add_service(&setup.table, name, "9", server);
        set(&setup, name, Activity::Running);
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
    for name in &names {
        until_held(&setup, name, 0).await;
    }
    setup
        .until_metric(&format!("berth_gateway_hold_seconds_count {}", TENANTS * CONNECTIONS))
        .await;
    let labels = "tenant_namespace=\"team-a\",tenant=\"s0\",outcome=\"success\"";
    setup
        .until_metric(&format!("berth_gateway_wake_requests_total{{{labels}}} 1"))
        .await;
}

#[tokio::test]
async fn only_a_name_of_a_sleeper_wakes_it() {
    let short = Timeouts {
        handshake: Duration::from_secs(3),
        ..timeouts()
    };
    let setup = start(limits(), short, Vec::new()).await;
    set(&setup, "sleeper", Activity::Sleeping);
    let mut silent = TcpStream::connect(setup.address).await.unwrap();
    let mut half = TcpStream::connect(setup.address).await.unwrap();
    let hello = setup.client_hello(&host_name("sleeper"));
    half.write_all(&hello[..hello.len() - 1]).await.unwrap();
    for nobody in [host_name("nobody").as_str(), "team-a.example.com", "example.com"] {
        let error = setup.connect(nobody).await.unwrap_err();
        assert!(error.to_string().contains("UnrecognisedName"), "{nobody}: {error}");
    }
    for stream in [&mut silent, &mut half] {
        assert!(is_closed(stream).await);
    }
    assert!(setup.requests.names().is_empty());
    let mut whole = TcpStream::connect(setup.address).await.unwrap();
    whole.write_all(&hello).await.unwrap();
    until_requested(&setup, &["sleeper"]).await;
}

#[tokio::test]
async fn a_connection_is_closed_when_its_tenant_is_deleted_while_it_wakes() {
    let setup = Arc::new(start(limits(), timeouts(), Vec::new()).await);
    for activity in [Activity::Sleeping, Activity::Waking] {
        set(&setup, "sleeper", activity);
        let client = tokio::spawn({
            let setup = Arc::clone(&setup);
            async move { setup.connect(&host_name("sleeper")).await.map(|_| ()) }
        });
        until_held(&setup, "sleeper", 1).await;
        setup.table.delete_tenant(&key("sleeper"));
        let error = timeout(SOON, client).await.unwrap().unwrap().unwrap_err();
        assert!(error.to_string().contains("UnrecognisedName"), "{error}");
    }
    setup
        .until_metric("berth_gateway_refusals_total{tenant_namespace=\"\",tenant=\"\",reason=\"tenant-deleted\"} 2")
        .await;
}

#[tokio::test]
async fn connections_that_nothing_will_answer_are_refused_at_once() {
    let setup = Arc::new(start(limits(), timeouts(), Vec::new()).await);
    for (activity, alert, reason) in [
        (Activity::Kept, "InternalError", "kept-asleep"),
        (Activity::Ending, "UnrecognisedName", "tenant-deleted"),
    ] {
        set(&setup, "sleeper", Activity::Sleeping);
        let client = tokio::spawn({
            let setup = Arc::clone(&setup);
            async move { setup.connect(&host_name("sleeper")).await.map(|_| ()) }
        });
        until_held(&setup, "sleeper", 1).await;
        // The mode is set to Asleep, or the tenant is deleted, while the client waits.
        set(&setup, "sleeper", activity);
        let error = timeout(SOON, client).await.unwrap().unwrap().unwrap_err();
        assert!(error.to_string().contains(alert), "{error}");
        until_refused(&setup, "sleeper", reason, 1).await;
    }
    set(&setup, "sleeper", Activity::Kept);
    setup.connect(&host_name("sleeper")).await.unwrap_err();
    until_refused(&setup, "sleeper", "kept-asleep", 2).await;
}

#[tokio::test]
async fn clients_that_hang_up_free_their_places() {
    let setup = start(limits(), timeouts(), Vec::new()).await;
    set(&setup, "sleeper", Activity::Sleeping);
    let hello = setup.client_hello(&host_name("sleeper"));
    let begin = async || {
        let mut stream = TcpStream::connect(setup.address).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        stream
    };
    let (closes, breaks) = (begin().await, begin().await);
    let (mut says_more, mut stays) = (begin().await, begin().await);
    until_held(&setup, "sleeper", 4).await;
    says_more.write_all(b"early data").await.unwrap();
    drop(closes);
    breaks.set_zero_linger().unwrap();
    drop(breaks);
    until_held(&setup, "sleeper", 2).await;
    drop(says_more);
    until_held(&setup, "sleeper", 1).await;
    until_refused(&setup, "sleeper", "closed", 3).await;
    // What a client says early is for the API server, in order.
    stays.write_all(b"not TLS").await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    add_service(&setup.table, "sleeper", "9", listener.local_addr().unwrap());
    set(&setup, "sleeper", Activity::Running);
    let (mut server, _) = timeout(SOON, listener.accept()).await.unwrap().unwrap();
    stays.shutdown().await.unwrap();
    let mut received = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut server, &mut received);
    timeout(SOON, read).await.unwrap().unwrap();
    assert_eq!(received, [&hello[..], b"not TLS"].concat());
}

#[tokio::test]
async fn a_tenant_that_has_just_fallen_asleep_is_woken() {
    let setup = Arc::new(start(limits(), timeouts(), Vec::new()).await);
    set(&setup, "sleeper", Activity::Running);
    add_service(&setup.table, "sleeper", "9", closed_address().await);
    let client = tokio::spawn({
        let setup = Arc::clone(&setup);
        async move { setup.connect_to("sleeper").await }
    });
    until_requested(&setup, &["sleeper"]).await;
    // The status arrives only now.
    set(&setup, "sleeper", Activity::Sleeping);
    let server = setup.start_server("sleeper").await;
    add_service(&setup.table, "sleeper", "9", server);
    set(&setup, "sleeper", Activity::Running);
    let mut stream = timeout(SOON, client).await.unwrap().unwrap();
    echo(&mut stream, b"awake").await;
}

#[tokio::test]
async fn connections_to_what_does_not_come_end_with_a_reason() {
    let short = Timeouts {
        wake: Duration::from_secs(1),
        ..timeouts()
    };
    let setup = start(limits(), short, Vec::new()).await;
    set(&setup, "sleeper", Activity::Sleeping);
    add_tenant(&setup.table, "new", "3", closed_address().await);
    set(&setup, "broken", Activity::Running);
    add_service(&setup.table, "broken", "9", closed_address().await);
    for (name, reason) in [
        ("sleeper", "wake-timeout"),
        ("broken", "backend-unavailable"),
        ("new", "backend-unavailable"),
    ] {
        let error = setup.connect(&host_name(name)).await.unwrap_err();
        assert!(error.to_string().contains("InternalError"), "{name}: {error}");
        until_refused(&setup, name, reason, 1).await;
    }
    // One that has never run is not asked for.
    assert_eq!(setup.requests.names(), ["broken", "sleeper"]);
}

#[tokio::test]
async fn held_connections_beyond_the_limit_are_refused() {
    let two = Limits {
        held: HoldLimits {
            of_tenant: 2,
            ..limits().held
        },
        ..limits()
    };
    let setup = Arc::new(start(two, timeouts(), Vec::new()).await);
    set(&setup, "sleeper", Activity::Sleeping);
    let mut clients = JoinSet::new();
    for _ in 0..2 {
        let setup = Arc::clone(&setup);
        clients.spawn(async move { setup.connect(&host_name("sleeper")).await.unwrap() });
    }
    until_held(&setup, "sleeper", 2).await;
    let error = setup.connect(&host_name("sleeper")).await.unwrap_err();
    assert!(error.to_string().contains("InternalError"), "{error}");
    until_refused(&setup, "sleeper", "hold-limit", 1).await;
    let server = setup.start_server("sleeper").await;
    add_service(&setup.table, "sleeper", "9", server);
    set(&setup, "sleeper", Activity::Running);
    for mut stream in clients.join_all().await {
        read_name(&mut stream, "sleeper").await;
    }
    // It is awake: the limit of held connections no longer applies.
    let mut open = JoinSet::new();
    for _ in 0..5 {
        let setup = Arc::clone(&setup);
        open.spawn(async move { setup.connect_to("sleeper").await });
    }
    assert_eq!(open.join_all().await.len(), 5);
}
