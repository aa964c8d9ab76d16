//! Tenants that sleep behind the gateway, with real control planes: many connections wake each of them once, although control is killed
//! meanwhile; one is deleted while it wakes; many watches outlast the gateway; and no credential is where people look. The test starts
//! control anew with the gateway's domain, so it needs the cluster for itself.
//!
//! `BERTH_WAKE_TENANTS` sets the number of tenants that sleep (default 2, and at least that).

use crate::{
    cli::unpacked_bundle,
    sleep::{count_wakes, kill_control},
};
use berth_api::SleepState;
use berth_control::control_plane::{API_SERVER, CONTROLLER_MANAGER, COREDNS, SYNCER};
use berth_process::free_port;
use berth_tests::{
    canaries::Canaries,
    command_line::CommandLine,
    files::raise_file_limit,
    gateway::{Gateway, control_flags},
    objects::apply,
    sleep::{fall_asleep, processes, request_sleep, until_nothing_runs, until_state},
    tenant::{Tenant, cluster, patient_with, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use futures::{StreamExt, stream};
use k8s_openapi::api::{
    authentication::v1::{TokenRequest, TokenRequestSpec},
    core::v1::{ConfigMap, Namespace, ServiceAccount},
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams, PostParams},
    config::KubeConfigOptions,
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tokio::{task::JoinSet, time::timeout};

const NAMESPACE: &str = "sys-wake";
/// Connections to each tenant that sleeps.
const CONNECTIONS: usize = 100;
/// Watches of one tenant.
const WATCHES: usize = 1000;
/// The ConfigMap that they follow.
const NEWS: &str = "news";
/// A token that no API server knows.
const UNKNOWN_TOKEN: &str = "CANARYq7Zx19KdAAq7Zx19KdAAq7Zx19KdAA";

pub(crate) async fn a_storm_wakes_each_sleeper_once_and_watches_outlast_the_gateway(host: Arc<TestCluster>) {
    raise_file_limit();
    let port = free_port().unwrap();
    host.stop_control("first").await;
    host.start_control_with("first", &control_flags(port)).await;
    // All clients of the test are one source.
    let flags = [
        "--wake-timeout=180",
        "--drain-timeout=2",
        "--max-connections-per-tenant-and-source=2000",
    ];
    let mut gateway = Gateway::start(&host, port, &flags).await;
    let count = std::env::var("BERTH_WAKE_TENANTS").ok();
    let count: usize = count.and_then(|text| text.parse().ok()).unwrap_or(2);
    eprintln!("BERTH_WAKE_TENANTS={count}");
    let wanted: Vec<_> = (0..count.max(2))
        .map(|index| cluster(&format!("sleeper-{index}"), &[]))
        .collect();
    let mut tenants: Vec<Tenant> = stream::iter(&wanted)
        .map(|cluster| Tenant::create(&host, NAMESPACE, cluster))
        .buffered(2)
        .collect()
        .await;

    storm(&host, &gateway, &tenants).await;
    for more in tenants.drain(2..) {
        more.delete(&host).await;
    }
    let [one, two] = <[Tenant; 2]>::try_from(tenants).ok().unwrap();
    deleted_while_it_wakes(&host, &gateway, &two).await;
    let canaries = use_tokens(&host, &gateway, &one).await;
    watches_outlast(&mut gateway, &one).await;
    no_credential_is_seen(&host, &gateway, &one, &canaries).await;

    one.delete(&host).await;
    assert!(gateway.stop().await.success());
    host.stop_control("first").await;
    host.start_control("first").await;
}

/// A client that waits for an API server for as long as the gateway holds its connection.
async fn client_of(gateway: &Gateway, tenant: &Tenant) -> Client {
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(gateway.kubeconfig(tenant), &options)
        .await
        .unwrap();
    config.connect_timeout = Some(SOON);
    config.default_retry = false;
    Client::try_from(config).unwrap()
}

/// The value of a metric of the gateway that counts a tenant's requests to be woken.
async fn wake_requests(gateway: &Gateway, tenant: &Tenant, outcome: &str) -> Option<String> {
    let labels = format!(
        "tenant_namespace=\"{NAMESPACE}\",tenant=\"{}\",outcome=\"{outcome}\"",
        tenant.name
    );
    let series = format!("berth_gateway_wake_requests_total{{{labels}}} ");
    let metrics = gateway.metrics().await;
    metrics
        .lines()
        .find_map(|line| line.strip_prefix(&series).map(ToOwned::to_owned))
}

async fn storm(host: &TestCluster, gateway: &Gateway, tenants: &[Tenant]) {
    for tenant in tenants {
        request_sleep(host, tenant).await;
    }
    for tenant in tenants {
        until_nothing_runs(host, tenant).await;
    }
    let mut asking = JoinSet::new();
    for tenant in tenants {
        let client = client_of(gateway, tenant).await;
        for _ in 0..CONNECTIONS {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            asking.spawn(async move {
                namespaces
                    .list(&ListParams::default())
                    .await
                    .map(|list| list.items.len())
            });
        }
    }
    for tenant in tenants {
        until_true("the gateway has asked for the wake", SOON, async || {
            wake_requests(gateway, tenant, "success").await.as_deref() == Some("1")
        })
        .await;
    }
    // All are being woken, or about to be.
    kill_control(host, &[50, 700]).await;
    while let Some(answer) = asking.join_next().await {
        // The first answers are right, and not those of an API server that does not know its rules yet.
        assert!(answer.unwrap().unwrap() > 0, "no namespaces");
    }
    for tenant in tenants {
        until_state(host, tenant, SleepState::Awake).await;
        let woken = Tenant::ready(host, NAMESPACE, &tenant.name).await;
        assert_eq!(
            processes(host, &woken),
            [COREDNS, API_SERVER, CONTROLLER_MANAGER, SYNCER]
        );
        assert_eq!(wake_requests(gateway, tenant, "success").await.as_deref(), Some("1"));
        // Its Event may be lost with the control that was killed.
        let wakes = count_wakes(host, tenant).await;
        assert!(wakes <= 1, "{} was woken {wakes} times", tenant.name);
    }
}

async fn deleted_while_it_wakes(host: &TestCluster, gateway: &Gateway, tenant: &Tenant) {
    fall_asleep(host, tenant).await;
    let client = client_of(gateway, tenant).await;
    let asking = tokio::spawn(async move { client.apiserver_version().await });
    until("it is woken", SOON, async || {
        let cluster = host.tenants(NAMESPACE).get(&tenant.name).await;
        match cluster.map_err(|error| error.to_string())?.sleep_state() {
            SleepState::Sleeping => Err("it sleeps".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    let tenants = host.tenants(NAMESPACE);
    tenants.delete(&tenant.name, &DeleteParams::default()).await.unwrap();
    // It was answered before, or refused: it does not wait for the end of the deletion.
    let answered = timeout(SOON, asking).await.expect("a connection is still held");
    drop(answered.unwrap());
    until_gone(host, NAMESPACE, &tenant.name).await;
    assert!(processes(host, tenant).is_empty());
}

/// Uses tokens by way of the gateway. Returns them with the other credentials of the tenant.
async fn use_tokens(host: &TestCluster, gateway: &Gateway, tenant: &Tenant) -> Canaries {
    let mut canaries = Canaries::of(host, tenant).await;
    let accounts: Api<ServiceAccount> = Api::namespaced(client_of(gateway, tenant).await, "default");
    let asked = TokenRequest {
        spec: Some(TokenRequestSpec {
            expiration_seconds: Some(3600),
            ..TokenRequestSpec::default()
        }),
        ..TokenRequest::default()
    };
    until("the ServiceAccount exists", SOON, async || {
        accounts.get("default").await
    })
    .await;
    let issued = accounts
        .create_token_request("default", &PostParams::default(), &asked)
        .await
        .unwrap();
    let token = issued.status.and_then(|status| status.token).unwrap();
    for (token, is_known) in [(token.as_str(), true), (UNKNOWN_TOKEN, false)] {
        let mut kubeconfig = gateway.kubeconfig(tenant);
        let user = serde_json::from_value(json!({"token": token})).unwrap();
        kubeconfig.auth_infos[0].auth_info = Some(user);
        let client = patient_with(kubeconfig).await;
        assert_eq!(client.apiserver_version().await.is_ok(), is_known);
        canaries.add_whole(token);
    }
    canaries
}

/// Follows a ConfigMap as a controller does, and keeps the last round that it saw.
async fn follow(maps: Api<ConfigMap>, rounds: Arc<Vec<AtomicUsize>>, index: usize) {
    let config = watcher::Config::default().fields(&format!("metadata.name={NEWS}"));
    let mut objects = watcher(maps, config).default_backoff().applied_objects().boxed();
    while let Some(next) = objects.next().await {
        let round = next.ok().and_then(|map| map.data?.get("round")?.parse().ok());
        if let Some(round) = round {
            rounds[index].store(round, Ordering::Relaxed);
        }
    }
}

/// The gateway is killed with many watches open: they go on by themselves, and miss nothing.
async fn watches_outlast(gateway: &mut Gateway, tenant: &Tenant) {
    let client = client_of(gateway, tenant).await;
    let rounds: Arc<Vec<AtomicUsize>> = Arc::new((0..WATCHES).map(|_| AtomicUsize::default()).collect());
    let mut watches = JoinSet::new();
    for index in 0..WATCHES {
        let maps = Api::namespaced(client.clone(), "default");
        watches.spawn(follow(maps, Arc::clone(&rounds), index));
    }
    let until_all_saw = async |round: usize| {
        until(&format!("all watches have seen round {round}"), SOON, async || {
            let seen = rounds
                .iter()
                .filter(|seen| seen.load(Ordering::Relaxed) == round)
                .count();
            if seen == WATCHES { Ok(()) } else { Err(seen) }
        })
        .await;
    };
    // The gateway may be down for a moment.
    let say = async |round: usize| {
        let news = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NEWS},
            "data": {"round": round.to_string()}});
        until("the API server is reached", SOON, async || {
            apply(&client, "default", &news).await
        })
        .await;
    };
    say(1).await;
    until_all_saw(1).await;
    let name = format!("tenant_namespace=\"{NAMESPACE}\",tenant=\"{}\"", tenant.name);
    let open = format!("berth_gateway_open_connections{{{name}}} ");
    until("a connection is open for each watch", SOON, async || {
        let metrics = gateway.metrics().await;
        let value = metrics.lines().find_map(|line| line.strip_prefix(&open)?.parse().ok());
        value.filter(|value: &usize| *value >= WATCHES).ok_or(value)
    })
    .await;
    gateway.kill_and_restart().await;
    say(2).await;
    until_all_saw(2).await;
    assert_eq!(watches.len(), WATCHES);
    assert!(watches.try_join_next().is_none(), "a watch has ended");
}

/// No token, key or kubeconfig is in a log, in the arguments or the environment of a process, or in a debug bundle.
async fn no_credential_is_seen(host: &TestCluster, gateway: &Gateway, tenant: &Tenant, canaries: &Canaries) {
    // Authorities, certificates of components, the team's, and tokens: the search can find something.
    assert!(canaries.len() > 20, "only {} credentials are known", canaries.len());
    assert!(canaries.are_in(&tenant.kubeconfig));
    let logs = canaries.assert_not_below(&host.home().logs());
    assert!(logs >= 5, "only {logs} logs");
    let log = gateway.log();
    assert!(log.contains("asked control to wake the tenant"), "{log}");
    canaries.assert_not_in("the log of the gateway", &log);
    let records = [host.tenant_records(), host.control_records()];
    let running = records.iter().flat_map(|records| berth_process::statuses(records));
    let ids: Vec<u32> = running
        .filter_map(|process| process.pid)
        .chain([gateway.id()])
        .collect();
    assert!(ids.len() >= 6, "only {} processes", ids.len());
    for id in ids {
        canaries.assert_not_in_process(id);
    }
    let user = CommandLine::of_administrator(host);
    let bundle = unpacked_bundle(&user, &format!("{NAMESPACE}/{}", tenant.name)).await;
    let files = canaries.assert_not_below(&bundle);
    assert!(files > 5, "only {files} files in the bundle");
}
