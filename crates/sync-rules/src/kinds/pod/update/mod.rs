//! What may change in a pod that is on the host.
//!
//! | field | way |
//! |---|---|
//! | labels, annotations | patch, before everything else: policies reach the pod by its labels. Those that came from the tenant are removed when they go there |
//! | images, activeDeadlineSeconds, tolerations (added only) | patch |
//! | resources of containers and of the pod | the `resize` subresource |
//! | ephemeral containers | the `ephemeralcontainers` subresource |
//! | everything else | cannot change; whatever the host has there stays |

mod metadata;
#[cfg(test)]
mod tests;

pub use metadata::{applied_keys, closing_patch, has_gates_of_tenant, isolating_patch, isolation};

use crate::model::{HostWrite, json};
use berth_api::labels;
use metadata::{changed_entries, changed_metadata};
use serde_json::{Map, Value, json};

/// In the spec of a host pod that is reduced, instead of containers: images that are denied, by their fields. They are written nowhere. They are in its
/// hash, which so says of which images it is known that the host pod has others.
pub const DENIED_IMAGES: &str = "deniedImages";
/// Requests that add ephemeral containers, in one try.
const MOST_EPHEMERAL_PATCHES: usize = 8;

/// The changeable part of a host pod, for the hash.
pub fn mutable_part(pod: &Value) -> Value {
    let spec = &pod["spec"];
    let of_containers = |list: &str, field: &str| -> Map<String, Value> {
        json::items(spec, &[list])
            .iter()
            .filter_map(|container| {
                Some((
                    json::text(container, &["name"])?.to_owned(),
                    container.get(field)?.clone(),
                ))
            })
            .collect()
    };
    let mut annotations = pod["metadata"].get("annotations").cloned();
    if let Some(annotations) = annotations.as_mut().and_then(Value::as_object_mut) {
        // They are on record of what was true at creation.
        annotations.remove(labels::PLACEMENT);
        annotations.remove(labels::CREATED_BY);
    }
    let cloned = |field: &str| spec.get(field).cloned().unwrap_or_default();
    let mut part = json::object([
        ("labels", pod["metadata"].get("labels").cloned().unwrap_or_default()),
        ("annotations", annotations.unwrap_or_default()),
        (
            "images",
            [
                of_containers("initContainers", "image"),
                of_containers("containers", "image"),
            ]
            .map(Value::from)
            .to_vec()
            .into(),
        ),
        (
            "resources",
            vec![
                Value::from(of_containers("initContainers", "resources")),
                Value::from(of_containers("containers", "resources")),
                cloned("resources"),
            ]
            .into(),
        ),
        ("activeDeadlineSeconds", cloned("activeDeadlineSeconds")),
        ("tolerations", cloned("tolerations")),
        // It is in the hashes of host pods that exist.
        ("schedulingGates", Value::Null),
        ("ephemeralContainers", cloned("ephemeralContainers")),
    ]);
    if let Some(denied) = spec.get(DENIED_IMAGES) {
        part[DENIED_IMAGES] = denied.clone();
    }
    part
}

/// Ephemeral containers can only be added to a pod that exists.
pub fn object_at_creation(mut pod: Value) -> Value {
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("ephemeralContainers");
    }
    pod
}

/// Writes that bring the host pod `live` to `desired`. Subresources come alone, after labels and annotations, which must not wait for them: a
/// quota may refuse a resize. The engine then reads the pod again and calls this function once more.
pub fn update(desired: &Value, live: &Value) -> Vec<HostWrite> {
    let subresources: Vec<HostWrite> = resize(desired, live)
        .into_iter()
        .chain(ephemeral(desired, live))
        .collect();
    if !subresources.is_empty() {
        return changed_metadata(desired, live)
            .into_iter()
            .chain(subresources)
            .collect();
    }
    vec![HostWrite::Merge(merge_patch(desired, live))]
}

/// What [`update`] writes after subresources, without the hash: it would say that they were written. For a host that refuses one of them.
pub fn rest_of_update(desired: &Value, live: &Value) -> Option<Value> {
    let mut patch = merge_patch(desired, live);
    if let Some(annotations) = patch["metadata"].get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(labels::APPLIED_HASH);
    }
    let changes_something = |part: &Value| part.as_object().is_some_and(|changes| !changes.is_empty());
    let metadata = ["labels", "annotations"].map(|map| &patch["metadata"][map]);
    let is_needed = changes_something(&patch["spec"]) || metadata.into_iter().any(changes_something);
    is_needed.then_some(patch)
}

