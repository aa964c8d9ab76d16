//! What may change in a pod that is on the host.
//!
//! | field | way |
//! |---|---|
//! | labels, annotations | patch, before everything else: policies reach the pod by its labels. Those that came from the tenant are removed when they go there |
//! | images, activeDeadlineSeconds, tolerations (added only) | patch |
//! | resources of containers and of the pod | the `resize` subresource |
//! | ephemeral containers | the `ephemeralcontainers` subresource |
//! | everything else | cannot change; whatever the host has there stays |

use crate::model::{HostWrite, json};
use berth_api::{labels, pod_labels};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

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
    json::object([
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
    ])
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
    vec![HostWrite::Merge(patch)]
}

/// Labels and annotations that differ. The hash is not among them: the rest has not been written yet.
fn changed_metadata(desired: &Value, live: &Value) -> Option<HostWrite> {
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

/// A merge patch with the labels by which policies select the pod, without those that open more, and without annotations that are gone in the tenant or
/// that its class no longer allows: nothing in it can be refused.
pub fn closing_patch(desired: &Value, live: &Value) -> Option<Value> {
    let mut of_labels = changed_entries(desired, live, "labels").unwrap_or_default();
    of_labels.retain(|key, value| labels::is_reserved(key) && (value.is_null() || !OPENING.contains(&key.as_str())));
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

/// Keys of one sort that came from the tenant earlier and no longer do. Values of the downward API are never removed: the fields that need them
/// stay.
fn removed(desired: &Value, live: &Value, sort: &str) -> BTreeSet<String> {
    let kept = applied(desired, sort);
    let mut keys = applied(live, sort);
    if sort == "labels" {
        let wanted = json::strings(desired, &["metadata", "labels"]);
        let of_pod = json::strings(live, &["metadata", "labels"]).into_keys();
        keys.extend(of_pod.filter(|key| pod_labels::is_host_key(key) && !wanted.contains_key(key)));
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
fn changed_entries(desired: &Value, live: &Value, map: &str) -> Option<Map<String, Value>> {
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

/// A patch of the `ephemeralcontainers` subresource for those that the host pod lacks.
fn ephemeral(desired: &Value, live: &Value) -> Option<HostWrite> {
    let known = json::items(&live["spec"], &["ephemeralContainers"]);
    let missing: Vec<Value> = json::items(&desired["spec"], &["ephemeralContainers"])
        .iter()
        .filter(|container| !known.iter().any(|other| other.get("name") == container.get("name")))
        .cloned()
        .collect();
    (!missing.is_empty()).then(|| HostWrite::Patch {
        subresource: "ephemeralcontainers",
        patch: json!({"spec": {"ephemeralContainers": missing}}),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(image: &str, cpu: &str) -> Value {
        json!({"metadata": {"labels": {"a": "b"}}, "spec": {
            "containers": [{"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}, "env": [{"name": "A", "value": "1"}]}],
            "tolerations": [{"key": "k"}]
        }})
    }

    #[test]
    fn updates_remove_only_what_came_from_the_tenant() {
        let mut old = host("old", "1");
        old["metadata"]["labels"] = json!({"app": "a", "kept": "k"});
        let mut live = old.clone();
        live["metadata"]["annotations"] = json!({labels::APPLIED_KEYS: applied_keys(&old), "sidecar": "injected"});
        live["metadata"]["labels"]["injected"] = "by-webhook".into();
        live["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "injected", "image": "sidecar"}));
        live["spec"]["tolerations"]
            .as_array_mut()
            .unwrap()
            .push(json!({"key": "host-added"}));
        live["spec"]["schedulingGates"] = json!([{"name": "kueue"}]);
        let mut desired = host("new", "1");
        desired["metadata"]["labels"] = json!({"kept": "k", "new": "n"});
        desired["metadata"]["annotations"] = json!({labels::APPLIED_KEYS: applied_keys(&desired)});
        desired["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "changed later"}]);
        desired["spec"]["tolerations"] = json!([{"key": "more"}]);
        let writes = update(&desired, &live);
        let [HostWrite::Merge(patch)] = writes.as_slice() else {
            panic!("{writes:?}")
        };
        insta::assert_yaml_snapshot!(patch);
    }

    fn open(pod: &mut Value) {
        for key in [labels::NETWORK_EGRESS, labels::NETWORK_INGRESS] {
            pod["metadata"]["labels"][key] = labels::NETWORK_OPEN.into();
        }
        pod["metadata"]["labels"][pod_labels::host_key("app")] = "a".into();
        pod["metadata"]["annotations"] = json!({labels::APPLIED_HASH: "h", "downward.berth.dev/x": "a=b"});
        pod["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(pod).into();
    }

    #[test]
    fn what_closes_a_pod_does_not_wait_for_a_resize() {
        let mut live = host("image", "1");
        open(&mut live);
        let mut desired = host("image", "2");
        open(&mut desired);
        assert!(matches!(
            update(&desired, &live).as_slice(),
            [HostWrite::Patch {
                subresource: "resize",
                ..
            }]
        ));
        let closed = desired["metadata"]["labels"].as_object_mut().unwrap();
        closed.remove(labels::NETWORK_EGRESS);
        desired["metadata"]["annotations"][labels::APPLIED_HASH] = "other".into();
        desired["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&desired).into();
        let writes = update(&desired, &live);
        let [
            HostWrite::Patch { subresource: "", patch },
            HostWrite::Patch {
                subresource: "resize", ..
            },
        ] = writes.as_slice()
        else {
            panic!("{writes:?}")
        };
        assert_eq!(patch["metadata"]["labels"], json!({labels::NETWORK_EGRESS: null}));
        let annotations: Vec<&String> = patch["metadata"]["annotations"].as_object().unwrap().keys().collect();
        assert_eq!(
            annotations,
            [labels::APPLIED_KEYS],
            "the hash is written when all is done"
        );
    }

    #[test]
    fn what_closes_a_pod_can_be_written_alone() {
        let mut live = host("image", "1");
        open(&mut live);
        let mut desired = live.clone();
        assert_eq!(closing_patch(&desired, &live), None);
        desired["metadata"]["labels"] = json!({"listed": "l", labels::NETWORK_DNS: labels::NETWORK_OPEN, labels::NETWORK_INGRESS: labels::NETWORK_OPEN});
        desired["metadata"]["labels"][pod_labels::host_key("tier")] = "t".into();
        desired["metadata"]["annotations"] = json!({"note": "long"});
        desired["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&desired).into();
        let patch = closing_patch(&desired, &live).unwrap();
        let expected = json!({labels::NETWORK_EGRESS: null, (pod_labels::host_key("app")): null, (pod_labels::host_key("tier")): "t"});
        assert_eq!(patch, json!({"metadata": {"labels": expected}}));
    }

    #[test]
    fn annotations_that_are_no_longer_allowed_go_alone() {
        let mut live = host("image", "1");
        live["metadata"]["annotations"] = json!({"example.com/order": "o", "example.com/kept": "k"});
        live["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&live).into();
        live["metadata"]["annotations"]["sidecar"] = "injected".into();
        let mut desired = live.clone();
        desired["metadata"]["annotations"] = json!({"example.com/kept": "longer", "example.com/more": "m"});
        desired["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&desired).into();
        let patch = closing_patch(&desired, &live).unwrap();
        assert_eq!(patch, json!({"metadata": {"annotations": {"example.com/order": null}}}));
        live["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove("example.com/order");
        assert_eq!(closing_patch(&desired, &live), None, "once, whatever is on record");
    }

    #[test]
    fn values_of_the_downward_api_stay_while_they_are_left_out() {
        let mut live = host("image", "1");
        open(&mut live);
        let mut desired = live.clone();
        desired["metadata"]["annotations"] = json!({});
        desired["metadata"]["annotations"][labels::APPLIED_KEYS] = applied_keys(&desired).into();
        let changes = changed_entries(&desired, &live, "annotations").unwrap();
        assert!(
            !changes.keys().any(|key| key.starts_with(labels::DOWNWARD_FIELDS)),
            "{changes:?}"
        );
    }

    #[test]
    fn resources_and_ephemeral_containers_go_through_their_subresources_first() {
        let live = host("image", "1");
        let mut desired = host("image", "2");
        desired["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
        let subresources: Vec<_> = update(&desired, &live)
            .into_iter()
            .map(|write| match write {
                HostWrite::Patch { subresource, .. } => subresource,
                HostWrite::Apply(_) | HostWrite::Merge(_) => "",
            })
            .collect();
        assert_eq!(subresources, ["resize", "ephemeralcontainers"]);
    }

    #[test]
    fn the_hash_covers_mutable_fields_only() {
        let hash = |pod: &Value| json::hash(&mutable_part(pod));
        let mut other = host("a", "1");
        other["spec"]["containers"][0]["env"] = json!([]);
        assert_eq!(hash(&host("a", "1")), hash(&other));
        assert_ne!(hash(&host("a", "1")), hash(&host("b", "1")));
        assert_ne!(hash(&host("a", "1")), hash(&host("a", "2")));
    }
}
