//! The state machine of a node's hand-over: a pure function from what is known of one node to the one next step.
//!
//! | state | goes on to | when |
//! |---|---|---|
//! | Reserved | Joining | its group has as many nodes as were promised together |
//! |  | free | they do not come in time, or the tenant is gone |
//! | Joining | Assigned | MIG layout and device plugin configuration are as the pool wants them |
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

use super::record::{NodeRecord, State, is_ready};
use berth_api::{NodePoolSpec, ScrubPolicy, labels};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

/// NVIDIA's label by which a MIG layout is asked for.
pub const MIG_CONFIG: &str = "nvidia.com/mig.config";
/// NVIDIA's label that says how far that is.
pub const MIG_STATE: &str = "nvidia.com/mig.config.state";
/// NVIDIA's label that chooses a configuration of the device plugin.
pub const DEVICE_PLUGIN_CONFIG: &str = "nvidia.com/device-plugin.config";
/// The MIG layout without MIG, of NVIDIA's default configuration.
const NO_MIG: &str = "all-disabled";
/// Pause before looking at something again that nobody tells of.
const POLL: i64 = 1;
/// How much longer than the Job itself control waits for one that does not end.
const JOB_MARGIN: i64 = 30;

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
    pub pool: &'a NodePoolSpec,
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
        return into(mended);
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

fn into(record: NodeRecord) -> Next {
    Next::Become(Box::new(record), Vec::new())
}

