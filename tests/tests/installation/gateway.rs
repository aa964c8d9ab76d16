//! The gateway as pods: what a team does with kubectl goes through it, a replica that ends refuses nobody, and a connection wakes the
//! tenant, whose control plane are pods as well.

use crate::{SYSTEM, TEAMS};
use berth_api::{SleepState, TenantCluster, labels};
use berth_local::{ChartInstall, TestHost};
use berth_tests::{
    kubectl::Kubectl,
    objects::apply,
    tenant::{Tenant, patient_with},
    wait::{SOON, until},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, Secret, Service};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::Command,
};

/// Domain of the gateway. Nothing resolves it.
const DOMAIN: &str = "gateway.test";
/// Requests while a replica ends.
const REQUESTS: usize = 10;

/// The values of the chart that install two replicas.
fn values() -> Value {
    json!({
        "crds": {"keep": false},
        "gateway": {"enabled": true, "domain": DOMAIN, "replicas": 2, "service": {"type": "ClusterIP"}, "shutdownDelay": 10, "drainTimeout": 5},
    })
}

/// URL of a tenant's API server at the gateway.
fn at_gateway(tenant: &Tenant) -> String {
    format!("https://{}.{TEAMS}.{DOMAIN}:443", tenant.name)
}

/// kubectl with the team's kubeconfig, and a client with the same: host names are replaced by the address of the gateway.
async fn reach(host: &Client, tenant: &Tenant) -> (Kubectl, Client) {
    let services: Api<Service> = Api::namespaced(host.clone(), SYSTEM);
    let spec = services.get("berth-gateway").await.unwrap().spec.unwrap();
    let address = spec.cluster_ip.unwrap();
    let secrets: Api<Secret> = Api::namespaced(host.clone(), TEAMS);
    let name = format!("{}-kubeconfig", tenant.name);
    let data = secrets.get(&name).await.unwrap().data.unwrap();
    let mut kubeconfig = Kubeconfig::from_yaml(std::str::from_utf8(&data["kubeconfig"].0).unwrap()).unwrap();
    for named in &mut kubeconfig.clusters {
        let cluster = named.cluster.as_mut().unwrap();
        assert_eq!(cluster.server.as_deref(), Some(at_gateway(tenant).as_str()));
        cluster.server = Some(format!("https://{address}"));
        cluster.tls_server_name = Some(format!("{}.{TEAMS}.{DOMAIN}", tenant.name));
    }
    let text = serde_json::to_string(&kubeconfig).unwrap();
    (Kubectl::with(&text), patient_with(kubeconfig).await)
}

/// Installs the gateway and uses a tenant through it. Its pod `pod` runs.
pub(crate) async fn a_team_works_through_it(host: &TestHost, install: &ChartInstall, tenant: &Tenant, pod: &str) {
    let client = host.client().await.unwrap();
    let install = ChartInstall {
        values: values(),
        ..install.clone()
    };
    host.install_chart(&install).await.unwrap();
    let tenants: Api<TenantCluster> = Api::namespaced(client.clone(), TEAMS);
    until("the endpoint is the name at the gateway", SOON, async || {
        let cluster = tenants.get(&tenant.name).await.map_err(|error| error.to_string())?;
        let endpoint = cluster.status.and_then(|status| status.endpoint);
        if endpoint.as_deref() == Some(&at_gateway(tenant)) {
            Ok(())
        } else {
            Err(format!("{endpoint:?}"))
        }
    })
    .await;
    let (kubectl, api) = reach(&client, tenant).await;
    until("the API server has its new certificate", SOON, async || {
        let said = kubectl.run(&["get", "pod", pod]).await;
        if said.success { Ok(()) } else { Err(said) }
    })
    .await;
    streams(&kubectl, &api).await;
    one_replica_ends(&client, &kubectl).await;
    sleeps_and_wakes(&client, &tenants, tenant, &kubectl).await;
}

