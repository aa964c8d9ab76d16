//! A burst of pods over several tenants until all of them run, against the same number of pods made on the host directly.
//! Both are done in turn, three times; medians count.

use crate::{
    load::{Place, Running},
    report::{Report, percentile},
};
use berth_tests::{
    scrape::{Metrics, scrape},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use futures::{StreamExt, stream};
use std::{collections::BTreeSet, time::Instant};

const TENANTS: usize = 3;
const PODS: usize = 300;
const ROUNDS: usize = 3;
/// Concurrent requests over all tenants.
const WRITERS: usize = 12;

/// Seconds until `PODS` pods, evenly spread over `places`, run; and the delays of all of them added up.
async fn burst(places: &[Place], round: usize) -> (f64, f64) {
    let prefix = format!("burst-{round}-");
    let running: Vec<Running> = places.iter().map(Running::follow).collect();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    let begun = Instant::now();
    let names: Vec<String> = (0..PODS).map(|index| format!("{prefix}{index:04}")).collect();
    let created: Vec<(usize, &String, Instant)> = stream::iter(names.iter().enumerate())
        .map(async |(index, name)| {
            let place = index % places.len();
            let requested = Instant::now();
            places[place].create(name).await;
            (place, name, requested)
        })
        .buffer_unordered(WRITERS)
        .collect()
        .await;
    for (index, running) in running.iter().enumerate() {
        let mine = names.iter().enumerate().filter(|(at, _)| at % places.len() == index);
        running
            .until_all(&mine.map(|(_, name)| name.clone()).collect::<BTreeSet<_>>())
            .await;
    }
    let took = begun.elapsed().as_secs_f64();
    let delays = created.iter().map(|(place, name, requested)| {
        let seen = running[*place].at(name).unwrap();
        seen.saturating_duration_since(*requested).as_secs_f64()
    });
    let delays = delays.sum();
    drop(running);
    for place in places {
        place.clear(&prefix).await;
    }
    (took, delays)
}

pub(crate) async fn run() {
    let host = TestCluster::start("h100=6,cpu=1").await;
    let mut tenants = Vec::new();
    for index in 0..TENANTS {
        let name = format!("burst{index}");
        tenants.push(Tenant::create(&host, "bench-burst", &cluster(&name, &[("train", "h100", 2)])).await);
    }
    let tenant_places: Vec<Place> = tenants.iter().map(|tenant| Place::in_tenant(&tenant.client)).collect();
    let host_places = [Place::on_host(&host.client)];
    let metrics = async || {
        let mut all = Vec::new();
        for tenant in &tenants {
            all.push(scrape(&host, tenant).await.unwrap());
        }
        all
    };
    let total = |all: &[Metrics], of: &dyn Fn(&Metrics) -> f64| all.iter().map(of).sum::<f64>();
    let (mut direct, mut through, mut waited, mut writes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        direct.push(burst(&host_places, round).await.0);
        let before = metrics().await;
        let (took, delays) = burst(&tenant_places, round).await;
        let after = metrics().await;
        let queued = |metrics: &Metrics| metrics.sum(&["berth_syncer_queue_seconds_sum"]);
        waited.push((total(&after, &queued) - total(&before, &queued)) / delays);
        let written = total(&after, &Metrics::host_writes) - total(&before, &Metrics::host_writes);
        #[allow(clippy::cast_precision_loss)]
        writes.push(written / PODS as f64);
        through.push(took);
    }
    let median = |values: &[f64]| percentile(values, 50.0);
    let mut report = Report::new("burst");
    report.add(format!("{PODS} pods on the host directly"), median(&direct), "s");
    report.add(format!("{PODS} pods over {TENANTS} tenants"), median(&through), "s");
    report.add("throughput, tenants / direct", median(&direct) / median(&through), "");
    report.add(
        "share of a pod's delay spent in the syncers' queues",
        median(&waited),
        "",
    );
    report.add("writes to the host in a pod's life", median(&writes), "");
    report.add(
        "watches of a tenant on the host",
        watches(&host, &tenants[0], "host").await,
        "",
    );
    report.add(
        "watches of a tenant's syncer in the tenant",
        watches(&host, &tenants[0], "tenant").await,
        "",
    );
    report.finish();
    for tenant in &tenants {
        tenant.delete(&host).await;
    }
}

async fn watches(host: &TestCluster, tenant: &Tenant, side: &str) -> f64 {
    let metrics = scrape(host, tenant).await.unwrap();
    metrics.sum(&["berth_syncer_watches{", &format!("side=\"{side}\"")])
}
