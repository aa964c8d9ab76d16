//! `TenantNodes`: the assigned nodes as the tenant may see them.

use berth_api::{TenantNodeSpec, TenantNodeStatus, labels};
use berth_node_lifecycle::{Assignment, is_visible_label};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use serde_json::Value;

/// Why a tenant sees a node.
pub enum Source {
    /// It is assigned to the tenant.
    Owned(Box<Assignment>),
    /// Other tenants use it as well. Node groups belong to one tenant, so the node has no label of a group.
    Shared {
        /// The pool.
        pool: String,
        /// The tenant's group.
        group: String,
    },
}

impl Source {
    /// The pool of the node.
    pub fn pool(&self) -> &str {
        match self {
            Self::Owned(record) => &record.pool,
            Self::Shared { pool, .. } => pool,
        }
    }

    /// The node group of the tenant that the node is in.
    pub fn group(&self) -> &str {
        match self {
            Self::Owned(record) => &record.group,
            Self::Shared { group, .. } => group,
        }
    }
}

/// What the tenant may see of a node.
pub fn tenant_view(node: &Node, source: &Source, topology_key: Option<&str>) -> (TenantNodeSpec, TenantNodeStatus) {
    let spec = node.spec.as_ref();
    let taints = spec.and_then(|spec| spec.taints.clone()).unwrap_or_default();
    let view = TenantNodeSpec {
        node_name: node.name_any(),
        pool_name: source.pool().into(),
        node_group_name: source.group().into(),
        labels: node
            .labels()
            .iter()
            .filter(|(key, _)| is_visible_label(key, topology_key))
            .filter(|(key, _)| *key != labels::NODE_GROUP || matches!(source, Source::Owned(_)))
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect(),
        taints: taints.into_iter().filter(|taint| taint.key != labels::TENANT).collect(),
        unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or_default(),
    };
    let status = node
        .status
        .as_ref()
        .and_then(|status| serde_json::to_value(status).ok())
        .unwrap_or(Value::Null);
    (
        view,
        TenantNodeStatus {
            node: match source {
                Source::Owned(_) => visible_status(status),
                Source::Shared { .. } => shared_status(visible_status(status)),
            },
            ..TenantNodeStatus::default()
        },
    )
}

/// A node's status without what other tenants left on it (images, volumes) and without heartbeats, each of which would be a
/// write.
fn visible_status(mut status: Value) -> Value {
    if let Some(fields) = status.as_object_mut() {
        for hidden in ["images", "volumesAttached", "volumesInUse", "config"] {
            fields.remove(hidden);
        }
        for condition in fields
            .get_mut("conditions")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(condition) = condition.as_object_mut() {
                condition.remove("lastHeartbeatTime");
            }
        }
    }
    status
}

/// The status of a shared node, also without the identity of the machine and its addresses in the platform's network.
fn shared_status(mut status: Value) -> Value {
    if let Some(fields) = status.as_object_mut() {
        fields.remove("addresses");
        if let Some(info) = fields.get_mut("nodeInfo").and_then(Value::as_object_mut) {
            for hidden in ["bootID", "machineID", "systemUUID"] {
                info.insert(hidden.into(), "".into());
            }
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_view_has_the_hardware_but_neither_the_tenant_taint_nor_images_nor_heartbeats() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "gpu-1", "labels": {
                "nvidia.com/gpu.product": "H100", "kubernetes.io/hostname": "gpu-1", "berth.dev/tenant": "t",
                "secret.example.com/rack-owner": "x", "rack": "r1", "berth.dev/node-group": "train",
            }},
            "spec": {"unschedulable": true, "taints": [
                {"key": "berth.dev/tenant", "value": "t", "effect": "NoExecute"},
                {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
            ]},
            "status": {
                "capacity": {"nvidia.com/gpu": "8"},
                "images": [{"names": ["other-tenants/image"]}],
                "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
            },
        }))
        .unwrap();
        let record = Assignment::reserved("u", "train", "h100", 1, jiff::Timestamp::UNIX_EPOCH, "");
        let (spec, status) = tenant_view(&node, &Source::Owned(Box::new(record)), Some("rack"));
        let keys: Vec<&str> = spec.labels.keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "berth.dev/node-group",
                "kubernetes.io/hostname",
                "nvidia.com/gpu.product",
                "rack"
            ]
        );
        assert_eq!(spec.taints.len(), 1);
        assert!(spec.unschedulable);
        assert_eq!(
            status.node,
            json!({"capacity": {"nvidia.com/gpu": "8"}, "conditions": [{"type": "Ready", "status": "True"}]})
        );
    }

    #[test]
    fn a_shared_node_hides_its_machine_and_its_address() {
        let node: Node = serde_json::from_value(json!({
            "metadata": {"name": "cpu-1", "labels": {
                "berth.dev/shared-pool": "cpu", "berth.dev/pool": "cpu", "kubernetes.io/hostname": "cpu-1",
                "berth.dev/node-group": "a-tenants",
            }},
            "status": {
                "addresses": [{"type": "InternalIP", "address": "10.0.0.5"}],
                "allocatable": {"cpu": "8"},
                "nodeInfo": {"bootID": "b", "machineID": "m", "systemUUID": "s", "kubeletVersion": "v1.37.1"},
            },
        }))
        .unwrap();
        let source = Source::Shared {
            pool: "cpu".into(),
            group: "build".into(),
        };
        let (spec, status) = tenant_view(&node, &source, None);
        assert_eq!(
            (spec.pool_name.as_str(), spec.node_group_name.as_str()),
            ("cpu", "build")
        );
        let labels: Vec<&str> = spec.labels.keys().map(String::as_str).collect();
        assert_eq!(
            labels,
            ["berth.dev/pool", "berth.dev/shared-pool", "kubernetes.io/hostname"]
        );
        assert!(status.node.get("addresses").is_none());
        let info = &status.node["nodeInfo"];
        assert!(
            ["bootID", "machineID", "systemUUID"]
                .iter()
                .all(|field| info[field] == "")
        );
        assert_eq!(
            (&info["kubeletVersion"], &status.node["allocatable"]),
            (&json!("v1.37.1"), &json!({"cpu": "8"}))
        );
    }
}
