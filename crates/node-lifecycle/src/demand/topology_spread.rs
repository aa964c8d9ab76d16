//! How many pods with a topology spread constraint a node may have.

use super::{
    placement::{fits, subtract},
    translate::{Tenant, allows},
    workload::{SPREAD_PREFIX, SchedulingState, Spread, Workload},
};
use std::collections::HashMap;

/// Pods of one constraint: how many there are, and one of those that are pending.
#[derive(Default)]
struct Kind<'a> {
    count: u64,
    waiting: Option<(&'a Spread, &'a Workload)>,
}

/// The constraints of a tenant, and how many of their pods a node may have.
pub(super) struct SpreadLimits<'a> {
    tenant: &'a Tenant<'a>,
    /// By the selectors of the constraints whose limit has not been computed yet.
    kinds: HashMap<&'a str, Kind<'a>>,
}

impl<'a> SpreadLimits<'a> {
    pub(super) fn new(tenant: &'a Tenant<'a>) -> Self {
        let mut kinds: HashMap<&str, Kind<'_>> = HashMap::new();
        for workload in &tenant.workloads {
            let Some(spread) = &workload.spread else { continue };
            let kind = kinds.entry(&spread.key).or_default();
            match workload.scheduling {
                SchedulingState::Pending => {
                    kind.count += 1;
                    kind.waiting.get_or_insert((spread, workload));
                }
                SchedulingState::Bound(_) => kind.count += 1,
                SchedulingState::Gated | SchedulingState::Finished => {}
            }
        }
        Self { tenant, kinds }
    }

    /// The resource of the constraint of a pod, and how much of it every node has, when the first pod with this constraint asks for it. A
    /// constraint that needs no further node has none.
    pub(super) fn compute(&mut self, pod: &Workload) -> Option<(String, u64)> {
        let key = pod.spread.as_ref()?.key.as_str();
        let kind = self.kinds.remove(key)?;
        let (spread, pod) = kind.waiting?;
        let resource = format!("{SPREAD_PREFIX}{key}");
        // With fewer nodes than the minimum, no node may have more than the skew; beyond that, as many as needed.
        let over_nodes = (spread.min_nodes > 1).then(|| kind.count.div_ceil(spread.min_nodes).max(spread.max_skew));
        let limit = [
            over_nodes,
            limit_while_fewest_is_full(self.tenant, &resource, spread, pod),
        ];
        Some((resource, limit.into_iter().flatten().min()?))
    }
}

/// How many pods a node may have while a node with the fewest has no capacity for another.
fn limit_while_fewest_is_full(tenant: &Tenant<'_>, resource: &str, spread: &Spread, pod: &Workload) -> Option<u64> {
    let own = tenant.own.iter().filter(|(of, node, _)| {
        let mut groups = tenant.groups.iter();
        groups.any(|group| group.name == *of && allows(&pod.rules, group, node))
    });
    let nodes: Vec<(u64, bool)> = own
        .map(|(_, node, used)| {
            let count = used.get(resource).copied().unwrap_or_default();
            (count, fits(&subtract(&node.capacity, used), &pod.amounts))
        })
        .collect();
    let fewest = nodes.iter().map(|(count, _)| *count).min()?;
    let is_full = |(count, has_room): &(u64, bool)| *count == fewest && !has_room;
    nodes.iter().any(is_full).then_some(fewest + spread.max_skew)
}
