//! How a pool's nodes are handed out, and how long each step may take.

use crate::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the nodes of a pool are handed out and taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PoolPolicy {
    /// How long a node stays with a tenant at least, unless the tenant gives it back itself [default: 10m].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub minimum_tenure: Option<Span>,
    /// How long a node of a dynamic group must have been without GPU pods before it goes back to the pool [default: 5m].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_after: Option<Span>,
    /// Time between the warning that a borrowed node is taken back and the eviction of its pods: time for a checkpoint
    /// [default: 5m].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_grace: Option<Span>,
    /// In which order tenants that wait are served, after guarantees and priorities.
    #[serde(default)]
    pub order: PoolOrder,
}

impl PoolPolicy {
    /// [`PoolPolicy::minimum_tenure`] in seconds.
    pub fn minimum_tenure(&self) -> i64 {
        self.minimum_tenure.as_ref().map_or(600, Span::seconds)
    }

    /// [`PoolPolicy::idle_after`] in seconds.
    pub fn idle_after(&self) -> i64 {
        self.idle_after.as_ref().map_or(300, Span::seconds)
    }

    /// [`PoolPolicy::reclaim_grace`] in seconds.
    pub fn reclaim_grace(&self) -> i64 {
        self.reclaim_grace.as_ref().map_or(300, Span::seconds)
    }
}

/// In which order tenants that wait for nodes of a pool are served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PoolOrder {
    /// Whoever has the least of its fair share first.
    #[default]
    FairShare,
    /// Whoever waits longest first.
    Fifo,
}

/// How long a node may be in each state of its hand-over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HandoverTimeouts {
    /// How long a node waits for the others that were promised together with it; then the promise is taken back
    /// [default: 1m].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Span>,
    /// How long a node may take to be prepared for its tenant; then it is quarantined [default: 15m].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<Span>,
    /// After how long an Event says which pods keep a node from being emptied. The node stays with its tenant until they
    /// are gone [default: 1h].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<Span>,
    /// How long cleaning a node may take; then it is quarantined [default: 30m].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<Span>,
    /// How long checking a clean node may take; then it is quarantined [default: 15m].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate: Option<Span>,
}

impl HandoverTimeouts {
    /// [`HandoverTimeouts::reserve`] in seconds.
    pub fn reserve(&self) -> i64 {
        self.reserve.as_ref().map_or(60, Span::seconds)
    }

    /// [`HandoverTimeouts::join`] in seconds.
    pub fn join(&self) -> i64 {
        self.join.as_ref().map_or(15 * 60, Span::seconds)
    }

    /// [`HandoverTimeouts::drain`] in seconds.
    pub fn drain(&self) -> i64 {
        self.drain.as_ref().map_or(60 * 60, Span::seconds)
    }

    /// [`HandoverTimeouts::scrub`] in seconds.
    pub fn scrub(&self) -> i64 {
        self.scrub.as_ref().map_or(30 * 60, Span::seconds)
    }

    /// [`HandoverTimeouts::validate`] in seconds.
    pub fn validate(&self) -> i64 {
        self.validate.as_ref().map_or(15 * 60, Span::seconds)
    }
}
