//! Records of what tenants use: they grow, outlast the control that writes them and the tenant, and nothing is counted twice.

use crate::{gpu_clients::find_scrub, node_recycling::Bench};
use berth_api::{UsageRecord, UsageResource, labels};
use berth_tests::{
    tenant::{Tenant, cluster, until_gone},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::Job, core::v1::Node};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams},
};
use serde_json::json;
use std::sync::Arc;

/// Seconds by which the use of a node may differ from what the node says: a pass may come between a decision about the node and the moment when it is seen.
const TOLERANCE: i64 = 2;
/// Annotation on a simulated pod: how long it runs.
const RUN_FOR: &str = "simulation.berth.dev/run-for";

/// The records of a tenant: two, if a month ends meanwhile.
async fn find_records(host: &TestCluster, slug: &str) -> Vec<UsageRecord> {
    let records: Api<UsageRecord> = Api::all(host.client.clone());
    let of_tenant = ListParams::default().labels(&format!("{}={slug}", labels::USAGE_TENANT));
    records.list(&of_tenant).await.unwrap().items
}

/// What records have of a resource.
fn sum(records: &[UsageRecord], resource: UsageResource) -> i64 {
    let lines = records.iter().flat_map(|record| &record.spec.lines);
    let of_resource = lines.filter(|line| line.resource == resource);
    of_resource.flat_map(|line| &line.daily).sum()
}

/// Whether one of the records goes on.
fn are_in_use(records: &[UsageRecord]) -> bool {
    records.iter().any(|record| record.spec.in_use)
}

/// Seconds for which a node that has just left its tenant had it, and its GPUs, as it says itself.
fn held(node: &Node) -> (i64, i64) {
    let time = |key: &str| node.annotations()[key].parse::<Timestamp>().unwrap().as_second();
    let gpus = node.annotations()[labels::RECORDED_GPUS].rsplit_once('=').unwrap().1;
    let seconds = time(labels::LEFT_AT) - time(labels::ASSIGNED_SINCE);
    (seconds, gpus.parse().unwrap())
}

/// A node in a pool of its own whose scrub does not end, so that the node stays as it was released.
async fn bench(host: &Arc<TestCluster>, name: &'static str) -> Bench {
    let bench = Bench::new(host, name, |_| {}).await;
    bench.pod_annotations(json!({RUN_FOR: "1h"})).await;
    bench
}

/// Lets the scrub of a node end, and removes node and pool.
async fn remove(host: &TestCluster, bench: &Bench) {
    bench.pod_annotations(json!({RUN_FOR: null})).await;
    let jobs: Api<Job> = Api::namespaced(host.client.clone(), "berth-system");
    // Control may make the Job, also once more, before it has seen the change of the pool.
    until_true(&format!("{} is free", bench.name), SOON, async || {
        if !bench.node().await.labels().contains_key(labels::NODE_STATE) {
            return true;
        }
        if let Some(name) = find_scrub(host, bench.name).await {
            let job = jobs.get_opt(&name).await.unwrap().unwrap_or_default();
            let template = job.spec.and_then(|spec| spec.template.metadata);
            let annotations = template.and_then(|metadata| metadata.annotations).unwrap_or_default();
            if annotations.contains_key(RUN_FOR) {
                drop(jobs.delete(&name, &DeleteParams::background()).await);
            }
        }
        false
    })
    .await;
    bench.remove().await;
}

/// Control is killed before what it has counted is in a record. What the nodes say is all that remains of it.
pub(crate) async fn nothing_is_counted_twice_although_control_is_killed(host: Arc<TestCluster>) {
    const NAMESPACE: &str = "metering";
    let (early, late) = (
        bench(&host, "metering-early").await,
        bench(&host, "metering-late").await,
    );
    let groups = [("early", early.name, 1), ("late", late.name, 1)];
    let tenant = Tenant::create(&host, NAMESPACE, &cluster("metered", &groups)).await;
    let slug = tenant.id.slug().to_owned();
    let tenants = host.tenants(NAMESPACE);
    let groups = json!({"nodeGroups": [
        {"name": "early", "poolName": early.name, "replicas": 0}, {"name": "late", "poolName": late.name, "replicas": 1},
    ]});
    host.patch_tenant(NAMESPACE, "metered", &groups).await;
    let (early_seconds, early_gpus) = held(&early.until_state("Scrubbing").await);
    // With the other node, as long as that is counted by then.
    let written = until("the node that has left is in the record", SOON, async || {
        let records = find_records(&host, &slug).await;
        let (nodes, gpus) = (sum(&records, UsageResource::Node), sum(&records, UsageResource::Gpu));
        if nodes >= early_seconds && are_in_use(&records) {
            Ok(gpus)
        } else {
            Err((early_seconds, records))
        }
    })
    .await;

    // The pool has a record, too: of its node, which a tenant had for a while.
    until_true("the pool has a record", SOON, async || {
        let all: Api<UsageRecord> = Api::all(host.client.clone());
        let records = all.list(&ListParams::default()).await.unwrap().items;
        records.iter().any(|record| {
            let of = &record.spec.tenant;
            of.is_pool() && of.name == early.name && sum(std::slice::from_ref(record), UsageResource::Node) > 0
        })
    })
    .await;

    host.stop_control("first").await;
    host.start_control("first").await;
    tenants.delete("metered", &DeleteParams::default()).await.unwrap();
    until_gone(&host, NAMESPACE, "metered").await;
    let (late_seconds, late_gpus) = held(&late.until_state("Scrubbing").await);
    let seconds = early_seconds + late_seconds;
    let records = until("the record ends when no node is left", SOON, async || {
        let records = find_records(&host, &slug).await;
        let difference = sum(&records, UsageResource::Node) - seconds;
        let is_complete = difference.abs() <= 2 * TOLERANCE && !are_in_use(&records);
        if is_complete {
            Ok(records)
        } else {
            Err((seconds, records))
        }
    })
    .await;
    let gpu_seconds = early_gpus * early_seconds + late_gpus * late_seconds;
    let difference = sum(&records, UsageResource::Gpu) - gpu_seconds;
    let tolerance = TOLERANCE * (early_gpus + late_gpus);
    assert!(difference.abs() <= tolerance, "{gpu_seconds}: {records:?}");
    assert!(gpu_seconds > written && written > 0, "{gpu_seconds} after {written}");
    assert!(sum(&records, UsageResource::ControlPlane) > 0, "{records:?}");
    let of = &records[0].spec.tenant;
    assert_eq!((of.namespace.as_str(), of.name.as_str()), (NAMESPACE, "metered"));

    // Another control finds the nodes as they were. It has counted when the next tenant has a record.
    host.stop_control("first").await;
    host.start_control("first").await;
    let next = Tenant::create(&host, NAMESPACE, &cluster("next", &[])).await;
    until_true("the next tenant has a record", SOON, async || {
        let records = find_records(&host, next.id.slug()).await;
        sum(&records, UsageResource::ControlPlane) > 0
    })
    .await;
    let outlasting = find_records(&host, &slug).await;
    assert_eq!(outlasting, records, "it outlasts its tenant, unchanged");
    next.delete(&host).await;
    remove(&host, &early).await;
    remove(&host, &late).await;
}
