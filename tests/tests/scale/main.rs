//! Control with many tenants at once. Their control planes are fakes that accept everything; the host cluster, etcd,
//! keys, nodes and namespaces are real.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_api::{Phase, TenantCluster, conditions, labels};
use berth_control::{ControlConfig, control_plane::HostInput, datastore::DatastoreConfig, metrics::Metrics};
use berth_tests::{
    fake::FakeRuntime,
    tenant::{cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use libtest_mimic::{Arguments, Trial};
use prometheus_client::registry::Registry;
use std::{process::ExitCode, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

const TENANTS: usize = 50;
const SOON: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    berth_runtime::install_crypto();
    let trial = Trial::test("fifty_tenants_at_once", || {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(fifty_tenants_at_once());
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// Control as it is, with control planes that are not started.
fn control(host: &TestCluster) -> ControlConfig {
    let access = host.datastore();
    let ca_pem = std::fs::read_to_string(host.home().pki().join("ca.crt")).unwrap_or_default();
    ControlConfig {
        network: berth_control::network::NetworkConfig::default(),
        without_class: berth_control::controllers::tenant::WithoutClass::BuiltInDefaults,
        has_admission_policies: true,
        argo_cd_namespace: None,
        node_jobs: berth_control::controllers::nodes::jobs::NodeJobs::default(),
        client: host.client.clone(),
        host: HostInput {
            cluster_domain: "cluster.local".into(),
            server: host.server(),
            ca_pem,
        },
        datastore: DatastoreConfig {
            endpoints: vec![access.endpoint],
            ca_cert: access.ca_cert,
            ca_key: access.ca_key,
        },
        clock: berth_control::clock::Clock::default(),
        gpu_metrics: None,
        quota_use_interval: berth_control::controllers::QUOTA_USE_INTERVAL,
        usage_retention_months: berth_control::controllers::USAGE_RETENTION_MONTHS,
        snapshot_store: None,
        runtime: Arc::new(FakeRuntime::default()),
        metrics: Metrics::new(&mut Registry::default()),
    }
}

/// Names of the tenants of which something was written, but for what they used.
fn find_written(before: &[TenantCluster], after: &[TenantCluster]) -> Vec<String> {
    assert_eq!(before.len(), after.len());
    let usage = |cluster: &TenantCluster| cluster.status.clone().unwrap_or_default().monthly_usage;
    let without_usage = |cluster: &TenantCluster| {
        let mut cluster = cluster.clone();
        cluster.metadata.resource_version = None;
        cluster.metadata.managed_fields = None;
        let mut status = cluster.status.take().unwrap_or_default();
        status.monthly_usage.clear();
        (cluster, status)
    };
    let is_same = |before: &TenantCluster, after: &TenantCluster| {
        if usage(before) == usage(after) {
            before.resource_version() == after.resource_version()
        } else {
            without_usage(before) == without_usage(after)
        }
    };
    let written = { before.iter().zip(after) }.filter(|(before, after)| !is_same(before, after));
    written.map(|(_, after)| after.name_any()).collect()
}

async fn fifty_tenants_at_once() {
    let host = TestCluster::without_control("h100=20,cpu=1").await;
    let stop = CancellationToken::new();
    let control = tokio::spawn(berth_control::run(control(&host), stop.clone(), || {}));
    ensure_namespace(&host.client, "many").await;
    let tenants = host.tenants("many");
    // Every second one requests a node; there are twenty, so five wait.
    let clusters = (0..TENANTS).map(|index| {
        let groups: &[(&str, &str, u32)] = if index % 2 == 0 { &[("train", "h100", 1)] } else { &[] };
        cluster(&format!("t{index}"), groups)
    });
    let params = PostParams::default();
    let created: Vec<TenantCluster> = clusters.collect();
    let results = futures::future::join_all(created.iter().map(|cluster| tenants.create(&params, cluster))).await;
    assert!(results.iter().all(Result::is_ok));
    until("all but five are ready, and the others say why", SOON, async || {
        let list = tenants
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let ready = list
            .iter()
            .filter(|c| c.status.as_ref().is_some_and(|s| s.phase == Some(Phase::Ready)))
            .count();
        let waiting = list
            .iter()
            .filter_map(|c| c.status.as_ref())
            .filter(|s| {
                s.conditions
                    .iter()
                    .any(|c| c.type_ == conditions::NODES_READY && c.reason == "InsufficientCapacity")
            })
            .count();
        if (ready, waiting) == (45, 5) {
            Ok(())
        } else {
            let reported = list.items.first().and_then(|cluster| cluster.status.clone());
            let reported = reported.map(|status| status.conditions).unwrap_or_default();
            Err(format!("{ready} ready, {waiting} waiting; the first says {reported:?}"))
        }
    })
    .await;

    // In this state, reconciling again changes nothing. What tenants used is written from time to time, and not by a reconcile of the tenant.
    let clusters = async || tenants.list(&ListParams::default()).await.unwrap().items;
    // The last status of some may come a moment after the condition above.
    until("control writes nothing any more", SOON, async || {
        let before = clusters().await;
        tokio::time::sleep(Duration::from_secs(3)).await;
        let written = find_written(&before, &clusters().await);
        if written.is_empty() { Ok(()) } else { Err(written) }
    })
    .await;
    let before = clusters().await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    let written = find_written(&before, &clusters().await);
    assert!(written.is_empty(), "it writes although nothing changes: {written:?}");

    tenants
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await
        .unwrap();
    until_true("all are gone", SOON, async || {
        tenants
            .list(&ListParams::default())
            .await
            .is_ok_and(|list| list.items.is_empty())
    })
    .await;
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    let left = namespaces
        .list(&ListParams::default().labels(labels::TENANT))
        .await
        .unwrap();
    assert!(left.items.is_empty(), "namespaces are left");
    stop.cancel();
    control.await.unwrap().unwrap();
}
