//! Labels and annotations of a host pod: which came from the tenant, and what changes in them.

use crate::model::{HostWrite, json};
use berth_api::{labels, pod_labels};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Labels and annotations that differ. The hash is not among them: the rest has not been written yet.
pub(super) fn changed_metadata(desired: &Value, live: &Value) -> Option<HostWrite> {
    let mut metadata = Map::new();
    for map in ["labels", "annotations"] {
        let mut changes = changed_entries(desired, live, map).unwrap_or_default();
        changes.remove(labels::APPLIED_HASH);
        if !changes.is_empty() {
            metadata.insert(map.into(), changes.into());
        }
    }
    (!metadata.is_empty()).then(|| HostWrite::Patch {
        subresource: "",
        patch: json!({"metadata": metadata}),
    })
}

/// Labels of host pods that open the network.
const OPENING: &[&str] = &[
    labels::NETWORK_API_SERVER,
    labels::NETWORK_DNS,
    labels::NETWORK_EGRESS,
    labels::NETWORK_INGRESS,
];

/// Whether a label of a host pod is the syncer's alone, whatever is on record of it: by these, policies select the pod, and let it connect. One that somebody has
/// set with a stolen credential would otherwise stay for as long as the pod.
fn is_of_syncer(key: &str) -> bool {
    pod_labels::is_host_key(key)
        || key.starts_with(labels::NAMESPACE_LABELS)
        || key == labels::LABELS_LEFT_OUT
        || OPENING.contains(&key)
}

/// A merge patch with the labels by which policies select the pod, without those that open more, and without annotations that are gone in the tenant or
/// that its class no longer allows: nothing in it can be refused.
pub fn closing_patch(desired: &Value, live: &Value) -> Option<Value> {
    let mut of_labels = changed_entries(desired, live, "labels").unwrap_or_default();
    let is_selected_by = |key: &str| labels::is_reserved(key) || pod_labels::OF_CONTROLLERS.contains(&key);
    of_labels.retain(|key, value| is_selected_by(key) && (value.is_null() || !OPENING.contains(&key.as_str())));
    let mut of_annotations = changed_entries(desired, live, "annotations").unwrap_or_default();
    of_annotations.retain(|key, value| value.is_null() && !labels::is_reserved(key));
    let mut metadata = Map::new();
    for (map, changes) in [("labels", of_labels), ("annotations", of_annotations)] {
        if !changes.is_empty() {
            metadata.insert(map.into(), changes.into());
        }
    }
    (!metadata.is_empty()).then(|| json!({ "metadata": metadata }))
}

/// A merge patch that takes labels away that open the network. They return only by a write of the whole pod.
pub fn isolating_patch(desired: &Value, live: &Value) -> Option<Value> {
    let mut changes = changed_entries(desired, live, "labels")?;
    changes.retain(|key, value| value.is_null() && OPENING.contains(&key.as_str()));
    (!changes.is_empty()).then(|| json!({"metadata": {"labels": changes}}))
}

/// What of `desired` decides about [`isolating_patch`]: which of these labels it has.
pub fn isolation(desired: &Value) -> Value {
    let of_pod = &desired["metadata"]["labels"];
    let open: Vec<bool> = OPENING.iter().map(|key| of_pod.get(*key).is_some()).collect();
    open.into()
}

/// The value of [`labels::APPLIED_KEYS`] for a host pod: `labels=a,b;annotations=c;gates=`. Labels with a key of [`pod_labels`] are left out: they are
/// always the tenant's. Host pods that were created by earlier releases may have scheduling gates of the tenant.
pub fn applied_keys(pod: &Value) -> String {
    let keys = |map: &str| {
        json::strings(&pod["metadata"], &[map])
            .into_keys()
            .filter(|key| !pod_labels::is_host_key(key))
            .collect::<Vec<_>>()
            .join(",")
    };
    format!("labels={};annotations={};gates=", keys("labels"), keys("annotations"))
}

/// Whether a host pod has a scheduling gate that came from the tenant.
pub fn has_gates_of_tenant(host: &Value) -> bool {
    let applied = applied(host, "gates");
    let mut gates = json::items(host, &["spec", "schedulingGates"]).iter();
    gates.any(|gate| json::text(gate, &["name"]).is_some_and(|name| applied.contains(name)))
}

/// Keys of one sort that came from the tenant earlier and no longer do, and labels that are [the syncer's alone](is_of_syncer). Values of the downward API are
/// never removed: the fields that need them stay.
fn removed(desired: &Value, live: &Value, sort: &str) -> BTreeSet<String> {
    let kept = applied(desired, sort);
    let mut keys = applied(live, sort);
    if sort == "labels" {
        let wanted = json::strings(desired, &["metadata", "labels"]);
        let of_pod = json::strings(live, &["metadata", "labels"]).into_keys();
        keys.extend(of_pod.filter(|key| is_of_syncer(key) && !wanted.contains_key(key)));
    }
    keys.retain(|key| !kept.contains(key) && !key.starts_with(labels::DOWNWARD_FIELDS));
    keys
}

/// Keys of one sort in [`labels::APPLIED_KEYS`].
fn applied(pod: &Value, sort: &str) -> BTreeSet<String> {
    let list = json::text(pod, &["metadata", "annotations", labels::APPLIED_KEYS]).unwrap_or_default();
    let keys = list
        .split(';')
        .find_map(|part| part.strip_prefix(sort)?.strip_prefix('='));
    keys.unwrap_or_default()
        .split(',')
        .filter(|key| !key.is_empty())
        .map(ToOwned::to_owned)
        .collect()
}

/// Labels or annotations to set, and to remove, as a merge patch.
pub(super) fn changed_entries(desired: &Value, live: &Value, map: &str) -> Option<Map<String, Value>> {
    let now = json::strings(live, &["metadata", map]);
    let mut changes: Map<String, Value> = json::strings(desired, &["metadata", map])
        .into_iter()
        .filter(|(key, value)| now.get(key) != Some(value))
        .map(|(key, value)| (key, value.into()))
        .collect();
    // What is on record may be gone already: the record is written when all is done.
    let removed = removed(desired, live, map).into_iter();
    changes.extend(
        removed
            .filter(|key| now.contains_key(key))
            .map(|key| (key, Value::Null)),
    );
    (!changes.is_empty()).then_some(changes)
}
