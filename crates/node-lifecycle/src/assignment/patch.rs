//! Writing the assignment: labels, annotations, taints and cordon, all in one patch.

use super::{Assignment, AssignmentState, paused_labels};
use crate::{
    node::{autoscalers, is_unschedulable, other_taints, taints},
    nvidia_labels,
};
use berth_api::labels::{self, RECYCLING};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube_core::ResourceExt;
use serde_json::{Map, Value, json};

impl Assignment {
    /// The labels (`None`: must be absent).
    fn labels(&self) -> [(&'static str, Option<String>); 4] {
        let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        [
            (
                labels::TENANT,
                self.state
                    .runs_tenant_pods()
                    .then(|| self.slug.clone())
                    .and_then(|s| filled(&s)),
            ),
            (labels::NODE_STATE, Some(self.state.name().to_owned())),
            (
                labels::NODE_GROUP,
                filled(&self.group).filter(|_| self.state.has_tenant()),
            ),
            (labels::POOL, filled(&self.pool)),
        ]
    }

    /// The annotations (`None`: must be absent).
    fn annotations(&self) -> [(&'static str, Option<String>); 14] {
        let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let is_over = !self.state.has_tenant();
        [
            (labels::OWNER_UID, filled(&self.uid)),
            (labels::NODE_STATE, Some(self.state.name().to_owned())),
            (labels::STATE_SINCE, time(self.since)),
            (labels::ASSIGNED_SINCE, time(self.owned_since)),
            (labels::LEFT_AT, time(self.left_at)),
            (labels::REASON, filled(&self.reason)),
            (
                labels::RESERVED_WITH,
                (self.state == AssignmentState::Reserved).then(|| self.reserved_with.to_string()),
            ),
            (labels::DRAIN_AT, time(self.cordoned_until)),
            (labels::PREVIOUS_TENANT, filled(&self.slug).filter(|_| is_over)),
            (labels::RECYCLING_ID, filled(&self.recycling_id).filter(|_| is_over)),
            (
                labels::QUARANTINE,
                (self.state == AssignmentState::Quarantined).then(|| self.reason.clone()),
            ),
            (labels::NOT_READY_SINCE, time(self.not_ready_since)),
            (
                labels::PAUSED_LABELS,
                filled(&paused_labels::write(&self.paused_labels)),
            ),
            (
                labels::PAUSED_IMAGES,
                filled(&paused_labels::write_images(&self.paused_images)),
            ),
        ]
    }

    /// The taints of a node with the assignment. While it is drained, there is one more: pods that tolerate the cordon, as those of DaemonSets,
    /// would come back as soon as they are evicted.
    fn taints(&self) -> Vec<Taint> {
        let value = if self.state.runs_tenant_pods() && !self.slug.is_empty() {
            &self.slug
        } else {
            RECYCLING
        };
        let taint = |value: &str, effect: &str| Taint {
            key: labels::TENANT.into(),
            value: Some(value.into()),
            effect: effect.into(),
            time_added: None,
        };
        let mut taints = vec![taint(value, "NoExecute")];
        if self.state == AssignmentState::Draining {
            taints.push(taint(RECYCLING, "NoSchedule"));
        }
        taints
    }

    /// Whether the node has the labels, annotations, taints and cordon of the assignment.
    pub fn is_written_on(&self, node: &Node) -> bool {
        let wanted = self.taints();
        let found: Vec<&Taint> = { taints(node).iter() }
            .filter(|found| found.key == labels::TENANT)
            .collect();
        let is_found = |taint: &Taint| {
            let mut found = found.iter();
            found.any(|found| found.value == taint.value && found.effect == taint.effect)
        };
        self.labels()
            .iter()
            .all(|(key, value)| node.labels().get(*key) == value.as_ref())
            && self
                .annotations()
                .iter()
                .all(|(key, value)| node.annotations().get(*key) == value.as_ref())
            && found.len() == wanted.len()
            && wanted.iter().all(is_found)
            && (!self.state.is_cordoned() || is_unschedulable(node))
            && self.restored_labels(node).is_empty()
            && autoscalers::is_protected_from_removal(node)
    }

    /// The labels to restore on a node: those that are paused, in a state in which none are. Whatever ends the scrub restores them, in the same patch.
    fn restored_labels(&self, node: &Node) -> Map<String, Value> {
        if self.state == AssignmentState::Scrubbing {
            return Map::new();
        }
        paused_labels::restored(node, &self.paused_labels)
    }

    /// The merge patch that writes the assignment on a node as it is now, with further labels.
    pub fn to_patch(&self, node: &Node, more: &[(String, Option<String>)]) -> Value {
        let mut taints = other_taints(node);
        taints.extend(self.taints());
        let owned = |(key, value): (&str, Option<String>)| (key.to_owned(), json!(value));
        let mut all_labels: Map<String, Value> = self.labels().into_iter().map(owned).collect();
        all_labels.extend(self.restored_labels(node));
        all_labels.extend(more.iter().map(|(key, value)| (key.clone(), json!(value))));
        let mut annotations: Map<String, Value> = self.annotations().into_iter().map(owned).collect();
        annotations.insert(labels::RELEASE_QUARANTINE.into(), Value::Null);
        let is_used = Self::read(node).is_some_and(|before| !before.state.is_pending());
        nvidia_labels::record_changes(node, is_used, more, &mut annotations);
        autoscalers::add_protection(node, &mut annotations);
        let mut spec = json!({ "taints": taints });
        set_cordon(node, self.state.is_cordoned(), &mut annotations, &mut spec);
        json!({
            "metadata": {
                "resourceVersion": node.resource_version(), "labels": all_labels, "annotations": annotations,
            },
            "spec": spec,
        })
    }
}

/// The merge patch that removes the assignment from a node, which is free then.
pub fn clear_assignment_patch(node: &Node) -> Value {
    const LABELS: [&str; 4] = [labels::TENANT, labels::NODE_STATE, labels::NODE_GROUP, labels::POOL];
    const ANNOTATIONS: [&str; 19] = [
        labels::OWNER_UID,
        labels::NODE_STATE,
        labels::STATE_SINCE,
        labels::ASSIGNED_SINCE,
        labels::LEFT_AT,
        labels::REASON,
        labels::RESERVED_WITH,
        labels::DRAIN_AT,
        labels::PREVIOUS_TENANT,
        labels::RECYCLING_ID,
        labels::QUARANTINE,
        labels::NOT_READY_SINCE,
        labels::RELEASE_QUARANTINE,
        labels::IDLE_SINCE,
        labels::RECORDED_GPUS,
        labels::PREVIOUS_SHARED_POOL,
        labels::SHARED_UNTIL,
        labels::PAUSED_LABELS,
        labels::PAUSED_IMAGES,
    ];
    let gone =
        |keys: &[&str]| -> Map<String, Value> { keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect() };
    let mut annotations = gone(&ANNOTATIONS);
    autoscalers::remove_protection(node, &mut annotations);
    let mut all_labels = gone(&LABELS);
    all_labels.extend(paused_labels::restored(node, &paused_labels::read(node)));
    let mut spec = json!({ "taints": other_taints(node) });
    set_cordon(node, false, &mut annotations, &mut spec);
    json!({
        "metadata": {
            "resourceVersion": node.resource_version(), "labels": all_labels, "annotations": annotations,
        },
        "spec": spec,
    })
}

/// Who cordoned a node, as its annotation says.
const BERTH: &str = "berth";
const PEOPLE: &str = "people";

/// Whether people have cordoned a node. The cordon that Berth sets is a part of the node's state.
pub fn is_cordoned_by_people(node: &Node) -> bool {
    is_unschedulable(node) && !says_cordon_of_berth(node)
}

/// Whether Berth has cordoned a node. Nobody else removes that cordon.
pub(super) fn is_cordon_of_berth(node: &Node) -> bool {
    is_unschedulable(node) && says_cordon_of_berth(node)
}

fn says_cordon_of_berth(node: &Node) -> bool {
    let whose = node.annotations().get(labels::CORDON);
    whose.is_some_and(|whose| whose == BERTH)
}

/// Cordons the node, or removes Berth's cordon. A cordon that people set stays.
fn set_cordon(node: &Node, wanted: bool, annotations: &mut Map<String, Value>, spec: &mut Value) {
    let whose = node.annotations().get(labels::CORDON).map(String::as_str);
    let is_cordoned = is_unschedulable(node);
    if wanted {
        // If the node was uncordoned, the cordon that people set is gone as well: the new one is Berth's.
        if whose.is_none() || !is_cordoned {
            let whose = if is_cordoned { PEOPLE } else { BERTH };
            annotations.insert(labels::CORDON.into(), whose.into());
        }
        spec["unschedulable"] = true.into();
    } else if whose.is_some() {
        annotations.insert(labels::CORDON.into(), Value::Null);
        if whose == Some(BERTH) {
            spec["unschedulable"] = Value::Null;
        }
    }
}
