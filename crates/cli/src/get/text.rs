//! The text of `berth get`.

use berth_api::text::one_line;
use berth_api::{TenantCluster, TenantClusterStatus, TenantNode, TreeResource, conditions};
use jiff::Timestamp;

use super::Details;
use crate::events;
use crate::output::{format_age_since, format_optional, format_rows, format_table, format_time, join_lines};
use crate::tenant::{TenantName, phase};

pub(super) fn describe(tenant: &TenantCluster, details: &Details, now: Timestamp) -> String {
    let status = tenant.status.clone().unwrap_or_default();
    let mut parts = vec![describe_head(tenant, &status, now)];
    parts.extend(describe_conditions(&status, now));
    parts.extend(describe_groups(&status));
    parts.extend(describe_nodes(details.nodes.as_deref().unwrap_or_default()));
    parts.extend(describe_quota(&status));
    parts.extend(describe_violations(&status));
    parts.extend(describe_transitions(details));
    parts.extend(events::describe(&details.events));
    parts.extend(describe_next(tenant, &status));
    parts.join("\n\n")
}

fn describe_head(tenant: &TenantCluster, status: &TenantClusterStatus, now: Timestamp) -> String {
    let name = TenantName::of(tenant);
    let created = tenant.metadata.creation_timestamp.as_ref().map(|time| time.0);
    let mut lines = vec![
        format!("Name:      {name}"),
        format!("Phase:     {}", phase(tenant)),
        format!("Version:   {}", describe_version(tenant, status)),
        format!("Class:     {}", format_optional(status.class_name.as_ref())),
        format!("Endpoint:  {}", format_optional(status.endpoint.as_ref())),
        format!("Age:       {}", format_age_since(created, now)),
    ];
    if let Some(published) = &status.kubeconfig {
        lines.push(format!("Sign in:   at {}", published.sign_in.issuer));
    }
    if let Some(nodes) = &status.nodes {
        let (assigned, desired, ready) = (nodes.assigned, nodes.desired, nodes.ready);
        lines.push(format!("Nodes:     {assigned} of {desired} assigned, {ready} ready"));
    }
    if let Some(usage) = &status.datastore {
        lines.push(format!(
            "Datastore: {} % used, {} objects",
            usage.percent, usage.objects
        ));
    }
    if let Some(usage) = &status.host_usage {
        lines.push(format!("On host:   {} % of bytes used", usage.percent));
    }
    lines.extend(
        status
            .expires_at
            .as_ref()
            .map(|time| format!("Expires:   {}", format_time(time.0))),
    );
    lines.extend(
        status
            .idle_since
            .as_ref()
            .map(|time| format!("No pods:   since {}", format_time(time.0))),
    );
    join_lines(&lines)
}

/// The version that runs, or else the one that will, and that of an upgrade.
fn describe_version(tenant: &TenantCluster, status: &TenantClusterStatus) -> String {
    let version = tenant.shown_version().unwrap_or("-");
    // A new tenant is not upgraded, and an upgrade that is taken back leads to what runs.
    let running = status.version.as_ref();
    let upgrade = status
        .upgrading_to
        .as_ref()
        .filter(|next| running.is_some_and(|running| running != *next));
    upgrade.map_or_else(
        || version.to_owned(),
        |next| format!("{version}, being upgraded to {next}"),
    )
}

fn describe_conditions(status: &TenantClusterStatus, now: Timestamp) -> Option<String> {
    let heading = ["CONDITION", "STATUS", "REASON", "AGE", "MESSAGE"];
    format_rows(heading, &status.conditions, |condition| {
        [
            condition.type_.clone(),
            condition.status.clone(),
            condition.reason.clone(),
            format_age_since(Some(condition.last_transition_time.0), now),
            condition.message.clone(),
        ]
    })
}

fn describe_groups(status: &TenantClusterStatus) -> Option<String> {
    let heading = ["GROUP", "POOL", "MODE", "DESIRED", "ASSIGNED", "MESSAGE"];
    format_rows(heading, &status.node_groups, |group| {
        [
            group.name.clone(),
            group.pool_name.clone(),
            format!("{:?}", group.mode),
            group.desired.to_string(),
            group.assigned.to_string(),
            group.message.clone(),
        ]
    })
}

