//! A team that reaches its API server by way of the gateway, while the gateway and the team's tenant come and go. The tests start
//! control anew with the gateway's domain, so they need the cluster for themselves.

use crate::credentials::tokens_are_verified_by_the_document_at_the_gateway;
use berth_api::labels;
use berth_tests::{
    gateway::{Gateway, control_flags, host_name},
    kubectl::Kubectl,
    tenant::{Tenant, cluster, patient_with},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams, WatchEvent, WatchParams},
    runtime::{WatchStreamExt, watcher},
};
use serde_json::json;
use std::{pin::pin, sync::Arc, time::Duration};
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    sync::mpsc,
    time::{Instant, timeout},
};

const NAMESPACE: &str = "sys-gateway";

/// kubectl with the tenant's own kubeconfig, whose host name nothing resolves here.
async fn kubectl(tenant: &Tenant, gateway: &Gateway, name: &str, arguments: &[&str]) -> Result<String, String> {
    let server = format!("--server=https://{}", gateway.address());
    let name = format!("--tls-server-name={name}");
    let flags = [server.as_str(), name.as_str(), "--request-timeout=20s"];
    let said = Kubectl::of(tenant).run(&[&flags[..], arguments].concat()).await;
    if said.success { Ok(said.out) } else { Err(said.err) }
}

async fn create(maps: &Api<ConfigMap>, name: &str) {
    let map = ConfigMap {
        metadata: ObjectMeta {
            name: Some(name.into()),
            ..ObjectMeta::default()
        },
        ..ConfigMap::default()
    };
    maps.create(&PostParams::default(), &map).await.unwrap();
}

/// A plain watch sees what is created after it has begun.
async fn watch_once(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let version = maps
        .list(&ListParams::default())
        .await
        .unwrap()
        .metadata
        .resource_version;
    let params = WatchParams::default().timeout(60);
    let mut events = maps.watch(&params, &version.unwrap()).await.unwrap().boxed();
    create(&maps, "watched").await;
    let event = timeout(SOON, events.try_next()).await.unwrap().unwrap();
    assert!(
        matches!(event, Some(WatchEvent::Added(ref map)) if map.name_any() == "watched"),
        "{event:?}"
    );
}

/// Follows the ConfigMaps as a controller does: it watches again when a watch breaks.
fn follow(client: &Client) -> mpsc::UnboundedReceiver<String> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let (sender, receiver) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut objects = watcher(maps, watcher::Config::default())
            .default_backoff()
            .applied_objects()
            .boxed();
        loop {
            match objects.next().await {
                Some(Ok(map)) if sender.send(map.name_any()).is_err() => return,
                Some(_) => {}
                None => return,
            }
        }
    });
    receiver
}

async fn until_seen(names: &mut mpsc::UnboundedReceiver<String>, name: &str) {
    let seen = async {
        while let Some(seen) = names.recv().await {
            if seen == name {
                return;
            }
        }
        panic!("the watch of {name} has ended");
    };
    timeout(SOON, seen)
        .await
        .unwrap_or_else(|_| panic!("{name} is not seen"));
}

pub(crate) async fn a_team_works_through_the_gateway(host: Arc<TestCluster>) {
    let port = berth_process::free_port().unwrap();
    host.stop_control("first").await;
    host.start_control_with("first", &control_flags(port)).await;
    let mut gateway = Gateway::start(&host, port, &["--handshake-timeout=3", "--drain-timeout=2"]).await;
    let tenant = Tenant::create(&host, NAMESPACE, &cluster("vision", &[])).await;
    let name = host_name(&tenant);

    // Control has written the name at the gateway into the kubeconfig and the status, and made the certificate valid for it.
    let url = format!("https://{name}:{port}");
    assert!(tenant.kubeconfig.contains(&format!("server: {url}\n")), "{url}");
    let status = host.tenants(NAMESPACE).get(&tenant.name).await.unwrap().status;
    assert_eq!(status.unwrap().endpoint, Some(url));
    // The gateway learns of the tenant by a watch of its own.
    let namespaces = until("the gateway leads to the tenant", SOON, async || {
        kubectl(&tenant, &gateway, &name, &["get", "namespaces", "--output=name"]).await
    })
    .await;
    assert!(namespaces.contains("namespace/kube-system"));
    let client = patient_with(gateway.kubeconfig(&tenant)).await;
    watch_once(&client).await;

    tokens_are_verified_by_the_document_at_the_gateway(&host, &tenant, &gateway).await;
    wrong_names_are_refused(&tenant, &gateway).await;
    sleeper_is_woken(&host, &tenant, &gateway, port).await;
    silent_client_is_dropped(&gateway).await;

    // Killed with a watch open, and started again: the watch goes on.
    let maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let mut names = follow(&patient_with(gateway.kubeconfig(&tenant)).await);
    create(&maps, "before").await;
    until_seen(&mut names, "before").await;
    gateway.kill_and_restart().await;
    until_true("the API server is reached again", SOON, async || {
        maps.get_opt("before").await.is_ok()
    })
    .await;
    create(&maps, "after").await;
    until_seen(&mut names, "after").await;

    // Once the tenant is deleted, its name leads nowhere.
    tenant.delete(&host).await;
    until_true("the name of the tenant is unknown", SOON, async || {
        let said = kubectl(&tenant, &gateway, &name, &["get", "namespaces"]).await;
        said.is_err_and(|error| error.contains("unrecognized name"))
    })
    .await;
    // Those of a connection are there until it is closed.
    drop(names);
    until("the metrics of the tenant are gone", SOON, async || {
        let metrics = gateway.metrics().await;
        if metrics.contains("vision") {
            Err(metrics)
        } else {
            Ok(())
        }
    })
    .await;
    assert!(gateway.stop().await.success());

    host.stop_control("first").await;
    host.start_control("first").await;
}

