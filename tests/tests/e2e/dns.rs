//! Names, as programs in pods look them up.

use crate::{
    pods::{SOON, Space, only, script, server},
    teams::vision,
};
use berth_tests::{dns::ask, objects::apply, tenant::ensure_namespace, test_cluster::TestCluster, wait::until};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use serde_json::json;
use simple_dns::TYPE;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

/// A script that connects to each of these and prints those that it was connected to.
fn connect(targets: &[&str]) -> String {
    let tries = targets
        .iter()
        .map(|target| format!("if /agnhost connect --timeout=5s {target} 2>/dev/null; then echo {target}; fi"));
    tries.collect::<Vec<_>>().join("\n")
}

pub(crate) async fn pods_find_their_services_by_name(host: Arc<TestCluster>) {
    let space = Space::new(vision(&host).await, "dns-names").await;
    let labels = json!({"app": "db"});
    for object in [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
               "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "db"},
               "spec": {"clusterIP": "None", "selector": labels, "ports": [{"port": 8080}]}}),
        json!({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "db"}, "spec": {
               "serviceName": "db", "selector": {"matchLabels": labels},
               "template": {"metadata": {"labels": labels}, "spec": {
                   "containers": [server()], "terminationGracePeriodSeconds": 1}}}}),
    ] {
        space.apply(object).await;
    }
    space.ready("db-0").await;
    // A Service of the host, which has the same domain.
    ensure_namespace(&host.client, "dns-host").await;
    let secret = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "secret"}, "spec": {"ports": [{"port": 80}]}});
    apply(&host.client, "dns-host", &secret).await.unwrap();
    knows_on_host(&host, "secret.dns-host.svc.cluster.local").await;

    let own = [
        "web:80",
        "web.dns-names:80",
        "web.dns-names.svc.cluster.local:80",
        "db-0.db:8080",
        "db-0.db.dns-names.svc.cluster.local:8080",
        "kubernetes.default:443",
    ];
    let of_host = "secret.dns-host.svc.cluster.local:80";
    // The error begins with a word in capitals, which names the kind of failure.
    let why = format!("why=$(/agnhost connect --timeout=5s {of_host} 2>&1); echo \"${{why%%[!A-Z]*}}\"");
    let text = connect(&[&own[..], &[of_host, "secret.dns-host:80"]].concat()) + "\n" + &why;
    let mut attempt = 0;
    // Endpoints reach nodes and DNS a moment after the pod is ready.
    until("names lead to their targets", SOON, async || {
        attempt += 1;
        let name = format!("client-{attempt}");
        let said = space.run(&name, only(script(&text))).await.said();
        let is_right = said.lines().eq(own.into_iter().chain(["DNS"]));
        if is_right { Ok(()) } else { Err(said) }
    })
    .await;
}

/// Waits until the host's own DNS knows a name: otherwise it would prove nothing that tenants do not know it.
async fn knows_on_host(host: &TestCluster, name: &str) {
    let services: Api<Service> = Api::namespaced(host.client.clone(), "kube-system");
    let service = services.get("kube-dns").await.unwrap();
    let address = service.spec.and_then(|spec| spec.cluster_ip).unwrap();
    let server = SocketAddr::new(address.parse::<IpAddr>().unwrap(), 53);
    until("the host's DNS knows its Service", SOON, async || {
        let answer = ask(server, TYPE::A, name).await?;
        if answer.records.is_empty() {
            Err(format!("{answer:?}"))
        } else {
            Ok(())
        }
    })
    .await;
}
