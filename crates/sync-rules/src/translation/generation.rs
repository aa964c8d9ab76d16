//! The generation that controllers have observed: in statuses that come from the host it is that of the tenant's object.

use super::conditions;
use crate::model::{Observation, json};
use serde_json::Value;

/// Replaces the host's `observedGeneration` in a status, or in a condition of it, by the tenant's: the current generation once the host has
/// the current spec and its controllers have observed that. Until then it stays as it was `before`, if there was one.
pub fn put_observed_generation(observation: &Observation<'_>, before: Option<&Value>, on_host: &mut Value) {
    let Some(fields) = on_host.as_object_mut() else {
        return;
    };
    let Some(observed) = fields.remove("observedGeneration") else {
        return;
    };
    let latest = observation.host["metadata"]["generation"].as_i64();
    // An object without a generation counts as observed.
    let is_current = observation.in_sync && latest.is_none_or(|latest| observed.as_i64() >= Some(latest));
    let generation = if is_current {
        json::at(observation.tenant, &["metadata", "generation"])
    } else {
        before.and_then(|before| before.get("observedGeneration"))
    };
    if let Some(generation) = generation {
        fields.insert("observedGeneration".into(), generation.clone());
    }
}

/// A status of the host with the tenant's generation in place of the host's. `before` is the tenant's; see [`put_observed_generation`].
pub fn with_tenant_generation(observation: &Observation<'_>, before: &Value, mut status: Value) -> Value {
    put_observed_generation(observation, Some(before), &mut status);
    let conditions = status.get_mut("conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten() {
        let known = conditions::condition(before, json::text(condition, &["type"]).unwrap_or_default());
        put_observed_generation(observation, known, condition);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_generation_counts_as_observed_once_the_controllers_of_the_host_have_observed_it() {
        let tenant = json!({"metadata": {"generation": 3}});
        let before = json!({"observedGeneration": 2, "conditions": [{"type": "Ready", "observedGeneration": 1}]});
        let status = |latest: Option<i64>, in_sync| {
            let observation = Observation {
                tenant: &tenant,
                host: &json!({"metadata": {"generation": latest}}),
                in_sync,
                denied: &[],
                now: jiff::Timestamp::UNIX_EPOCH,
            };
            let ready = json!({"type": "Ready", "observedGeneration": 7});
            let on_host = json!({"observedGeneration": 8, "conditions": [ready, {"type": "New", "observedGeneration": 7}, {"type": "None"}]});
            let status = with_tenant_generation(&observation, &before, on_host);
            let conditions = json::items(&status, &["conditions"]).iter();
            std::iter::once(&status)
                .chain(conditions)
                .map(|part| part["observedGeneration"].as_i64())
                .collect::<Vec<_>>()
        };
        assert_eq!(status(Some(9), true), [Some(2), Some(1), None, None]);
        assert_eq!(status(Some(8), true), [Some(3), Some(1), None, None]);
        assert_eq!(status(Some(7), true), [Some(3), Some(3), Some(3), None]);
        assert_eq!(status(None, true), [Some(3), Some(3), Some(3), None]);
        assert_eq!(status(Some(7), false), [Some(2), Some(1), None, None]);
    }
}