async fn wrong_names_are_refused(tenant: &Tenant, gateway: &Gateway) {
    for wrong in [
        "speech.sys-gateway.gateway.test",
        "vision.default.gateway.test",
        "gateway.test",
        "kubernetes",
    ] {
        let error = kubectl(tenant, gateway, wrong, &["get", "namespaces"])
            .await
            .unwrap_err();
        assert!(error.contains("unrecognized name"), "{wrong}: {error}");
    }
}

/// What control does for a tenant that falls asleep and is woken is done here, so that it can be seen at which moment the gateway does what.
async fn sleeper_is_woken(host: &TestCluster, tenant: &Tenant, gateway: &Gateway, port: u16) {
    host.stop_control("first").await;
    let tenants = host.tenants(NAMESPACE);
    let set_phase = async |phase: &str| {
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        let params = PatchParams::default();
        tenants.patch_status(&tenant.name, &params, &patch).await.unwrap();
    };
    let requested = async || {
        let metadata = tenants.get(&tenant.name).await.unwrap().metadata;
        metadata
            .annotations
            .unwrap_or_default()
            .remove(labels::WAKE_REQUESTED_AT)
    };
    // While the API server was replaced, the gateway may have asked in case that the tenant sleeps.
    let before = requested().await;
    set_phase("Sleeping").await;
    let asleep = Instant::now();
    let held = format!(
        "berth_gateway_held_connections{{tenant_namespace=\"{NAMESPACE}\",tenant=\"{}\"}} 1",
        tenant.name
    );
    let name = host_name(tenant);
    let listed = loop {
        let mut client = pin!(kubectl(tenant, gateway, &name, &["get", "namespaces", "--output=name"]));
        let asked = until_true("the gateway asks for the wake", SOON, async || {
            requested().await != before
        });
        tokio::select! {
            biased;
            () = asked => {
                let metrics = gateway.metrics().await;
                assert!(
                    metrics.lines().any(|line| line == held),
                    "{held} is missing in {metrics}"
                );
                set_phase("Ready").await;
                break client.await;
            }
            // The gateway did not know yet that the tenant sleeps, and led to its API server.
            answer = &mut client => assert!(
                answer.is_ok() && asleep.elapsed() < SOON,
                "a connection to a sleeper is not held: {answer:?}"
            ),
        }
    };
    assert!(listed.unwrap().contains("namespace/kube-system"));
    let first = requested().await;
    kubectl(tenant, gateway, &name, &["get", "namespaces"]).await.unwrap();
    assert_eq!(requested().await, first, "a tenant that is awake was asked for");
    host.start_control_with("first", &control_flags(port)).await;
}

async fn silent_client_is_dropped(gateway: &Gateway) {
    let start = Instant::now();
    let mut silent = TcpStream::connect(gateway.address()).await.unwrap();
    let mut rest = Vec::new();
    timeout(SOON, silent.read_to_end(&mut rest)).await.unwrap().unwrap();
    assert!(rest.is_empty());
    assert!(start.elapsed() >= Duration::from_millis(2900), "it was dropped at once");
    let line = "berth_gateway_refusals_total{tenant_namespace=\"\",tenant=\"\",reason=\"handshake-timeout\"}";
    until_true("the refusal is counted", SOON, async || {
        gateway.metrics().await.contains(line)
    })
    .await;
}
