//! Pods that must be in one domain with their kind (required affinity to themselves): pure.

use super::{
    rooms::holds,
    translate::HostNode,
    workload::{HOST, Place, Together, Workload},
};
use berth_planner::Amounts;
use std::{borrow::Cow, collections::BTreeMap};

/// Says of waiting pods with such an affinity what they need:
/// - where others of their kind run, nodes of the same domain; if the domain is one node, none,
/// - else, if the domain is one node, one for as many of them as fit on one: the first asks for all,
/// - else they remain as they are, to be served together.
///
/// Members of gangs are left alone: gangs say themselves whether they need one domain.
pub(super) fn settle<'a>(
    workloads: &[&'a Workload],
    own: &[(&str, &HostNode<'_>, Amounts)],
    nodes: &[&HostNode<'_>],
) -> Vec<Cow<'a, Workload>> {
    let mut running: BTreeMap<&Together, &str> = BTreeMap::new();
    for workload in workloads {
        if let (Some(together), Place::On(node)) = (&workload.together, &workload.place) {
            running.entry(together).or_insert(node);
        }
    }
    let domain = |together: &Together, node: &str| {
        let (_, node, _) = own.iter().find(|(_, own, _)| own.name == node)?;
        node.labels?.get(&together.topology).cloned()
    };
    let mut first: BTreeMap<&Together, usize> = BTreeMap::new();
    let mut settled: Vec<Cow<'a, Workload>> = Vec::with_capacity(workloads.len());
    let mut in_order: Vec<&&Workload> = workloads.iter().collect();
    in_order.sort_by_key(|workload| (workload.since, &workload.name));
    for workload in in_order {
        let alone = workload.place == Place::Waiting && workload.gang.is_none();
        let Some(together) = workload.together.as_ref().filter(|_| alone) else {
            settled.push(Cow::Borrowed(workload));
            continue;
        };
        let is_host = together.topology == HOST;
        if let Some(node) = running.get(together) {
            // No further node helps whoever must be on that one.
            if let Some(domain) = domain(together, node).filter(|_| !is_host) {
                let mut workload = (*workload).clone();
                workload.rules.selector.insert(together.topology.clone(), domain);
                workload.together = None;
                settled.push(Cow::Owned(workload));
            }
        } else if !is_host {
            settled.push(Cow::Borrowed(workload));
        } else if let Some(first) = first.get(together) {
            let first = &mut settled[*first];
            let mut sum = first.amounts.clone();
            for (resource, amount) in &workload.amounts {
                *sum.entry(resource.clone()).or_default() += amount;
            }
            if nodes.iter().any(|node| holds(&node.capacity, &sum)) {
                first.to_mut().amounts = sum;
            }
        } else {
            first.insert(together, settled.len());
            let mut workload = (*workload).clone();
            workload.together = None;
            settled.push(Cow::Owned(workload));
        }
    }
    settled
}
