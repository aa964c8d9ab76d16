//! Nobody's: Scrubbing, Validating and Quarantined.

use super::{
    Facts, JobKind, JobState, Next, POLL,
    gpus::{NO_MIG, await_mig, forget_mig},
    into, quarantine,
};
use crate::nodes::record::{State, is_ready};
use berth_api::{HostNodePoolSpec, ScrubPolicy, labels};
use kube::ResourceExt;

/// How much longer than the Job itself control waits for one that does not end.
const JOB_MARGIN: i64 = 30;

/// Whether the pool's nodes are cleaned at all.
pub(super) fn scrubs(pool: &HostNodePoolSpec) -> bool {
    pool.scrub.policy == ScrubPolicy::Always
}

pub(super) fn scrubbing(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    let limit = pool.timeouts.scrub();
    // A Job that has ended well is as good when control was away for longer than the limit.
    let is_done = facts.job == JobState::Succeeded && facts.pods.is_empty();
    if !is_done && record.elapsed(*now) >= limit + JOB_MARGIN {
        return quarantine(facts, &overdue(facts, "cleaning", limit));
    }
    if !facts.pods.is_empty() {
        if facts.job == JobState::Missing {
            return Next::DeletePods;
        }
        // The scheduler may be late. What was cleaned already could be dirty again.
        let reason = "a pod of a tenant came while the node was cleaned: it is cleaned anew";
        return into(record.to_scrubbing(facts.node, *now, reason));
    }
    if pool.mig_config().is_some()
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

pub(super) fn validating(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    let limit = pool.timeouts.validate();
    if !facts.pods.is_empty() {
        // Nobody can tell what it did meanwhile.
        let reason = "a pod of a tenant came while the node was checked: it is cleaned anew";
        return into(record.to_scrubbing(facts.node, *now, reason));
    }
    if facts.job != JobState::Succeeded && record.elapsed(*now) >= limit + JOB_MARGIN {
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
    let resource = facts.pool.gpu_resource_name.as_ref()?;
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

pub(super) fn quarantined(facts: &Facts<'_>) -> Next {
    if !facts.node.annotations().contains_key(labels::RELEASE_QUARANTINE) {
        return Next::Stay;
    }
    let why = "released from quarantine by people";
    let record = facts.record.to_scrubbing(facts.node, facts.now, why);
    // A layout that could not be set is asked for anew: the MIG manager does nothing as long as the label stays the same.
    let asked_anew = if facts.pool.mig_config().is_some() {
        forget_mig()
    } else {
        Vec::new()
    };
    Next::Become(Box::new(record), asked_anew)
}
