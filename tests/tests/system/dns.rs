//! A tenant's DNS: a real CoreDNS on a real tenant API server.

use berth_api::{HostNodePool, TenantCluster, labels};
use berth_control::control_plane::COREDNS;
use berth_tests::{
    dns::{Answer, Outside, ask},
    objects::{api_server_address, apply, simulate_node},
    processes,
    tenant::{Tenant, cluster},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::{
    api::core::v1::{Event, Node, Pod, Service},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use simple_dns::TYPE;
use std::{net::SocketAddr, sync::Arc};

async fn make(host: &TestCluster, class: Value, cluster: &TenantCluster) -> Tenant {
    apply(&host.client, "", &class).await.unwrap();
    Tenant::create(host, "names", cluster).await
}

fn class(name: &str, dns: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "TenantClass", "metadata": {"name": name}, "spec": {"dns": dns}})
}

/// The address of a tenant's DNS for its pods, and where it listens on this machine.
async fn server(host: &TestCluster, tenant: &Tenant) -> (String, SocketAddr) {
    let services: Api<Service> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let spec = services.get("kube-dns").await.unwrap().spec.unwrap();
    let Some(IntOrString::Int(port)) = spec.ports.unwrap()[0].target_port.clone() else {
        panic!("a port");
    };
    let port = u16::try_from(port).unwrap();
    (spec.cluster_ip.unwrap(), ([127, 0, 0, 1], port).into())
}

async fn until_answer(server: SocketAddr, kind: TYPE, name: &str, wanted: Answer) {
    until(&format!("{name} is {wanted:?}"), SOON, async || {
        let answer = ask(server, kind, name).await?;
        if answer == wanted {
            Ok(())
        } else {
            Err(format!("{answer:?}"))
        }
    })
    .await;
}

/// Makes control reconcile a tenant now.
async fn wake(host: &TestCluster, tenant: &Tenant, why: &str) {
    let change = json!({"metadata": {"annotations": {"example.com/wake": why}}});
    let tenants = host.tenants(&tenant.namespace);
    tenants
        .patch(&tenant.name, &PatchParams::default(), &Patch::Merge(change))
        .await
        .unwrap();
}

async fn create(tenant: &Tenant, objects: &[Value]) {
    for object in objects {
        // The platform allocates the addresses of Services, and may ask to try again.
        until("it is stored", SOON, async || {
            apply(&tenant.client, "default", object).await
        })
        .await;
    }
}

fn reverse(address: &str) -> String {
    let parts: Vec<&str> = address.split('.').rev().collect();
    format!("{}.in-addr.arpa", parts.join("."))
}

