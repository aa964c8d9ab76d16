//! `berth explain pod`: why a tenant's pod does not run. The tenant has its spec and what its own schedulers say; the host has
//! the pod that really runs, its gates and its Events.

use std::time::Duration;

use berth_api::text::one_line;
use berth_api::{TenantCluster, conditions, labels, names::host_name};
use berth_runtime::client;
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use kube::config::KubeConfigOptions;
use kube::{Client, Config, ResourceExt as _};
use serde::Serialize;

use crate::error::{Error, failed};
use crate::events::{self, EventView};
use crate::host::Host;
use crate::output::join_lines;
use crate::tenant::{self, TenantName};
use crate::user_config::read::read_text;
use crate::wait::format_condition;

/// How long the tenant may take for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The explanation of a pod. Programs read it: fields are only ever added.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PodView {
    /// Namespace and name in the tenant.
    pod: String,
    /// What most likely keeps it from running, the most important first.
    reasons: Vec<String>,
    /// In the tenant.
    tenant: SideView,
    /// On the host.
    host: SideView,
}

/// A pod on one side.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct SideView {
    /// Namespace and name; none if it does not exist there.
    name: Option<String>,
    phase: Option<String>,
    node: Option<String>,
    /// Why this side could not be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    unreadable: Option<String>,
    gates: Vec<String>,
    conditions: Vec<String>,
    events: Vec<EventView>,
}

pub(super) async fn explain(host: &Host, tenant: &str, pod: &str) -> Result<PodView, Error> {
    let wrong = || Error::Usage(format!("{pod:?} is not NAMESPACE/POD"));
    let (namespace, name) = pod.split_once('/').ok_or_else(wrong)?;
    let (tenant_name, tenant) = tenant::find(host, tenant).await?;
    let in_tenant = read_in_tenant(host, &tenant_name, &tenant, namespace, name).await;
    let in_tenant = in_tenant.unwrap_or_else(|error| unreadable(&error));
    let on_host = match tenant
        .status
        .as_ref()
        .and_then(|status| status.workload_namespace.as_ref())
    {
        Some(workloads) => {
            let side = read_side(&host.client, workloads, &host_name("Pod", namespace, name)).await;
            side.unwrap_or_else(|error| unreadable(&error))
        }
        None => (None, SideView::default()),
    };
    if in_tenant.0.is_none() && on_host.0.is_none() && in_tenant.1.unreadable.is_none() {
        return Err(Error::NotFound(format!("there is no pod {pod} in {tenant_name}")));
    }
    Ok(PodView {
        pod: pod.to_owned(),
        reasons: find_reasons(&tenant, &in_tenant, &on_host),
        tenant: in_tenant.1,
        host: on_host.1,
    })
}

/// A side that cannot be read: teams usually may not read the host's pods, and a tenant may be stopped.
fn unreadable(error: &Error) -> (Option<Pod>, SideView) {
    let side = SideView {
        unreadable: Some(error.to_string()),
        ..SideView::default()
    };
    (None, side)
}

async fn read_in_tenant(
    host: &Host,
    tenant_name: &TenantName,
    tenant: &TenantCluster,
    namespace: &str,
    name: &str,
) -> Result<(Option<Pod>, SideView), Error> {
    if tenant::is_asleep(tenant) {
        // A request would wake it.
        return Err(Error::Failed(format!(
            "it sleeps; `berth wake {tenant_name} --wait` wakes it"
        )));
    }
    let text = tenant::read_kubeconfig(host, tenant_name, tenant).await?;
    let unusable = |error: &dyn std::fmt::Display| Error::Failed(format!("its kubeconfig cannot be used: {error}"));
    let kubeconfig = read_text(&text).map_err(|error| unusable(&error))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| unusable(&error))?;
    config.connect_timeout = Some(TIMEOUT);
    config.default_retry = false;
    let client = client::for_person_in_tenant(config).map_err(|error| unusable(&error))?;
    match tokio::time::timeout(TIMEOUT, read_side(&client, namespace, name)).await {
        Ok(side) => side,
        Err(_) => Err(Error::Timeout(format!(
            "its API server does not answer within {} s",
            TIMEOUT.as_secs()
        ))),
    }
}

