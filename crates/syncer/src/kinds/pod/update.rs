//! What may change of a pod that is on the host.
//!
//! | field | way |
//! |---|---|
//! | labels, annotations | apply |
//! | images, activeDeadlineSeconds, tolerations (added only), schedulingGates (removed only) | apply |
//! | nodeSelector, affinity | apply, while there are scheduling gates |
//! | resources of containers | the `resize` subresource |
//! | ephemeral containers | the `ephemeralcontainers` subresource |
//! | everything else | cannot change; whatever the host has there stays |

use crate::{json, kinds::HostWrite};
use serde_json::{Map, Value, json};

/// The changeable part of a host pod, for the hash.
pub fn changeable(pod: &Value) -> Value {
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
    let mut part = json!({
        "labels": pod["metadata"].get("labels"),
        "annotations": pod["metadata"].get("annotations"),
        "images": [of_containers("initContainers", "image"), of_containers("containers", "image")],
        "resources": [of_containers("initContainers", "resources"), of_containers("containers", "resources")],
        "activeDeadlineSeconds": spec.get("activeDeadlineSeconds"),
        "tolerations": spec.get("tolerations"),
        "schedulingGates": spec.get("schedulingGates"),
        "ephemeralContainers": spec.get("ephemeralContainers"),
    });
    if !json::items(spec, &["schedulingGates"]).is_empty() {
        part["nodeSelector"] = spec["nodeSelector"].clone();
        part["affinity"] = spec.get("affinity").cloned().unwrap_or_default();
    }
    part
}

/// Ephemeral containers can only be added to a pod that exists.
pub fn at_creation(mut pod: Value) -> Value {
    if let Some(spec) = pod.get_mut("spec").and_then(Value::as_object_mut) {
        spec.remove("ephemeralContainers");
    }
    pod
}

/// Writes that bring the host pod `live` to `desired`. Subresources come alone: the engine reads the pod again and
/// asks once more.
pub fn update(mut desired: Value, live: &Value) -> Vec<HostWrite> {
    let subresources: Vec<HostWrite> = resize(&desired, live)
        .into_iter()
        .chain(ephemeral(&desired, live))
        .collect();
    if !subresources.is_empty() {
        return subresources;
    }
    // What cannot change is taken from the live pod: it was made by an earlier state of the tenant's services or by an
    // earlier version of these rules, and the host refuses any difference.
    let wanted = desired["spec"].take();
    let mut spec = live["spec"].clone();
    for list in ["initContainers", "containers"] {
        for container in spec.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
            let same = json::items(&wanted, &[list])
                .iter()
                .find(|other| other.get("name") == container.get("name"));
            if let Some(image) = same.and_then(|other| other.get("image")) {
                container["image"] = image.clone();
            }
        }
    }
    if let Some(fields) = spec.as_object_mut() {
        fields.remove("ephemeralContainers");
        let gated = fields
            .get("schedulingGates")
            .is_some_and(|gates| !json::is_unset(gates));
        let from_tenant: &[&str] = if gated {
            &["activeDeadlineSeconds", "schedulingGates", "nodeSelector", "affinity"]
        } else {
            &["activeDeadlineSeconds", "schedulingGates"]
        };
        for field in from_tenant {
            match wanted.get(*field) {
                Some(value) => drop(fields.insert((*field).to_owned(), value.clone())),
                None => drop(fields.remove(*field)),
            }
        }
        let mut tolerations = json::items(&live["spec"], &["tolerations"]).to_vec();
        for toleration in json::items(&wanted, &["tolerations"]) {
            if !tolerations.contains(toleration) {
                tolerations.push(toleration.clone());
            }
        }
        fields.insert("tolerations".into(), tolerations.into());
    }
    desired["spec"] = spec;
    vec![HostWrite::Apply(desired)]
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
                let wanted: Map<String, Value> = ["requests", "limits"]
                    .into_iter()
                    .filter_map(|part| Some((part.to_owned(), container.get("resources")?.get(part)?.clone())))
                    .collect();
                // Only what the tenant names: defaults that the host filled in are the host's.
                let same = wanted.iter().all(|(part, amounts)| {
                    let now = now.get("resources").and_then(|resources| resources.get(part));
                    amounts
                        .as_object()
                        .into_iter()
                        .flatten()
                        .all(|(resource, amount)| now.and_then(|now| now.get(resource)) == Some(amount))
                });
                (!same).then(|| json!({"name": name, "resources": wanted}))
            })
            .collect();
        if !differing.is_empty() {
            patch.insert(list.into(), differing.into());
        }
    }
    (!patch.is_empty()).then(|| HostWrite::Patch {
        subresource: "resize",
        patch: json!({"spec": patch}),
    })
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
    fn an_apply_keeps_what_cannot_change_as_the_host_has_it() {
        let mut live = host("old", "1");
        live["spec"]["containers"]
            .as_array_mut()
            .unwrap()
            .push(json!({"name": "injected", "image": "sidecar"}));
        live["spec"]["tolerations"]
            .as_array_mut()
            .unwrap()
            .push(json!({"key": "host-added"}));
        let mut desired = host("new", "1");
        desired["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "changed later"}]);
        desired["spec"]["tolerations"] = json!([{"key": "more"}]);
        let writes = update(desired, &live);
        let [HostWrite::Apply(applied)] = writes.as_slice() else {
            panic!("{writes:?}")
        };
        assert_eq!(applied["spec"]["containers"][0]["image"], "new");
        assert_eq!(
            applied["spec"]["containers"][0]["env"],
            json!([{"name": "A", "value": "1"}])
        );
        assert_eq!(applied["spec"]["containers"][1]["name"], "injected");
        assert_eq!(
            applied["spec"]["tolerations"],
            json!([{"key": "k"}, {"key": "host-added"}, {"key": "more"}])
        );
    }

    #[test]
    fn resources_and_ephemeral_containers_go_through_their_subresources_first() {
        let live = host("image", "1");
        let mut desired = host("image", "2");
        desired["spec"]["ephemeralContainers"] = json!([{"name": "debug"}]);
        let subresources: Vec<_> = update(desired, &live)
            .into_iter()
            .map(|write| match write {
                HostWrite::Patch { subresource, .. } => subresource,
                HostWrite::Apply(_) => "",
            })
            .collect();
        assert_eq!(subresources, ["resize", "ephemeralcontainers"]);
    }

    #[test]
    fn the_hash_sees_changeable_fields_only() {
        let hash = |pod: &Value| json::hash(&changeable(pod));
        let mut other = host("a", "1");
        other["spec"]["containers"][0]["env"] = json!([]);
        assert_eq!(hash(&host("a", "1")), hash(&other));
        assert_ne!(hash(&host("a", "1")), hash(&host("b", "1")));
        assert_ne!(hash(&host("a", "1")), hash(&host("a", "2")));
    }
}
