//! Which connections are allowed: the table of `docs/concepts/networking.md`, every cell with real packets.

mod outside;
mod served;

use crate::{
    pods::{IMAGE, SOON, Space},
    teams::{DECLARED, speech, vision},
};
use berth_api::{labels, names::host_name, system};
use berth_control::{
    control_plane::{API_SERVER, COREDNS, SYNCER},
    runtime::cluster::APP_NAME,
};
use berth_tests::{
    kubectl::Kubectl,
    objects::apply,
    tenant::{Tenant, ensure_namespace},
    test_cluster::TestCluster,
    wait::until,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use kube::{
    Api,
    api::{DeleteParams, ListParams},
};
use outside::Outside;
pub(crate) use outside::{inside, ip};
use serde_json::{Value, json};
use served::{cluster_ip, served, served_by_the_host, service};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
};

/// Port of the server that stands for targets outside the cluster.
const OUTSIDE_PORT: u16 = 8080;
/// An address that no tenant has declared.
const OTHER: &str = "203.0.113.10";
/// The address of clouds' metadata services.
const METADATA: &str = "169.254.169.254";
/// Namespace of the host for the pod that belongs to no tenant.
const HOSTS: &str = "network-host";

/// Targets, each with all addresses that must be reached, or must not be.
type Targets = BTreeMap<String, Vec<String>>;

/// The table of the documentation: for each row the columns and their cells, without dashes.
fn expectations() -> Vec<(String, BTreeMap<String, bool>)> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/concepts/networking.md");
    let text = std::fs::read_to_string(&file).unwrap();
    let mut lines = text.lines().skip_while(|line| !line.starts_with("| from \\ to |"));
    let cells = |line: &str| -> Vec<String> {
        line.trim_matches('|')
            .split('|')
            .map(|cell| cell.trim().into())
            .collect()
    };
    let columns = cells(lines.next().expect("the table"));
    let rows: Vec<_> = lines
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let row = cells(line);
            assert_eq!(row.len(), columns.len(), "{line}");
            let known = columns
                .iter()
                .zip(&row)
                .skip(1)
                .filter_map(|(column, cell)| match cell.as_str() {
                    "yes" => Some((column.clone(), true)),
                    "no" => Some((column.clone(), false)),
                    "–" => None,
                    other => panic!("{other:?} in {line}"),
                });
            (row[0].clone(), known.collect())
        })
        .collect();
    assert!(rows.len() > 5 && columns.len() > 10);
    rows
}

fn address(addresses: &[k8s_openapi::api::core::v1::NodeAddress]) -> String {
    let internal = addresses.iter().find(|address| address.type_ == "InternalIP");
    internal.unwrap().address.clone()
}

fn pod_ip(pod: &Pod) -> String {
    pod.status.as_ref().unwrap().pod_ip.clone().unwrap()
}

/// Somewhere to try connections from.
enum Source {
    /// A pod of the host: namespace and name.
    Pod(String, String),
    /// A network namespace of this machine.
    Machine(String),
}

impl Source {
    /// Which of these addresses accept a connection.
    async fn reaches(&self, host: &Kubectl, targets: &BTreeSet<String>) -> BTreeSet<String> {
        match self {
            Self::Pod(namespace, name) => {
                let knocks = targets.iter().map(|target| {
                    format!("( /agnhost connect {target} --timeout=3s >/dev/null 2>&1 && echo {target} ) &")
                });
                let script = format!("{}\nwait", knocks.collect::<Vec<_>>().join("\n"));
                // A command that does not run proves nothing.
                let said = until(&format!("commands run in {name}"), SOON, async || {
                    let said = host
                        .run(&["exec", "-n", namespace, name, "--", "/bin/sh", "-c", &script])
                        .await;
                    if said.success { Ok(said.out) } else { Err(said) }
                })
                .await;
                said.split_whitespace().map(str::to_owned).collect()
            }
            Self::Machine(namespace) => {
                let knock = async |target: &String| {
                    let status = inside(namespace, &["connect", target, "--timeout=3s"]).status().await;
                    status.unwrap().success().then(|| target.clone())
                };
                join_all(targets.iter().map(knock))
                    .await
                    .into_iter()
                    .flatten()
                    .collect()
            }
        }
    }
}

