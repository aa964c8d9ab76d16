//! The text of `berth explain`.

use berth_api::text::one_line;
use berth_api::{NodeMode, labels};

use super::{NodeView, TenantView};
use crate::events;
use crate::output::{format_optional, format_rows, join_lines};

pub(super) fn describe_tenant(view: &TenantView) -> String {
    let mut head = vec![
        format!(
            "TenantCluster {}/{} is {}: {}",
            view.head.namespace,
            view.head.name,
            view.head.phase.as_deref().unwrap_or("new"),
            if view.message.is_empty() {
                "no status yet"
            } else {
                &view.message
            },
        ),
        format!(
            "Class: {}",
            view.class.as_deref().unwrap_or("none; Berth's own defaults")
        ),
    ];
    head.extend(view.project.iter().map(|project| format!("Project: {project}")));
    let mut parts = vec![join_lines(&head)];
    let schedule = view.schedule.iter();
    parts.extend(schedule.map(|schedule| one_line(&format!("Schedule: {schedule}"))));
    let heading = [
        "GROUP",
        "POOL",
        "MODE",
        "DESIRED",
        "ASSIGNED",
        "JOINING",
        "RELEASING",
        "PENDING",
        "BORROWED",
    ];
    parts.extend(format_rows(heading, &view.groups, |group| {
        let numbers = [
            group.desired,
            group.assigned,
            group.joining,
            group.releasing,
            group.pending,
            group.borrowed,
        ];
        let [desired, assigned, joining, releasing, pending, borrowed] = numbers.map(|number| number.to_string());
        [
            group.name.clone(),
            group.pool_name.clone(),
            name_mode(group.mode).into(),
            desired,
            assigned,
            joining,
            releasing,
            pending,
            borrowed,
        ]
    }));
    let messages: Vec<String> = view
        .groups
        .iter()
        .filter(|group| !group.message.is_empty())
        .map(|group| format!("Group {}: {}", group.name, group.message))
        .collect();
    if !messages.is_empty() {
        parts.push(join_lines(&messages));
    }
    let heading = ["NODE", "GROUP", "STATE", "SINCE", "WHY"];
    parts.extend(format_rows(heading, &view.nodes, |node| {
        [
            node.name.clone(),
            format_optional(node.group.as_ref()),
            node.state.clone(),
            format_optional(node.since.as_ref()),
            format_optional(node.reason.as_ref()),
        ]
    }));
    parts.extend(events::describe(&view.events));
    let unreadable = view.unreadable.iter();
    parts.extend(unreadable.map(|error| one_line(&format!("Not shown: {error}"))));
    parts.join("\n\n")
}

fn name_mode(mode: NodeMode) -> &'static str {
    match mode {
        NodeMode::Private => "Private",
        NodeMode::Dynamic => "Dynamic",
        NodeMode::Shared => "Shared",
    }
}

pub(super) fn describe_node(view: &NodeView) -> String {
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
    add("Previous tenant", view.previous_tenant.as_ref());
    add("Why", view.reason.as_ref());
    add("Idle since", view.idle_since.as_ref());
    add("Drained from", view.cordoned_until.as_ref());
    add("Unavailable", view.unavailable.as_ref());
    if view.quarantine.is_some() && view.not_ready_since.is_none() {
        lines.push(format!(
            "After the repair: kubectl annotate node {} {}=yes",
            view.name,
            labels::RELEASE_QUARANTINE
        ));
    }
    let mut parts = vec![join_lines(&lines)];
    parts.extend(events::describe(&view.events));
    parts.join("\n\n")
}

#[cfg(test)]
mod tests {
    use berth_api::TenantCluster;
    use k8s_openapi::api::core::v1::Node;
    use serde_json::json;

    use super::super::{build_node_view, build_tenant_view, describe_missing_node};
    use super::*;

    fn node(metadata: &serde_json::Value) -> Node {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        serde_json::from_value(json!({"metadata": metadata, "status": {"conditions": ready}})).unwrap()
    }

