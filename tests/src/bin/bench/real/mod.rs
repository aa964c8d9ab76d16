//! Measurements that need real nodes: control planes as pods, containers, packets. They share one cluster, with
//! Berth installed by its chart; as root.

mod memory;
mod names;
mod ready;
mod streams;

use berth_tests::{
    objects::{apply, phase},
    tenant::{Tenant, cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::until,
};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use std::{fs, time::Duration};

pub(crate) use names::ask_many;

/// The image of the benchmarks' pods, which is on every node.
const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.59";
const LIMIT: Duration = Duration::from_secs(180);
/// Namespace on the host whose pod does the same without Berth.
const DIRECT: &str = "bench-direct";
/// Name of the pod on both sides.
const POD: &str = "served";
/// Port on which the pod sends [`streams::BYTES`] to each client.
const BULK: u16 = 9000;

pub(crate) async fn run() {
    let host = TestCluster::on_real_nodes("cpu=1,h100=1,l40s=1").await;
    ready::run(&host).await;
    let tenant = Tenant::create(&host, "bench", &cluster("vision", &[("train", "h100", 1)])).await;
    memory::run(&host, &tenant).await;
    let (through, direct) = both_sides(&host, &tenant).await;
    streams::run(&host, &tenant).await;
    names::run(&host, &tenant, &through, &direct).await;
    tenant.delete(&host).await;
}

/// The same pod in the tenant and in a namespace of the host, on nodes of the same kind. Returns the host's object of each.
async fn both_sides(host: &TestCluster, tenant: &Tenant) -> (Pod, Pod) {
    ensure_namespace(&host.client, DIRECT).await;
    serve(&tenant.client, "default", json!({})).await;
    serve(&host.client, DIRECT, json!({"kubernetes.io/hostname": "gpu-l40s-01"})).await;
    let of_tenant: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let through = until("the tenant's pod is on the host", LIMIT, async || {
        let list = of_tenant.list(&kube::api::ListParams::default()).await;
        let pods = list.map_err(|error| error.to_string())?.items;
        pods.into_iter()
            .find(|pod| pod.name_any().starts_with(POD))
            .ok_or_else(|| "not there".to_owned())
    });
    let of_host: Api<Pod> = Api::namespaced(host.client.clone(), DIRECT);
    (through.await, of_host.get(POD).await.unwrap())
}

/// Starts the pod and waits until it runs.
async fn serve(client: &Client, namespace: &str, selector: serde_json::Value) {
    let bulk = format!("nc -ll -p {BULK} -e head -c {} /dev/zero", streams::BYTES);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": POD, "namespace": namespace}, "spec": {
    "nodeSelector": selector, "terminationGracePeriodSeconds": 1,
    "containers": [
        {"name": "web", "image": IMAGE, "args": ["netexec", "--http-port=8080", "--udp-port=-1"]},
        {"name": "bulk", "image": IMAGE, "command": ["/bin/sh", "-c", bulk]},
    ]}});
    until("the pod is accepted", LIMIT, async || {
        apply(client, namespace, &pod).await.map_err(|error| error.to_string())
    })
    .await;
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    until("the pod runs", LIMIT, async || {
        let pod = pods.get(POD).await.map_err(|error| error.to_string())?;
        if phase(&pod) == "Running" {
            Ok(())
        } else {
            Err(phase(&pod))
        }
    })
    .await;
}

/// The processes of a pod that a kubelet of this machine runs.
fn processes(pod: &Pod) -> Vec<u32> {
    let uid = pod.uid().unwrap();
    let all = fs::read_dir("/proc").unwrap().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .filter(|process: &u32| {
            fs::read_to_string(format!("/proc/{process}/cgroup")).is_ok_and(|groups| groups.contains(&uid))
        })
        .collect()
}