async fn read_side(client: &Client, namespace: &str, name: &str) -> Result<(Option<Pod>, SideView), Error> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.get_opt(name).await.map_err(failed("get the pod"))?;
    let events = events::list(client, namespace, ("Pod", name), None).await?;
    let side = view_side(pod.as_ref(), events);
    Ok((pod, side))
}

fn view_side(pod: Option<&Pod>, events: Vec<EventView>) -> SideView {
    let status = pod.and_then(|pod| pod.status.as_ref());
    let spec = pod.and_then(|pod| pod.spec.as_ref());
    let conditions = status
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten();
    let conditions = conditions.filter(|condition| condition.status != "True");
    let conditions = conditions.map(|condition| {
        let reason = condition.reason.clone().unwrap_or_default();
        let message = condition.message.clone().unwrap_or_default();
        format!("{} is {} ({reason}): {message}", condition.type_, condition.status)
    });
    let gates = spec
        .and_then(|spec| spec.scheduling_gates.as_ref())
        .into_iter()
        .flatten();
    SideView {
        name: pod.map(|pod| format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any())),
        phase: status.and_then(|status| status.phase.clone()),
        node: spec.and_then(|spec| spec.node_name.clone()),
        unreadable: None,
        gates: gates.map(|gate| gate.name.clone()).collect(),
        conditions: conditions.collect(),
        events,
    }
}

/// What keeps a pod from running, as far as the objects say.
fn find_reasons(
    tenant: &TenantCluster,
    in_tenant: &(Option<Pod>, SideView),
    on_host: &(Option<Pod>, SideView),
) -> Vec<String> {
    let mut reasons = Vec::new();
    let is_running = |side: &SideView| matches!(side.phase.as_deref(), Some("Running" | "Succeeded"));
    let is_host_hidden = on_host.1.unreadable.is_some();
    if is_running(&on_host.1) || (is_host_hidden && is_running(&in_tenant.1)) {
        return vec!["it runs, or has ended, on the host".into()];
    }
    let own = tenant
        .status
        .as_ref()
        .map(|status| status.conditions.as_slice())
        .unwrap_or_default();
    for kind in [
        conditions::WITHIN_SCHEDULE,
        conditions::READY,
        conditions::QUOTA_RESERVED,
    ] {
        let failing = own
            .iter()
            .find(|condition| condition.type_ == kind && condition.status == "False");
        reasons.extend(failing.map(|condition| format!("the tenant: {}", format_condition(condition))));
    }
    if in_tenant.0.is_some() && on_host.0.is_none() && !is_host_hidden {
        reasons.push(match in_tenant.1.gates.as_slice() {
            [] => "it is not on the host: see its Events in the tenant, which say what Berth refuses or waits for"
                .to_owned(),
            gates => format!("it has scheduling gates in the tenant: {}", gates.join(", ")),
        });
    }
    for gate in &on_host.1.gates {
        reasons.push(if gate == labels::USER_QUOTA_GATE {
            "its user has as much as the Project allows: `berth quota` shows the limits of users".to_owned()
        } else {
            format!("it has the scheduling gate {gate} on the host")
        });
    }
    reasons.extend(
        on_host
            .1
            .conditions
            .iter()
            .map(|condition| format!("on the host: {condition}")),
    );
    if is_host_hidden {
        // The syncer copies the status of the host's pod.
        let copied = in_tenant.1.conditions.iter();
        reasons.extend(copied.map(|condition| format!("in the tenant: {condition}")));
    }
    let groups = tenant.status.iter().flat_map(|status| &status.node_groups);
    let waiting = groups.filter(|group| !group.message.is_empty());
    if on_host.1.node.is_none() && in_tenant.1.node.is_none() {
        reasons.extend(waiting.map(|group| format!("node group {}: {}", group.name, group.message)));
    }
    reasons
}

pub(super) fn describe(view: &PodView) -> String {
    let mut head = match view.reasons.as_slice() {
        [] => vec![format!("Pod {}: nothing is found that keeps it from running", view.pod)],
        _ => vec![format!("Pod {}:", view.pod)],
    };
    head.extend(view.reasons.iter().map(|reason| format!("  - {reason}")));
    let mut parts = vec![join_lines(&head)];
    parts.push(describe_side("In the tenant", &view.tenant));
    parts.push(describe_side("On the host", &view.host));
    parts.join("\n\n")
}

