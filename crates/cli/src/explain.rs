//! `berth explain`: why a tenant has the nodes that it has and waits for others, and why a node is where it is. All of it
//! stands in the host's objects; here it is put together.

use std::process::ExitCode;

use berth_api::{NodeGroupStatus, NodeMode, TenantCluster, labels};
use berth_local::{Home, client_from};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node};
use kube::api::{Api, ListParams};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;

use crate::args::{ExplainTarget, HomeArgument, OutputFormat};
use crate::error::Error;
use crate::output::{say, table};

/// The newest Events that are shown.
const EVENTS: usize = 10;

/// What is said of a tenant. Programs read it: fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct TenantView {
    namespace: String,
    name: String,
    phase: Option<String>,
    message: String,
    class: Option<String>,
    groups: Vec<NodeGroupStatus>,
    nodes: Vec<NodeView>,
    events: Vec<EventView>,
}

/// What is said of a node.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeView {
    name: String,
    pool: Option<String>,
    /// Free, or its state in the hand-over.
    state: String,
    since: Option<String>,
    /// `namespace/name` of the tenant that has it, or its slug.
    tenant: Option<String>,
    /// The slug of the tenant that had it before, while it is cleaned.
    previous_tenant: Option<String>,
    group: Option<String>,
    reason: Option<String>,
    idle_since: Option<String>,
    cordoned_until: Option<String>,
    quarantine: Option<String>,
    /// What keeps it from being given to anybody, if it is free.
    unavailable: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    events: Vec<EventView>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct EventView {
    at: Option<String>,
    reason: String,
    message: String,
}

pub(crate) async fn run(target: ExplainTarget) -> Result<ExitCode, Error> {
    match target {
        ExplainTarget::Tenant { tenant, home, output } => {
            let (namespace, name) = tenant
                .split_once('/')
                .ok_or_else(|| Error::Explain(format!("{tenant:?} is not NAMESPACE/NAME")))?;
            let view = of_tenant(&client(&home).await?, namespace, name).await?;
            print(&view, describe_tenant, output)
        }
        ExplainTarget::Node { node, home, output } => {
            let view = of_node(&client(&home).await?, &node).await?;
            print(&view, describe_node, output)
        }
    }
}

/// The local host cluster if there is one, else the one that kubectl would talk to.
async fn client(home: &HomeArgument) -> Result<Client, Error> {
    let home = Home::new(&home.home);
    if std::env::var_os("KUBECONFIG").is_none() && home.exists() {
        return Ok(client_from(&home.admin_kubeconfig()).await?);
    }
    Client::try_default().await.map_err(failed("find the host cluster"))
}

fn failed(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |error| Error::Explain(format!("cannot {what}: {error}"))
}

fn print<T: Serialize>(view: &T, describe: fn(&T) -> String, format: OutputFormat) -> Result<ExitCode, Error> {
    let failed = |error: &dyn std::fmt::Display| Error::Output(error.to_string());
    let text = match format {
        OutputFormat::Table => describe(view),
        OutputFormat::Json => serde_json::to_string_pretty(view).map_err(|error| failed(&error))?,
        OutputFormat::Yaml => serde_saphyr::to_string(view).map_err(|error| failed(&error))?,
    };
    say(format_args!("{}", text.trim_end()))?;
    Ok(ExitCode::SUCCESS)
}

async fn of_tenant(client: &Client, namespace: &str, name: &str) -> Result<TenantView, Error> {
    let tenants: Api<TenantCluster> = Api::namespaced(client.clone(), namespace);
    let tenant = tenants.get_opt(name).await.map_err(failed("look at the tenant"))?;
    let tenant = tenant.ok_or_else(|| Error::Explain(format!("there is no TenantCluster {namespace}/{name}")))?;
    let all = Api::<Node>::all(client.clone())
        .list(&ListParams::default())
        .await
        .map_err(failed("list the nodes"))?;
    let is_own = |node: &&Node| node.annotations().get(labels::OWNER_UID) == tenant.meta().uid.as_ref();
    let events = events(client, namespace, "TenantCluster", name).await?;
    let own = format!("{namespace}/{name}");
    let nodes = all
        .iter()
        .filter(is_own)
        .map(|node| node_view(node, Some(own.clone()), Vec::new()));
    Ok(tenant_view(&tenant, nodes.collect(), events))
}

async fn of_node(client: &Client, name: &str) -> Result<NodeView, Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get_opt(name).await.map_err(failed("look at the node"))?;
    let node = node.ok_or_else(|| Error::Explain(format!("there is no node {name}")))?;
    let owner = match node.annotations().get(labels::OWNER_UID) {
        Some(uid) => {
            let tenants: Api<TenantCluster> = Api::all(client.clone());
            let tenants = tenants
                .list(&ListParams::default())
                .await
                .map_err(failed("list the tenants"))?;
            let owner = tenants
                .items
                .into_iter()
                .find(|tenant| tenant.uid().as_ref() == Some(uid));
            owner.map(|tenant| format!("{}/{}", tenant.namespace().unwrap_or_default(), tenant.name_any()))
        }
        None => None,
    };
    // Events of nodes are in the namespace `default`.
    let events = events(client, "default", "Node", name).await?;
    Ok(node_view(&node, owner, events))
}

