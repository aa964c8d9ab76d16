//! Attacks from inside a container and with a stolen credential, where packets and processes are real. Every test names
//! the class of attack; those on API servers alone are in `tests/adversarial`.

use crate::{
    network::inside,
    pods::{IMAGE, SOON, Space, only, script, server, with},
    teams::{speech, vision},
};
use berth_control::control_plane::SYNCER;
use berth_tests::{objects::api_server_address, test_cluster::TestCluster, token, wait::until};
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Node, Pod, Service, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{ListParams, PostParams},
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc};
use tokio::process::{Child, Command};

/// A server at the address of clouds' metadata services on a node, as that of a cloud is: it answers all requests of
/// the node itself. Ends with the value.
struct Metadata {
    namespace: String,
    _server: Child,
}

const METADATA: &str = "169.254.169.254:80";

impl Metadata {
    /// Starts it on the node with this address.
    async fn start(host: &TestCluster, address: &str) -> Self {
        let network = std::fs::read(host.home().run().join("network.config")).unwrap();
        let network: Value = serde_json::from_slice(&network).unwrap();
        let number = address.rsplit('.').next().unwrap();
        let namespace = format!("berth-{}-{number}", network["id"].as_str().unwrap());
        let add = ["-n", &namespace, "addr", "replace", "169.254.169.254/32", "dev", "lo"];
        assert!(Command::new("ip").args(add).status().await.unwrap().success());
        let serve = ["netexec", "--http-port=80", "--udp-port=-1"];
        let server = inside(&namespace, &serve).spawn().unwrap();
        let metadata = Self {
            namespace,
            _server: server,
        };
        until("the node reaches its metadata service", SOON, async || {
            let connect = ["connect", METADATA, "--timeout=2s"];
            match inside(&metadata.namespace, &connect).status().await {
                Ok(status) if status.success() => Ok(()),
                other => Err(other
                    .map(|status| status.to_string())
                    .map_err(|error| error.to_string())),
            }
        })
        .await;
        metadata
    }
}

/// A script that prints which of these addresses accept a connection.
fn knock(targets: &[String]) -> String {
    let knocks = targets
        .iter()
        .map(|target| format!("( /agnhost connect {target} --timeout=3s >/dev/null 2>&1 && echo {target} ) &"));
    format!("{}\nwait", knocks.collect::<Vec<_>>().join("\n"))
}

/// Tries all targets from pods whose spec has these fields as well: what is allowed is reached, and never anything else.
pub(crate) async fn reaches_only(space: &Space, fields: Value, targets: &[String], allowed: &[String]) {
    let spec = with(only(script(&knock(targets))), fields);
    let expected: BTreeSet<&str> = allowed.iter().map(String::as_str).collect();
    let mut attempt = 0;
    // Policies reach a node a moment after a pod, and so many programs at once are slow: what is allowed is tried again.
    until("what is allowed is reached", SOON, async || {
        attempt += 1;
        let said = space.run(&format!("knocker-{attempt}"), spec.clone()).await.said();
        let reached: BTreeSet<&str> = said.split_whitespace().collect();
        assert!(reached.is_subset(&expected), "{reached:?} of {targets:?}");
        if reached == expected {
            Ok(())
        } else {
            Err(format!("only {reached:?} of {expected:?}"))
        }
    })
    .await;
}

/// Addresses of all nodes of the host, the one named first.
pub(crate) async fn node_addresses(host: &TestCluster, first: &str) -> Vec<String> {
    let nodes: Api<Node> = Api::all(host.client.clone());
    let mut nodes = nodes.list(&ListParams::default()).await.unwrap().items;
    nodes.sort_by_key(|node| node.name_any() != first);
    let addresses = nodes.into_iter().filter_map(|node| {
        let addresses = node.status?.addresses?;
        addresses.into_iter().find(|address| address.type_ == "InternalIP")
    });
    addresses.map(|address| address.address).collect()
}

