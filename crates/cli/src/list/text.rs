//! The tables of `berth list`.

use berth_api::{TenantCluster, conditions};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;

use crate::node::{self, GpuResources};
use crate::output::{format_age_since, format_optional, format_table, format_time};
use crate::tenant::{TenantName, phase};

/// Which columns a table has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Columns {
    /// What fits into a line of a terminal, as a rule.
    Usual,
    /// Why a tenant is not ready, and when it expires, besides.
    Wide,
}

/// The headings of [`Columns::Wide`]. [`Columns::Usual`] has the first nine.
const HEADINGS: [&str; 12] = [
    "NAMESPACE",
    "NAME",
    "PHASE",
    "VERSION",
    "CLASS",
    "NODES",
    "GPUS",
    "AGE",
    "ENDPOINT",
    "REASON",
    "EXPIRES",
    "MESSAGE",
];

/// A table with a row for each tenant. Without the nodes of the host, GPUs are those of the status.
pub(super) fn describe(
    tenants: &[TenantCluster],
    nodes: Option<&(Vec<Node>, GpuResources)>,
    columns: Columns,
    now: Timestamp,
) -> String {
    let rows = tenants.iter().map(|tenant| describe_tenant(tenant, nodes, now));
    match columns {
        Columns::Usual => format_table::<9>(first(HEADINGS), &rows.map(first).collect::<Vec<_>>()),
        Columns::Wide => format_table(HEADINGS, &rows.collect::<Vec<_>>()),
    }
}

/// The first `N` of all columns.
fn first<T: Default, const N: usize>(all: [T; 12]) -> [T; N] {
    let mut all = all.into_iter();
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

fn describe_tenant(tenant: &TenantCluster, nodes: Option<&(Vec<Node>, GpuResources)>, now: Timestamp) -> [String; 12] {
    let TenantName { namespace, name } = TenantName::of(tenant);
    let status = tenant.status.clone().unwrap_or_default();
    let mut all = status.conditions.iter();
    let ready = all.find(|condition| condition.type_ == conditions::READY);
    let recorded = status.nodes.map(|nodes| nodes.gpus.to_string());
    let assigned = status
        .nodes
        .map(|nodes| format!("{}/{}", nodes.assigned, nodes.desired));
    let gpus = nodes.map(|(nodes, resources)| {
        let own = nodes.iter().filter(|node| node::is_of(node, tenant));
        own.map(|node| node::count_assigned_gpus(node, resources))
            .sum::<u64>()
            .to_string()
    });
    let class = status.class_name.or_else(|| tenant.spec.class_name.clone());
    let created = tenant.creation_timestamp().map(|time| time.0);
    [
        namespace,
        name,
        phase(tenant),
        tenant.shown_version().unwrap_or("-").to_owned(),
        format_optional(class.as_ref()),
        format_optional(assigned.as_ref()),
        format_optional(gpus.or(recorded).as_ref()),
        format_age_since(created, now),
        format_optional(status.endpoint.as_ref()),
        format_optional(ready.map(|ready| &ready.reason)),
        status
            .expires_at
            .as_ref()
            .map_or_else(|| "-".into(), |time| format_time(time.0)),
        format_optional(ready.map(|ready| &ready.message)),
    ]
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
                "nodes": {"desired": 2, "assigned": 1, "ready": 1}},
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
NAMESPACE  NAME    PHASE    VERSION  CLASS  NODES  GPUS  AGE  ENDPOINT
team       vision  Ready    v1.37.1  gold   1/2    8     4h   https://a:6443
team       new     Pending  v1.36.4  -      -      0     -    -
team       silent  Pending  -        -      -      0     -    -";
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
        let row = describe_tenant(&tenant, None, now);
        assert_eq!(row[6], "0");
        tenant.status.as_mut().unwrap().nodes.as_mut().unwrap().gpus = 16;
        assert_eq!(describe_tenant(&tenant, None, now)[6], "16");
        tenant.status = None;
        assert_eq!(describe_tenant(&tenant, None, now)[6], "-");
    }

    #[test]
    fn a_wide_table_says_why_a_tenant_is_not_ready() {
        let tenant: TenantCluster = serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision", "namespace": "team"},
            "spec": {"version": "v1.37.1"},
            "status": {"phase": "Pending", "expiresAt": "2026-01-02T00:00:00Z", "conditions": [{
                "type": "Ready", "status": "False", "reason": "UnknownPool", "message": "no pool b200",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]},
        }))
        .unwrap();
        let text = describe(&[tenant], None, Columns::Wide, Timestamp::UNIX_EPOCH);
        let expected = "\
NAMESPACE  NAME    PHASE    VERSION  CLASS  NODES  GPUS  AGE  ENDPOINT  REASON       EXPIRES               MESSAGE
team       vision  Pending  v1.37.1  -      -      -     -    -         UnknownPool  2026-01-02T00:00:00Z  no pool b200";
        assert_eq!(text, expected);
    }
}
