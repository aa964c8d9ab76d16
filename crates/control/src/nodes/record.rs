//! The record on a Node object of whom it belongs to: reading it, and the patches that write it.

use super::{planner::Owner, shared::is_kept};
use berth_api::{labels, names::TenantId};
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::{Value, json};

/// State of a node that is being emptied for its release.
pub const DRAINING: &str = "Draining";

/// Who owns a node, as far as the node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// UID of the owning `TenantCluster`; empty when only the label or the taint is left, which frees nothing.
    pub uid: String,
    /// The tenant's slug, as label and taint carry it.
    pub slug: String,
    /// The tenant's node group.
    pub group: String,
    /// The pool.
    pub pool: String,
    /// Whether the node is being emptied.
    pub draining: bool,
}

impl NodeRecord {
    /// Reads a node's record. Anything that is left of one (a label without the annotation, a taint alone) counts: such
    /// a node is not free.
    pub fn read(node: &Node) -> Option<Self> {
        let label = |key: &str| node.labels().get(key).cloned().unwrap_or_default();
        let uid = node.annotations().get(labels::OWNER_UID).cloned().unwrap_or_default();
        let taint = taints(node)
            .iter()
            .find(|taint| taint.key == labels::TENANT)
            .and_then(|taint| taint.value.clone());
        let slug = Some(label(labels::TENANT)).filter(|slug| !slug.is_empty()).or(taint);
        if uid.is_empty() && slug.is_none() {
            return None;
        }
        Some(Self {
            uid,
            slug: slug.unwrap_or_default(),
            group: label(labels::NODE_GROUP),
            pool: label(labels::POOL),
            draining: label(labels::NODE_STATE) == DRAINING,
        })
    }

    /// What the planner wants to know.
    pub fn owner(&self) -> Owner {
        Owner {
            uid: self.uid.clone(),
            group: self.group.clone(),
            pool: self.pool.clone(),
            draining: self.draining,
        }
    }

    /// Whether label, taint and state on the node say all that the record says.
    pub fn is_complete(&self, node: &Node, tenant: &TenantId) -> bool {
        let label = |key: &str| node.labels().get(key).map(String::as_str);
        label(labels::TENANT) == Some(tenant.slug())
            && matches!(label(labels::NODE_STATE), Some(labels::NODE_STATE_ASSIGNED | DRAINING))
            && taints(node).iter().any(|taint| is_owner_taint(taint, tenant.slug()))
    }
}

fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

fn is_owner_taint(taint: &Taint, slug: &str) -> bool {
    taint.key == labels::TENANT && taint.value.as_deref() == Some(slug) && taint.effect == "NoExecute"
}

fn other_taints(node: &Node) -> Vec<Taint> {
    taints(node)
        .iter()
        .filter(|taint| taint.key != labels::TENANT)
        .cloned()
        .collect()
}

/// The merge patch that gives a node to a tenant: record, label and taint at once, and only if the node is still at the
/// resource version that the decision was made on.
pub fn assign_patch(node: &Node, tenant: &TenantId, uid: &str, group: &str, pool: &str) -> Value {
    let mut taints = other_taints(node);
    taints.push(Taint {
        key: labels::TENANT.into(),
        value: Some(tenant.slug().into()),
        effect: "NoExecute".into(),
        time_added: None,
    });
    json!({
        "metadata": {
            "resourceVersion": node.resource_version(),
            "annotations": { labels::OWNER_UID: uid },
            "labels": {
                labels::TENANT: tenant.slug(),
                labels::NODE_STATE: labels::NODE_STATE_ASSIGNED,
                labels::NODE_GROUP: group,
                labels::POOL: pool,
            },
        },
        "spec": { "taints": taints },
    })
}

/// The merge patch that marks a node as being emptied (and cordons it), or takes that back.
pub fn draining_patch(node: &Node, draining: bool) -> Value {
    json!({
        "metadata": {
            "resourceVersion": node.resource_version(),
            "labels": { labels::NODE_STATE: if draining { DRAINING } else { labels::NODE_STATE_ASSIGNED } },
        },
        "spec": { "unschedulable": if draining { json!(true) } else { Value::Null } },
    })
}

