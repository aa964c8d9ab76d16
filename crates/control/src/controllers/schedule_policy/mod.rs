//! The `SchedulePolicy` controller: says whether a policy can be evaluated and when its state changes, and wakes what depends on it
//! when it is changed.
//!
//! It does not decide what tenants may do: their own reconciles and the plan of the fleet evaluate the policies themselves
//! ([`Schedules`]), each time and from the clock, so that a control that was down has missed nothing.

mod context;
mod hierarchy;
mod pause;
mod schedules;
mod status;
#[cfg(test)]
mod tests;

pub use context::SchedulePolicyContext;
pub(super) use pause::pause_until;
pub use schedules::Schedules;
pub(super) use schedules::{ObservedSchedules, RestrictedPods};

use crate::{error::ReconcileError, key::Key};
use kube::runtime::reflector::ObjectRef;
use std::time::Duration;

/// Reads the policy, and writes its status if that changed.
///
/// # Errors
/// The host refuses or does not answer.
pub async fn reconcile(context: &SchedulePolicyContext, name: &str) -> Result<Option<Duration>, ReconcileError> {
    let policy = context.stores.schedule_policies.get(&ObjectRef::new(name));
    if context.schedules.update(name, policy.as_deref()) {
        wake_dependents(context);
    }
    let Some(policy) = policy else { return Ok(None) };
    let now = context.schedules.now();
    let schedule = context.schedules.read(&policy);
    if let Ok(schedule) = &schedule {
        schedule.keep(now);
    }
    let hierarchy = context.schedules.hierarchy(&context.stores);
    let missing = hierarchy::missing_targets(&context.stores, &hierarchy, &policy.spec.targets);
    let after = status::build(&policy, &schedule, &missing, now);
    status::write(context, &policy, &after).await?;
    let next = schedule
        .ok()
        .and_then(|schedule| schedule.next_change(now).evaluate_again());
    Ok(Some(pause_until(now, next)))
}

/// Reconciles the nodes and all tenants: which ones a policy was for before a change is not known any more.
fn wake_dependents(context: &SchedulePolicyContext) {
    context.queue.add(Key::Fleet);
    for cluster in context.stores.tenants.state() {
        context.queue.add(Key::of_tenant(&cluster));
    }
}
