//! How long the first connection to a tenant that sleeps waits for its answer, against what a bare kube-apiserver with as many objects needs to
//! start on the same machine; and what a tenant costs while it sleeps.

use crate::{
    bare_api_server::BareApiServer,
    memory::Memory,
    report::{Report, figure_of, percentile},
};
use berth_api::SleepState;
use berth_process::free_port;
use berth_tests::{
    gateway::{Gateway, control_flags},
    sleep::{fall_asleep, process_ids, until_state},
    tenant::{Tenant, cluster, patient_with},
    test_cluster::TestCluster,
};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, Config,
    api::{ObjectMeta, PostParams},
    config::KubeConfigOptions,
};
use std::time::{Duration, Instant};

const NAMESPACE: &str = "bench-wake";
const NAME: &str = "wake";
const ROUNDS: usize = 5;
/// Objects in both datastores.
const OBJECTS: usize = 1000;
/// Size of each, in bytes.
const SIZE: usize = 2000;
const LIMIT: Duration = Duration::from_secs(180);

/// Times of one round, in seconds.
struct Round {
    bare: f64,
    answer: f64,
    ready: f64,
}

pub(crate) async fn run() {
    let host = TestCluster::without_control("cpu=1").await;
    let port = free_port().unwrap();
    host.start_control_with("first", &control_flags(port)).await;
    let gateway = Gateway::start(&host, port, &["--wake-timeout=180"]).await;
    let tenant = Tenant::create(&host, NAMESPACE, &cluster(NAME, &[])).await;
    // The host name in the tenant's own kubeconfig is known to nobody.
    fill(&patient_with(gateway.kubeconfig(&tenant)).await).await;
    let bare = BareApiServer::prepare(&host, "/bench-wake").await;
    bare.start().await;
    fill(&bare.client).await;
    bare.pause().await;
    let awake = cost(&host, &tenant);
    let (mut rounds, mut asleep) = (Vec::new(), awake);
    // The first one warms the disk cache and is not counted.
    for round in 0..=ROUNDS {
        fall_asleep(&host, &tenant).await;
        asleep = cost(&host, &tenant);
        let own = bare.start().await.as_secs_f64();
        bare.pause().await;
        let (answer, ready) = wake(&host, &gateway, &tenant).await;
        if round > 0 {
            rounds.push(Round {
                bare: own,
                answer,
                ready,
            });
        }
    }
    report(&rounds, awake, asleep).finish();
    bare.stop().await;
    tenant.delete(&host).await;
    assert!(gateway.stop().await.success());
}

fn report(rounds: &[Round], awake: (usize, f64), asleep: (usize, f64)) -> Report {
    let median = |of: fn(&Round) -> f64| percentile(&rounds.iter().map(of).collect::<Vec<_>>(), 50.0);
    let (bare, answer, ready) = (
        median(|round| round.bare),
        median(|round| round.answer),
        median(|round| round.ready),
    );
    let mut report = Report::new("wake");
    report.add(format!("bare kube-apiserver to /readyz, median of {ROUNDS}"), bare, "s");
    let what = "connection at the gateway to the first answer";
    report.add(format!("{what}, median of {ROUNDS}"), answer, "s");
    report.add("ratio", answer / bare, "x");
    report.add(
        format!("connection to a tenant that is ready, median of {ROUNDS}"),
        ready,
        "s",
    );
    for (state, (processes, memory)) in [("awake", awake), ("asleep", asleep)] {
        report.add(format!("processes, {state}"), figure_of(processes), "");
        report.add(format!("private memory, {state}"), memory, "MiB");
    }
    report.note(format!(
        "Both datastores have {OBJECTS} ConfigMaps of {SIZE} bytes. Both servers are processes, and are started in turn."
    ));
    report
}

/// Number and private memory, in MiB, of all processes that were started for a tenant.
fn cost(host: &TestCluster, tenant: &Tenant) -> (usize, f64) {
    let ids = process_ids(host, tenant);
    let mut all = Memory::default();
    for id in &ids {
        all.add(Memory::of(*id));
    }
    (ids.len(), all.private)
}

async fn fill(client: &Client) {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let text = "x".repeat(SIZE);
    stream::iter(0..OBJECTS)
        .map(|number| {
            let map = ConfigMap {
                metadata: ObjectMeta {
                    name: Some(format!("map-{number}")),
                    ..ObjectMeta::default()
                },
                data: Some([("text".to_owned(), text.clone())].into()),
                ..ConfigMap::default()
            };
            let maps = maps.clone();
            async move { maps.create(&PostParams::default(), &map).await }
        })
        .buffer_unordered(8)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
}

/// Connects to a tenant that sleeps. Returns the seconds until its first answer, and until it is ready.
async fn wake(host: &TestCluster, gateway: &Gateway, tenant: &Tenant) -> (f64, f64) {
    let options = KubeConfigOptions::default();
    let mut config = Config::from_custom_kubeconfig(gateway.kubeconfig(tenant), &options)
        .await
        .unwrap();
    // One connection, which is held, and one request.
    config.connect_timeout = Some(LIMIT);
    config.default_retry = false;
    let client = Client::try_from(config).unwrap();
    let begun = Instant::now();
    client.apiserver_version().await.unwrap();
    let answer = begun.elapsed().as_secs_f64();
    until_state(host, tenant, SleepState::Awake).await;
    Tenant::ready(host, NAMESPACE, NAME).await;
    (answer, begun.elapsed().as_secs_f64())
}