fn describe_side(title: &str, side: &SideView) -> String {
    if let Some(error) = &side.unreadable {
        return one_line(&format!("{title}: could not be read: {error}"));
    }
    let Some(name) = &side.name else {
        return format!("{title}: it does not exist");
    };
    let phase = side.phase.as_deref().unwrap_or("new");
    let node = side
        .node
        .as_deref()
        .map(|node| format!(" on {node}"))
        .unwrap_or_default();
    let mut lines = vec![format!("{title}: {name} is {phase}{node}")];
    lines.extend(side.gates.iter().map(|gate| format!("  gate {gate}")));
    lines.extend(side.conditions.iter().map(|condition| format!("  {condition}")));
    let events = events::describe(&side.events);
    let parts: Vec<String> = [join_lines(&lines)].into_iter().chain(events).collect();
    parts.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(value: serde_json::Value) -> (Option<Pod>, SideView) {
        let pod: Pod = serde_json::from_value(value).unwrap();
        let side = view_side(Some(&pod), Vec::new());
        (Some(pod), side)
    }

    fn tenant(status: &serde_json::Value) -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "a", "namespace": "team"},
            "spec": {}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_host_says_why_a_pod_waits() {
        let in_tenant = pod(json!({"metadata": {"name": "p", "namespace": "ml"}, "status": {"phase": "Pending"}}));
        let on_host = pod(json!({
            "metadata": {"name": "p-x", "namespace": "berth-a"}, "spec": {"containers": [], "schedulingGates": [{"name": "berth.dev/user-quota"}]},
            "status": {"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gated"}]},
        }));
        let tenant = tenant(&json!({"nodeGroups": [
            {"name": "g", "poolName": "h100", "mode": "Dynamic", "pending": 1, "message": "no node is free"}]}));
        let reasons = find_reasons(&tenant, &in_tenant, &on_host);
        assert!(reasons[0].contains("berth quota"), "{reasons:?}");
        assert_eq!(
            reasons[1..],
            [
                "on the host: PodScheduled is False (SchedulingGated): gated",
                "node group g: no node is free"
            ]
        );
        let view = PodView {
            pod: "ml/p".into(),
            reasons,
            tenant: in_tenant.1,
            host: on_host.1,
        };
        let text = describe(&view);
        assert!(
            text.contains("\n\nOn the host: berth-a/p-x is Pending\n  gate berth.dev/user-quota\n"),
            "{text}"
        );
    }

    #[test]
    fn a_stopped_tenant_and_a_pod_that_is_not_on_the_host_are_named() {
        let in_tenant = pod(json!({"metadata": {"name": "p", "namespace": "ml"}, "status": {"phase": "Pending"}}));
        let nothing = || (None, SideView::default());
        let stopped = tenant(
            &json!({"conditions": [{"type": "WithinSchedule", "status": "False", "reason": "Stopped",
            "message": "night", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        );
        let mut forged = unreadable(&Error::Failed("x\nOn the host: it runs".into())).1;
        assert!(describe_side("In the tenant", &forged).contains("x\u{fffd}On the host"));
        forged.unreadable = None;
        forged.name = Some("ml/p".into());
        forged.conditions.push("Ready is False (x): y\n  gate z".into());
        assert_eq!(describe_side("In the tenant", &forged).lines().count(), 2);
        let reasons = find_reasons(&stopped, &in_tenant, &nothing());
        assert_eq!(reasons[0], "the tenant: WithinSchedule is False (Stopped): night");
        assert!(reasons[1].contains("Events in the tenant"), "{reasons:?}");
        // A host that cannot be read says nothing about the pod.
        let denied = unreadable(&Error::Failed("forbidden".into()));
        assert_eq!(find_reasons(&stopped, &in_tenant, &denied).len(), 1);
        let running = pod(json!({"metadata": {"name": "p"}, "status": {"phase": "Running"}}));
        assert_eq!(
            find_reasons(&stopped, &in_tenant, &running),
            ["it runs, or has ended, on the host"]
        );
    }
}
