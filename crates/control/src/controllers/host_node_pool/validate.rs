//! Conditions of a pool.

use super::observe::PoolNodes;
use berth_api::{
    HostNodePool,
    conditions::{ConditionUpdate, HEALTHY, READY},
    labels,
};

/// Whether all nodes can be recycled.
pub(super) fn check_health(quarantined: &[String]) -> ConditionUpdate {
    if quarantined.is_empty() {
        return ConditionUpdate::mark_true(HEALTHY, "NoQuarantine", "no node is quarantined");
    }
    ConditionUpdate::mark_false(
        HEALTHY,
        "Quarantined",
        format!(
            "{}; repair each node, then run: kubectl annotate node NAME {}=yes",
            quarantined.join("; "),
            labels::RELEASE_QUARANTINE
        ),
    )
}

pub(super) fn validate_pool(pool: &HostNodePool, found: &PoolNodes) -> ConditionUpdate {
    let PoolNodes {
        counts,
        products,
        contested,
        sharing,
        ..
    } = found;
    if !contested.is_empty() {
        return ConditionUpdate::mark_false(
            READY,
            "OverlappingPools",
            format!(
                "these nodes match several pools and no tenant gets them: {}; make the nodeSelectors exclude each other",
                contested.join("; ")
            ),
        );
    }
    if counts.total == 0 {
        return ConditionUpdate::mark_false(READY, "NoNodes", "no node carries the labels of spec.nodeSelector");
    }
    if products.len() > 1 {
        let products: Vec<&str> = products.iter().map(String::as_str).collect();
        return ConditionUpdate::mark_false(
            READY,
            "MixedProducts",
            format!(
                "a pool holds one GPU product; add a label to spec.nodeSelector that tells these apart: {}",
                products.join(", ")
            ),
        );
    }
    let expected = pool.spec.sharing.name();
    // Where Berth sets it up, free nodes do not share.
    if !pool.spec.sets_up_sharing() && sharing.iter().any(|found| found != expected) {
        let found: Vec<&str> = sharing.iter().map(String::as_str).collect();
        return ConditionUpdate::mark_false(
            READY,
            "SharingMismatch",
            format!(
                "spec.sharing is {expected} and the nodes' labels say {}; make them match",
                found.join(", ")
            ),
        );
    }
    ConditionUpdate::mark_true(
        READY,
        "Ready",
        format!("{} of {} nodes are free", counts.free, counts.total),
    )
}
