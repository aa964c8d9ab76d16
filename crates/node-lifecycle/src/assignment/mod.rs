//! The assignment on a Node object: which tenant has the node, and how far its recycling is. Reading it, and the patches that
//! write it.
//!
//! Annotations decide; labels and the taints show the same to people, to the scheduler and to kubelets. A node that has any part
//! of an assignment is not free.

mod patch;
mod paused_labels;
mod state;

use patch::is_cordon_of_berth;
pub use patch::{clear_assignment_patch, is_cordoned_by_people};
pub use state::AssignmentState;

use crate::node::taints;
use berth_api::{
    labels::{self, RECYCLING},
    names,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// Which tenant has a node, and how far its recycling is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub state: AssignmentState,
    /// UID of the `TenantCluster`; empty if no tenant has the node, or if it is unknown which tenant has it.
    pub uid: String,
    /// The slug of the tenant, or of the previous one.
    pub slug: String,
    /// The tenant's node group.
    pub group: String,
    pub pool: String,
    /// When it entered the state.
    pub since: Option<Timestamp>,
    /// When it began to serve its tenant. In the first state after it has left its tenant, also if its scrub starts again: when it began to serve that one.
    pub owned_since: Option<Timestamp>,
    /// When it left its tenant, in the same states.
    pub left_at: Option<Timestamp>,
    /// How many nodes the group must have before this one joins.
    pub reserved_with: u32,
    /// When its drain begins.
    pub cordoned_until: Option<Timestamp>,
    /// Identifies this recycling, from Scrubbing on.
    pub recycling_id: String,
    /// Why it is in its state.
    pub reason: String,
    /// In Quarantined: since when it is not Ready, if it waits there until it is.
    pub not_ready_since: Option<Timestamp>,
    /// Labels that were changed so that the platform's own programs leave the node's GPUs, and their former values; empty: the node did not have the
    /// label. From Scrubbing on.
    pub paused_labels: BTreeMap<String, String>,
    /// Images of these programs. No container uses them during the scrub, and the programs need them afterwards.
    pub paused_images: BTreeSet<String>,
}

impl Assignment {
    /// Reads a node's assignment; none on a free node.
    pub fn read(node: &Node) -> Option<Self> {
        const TRACES: [&str; 8] = [
            labels::OWNER_UID,
            labels::NODE_STATE,
            labels::PREVIOUS_TENANT,
            labels::RECYCLING_ID,
            labels::QUARANTINE,
            labels::NOT_READY_SINCE,
            labels::RESERVED_WITH,
            labels::PAUSED_LABELS,
        ];
        let label = |key: &str| node.labels().get(key).map(String::as_str).unwrap_or_default();
        let annotation = |key: &str| node.annotations().get(key).map(String::as_str).unwrap_or_default();
        let mut taints = taints(node).iter().filter(|taint| taint.key == labels::TENANT);
        let has_traces = TRACES.iter().any(|key| node.annotations().contains_key(*key))
            || [labels::TENANT, labels::NODE_STATE]
                .iter()
                .any(|key| node.labels().contains_key(*key))
            || taints.clone().next().is_some()
            || is_cordon_of_berth(node);
        if !has_traces {
            return None;
        }
        let uid = annotation(labels::OWNER_UID);
        let tainted = taints
            .find_map(|taint| taint.value.as_deref().filter(|value| *value != RECYCLING))
            .unwrap_or_default();
        let slug = [label(labels::TENANT), tainted, annotation(labels::PREVIOUS_TENANT)]
            .into_iter()
            .find(|slug| !slug.is_empty())
            .unwrap_or_default();
        let said = AssignmentState::parse(annotation(labels::NODE_STATE))
            .or_else(|| AssignmentState::parse(label(labels::NODE_STATE)));
        let state = match said {
            // The tenant is unknown, or the state is lost: pods may run there, and the node is not clean.
            Some(state) if state.has_tenant() && uid.is_empty() => AssignmentState::Draining,
            Some(state) => state,
            None if !uid.is_empty() || !label(labels::TENANT).is_empty() || !tainted.is_empty() => {
                AssignmentState::Draining
            }
            None => AssignmentState::Scrubbing,
        };
        let time = |key: &str| annotation(key).parse::<Timestamp>().ok();
        let owned_since = time(labels::ASSIGNED_SINCE);
        // A control that did not write it has entered the state at that time, and kept nothing in later ones.
        let has_just_left = owned_since.is_some() && !state.has_tenant();
        let left_at = time(labels::LEFT_AT).or_else(|| time(labels::STATE_SINCE).filter(|_| has_just_left));
        Some(Self {
            state,
            uid: if state.has_tenant() { uid.into() } else { String::new() },
            slug: slug.into(),
            group: label(labels::NODE_GROUP).into(),
            pool: label(labels::POOL).into(),
            since: time(labels::STATE_SINCE),
            owned_since,
            left_at,
            reserved_with: annotation(labels::RESERVED_WITH).parse().unwrap_or(1),
            cordoned_until: time(labels::DRAIN_AT),
            recycling_id: annotation(labels::RECYCLING_ID).into(),
            reason: annotation(labels::REASON).into(),
            not_ready_since: time(labels::NOT_READY_SINCE),
            paused_labels: paused_labels::read(node),
            paused_images: paused_labels::read_images(node),
        })
    }

