//! `berth explain`: why a tenant has its nodes and waits for others, and why a node is assigned as it is. All of this is in
//! the host's objects; here it is collected. For a pod, what the tenant has is read as well.

mod pod;
mod text;

use std::process::ExitCode;

use berth_api::{HostNodePool, NodeGroupStatus, TenantCluster, conditions, is_node_ready, labels};
use clap::Subcommand;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use serde::Serialize;

use crate::completion;
use crate::error::{Error, failed};
use crate::events::{self, EventView};
use crate::host::HostArguments;
use crate::node;
use crate::output::{ObjectFormat, format_time, print_named};
use crate::suggest;
use crate::tenant::{self, TenantHead, TenantName};

/// The state of a node without an assignment.
const FREE: &str = "Free";

/// The explanation of a tenant. Programs read it: fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TenantView {
    #[serde(flatten)]
    head: TenantHead,
    message: String,
    class: Option<String>,
    /// What its schedules let it do, if it has some.
    schedule: Option<String>,
    /// The Project whose quotas apply.
    project: Option<String>,
    groups: Vec<NodeGroupStatus>,
    nodes: Vec<NodeView>,
    events: Vec<EventView>,
    /// What could not be read, and why: teams usually may not list nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
}

/// The explanation of a node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeView {
    name: String,
    pool: Option<String>,
    /// Free, or its state in recycling.
    state: String,
    since: Option<String>,
    /// `namespace/name` of the tenant that has it, or its slug.
    tenant: Option<String>,
    /// The slug of the tenant that had it before, while it is recycled.
    previous_tenant: Option<String>,
    group: Option<String>,
    reason: Option<String>,
    idle_since: Option<String>,
    cordoned_until: Option<String>,
    quarantine: Option<String>,
    /// If it waits in quarantine until it is Ready: since when it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_ready_since: Option<String>,
    /// Why it cannot be assigned, if it is free.
    unavailable: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<EventView>,
}

/// What `explain` explains.
#[derive(Debug, Subcommand)]
pub(crate) enum ExplainTarget {
    /// Explain the node groups of a tenant, what they wait for, and its nodes.
    Tenant {
        /// Name of the TenantCluster, or NAMESPACE/NAME.
        #[arg(value_name = "TENANT", add = completion::tenant_names())]
        tenant: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: ObjectFormat,
    },
    /// Explain to which tenant a host node is assigned, its state and the reason.
    Node {
        /// Name of the node.
        #[arg(value_name = "NAME", add = completion::node_names())]
        node: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: ObjectFormat,
    },
    /// Explain why a pod of a tenant does not run, from its conditions and Events in the tenant and on the host.
    Pod {
        /// Name of the TenantCluster, or NAMESPACE/NAME.
        #[arg(value_name = "TENANT", add = completion::tenant_names())]
        tenant: String,
        /// Namespace in the tenant and name of the pod.
        #[arg(value_name = "NAMESPACE/POD")]
        pod: String,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: ObjectFormat,
    },
}

