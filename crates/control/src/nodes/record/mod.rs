//! The record on a Node object of whom it belongs to and how far its hand-over is: reading it, and the patches that write
//! it.
//!
//! Annotations decide; labels and the taint show the same to people, to the scheduler and to kubelets. Anything that is left
//! of a record keeps a node from being free.

mod look;
mod state;
mod write;

pub use look::{is_available, is_ready};
pub use state::State;
pub use write::free_patch;

use berth_api::{
    labels::{self, RECYCLING},
    names,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use look::taints;

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
            labels::RECYCLING_ID,
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
            .filter(|value| *value != RECYCLING)
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
            owned_since: time(labels::ASSIGNED_SINCE),
            reserved_with: annotation(labels::RESERVED_WITH).parse().unwrap_or(1),
            cordoned_until: time(labels::DRAIN_AT),
            handover: annotation(labels::RECYCLING_ID).into(),
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

    /// A node without an owner that is cleaned before anybody has it: it was in use, by `previous` if that is known.
    pub fn unclean(node: &Node, previous: &str, pool: &str, now: Timestamp, reason: &str) -> Self {
        let found = Self {
            slug: previous.into(),
            ..Self::reserved("", "", pool, 1, now, "")
        };
        found.to_scrubbing(node, now, reason)
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

    /// The record without times that are still to come, as they are left by a clock that went back: with these the node would
    /// stay where it is until the clock is there again. Clocks of two controls differ a little.
    #[must_use]
    pub fn without_future(&self, now: Timestamp) -> Self {
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
            // As long as it was to be after its beginning.
            cordoned_until: back(self.cordoned_until, by),
            owned_since: back(self.owned_since, ahead(self.owned_since)),
            ..self.clone()
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
}

#[cfg(test)]
pub(crate) mod tests;
