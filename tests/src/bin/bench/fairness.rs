//! Delay of a regular tenant's pods, alone and beside greedy tenants that create as fast as they can; and the same with
//! namespaces of the host in place of tenants. The second shows what the host itself does to its users.

use crate::{
    load::{Place, Running},
    moments::{Moments, delays, origin},
    processor::until_idle,
    report::{Report, percentile},
    shares::Shares,
};
use berth_tests::{
    objects::phase,
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
};
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

/// Greedy tenants. The goal has ten; a small machine runs as many API servers as its memory and cores allow.
fn greedy() -> usize {
    std::env::var("BENCH_GREEDY").map_or(3, |text| text.parse().unwrap())
}

/// Pods of each greedy tenant.
fn pods() -> usize {
    std::env::var("BENCH_PODS").map_or(300, |text| text.parse().unwrap())
}

/// How often alone and beside are measured in turn. The p99 of few pods is that of the slowest, so that one round says little.
const ROUNDS: usize = 3;

/// Pods of the regular tenant, and the pause between two of them.
const REGULAR: (usize, Duration) = (40, Duration::from_millis(250));

/// What the delays of a pod of the regular place consist of.
const STEPS: [&str; 5] = [
    "created",
    "on the host",
    "has a node",
    "runs on the host",
    "seen to run",
];

/// Delays of the regular place's pods in milliseconds: in all, and by [`STEPS`] for those whose host pods are in `host_pods`.
struct Delays {
    all: Vec<f64>,
    steps: Vec<Vec<f64>>,
}

