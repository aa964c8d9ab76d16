//! What decides which branch is served next, and which one gives nodes back first. Branches are compared far more often than what they have changes, so it is
//! kept for each of them, side by side.

use super::Branch;

/// How much of its fair share a branch has; the smallest is served first: GPUs beyond the nominal quota, divided by the weight,
/// then all GPUs, divided by the weight. Both are in one number, which is compared in one step.
pub(super) type Ratio = u128;

/// Where a branch stands among others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    weight: u64,
    /// GPUs beyond its nominal quota.
    borrowed: u64,
    /// Its ratio.
    pub held: Ratio,
    /// Its ratio with the nodes that it loses. Decides when it is served: otherwise a tenant that gives nodes up would be served earlier, and
    /// request them again.
    pub serving_order: Ratio,
}

impl Standing {
    /// That of a branch with what it has now.
    pub fn of(branch: &Branch<'_>) -> Self {
        let ratio = |gpus: u64| {
            let beyond = gpus.saturating_sub(branch.nominal_quota);
            u128::from(divide(beyond, branch.weight)) << 64 | u128::from(divide(gpus, branch.weight))
        };
        let held = ratio(branch.used);
        Self {
            weight: branch.weight,
            borrowed: branch.borrowed(),
            held,
            serving_order: match branch.losing() {
                0 => held,
                losing => ratio(branch.used + losing),
            },
        }
    }

    /// Whether it would still have its nominal quota without `gpus`, which are more than 0.
    pub fn can_give(&self, gpus: u64) -> bool {
        self.borrowed >= gpus
    }

    /// GPUs beyond its nominal quota without `gpus`, divided by its weight.
    pub fn borrowed_ratio_without(&self, gpus: u64) -> u64 {
        divide(self.borrowed.saturating_sub(gpus), self.weight)
    }
}

impl Branch<'_> {
    /// GPUs beyond its nominal quota with those that it loses and `more`, divided by its weight.
    pub(super) fn borrowed_ratio_with(&self, more: u64) -> u64 {
        let gpus = self.used + self.losing() + more;
        divide(gpus.saturating_sub(self.nominal_quota), self.weight)
    }
}

/// Divisions take long, and most tenants have no weight of their own.
fn divide(gpus: u64, weight: u64) -> u64 {
    if weight == 1 {
        gpus * SCALE
    } else {
        gpus * SCALE / weight
    }
}

/// Ratios are whole numbers; this keeps the fractions.
const SCALE: u64 = 1 << 24;