/// A pod of the host that runs for ever and has no rights.
fn idle(name: &str, labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": {
        "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "main", "image": IMAGE, "args": ["pause"], "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
    }})
}

async fn running(host: &TestCluster, namespace: &str, pod: Value) {
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    apply(&host.client, namespace, &pod).await.unwrap();
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), namespace);
    until(&format!("{namespace}/{name} runs"), SOON, async || {
        let pod = pods.get(&name).await.unwrap();
        let is_running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        if is_running { Ok(()) } else { Err(pod.status) }
    })
    .await;
}

async fn api_server(host: &TestCluster, tenant: &Tenant) -> String {
    let service = service(host, &tenant.id.control_plane_namespace(), API_SERVER).await;
    format!("{}:443", cluster_ip(&service))
}

/// The columns of the table.
async fn targets(host: &TestCluster, a: &Space, b: &Space) -> Targets {
    let (of_a, of_b) = tokio::join!(served(a), served(b));
    let sealed = a.ready("sealed-in").await;
    let home = a.tenant.id.control_plane_namespace();
    let nodes: Api<Node> = Api::all(host.client.clone());
    let nodes = nodes.list(&ListParams::default()).await.unwrap().items;
    let of_host = served_by_the_host(host, &nodes).await;
    let kubelets = nodes.iter().map(|node| {
        let addresses = node.status.as_ref().unwrap().addresses.as_ref().unwrap();
        format!("{}:10250", address(addresses))
    });
    // Every Service that serves etcd's port in Berth's own namespace.
    let services: Api<Service> = Api::namespaced(host.client.clone(), system::NAMESPACE);
    let services = services.list(&ListParams::default()).await.unwrap();
    let has_port = |service: &&Service| {
        let spec = service.spec.as_ref().unwrap();
        spec.cluster_ip.as_deref() != Some("None") && spec.ports.iter().flatten().any(|port| port.port == 2379)
    };
    let datastore = services
        .iter()
        .filter(has_port)
        .map(|service| format!("{}:2379", cluster_ip(service)));
    let outside = |address: &str| vec![format!("{address}:{OUTSIDE_PORT}")];
    let dns = cluster_ip(&service(host, &home, "kube-dns").await);
    let known: [(&str, Vec<String>); 18] = [
        ("pod of A", vec![of_a.pod.clone()]),
        (
            "pod of A that denies ingress",
            vec![format!("{}:8080", pod_ip(&sealed))],
        ),
        ("Service of A", vec![of_a.service]),
        // Its address is that of its pod; its name is tried below, through the tenant's DNS.
        ("headless Service of A", vec![of_a.pod]),
        ("node port of A", of_a.node_ports),
        ("DNS of A", vec![format!("{dns}:53")]),
        ("API server of A", vec![api_server(host, a.tenant).await]),
        ("pod of B", vec![of_b.pod]),
        ("Service of B", vec![of_b.service]),
        ("node port of B", of_b.node_ports),
        ("API server of B", vec![api_server(host, b.tenant).await]),
        (
            "host API server",
            vec![
                host.server().trim_start_matches("https://").to_owned(),
                format!("{}:443", cluster_ip(&service(host, "default", "kubernetes").await)),
            ],
        ),
        ("kubelet of a node", kubelets.collect()),
        ("node port of the host", of_host),
        ("datastore", datastore.collect()),
        ("metadata service", outside(METADATA)),
        ("declared network", outside(DECLARED)),
        ("other network", outside(OTHER)),
    ];
    assert!(known.iter().all(|(_, addresses)| !addresses.is_empty()), "{known:?}");
    known
        .into_iter()
        .map(|(name, addresses)| (name.to_owned(), addresses))
        .collect()
}

