//! `berth dev status`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use berth_api::{TenantCluster, is_node_ready, labels};
use berth_local::{Home, client_from};
use berth_process::{ProcessState, ProcessStatus, statuses};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::config::Kubeconfig;
use kube::{Client, ResourceExt as _};
use serde::Serialize;
use tokio::time::timeout;

use super::gateway;
use super::options::Options;
use super::probe;
use super::progress::SupervisorLock;
use crate::error::{Error, NOT_FOUND};
use crate::output::{ObjectFormat, format_optional, format_rows, print_named};
use crate::tenant::{TenantHead, resource_name};

/// How long the API server may take for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);

/// What `status` prints. Programs read it: fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    /// Supervisor, API server, control and gateway all work.
    up: bool,
    home: String,
    kubeconfig: String,
    endpoint: Option<String>,
    supervisor: Option<u32>,
    api_server_ready: bool,
    /// None when the cluster was started without control.
    control_ready: Option<bool>,
    /// None when the cluster was started without a gateway.
    gateway_ready: Option<bool>,
    /// Where tenants are at the gateway, with placeholders for their names.
    gateway: Option<String>,
    processes: Vec<Process>,
    nodes: Vec<NodeView>,
    tenants: Vec<TenantView>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    name: String,
    state: ProcessState,
    pid: Option<u32>,
    restarts: u32,
    started_at: Option<Timestamp>,
    last_exit: Option<String>,
    log: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeView {
    name: String,
    ready: bool,
    product: Option<String>,
    gpus: Option<String>,
    /// The tenant the node belongs to.
    tenant: Option<String>,
    state: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TenantView {
    #[serde(flatten)]
    head: TenantHead,
    version: Option<String>,
    endpoint: Option<String>,
    nodes: Option<u32>,
}

pub(crate) async fn run(home: &Path, format: ObjectFormat) -> Result<ExitCode, Error> {
    let home = Home::new(home);
    if home.exists() {
        // What it prints, whom it asks and which files it opens is in the home.
        home.check_private()?;
    }
    let status = observe(&home).await;
    let nodes = status.nodes.iter().map(|node| format!("node/{}", node.name));
    let tenants = status.tenants.iter().map(|tenant| resource_name(&tenant.head.name));
    let names: Vec<String> = nodes.chain(tenants).collect();
    print_named(&status, &names, format_status, format)?;
    Ok(if status.up {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(NOT_FOUND)
    })
}

async fn observe(home: &Home) -> Status {
    let supervisor = SupervisorLock::holder(home);
    let ports = home.ports();
    let options = Options::load(home).ok().flatten().unwrap_or_default();
    let control_ready = async {
        match ports.filter(|_| options.control && home.exists()) {
            Some(_) if options.real_nodes => Some(is_deployed(home).await),
            Some(ports) => Some(probe::is_ready(ports.control).await),
            None => options.control.then_some(false),
        }
    };
    let gateway_ports = ports.filter(|_| options.has_gateway() && home.exists());
    let gateway_ready = async {
        match gateway_ports {
            Some(ports) => Some(probe::is_ready(ports.gateway_admin).await),
            None => options.has_gateway().then_some(false),
        }
    };
    let (control_ready, gateway_ready, answer) = tokio::join!(control_ready, gateway_ready, ask_api_server(home));
    let api_server_ready = answer.is_some();
    let (nodes, tenants) = answer.unwrap_or_default();
    let processes = statuses(&home.run())
        .into_iter()
        .chain(statuses(&home.tenants().join("run")));
    Status {
        up: supervisor.is_some() && api_server_ready && control_ready != Some(false) && gateway_ready != Some(false),
        home: home.root().display().to_string(),
        kubeconfig: home.admin_kubeconfig().display().to_string(),
        endpoint: ports.and_then(|_| read_endpoint(home)),
        supervisor,
        api_server_ready,
        control_ready,
        gateway_ready,
        gateway: gateway_ports.map(gateway::url_of_tenants),
        processes: processes.map(Process::from).collect(),
        nodes,
        tenants,
    }
}

/// Address of the host's API server, as its kubeconfig names it.
fn read_endpoint(home: &Home) -> Option<String> {
    let kubeconfig = Kubeconfig::read_from(home.admin_kubeconfig()).ok()?;
    kubeconfig.clusters.into_iter().next()?.cluster?.server
}

/// Whether the control that the chart installed is available.
async fn is_deployed(home: &Home) -> bool {
    let available = async {
        let client = client_from(&home.admin_kubeconfig()).await.ok()?;
        let deployments: Api<Deployment> = Api::namespaced(client, "berth-system");
        let status = deployments.get("berth-control").await.ok()?.status?;
        Some(status.available_replicas.unwrap_or_default() > 0)
    };
    timeout(ANSWER_TIMEOUT, available)
        .await
        .ok()
        .flatten()
        .unwrap_or_default()
}

impl From<ProcessStatus> for Process {
    fn from(status: ProcessStatus) -> Self {
        let ProcessStatus {
            name,
            state,
            pid,
            restarts,
            started_at,
            last_exit,
            log_file,
            revision: _,
        } = status;
        Self {
            name,
            state,
            pid,
            restarts,
            started_at,
            last_exit,
            log: log_file.display().to_string(),
        }
    }
}

/// Nodes and tenants; none when the API server does not answer.
async fn ask_api_server(home: &Home) -> Option<(Vec<NodeView>, Vec<TenantView>)> {
    if !home.exists() {
        return None;
    }
    let client = client_from(&home.admin_kubeconfig()).await.ok()?;
    timeout(ANSWER_TIMEOUT, async {
        let nodes = Api::<Node>::all(client.clone())
            .list(&ListParams::default())
            .await
            .ok()?;
        Some((nodes.iter().map(NodeView::from).collect(), list_tenants(&client).await))
    })
    .await
    .ok()
    .flatten()
}

/// All tenants; none when their kind is not known (a cluster without control).
async fn list_tenants(client: &Client) -> Vec<TenantView> {
    let all = Api::<TenantCluster>::all(client.clone())
        .list(&ListParams::default())
        .await;
    all.map(|tenants| tenants.iter().map(TenantView::from).collect())
        .unwrap_or_default()
}

impl From<&Node> for NodeView {
    fn from(node: &Node) -> Self {
        let label = |key: &str| node.labels().get(key).cloned();
        let status = node.status.as_ref();
        let gpus = status.and_then(|status| status.allocatable.as_ref()?.get("nvidia.com/gpu"));
        Self {
            name: node.name_any(),
            ready: is_node_ready(node),
            product: label("nvidia.com/gpu.product"),
            gpus: gpus.map(|quantity| quantity.0.clone()),
            tenant: label(labels::TENANT),
            state: label(labels::NODE_STATE),
        }
    }
}

impl From<&TenantCluster> for TenantView {
    fn from(tenant: &TenantCluster) -> Self {
        let status = tenant.status.as_ref();
        Self {
            head: TenantHead::of(tenant),
            version: tenant.shown_version().map(ToOwned::to_owned),
            endpoint: status.and_then(|status| status.endpoint.clone()),
            nodes: status.and_then(|status| Some(status.nodes.as_ref()?.assigned)),
        }
    }
}

fn format_status(status: &Status) -> String {
    let gateway = status.gateway.as_ref().map(|url| {
        let is_ready = status.gateway_ready == Some(true);
        format!("\nGateway:      {url}{}", if is_ready { "" } else { " (not ready)" })
    });
    let mut parts = vec![format!(
        "Host cluster: {}\nHome:         {}\nEndpoint:     {}{}",
        if status.up {
            "up"
        } else {
            "not up (start it with `berth dev up`)"
        },
        status.home,
        format_optional(status.endpoint.as_ref()),
        gateway.unwrap_or_default()
    )];
    let heading = ["PROCESS", "STATE", "PID", "RESTARTS", "LOG"];
    parts.extend(format_rows(heading, &status.processes, |process| {
        [
            process.name.clone(),
            format!("{:?}", process.state),
            process.pid.map_or("-".into(), |pid| pid.to_string()),
            process.restarts.to_string(),
            process.log.clone(),
        ]
    }));
    let heading = ["NODE", "STATUS", "GPUS", "TENANT", "STATE"];
    parts.extend(format_rows(heading, &status.nodes, |node| {
        let gpus = match (&node.gpus, &node.product) {
            (Some(count), Some(product)) => format!("{count} × {product}"),
            _ => "-".into(),
        };
        [
            node.name.clone(),
            if node.ready { "Ready" } else { "NotReady" }.into(),
            gpus,
            format_optional(node.tenant.as_ref()),
            format_optional(node.state.as_ref()),
        ]
    }));
    let heading = ["NAMESPACE", "TENANT", "PHASE", "VERSION", "NODES", "ENDPOINT"];
    parts.extend(format_rows(heading, &status.tenants, |tenant| {
        [
            tenant.head.namespace.clone(),
            tenant.head.name.clone(),
            format_optional(tenant.head.phase.as_ref()),
            format_optional(tenant.version.as_ref()),
            tenant.nodes.map_or("-".into(), |nodes| nodes.to_string()),
            format_optional(tenant.endpoint.as_ref()),
        ]
    }));
    parts.join("\n\n")
}