fn describe_nodes(nodes: &[TenantNode]) -> Option<String> {
    format_rows(["NODE", "GROUP", "POOL", "STATUS"], nodes, |node| {
        let status = node.status.as_ref().map(|status| &status.node);
        let conditions = status.and_then(|node| node["conditions"].as_array());
        let mut conditions = conditions.into_iter().flatten();
        let is_ready = conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
        [
            node.spec.node_name.clone(),
            node.spec.node_group_name.clone(),
            node.spec.pool_name.clone(),
            if is_ready { "Ready" } else { "NotReady" }.into(),
        ]
    })
}

fn describe_quota(status: &TenantClusterStatus) -> Option<String> {
    let quota = status.quota.as_ref()?;
    let usage = status.usage.clone().unwrap_or_default();
    let rows = quota.reserved.iter().map(|(name, amount)| {
        let resource = TreeResource::from(name.clone());
        let used = usage.resources.get(name).map(|used| resource.format_rounded(*used));
        [name.clone(), resource.format_amount(*amount), used.unwrap_or_default()]
    });
    let gpus = usage.gpus.iter().map(|pool| {
        let name = format!("gpus of {}", pool.pool_name);
        [name, pool.reserved.to_string(), pool.used.to_string()]
    });
    let rows: Vec<_> = rows.chain(gpus).collect();
    let head = one_line(&format!("Quota of the Project {}:", quota.project_name));
    if rows.is_empty() {
        return Some(format!("{head} nothing is reserved"));
    }
    Some(format!(
        "{head}\n{}",
        format_table(["RESOURCE", "RESERVED", "USED"], &rows)
    ))
}

fn describe_violations(status: &TenantClusterStatus) -> Option<String> {
    let lines: Vec<String> = status
        .violations
        .iter()
        .map(|violation| {
            let end = match (&violation.deadline, violation.enforced) {
                (_, true) => "; Berth withdraws it".to_owned(),
                (Some(deadline), false) => format!("; Berth withdraws it at {}", format_time(deadline.0)),
                (None, false) => String::new(),
            };
            format!(
                "  {} ({}): {}{end}",
                violation.reason, violation.object, violation.message
            )
        })
        .collect();
    (!lines.is_empty()).then(|| format!("Violations:\n{}", join_lines(&lines)))
}

fn describe_transitions(details: &Details) -> Option<String> {
    let heading = ["SCHEDULE CHANGES AT", "TO", "POLICY", "WINDOW"];
    format_rows(heading, &details.transitions, |period| {
        [
            format_time(period.from.0),
            format!("{:?}", period.state),
            format_optional(period.policy_name.as_ref()),
            format_optional(period.window_name.as_ref()),
        ]
    })
}

/// What the user can do next.
fn describe_next(tenant: &TenantCluster, status: &TenantClusterStatus) -> Option<String> {
    let name = TenantName::of(tenant);
    if conditions::is_true(&status.conditions, conditions::READY) {
        return Some(format!("Use it: berth connect {name}"));
    }
    (phase(tenant) == "Sleeping").then(|| format!("Wake it: berth wake {name}"))
}

#[cfg(test)]
mod tests {
    use super::super::next_transitions;
    use super::*;
    use crate::events::tests::read;
    use serde_json::json;

    #[test]
    fn everything_about_a_tenant_is_described() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"version": "v1.37.1"},
            "status": {
                "phase": "Ready", "className": "gold", "endpoint": "https://a:6443", "expiresAt": "2026-01-09T00:00:00Z",
                "kubeconfig": {"certificateAuthority": "pem", "issuer": "https://id.example.com", "clientID": "berth"},
                "nodes": {"desired": 1, "assigned": 1, "ready": 1},
                "quota": {"projectName": "vision", "reserved": {"datastore.bytes": 536_870_912, "pods": 100, "services": 10}},
                "usage": {"resources": {"datastore.bytes": 2048, "pods": 7}, "gpus": [
                    {"poolName": "h100", "reserved": 8, "used": 4},
                ]},
                "nodeGroups": [{"name": "train", "poolName": "h100", "mode": "Private", "desired": 1, "assigned": 1}],
                "violations": [{"reason": "PoolNotAllowed", "object": "HostNodePool/h100", "message": "leave it",
                    "since": "2026-01-01T00:00:00Z", "deadline": "2026-01-02T00:00:00Z"}],
                "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "it is ready",
                    "lastTransitionTime": "2026-01-01T00:30:00Z"}],
            },
        }))
        .unwrap();
        let node: TenantNode = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantNode", "metadata": {"name": "n1"},
            "spec": {"nodeName": "n1", "poolName": "h100", "nodeGroupName": "train"},
            "status": {"node": {"conditions": [{"type": "Ready", "status": "True"}]}},
        }))
        .unwrap();
        let now = "2026-01-01T01:00:00Z".parse().unwrap();
        let details = Details {
            nodes: Some(vec![node]),
            transitions: Vec::new(),
            events: read(
                &json!([{
                    "metadata": {"name": "e"}, "involvedObject": {"name": "vision"}, "type": "Normal", "reason": "Ready",
                    "message": "it is ready", "eventTime": "2026-01-01T00:30:00.000000Z",
                }]),
                None,
            ),
        };
        let expected = "\
Name:      team/vision
Phase:     Ready
Version:   v1.37.1
Class:     gold
Endpoint:  https://a:6443
Age:       60m
Sign in:   at https://id.example.com
Nodes:     1 of 1 assigned, 1 ready
Expires:   2026-01-09T00:00:00Z

