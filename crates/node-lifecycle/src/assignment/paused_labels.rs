//! Labels of a node that are changed while it is scrubbed, so that the platform's own programs leave its GPUs, and what they were before.

use berth_api::labels::{PAUSED_FOR_SCRUB, PAUSED_LABELS};
use k8s_openapi::api::core::v1::Node;
use kube_core::ResourceExt;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The changed labels, as recorded on the node, with their former values. Neither keys nor values of labels can have the separators in them.
pub(super) fn read(node: &Node) -> BTreeMap<String, String> {
    let recorded = node.annotations().get(PAUSED_LABELS).map(String::as_str);
    let entries = recorded.unwrap_or_default().split(',');
    entries
        .filter_map(|entry| entry.split_once('='))
        .map(|(key, former)| (key.to_owned(), former.to_owned()))
        .collect()
}

/// The record of these labels.
pub(super) fn write(paused: &BTreeMap<String, String>) -> String {
    let entries: Vec<String> = paused.iter().map(|(key, former)| format!("{key}={former}")).collect();
    entries.join(",")
}

/// The former values of those labels that are still paused. What somebody else has changed or removed meanwhile stays as it is.
pub(super) fn restored(node: &Node, paused: &BTreeMap<String, String>) -> Map<String, Value> {
    let is_paused = |key: &String| node.labels().get(key).is_some_and(|value| value == PAUSED_FOR_SCRUB);
    let former = |former: &String| {
        if former.is_empty() {
            Value::Null
        } else {
            former.clone().into()
        }
    };
    let still_paused = paused.iter().filter(|(key, _)| is_paused(key));
    still_paused.map(|(key, value)| (key.clone(), former(value))).collect()
}