#[expect(clippy::too_many_lines, reason = "one server is queried for every kind of name")]
pub(crate) async fn tenant_resolves_only_its_own_names(host: Arc<TestCluster>) {
    let outside = Outside::start().await;
    let pool = json!({"apiVersion": "berth.dev/v1alpha1", "kind": "HostNodePool", "metadata": {"name": "names"}, "spec": {
        "nodeSelector": {"example.com/pool": "names"}}});
    simulate_node(&host.client, "cpu-02", "names-01", json!({"example.com/pool": "names"})).await;
    let pools: Api<HostNodePool> = Api::all(host.client.clone());
    let pool = serde_json::from_value(pool).unwrap();
    pools.create(&PostParams::default(), &pool).await.unwrap();
    let mut cluster = cluster("names", &[("all", "names", 1)]);
    cluster.spec.class_name = Some("names".into());
    let dns = json!({"upstreams": [outside.address.to_string()], "blockedDomains": ["k8s.example"]});
    let tenant = make(&host, class("names", &dns), &cluster).await;
    let (address, server) = server(&host, &tenant).await;

    let services: Api<Service> = Api::namespaced(tenant.client.clone(), "default");
    let address_of = async |name: &str| services.get(name).await.unwrap().spec.unwrap().cluster_ip.unwrap();
    let api_server = address_of("kubernetes").await;
    until_answer(
        server,
        TYPE::A,
        "kubernetes.default.svc.cluster.local",
        Answer::of(&[&api_server]),
    )
    .await;

    let container = json!({"name": "main", "image": "registry.example.com/any"});
    let labels = json!({"app": "db"});
    create(
        &tenant,
        &[
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}, "spec": {
                "selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}]}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"}, "spec": {
                "clusterIP": "None", "selector": labels, "ports": [{"name": "pg", "port": 5432}]}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "alias"}, "spec": {
                "type": "ExternalName", "externalName": "www.outside.example"}}),
            json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {
                "serviceName": "db", "replicas": 2,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}}}}),
        ],
    )
    .await;
    let pods: Api<Pod> = Api::namespaced(tenant.client.clone(), "default");
    let ip_of = async |name: &str| {
        let pod = pods.get(name).await.map_err(|error| error.to_string())?;
        let ip = pod.status.and_then(|status| status.pod_ip);
        ip.ok_or_else(|| format!("{name} has no address"))
    };
    let web = address_of("web").await;

    // Names of the tenant, as the specification of DNS in Kubernetes has them.
    let zone = "default.svc.cluster.local";
    let (db_0, web_name) = (format!("db-0.db.{zone}"), format!("web.{zone}"));
    until("every name has its records", SOON, async || {
        // Looked up each time: a pod that was replaced has another address.
        let (first, second) = (ip_of("db-0").await?, ip_of("db-1").await?);
        let mut both = [first.as_str(), second.as_str()];
        both.sort_unstable();
        for (kind, name, wanted) in [
            (TYPE::A, web_name.clone(), Answer::of(&[&web])),
            (TYPE::AAAA, web_name.clone(), Answer::of(&[])),
            (
                TYPE::SRV,
                format!("_http._tcp.web.{zone}"),
                Answer::of(&[&format!("80 {web_name}")]),
            ),
            (TYPE::A, format!("db.{zone}"), Answer::of(&both)),
            (TYPE::A, db_0.clone(), Answer::of(&[&first])),
            (TYPE::A, format!("db-1.db.{zone}"), Answer::of(&[&second])),
            (TYPE::PTR, reverse(&web), Answer::of(&[&web_name])),
            (TYPE::PTR, reverse(&first), Answer::of(&[&db_0])),
            (
                TYPE::CNAME,
                format!("alias.{zone}"),
                Answer::of(&["www.outside.example"]),
            ),
            (
                TYPE::A,
                "kube-dns.kube-system.svc.cluster.local".into(),
                Answer::of(&[&address]),
            ),
            (
                TYPE::A,
                "www.outside.example".into(),
                Answer::of(&[&Outside::ADDRESS.to_string()]),
            ),
        ] {
            let answer = ask(server, kind, &name).await?;
            if answer != wanted {
                return Err(format!("{kind:?} {name}: {answer:?}, not {wanted:?}"));
            }
        }
        Ok(())
    })
    .await;

    // No names of the host, and no upstream gets queries for them.
    let home = tenant.id.workload_namespace();
    for (kind, name) in [
        (
            TYPE::A,
            format!(
                "{}.{home}.svc.cluster.local",
                berth_api::names::host_name("Service", "default", "web")
            ),
        ),
        (
            TYPE::A,
            format!(
                "kube-apiserver.{}.svc.cluster.local",
                tenant.id.control_plane_namespace()
            ),
        ),
        (TYPE::A, "kube-dns.kube-system.svc.k8s.example".into()),
        (TYPE::PTR, "1.0.96.10.in-addr.arpa".into()),
        (TYPE::PTR, "254.169.254.169.in-addr.arpa".into()),
    ] {
        until_answer(server, kind, &name, Answer::no_name()).await;
    }
    let queried = outside.asked();
    assert!(queried.contains("www.outside.example"), "{queried:?}");
    let leaked = queried.iter().find(|name| {
        ["cluster.local", "k8s.example", "arpa"]
            .iter()
            .any(|end| name.ends_with(end))
    });
    assert_eq!(leaked, None);

    pods_use_the_server(&host, &tenant, &address).await;
    server_answers_again_at_the_same_address(&host, &tenant, &address, server, &web_name, &web).await;
    tenant.delete(&host).await;
    pools.delete("names", &DeleteParams::default()).await.unwrap();
    let nodes: Api<Node> = Api::all(host.client.clone());
    nodes.delete("names-01", &DeleteParams::default()).await.unwrap();
}

