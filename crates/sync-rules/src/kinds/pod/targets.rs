//! What a pod references.

use super::tables::CONTAINERS;
use crate::model::{KindId, json, references::Target, resource::Name};
use serde_json::Value;
use std::collections::BTreeSet;

/// ConfigMaps, Secrets, claims of volumes and devices and templates of those that a pod references, whether they exist or
/// not.
pub fn targets(pod: &Value) -> BTreeSet<Target> {
    targets_of(pod, &CONTAINERS)
}

/// The same, but for what only ephemeral containers reference: these are added when the pod is on the host, and nobody could take them out of a pod that
/// waits for what they name.
pub fn targets_at_creation(pod: &Value) -> BTreeSet<Target> {
    targets_of(pod, &["initContainers", "containers"])
}

fn targets_of(pod: &Value, lists: &[&str]) -> BTreeSet<Target> {
    let namespace = json::text(pod, &["metadata", "namespace"]).unwrap_or_default();
    let mut found = BTreeSet::new();
    let mut add = |kind, name: Option<&str>| {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            found.insert(Target {
                kind,
                name: Name::new(namespace, name),
            });
        }
    };
    let spec = &pod["spec"];
    for container in lists.iter().flat_map(|list| json::items(spec, &[list])) {
        for variable in json::items(container, &["env"]) {
            add(
                KindId::ConfigMap,
                json::text(variable, &["valueFrom", "configMapKeyRef", "name"]),
            );
            add(
                KindId::Secret,
                json::text(variable, &["valueFrom", "secretKeyRef", "name"]),
            );
        }
        for source in json::items(container, &["envFrom"]) {
            add(KindId::ConfigMap, json::text(source, &["configMapRef", "name"]));
            add(KindId::Secret, json::text(source, &["secretRef", "name"]));
        }
    }
    for volume in json::items(spec, &["volumes"]) {
        add(KindId::ConfigMap, json::text(volume, &["configMap", "name"]));
        add(KindId::Secret, json::text(volume, &["secret", "secretName"]));
        add(
            KindId::Secret,
            json::text(volume, &["csi", "nodePublishSecretRef", "name"]),
        );
        add(
            KindId::PersistentVolumeClaim,
            json::text(volume, &["persistentVolumeClaim", "claimName"]),
        );
        add(
            KindId::PersistentVolumeClaim,
            super::volume_claims::ephemeral(pod, volume).as_deref(),
        );
        for source in json::items(volume, &["projected", "sources"]) {
            add(KindId::ConfigMap, json::text(source, &["configMap", "name"]));
            add(KindId::Secret, json::text(source, &["secret", "name"]));
        }
    }
    for secret in json::items(spec, &["imagePullSecrets"]) {
        add(KindId::Secret, json::text(secret, &["name"]));
    }
    found.extend(super::claims::targets(pod).into_iter().map(|(_, target)| target));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_way_to_reference_is_found() {
        let pod = json!({"metadata": {"namespace": "n", "name": "p"}, "spec": {
            "initContainers": [{"envFrom": [{"configMapRef": {"name": "c1"}}, {"secretRef": {"name": "s1"}}]}],
            "containers": [{"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c2", "key": "k"}}},
                                    {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}}]}],
            "volumes": [{"configMap": {"name": "c3"}}, {"secret": {"secretName": "s3"}},
                        {"projected": {"sources": [{"configMap": {"name": "c4"}}, {"secret": {"name": "s4"}}]}},
                        {"csi": {"driver": "d", "nodePublishSecretRef": {"name": "s6"}}},
                        {"persistentVolumeClaim": {"claimName": "v1"}}, {"name": "scratch", "ephemeral": {}}],
            "imagePullSecrets": [{"name": "s5"}, {}]
        }});
        let names: Vec<_> = targets(&pod)
            .into_iter()
            .map(|target| target.name.name.to_string())
            .collect();
        assert_eq!(
            names,
            [
                "c1",
                "c2",
                "c3",
                "c4",
                "s1",
                "s2",
                "s3",
                "s4",
                "s5",
                "s6",
                "p-scratch",
                "v1"
            ]
        );
    }
}