    #[test]
    fn a_waiting_tenant_shows_its_groups_nodes_and_messages() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team-vision"}, "spec": {},
            "status": {
                "phase": "Ready", "className": "gold", "quota": {"projectName": "vision"},
                "conditions": [{
                    "type": "Ready", "status": "True", "reason": "Ready", "message": "the tenant is ready",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }],
                "nodeGroups": [{
                    "name": "burst", "poolName": "h100", "mode": "Dynamic", "desired": 2, "assigned": 1, "pending": 1,
                    "borrowed": 1, "message": "ml/train needs 1 node more: pool h100 has 0 nodes free",
                }],
            },
        }))
        .unwrap();
        let own = node(&json!({
            "name": "h100-1", "labels": {"berth.dev/node-group": "burst", "berth.dev/pool": "h100"},
            "annotations": {
                "berth.dev/owner-uid": "u", "berth.dev/state": "Assigned",
                "berth.dev/state-since": "2026-01-01T00:00:00.262688967Z", "berth.dev/reason": "ml/train of team-vision/vision waited 2 s",
            },
        }));
        let view = build_tenant_view(&tenant, vec![build_node_view(&own, None, Vec::new())], Vec::new());
        let expected = "\
TenantCluster team-vision/vision is Ready: the tenant is ready
Class: gold
Project: vision

GROUP  POOL  MODE     DESIRED  ASSIGNED  JOINING  RELEASING  PENDING  BORROWED
burst  h100  Dynamic  2        1         0        0          1        1

Group burst: ml/train needs 1 node more: pool h100 has 0 nodes free

NODE    GROUP  STATE     SINCE                 WHY
h100-1  burst  Assigned  2026-01-01T00:00:00Z  ml/train of team-vision/vision waited 2 s";
        assert_eq!(describe_tenant(&view), expected);
    }

    #[test]
    fn a_tenant_with_a_schedule_shows_what_it_says() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team-vision"}, "spec": {},
            "status": {"conditions": [{
                "type": "WithinSchedule", "status": "False", "reason": "Stopped", "message": "stopped by SchedulePolicy nights",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))
        .unwrap();
        let text = describe_tenant(&build_tenant_view(&tenant, Vec::new(), Vec::new()));
        assert!(
            text.contains("\n\nSchedule: stopped by SchedulePolicy nights"),
            "{text}"
        );
    }

    #[test]
    fn what_the_user_may_not_read_is_named() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team-vision"}, "spec": {},
        }))
        .unwrap();
        let mut view = build_tenant_view(&tenant, Vec::new(), Vec::new());
        view.unreadable.push("cannot list the nodes: forbidden".into());
        let expected = "\
TenantCluster team-vision/vision is new: no status yet
Class: none; Berth's own defaults

Not shown: cannot list the nodes: forbidden";
        assert_eq!(describe_tenant(&view), expected);
        let value = serde_json::to_value(&view).unwrap();
        assert_eq!(
            (&value["name"], &value["namespace"]),
            (&json!("vision"), &json!("team-vision"))
        );
    }

    #[test]
    fn what_others_wrote_adds_no_line() {
        let forged = node(&json!({"name": "n1", "annotations": {
            "berth.dev/state": "Quarantined", "berth.dev/reason": "x\nPool: h100",
        }}));
        let text = describe_node(&build_node_view(&forged, None, Vec::new()));
        assert!(text.contains("Why: x\u{fffd}Pool: h100"), "{text}");
    }

    #[test]
    fn a_quarantined_node_shows_what_to_do() {
        let ill = node(
            &json!({"name": "n1", "labels": {"berth.dev/pool": "h100"}, "annotations": {
                "berth.dev/state": "Quarantined", "berth.dev/reason": "the scrub failed: gpu-reset",
                "berth.dev/quarantine": "the scrub failed: gpu-reset", "berth.dev/previous-tenant": "vision-abc",
            }}),
        );
        let expected = "\
Node n1 is Quarantined
Pool: h100
Previous tenant: vision-abc
Why: the scrub failed: gpu-reset
After the repair: kubectl annotate node n1 berth.dev/release-quarantine=yes";
        assert_eq!(describe_node(&build_node_view(&ill, None, Vec::new())), expected);
    }

    #[test]
    fn a_node_that_does_not_exist_is_named_with_those_that_may_be_meant() {
        let others = ["gpu-7".to_owned(), "cpu-1".to_owned()];
        let error = describe_missing_node("gpu7", &others);
        assert_eq!(error.exit_code(), 3);
        assert_eq!(error.to_string(), "there is no node gpu7; did you mean gpu-7?");
        let error = describe_missing_node("gpu7", &[]).to_string();
        assert_eq!(error, "there is no node gpu7; `berth nodes` lists those of the pools");
    }

    #[test]
    fn a_free_node_that_is_unavailable_says_why() {
        let mut cordoned = node(&json!({"name": "n1"}));
        cordoned.spec.get_or_insert_default().unschedulable = Some(true);
        let text = describe_node(&build_node_view(&cordoned, None, Vec::new()));
        assert_eq!(text, "Node n1 is Free\nUnavailable: it is cordoned");
    }
}
