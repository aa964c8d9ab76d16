//! Conditions of a pool.

use super::observe::PoolNodes;
use berth_api::{
    HostNodePool, ScrubPolicy,
    conditions::{ConditionUpdate, HEALTHY, NO_KNOWN_RISKS, READY},
    labels,
};
use berth_node_lifecycle::devices::{MOST_BYTES, MOST_SLICES};
use std::collections::BTreeMap;

/// Whether all nodes can be recycled, and what devices they have is known.
pub(super) fn check_health(found: &PoolNodes) -> ConditionUpdate {
    let quarantined = (!found.quarantined.is_empty()).then(|| {
        let message = format!(
            "{}; repair each node, then run: kubectl annotate node NAME {}=yes",
            found.quarantined.join("; "),
            labels::RELEASE_QUARANTINE
        );
        ("Quarantined", message)
    });
    let not_ready = (!found.not_ready.is_empty()).then(|| {
        let message = format!(
            "these nodes are not Ready, and no tenant has them any more: {}; Berth scrubs and validates each once it is Ready. Delete the Node of a machine \
             that does not come back",
            found.not_ready.join(", ")
        );
        ("NodesNotReady", message)
    });
    let unknown = (!found.with_unknown_devices.is_empty()).then(|| {
        let message = format!(
            "more than {MOST_SLICES} ResourceSlices, or more than {} KiB of them, are published for these nodes, and no further tenant gets them: {}; \
             find out who wrote them, and run: kubectl delete resourceslices --field-selector spec.nodeName=NAME",
            MOST_BYTES >> 10,
            found.with_unknown_devices.join(", ")
        );
        ("TooManyResourceSlices", message)
    });
    let problems: Vec<(&'static str, String)> = [quarantined, not_ready, unknown].into_iter().flatten().collect();
    let Some((reason, _)) = problems.first() else {
        return ConditionUpdate::mark_true(HEALTHY, "NoQuarantine", "no node is quarantined");
    };
    let messages: Vec<&str> = problems.iter().map(|(_, message)| message.as_str()).collect();
    ConditionUpdate::mark_false(HEALTHY, reason, messages.join(". "))
}

/// Whether the last validations of its nodes found no risk in their set-up. Nodes of a pool usually have the same ones: what was found is of the first.
pub(super) fn check_risks(pool: &HostNodePool, found: &PoolNodes) -> ConditionUpdate {
    const MOST_RISKS: usize = 8;
    const MOST_NODES: usize = 3;
    let (total, never) = (found.counts.total, found.never_validated);
    if found.risks.is_empty() && never == total {
        let message = if pool.spec.validate.policy == ScrubPolicy::None {
            "nodes are not validated, as spec.validate.policy says".to_owned()
        } else {
            format!(
                "no node was validated yet, which is done after each tenant; to validate a free node, run: kubectl annotate node NAME {}=Scrubbing",
                labels::NODE_STATE
            )
        };
        return ConditionUpdate::mark_unknown(NO_KNOWN_RISKS, "NeverValidated", message);
    }
    if found.risks.is_empty() {
        let message = format!(
            "no node that has passed its validation has a risk; {never} of {total} nodes were not validated yet"
        );
        return ConditionUpdate::mark_true(NO_KNOWN_RISKS, "NoRiskFound", message);
    }
    let describe = |(risk, nodes): (&String, &BTreeMap<String, String>)| {
        let named: Vec<&str> = nodes.keys().take(MOST_NODES).map(String::as_str).collect();
        let what = nodes.values().next().map(String::as_str).unwrap_or_default();
        let more = match nodes.len().saturating_sub(MOST_NODES) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        format!("{risk} on {}{more} ({what})", named.join(", "))
    };
    let described: Vec<String> = found.risks.iter().take(MOST_RISKS).map(describe).collect();
    let message = format!(
        "the last validation of these nodes found what lets tenants, or root on the node, do more than they may: {}; remove the cause, which the next \
         validation of each node confirms, or accept the risk in spec.validate.acceptedRisks",
        described.join("; ")
    );
    ConditionUpdate::mark_false(NO_KNOWN_RISKS, "RisksFound", message)
}

/// Whether the nodes of a pool can be assigned together: they exist, belong to no other pool, have one product, and share GPUs as the spec says.
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
        let message = "no node carries all labels of spec.nodeSelector; label nodes, or correct the selector: kubectl get nodes --show-labels";
        return ConditionUpdate::mark_false(READY, "NoNodes", message);
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