/// The merge patch that takes the owner off a node.
pub fn release_patch(node: &Node) -> Value {
    let draining = node
        .labels()
        .get(labels::NODE_STATE)
        .is_some_and(|state| state == DRAINING);
    let mut patch = json!({
        "metadata": {
            "resourceVersion": node.resource_version(),
            "annotations": { labels::OWNER_UID: null },
            "labels": {
                labels::TENANT: null,
                labels::NODE_STATE: null,
                labels::NODE_GROUP: null,
                labels::POOL: null,
            },
        },
        "spec": { "taints": other_taints(node) },
    });
    if draining {
        // Only the cordon that Berth itself set is taken off.
        patch["spec"]["unschedulable"] = Value::Null;
    }
    patch
}

/// Whether the kubelet says that the node is Ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref())
        .unwrap_or_default();
    conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Whether a node could serve a tenant now: Ready, not cordoned, not being deleted, nothing evicts from it,
/// and not shared with others, now or since it was cleaned last.
pub fn is_available(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    is_ready(node)
        && !is_kept(node)
        && node.metadata.deletion_timestamp.is_none()
        && !spec.and_then(|spec| spec.unschedulable).unwrap_or_default()
        && !other_taints(node).iter().any(|taint| taint.effect == "NoExecute")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> Node {
        serde_json::from_value(json!({
            "metadata": {"name": "n1", "resourceVersion": "7", "labels": {"pool": "h100"}},
            "spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .unwrap()
    }

    fn patched(node: &Node, patch: &Value) -> Node {
        fn merge(target: &mut Value, patch: &Value) {
            let Value::Object(fields) = patch else {
                *target = patch.clone();
                return;
            };
            if !target.is_object() {
                *target = json!({});
            }
            for (key, value) in fields {
                if value.is_null() {
                    target.as_object_mut().unwrap().remove(key);
                } else {
                    merge(&mut target[key], value);
                }
            }
        }
        let mut value = serde_json::to_value(node).unwrap();
        merge(&mut value, patch);
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn assign_drain_release_leaves_the_node_as_it_was() {
        let tenant = TenantId::new("vision", "uid-1");
        let free = node();
        assert_eq!(NodeRecord::read(&free), None);
        assert!(is_available(&free));
        let assigned = patched(&free, &assign_patch(&free, &tenant, "uid-1", "train", "h100"));
        let record = NodeRecord::read(&assigned).unwrap();
        assert_eq!(
            (record.uid.as_str(), record.group.as_str(), record.draining),
            ("uid-1", "train", false)
        );
        assert!(record.is_complete(&assigned, &tenant));
        assert!(!record.is_complete(&assigned, &TenantId::new("other", "uid-2")));
        let draining = patched(&assigned, &draining_patch(&assigned, true));
        assert!(NodeRecord::read(&draining).unwrap().draining && !is_available(&draining));
        assert_eq!(
            patched(&draining, &release_patch(&draining))
                .spec
                .unwrap()
                .unschedulable,
            None
        );
        let released = patched(&assigned, &release_patch(&assigned));
        assert_eq!(released.spec, free.spec);
        assert_eq!(released.labels(), free.labels());
    }

    #[test]
    fn what_is_left_of_a_record_keeps_a_node_from_being_free() {
        let mut labelled = node();
        labelled.labels_mut().insert(labels::TENANT.into(), "vision-abc".into());
        assert_eq!(NodeRecord::read(&labelled).unwrap().uid, "");
        let mut tainted = node();
        let taint = Taint {
            key: labels::TENANT.into(),
            value: Some("x".into()),
            effect: "NoExecute".into(),
            time_added: None,
        };
        tainted
            .spec
            .get_or_insert_default()
            .taints
            .get_or_insert_default()
            .push(taint);
        assert_eq!(NodeRecord::read(&tainted).unwrap().slug, "x");
    }

    #[test]
    fn a_cordon_by_people_survives_a_release() {
        let tenant = TenantId::new("vision", "uid-1");
        let mut cordoned = node();
        cordoned.spec.get_or_insert_default().unschedulable = Some(true);
        let assigned = patched(&cordoned, &assign_patch(&cordoned, &tenant, "uid-1", "train", "h100"));
        assert_eq!(
            patched(&assigned, &release_patch(&assigned))
                .spec
                .unwrap()
                .unschedulable,
            Some(true)
        );
    }
}