/// A merge patch with all that differs and needs no subresource.
fn merge_patch(desired: &Value, live: &Value) -> Value {
    let mut patch = json!({"metadata": {}, "spec": {}});
    for map in ["labels", "annotations"] {
        if let Some(changes) = changed_entries(desired, live, map) {
            patch["metadata"][map] = changes.into();
        }
    }
    let (wanted, now) = (&desired["spec"], &live["spec"]);
    for list in ["initContainers", "containers"] {
        if let Some(containers) = with_images(wanted, now, list) {
            patch["spec"][list] = containers;
        }
    }
    if let Some(deadline) = wanted.get("activeDeadlineSeconds")
        && now.get("activeDeadlineSeconds") != Some(deadline)
    {
        patch["spec"]["activeDeadlineSeconds"] = deadline.clone();
    }
    let tolerations = json::items(now, &["tolerations"]);
    let more = json::items(wanted, &["tolerations"])
        .iter()
        .filter(|toleration| !tolerations.contains(toleration));
    let all: Vec<Value> = tolerations.iter().chain(more).cloned().collect();
    if all.len() > tolerations.len() {
        patch["spec"]["tolerations"] = all.into();
    }
    patch
}

/// The live containers with the tenant's images; `None` if they have them. Nothing else of a container can change: it
/// was made by an earlier state of the tenant's services or an earlier version of these rules, and stays as it is.
fn with_images(wanted: &Value, now: &Value, list: &str) -> Option<Value> {
    let mut containers = json::items(now, &[list]).to_vec();
    let mut changed = false;
    for container in &mut containers {
        let same = json::items(wanted, &[list])
            .iter()
            .find(|other| other.get("name") == container.get("name"));
        if let Some(image) = same.and_then(|other| other.get("image"))
            && container.get("image") != Some(image)
        {
            container["image"] = image.clone();
            changed = true;
        }
    }
    changed.then(|| containers.into())
}

/// A patch of the `resize` subresource for containers whose resources differ.
fn resize(desired: &Value, live: &Value) -> Option<HostWrite> {
    let mut patch = Map::new();
    for list in ["initContainers", "containers"] {
        let differing: Vec<Value> = json::items(&desired["spec"], &[list])
            .iter()
            .filter_map(|container| {
                let name = container.get("name")?;
                let now = json::items(&live["spec"], &[list])
                    .iter()
                    .find(|other| other.get("name") == Some(name))?;
                let wanted = changed_resources(container.get("resources")?, now.get("resources"))?;
                Some(json!({"name": name, "resources": wanted}))
            })
            .collect();
        if !differing.is_empty() {
            patch.insert(list.into(), differing.into());
        }
    }
    let of_pod = desired["spec"].get("resources");
    if let Some(wanted) = of_pod.and_then(|wanted| changed_resources(wanted, live["spec"].get("resources"))) {
        patch.insert("resources".into(), wanted.into());
    }
    (!patch.is_empty()).then(|| HostWrite::Patch {
        subresource: "resize",
        patch: json!({"spec": patch}),
    })
}

/// The desired requests and limits; `None` if the host has them. Only what the tenant names counts: defaults that the
/// host filled in are the host's.
fn changed_resources(wanted: &Value, now: Option<&Value>) -> Option<Map<String, Value>> {
    let parts = ["requests", "limits"].into_iter();
    let wanted: Map<String, Value> = parts
        .filter_map(|part| Some((part.to_owned(), wanted.get(part)?.clone())))
        .collect();
    let same = wanted.iter().all(|(part, amounts)| {
        let now = now.and_then(|resources| resources.get(part));
        amounts
            .as_object()
            .into_iter()
            .flatten()
            .all(|(resource, amount)| now.and_then(|now| now.get(resource)) == Some(amount))
    });
    (!same).then_some(wanted)
}

/// Patches of the `ephemeralcontainers` subresource with those that the host pod lacks. A few come alone: nobody can take one out that the host refuses, and
/// it takes none of those that are in the patch with it.
fn ephemeral(desired: &Value, live: &Value) -> Vec<HostWrite> {
    let known = json::items(&live["spec"], &["ephemeralContainers"]);
    let missing: Vec<&Value> = json::items(&desired["spec"], &["ephemeralContainers"])
        .iter()
        .filter(|container| !known.iter().any(|other| other.get("name") == container.get("name")))
        .collect();
    let in_each = missing.len().div_ceil(MOST_EPHEMERAL_PATCHES).max(1);
    let patches = missing.chunks(in_each).map(|containers| HostWrite::Patch {
        subresource: "ephemeralcontainers",
        patch: json!({"spec": {"ephemeralContainers": containers}}),
    });
    patches.collect()
}
