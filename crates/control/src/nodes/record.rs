//! The record on a Node object of whom it belongs to and how far its hand-over is: reading it, and the patches that write
//! it.
//!
//! Annotations decide; labels and the taint show the same to people, to the scheduler and to kubelets. Anything that is left
//! of a record keeps a node from being free.

use super::shared::is_kept;
use berth_api::{
    labels::{self, HANDOVER},
    names,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Taint};
use kube::ResourceExt;
use serde_json::{Map, Value, json};

/// Where a node is between one tenant and the next. Without a record it is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Promised to a tenant; waits for the others that were promised together with it. No pod can come.
    Reserved,
    /// Being prepared for its tenant. No pod can come.
    Joining,
    /// Serves its tenant.
    Assigned,
    /// Serves its tenant, gets no new pods, and is drained soon.
    Cordoned,
    /// Its pods are evicted.
    Draining,
    /// Nobody's; what the tenant left is cleaned away.
    Scrubbing,
    /// Nobody's; it is checked.
    Validating,
    /// Nobody's, and could not be handed on: people must look.
    Quarantined,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Reserved,
        Self::Joining,
        Self::Assigned,
        Self::Cordoned,
        Self::Draining,
        Self::Scrubbing,
        Self::Validating,
        Self::Quarantined,
    ];

    /// Its name, as on the node.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reserved => "Reserved",
            Self::Joining => "Joining",
            Self::Assigned => labels::NODE_STATE_ASSIGNED,
            Self::Cordoned => "Cordoned",
            Self::Draining => "Draining",
            Self::Scrubbing => "Scrubbing",
            Self::Validating => "Validating",
            Self::Quarantined => "Quarantined",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == text)
    }

    /// Whether pods of its tenant may be on the node: it carries the tenant's label and taint.
    pub fn serves(self) -> bool {
        matches!(self, Self::Assigned | Self::Cordoned | Self::Draining)
    }

    /// Whether it is promised to a tenant or being prepared for it.
    pub fn is_coming(self) -> bool {
        matches!(self, Self::Reserved | Self::Joining)
    }

    /// Whether the node has a tenant.
    fn has_owner(self) -> bool {
        self.serves() || self.is_coming()
    }

    fn is_cordoned(self) -> bool {
        !matches!(self, Self::Reserved | Self::Joining | Self::Assigned)
    }
}

/// What a node says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Where it is.
    pub state: State,
    /// UID of the owning `TenantCluster`; empty if nobody owns it, or it cannot be told who does.
    pub uid: String,
    /// The slug of the owner, or of who had the node before.
    pub slug: String,
    /// The owner's node group.
    pub group: String,
    /// The pool.
    pub pool: String,
    /// Since when it is in this state.
    pub since: Option<Timestamp>,
    /// Since when it serves its tenant.
    pub owned_since: Option<Timestamp>,
    /// How many nodes the group must have before this one joins.
    pub reserved_with: u32,
    /// When it is drained.
    pub cordoned_until: Option<Timestamp>,
    /// Names this hand-over, from Scrubbing on.
    pub handover: String,
    /// Why it is in its state.
    pub reason: String,
}

impl NodeRecord {
    /// Reads a node's record; none on a free node.
    pub fn read(node: &Node) -> Option<Self> {
        const TRACES: [&str; 6] = [
            labels::OWNER_UID,
            labels::NODE_STATE,
            labels::PREVIOUS_TENANT,
            labels::HANDOVER_ID,
            labels::QUARANTINE,
            labels::RESERVED_WITH,
        ];
        let label = |key: &str| node.labels().get(key).map(String::as_str).unwrap_or_default();
        let annotation = |key: &str| node.annotations().get(key).map(String::as_str).unwrap_or_default();
        let taint = taints(node).iter().find(|taint| taint.key == labels::TENANT);
        let has_traces = TRACES.iter().any(|key| node.annotations().contains_key(*key))
            || [labels::TENANT, labels::NODE_STATE]
                .iter()
                .any(|key| node.labels().contains_key(*key))
            || taint.is_some();
        if !has_traces {
            return None;
        }
        let uid = annotation(labels::OWNER_UID);
        let tainted = taint
            .and_then(|taint| taint.value.as_deref())
            .filter(|value| *value != HANDOVER)
            .unwrap_or_default();
        let slug = [label(labels::TENANT), tainted, annotation(labels::PREVIOUS_TENANT)]
            .into_iter()
            .find(|slug| !slug.is_empty())
            .unwrap_or_default();
        let said = State::parse(annotation(labels::NODE_STATE)).or_else(|| State::parse(label(labels::NODE_STATE)));
        let state = match said {
            // An owner that cannot be told, or a state that is lost: pods may be there, and the node is not clean.
            Some(state) if state.has_owner() && uid.is_empty() => State::Draining,
            Some(state) => state,
            None if !uid.is_empty() || !label(labels::TENANT).is_empty() || !tainted.is_empty() => State::Draining,
            None => State::Scrubbing,
        };
        let time = |key: &str| annotation(key).parse().ok();
        Some(Self {
            state,
            uid: if state.has_owner() { uid.into() } else { String::new() },
            slug: slug.into(),
            group: label(labels::NODE_GROUP).into(),
            pool: label(labels::POOL).into(),
            since: time(labels::STATE_SINCE),
            owned_since: time(labels::OWNED_SINCE),
            reserved_with: annotation(labels::RESERVED_WITH).parse().unwrap_or(1),
            cordoned_until: time(labels::CORDONED_UNTIL),
            handover: annotation(labels::HANDOVER_ID).into(),
            reason: annotation(labels::REASON).into(),
        })
    }