/// The rows of the table.
async fn sources(host: &TestCluster, a: &Space, b: &Space) -> BTreeMap<String, Source> {
    let pod = |labels: Value, name: &str| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"terminationGracePeriodSeconds": 1, "containers": [{"name": "main", "image": IMAGE, "args": ["pause"]}]}})
    };
    let policy = |name: &str, types: &str, more: Value| {
        let mut spec = json!({"podSelector": {"matchLabels": {"app": name}}, "policyTypes": [types]});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name}, "spec": spec})
    };
    let to_dns = json!({"egress": [{"ports": [{"port": 53, "protocol": "UDP"}], "to": [{
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}}]}]});
    a.apply(policy("sealed-in", "Ingress", json!({}))).await;
    a.apply(policy("sealed-out", "Egress", json!({}))).await;
    a.apply(policy("names-only", "Egress", to_dns)).await;
    for (space, name) in [(a, "open"), (a, "sealed-out"), (a, "names-only"), (b, "open")] {
        space.apply(pod(json!({"app": name}), name)).await;
    }
    for (space, name) in [(a, "open"), (a, "sealed-out"), (a, "names-only"), (b, "open")] {
        space.ready(name).await;
    }
    let home = a.tenant.id.control_plane_namespace();
    ensure_namespace(&host.client, HOSTS).await;
    // Policies take these pods for the components; Services do not, since they select by the tenant as well.
    for component in [API_SERVER, SYNCER, COREDNS] {
        running(
            host,
            &home,
            idle(&format!("stand-in-{component}"), &json!({APP_NAME: component})),
        )
        .await;
    }
    running(host, HOSTS, idle("stranger", &json!({}))).await;
    let of = |space: &Space, name: &str| {
        Source::Pod(space.tenant.id.workload_namespace(), host_name("Pod", space.name, name))
    };
    let stand_in = |component: &str| Source::Pod(home.clone(), format!("stand-in-{component}"));
    let node = a.ready("open").await.spec.unwrap().node_name.unwrap();
    let nodes: Api<Node> = Api::all(host.client.clone());
    let addresses = nodes.get(&node).await.unwrap().status.unwrap().addresses.unwrap();
    let network = std::fs::read(host.home().run().join("network.config")).unwrap();
    let network: Value = serde_json::from_slice(&network).unwrap();
    let number = address(&addresses).rsplit('.').next().unwrap().to_owned();
    let node = Source::Machine(format!("berth-{}-{number}", network["id"].as_str().unwrap()));
    [
        ("pod of A", of(a, "open")),
        ("pod of A that denies egress", of(a, "sealed-out")),
        ("pod of A that may use DNS only", of(a, "names-only")),
        ("pod of B", of(b, "open")),
        ("API server of A", stand_in(API_SERVER)),
        ("syncer of A", stand_in(SYNCER)),
        ("CoreDNS of A", stand_in(COREDNS)),
        ("pod of the host", Source::Pod(HOSTS.into(), "stranger".into())),
        ("node", node),
    ]
    .map(|(name, source)| (name.to_owned(), source))
    .into()
}

/// The cells of a row that do not hold.
async fn differences(
    host: &Kubectl,
    source: &Source,
    targets: &Targets,
    expected: &BTreeMap<String, bool>,
) -> Vec<String> {
    let tried: BTreeSet<String> = expected.keys().flat_map(|column| targets[column].clone()).collect();
    let reached = source.reaches(host, &tried).await;
    let wrong = expected.iter().flat_map(|(column, expected)| {
        let wrong = targets[column]
            .iter()
            .filter(|address| reached.contains(*address) != *expected);
        wrong.map(move |address| format!("{column} ({address}) is {}reached", if *expected { "not " } else { "" }))
    });
    wrong.collect()
}