CONDITION  STATUS  REASON  AGE  MESSAGE
Ready      True    Ready   30m  it is ready

GROUP  POOL  MODE     DESIRED  ASSIGNED  MESSAGE
train  h100  Private  1        1

NODE  GROUP  POOL  STATUS
n1    train  h100  Ready

Quota of the Project vision:
RESOURCE         RESERVED  USED
datastore.bytes  512Mi     2Ki
pods             100       7
services         10
gpus of h100     8         4

Violations:
  PoolNotAllowed (HostNodePool/h100): leave it; Berth withdraws it at 2026-01-02T00:00:00Z

EVENT AT              TYPE    REASON  COUNT  MESSAGE
2026-01-01T00:30:00Z  Normal  Ready   1      it is ready

Use it: berth connect team/vision";
        assert_eq!(describe(&tenant, &details, now), expected);
    }

    #[test]
    fn only_another_version_than_what_runs_is_an_upgrade() {
        for (status, expected) in [
            (json!({}), "-"),
            (json!({"upgradingTo": "v1.36.4"}), "v1.36.4"),
            (
                json!({"version": "v1.36.4", "upgradingTo": "v1.37.1"}),
                "v1.36.4, being upgraded to v1.37.1",
            ),
            // A patch release was taken back.
            (json!({"version": "v1.36.4", "upgradingTo": "v1.36.4"}), "v1.36.4"),
        ] {
            let tenant: TenantCluster = serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision"}, "spec": {}, "status": status,
            }))
            .unwrap();
            let status = tenant.status.clone().unwrap_or_default();
            assert_eq!(describe_version(&tenant, &status), expected);
        }
    }

    #[test]
    fn no_text_adds_a_line() {
        let forged = "x\nReady      True";
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision", "namespace": "team"},
            "spec": {},
            "status": {
                "endpoint": forged, "quota": {"projectName": forged, "reserved": {}},
                "nodeGroups": [{"name": forged, "poolName": "h100", "mode": "Private", "message": forged}],
                "violations": [{"reason": "PoolNotAllowed", "object": forged, "message": forged, "since": "2026-01-01T00:00:00Z"}],
                "conditions": [{"type": "Accepted", "status": "False", "reason": "Why", "message": forged,
                    "lastTransitionTime": "2026-01-01T00:30:00Z"}],
            },
        }))
        .unwrap();
        let events = json!([{"metadata": {"name": "e"}, "involvedObject": {}, "reason": forged, "message": forged}]);
        let details = Details {
            nodes: None,
            transitions: Vec::new(),
            events: read(&events, None),
        };
        let text = describe(&tenant, &details, Timestamp::UNIX_EPOCH);
        assert!(text.contains("x\u{fffd}Ready"), "{text}");
        assert!(!text.lines().any(|line| line.starts_with("Ready")), "{text}");
    }

    #[test]
    fn only_changes_to_come_are_shown() {
        let period = |from: &str| {
            serde_json::from_value(json!({"from": from, "state": "Stopped", "policyName": "nights"})).unwrap()
        };
        let periods = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"].map(period);
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let details = Details {
            nodes: None,
            transitions: next_transitions(periods.into(), now),
            events: Vec::new(),
        };
        let text = describe_transitions(&details).unwrap();
        assert!(
            text.ends_with("2026-01-02T00:00:00Z  Stopped  nights  -") && text.lines().count() == 2,
            "{text}"
        );
    }
}
