//! A tenant that sleeps with mode Asleep, so that nothing wakes it, while the platform takes away what it has on the host: another tenant's users must not
//! reach it there.

use berth_api::{SleepState, TenantClass};
use berth_tests::{
    objects::apply,
    sleep::{until_nothing_runs, until_state},
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until_true},
};
use k8s_openapi::api::{
    core::v1::Service,
    discovery::v1::EndpointSlice,
    networking::v1::{Ingress, IngressClass},
};
use kube::{
    Api, Resource,
    api::{DeleteParams, ListParams},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::{fmt::Debug, sync::Arc};

/// Name of the class, the IngressClass and the tenant.
const NAME: &str = "sleepy";
const NAMESPACE: &str = "adv-asleep";
const OF_SYNCER: &str = "berth.dev/managed-by=syncer";

fn class(ingress: &Value, node_ports: bool) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": NAME}, "spec": {
        "sync": {"ingress": ingress, "services": {"nodePorts": node_ports}},
        "network": {"endpointCIDRs": ["203.0.113.0/24"]},
    }})
}

/// What the tenant has of a kind on the host.
async fn on_host<K>(host: &TestCluster, tenant: &Tenant) -> Vec<K>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let listed = api.list(&ListParams::default().labels(OF_SYNCER)).await;
    listed.unwrap().items
}

/// Whether a Service of the tenant has a port on the nodes.
async fn has_node_port(host: &TestCluster, tenant: &Tenant) -> bool {
    let services: Vec<Service> = on_host(host, tenant).await;
    let specs = services.into_iter().filter_map(|service| service.spec);
    let mut ports = specs.flat_map(|spec| spec.ports.unwrap_or_default());
    ports.any(|port| port.node_port.is_some_and(|number| number > 0))
}

async fn has_ingress(host: &TestCluster, tenant: &Tenant) -> bool {
    !on_host::<Ingress>(host, tenant).await.is_empty()
}

async fn has_slice(host: &TestCluster, tenant: &Tenant) -> bool {
    !on_host::<EndpointSlice>(host, tenant).await.is_empty()
}

/// Nobody keeps endpoints up to date while the tenant sleeps.
async fn until_no_slice(host: &TestCluster, tenant: &Tenant) {
    until_true("the host has no endpoints of the tenant's own", SOON, async || {
        !has_slice(host, tenant).await
    })
    .await;
}

async fn set_mode(host: &TestCluster, mode: &str) {
    host.patch_tenant(NAMESPACE, NAME, &json!({"sleep": {"mode": mode}}))
        .await;
}

/// An Ingress of an allowed host name that leads to a machine, by a Service without a selector.
async fn lay_the_trap(host: &TestCluster, tenant: &Tenant) {
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "ghost"},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]}});
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "ghost-1", "labels": {"kubernetes.io/service-name": "ghost",
            "endpointslice.kubernetes.io/managed-by": "me"}},
        "endpoints": [{"addresses": ["203.0.113.7"]}], "ports": [{"port": 80}]});
    let backend = json!({"service": {"name": "ghost", "port": {"number": 80}}});
    let ingress = json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "app"},
        "spec": {"ingressClassName": NAME, "rules": [{"host": "app.example.com",
            "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}]}});
    for object in [service, slice, ingress] {
        apply(&tenant.client, "default", &object).await.unwrap();
    }
    until_true("all of it is on the host", SOON, async || {
        has_ingress(host, tenant).await && has_slice(host, tenant).await && has_node_port(host, tenant).await
    })
    .await;
}

pub(crate) async fn a_tenant_that_sleeps_keeps_nothing_that_its_class_takes_away(host: Arc<TestCluster>) {
    let ingress_class = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": NAME},
        "spec": {"controller": "example.com/none"}});
    apply(&host.client, "", &ingress_class).await.unwrap();
    let allowed = json!({"classes": [NAME], "hostnames": ["app.example.com"]});
    apply(&host.client, "", &class(&allowed, true)).await.unwrap();
    let mut wanted = cluster(NAME, &[]);
    wanted.spec.class_name = Some(NAME.into());
    let tenant = Tenant::create(&host, NAMESPACE, &wanted).await;
    lay_the_trap(&host, &tenant).await;

    set_mode(&host, "Asleep").await;
    until_nothing_runs(&host, &tenant).await;
    until_no_slice(&host, &tenant).await;
    assert!(has_ingress(&host, &tenant).await, "the class allows it");

    // The name is another class's from now on.
    let others = json!({"classes": [NAME], "hostnames": []});
    apply(&host.client, "", &class(&others, false)).await.unwrap();
    until_true("what the class took away is gone", SOON, async || {
        !has_ingress(&host, &tenant).await && !has_node_port(&host, &tenant).await
    })
    .await;
    until_nothing_runs(&host, &tenant).await;
    until_no_slice(&host, &tenant).await;

    set_mode(&host, "Awake").await;
    until_state(&host, &tenant, SleepState::Awake).await;
    until_true("what the class still allows is back", SOON, async || {
        has_slice(&host, &tenant).await
    })
    .await;
    assert!(!has_ingress(&host, &tenant).await && !has_node_port(&host, &tenant).await);
    tenant.delete(&host).await;
    let classes: Api<TenantClass> = Api::all(host.client.clone());
    classes.delete(NAME, &DeleteParams::default()).await.unwrap();
    let ingress_classes: Api<IngressClass> = Api::all(host.client.clone());
    ingress_classes.delete(NAME, &DeleteParams::default()).await.unwrap();
}
