//! Policies and endpoints between real API servers, and the test of all kinds of networks. No packet flows: the tests look at
//! the objects and labels that network plug-ins and controllers of the host act upon.

use crate::{
    budgets, ingress,
    objects::{Objects, both, create, events, eventually, is_phase, pod},
    setup::Clusters,
    workloads,
};
use berth_api::{
    SchedulingMode, SyncPolicy,
    labels::{NETWORK_EGRESS, NETWORK_INGRESS},
    names::host_name,
    pod_labels,
    sync_policy::GatewayReference,
};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

const NETWORKING: &str = "networking.k8s.io";

fn policy() -> SyncPolicy {
    let mut policy = SyncPolicy::default();
    policy.ingress.classes = vec!["nginx".into()];
    policy.ingress.gateway_classes = vec!["shared".into()];
    policy.ingress.gateways = vec![GatewayReference {
        namespace: "infra".into(),
        name: "public".into(),
    }];
    policy.ingress.hostnames = vec!["*.team.example.com".into()];
    policy
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn network_kinds() {
    let mut clusters = Clusters::start_with(policy(), SchedulingMode::Host).await;
    for client in [&clusters.host_admin, &clusters.tenant_admin] {
        ingress::define_gateway_api(client).await;
    }
    let syncer = clusters.syncer().await;
    policies_isolate(&clusters).await;
    a_pod_that_is_being_deleted_is_closed(&clusters).await;
    endpoints_are_the_tenants_own(&clusters).await;
    ingress::ingresses_are_served(&clusters).await;
    ingress::a_service_that_becomes_a_name_is_no_backend(&clusters).await;
    ingress::routes_are_attached(&clusters).await;
    ingress::routes_are_counted_on_the_host(&clusters).await;
    let syncer = ingress::what_the_class_takes_away_is_withdrawn(&mut clusters, syncer).await;
    workloads::budgets_hold_on_the_host(&clusters).await;
    budgets::too_large_ones_leave_the_host(&clusters).await;
    budgets::uncounted_ones_forbid_disruptions(&clusters).await;
    syncer.stop().await;
}

/// The directions in which the platform's policies leave a pod open.
async fn open(clusters: &Clusters, name: &str) -> Option<[bool; 2]> {
    let labels = clusters.host_pod(name).await?.metadata.labels?;
    Some([NETWORK_INGRESS, NETWORK_EGRESS].map(|label| labels.get(label).is_some_and(|value| value == "open")))
}

pub async fn until_open(clusters: &Clusters, name: &str, wanted: [bool; 2]) {
    eventually(&format!("{name} is open: {wanted:?}"), async || {
        open(clusters, name).await == Some(wanted)
    })
    .await;
}

async fn policies_isolate(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    for name in ["db", "web"] {
        create(&pods, pod(name, &json!({}))).await;
        until_open(clusters, name, [true, true]).await;
    }
    let (tenant, host) = both(clusters, NETWORKING, "v1", "NetworkPolicy");
    tenant
        .create(json!({"metadata": {"name": "db"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}, {"ipBlock": {"cidr": "10.5.0.0/16"}}]},
                        {"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}], "ports": [{"port": 443}]}]}}))
        .await;
    let name = host_name("NetworkPolicy", "default", "db");
    let policy = host.until(&name, "it is on the host", |_| true).await;
    let rules = &policy["spec"]["ingress"];
    assert_eq!(
        rules[0]["from"],
        json!([{"podSelector": {"matchLabels": {(pod_labels::host_key("app")): "web", "berth.dev/tenant": crate::setup::SLUG, "berth.dev/namespace": "default"}}}])
    );
    assert_eq!(
        rules[1]["from"][0]["ipBlock"]["except"],
        json!([
            "10.0.0.0/8",
            "100.100.100.200/32",
            "127.0.0.0/8",
            "168.63.129.16/32",
            "169.254.0.0/16",
            "192.0.0.192/32"
        ])
    );
    until_open(clusters, "db", [false, true]).await;
    assert_eq!(open(clusters, "web").await, Some([true, true]));
    eventually("an Event names what is left out", async || {
        let messages = events(clusters, "db", "FieldIgnored").await;
        messages
            .iter()
            .any(|message| message.contains("spec.ingress[0].from[1].ipBlock: these addresses belong to the platform"))
    })
    .await;
    // A new pod is never open where a policy selects it.
    let mut second = pod("db-2", &json!({}));
    second["metadata"]["labels"]["app"] = "db".into();
    create(&pods, second).await;
    eventually("db-2 is on the host", async || {
        clusters.host_pod("db-2").await.is_some()
    })
    .await;
    assert_eq!(open(clusters, "db-2").await, Some([false, true]));
    // A changed label takes a pod out of the policy; a policy for the other direction then selects it.
    let relabel = Patch::Merge(json!({"metadata": {"labels": {"app": "other"}}}));
    pods.patch("db-2", &PatchParams::default(), &relabel).await.unwrap();
    until_open(clusters, "db-2", [true, true]).await;
    tenant
        .create(json!({"metadata": {"name": "all"}, "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]}}))
        .await;
    until_open(clusters, "db-2", [true, false]).await;
    an_edit_beyond_the_limits_closes_a_policy((&tenant, &host), &name).await;
    for policy in ["db", "all"] {
        tenant.delete(policy).await;
        host.gone(&host_name("NetworkPolicy", "default", policy)).await;
    }
    for name in ["db", "db-2", "web"] {
        until_open(clusters, name, [true, true]).await;
    }
}

/// Policies hold for a pod until it has ended.
async fn a_pod_that_is_being_deleted_is_closed(clusters: &Clusters) {
    let (pods, hosts) = (clusters.tenant_api::<Pod>(), clusters.host_api::<Pod>());
    create(&pods, pod("ending", &json!({}))).await;
    until_open(clusters, "ending", [true, true]).await;
    let host_name = clusters.host_pod("ending").await.unwrap().metadata.name.unwrap();
    let keep = async |finalizers: Value| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        hosts.patch(&host_name, &PatchParams::default(), &patch).await.unwrap();
    };
    keep(json!(["example.com/kept"])).await;
    pods.delete("ending", &DeleteParams::default()).await.unwrap();
    eventually("it is being deleted on the host", async || {
        let host = clusters.host_pod("ending").await;
        host.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
    })
    .await;
    let (tenant, _) = both(clusters, NETWORKING, "v1", "NetworkPolicy");
    let spec = json!({"podSelector": {"matchLabels": {"app": "ending"}}, "policyTypes": ["Ingress"]});
    tenant.create(json!({"metadata": {"name": "late"}, "spec": spec})).await;
    until_open(clusters, "ending", [false, true]).await;
    keep(Value::Null).await;
    tenant.delete("late").await;
}

/// Left as it was, the host's policy would go on allowing what the tenant has closed meanwhile.
async fn an_edit_beyond_the_limits_closes_a_policy((tenant, host): (&Objects, &Objects), name: &str) {
    let rules = tenant.get("db").await.unwrap()["spec"]["ingress"].clone();
    let peers = vec![json!({"podSelector": {"matchLabels": {"app": "web"}}}); 100];
    let ports: Vec<Value> = (1..=51).map(|port| json!({"port": port})).collect();
    tenant
        .patch("db", json!({"spec": {"ingress": [{"from": peers, "ports": ports}]}}))
        .await;
    host.until(name, "it allows nothing", |policy| {
        policy["spec"]["ingress"].as_array().is_none_or(Vec::is_empty)
            && policy["spec"]["policyTypes"] == json!(["Ingress"])
    })
    .await;
    tenant.patch("db", json!({"spec": {"ingress": rules}})).await;
    host.until(name, "it allows what it did", |policy| {
        policy["spec"]["ingress"]
            .as_array()
            .is_some_and(|rules| rules.len() == 2)
    })
    .await;
}

async fn endpoints_are_the_tenants_own(clusters: &Clusters) {
    let pods = clusters.tenant_api::<Pod>();
    eventually("db runs", async || is_phase(&pods, "db", "Running").await).await;
    let address = pods.get("db").await.unwrap().status.unwrap().pod_ip.unwrap();
    let (tenant, host) = both(clusters, "discovery.k8s.io", "v1", "EndpointSlice");
    // A slice is not synced before its Service exists.
    tenant
        .create(json!({"metadata": {"name": "manual", "labels": {"kubernetes.io/service-name": "manual"}}, "addressType": "IPv4",
            "endpoints": [{"addresses": [address]}, {"addresses": ["192.0.2.7"]}, {"addresses": ["10.0.0.1"]}], "ports": [{"name": "", "port": 5432}]}))
        .await;
    let services = clusters.tenant_api::<Service>();
    let name = host_name("EndpointSlice", "default", "manual");
    assert!(host.get(&name).await.is_none());
    for name in ["manual", "older"] {
        create(
            &services,
            json!({"metadata": {"name": name}, "spec": {"ports": [{"port": 5432}]}}),
        )
        .await;
    }
    let addresses = |slice: &Value| -> Vec<Value> {
        let endpoints = slice["endpoints"].as_array().cloned().unwrap_or_default();
        endpoints
            .iter()
            .map(|endpoint| endpoint["addresses"][0].clone())
            .collect()
    };
    let slice = host.until(&name, "it follows its Service", |_| true).await;
    assert_eq!(addresses(&slice), [json!(address), json!("192.0.2.7")]);
    assert_eq!(
        slice["metadata"]["labels"]["kubernetes.io/service-name"],
        host_name("Service", "default", "manual")
    );
    eventually("an Event names what is left out", async || {
        let messages = events(clusters, "manual", "FieldIgnored").await;
        messages
            .iter()
            .any(|message| message.contains("endpoints[2].addresses: 10.0.0.1"))
    })
    .await;
    // An address is removed with its pod.
    pods.delete("db", &DeleteParams::default()).await.unwrap();
    host.until(&name, "the address of the pod is gone", |slice| {
        addresses(slice) == [json!("192.0.2.7")]
    })
    .await;
    // Endpoints of the older kind are synced as the slices that the tenant's controller manager makes of them, once.
    let (endpoints, host_endpoints) = both(clusters, "", "v1", "Endpoints");
    endpoints
        .create(json!({"metadata": {"name": "older"}, "subsets": [{"addresses": [{"ip": "192.0.2.9"}], "ports": [{"port": 5432}]}]}))
        .await;
    let service = host_name("Service", "default", "older");
    let selector = ListParams::default().labels(&format!("kubernetes.io/service-name={service}"));
    eventually("the mirrored slice is on the host", async || {
        let slices = host.0.list(&selector).await.unwrap().items;
        slices.len() == 1 && addresses(&serde_json::to_value(&slices[0]).unwrap()) == [json!("192.0.2.9")]
    })
    .await;
    assert!(host_endpoints.get(&service).await.is_none());
    services.delete("manual", &DeleteParams::default()).await.unwrap();
    host.gone(&name).await;
}
