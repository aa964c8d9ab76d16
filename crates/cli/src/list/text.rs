//! The tables of `berth list`.

use std::sync::LazyLock;

use berth_api::{TenantCluster, conditions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{CustomResourceExt as _, ResourceExt as _};

use crate::node::{self, GpuResources};
use crate::output::{format_age_since, format_columns, format_optional, format_time};
use crate::tenant::{TenantName, phase};

/// Which columns a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// What fits into a line of a terminal, as a rule.
    Usual,
    /// All that is known, besides.
    Wide,
}

/// A column behind namespace and name.
#[derive(Debug)]
struct Column {
    name: String,
    is_wide: bool,
}

/// The columns that `kubectl get tenantclusters` prints, in its order: the definition has the only list of them.
static COLUMNS: LazyLock<Vec<Column>> = LazyLock::new(|| {
    let versions = TenantCluster::crd().spec.versions.into_iter();
    let columns = versions.flat_map(|version| version.additional_printer_columns.unwrap_or_default());
    let columns = columns.map(|column| Column {
        name: column.name,
        is_wide: column.priority.unwrap_or_default() > 0,
    });
    columns.collect()
});

/// A table with a row for each tenant. Without the nodes of the host, GPUs are those of the status.
pub(super) fn describe(
    tenants: &[TenantCluster],
    nodes: Option<&(Vec<Node>, GpuResources)>,
    columns: Columns,
    now: Timestamp,
) -> String {
    let shown = COLUMNS
        .iter()
        .filter(|column| columns == Columns::Wide || !column.is_wide);
    let names: Vec<&str> = shown.map(|column| column.name.as_str()).collect();
    let headings = ["Namespace", "Name"].iter().chain(&names);
    let headings: Vec<String> = headings.map(|name| name.to_uppercase()).collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    let rows = tenants.iter().map(|tenant| {
        let TenantName { namespace, name } = TenantName::of(tenant);
        let cells = names.iter().map(|column| {
            let cell = describe_cell(column, tenant, nodes, now);
            format_optional(cell.as_ref())
        });
        [namespace, name].into_iter().chain(cells).collect::<Vec<String>>()
    });
    format_columns(&headings, &rows.collect::<Vec<_>>())
}

/// What a column says of a tenant; none if that is not known. Where the status says nothing yet, or less than nodes do, it says more than kubectl.
fn describe_cell(
    column: &str,
    tenant: &TenantCluster,
    nodes: Option<&(Vec<Node>, GpuResources)>,
    now: Timestamp,
) -> Option<String> {
    let status = tenant.status.as_ref();
    let condition = |type_: &str| {
        let mut conditions = status?.conditions.iter();
        conditions.find(|condition| condition.type_ == type_)
    };
    match column {
        "Ready" => Some(condition(conditions::READY)?.status.clone()),
        "Reason" => Some(condition(conditions::READY)?.reason.clone()),
        "Message" => Some(condition(conditions::READY)?.message.clone()),
        "Schedule" => Some(condition(conditions::WITHIN_SCHEDULE)?.reason.clone()),
        "Version" => Some(tenant.shown_version()?.to_owned()),
        "Requested-Version" => tenant.spec.version.clone(),
        "Nodes" => Some(status?.nodes?.assigned.to_string()),
        "Desired" => Some(status?.nodes?.desired.to_string()),
        "GPUs" => nodes
            .map(|nodes| count_gpus(tenant, nodes).to_string())
            .or_else(|| Some(status?.nodes?.gpus.to_string())),
        "Age" => Some(format_age_since(Some(tenant.creation_timestamp()?.0), now)),
        "Phase" => Some(phase(tenant)),
        "Class" => status
            .and_then(|status| status.class_name.clone())
            .or_else(|| tenant.spec.class_name.clone()),
        "Expires" => Some(format_time(status?.expires_at.as_ref()?.0)),
        "Endpoint" => status?.endpoint.clone(),
        _ => None,
    }
}

/// The GPUs of the nodes that the tenant has now.
fn count_gpus(tenant: &TenantCluster, (nodes, resources): &(Vec<Node>, GpuResources)) -> u64 {
    let own = nodes.iter().filter(|node| node::is_of(node, tenant));
    own.map(|node| node::count_assigned_gpus(node, resources)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_tenant_is_one_line_with_the_gpus_that_are_known() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"className": "gold"},
            "status": {"phase": "Ready", "version": "v1.37.1", "endpoint": "https://a:6443",
                "nodes": {"desired": 2, "assigned": 1, "ready": 1},
                "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap();
        let new: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "new", "namespace": "team"},
            "spec": {"version": "v1.36.4"},
        }))
        .unwrap();
        let silent: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "silent", "namespace": "team"},
            "spec": {},
        }))
        .unwrap();
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "n", "labels": {"berth.dev/pool": "h100"}, "annotations": {"berth.dev/owner-uid": "u"}},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}},
        }))
        .unwrap();
        let resources = GpuResources::from([("h100".to_owned(), "nvidia.com/gpu".to_owned())]);
        let now = "2026-01-01T04:00:00Z".parse().unwrap();
        let expected = "\
NAMESPACE  NAME    READY  REASON  VERSION  NODES  DESIRED  GPUS  AGE
team       vision  True   Ready   v1.37.1  1      2        8     4h
team       new     -      -       v1.36.4  -      -        0     -
team       silent  -      -       -        -      -        0     -";
        assert_eq!(
            describe(
                &[tenant.clone(), new, silent],
                Some(&(vec![node], resources)),
                Columns::Usual,
                now
            ),
            expected
        );
        // Who may not list nodes sees what the status says.
        let mut tenant = tenant;
        let gpus = |tenant: &TenantCluster| describe_cell("GPUs", tenant, None, now);
        assert_eq!(gpus(&tenant).as_deref(), Some("0"));
        tenant.status.as_mut().unwrap().nodes.as_mut().unwrap().gpus = 16;
        assert_eq!(gpus(&tenant).as_deref(), Some("16"));
        tenant.status = None;
        assert_eq!(gpus(&tenant), None);
    }

    #[test]
    fn every_column_of_kubectl_is_known_and_a_wide_table_says_why_a_tenant_is_not_ready() {
        let time = "2026-01-01T00:00:00Z";
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "vision", "namespace": "team", "creationTimestamp": time},
            "spec": {"version": "v1.37.1"},
            "status": {"phase": "Pending", "expiresAt": "2026-01-02T00:00:00Z", "endpoint": "https://a:6443", "className": "gold",
                "nodes": {"desired": 2, "assigned": 1, "ready": 1}, "conditions": [
                {"type": "Ready", "status": "False", "reason": "UnknownPool", "message": "no pool b200", "lastTransitionTime": time},
                {"type": "WithinSchedule", "status": "True", "reason": "Open", "message": "", "lastTransitionTime": time}]},
        }))
        .unwrap();
        let now = time.parse().unwrap();
        for Column { name, .. } in COLUMNS.as_slice() {
            assert!(describe_cell(name, &tenant, None, now).is_some(), "{name}");
        }
        let wide = describe(&[tenant], None, Columns::Wide, now);
        let lines: Vec<&str> = wide.lines().collect();
        assert!(
            lines[0].starts_with("NAMESPACE  NAME    READY  REASON ") && lines[0].ends_with("  MESSAGE"),
            "{wide}"
        );
        assert!(
            lines[1].starts_with("team       vision  False  UnknownPool ") && lines[1].ends_with("  no pool b200"),
            "{wide}"
        );
        assert!(
            lines[1].contains(" gold ") && lines[1].contains("2026-01-02T00:00:00Z"),
            "{wide}"
        );
    }
}
