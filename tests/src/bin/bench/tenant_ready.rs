//! How long a team waits for its cluster, against what a bare kube-apiserver needs to start on the same machine.

use crate::{
    bare_api_server::{BareApiServer, POLL, is_ready},
    report::{Report, percentile},
};
use berth_tests::{
    objects::gpu_pod,
    tenant::{cluster, ensure_namespace, until_gone},
    test_cluster::TestCluster,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};
use std::time::{Duration, Instant};

const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);

pub(crate) async fn run() {
    let host = TestCluster::start("h100=1,cpu=1").await;
    ensure_namespace(&host.client, "bench").await;
    let (mut bare, mut tenants) = (Vec::new(), Vec::new());
    // The first of each warms the disk cache and is not counted.
    for round in 0..=ROUNDS {
        let own = bare_start(&host, round).await;
        let tenant = tenant_start(&host, round, LIMIT).await;
        if round > 0 {
            bare.push(own.as_secs_f64());
            tenants.push(tenant.as_secs_f64());
        }
    }
    let (bare, tenant) = (percentile(&bare, 50.0), percentile(&tenants, 50.0));
    let mut report = Report::new("tenant-ready");
    report.add("bare kube-apiserver to /readyz, median of 5", bare, "s");
    report.add("TenantCluster applied to a pod accepted, median of 5", tenant, "s");
    report.add("ratio", tenant / bare, "x");
    report.finish();
}

/// Starts a kube-apiserver on an empty key range of the same etcd, with nothing of Berth, until `/readyz` answers.
async fn bare_start(host: &TestCluster, round: usize) -> Duration {
    let server = BareApiServer::prepare(host, &format!("/bench-{round}")).await;
    let took = server.start().await;
    server.stop().await;
    took
}

/// Applies a TenantCluster and waits until its kubeconfig answers `/readyz` and a pod is accepted, `limit` at most.
pub(crate) async fn tenant_start(host: &TestCluster, round: usize, limit: Duration) -> Duration {
    let name = format!("bench-{round}");
    let tenants = host.tenants("bench");
    let secrets: Api<Secret> = Api::namespaced(host.client.clone(), "bench");
    let begun = Instant::now();
    tenants
        .create(&PostParams::default(), &cluster(&name, &[]))
        .await
        .unwrap();
    let client = loop {
        assert!(begun.elapsed() < limit, "no kubeconfig");
        if let Ok(Some(secret)) = secrets.get_opt(&format!("{name}-kubeconfig")).await {
            let text = String::from_utf8(secret.data.unwrap()["kubeconfig"].0.clone()).unwrap();
            break berth_runtime::client::from_text(&text).await.unwrap();
        }
        tokio::time::sleep(POLL).await;
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let (params, first) = (PostParams::default(), gpu_pod("first", 0));
    while !(is_ready(&client).await && pods.create(&params, &first).await.is_ok()) {
        assert!(begun.elapsed() < limit, "no pod is accepted");
        tokio::time::sleep(POLL).await;
    }
    let took = begun.elapsed();
    tenants.delete(&name, &DeleteParams::default()).await.unwrap();
    until_gone(host, "bench", &name).await;
    took
}