async fn regular(place: &Place, host_pods: Option<&Api<Pod>>, prefix: &str) -> Delays {
    let running = Running::follow(place);
    let on_host = host_pods.map(|pods| {
        let has_node = |pod: &Pod| pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
        [
            Moments::follow(pods.clone(), origin),
            Moments::follow(pods.clone(), move |pod| origin(pod).filter(|_| has_node(pod))),
            Moments::follow(pods.clone(), |pod| origin(pod).filter(|_| phase(pod) == "Running")),
        ]
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (mut requested, mut created) = (BTreeMap::new(), BTreeMap::new());
    for index in 0..REGULAR.0 {
        let name = format!("{prefix}{index:04}");
        requested.insert(name.clone(), Instant::now());
        place.create(&name).await;
        created.insert(name, Instant::now());
        tokio::time::sleep(REGULAR.1).await;
    }
    let names: BTreeSet<String> = requested.keys().cloned().collect();
    running.until_all(&names).await;
    let all = names
        .iter()
        .filter_map(|name| Some((name.clone(), running.at(name)?)))
        .collect();
    let mut moments = vec![created];
    moments.extend(on_host.iter().flatten().map(Moments::all));
    moments.push(all);
    let steps = std::iter::once(&requested).chain(&moments).zip(&moments);
    Delays {
        all: delays(&requested, moments.last().unwrap()),
        steps: steps.map(|(from, to)| delays(from, to)).collect(),
    }
}

/// p99 of the delays of one place's pods.
#[derive(Default)]
struct Compared {
    alone: Vec<f64>,
    beside: Vec<f64>,
    ratios: Vec<f64>,
    /// Beside the others, by [`STEPS`].
    steps: [Vec<f64>; STEPS.len()],
    /// Rounds in which the others were done before the last pod of the regular place was made.
    short_floods: u32,
}

impl Compared {
    /// Measures one place in turn alone and beside the others.
    async fn measure(host: &TestCluster, one: &Place, host_pods: Option<&Api<Pod>>, others: &[Place]) -> Self {
        let mut compared = Self::default();
        for round in 1..=ROUNDS {
            until_idle(host).await;
            // With the same watches as beside the others: they are work of the host's API server.
            let alone = regular(one, host_pods, "alone-").await.all;
            one.clear("alone-").await;
            until_idle(host).await;
            let (beside, is_short) = beside(one, host_pods, others).await;
            compared.short_floods += u32::from(is_short);
            let (alone, all) = (percentile(&alone, 99.0), percentile(&beside.all, 99.0));
            eprintln!("round {round}: p99 {alone:.0} ms alone, {all:.0} ms beside the greedy ones");
            compared.alone.push(alone);
            compared.beside.push(all);
            compared.ratios.push(all / alone);
            for (all, step) in compared.steps.iter_mut().zip(&beside.steps) {
                all.push(percentile(step, 99.0));
            }
        }
        compared
    }
}

/// The delays of one place while the others create pods as fast as they can; and whether the others were done before that.
async fn beside(one: &Place, host_pods: Option<&Api<Pod>>, others: &[Place]) -> (Delays, bool) {
    let flood = tokio::spawn({
        let others = others.to_vec();
        async move {
            stream::iter(0..pods() * others.len())
                .for_each_concurrent(4 * others.len(), async |index| {
                    let place = &others[index % others.len()];
                    place.create(&format!("greedy-{:05}", index / others.len())).await;
                })
                .await;
        }
    });
    let delays = regular(one, host_pods, "beside-").await;
    let is_short = flood.is_finished();
    flood.await.unwrap();
    if is_short {
        eprintln!("the flood was over before the last regular pod: raise BENCH_PODS");
    }
    one.clear("beside-").await;
    for other in others {
        other.clear("greedy-").await;
    }
    (delays, is_short)
}

pub(crate) async fn run() {
    let greedy = greedy();
    let host = TestCluster::start(&format!("h100={},cpu=1", 2 * (greedy + 1))).await;
    let mut tenants = Vec::new();
    for index in 0..=greedy {
        let name = format!("fair{index}");
        tenants.push(Tenant::create(&host, "bench-fair", &cluster(&name, &[("train", "h100", 2)])).await);
    }
    let shares = Shares::by_tenant(&host);
    eprintln!("{}", shares.describe());
    let places: Vec<Place> = tenants.iter().map(|tenant| Place::in_tenant(&tenant.client)).collect();
    let host_pods = Api::namespaced(host.client.clone(), &tenants[0].id.workload_namespace());
    let tenant = Compared::measure(&host, &places[0], Some(&host_pods), &places[1..]).await;

    let mut direct = Vec::new();
    for index in 0..=greedy {
        let namespace = format!("direct-{index}");
        ensure_namespace(&host.client, &namespace).await;
        let mut place = Place::on_host(&host.client);
        place.pods = Api::namespaced(host.client.clone(), &namespace);
        direct.push(place);
    }
    let direct = Compared::measure(&host, &direct[0], None, &direct[1..]).await;

    let mut report = Report::new("fairness");
    report.add("greedy tenants", f64::from(u32::try_from(greedy).unwrap()), "");
    report.add(
        "pods of each greedy tenant",
        f64::from(u32::try_from(pods()).unwrap()),
        "",
    );
    report.add("equal shares of the processors", f64::from(shares.are_equal()), "");
    report.add(
        "rounds, whose medians follow",
        f64::from(u32::try_from(ROUNDS).unwrap()),
        "",
    );
    for (what, compared) in [("tenants", &tenant), ("on the host directly", &direct)] {
        report.add(
            format!("rounds in which the greedy ones were done early, {what}"),
            f64::from(compared.short_floods),
            "",
        );
    }
    let mut add = |what: String, values: &[f64], unit| report.add(what, percentile(values, 50.0), unit);
    add("regular tenant's p99 alone".into(), &tenant.alone, "ms");
    add("regular tenant's p99 beside greedy ones".into(), &tenant.beside, "ms");
    add("beside / alone".into(), &tenant.ratios, "");
    for (step, delay) in STEPS.iter().zip(&tenant.steps) {
        add(format!("beside, step until: {step}, p99"), delay, "ms");
    }
    add("the same on the host directly: p99 alone".into(), &direct.alone, "ms");
    add("the same on the host directly: p99 beside".into(), &direct.beside, "ms");
    add(
        "the same on the host directly: beside / alone".into(),
        &direct.ratios,
        "",
    );
    report.finish();
    for tenant in &tenants {
        tenant.delete(&host).await;
    }
}