/// Class: network. Kubelets, the host's API server, the platform's programs and metadata services are out of reach of pods,
/// and so is the other tenant.
pub(crate) async fn pods_reach_no_node_and_no_other_tenant(host: Arc<TestCluster>) {
    let (tenant, other) = tokio::join!(vision(&host), speech(&host));
    let (space, foreign) = tokio::join!(
        Space::new(tenant, "attack-network"),
        Space::new(other, "attack-network")
    );
    foreign.create("served", only(server())).await;
    foreign
        .apply(
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "served"},
            "spec": {"selector": {"app": "any"}, "ports": [{"port": 8080}]}}),
        )
        .await;
    space.create("own", only(server())).await;
    let (neighbour, own) = tokio::join!(foreign.ready("served"), space.ready("own"));
    let ip = |pod: &Pod| pod.status.as_ref().unwrap().pod_ip.clone().unwrap();

    let nodes = node_addresses(&host, &own.spec.as_ref().unwrap().node_name.clone().unwrap()).await;
    let _metadata = Metadata::start(&host, &nodes[0]).await;
    let mut forbidden = vec![METADATA.to_owned(), format!("{}:8080", ip(&neighbour))];
    // kubelet (three ports), kube-proxy, Calico's agent.
    for port in [10250, 10255, 10248, 10256, 9099] {
        forbidden.extend(nodes.iter().map(|node| format!("{node}:{port}")));
    }
    forbidden.push(host.server().trim_start_matches("https://").to_owned());
    // The host's own Services, and those of both control planes that are not for pods.
    let services: Api<Service> = Api::all(host.client.clone());
    for service in services.list(&ListParams::default()).await.unwrap() {
        let namespace = service.namespace().unwrap_or_default();
        let spec = service.spec.clone().unwrap();
        let for_pods = [tenant.id.workload_namespace(), tenant.id.control_plane_namespace()].contains(&namespace)
            && !["syncer"].contains(&&*service.name_any());
        let address = spec.cluster_ip.filter(|address| address != "None");
        if let (false, Some(address)) = (for_pods, address) {
            let ports = spec.ports.unwrap_or_default();
            forbidden.extend(ports.iter().map(|port| format!("{address}:{}", port.port)));
        }
    }
    let kubernetes = api_server_address(&tenant.client).await;
    let allowed = [format!("{}:8080", ip(&own)), format!("{kubernetes}:443")];

    let targets: Vec<String> = forbidden.iter().chain(&allowed).cloned().collect();
    // On the node with the metadata service.
    let there = json!({"nodeSelector": {"kubernetes.io/hostname": own.spec.as_ref().unwrap().node_name}});
    reaches_only(&space, there, &targets, &allowed).await;
}

/// Class: pod escape. What `kubectl debug node/…` makes (host namespaces, the node's files) is refused with a message and
/// runs nowhere.
pub(crate) async fn a_shell_on_a_node_is_refused(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let space = Space::new(tenant, "attack-debug").await;
    let nodes: Api<Node> = Api::all(tenant.client.clone());
    let node = nodes
        .list(&ListParams::default())
        .await
        .unwrap()
        .items
        .remove(0)
        .name_any();
    let target = format!("node/{node}");
    let image = format!("--image={IMAGE}");
    let debug = [
        "debug",
        "-n",
        space.name,
        &target,
        &image,
        "--profile=general",
        "--attach=false",
        "--",
        "sleep",
        "60",
    ];
    space.kubectl().output(&debug).await;
    let message = until("the refusal is reported", SOON, async || {
        let pods = space.pods.list(&ListParams::default()).await.unwrap();
        let conditions = pods
            .iter()
            .flat_map(|pod| pod.status.iter().flat_map(|status| status.conditions.iter().flatten()));
        let refusal = conditions
            .into_iter()
            .find(|condition| condition.type_ == "berth.dev/Synced");
        refusal
            .and_then(|condition| condition.message.clone())
            .ok_or("no condition")
    })
    .await;
    for field in ["hostPath", "hostPID", "hostNetwork"] {
        assert!(message.contains(field), "{field} is not named: {message}");
    }
    let on_host: Api<Pod> = Api::namespaced(host.client.clone(), &tenant.id.workload_namespace());
    let on_host = on_host.list(&ListParams::default()).await.unwrap();
    assert!(on_host.iter().all(|pod| !pod.name_any().contains("debugger")));
}

