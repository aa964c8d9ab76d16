//! What closes a host object although there is no room for the rest: labels by which it would grow need room themselves. A pod may have hundreds of them, and
//! a namespace gives its own to all of its pods.

use super::{host_bytes::BytesInFlight, to_host::ObjectSync};
use berth_sync_rules::model::{json, store::Stored};
use serde_json::Value;
use std::collections::BTreeMap;

/// Bytes of a label in JSON besides its key and value.
const AROUND: usize = 6;
const LABELS: [&str; 2] = ["metadata", "labels"];

impl ObjectSync<'_> {
    /// What of a patch that closes the host object `live` may be written now, with the room that it takes. Labels by which the object would grow are left out
    /// if there is no room for them. None if nothing is left.
    pub(super) fn fit_closing(
        &self,
        host: &Stored,
        mut patch: Value,
        live: &Value,
    ) -> Option<(Value, Option<BytesInFlight<'_>>)> {
        let growing = growing_labels(&patch, live);
        let bytes = growing.values().sum::<usize>() as u64;
        if let Ok(in_flight) = self.engine.reserve_growth(host.bytes.into(), bytes) {
            return Some((patch, Some(in_flight)));
        }
        let metadata = patch["metadata"].as_object_mut()?;
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            labels.retain(|key, _| !growing.contains_key(key));
        }
        metadata.retain(|_, changes| !json::is_unset(changes));
        let is_left = !metadata.is_empty();
        is_left.then_some((patch, None))
    }
}

/// The labels of a patch by which `live` grows, each with the bytes.
fn growing_labels(patch: &Value, live: &Value) -> BTreeMap<String, usize> {
    let present = json::strings(live, &LABELS);
    let changed = json::strings(patch, &LABELS).into_iter();
    changed
        .filter_map(|(key, value)| {
            let added = match present.get(&key) {
                Some(before) => value.len().saturating_sub(before.len()),
                None => key.len() + value.len() + AROUND,
            };
            (added > 0).then_some((key, added))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn labels_that_are_new_or_longer_grow() {
        let live = json!({"metadata": {"labels": {"gone": "g", "longer": "l", "shorter": "long"}}});
        let patch = json!({"metadata": {"labels": {"gone": null, "longer": "long", "shorter": "s", "new": "n"}}});
        let expected = [("longer", 3), ("new", 10)].map(|(key, bytes)| (key.to_owned(), bytes));
        assert_eq!(growing_labels(&patch, &live), expected.into());
        assert!(growing_labels(&json!({"metadata": {"annotations": {"a": null}}}), &live).is_empty());
    }
}