async fn pods_use_the_server(host: &TestCluster, tenant: &Tenant, address: &str) {
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let params = ListParams::default().labels(&format!("{}=default", labels::TENANT_OBJECT_NAMESPACE));
    let pods = on_host.list(&params).await.unwrap().items;
    assert!(!pods.is_empty(), "those of the StatefulSet are there");
    for pod in pods {
        let config = pod.spec.unwrap().dns_config.unwrap();
        assert_eq!(config.nameservers.unwrap(), [address]);
        assert_eq!(config.searches.unwrap()[0], "default.svc.cluster.local");
    }
    // A team's change of the mirrored Service changes nothing on the host, and does not last.
    let mirrored: Api<Service> = Api::namespaced(tenant.client.clone(), "kube-system");
    let current = mirrored.get("kube-dns").await.unwrap();
    assert_eq!(current.spec.unwrap().cluster_ip.as_deref(), Some(address));
    let hijack = json!({"spec": {"selector": {"app": "web"}, "externalIPs": ["1.2.3.4"]}});
    let hijacked = mirrored
        .patch("kube-dns", &PatchParams::default(), &Patch::Merge(hijack))
        .await;
    hijacked.unwrap();
    let services: Api<Service> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let name = berth_api::names::host_name("Service", "kube-system", "kube-dns");
    assert!(services.get_opt(&name).await.unwrap().is_none(), "it is not synced");
}

async fn server_answers_again_at_the_same_address(
    host: &TestCluster,
    tenant: &Tenant,
    address: &str,
    server: SocketAddr,
    name: &str,
    answer: &str,
) {
    let process = format!("{}.{COREDNS}", tenant.id.slug());
    let before = processes::find(&host.tenant_records(), &process).unwrap();
    processes::kill(&before);
    processes::until_replaced(&host.tenant_records(), &before).await;
    until_answer(server, TYPE::A, name, Answer::of(&[answer])).await;

    let services: Api<Service> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    services.delete("kube-dns", &DeleteParams::default()).await.unwrap();
    wake(host, tenant, "the Service is gone").await;
    until_true("its address is the same", SOON, async || {
        let service = services.get_opt("kube-dns").await.unwrap();
        service.is_some_and(|service| service.spec.unwrap().cluster_ip.as_deref() == Some(address))
    })
    .await;
}

pub(crate) async fn dns_customization_is_validated(host: Arc<TestCluster>) {
    let mut cluster = cluster("words", &[]);
    cluster.spec.class_name = Some("words".into());
    let dns = json!({"forward": false});
    let tenant = make(&host, class("words", &dns), &cluster).await;
    let (_, server) = server(&host, &tenant).await;
    until_answer(server, TYPE::A, "www.outside.example", Answer::no_name()).await;

    let meta = json!({"name": "coredns-custom", "namespace": "kube-system"});
    let custom = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {
        "hosts": "10.20.0.5 registry.corp.example registry\n10.20.0.6 kubernetes.default.svc.cluster.local",
        "rewrite": "api.example kubernetes.default.svc.cluster.local",
        "forward": "corp.example 169.254.169.254",
        "shadow.server": "example.com { file /etc/shadow }",
    }});
    create(&tenant, &[custom]).await;
    wake(&host, &tenant, "customised").await;
    let api_server = api_server_address(&tenant.client).await;
    until_answer(server, TYPE::A, "registry", Answer::of(&["10.20.0.5"])).await;
    until_answer(server, TYPE::A, "registry.corp.example", Answer::of(&["10.20.0.5"])).await;
    until_answer(server, TYPE::A, "api.example", Answer::of(&[&api_server])).await;
    let itself = "kubernetes.default.svc.cluster.local";
    until_answer(server, TYPE::A, itself, Answer::of(&[&api_server])).await;
    until_answer(server, TYPE::A, "www.outside.example", Answer::no_name()).await;

    let events: Api<Event> = Api::namespaced(tenant.client.clone(), "kube-system");
    let message = until("the team gets an Event", SOON, async || {
        let events = events
            .list(&ListParams::default())
            .await
            .map_err(|error| error.to_string())?;
        let event = events
            .into_iter()
            .find(|event| event.involved_object.name.as_deref() == Some("coredns-custom"));
        event
            .and_then(|event| event.message)
            .ok_or_else(|| "no event".to_owned())
    })
    .await;
    for expected in [
        "hosts, line 2: names in cluster.local cannot be changed",
        "forward, line 1: 169.254.169.254 is not an allowed server",
        "shadow.server: only hosts, forward, rewrite and log are read",
    ] {
        assert!(message.contains(expected), "{message}");
    }

    tenant.delete(&host).await;
}
