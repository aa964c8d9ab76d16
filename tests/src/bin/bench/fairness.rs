//! Delay of a regular tenant's pods, alone and beside greedy tenants that create as fast as they can; and the same with
//! namespaces of the host in place of tenants. The second shows what the host itself does to its users.

use crate::{
    load::{Place, Running},
    report::{Report, milliseconds, percentile},
};
use berth_tests::{
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
};
use futures::{StreamExt, stream};
use kube::Api;
use std::{
    collections::BTreeSet,
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

/// Pods of the regular tenant, and the pause between two of them.
const REGULAR: (usize, Duration) = (40, Duration::from_millis(250));

/// Delays of the regular place's pods in milliseconds.
async fn regular(place: &Place, prefix: &str) -> Vec<f64> {
    let running = Running::follow(place);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut requested = Vec::new();
    for index in 0..REGULAR.0 {
        let name = format!("{prefix}{index:04}");
        requested.push((name.clone(), Instant::now()));
        place.create(&name).await;
        tokio::time::sleep(REGULAR.1).await;
    }
    let names: BTreeSet<String> = requested.iter().map(|(name, _)| name.clone()).collect();
    running.until_all(&names).await;
    requested
        .iter()
        .map(|(name, at)| milliseconds(running.at(name).unwrap().saturating_duration_since(*at)))
        .collect()
}

/// p99 alone, and beside the others.
async fn compare(one: &Place, others: &[Place]) -> (f64, f64) {
    let alone = regular(one, "alone-").await;
    one.clear("alone-").await;
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
    let beside = regular(one, "beside-").await;
    let still_flooding = !flood.is_finished();
    flood.await.unwrap();
    if !still_flooding {
        eprintln!("the flood was over before the last regular pod: raise BENCH_PODS");
    }
    one.clear("beside-").await;
    for other in others {
        other.clear("greedy-").await;
    }
    (percentile(&alone, 99.0), percentile(&beside, 99.0))
}

pub(crate) async fn run() {
    let greedy = greedy();
    let host = TestCluster::start(&format!("h100={},cpu=1", 2 * (greedy + 1))).await;
    let mut tenants = Vec::new();
    for index in 0..=greedy {
        let name = format!("fair{index}");
        tenants.push(Tenant::create(&host, "bench-fair", &cluster(&name, &[("train", "h100", 2)])).await);
    }
    let places: Vec<Place> = tenants.iter().map(|tenant| Place::in_tenant(&tenant.client)).collect();
    let (alone, beside) = compare(&places[0], &places[1..]).await;

    let mut direct = Vec::new();
    for index in 0..=greedy {
        let namespace = format!("direct-{index}");
        ensure_namespace(&host.client, &namespace).await;
        let mut place = Place::on_host(&host.client);
        place.pods = Api::namespaced(host.client.clone(), &namespace);
        direct.push(place);
    }
    let (direct_alone, direct_beside) = compare(&direct[0], &direct[1..]).await;

    let mut report = Report::new("fairness");
    report.add("greedy tenants", f64::from(u32::try_from(greedy).unwrap()), "");
    report.add(
        "pods of each greedy tenant",
        f64::from(u32::try_from(pods()).unwrap()),
        "",
    );
    report.add("regular tenant's p99 alone", alone, "ms");
    report.add("regular tenant's p99 beside greedy ones", beside, "ms");
    report.add("beside / alone", beside / alone, "");
    report.add("the same on the host directly: p99 alone", direct_alone, "ms");
    report.add("the same on the host directly: p99 beside", direct_beside, "ms");
    report.add(
        "the same on the host directly: beside / alone",
        direct_beside / direct_alone,
        "",
    );
    report.finish();
    for tenant in &tenants {
        tenant.delete(&host).await;
    }
}