    /// A promise of a free node.
    pub fn reserved(uid: &str, group: &str, pool: &str, of: u32, now: Timestamp, reason: &str) -> Self {
        Self {
            state: State::Reserved,
            uid: uid.into(),
            slug: String::new(),
            group: group.into(),
            pool: pool.into(),
            since: Some(now),
            owned_since: None,
            reserved_with: of,
            cordoned_until: None,
            handover: String::new(),
            reason: reason.into(),
        }
    }

    /// The same node in another state from `now` on.
    #[must_use]
    pub fn to(&self, state: State, now: Timestamp, reason: &str) -> Self {
        Self {
            state,
            uid: if state.has_owner() {
                self.uid.clone()
            } else {
                String::new()
            },
            group: if state.has_owner() {
                self.group.clone()
            } else {
                String::new()
            },
            reserved_with: 1,
            since: Some(now),
            owned_since: match state {
                State::Assigned => self.owned_since.or(Some(now)),
                _ if state.serves() => self.owned_since,
                _ => None,
            },
            cordoned_until: None,
            reason: reason.into(),
            ..self.clone()
        }
    }

    /// The state after this one when the node leaves its tenant: a hand-over of its own begins, named after what the node
    /// was when it was decided.
    #[must_use]
    pub fn to_scrubbing(&self, node: &Node, now: Timestamp, reason: &str) -> Self {
        let version = node.resource_version().unwrap_or_default();
        Self {
            handover: names::hash(&["handover", &node.uid().unwrap_or_default(), &version]),
            ..self.to(State::Scrubbing, now, reason)
        }
    }

    /// How long the node has been in its state, in seconds. A clock that went back, or a time that is not there, counts as
    /// nothing.
    pub fn elapsed(&self, now: Timestamp) -> i64 {
        self.since
            .map_or(0, |since| (now.as_second() - since.as_second()).max(0))
    }

    /// Whether the tenant is about to lose the node.
    pub fn is_leaving(&self) -> bool {
        matches!(self.state, State::Cordoned | State::Draining)
    }