/// Waits until a table holds. Policies take effect after a moment: every row is tried again until it is right.
async fn hold(
    host: &Kubectl,
    sources: &BTreeMap<String, Source>,
    targets: &Targets,
    table: &[(String, BTreeMap<String, bool>)],
) {
    join_all(table.iter().map(async |(row, expected)| {
        until(
            &format!("{row} reaches what it may and nothing else"),
            SOON,
            async || match differences(host, &sources[row], targets, expected).await {
                wrong if wrong.is_empty() => Ok(()),
                wrong => Err(wrong),
            },
        )
        .await;
    }))
    .await;
}

pub(crate) async fn the_table_of_the_documentation_holds(host: Arc<TestCluster>) {
    let (a, b) = tokio::join!(vision(&host), speech(&host));
    let (a, b) = tokio::join!(Space::new(a, "network"), Space::new(b, "network"));
    let _outside = Outside::start(&host).await;
    let kubectl = Kubectl::with(&std::fs::read_to_string(host.home().admin_kubeconfig()).unwrap());
    let (targets, sources) = tokio::join!(targets(&host, &a, &b), sources(&host, &a, &b));
    let table = expectations();
    let rows: BTreeSet<&String> = table.iter().map(|(row, _)| row).collect();
    assert_eq!(
        rows,
        sources.keys().collect(),
        "every row is tried, and every source has a row"
    );
    hold(&kubectl, &sources, &targets, &table).await;
    // Names lead to the same pods as addresses.
    let name = format!("headless.{}.svc.cluster.local:8080", a.name);
    let own = BTreeSet::from([name]);
    until(
        "names of headless Services are found",
        SOON,
        async || match sources["pod of A"].reaches(&kubectl, &own).await {
            found if found == own => Ok(()),
            found => Err(found),
        },
    )
    .await;

    // A policy that opens everything, past the syncer and the admission policies: what is not the tenant's stays closed.
    let workloads = a.tenant.id.workload_namespace();
    let everything = json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "past-admission-policies", "labels": {labels::TENANT: a.tenant.id.slug()}},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": [{}], "egress": [{}]}});
    apply(&host.client, &workloads, &everything).await.unwrap();
    let inner = [
        "pod of A",
        "Service of A",
        "headless Service of A",
        "node port of A",
        "DNS of A",
        "API server of A",
        "declared network",
    ];
    let opened: Vec<_> = table
        .iter()
        .filter(|(row, _)| row.starts_with("pod of A"))
        .map(|(row, columns)| {
            let open = |column: &String| inner.contains(&&**column) || column == "pod of A that denies ingress";
            (
                row.clone(),
                columns.keys().map(|column| (column.clone(), open(column))).collect(),
            )
        })
        .collect();
    hold(&kubectl, &sources, &targets, &opened).await;
    let foreign: Vec<_> = table
        .iter()
        .filter(|(row, _)| ["pod of B", "pod of the host"].contains(&&**row))
        .cloned()
        .collect();
    hold(&kubectl, &sources, &targets, &foreign).await;

    let policies: Api<k8s_openapi::api::networking::v1::NetworkPolicy> =
        Api::namespaced(host.client.clone(), &workloads);
    policies
        .delete("past-admission-policies", &DeleteParams::default())
        .await
        .unwrap();
    hold(&kubectl, &sources, &targets, &table).await;
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), &a.tenant.id.control_plane_namespace());
    for component in [API_SERVER, SYNCER, COREDNS] {
        pods.delete(&format!("stand-in-{component}"), &DeleteParams::default())
            .await
            .unwrap();
    }
    let of_host: Api<Pod> = Api::namespaced(host.client.clone(), HOSTS);
    for name in ["stranger", "exposed"] {
        of_host.delete(name, &DeleteParams::default()).await.unwrap();
    }
}