pub(crate) async fn run(host: &HostArguments, target: &ExplainTarget) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    match target {
        ExplainTarget::Tenant { tenant, output: format } => {
            let (name, tenant) = tenant::find(&host, tenant).await?;
            let view = explain_tenant(&host.client, &name, &tenant).await;
            let names = [tenant::resource_name(&name.name)];
            print_named(&view, &names, text::describe_tenant, *format)?;
        }
        ExplainTarget::Node { node, output: format } => {
            let view = explain_node(&host.client, node).await?;
            print_named(&view, &[format!("node/{node}")], text::describe_node, *format)?;
        }
        ExplainTarget::Pod {
            tenant,
            pod,
            output: format,
        } => {
            let view = pod::explain(&host, tenant, pod).await?;
            let name = pod.rsplit('/').next().unwrap_or(pod);
            print_named(&view, &[format!("pod/{name}")], pod::describe, *format)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn explain_tenant(client: &Client, name: &TenantName, tenant: &TenantCluster) -> TenantView {
    let all = Api::<Node>::all(client.clone()).list(&ListParams::default()).await;
    let uid = tenant.metadata.uid.as_deref();
    let events = events::list(client, &name.namespace, ("TenantCluster", name.name.as_str()), uid).await;
    let mut unreadable = Vec::new();
    let all = all.map(|list| list.items).map_err(failed("list the nodes"));
    let all = keep_error(all, &mut unreadable);
    let events = keep_error(events, &mut unreadable);
    let own = name.to_string();
    let nodes = all
        .iter()
        .filter(|node| node::is_of(node, tenant))
        .map(|node| build_node_view(node, Some(own.clone()), Vec::new()));
    let mut view = build_tenant_view(tenant, nodes.collect(), events);
    view.unreadable = unreadable;
    view
}

/// What was read; nothing if it was not, and the error is kept.
fn keep_error<T: Default>(read: Result<T, Error>, errors: &mut Vec<String>) -> T {
    read.unwrap_or_else(|error| {
        errors.push(error.to_string());
        T::default()
    })
}

async fn explain_node(client: &Client, name: &str) -> Result<NodeView, Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get_opt(name).await.map_err(failed("get the node"))?;
    let Some(node) = node else {
        // Without the permission to list nodes nothing is offered.
        let all = nodes.list_metadata(&ListParams::default()).await;
        let all = all.map(|list| list.items).unwrap_or_default();
        let names: Vec<String> = all.iter().map(ResourceExt::name_any).collect();
        return Err(describe_missing_node(name, &names));
    };
    let owner = match node.annotations().get(labels::OWNER_UID) {
        Some(uid) => {
            let tenants: Api<TenantCluster> = Api::all(client.clone());
            // Without the permission the label of the node names the tenant.
            let tenants = tenants.list(&ListParams::default()).await;
            let mut tenants = tenants.map(|list| list.items).unwrap_or_default().into_iter();
            let owner = tenants.find(|tenant| tenant.uid().as_ref() == Some(uid));
            owner.map(|tenant| TenantName::of(&tenant).to_string())
        }
        None => None,
    };
    // Events of nodes are in the namespace `default`. Those of kubelets have the name in place of the UID.
    let events = events::list(client, "default", ("Node", name), None).await?;
    let mut view = build_node_view(&node, owner, events);
    if view.state == FREE && view.unavailable.is_none() {
        // Without the permission nothing is known.
        let pools = Api::<HostNodePool>::all(client.clone())
            .list(&ListParams::default())
            .await;
        let pools = pools.map(|list| list.items).unwrap_or_default();
        view.unavailable = node::unavailable_nodes(&pools).get(name).map(|why| (*why).to_owned());
    }
    Ok(view)
}

/// The error for a node that does not exist, among these that do.
fn describe_missing_node(name: &str, others: &[String]) -> Error {
    let question = suggest::ask(name, others.iter().map(String::as_str));
    let advice = question.unwrap_or_else(|| "`berth nodes` lists those of the pools".into());
    Error::NotFound(format!("there is no node {name}; {advice}"))
}

fn build_tenant_view(tenant: &TenantCluster, nodes: Vec<NodeView>, events: Vec<EventView>) -> TenantView {
    let status = tenant.status.clone().unwrap_or_default();
    let message = |kind: &str| {
        let mut conditions = status.conditions.iter();
        conditions
            .find(|condition| condition.type_ == kind)
            .map(|condition| condition.message.clone())
    };
    TenantView {
        head: TenantHead::of(tenant),
        message: message(conditions::READY).unwrap_or_default(),
        schedule: message(conditions::WITHIN_SCHEDULE),
        class: status.class_name,
        project: status.quota.map(|quota| quota.project_name),
        groups: status.node_groups,
        nodes,
        events,
        unreadable: Vec::new(),
    }
}

fn build_node_view(node: &Node, owner: Option<String>, events: Vec<EventView>) -> NodeView {
    let annotation = |key: &str| node.annotations().get(key).cloned();
    let label = |key: &str| node.labels().get(key).cloned();
    // Control writes fractions of seconds, which nobody reads.
    let moment = |key: &str| annotation(key).map(|text| text.parse().map_or(text, format_time));
    let state = annotation(labels::NODE_STATE).or_else(|| label(labels::NODE_STATE));
    NodeView {
        name: node.name_any(),
        pool: label(labels::POOL),
        unavailable: if state.is_none() {
            find_unavailability(node)
        } else {
            None
        },
        state: state.unwrap_or_else(|| FREE.into()),
        since: moment(labels::STATE_SINCE),
        tenant: owner.or_else(|| label(labels::TENANT)),
        previous_tenant: annotation(labels::PREVIOUS_TENANT),
        group: label(labels::NODE_GROUP),
        reason: annotation(labels::REASON),
        idle_since: moment(labels::IDLE_SINCE),
        cordoned_until: moment(labels::DRAIN_AT),
        quarantine: annotation(labels::QUARANTINE),
        not_ready_since: moment(labels::NOT_READY_SINCE),
        events,
    }
}

/// Why a node without an owner cannot be assigned.
fn find_unavailability(node: &Node) -> Option<String> {
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let why = match (is_node_ready(node), is_cordoned) {
        (false, _) => "it is not Ready",
        (true, true) => "it is cordoned",
        (true, false) => return None,
    };
    Some(why.into())
}
