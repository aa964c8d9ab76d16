//! How many pods that are spread a node may have: pure.

use super::{
    rooms::{holds, left},
    translate::{Tenant, allows},
    workload::{Place, SPREAD, Spread, Workload},
};
use std::collections::BTreeMap;

/// Pods of one kind: how many there are, and one of those that wait.
#[derive(Default)]
struct Kind<'a> {
    count: u64,
    waiting: Option<(&'a Spread, &'a Workload)>,
}

/// The resource of each kind of pods that are spread, and how much of it every node has; of those that need none it says
/// nothing.
pub(super) fn limits(tenant: &Tenant<'_>) -> BTreeMap<String, u64> {
    let mut kinds: BTreeMap<&str, Kind<'_>> = BTreeMap::new();
    for workload in &tenant.workloads {
        let Some(spread) = &workload.spread else { continue };
        let kind = kinds.entry(&spread.key).or_default();
        match workload.place {
            Place::Waiting => {
                kind.count += 1;
                kind.waiting.get_or_insert((spread, workload));
            }
            Place::On(_) => kind.count += 1,
            Place::Held | Place::Done => {}
        }
    }
    let limit = |(key, kind): (&str, Kind<'_>)| {
        let (spread, pod) = kind.waiting?;
        let resource = format!("{SPREAD}{key}");
        // As long as there are fewer nodes than it wants, none may have more than the skew; then as many as it takes.
        let over_nodes = (spread.min_nodes > 1).then(|| kind.count.div_ceil(spread.min_nodes).max(spread.max_skew));
        let limit = [over_nodes, beyond_the_fewest(tenant, &resource, spread, pod)];
        Some((resource, limit.into_iter().flatten().min()?))
    };
    kinds.into_iter().filter_map(limit).collect()
}

/// How many a node may have while one that has the fewest has no room for another.
fn beyond_the_fewest(tenant: &Tenant<'_>, resource: &str, spread: &Spread, pod: &Workload) -> Option<u64> {
    let own = tenant.own.iter().filter(|(of, node, _)| {
        let mut groups = tenant.groups.iter();
        groups.any(|group| group.name == *of && allows(&pod.rules, group, node))
    });
    let nodes: Vec<(u64, bool)> = own
        .map(|(_, node, used)| {
            let count = used.get(resource).copied().unwrap_or_default();
            (count, holds(&left(&node.capacity, used), &pod.amounts))
        })
        .collect();
    let fewest = nodes.iter().map(|(count, _)| *count).min()?;
    let is_full = |(count, has_room): &(u64, bool)| *count == fewest && !has_room;
    nodes.iter().any(is_full).then_some(fewest + spread.max_skew)
}