/// The record with what somebody took off the node, or changed there; none if all is as it should be.
fn mended(facts: &Facts<'_>) -> Option<NodeRecord> {
    let Facts { record, node, now, .. } = facts;
    let mut mended = (*record).clone();
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

fn reserved(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    if facts.tenant == Tenant::Gone {
        return Next::Free("the tenant it was promised to is gone".into());
    }
    if facts.is_complete_group {
        let joining = record.to(State::Joining, *now, &record.reason);
        return Next::Become(Box::new(joining), wanted_labels(pool));
    }
    let limit = pool.timeouts.reserve();
    if record.elapsed(*now) >= limit {
        return Next::Free(format!(
            "the other nodes that were promised with it did not come within {limit} s"
        ));
    }
    Next::Look(limit - record.elapsed(*now))
}

/// The labels by which the pool's MIG layout and device plugin configuration are asked for.
fn wanted_labels(pool: &NodePoolSpec) -> Vec<(String, Option<String>)> {
    let mut labels = Vec::new();
    if let Some(config) = &pool.device_plugin_config {
        labels.push((DEVICE_PLUGIN_CONFIG.to_owned(), Some(config.clone())));
    }
    if let Some(config) = &pool.mig_config {
        labels.extend(mig_labels(config));
    }
    labels
}

/// Asks for a MIG layout. What was reported of an earlier one is taken off, so that it is not taken for this one's.
fn mig_labels(config: &str) -> [(String, Option<String>); 2] {
    [
        (MIG_CONFIG.to_owned(), Some(config.to_owned())),
        (MIG_STATE.to_owned(), None),
    ]
}

/// How far NVIDIA's MIG manager is with a layout.
enum Mig {
    Done,
    Pending(String),
    Failed,
    NotAsked,
}

fn mig(node: &Node, config: &str) -> Mig {
    let label = |key: &str| node.labels().get(key).map(String::as_str);
    if label(MIG_CONFIG) != Some(config) {
        return Mig::NotAsked;
    }
    match label(MIG_STATE) {
        Some("success") => Mig::Done,
        Some("failed") => Mig::Failed,
        state => Mig::Pending(state.unwrap_or("not begun").to_owned()),
    }
}

/// Waits for a MIG layout; none once it is there.
fn await_mig(facts: &Facts<'_>, config: &str, limit: i64) -> Option<Next> {
    let Facts { record, now, .. } = facts;
    match mig(facts.node, config) {
        Mig::Done => None,
        Mig::NotAsked => Some(Next::Become(Box::new((*record).clone()), mig_labels(config).into())),
        Mig::Failed => Some(quarantine(
            facts,
            &format!("the MIG manager could not set the layout {config}: see its log on the node"),
        )),
        Mig::Pending(state) if record.elapsed(*now) >= limit => Some(quarantine(
            facts,
            &format!("the MIG manager has not set the layout {config} within {limit} s ({MIG_STATE}: {state})"),
        )),
        Mig::Pending(_) => Some(Next::Look((limit - record.elapsed(*now)).max(POLL))),
    }
}

fn joining(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    if facts.tenant == Tenant::Gone {
        // No pod of it was ever here; the layout of GPUs is the pool's own.
        return Next::Free("the tenant it was prepared for is gone".into());
    }
    let limit = pool.timeouts.join();
    if let Some(config) = &pool.mig_config
        && let Some(wait) = await_mig(facts, config, limit)
    {
        return wait;
    }
    if !is_ready(facts.node) {
        if record.elapsed(*now) >= limit {
            return quarantine(facts, &format!("the node was not Ready again within {limit} s"));
        }
        return Next::Look((limit - record.elapsed(*now)).max(POLL));
    }
    let assigned = NodeRecord {
        slug: match &facts.tenant {
            Tenant::Alive(slug) => slug.clone(),
            Tenant::Gone => String::new(),
        },
        ..record.to(State::Assigned, *now, &record.reason)
    };
    into(assigned)
}

fn cordoned(facts: &Facts<'_>) -> Next {
    let Facts { record, now, .. } = facts;
    let left = record
        .cordoned_until
        .map_or(0, |until| until.as_second() - now.as_second());
    if facts.tenant == Tenant::Gone || left <= 0 {
        return into(record.to(State::Draining, *now, &record.reason));
    }
    Next::Look(left)
}

fn draining(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    if facts.pods.is_empty() {
        if !scrubs(pool) {
            return Next::Free("no pod is left; its pool asks for no cleaning".into());
        }
        return into(record.to_scrubbing(facts.node, *now, &record.reason));
    }
    let limit = pool.timeouts.drain();
    if record.elapsed(*now) >= limit {
        let blocked = blocked(facts.pods, limit);
        if record.reason != blocked {
            // The same state since the same time, with other words.
            return into(NodeRecord {
                reason: blocked,
                ..(*record).clone()
            });
        }
    }
    if facts.tenant == Tenant::Gone {
        Next::DeletePods
    } else {
        Next::Evict
    }
}

/// What keeps a node from being emptied.
fn blocked(pods: &[String], limit: i64) -> String {
    const NAMED: usize = 5;
    let mut named = pods.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if pods.len() > NAMED {
        named = format!("{named} and {} more", pods.len() - NAMED);
    }
    format!("still not empty after {limit} s: {named}; a PodDisruptionBudget may forbid their eviction")
}

/// Whether the pool's nodes are cleaned at all.
fn scrubs(pool: &NodePoolSpec) -> bool {
    pool.scrub.policy == ScrubPolicy::Always
}

fn scrubbing(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    let limit = pool.timeouts.scrub();
    if record.elapsed(*now) >= limit + JOB_MARGIN {
        return quarantine(facts, &overdue(facts, "cleaning", limit));
    }
    if !facts.pods.is_empty() {
        return Next::DeletePods;
    }
    if pool.mig_config.is_some()
        && let Some(wait) = await_mig(facts, NO_MIG, limit)
    {
        return wait;
    }
    match &facts.job {
        JobState::Missing => Next::Start(JobKind::Scrub),
        JobState::Running => Next::Look(POLL),
        JobState::Failed(why) => quarantine(facts, &format!("cleaning failed: {why}")),
        JobState::Succeeded => into(record.to(State::Validating, *now, &record.reason)),
    }
}

fn validating(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    let limit = pool.timeouts.validate();
    if !facts.pods.is_empty() {
        // Nobody can tell what it did meanwhile.
        let reason = "a pod of a tenant came while the node was checked: it is cleaned anew";
        return into(record.to_scrubbing(facts.node, *now, reason));
    }
    if record.elapsed(*now) >= limit + JOB_MARGIN {
        return quarantine(facts, &overdue(facts, "checking", limit));
    }
    if pool.validate.policy == ScrubPolicy::Always {
        match &facts.job {
            JobState::Missing => return Next::Start(JobKind::Validate),
            JobState::Running => return Next::Look(POLL),
            JobState::Failed(why) => return quarantine(facts, &format!("the check failed: {why}")),
            JobState::Succeeded => {}
        }
    }
    if let Some(ill) = ill(facts) {
        if record.elapsed(*now) >= limit {
            return quarantine(facts, &format!("{ill}, still after {limit} s"));
        }
        return Next::Look(POLL);
    }
    Next::Free("clean and checked".into())
}

/// What keeps a clean node from being used.
fn ill(facts: &Facts<'_>) -> Option<String> {
    if !is_ready(facts.node) {
        return Some("the node is not Ready".into());
    }
    let resource = facts.pool.resource.as_ref()?;
    let status = facts.node.status.as_ref()?;
    let amount = |all: Option<&std::collections::BTreeMap<String, _>>| -> i64 {
        all.and_then(|all| all.get(resource))
            .and_then(|quantity: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| quantity.0.parse().ok())
            .unwrap_or_default()
    };
    let (all, healthy) = (amount(status.capacity.as_ref()), amount(status.allocatable.as_ref()));
    (healthy < all).then(|| format!("{} of {all} {resource} are not healthy", all - healthy))
}

fn overdue(facts: &Facts<'_>, what: &str, limit: i64) -> String {
    let ready = if is_ready(facts.node) {
        ""
    } else {
        "; the node is not Ready"
    };
    let pods = if facts.pods.is_empty() {
        String::new()
    } else {
        format!("; pods are left: {}", facts.pods.join(", "))
    };
    format!("{what} took longer than {limit} s{ready}{pods}")
}

fn quarantine(facts: &Facts<'_>, reason: &str) -> Next {
    into(facts.record.to(State::Quarantined, facts.now, reason))
}

fn quarantined(facts: &Facts<'_>) -> Next {
    if facts.node.annotations().contains_key(labels::RELEASE_QUARANTINE) {
        return into(
            facts
                .record
                .to_scrubbing(facts.node, facts.now, "released from quarantine by people"),
        );
    }
    Next::Stay
}

#[cfg(test)]
#[path = "step_tests.rs"]
mod tests;
