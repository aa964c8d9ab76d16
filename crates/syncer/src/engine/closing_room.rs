//! What closes a host object although there is no room for the rest: labels by which it would grow need room themselves. A pod may have hundreds of them, and
//! a namespace gives its own to all of its pods. A label whose value becomes longer is taken away meanwhile: with the earlier one, Services would go on to lead
//! to the pod, and policies to open it. The label that says that labels are left out is short and the same for all pods, so it needs no room: without it,
//! policies that ask for the absence of a label would open the pod.

use super::{host_bytes::BytesInFlight, to_host::ObjectSync};
use berth_api::labels;
use berth_sync_rules::model::{json, store::Stored};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Bytes of a label in JSON besides its key and value.
const AROUND: usize = 6;
const LABELS: [&str; 2] = ["metadata", "labels"];

impl ObjectSync<'_> {
    /// What of a patch that closes the host object `live` may be written now, with the room that it takes. If there is no room, there is none in the result:
    /// new labels are left out, and longer ones are taken away. None if nothing is left.
    pub(super) fn fit_closing(
        &self,
        host: &Stored,
        mut patch: Value,
        live: &Value,
    ) -> Option<(Value, Option<BytesInFlight<'_>>)> {
        let growing = growing_labels(&patch, live);
        let bytes = growing.values().sum::<usize>() as u64;
        // It is on the host, also if it is not known how large it is there.
        let known = u64::from(host.bytes).max(1);
        if let Ok(in_flight) = self.engine.reserve_growth(known, bytes) {
            return Some((patch, Some(in_flight)));
        }
        let metadata = patch["metadata"].as_object_mut()?;
        if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
            without_growth(labels, &growing, live);
        }
        metadata.retain(|_, changes| !json::is_unset(changes));
        let is_left = !metadata.is_empty();
        is_left.then_some((patch, None))
    }
}

/// The labels of a patch by which `live` grows, each with the bytes, without [`labels::LABELS_LEFT_OUT`].
fn growing_labels(patch: &Value, live: &Value) -> BTreeMap<String, usize> {
    let present = json::strings(live, &LABELS);
    let changed = json::strings(patch, &LABELS).into_iter();
    changed
        .filter(|(key, _)| key != labels::LABELS_LEFT_OUT)
        .filter_map(|(key, value)| {
            let added = match present.get(&key) {
                Some(before) => value.len().saturating_sub(before.len()),
                None => key.len() + value.len() + AROUND,
            };
            (added > 0).then_some((key, added))
        })
        .collect()
}

/// Leaves those of the labels of a patch out that `live` does not have, and takes the other ones away, of those that are `growing`. If `live` says that labels are
/// left out, it goes on to say so.
fn without_growth(labels: &mut Map<String, Value>, growing: &BTreeMap<String, usize>, live: &Value) {
    let present = json::strings(live, &LABELS);
    labels.retain(|key, _| present.contains_key(key) || !growing.contains_key(key));
    for (_, value) in labels.iter_mut().filter(|(key, _)| growing.contains_key(*key)) {
        *value = Value::Null;
    }
    if labels.get(labels::LABELS_LEFT_OUT).is_some_and(Value::is_null) {
        labels.remove(labels::LABELS_LEFT_OUT);
    }
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
        assert_eq!(growing_labels(&patch, &live), BTreeMap::from(expected));
        assert!(growing_labels(&json!({"metadata": {"annotations": {"a": null}}}), &live).is_empty());
    }

    #[test]
    fn a_label_that_would_be_longer_does_not_keep_its_value() {
        let live = json!({"metadata": {"labels": {"gone": "g", "longer": "l", "shorter": "long"}}});
        let mut patch = json!({"metadata": {"labels": {"gone": null, "longer": "long", "shorter": "s", "new": "n"}}});
        let growing = growing_labels(&patch, &live);
        without_growth(patch["metadata"]["labels"].as_object_mut().unwrap(), &growing, &live);
        let expected = json!({"metadata": {"labels": {"gone": null, "longer": null, "shorter": "s"}}});
        assert_eq!(patch, expected);
    }

    #[test]
    fn that_labels_are_left_out_is_said_without_room() {
        let live = json!({"metadata": {"labels": {"gone": "g"}}});
        let closing = json!({"metadata": {"labels": {"gone": null, labels::LABELS_LEFT_OUT: "true"}}});
        assert!(growing_labels(&closing, &live).is_empty());
        let mut patch = closing.clone();
        patch["metadata"]["labels"]["new"] = "n".into();
        let growing = growing_labels(&patch, &live);
        without_growth(patch["metadata"]["labels"].as_object_mut().unwrap(), &growing, &live);
        assert_eq!(patch, closing);

        let marked = json!({"metadata": {"labels": {labels::LABELS_LEFT_OUT: "true"}}});
        let mut patch = json!({"metadata": {"labels": {labels::LABELS_LEFT_OUT: null, "new": "n"}}});
        let growing = growing_labels(&patch, &marked);
        without_growth(patch["metadata"]["labels"].as_object_mut().unwrap(), &growing, &marked);
        assert_eq!(patch, json!({"metadata": {"labels": {}}}), "until all labels are there");
    }
}
