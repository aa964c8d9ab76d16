//! One test a process, or group of processes, that is killed.

use berth_api::{conditions::SYNCER_READY, labels};
use berth_control::{
    apply::is_status,
    control_plane::{API_SERVER, CONTROLLER_MANAGER, COREDNS, SYNCER},
};
use berth_process::ProcessState;
use berth_tests::{
    objects::{apply, gpu_pod, nodes_of_tenant, phase},
    processes::{self, find, kill, signal, until_replaced},
    tenant::{Tenant, cluster, ensure_namespace, until_gone},
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::{
    core::v1::{Namespace, Node, Pod, Taint},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use rustix::process::Signal;
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc, time::Duration};

/// The host's own API server may be what is killed: every client reconnects at its own pace.
const SOON: Duration = Duration::from_secs(240);
/// Time until control has found out that a syncer does not work, and for two minutes more.
const WITHOUT_SYNCER: Duration = Duration::from_secs(600);

/// Every node has at most one owner, and every owner is alive.
async fn assert_nodes_are_owned_once(host: &TestCluster, alive: &[&Tenant]) {
    let nodes: Api<Node> = Api::all(host.client.clone());
    for node in nodes.list(&ListParams::default()).await.unwrap() {
        let Some(slug) = node.labels().get(labels::TENANT) else {
            continue;
        };
        assert!(
            alive.iter().any(|tenant| tenant.id.slug() == slug),
            "{} belongs to {slug}, which is gone",
            node.name_any()
        );
        let taints = node
            .spec
            .as_ref()
            .and_then(|spec| spec.taints.clone())
            .unwrap_or_default();
        let is_own = |taint: &&Taint| taint.key == labels::TENANT && taint.effect == "NoExecute";
        assert_eq!(taints.iter().filter(is_own).count(), 1);
    }
}

pub(crate) async fn control_is_killed_while_tenants_are_created_and_deleted(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, "kill-control").await;
    let tenants = host.tenants("kill-control");
    for name in ["stays", "goes"] {
        tenants
            .create(&PostParams::default(), &cluster(name, &[("train", "h100", 1)]))
            .await
            .unwrap();
    }
    // At ever later moments while the two start.
    for milliseconds in [30, 150, 400, 900, 2000] {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        let control = find(&host.control_records(), "berth-control-first").unwrap();
        if control.state == ProcessState::Running {
            kill(&control);
        }
        until_replaced(&host.control_records(), &control).await;
    }
    let stays = Tenant::ready(&host, "kill-control", "stays").await;
    let goes = Tenant::ready(&host, "kill-control", "goes").await;
    assert_nodes_are_owned_once(&host, &[&stays, &goes]).await;
    // One process of each kind per tenant, whatever was killed in between.
    let records = berth_process::statuses(&host.tenant_records());
    for tenant in [&stays, &goes] {
        let mut own: Vec<_> = records
            .iter()
            .filter_map(|record| record.name.strip_prefix(tenant.id.slug())?.strip_prefix('.'))
            .collect();
        own.sort_unstable();
        assert_eq!(own, [COREDNS, API_SERVER, CONTROLLER_MANAGER, SYNCER]);
    }
    // Control's restarts must not affect their API servers.
    let servers_before = find(&host.tenant_records(), &format!("{}.{API_SERVER}", stays.id.slug()))
        .unwrap()
        .pid;

    tenants.delete("goes", &DeleteParams::default()).await.unwrap();
    for milliseconds in [50, 300, 800] {
        tokio::time::sleep(Duration::from_millis(milliseconds)).await;
        let control = find(&host.control_records(), "berth-control-first").unwrap();
        kill(&control);
        until_replaced(&host.control_records(), &control).await;
    }
    until_gone(&host, "kill-control", "goes").await;
    assert_nodes_are_owned_once(&host, &[&stays]).await;
    let namespaces: Api<Namespace> = Api::all(host.client.clone());
    let left = namespaces
        .list(&ListParams::default().labels(&format!("{}={}", labels::TENANT, goes.id.slug())))
        .await
        .unwrap();
    assert!(left.items.is_empty());
    let servers_after = find(&host.tenant_records(), &format!("{}.{API_SERVER}", stays.id.slug()))
        .unwrap()
        .pid;
    assert_eq!(servers_before, servers_after, "the tenant that stayed was disturbed");
    stays.delete(&host).await;
}

