//! Pods with a required affinity to pods like themselves: they must be in one topology domain.

use super::{
    placement::fits,
    translate::HostNode,
    workload::{HOST, PodAffinity, SchedulingState, Workload},
};
use berth_planner::Amounts;
use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
};

/// Resolves such an affinity of pending pods:
/// - where others like them run, they need nodes of the same domain; if the domain is one node, they need no node,
/// - else, if the domain is one node, the first pod requests the amounts of as many pods as fit on one node,
/// - else they stay unchanged, and are translated together.
///
/// Members of gangs are not changed: a gang itself says whether it needs one domain.
pub(super) fn resolve_affinity<'a>(
    workloads: &[&'a Workload],
    own: &[(&str, &HostNode<'_>, Amounts)],
    nodes: &[&HostNode<'_>],
) -> Vec<Cow<'a, Workload>> {
    let mut running: BTreeMap<&PodAffinity, &str> = BTreeMap::new();
    for workload in workloads {
        if let (Some(affinity), SchedulingState::Bound(node)) = (&workload.affinity, &workload.scheduling) {
            running.entry(affinity).or_insert(node);
        }
    }
    let domain = |affinity: &PodAffinity, node: &str| {
        let (_, node, _) = own.iter().find(|(_, own, _)| own.name == node)?;
        node.labels?.get(&affinity.topology).cloned()
    };
    let mut first: BTreeMap<&PodAffinity, usize> = BTreeMap::new();
    // Their first pod requests as much as one node has: thousands of further ones need not be compared with all nodes.
    let mut full: BTreeSet<&PodAffinity> = BTreeSet::new();
    let mut settled: Vec<Cow<'a, Workload>> = Vec::with_capacity(workloads.len());
    let mut in_order: Vec<&&Workload> = workloads.iter().collect();
    in_order.sort_by_key(|workload| (workload.since, &workload.name));
    for workload in in_order {
        let is_single = workload.scheduling == SchedulingState::Pending && workload.gang.is_none();
        let Some(affinity) = workload.affinity.as_ref().filter(|_| is_single) else {
            settled.push(Cow::Borrowed(workload));
            continue;
        };
        let is_host = affinity.topology == HOST;
        if let Some(node) = running.get(affinity) {
            // Pods that must be on that node have no use for another.
            if let Some(domain) = domain(affinity, node).filter(|_| !is_host) {
                let mut workload = (*workload).clone();
                workload.rules.selector.insert(affinity.topology.clone(), domain);
                workload.affinity = None;
                settled.push(Cow::Owned(workload));
            }
        } else if !is_host {
            settled.push(Cow::Borrowed(workload));
        } else if let Some(first) = first.get(affinity) {
            if full.contains(affinity) {
                continue;
            }
            let first = &mut settled[*first];
            let mut sum = first.amounts.clone();
            for (resource, amount) in &workload.amounts {
                let of_all = sum.entry(resource.clone()).or_default();
                *of_all = of_all.saturating_add(*amount);
            }
            if nodes.iter().any(|node| fits(&node.capacity, &sum)) {
                first.to_mut().amounts = sum;
            } else {
                full.insert(affinity);
            }
        } else {
            first.insert(affinity, settled.len());
            let mut workload = (*workload).clone();
            workload.affinity = None;
            settled.push(Cow::Owned(workload));
        }
    }
    settled
}
