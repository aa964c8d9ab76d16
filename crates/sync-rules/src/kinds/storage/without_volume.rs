//! Claims on the host that have no volume yet.
//!
//! Every 15 seconds kube-controller-manager looks at each of them, and writes an Event about why it has none: nobody uses it, its pod has no node, or a driver has not made
//! the volume. Of the Events about one claim the first 25 are written, and one every five minutes after that, as long as no more than 4,096 objects of
//! the whole host have Events of this controller.

use crate::model::{Cache, KindId, json, store::Stored};
use jiff::{SignedDuration, Timestamp};
use std::time::Duration;

/// Time between two looks at a claim.
pub const LOOKS_EVERY: Duration = Duration::from_secs(15);
/// Age of a claim of whose Events hardly any are written: it had 25.
const YOUNG: SignedDuration = SignedDuration::from_secs(25 * 15);

/// Number of claims without a volume about which kube-controller-manager writes an Event when it looks at them next, more or less.
pub fn count_events(cache: &Cache, now: Timestamp) -> u64 {
    let is_young = |claim: &Stored| {
        let object = claim.object();
        let made =
            json::text(&object, &["metadata", "creationTimestamp"]).and_then(|time| time.parse::<Timestamp>().ok());
        // One without a time that can be read costs as much as a new one.
        made.is_none_or(|made| now.duration_since(made) < YOUNG)
    };
    let claims = cache.stores.host(KindId::PersistentVolumeClaim).all();
    let waits = claims.iter().filter(|(_, claim)| !claim.has_volume && is_young(claim));
    waits.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kinds::storage::{claim, fixtures},
        model::resource::Name,
    };
    use serde_json::{Value, json};

    fn put(cache: &Cache, name: &str, made: &str, volume: &Value) {
        let mut host = json!({"metadata": {"name": name, "resourceVersion": "1", "creationTimestamp": made},
            "spec": {"storageClassName": "fast", "volumeName": volume}});
        let (_, watched) = claim::KIND.host.unwrap();
        (watched.trim)(&mut host);
        fixtures::put_host(
            cache,
            KindId::PersistentVolumeClaim,
            &Name::new("research", name),
            &host,
        );
    }

    #[test]
    fn claims_cost_events_until_they_have_their_volume_or_had_their_events() {
        let cache = fixtures::cache();
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        put(&cache, "new", "2026-01-01T11:54:00Z", &Value::Null);
        put(&cache, "old", "2026-01-01T11:53:00Z", &json!(""));
        put(&cache, "odd", "once", &Value::Null);
        put(&cache, "bound", "2026-01-01T11:59:00Z", &json!("pvc-1"));
        assert_eq!(count_events(&cache, now), 2);
    }
}