pub(crate) async fn control_is_replaced_by_another(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "kill-leader", &cluster("led", &[("train", "h100", 1)])).await;
    host.start_control("second").await;
    // Two at once: the second waits for the lease and changes nothing.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(nodes_of_tenant(&host.client, tenant.id.slug()).await.len(), 1);
    host.stop_control("first").await;
    let other = Tenant::create(&host, "kill-leader", &cluster("later", &[("train", "h100", 1)])).await;
    assert_nodes_are_owned_once(&host, &[&tenant, &other]).await;
    assert!(tenant.client.apiserver_version().await.is_ok());
    tokio::join!(tenant.delete(&host), other.delete(&host));
    host.stop_control("second").await;
    host.start_control("first").await;
}

/// Names of the tenant's pods, and of those that the host's pods are made from.
async fn both_sides(host: &TestCluster, tenant: &Tenant) -> (BTreeSet<String>, Vec<String>) {
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let tenant_pods = pods
        .list(&ListParams::default())
        .await
        .unwrap()
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let list = pods.list(&ListParams::default()).await.unwrap();
    let mut host_pods: Vec<String> = list
        .iter()
        .map(|pod| pod.annotations()[labels::ORIGIN_NAME].clone())
        .collect();
    host_pods.sort();
    (tenant_pods, host_pods)
}

