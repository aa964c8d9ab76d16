//! The amounts of devices that pods take by their claims.

use super::{ClaimState, DeviceKind, DeviceRequest, FleetDevices, RequestAlternatives, amount_name};
use crate::demand::{SchedulingState, Workload};
use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

/// The pod for which a claim is counted: one that is on a node, else the one that has waited longest.
pub(super) fn find_claim_holders(
    workloads: &[Arc<Workload>],
    found: &[Vec<(String, ClaimState)>],
) -> HashMap<String, usize> {
    let rank = |index: usize| {
        let workload = &workloads[index];
        let place = match workload.scheduling {
            SchedulingState::Bound(_) => 0,
            SchedulingState::Pending => 1,
            SchedulingState::Gated | SchedulingState::Finished => 2,
        };
        (place, workload.since, workload.name.clone())
    };
    let mut holders: HashMap<String, usize> = HashMap::new();
    for (index, claims) in found.iter().enumerate() {
        for (claim, _) in claims.iter().filter(|(claim, _)| !claim.is_empty()) {
            let holder = holders.entry(claim.clone()).or_insert(index);
            if rank(index) < rank(*holder) {
                *holder = index;
            }
        }
    }
    holders
}

/// Adds the amounts of its claims to a pod. A pod whose claim has devices already, or does not exist yet, is pending without
/// demand for a node.
pub(super) fn add_claim_amounts(
    workload: &mut Workload,
    found: &[(String, ClaimState)],
    fleet_devices: &FleetDevices,
    holds: impl Fn(&str) -> bool,
) {
    let waits = workload.scheduling == SchedulingState::Pending;
    let is_of_gang = workload.gang.as_ref().is_some_and(|gang| gang.size > 1);
    for (name, found) in found {
        let is_counted = name.is_empty() || holds(name);
        let claim = match found {
            ClaimState::Missing if waits => {
                workload.scheduling = SchedulingState::Gated;
                continue;
            }
            ClaimState::Missing => continue,
            ClaimState::Allocated(claim) if waits => {
                let node = claim
                    .allocation
                    .as_ref()
                    .and_then(|allocation| allocation.node.as_ref());
                if node.is_some() {
                    workload.scheduling = SchedulingState::Gated;
                }
                continue;
            }
            // All pods of a gang are counted together, so it does not matter for which of them the claim counts.
            ClaimState::Unallocated(_) if waits && !is_counted && !is_of_gang => {
                workload.scheduling = SchedulingState::Gated;
                continue;
            }
            ClaimState::Allocated(_) | ClaimState::Unallocated(_) if !is_counted => continue,
            ClaimState::Allocated(claim) | ClaimState::Unallocated(claim) => claim,
        };
        for request in &claim.requests {
            let Some((ask, amount)) = choose_alternative(request, fleet_devices) else {
                continue;
            };
            for kind in BTreeSet::from([DeviceKind::whole(&ask.kind.class), fleet_devices.kind(ask)]) {
                let known = workload.amounts.entry(amount_name(&kind)).or_default();
                *known = known.saturating_add(amount);
            }
        }
    }
}

/// The alternative of a request that is used, and how many devices of a node it takes; none if no node owns them.
fn choose_alternative<'c>(
    request: &'c RequestAlternatives,
    fleet_devices: &FleetDevices,
) -> Option<(&'c DeviceRequest, u64)> {
    let got = request.0.iter().find(|ask| ask.held > 0);
    let possible = || request.0.iter().find(|ask| fleet_devices.amount(ask).is_some());
    let ask = got.or_else(possible).or_else(|| request.0.first())?;
    // The number of devices for `All` is known once they are allocated.
    let of_all = (ask.held > 0 && ask.count.is_none()).then_some(ask.held);
    let amount = of_all.or_else(|| fleet_devices.amount(ask)).or(ask.count).unwrap_or(1);
    (amount > 0).then_some((ask, amount))
}