/// Events of an object, the oldest first.
async fn events(client: &Client, namespace: &str, kind: &str, name: &str) -> Result<Vec<EventView>, Error> {
    let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
    let list = Api::<Event>::namespaced(client.clone(), namespace)
        .list(&ListParams::default().fields(&selector))
        .await
        .map_err(failed("list the Events"))?;
    let time = |event: &Event| -> Option<Timestamp> {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        last.or_else(|| event.event_time.as_ref().map(|time| time.0))
            .or_else(|| event.creation_timestamp().map(|time| time.0))
    };
    let mut events = list.items;
    events.sort_by_key(time);
    let newest = events.split_off(events.len().saturating_sub(EVENTS));
    Ok(newest
        .into_iter()
        .map(|event| EventView {
            at: time(&event).map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            reason: event.reason.unwrap_or_default(),
            message: event.message.unwrap_or_default(),
        })
        .collect())
}

fn tenant_view(tenant: &TenantCluster, nodes: Vec<NodeView>, events: Vec<EventView>) -> TenantView {
    let status = tenant.status.clone().unwrap_or_default();
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    TenantView {
        namespace: tenant.namespace().unwrap_or_default(),
        name: tenant.name_any(),
        phase: status.phase.map(|phase| format!("{phase:?}")),
        message: ready.map(|condition| condition.message.clone()).unwrap_or_default(),
        class: status.class,
        groups: status.node_groups,
        nodes,
        events,
    }
}

fn node_view(node: &Node, owner: Option<String>, events: Vec<EventView>) -> NodeView {
    let annotation = |key: &str| node.annotations().get(key).cloned();
    let label = |key: &str| node.labels().get(key).cloned();
    let state = annotation(labels::NODE_STATE).or_else(|| label(labels::NODE_STATE));
    NodeView {
        name: node.name_any(),
        pool: label(labels::POOL),
        unavailable: if state.is_none() { unavailable(node) } else { None },
        state: state.unwrap_or_else(|| "Free".into()),
        since: annotation(labels::STATE_SINCE),
        tenant: owner.or_else(|| label(labels::TENANT)),
        previous_tenant: annotation(labels::PREVIOUS_TENANT),
        group: label(labels::NODE_GROUP),
        reason: annotation(labels::REASON),
        idle_since: annotation(labels::IDLE_SINCE),
        cordoned_until: annotation(labels::CORDONED_UNTIL),
        quarantine: annotation(labels::QUARANTINE),
        events,
    }
}

/// What keeps a node without an owner from being given to anybody.
fn unavailable(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let why = match (is_ready, is_cordoned) {
        (false, _) => "it is not Ready",
        (true, true) => "it is cordoned",
        (true, false) => return None,
    };
    Some(why.into())
}

fn or_dash(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".into())
}

fn describe_tenant(view: &TenantView) -> String {
    let mut parts = vec![format!(
        "TenantCluster {}/{} is {}: {}\nClass: {}",
        view.namespace,
        view.name,
        view.phase.as_deref().unwrap_or("new"),
        if view.message.is_empty() {
            "nothing is known of it yet"
        } else {
            &view.message
        },
        view.class.as_deref().unwrap_or("none; Berth's own defaults"),
    )];
    let groups: Vec<_> = view
        .groups
        .iter()
        .map(|group| {
            let numbers = [
                group.desired,
                group.assigned,
                group.joining,
                group.returning,
                group.waiting,
                group.borrowed,
            ];
            let [desired, assigned, joining, returning, waiting, borrowed] = numbers.map(|number| number.to_string());
            [
                group.name.clone(),
                group.pool.clone(),
                mode(group.mode).into(),
                desired,
                assigned,
                joining,
                returning,
                waiting,
                borrowed,
            ]
        })
        .collect();
    if !groups.is_empty() {
        parts.push(table(
            [
                "GROUP",
                "POOL",
                "MODE",
                "DESIRED",
                "ASSIGNED",
                "JOINING",
                "RETURNING",
                "WAITING",
                "BORROWED",
            ],
            &groups,
        ));
    }
    let told: Vec<String> = view
        .groups
        .iter()
        .filter(|group| !group.message.is_empty())
        .map(|group| format!("Group {}: {}", group.name, group.message))
        .collect();
    if !told.is_empty() {
        parts.push(told.join("\n"));
    }
    let nodes: Vec<_> = view
        .nodes
        .iter()
        .map(|node| {
            [
                node.name.clone(),
                or_dash(node.group.as_ref()),
                node.state.clone(),
                or_dash(node.since.as_ref()),
                or_dash(node.reason.as_ref()),
            ]
        })
        .collect();
    if !nodes.is_empty() {
        parts.push(table(["NODE", "GROUP", "STATE", "SINCE", "WHY"], &nodes));
    }
    parts.extend(describe_events(&view.events));
    parts.join("\n\n")
}