    /// The labels (`None`: must not be there).
    fn labels(&self) -> [(&'static str, Option<String>); 4] {
        let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        [
            (
                labels::TENANT,
                self.state.serves().then(|| self.slug.clone()).and_then(|s| filled(&s)),
            ),
            (labels::NODE_STATE, Some(self.state.name().to_owned())),
            (
                labels::NODE_GROUP,
                filled(&self.group).filter(|_| self.state.has_owner()),
            ),
            (labels::POOL, filled(&self.pool)),
        ]
    }

    /// The annotations (`None`: must not be there).
    fn annotations(&self) -> [(&'static str, Option<String>); 10] {
        let filled = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let is_over = !self.state.has_owner();
        [
            (labels::OWNER_UID, filled(&self.uid)),
            (labels::NODE_STATE, Some(self.state.name().to_owned())),
            (labels::STATE_SINCE, time(self.since)),
            (labels::OWNED_SINCE, time(self.owned_since)),
            (labels::REASON, filled(&self.reason)),
            (
                labels::RESERVED_WITH,
                (self.state == State::Reserved).then(|| self.reserved_with.to_string()),
            ),
            (labels::CORDONED_UNTIL, time(self.cordoned_until)),
            (labels::PREVIOUS_TENANT, filled(&self.slug).filter(|_| is_over)),
            (labels::HANDOVER_ID, filled(&self.handover).filter(|_| is_over)),
            (
                labels::QUARANTINE,
                (self.state == State::Quarantined).then(|| self.reason.clone()),
            ),
        ]
    }

    fn taint(&self) -> Taint {
        let value = if self.state.serves() && !self.slug.is_empty() {
            &self.slug
        } else {
            HANDOVER
        };
        Taint {
            key: labels::TENANT.into(),
            value: Some(value.into()),
            effect: "NoExecute".into(),
            time_added: None,
        }
    }

    /// Whether labels, annotations, taint and cordon on the node say all that the record says.
    pub fn is_complete(&self, node: &Node) -> bool {
        let taint = self.taint();
        let mut tenant_taints = taints(node).iter().filter(|found| found.key == labels::TENANT);
        self.labels()
            .iter()
            .all(|(key, value)| node.labels().get(*key) == value.as_ref())
            && self
                .annotations()
                .iter()
                .all(|(key, value)| node.annotations().get(*key) == value.as_ref())
            && tenant_taints
                .next()
                .is_some_and(|found| found.value == taint.value && found.effect == taint.effect)
            && tenant_taints.next().is_none()
            && (!self.state.is_cordoned() || is_unschedulable(node))
    }

    /// The merge patch that writes the record on a node as it is now, with further labels.
    pub fn patch(&self, node: &Node, more: &[(String, Option<String>)]) -> Value {
        let mut taints = other_taints(node);
        taints.push(self.taint());
        let owned = |(key, value): (&str, Option<String>)| (key.to_owned(), json!(value));
        let mut all_labels: Map<String, Value> = self.labels().into_iter().map(owned).collect();
        all_labels.extend(more.iter().map(|(key, value)| (key.clone(), json!(value))));
        let mut annotations: Map<String, Value> = self.annotations().into_iter().map(owned).collect();
        annotations.insert(labels::RELEASE_QUARANTINE.into(), Value::Null);
        let mut spec = json!({ "taints": taints });
        cordon(node, self.state.is_cordoned(), &mut annotations, &mut spec);
        json!({
            "metadata": {
                "resourceVersion": node.resource_version(), "labels": all_labels, "annotations": annotations,
            },
            "spec": spec,
        })
    }
}

/// The merge patch that takes the record off a node: it is free.
pub fn free_patch(node: &Node) -> Value {
    const LABELS: [&str; 4] = [labels::TENANT, labels::NODE_STATE, labels::NODE_GROUP, labels::POOL];
    const ANNOTATIONS: [&str; 12] = [
        labels::OWNER_UID,
        labels::NODE_STATE,
        labels::STATE_SINCE,
        labels::OWNED_SINCE,
        labels::REASON,
        labels::RESERVED_WITH,
        labels::CORDONED_UNTIL,
        labels::PREVIOUS_TENANT,
        labels::HANDOVER_ID,
        labels::QUARANTINE,
        labels::RELEASE_QUARANTINE,
        labels::IDLE_SINCE,
    ];
    let gone =
        |keys: &[&str]| -> Map<String, Value> { keys.iter().map(|key| ((*key).to_owned(), Value::Null)).collect() };
    let mut annotations = gone(&ANNOTATIONS);
    let mut spec = json!({ "taints": other_taints(node) });
    cordon(node, false, &mut annotations, &mut spec);
    json!({
        "metadata": {
            "resourceVersion": node.resource_version(), "labels": gone(&LABELS), "annotations": annotations,
        },
        "spec": spec,
    })
}

/// Cordons the node or takes Berth's cordon off. One that people set stays.
fn cordon(node: &Node, wanted: bool, annotations: &mut Map<String, Value>, spec: &mut Value) {
    const BERTH: &str = "berth";
    const PEOPLE: &str = "people";
    let whose = node.annotations().get(labels::CORDON).map(String::as_str);
    let is_cordoned = is_unschedulable(node);
    if wanted {
        if whose.is_none() {
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

fn taints(node: &Node) -> &[Taint] {
    node.spec
        .as_ref()
        .and_then(|spec| spec.taints.as_deref())
        .unwrap_or_default()
}

fn other_taints(node: &Node) -> Vec<Taint> {
    taints(node)
        .iter()
        .filter(|taint| taint.key != labels::TENANT)
        .cloned()
        .collect()
}

fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
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
    is_ready(node)
        && !is_kept(node)
        && node.metadata.deletion_timestamp.is_none()
        && !is_unschedulable(node)
        && !other_taints(node).iter().any(|taint| taint.effect == "NoExecute")
}

#[cfg(test)]
#[path = "record_tests.rs"]
pub(crate) mod tests;
