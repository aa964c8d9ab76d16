//! The state machine of a node's hand-over: a pure function from what is known of one node to the one next step.
//!
//! | state | goes on to | when |
//! |---|---|---|
//! | none, shared before | Scrubbing | it is in a pool of single tenants, and no pod of a tenant is left |
//! | Reserved | Joining | its group has as many nodes as were promised together |
//! |  | free | they do not come in time, the tenant is gone, or an autoscaler removes the node |
//! | Joining | Assigned | MIG layout and sharing of GPUs are as the pool wants them |
//! |  | free | the tenant is gone, or an autoscaler removes the node |
//! |  | Quarantined | they fail, or take too long |
//! | Assigned | Cordoned | the planner says so |
//! | Cordoned | Draining | its time has come, or the tenant is gone |
//! | Draining | Scrubbing | no pod of a tenant is left; never before |
//! | Scrubbing | Validating | the Job that cleans it has succeeded |
//! |  | Quarantined | it failed, or took too long |
//! | Validating | free | the Job that checks it has succeeded, and all its GPUs are healthy |
//! |  | Quarantined | it failed, or took too long |
//! | Quarantined | Scrubbing | people say so |
//!
//! Nothing here trusts that an earlier step was carried out: what a state needs is looked at each time.

mod clean;
mod gpus;
mod join;
mod leave;

pub use gpus::{DEVICE_PLUGIN_CONFIG, MIG_CONFIG, MIG_STATE};

use super::record::{NodeRecord, State};
use berth_api::{HostNodePoolSpec, labels};
use clean::{quarantined, scrubbing, validating};
use jiff::Timestamp;
use join::{joining, reserved};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use leave::{cordoned, draining};

/// Pause before looking at something again that nobody tells of.
const POLL: i64 = 1;

/// Which Job of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum JobKind {
    /// Cleans the node.
    Scrub,
    /// Checks it.
    Validate,
}

impl JobKind {
    /// Its name in labels and names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scrub => "scrub",
            Self::Validate => "validate",
        }
    }
}

/// How far a Job is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum JobState {
    /// There is none.
    #[default]
    Missing,
    /// It has not ended.
    Running,
    /// It has done its work.
    Succeeded,
    /// It has not; the words say why.
    Failed(String),
}

/// Whose a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tenant {
    /// Its tenant lives and has this slug.
    Alive(String),
    /// Its tenant is gone or unknown, and so is everything of it.
    Gone,
}

/// What is known of one node.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// The time of the decision.
    pub now: Timestamp,
    /// The node.
    pub node: &'a Node,
    /// Its record.
    pub record: &'a NodeRecord,
    /// Its pool.
    pub pool: &'a HostNodePoolSpec,
    /// Whose it is.
    pub tenant: Tenant,
    /// For a reserved node: whether its group has all the nodes that it waits for.
    pub is_complete_group: bool,
    /// Pods of tenants on the node, asked of the API server, as `namespace/name`. Looked at from Draining on.
    pub pods: &'a [String],
    /// The Job of the node's state, as the API server has it.
    pub job: JobState,
}

/// What happens next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Nothing until something changes.
    Stay,
    /// Nothing for so many seconds, unless something changes.
    Look(i64),
    /// The node gets this record, and these further labels.
    Become(Box<NodeRecord>, Vec<(String, Option<String>)>),
    /// The node gets this record again: somebody took something of it off, or changed it.
    Mend(Box<NodeRecord>),
    /// The node is free.
    Free(String),
    /// The pods on the node are asked to leave.
    Evict,
    /// The pods on the node are deleted: their tenant is gone.
    DeletePods,
    /// A Job is started.
    Start(JobKind),
}

/// The next step of a node.
pub fn next(facts: &Facts<'_>) -> Next {
    if let Some(mended) = mended(facts) {
        return Next::Mend(Box::new(mended));
    }
    match facts.record.state {
        State::Reserved => reserved(facts),
        State::Joining => joining(facts),
        State::Assigned => Next::Stay,
        State::Cordoned => cordoned(facts),
        State::Draining => draining(facts),
        State::Scrubbing => scrubbing(facts),
        State::Validating => validating(facts),
        State::Quarantined => quarantined(facts),
    }
}

/// The next step of a node without a record that several tenants shared and that now belongs to this pool of single tenants.
/// Its pods leave as from a drained node, which [`super::shared`] sees to; `pods` are those that have not.
pub fn after_sharing(now: Timestamp, node: &Node, pool: (&str, &HostNodePoolSpec), pods: &[String]) -> Next {
    let (name, spec) = pool;
    if !pods.is_empty() {
        return Next::Look(POLL);
    }
    if !clean::scrubs(spec) {
        return Next::Free("no pod is left of those who shared it; its pool asks for no cleaning".into());
    }
    let before = node.annotations().get(labels::PREVIOUS_SHARED_POOL);
    let reason = format!(
        "tenants shared it in the pool {}: it is cleaned before one has it alone",
        before.map(String::as_str).unwrap_or_default()
    );
    into(NodeRecord::unclean(node, "", name, now, &reason))
}

fn into(record: NodeRecord) -> Next {
    Next::Become(Box::new(record), Vec::new())
}

/// The record with what somebody took off the node, or changed there; none if all is as it should be.
fn mended(facts: &Facts<'_>) -> Option<NodeRecord> {
    let Facts { record, node, now, .. } = facts;
    let mut mended = record.without_future(*now);
    if let Tenant::Alive(slug) = &facts.tenant
        && record.state.serves()
        && !record.uid.is_empty()
    {
        mended.slug.clone_from(slug);
    }
    if mended.since.is_none() {
        mended.since = Some(*now);
    }
    if matches!(record.state, State::Scrubbing | State::Validating) && record.handover.is_empty() {
        // Whatever ran on the node under the old name proves nothing now.
        mended = mended.to_scrubbing(node, *now, "the name of the hand-over was lost: it begins anew");
    }
    (mended != **record || !mended.is_complete(node)).then_some(mended)
}

fn quarantine(facts: &Facts<'_>, reason: &str) -> Next {
    into(facts.record.to(State::Quarantined, facts.now, reason))
}

#[cfg(test)]
mod tests;