/// Commands, logs and ports, by both protocols.
async fn streams(kubectl: &Kubectl, api: &Client) {
    let server = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "server"}, "spec": {"containers": [{
        "name": "main", "image": "registry.k8s.io/e2e-test-images/agnhost:2.59", "args": ["netexec", "--http-port=8080"],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }]}});
    // For a moment after the rollout, a connection may still reach the API server before it, whose certificate is not for this name.
    until("a pod can be made", SOON, async || apply(api, "default", &server).await).await;
    crate::runs(api, "server").await;
    for websockets in ["true", "false"] {
        let speak = |arguments: &[&str]| -> Command {
            let mut command = kubectl.command(arguments);
            command
                .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", websockets)
                .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", websockets);
            command
        };
        until("a command runs in the pod", SOON, async || {
            let output = speak(&["exec", "server", "--", "/bin/sh", "-c", "echo from the pod"]).output();
            let output = output.await.map_err(|error| error.to_string())?;
            match String::from_utf8_lossy(&output.stdout).as_ref() {
                "from the pod\n" => Ok(()),
                _ => Err(format!("{output:?}")),
            }
        })
        .await;
        assert_eq!(
            forward(speak(&["port-forward", "server", ":8080"])).await,
            "HTTP/1.1 200 OK"
        );
    }
    let mut follow = kubectl.command(&["logs", "-f", "server"]);
    let mut child = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(SOON, lines.next_line())
        .await
        .expect("a line in time");
    assert!(line.unwrap().is_some(), "netexec says where it listens");
}

/// The first line of an answer through a forwarded port.
async fn forward(mut command: Command) -> String {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(SOON, lines.next_line())
        .await
        .expect("a line in time");
    let line = line.unwrap().expect("where it listens");
    let address = line.split_whitespace().nth(2).unwrap().to_owned();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream
        .write_all(b"GET /hostname HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut answer = String::new();
    tokio::time::timeout(SOON, stream.read_to_string(&mut answer))
        .await
        .expect("an answer in time")
        .unwrap();
    answer.lines().next().unwrap_or_default().to_owned()
}

/// New connections are served while a replica ends.
async fn one_replica_ends(client: &Client, kubectl: &Kubectl) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), SYSTEM);
    let of_gateway = ListParams::default().labels("app.kubernetes.io/name=berth-gateway");
    let replicas = pods.list(&of_gateway).await.unwrap().items;
    assert_eq!(replicas.len(), 2);
    pods.delete(&replicas[0].name_any(), &DeleteParams::default())
        .await
        .unwrap();
    for _ in 0..REQUESTS {
        kubectl.output(&["get", "namespaces"]).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// The control plane is gone while the tenant sleeps, and comes back with what the tenant stores.
async fn sleeps_and_wakes(client: &Client, tenants: &Api<TenantCluster>, tenant: &Tenant, kubectl: &Kubectl) {
    kubectl
        .output(&["create", "configmap", "kept", "--from-literal=a=b"])
        .await;
    // Without a class that says otherwise, a tenant with pods stays awake.
    kubectl.output(&["delete", "pods", "--all", "--grace-period=1"]).await;
    let asked = json!({"metadata": {"annotations": {labels::SLEEP_REQUESTED_AT: Timestamp::now().to_string()}}});
    tenants
        .patch(&tenant.name, &PatchParams::default(), &Patch::Merge(&asked))
        .await
        .unwrap();
    until_state(tenants, tenant, SleepState::Sleeping).await;
    for namespace in [tenant.id.control_plane_namespace(), tenant.id.workload_namespace()] {
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        until(&format!("no pod is left in {namespace}"), SOON, async || {
            let left = pods
                .list(&ListParams::default())
                .await
                .map_err(|error| error.to_string())?;
            let names: Vec<String> = left.iter().map(ResourceExt::name_any).collect();
            if names.is_empty() {
                Ok(())
            } else {
                Err(names.join(", "))
            }
        })
        .await;
    }
    // kubectl gives up a connection that is held for longer than ten seconds.
    until("a connection wakes the tenant", SOON, async || {
        let said = kubectl
            .run(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"])
            .await;
        if said.success && said.out == "b" {
            Ok(())
        } else {
            Err(said)
        }
    })
    .await;
    until_state(tenants, tenant, SleepState::Awake).await;
    Tenant::ready_on(client, TEAMS, &tenant.name).await;
}

async fn until_state(tenants: &Api<TenantCluster>, tenant: &Tenant, expected: SleepState) {
    until(&format!("{} is {}", tenant.name, expected.name()), SOON, async || {
        let cluster = tenants.get(&tenant.name).await.map_err(|error| error.to_string())?;
        let status = cluster.status.unwrap_or_default();
        match status.sleep {
            Some(sleep) if sleep.state == expected => Ok(()),
            other => Err(format!("{other:?}, {:?}", status.conditions)),
        }
    })
    .await;
}