    /// The reservation of a free node.
    pub fn reserved(uid: &str, group: &str, pool: &str, of: u32, now: Timestamp, reason: &str) -> Self {
        Self {
            state: AssignmentState::Reserved,
            uid: uid.into(),
            slug: String::new(),
            group: group.into(),
            pool: pool.into(),
            since: Some(now),
            owned_since: None,
            left_at: None,
            reserved_with: of,
            cordoned_until: None,
            recycling_id: String::new(),
            reason: reason.into(),
            not_ready_since: None,
            paused_labels: BTreeMap::new(),
            paused_images: BTreeSet::new(),
        }
    }

    /// A node without a tenant that is scrubbed before a tenant gets it: it was in use, by `previous` if known.
    pub fn scrub_unowned(node: &Node, previous: &str, pool: &str, now: Timestamp, reason: &str) -> Self {
        let found = Self {
            slug: previous.into(),
            ..Self::reserved("", "", pool, 1, now, "")
        };
        found.start_recycling(node, now, reason)
    }

    /// The same node in another state from `now` on.
    #[must_use]
    pub fn with_state(&self, state: AssignmentState, now: Timestamp, reason: &str) -> Self {
        let leaves = self.state.runs_tenant_pods() && !state.has_tenant();
        // From when to when its tenant had it can be read on the node until it enters another state. It may not be counted yet.
        let is_scrubbed_again = [self.state, state] == [AssignmentState::Scrubbing; 2];
        Self {
            state,
            uid: if state.has_tenant() {
                self.uid.clone()
            } else {
                String::new()
            },
            group: if state.has_tenant() {
                self.group.clone()
            } else {
                String::new()
            },
            reserved_with: 1,
            since: Some(now),
            owned_since: match state {
                AssignmentState::Assigned => self.owned_since.or(Some(now)),
                _ if state.runs_tenant_pods() => self.owned_since,
                _ if leaves || is_scrubbed_again => self.owned_since,
                _ => None,
            },
            left_at: if leaves {
                self.owned_since.and(Some(now))
            } else {
                self.left_at.filter(|_| is_scrubbed_again)
            },
            cordoned_until: None,
            reason: reason.into(),
            not_ready_since: None,
            ..self.clone()
        }
    }

    /// Begins to recycle the node after it left its tenant. The recycling is identified by the version of the node at which
    /// this was decided.
    #[must_use]
    pub fn start_recycling(&self, node: &Node, now: Timestamp, reason: &str) -> Self {
        let version = node.resource_version().unwrap_or_default();
        Self {
            recycling_id: names::hash(&["recycling", &node.uid().unwrap_or_default(), &version]),
            ..self.with_state(AssignmentState::Scrubbing, now, reason)
        }
    }

    /// The assignment without times in the future, which occur after a clock went back: the node would stay in its state until
    /// the clock reaches them. Clocks of two controls differ a little.
    #[must_use]
    pub fn without_future_times(&self, now: Timestamp) -> Self {
        const SKEW: i64 = 30;
        let ahead = |time: Option<Timestamp>| {
            let ahead = time.map_or(0, |time| time.as_second() - now.as_second());
            if ahead > SKEW { ahead } else { 0 }
        };
        let back = |time: Option<Timestamp>, by: i64| {
            time.map(|time| time.checked_sub(SignedDuration::from_secs(by)).unwrap_or(now))
        };
        let by = ahead(self.since);
        Self {
            since: back(self.since, by),
            // It stays cordoned for the decided duration.
            cordoned_until: back(self.cordoned_until, by),
            owned_since: back(self.owned_since, ahead(self.owned_since)),
            left_at: back(self.left_at, ahead(self.left_at)),
            ..self.clone()
        }
    }

    /// How long the node has been in its state, in seconds. Zero if the clock went back or the time is missing.
    pub fn elapsed(&self, now: Timestamp) -> i64 {
        self.since
            .map_or(0, |since| (now.as_second() - since.as_second()).max(0))
    }

    /// Whether the tenant is about to lose the node.
    pub fn is_leaving(&self) -> bool {
        matches!(self.state, AssignmentState::Cordoned | AssignmentState::Draining)
    }
}

#[cfg(test)]
pub(crate) mod tests;
