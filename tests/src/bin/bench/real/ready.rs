//! How long a team waits for its cluster whose control plane runs in pods.

use super::LIMIT;
use crate::{
    report::{Report, percentile},
    tenant_ready::tenant_start,
};
use berth_tests::{tenant::ensure_namespace, test_cluster::TestCluster};

const ROUNDS: usize = 3;

pub(super) async fn run(host: &TestCluster) {
    ensure_namespace(&host.client, "bench").await;
    let mut tenants = Vec::new();
    // The first brings the images from the node's disk into its cache and is not counted.
    for round in 0..=ROUNDS {
        let took = tenant_start(host, round, LIMIT).await;
        if round > 0 {
            tenants.push(took.as_secs_f64());
        }
    }
    let mut report = Report::new("real-tenant-ready");
    report.add(
        "TenantCluster applied to a pod accepted, median of 3",
        percentile(&tenants, 50.0),
        "s",
    );
    report.finish();
}
