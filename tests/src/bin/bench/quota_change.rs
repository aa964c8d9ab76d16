//! From a change of a Project's quota to its first effect: the reservation of a tenant that waits, and the first node that is drained.
//! The tenants have simulated control planes and pods that are made by hand; everything else is real.

use crate::{
    report::{Report, milliseconds, percentile},
    reservations::{Reservations, Step, quota, set_project, until_observed},
};
use berth_api::{HostNodePool, NodeGroup, labels};
use berth_tests::{
    in_process::{Control, Parts},
    team::{self, NAMESPACE, Team},
    tenant::{cluster, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use serde_json::json;
use std::time::{Duration, Instant};

const PROJECT: &str = "bench";
const POOL: &str = "h100";
/// GPUs of a simulated node.
const GPUS: usize = 8;
/// Tenants for which there is quota in the second measurement.
const TENANTS: usize = 10;

/// How often each change is made.
#[derive(Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// Quotas that are raised.
    #[arg(long, default_value_t = Options::default().raised)]
    raised: usize,
    /// Quotas that are lowered. Each time the node is drained, and assigned again.
    #[arg(long, default_value_t = Options::default().lowered)]
    lowered: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            raised: 50,
            lowered: 15,
        }
    }
}

pub(crate) async fn run(options: Options) {
    let host = team::cluster("h100=2,cpu=1").await;
    // The time that a pool leaves to pods is not part of what is measured.
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let at_once = json!({"spec": {"policy": {"reclaimGracePeriod": "0s"}}});
    let params = PatchParams::default();
    pools.patch(POOL, &params, &Patch::Merge(&at_once)).await.unwrap();
    set_tenants(&host, 0).await;
    let control = Control::start(&host, Parts::default());
    let raised = raise(&host, options.raised).await;
    let lowered = lower(&host, options.lowered).await;
    let mut report = Report::new("quota-change");
    for (what, values) in [
        ("quota raised -> a waiting tenant has its reservation", &raised),
        ("quota of GPUs lowered -> the first node is drained", &lowered),
    ] {
        let count = values.len();
        report.add(format!("{what}, p50 of {count}"), percentile(values, 50.0), "ms");
        report.add(format!("{what}, p99 of {count}"), percentile(values, 99.0), "ms");
    }
    report.note("simulated control planes; the pool has no reclaimGracePeriod");
    report.finish();
    control.stop();
}

async fn set_tenants(host: &TestCluster, tenants: usize) -> Option<i64> {
    set_project(
        &host.client,
        PROJECT,
        NAMESPACE,
        &[quota("tenantclusters", None, tenants)],
    )
    .await
}

/// Milliseconds from the request for the change until the reservation is seen.
async fn raise(host: &TestCluster, tries: usize) -> Vec<f64> {
    let tenants = host.tenants(NAMESPACE);
    let reservations = Reservations::follow(tenants.clone());
    let mut durations = Vec::new();
    for number in 0..tries {
        let name = format!("waiting-{number}");
        tenants
            .create(&PostParams::default(), &cluster(&name, &[]))
            .await
            .unwrap();
        reservations.until(&name, Step::Waiting).await;
        let begun = Instant::now();
        set_tenants(host, 1).await;
        let reserved = reservations.until(&name, Step::Reserved).await;
        durations.push(milliseconds(reserved.saturating_duration_since(begun)));
        tenants.delete(&name, &DeleteParams::default()).await.unwrap();
        until_gone(host, NAMESPACE, &name).await;
        let lowered = set_tenants(host, 0).await;
        // The next tenant has to wait.
        until_observed(&host.client, PROJECT, lowered).await;
    }
    durations
}

async fn set_gpus(host: &TestCluster, gpus: usize) {
    let quotas = [quota("tenantclusters", None, TENANTS), quota("gpus", Some(POOL), gpus)];
    set_project(&host.client, PROJECT, NAMESPACE, &quotas).await;
}

/// Milliseconds from the request for the change until the node of the tenant leaves the state Assigned.
async fn lower(host: &TestCluster, tries: usize) -> Vec<f64> {
    set_gpus(host, GPUS).await;
    let team = Team::create(host, "shrinking", None, vec![NodeGroup::dynamic("burst", POOL, 0, 1)]).await;
    let nodes: Api<Node> = Api::all(host.client.clone());
    let mut durations = Vec::new();
    for number in 0..tries {
        let pod = format!("train-{number}");
        team.run(&pod, u32::try_from(GPUS).unwrap(), &json!({})).await;
        until_true("the pod runs", SOON, async || team.running().await == 1).await;
        let node = until("the node is assigned", SOON, async || assigned_node(&nodes).await).await;
        let watch = tokio::spawn({
            let nodes = nodes.clone();
            async move {
                let is_drained = |node: Option<&Node>| node.is_none_or(|node| !is_assigned(node));
                await_condition(nodes, &node, is_drained).await.unwrap();
                Instant::now()
            }
        });
        // The watch has started.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let begun = Instant::now();
        set_gpus(host, 0).await;
        let drained = tokio::time::timeout(SOON, watch).await.unwrap().unwrap();
        durations.push(milliseconds(drained.saturating_duration_since(begun)));
        until_true("the node is free", SOON, async || team.held().await == 0).await;
        // A drained pod is gone; one that was not reached yet would wait for a node.
        let at_once = DeleteParams::default().grace_period(0);
        drop(team.pods.delete(&pod, &at_once).await);
        set_gpus(host, GPUS).await;
    }
    team.delete(host).await;
    durations
}

fn is_assigned(node: &Node) -> bool {
    node.labels().get(labels::NODE_STATE).map(String::as_str) == Some(labels::NODE_STATE_ASSIGNED)
}

/// The name of the one node that a tenant uses.
async fn assigned_node(nodes: &Api<Node>) -> Result<String, &'static str> {
    let list = nodes.list(&ListParams::default()).await.map_err(|_| "no answer")?;
    let found = list.iter().find(|node| is_assigned(node));
    found.map(ResourceExt::name_any).ok_or("none is assigned")
}
