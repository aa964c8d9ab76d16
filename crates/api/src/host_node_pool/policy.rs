//! How Berth assigns and reclaims a pool's nodes, and how long each state of a node may last.

use crate::KubeDuration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How Berth assigns and reclaims the nodes of a pool.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.reclaim) || self.reclaim != 'FairShare' || !has(self.order) || self.order == 'FairShare'")
    .message("reclaim: FairShare requires order: FairShare; with FIFO, a node would go to another tenant and be reclaimed again")
    .field_path(".reclaim"))]
pub struct PoolPolicy {
    /// Minimum time between the assignment of a node and its reclaim. A tenant may release it earlier. Defaults to 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_hold_duration: Option<KubeDuration>,
    /// Time without GPU pods after which a node of a Dynamic group is released. Defaults to 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<KubeDuration>,
    /// Time between the cordon of a borrowed node that Berth reclaims and the eviction of its pods, for example to write a
    /// checkpoint. Defaults to 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reclaim_grace_period: Option<KubeDuration>,
    /// Order in which Berth assigns nodes to waiting tenants, after nominal quotas and priorities.
    #[serde(default)]
    pub order: PoolOrder,
    /// For which demand Berth reclaims borrowed nodes. Priority: for demand within a nominal quota, and for pods with a higher
    /// priority than those on the node. FairShare: also for a tenant that has less than its fair share, from one that has more.
    /// Never: for none. Nodes beyond a limit that was lowered are reclaimed in any case.
    #[serde(default)]
    pub reclaim: PoolReclaim,
    /// Time for which smaller demand may use free nodes while a gang waits. After that, Berth keeps free nodes for the gang. Defaults
    /// to 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starvation_limit: Option<KubeDuration>,
}

impl PoolPolicy {
    /// [`PoolPolicy::min_hold_duration`] in seconds.
    pub fn min_hold_duration(&self) -> i64 {
        self.min_hold_duration.as_ref().map_or(600, KubeDuration::seconds)
    }

    /// [`PoolPolicy::idle_timeout`] in seconds.
    pub fn idle_timeout(&self) -> i64 {
        self.idle_timeout.as_ref().map_or(300, KubeDuration::seconds)
    }

    /// [`PoolPolicy::reclaim_grace_period`] in seconds.
    pub fn reclaim_grace_period(&self) -> i64 {
        self.reclaim_grace_period.as_ref().map_or(300, KubeDuration::seconds)
    }

    /// [`PoolPolicy::starvation_limit`] in seconds.
    pub fn starvation_limit(&self) -> i64 {
        self.starvation_limit.as_ref().map_or(600, KubeDuration::seconds)
    }
}

/// Order in which Berth assigns the nodes of a pool to waiting tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PoolOrder {
    /// The tenant with the least of its fair share first.
    #[default]
    FairShare,
    /// The tenant that has waited longest first.
    #[serde(rename = "FIFO")]
    Fifo,
}

/// For which demand Berth reclaims borrowed nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PoolReclaim {
    /// For none: a node stays until its tenant no longer needs it.
    Never,
    /// For demand within a nominal quota, and for pods with a higher priority than those on the node.
    #[default]
    Priority,
    /// As Priority, and also for a tenant that has less than its fair share, from one that has more.
    FairShare,
}

/// How long a node may be in each state of its recycling.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RecyclingTimeouts {
    /// Time that a reserved node waits for the other nodes reserved with it. Then Berth cancels the reservation. Defaults to 1m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<KubeDuration>,
    /// Time in which a node must become ready for its tenant. Then it is quarantined. Defaults to 15m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub join: Option<KubeDuration>,
    /// Time in which the pods of a node are evicted as disruption budgets allow. Half of it over, Events warn. Then the pods are
    /// deleted whatever budgets say. Defaults to 1h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<KubeDuration>,
    /// Time that a pod has to end after `drain`, if its own grace period is not shorter. Then it is removed although its
    /// kubelet has not reported its end. Defaults to 10m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminate: Option<KubeDuration>,
    /// Time in which a node must be scrubbed. Then it is quarantined. Defaults to 30m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scrub: Option<KubeDuration>,
    /// Time in which a scrubbed node must be validated. Then it is quarantined. Defaults to 15m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validate: Option<KubeDuration>,
}

impl RecyclingTimeouts {
    /// [`RecyclingTimeouts::reserve`] in seconds.
    pub fn reserve(&self) -> i64 {
        self.reserve.as_ref().map_or(60, KubeDuration::seconds)
    }

    /// [`RecyclingTimeouts::join`] in seconds.
    pub fn join(&self) -> i64 {
        self.join.as_ref().map_or(15 * 60, KubeDuration::seconds)
    }

    /// [`RecyclingTimeouts::drain`] in seconds.
    pub fn drain(&self) -> i64 {
        self.drain.as_ref().map_or(60 * 60, KubeDuration::seconds)
    }

    /// [`RecyclingTimeouts::terminate`] in seconds.
    pub fn terminate(&self) -> i64 {
        self.terminate.as_ref().map_or(10 * 60, KubeDuration::seconds)
    }

    /// [`RecyclingTimeouts::scrub`] in seconds.
    pub fn scrub(&self) -> i64 {
        self.scrub.as_ref().map_or(30 * 60, KubeDuration::seconds)
    }

    /// [`RecyclingTimeouts::validate`] in seconds.
    pub fn validate(&self) -> i64 {
        self.validate.as_ref().map_or(15 * 60, KubeDuration::seconds)
    }
}
