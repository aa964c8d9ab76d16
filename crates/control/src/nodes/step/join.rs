//! On its way to a tenant: Reserved and Joining.

use super::{
    Facts, Next, POLL, Tenant,
    gpus::{await_mig, await_sharing, wanted_labels},
    into, quarantine,
};
use crate::nodes::{
    autoscalers,
    record::{NodeRecord, State, is_ready},
};

pub(super) fn reserved(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    if facts.tenant == Tenant::Gone {
        return Next::Free("the tenant it was promised to is gone".into());
    }
    if let Some(taint) = autoscalers::leaving(facts.node) {
        return Next::Free(removed(taint));
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

/// Why a node that no pod of its tenant was on is given up.
fn removed(taint: &str) -> String {
    format!("an autoscaler is about to remove it (taint {taint})")
}

pub(super) fn joining(facts: &Facts<'_>) -> Next {
    let Facts { record, now, pool, .. } = facts;
    if facts.tenant == Tenant::Gone {
        // No pod of it was ever here; the layout of GPUs is the pool's own.
        return Next::Free("the tenant it was prepared for is gone".into());
    }
    if let Some(taint) = autoscalers::leaving(facts.node) {
        return Next::Free(removed(taint));
    }
    let limit = pool.timeouts.join();
    if let Some(config) = pool.mig_config()
        && let Some(wait) = await_mig(facts, config, limit)
    {
        return wait;
    }
    if let Some(wait) = await_sharing(facts, limit) {
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
