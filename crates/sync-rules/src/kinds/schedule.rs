//! Schedules: what control publishes as `TenantSchedule` says which pods may start and run, now and later. Nothing of it is written to the
//! tenant; it decides about pods. What it means is in [`crate::model::schedule`].

use crate::model::{
    Direction, HostNamespace, Kind, QueuePriority,
    resource::{self, Name},
    store::{WatchSpec, own_name},
};
use berth_api::TENANT_SCHEDULE;
use serde_json::Value;

/// The kind.
pub const KIND: Kind = Kind::new(Direction::Schedule)
    .watch_host(
        HostNamespace::ControlPlane,
        WatchSpec::own(resource::TENANT_SCHEDULE).named_by(name),
    )
    // A burst of pods does not delay a stop.
    .with_priority(QueuePriority::High);

/// There is one for a tenant. Others have no meaning.
fn name(schedule: &Value) -> Option<Name> {
    let own = own_name(schedule)?;
    (&*own.name == TENANT_SCHEDULE).then(|| Name::new("", TENANT_SCHEDULE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_the_one_schedule_counts() {
        let named = |text: &str| name(&json!({"metadata": {"name": text, "namespace": "cp"}}));
        assert_eq!(named("schedule"), Some(Name::new("", "schedule")));
        assert_eq!(named("other"), None);
    }
}