/// Class: pod escape, syncer bypassed. The most powerful pod that a stolen syncer credential can create has no token of the
/// host and cannot reach its API server.
pub(crate) async fn a_stolen_syncer_makes_no_pod_that_reaches_the_host(host: Arc<TestCluster>) {
    let tenant = vision(&host).await;
    let space = Space::new(tenant, "attack-syncer").await;
    space.create("model", only(server())).await;
    space.ready("model").await;
    let workloads = tenant.id.workload_namespace();
    let accounts: Api<ServiceAccount> = Api::namespaced(host.client.clone(), &tenant.id.control_plane_namespace());
    let stolen = accounts
        .create_token_request(SYNCER, &PostParams::default(), &TokenRequest::default())
        .await
        .unwrap();
    let stolen = stolen.status.unwrap().token.unwrap();
    let kubeconfig = host.kubeconfig_for("nobody", &[]).unwrap();
    let pods: Api<Pod> = Api::namespaced(token::client(&kubeconfig, &stolen).await, &workloads);
    // A pod that the host has accepted, with another program in it.
    let all = pods.list(&ListParams::default()).await.unwrap();
    let model = all
        .into_iter()
        .find(|pod| pod.name_any().starts_with("model-"))
        .unwrap();
    let kubernetes = api_server_address(&host.client).await;
    let host_server = host.server().trim_start_matches("https://").to_owned();
    let program = format!(
        "ls /var/run/secrets/kubernetes.io/serviceaccount/token 2>/dev/null; {}",
        knock(&[host_server, format!("{kubernetes}:443")])
    );
    let attempt = |name: &str, change: Value| {
        let mut spec = serde_json::to_value(model.spec.clone().unwrap()).unwrap();
        let fields = spec.as_object_mut().unwrap();
        fields.remove("nodeName");
        fields.insert("containers".into(), json!([script(&program)]));
        fields.insert("volumes".into(), json!([]));
        fields.extend(change.as_object().unwrap().clone());
        // Only nodes may write those of the network plugin.
        let mut annotations = model.annotations().clone();
        annotations.retain(|key, _| key.starts_with("berth.dev/"));
        // The host adds those of the node.
        let mut labels = model.labels().clone();
        labels.retain(|key, _| !key.starts_with("topology.kubernetes.io/"));
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
        serde_json::from_value::<Pod>(json!({"metadata": metadata, "spec": spec})).unwrap()
    };
    for (name, change) in [
        ("token", json!({"automountServiceAccountToken": true})),
        ("anywhere", json!({"nodeSelector": {}})),
        ("host-network", json!({"hostNetwork": true})),
        (
            "host-path",
            json!({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}),
        ),
    ] {
        match pods.create(&PostParams::default(), &attempt(name, change)).await {
            Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "{name}: {}", status.message),
            other => panic!("{name}: {other:?}"),
        }
    }
    pods.create(
        &PostParams::default(),
        &attempt("intruder", json!({"restartPolicy": "Never"})),
    )
    .await
    .unwrap();
    // The syncer deletes a pod without a tenant's object, or the program ends before that; it never finds anything.
    let admin: Api<Pod> = Api::namespaced(host.client.clone(), &workloads);
    until("the intruder has ended", SOON, async || {
        match admin.get_opt("intruder").await.unwrap() {
            None => Ok::<_, &str>(()),
            Some(pod) => {
                let ended = crate::pods::state(&pod, "main").and_then(|state| state.terminated);
                let ended = ended.ok_or("it runs")?;
                assert_eq!(
                    ended.message.as_deref().map(str::trim).unwrap_or_default(),
                    "",
                    "it found something"
                );
                Ok(())
            }
        }
    })
    .await;
}