fn mode(mode: NodeMode) -> &'static str {
    match mode {
        NodeMode::Private => "private",
        NodeMode::Dynamic => "dynamic",
        NodeMode::Shared => "shared",
    }
}

fn describe_node(view: &NodeView) -> String {
    let since = view
        .since
        .as_ref()
        .map(|since| format!(" since {since}"))
        .unwrap_or_default();
    let mut lines = vec![format!("Node {} is {}{since}", view.name, view.state)];
    let mut add = |what: &str, value: Option<&String>| {
        if let Some(value) = value {
            lines.push(format!("{what}: {value}"));
        }
    };
    add("Pool", view.pool.as_ref());
    add("Tenant", view.tenant.as_ref());
    add("Group", view.group.as_ref());
    add("Tenant before", view.previous_tenant.as_ref());
    add("Why", view.reason.as_ref());
    add("Idle since", view.idle_since.as_ref());
    add("Drained from", view.cordoned_until.as_ref());
    add("Given to nobody", view.unavailable.as_ref());
    if view.quarantine.is_some() {
        lines.push(format!(
            "When it is mended: kubectl annotate node {} {}=true",
            view.name,
            labels::RELEASE_QUARANTINE
        ));
    }
    let mut parts = vec![lines.join("\n")];
    parts.extend(describe_events(&view.events));
    parts.join("\n\n")
}

fn describe_events(events: &[EventView]) -> Option<String> {
    let rows: Vec<_> = events
        .iter()
        .map(|event| [or_dash(event.at.as_ref()), event.reason.clone(), event.message.clone()])
        .collect();
    (!rows.is_empty()).then(|| table(["EVENT AT", "REASON", "MESSAGE"], &rows))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn node(metadata: &serde_json::Value) -> Node {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": ready}})).unwrap()
    }

    #[test]
    fn a_tenant_that_waits() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team-vision"}, "spec": {},
            "status": {
                "phase": "Ready", "class": "gold",
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "Ready", "message": "the tenant is ready",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
                "nodeGroups": [{
                    "name": "burst", "pool": "h100", "mode": "dynamic", "desired": 2, "assigned": 1, "waiting": 1,
                    "borrowed": 1, "message": "ml/train needs 1 node more: pool h100 has 0 nodes free",
                }],
            },
        }))
        .unwrap();
        let own = node(&json!({
            "name": "h100-1", "labels": {"berth.dev/node-group": "burst", "berth.dev/pool": "h100"},
            "annotations": {
                "berth.dev/owner-uid": "u", "berth.dev/state": "Assigned",
                "berth.dev/state-since": "2026-01-01T00:00:00Z", "berth.dev/reason": "ml/train waited 2s",
            },
        }));
        let view = tenant_view(&tenant, vec![node_view(&own, None, Vec::new())], Vec::new());
        let expected = "\
TenantCluster team-vision/vision is Ready: the tenant is ready
Class: gold

GROUP  POOL  MODE     DESIRED  ASSIGNED  JOINING  RETURNING  WAITING  BORROWED
burst  h100  dynamic  2        1         0        0          1        1

Group burst: ml/train needs 1 node more: pool h100 has 0 nodes free

NODE    GROUP  STATE     SINCE                 WHY
h100-1  burst  Assigned  2026-01-01T00:00:00Z  ml/train waited 2s";
        assert_eq!(describe_tenant(&view), expected);
    }

    #[test]
    fn a_node_in_quarantine_and_what_to_do() {
        let ill = node(
            &json!({"name": "n1", "labels": {"berth.dev/pool": "h100"}, "annotations": {
                "berth.dev/state": "Quarantined", "berth.dev/reason": "cleaning failed: gpu-reset",
                "berth.dev/quarantine": "cleaning failed: gpu-reset", "berth.dev/previous-tenant": "vision-abc",
            }}),
        );
        let expected = "\
Node n1 is Quarantined
Pool: h100
Tenant before: vision-abc
Why: cleaning failed: gpu-reset
When it is mended: kubectl annotate node n1 berth.dev/release-quarantine=true";
        assert_eq!(describe_node(&node_view(&ill, None, Vec::new())), expected);
    }

    #[test]
    fn a_free_node_that_nobody_gets() {
        let mut cordoned = node(&json!({"name": "n1"}));
        cordoned.spec.get_or_insert_default().unschedulable = Some(true);
        let text = describe_node(&node_view(&cordoned, None, Vec::new()));
        assert_eq!(text, "Node n1 is Free\nGiven to nobody: it is cordoned");
    }
}
