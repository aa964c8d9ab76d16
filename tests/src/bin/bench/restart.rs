//! A syncer with many pods is killed: time until its successor is in sync, and its writes to the host.

use crate::{
    load::{Place, Running},
    report::{Report, figure_of},
};
use berth_control::control_plane::SYNCER;
use berth_tests::{
    processes::{find, kill},
    scrape::{Metrics, admin_address, get, scrape},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
};
use futures::{StreamExt, stream};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

const PODS: usize = 1000;
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) async fn run() {
    let host = TestCluster::start("h100=8,cpu=1").await;
    let tenant = Tenant::create(&host, "bench-restart", &cluster("restart", &[("train", "h100", 8)])).await;
    let place = Place::in_tenant(&tenant.client);
    let running = Running::follow(&place);
    let names: BTreeSet<String> = (0..PODS).map(|index| format!("p-{index:04}")).collect();
    stream::iter(&names)
        .for_each_concurrent(8, async |name| place.create(name).await)
        .await;
    running.until_all(&names).await;
    tokio::time::sleep(Duration::from_secs(10)).await;

    let records = host.tenant_records();
    let before = find(&records, &format!("{}.{SYNCER}", tenant.id.slug())).unwrap();
    kill(&before);
    let killed = Instant::now();
    let mut started = None;
    let in_sync = loop {
        assert!(killed.elapsed() < LIMIT, "not in sync again");
        let now = find(&records, &before.name).filter(|now| now.pid.is_some() && now.pid != before.pid);
        if now.is_some() && started.is_none() {
            started = Some(killed.elapsed());
        }
        if now.is_some()
            && let Some(address) = admin_address(&host, &tenant)
            && get(address, "/readyz")
                .await
                .is_ok_and(|(status, _)| status.is_success())
            && scrape(&host, &tenant).await.is_ok_and(|metrics| is_quiet(&metrics))
        {
            break killed.elapsed();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    tokio::time::sleep(Duration::from_secs(5)).await;
    let metrics = scrape(&host, &tenant).await.unwrap();
    let mut report = Report::new("restart");
    report.add(
        "killed -> process runs again",
        started.unwrap_or_default().as_secs_f64(),
        "s",
    );
    report.add(
        format!("killed -> in sync with {PODS} pods"),
        in_sync.as_secs_f64(),
        "s",
    );
    report.add(
        "writes to the host since then",
        metrics.host_writes().values().sum(),
        "",
    );
    report.finish();
    tenant.delete(&host).await;
}

/// Whether every pod was reconciled once, everything else that the host had was compared, and the queue is empty.
fn is_quiet(metrics: &Metrics) -> bool {
    let all = metrics.sum(&["berth_syncer_reconciles_total{", "kind=\"Pod\""]) >= figure_of(PODS);
    // It is negative until both sides are listed.
    let is_compared = metrics.sum(&["berth_syncer_uncompared_objects"]).abs() < 0.5;
    all && is_compared && metrics.sum(&["berth_syncer_queue_depth"]) < 1.0
}