pub(crate) async fn syncer_is_killed_during_creates_and_deletes(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "kill-syncer", &cluster("synced", &[("train", "h100", 2)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let records = host.tenant_records();
    let name = format!("{}.{SYNCER}", tenant.id.slug());
    for round in 0..3 {
        for index in 0..40 {
            pods.create(&PostParams::default(), &gpu_pod(&format!("p-{round}-{index}"), 0))
                .await
                .unwrap();
            if round > 0 && index % 2 == 0 {
                let earlier = format!("p-{}-{index}", round - 1);
                pods.delete(&earlier, &DeleteParams::default()).await.unwrap();
            }
            if index == 20 {
                let syncer = find(&records, &name).unwrap();
                kill(&syncer);
                until_replaced(&records, &syncer).await;
            }
        }
    }
    until("both sides agree", SOON, async || {
        let (tenant_pods, host_pods) = both_sides(&host, &tenant).await;
        let once: BTreeSet<String> = host_pods.iter().cloned().collect();
        assert_eq!(once.len(), host_pods.len(), "a pod is on the host twice");
        let running = pods
            .list(&ListParams::default())
            .await
            .unwrap()
            .iter()
            .filter(|pod| phase(pod) == "Running")
            .count();
        // Pods that are being deleted run on both sides until the last moment.
        if tenant_pods.len() == 80 && tenant_pods == once && running == tenant_pods.len() {
            Ok(())
        } else {
            Err(format!(
                "{} in the tenant, {} on the host, {running} running",
                tenant_pods.len(),
                host_pods.len()
            ))
        }
    })
    .await;

    // A restart without changes writes nothing: no host pod gets another resource version.
    let versions = async || -> Vec<(String, Option<String>)> {
        let pods: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
        pods.list(&ListParams::default())
            .await
            .unwrap()
            .iter()
            .map(|pod| (pod.name_any(), pod.resource_version()))
            .collect()
    };
    let before = versions().await;
    let syncer = find(&records, &name).unwrap();
    kill(&syncer);
    until_replaced(&records, &syncer).await;
    // A syncer that does not run yet writes nothing either.
    pods.create(&PostParams::default(), &gpu_pod("after", 0)).await.unwrap();
    until("the new syncer syncs a pod", SOON, async || {
        match pods.get("after").await {
            Ok(pod) if phase(&pod) == "Running" => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    let mut after = versions().await;
    after.retain(|(name, _)| before.iter().any(|(earlier, _)| earlier == name));
    assert_eq!(after, before, "a restart wrote to the host");
    tenant.delete(&host).await;
}

/// Whether the host has endpoints that the tenant has made itself.
async fn has_own_endpoints(host: &TestCluster, tenant: &Tenant) -> bool {
    let slices: Api<EndpointSlice> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let of_syncer = format!("{}={}", labels::MANAGED_BY, labels::MANAGED_BY_SYNCER);
    let listed = slices.list(&ListParams::default().labels(&of_syncer)).await;
    !listed.unwrap().items.is_empty()
}

/// A Service without a selector, and a slice of it with this address.
async fn make_own_endpoints(tenant: &Tenant, address: &str) {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ghost"},
        "spec": {"ports": [{"port": 80}]}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "ghost-1", "labels": {"kubernetes.io/service-name": "ghost",
            "endpointslice.kubernetes.io/managed-by": "me"}},
        "endpoints": [{"addresses": [address]}], "ports": [{"port": 80}]});
    for object in [service, slice] {
        apply(&tenant.client, "default", &object).await.unwrap();
    }
}

pub(crate) async fn own_endpoints_go_while_a_syncer_does_not_come_back(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "kill-endpoints", &cluster("ghosts", &[("train", "h100", 1)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("web", 1)).await.unwrap();
    let address = until("the pod has an address", SOON, async || {
        let pod = pods.get("web").await.map_err(|error| error.to_string())?;
        let address = pod.status.and_then(|status| status.pod_ip);
        address.ok_or_else(|| "it has none".to_owned())
    })
    .await;
    make_own_endpoints(&tenant, &address).await;
    until_true("the host has the endpoints", SOON, async || {
        has_own_endpoints(&host, &tenant).await
    })
    .await;

    let records = host.tenant_records();
    let syncer = find(&records, &format!("{}.{SYNCER}", tenant.id.slug())).unwrap();
    // Nothing starts it again, as if its node were lost.
    signal(&syncer, Signal::STOP);
    until_true("the endpoints are gone", WITHOUT_SYNCER, async || {
        !has_own_endpoints(&host, &tenant).await
    })
    .await;
    let tenants = host.tenants("kill-endpoints");
    until_true("the status says so", SOON, async || {
        let ghosts = tenants.get("ghosts").await.unwrap();
        let conditions = ghosts.status.map(|status| status.conditions).unwrap_or_default();
        let mut of_syncer = conditions.iter().filter(|condition| condition.type_ == SYNCER_READY);
        of_syncer.any(|condition| condition.status == "False" && condition.message.contains("EndpointSlices"))
    })
    .await;
    assert_eq!(phase(&pods.get("web").await.unwrap()), "Running", "its pods run on");

    kill(&syncer);
    until_replaced(&records, &syncer).await;
    until_true("the endpoints are back", SOON, async || {
        has_own_endpoints(&host, &tenant).await
    })
    .await;
    tenant.delete(&host).await;
}

pub(crate) async fn killed_api_server_and_controller_manager_come_back(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "kill-api", &cluster("api", &[("train", "h100", 1)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("before", 1))
        .await
        .unwrap();
    until_true("the pod runs", SOON, async || {
        pods.get("before").await.is_ok_and(|pod| phase(&pod) == "Running")
    })
    .await;
    let records = host.tenant_records();
    for component in [API_SERVER, CONTROLLER_MANAGER] {
        let process = find(&records, &format!("{}.{component}", tenant.id.slug())).unwrap();
        kill(&process);
        until_replaced(&records, &process).await;
    }
    let before = until("the tenant answers again", SOON, async || pods.get("before").await).await;
    assert_eq!(phase(&before), "Running", "a status was lost");
    // Admission begins some time after the first answers.
    let after = gpu_pod("after", 1);
    until("pods can be made again", SOON, async || {
        match pods.create(&PostParams::default(), &after).await {
            Err(error) if !is_status(&error, 409) => Err(error),
            _ => Ok(()),
        }
    })
    .await;
    until_true("a new pod runs", SOON, async || {
        pods.get("after").await.is_ok_and(|pod| phase(&pod) == "Running")
    })
    .await;
    tenant.delete(&host).await;
}

pub(crate) async fn killed_datastore_comes_back(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "kill-store", &cluster("stored", &[("train", "h100", 1)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    pods.create(&PostParams::default(), &gpu_pod("before", 1))
        .await
        .unwrap();
    let records = host.home().run();
    let datastore = find(&records, "datastore").unwrap();
    kill(&datastore);
    until_replaced(&records, &datastore).await;
    until_true("what was stored is there", SOON, async || {
        pods.get("before").await.is_ok()
    })
    .await;
    until_true("pods run", SOON, async || {
        pods.get("before").await.is_ok_and(|pod| phase(&pod) == "Running")
    })
    .await;
    tenant.delete(&host).await;
}

pub(crate) async fn killed_host_etcd_and_api_server_come_back(host: Arc<TestCluster>) {
    let tenant = Tenant::create(&host, "kill-host", &cluster("hosted", &[("train", "h100", 1)])).await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let records = host.home().run();
    for (round, component) in ["kube-apiserver", "etcd"].into_iter().enumerate() {
        let process = processes::find(&records, component).unwrap();
        kill(&process);
        // A team notices nothing but a delay.
        let name = format!("during-{round}");
        pods.create(&PostParams::default(), &gpu_pod(&name, 1)).await.unwrap();
        until_replaced(&records, &process).await;
        until_true(&format!("{name} runs"), SOON, async || {
            pods.get(&name).await.is_ok_and(|pod| phase(&pod) == "Running")
        })
        .await;
    }
    assert_nodes_are_owned_once(&host, &[&tenant]).await;
    tenant.delete(&host).await;
}
