//! Volumes.
//!
//! | source | rule |
//! |---|---|
//! | configMap, secret | renamed; the object is synced because it is referenced |
//! | emptyDir, image | copied |
//! | downwardAPI | metadata by annotations, see `downward` |
//! | projected | configMap, secret and downwardAPI as above; all others from the pod's token Secret, for the pod's `fsGroup` alone if it has one |
//! | persistentVolumeClaim, ephemeral, csi | see `volume_claims` |
//! | everything else | denied: it reaches the node or the platform's network |

use super::{
    certificate, downward,
    tables::{CERTIFICATE, DOWNWARD, EMPTY_DIR, FILES, IMAGE, PROJECTED, PROJECTION, TOKEN, TRUST},
    volume_claims,
};
use crate::{
    model::{
        Cache, KindId, json,
        resource::{Name, host_name},
    },
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const FORBIDDEN: &str = "volumes must not reach the node or the platform's network";

/// Mode that kubelets give to tokens and certificates of a pod with an `fsGroup`, whatever the volume says, before they let the group read
/// them. A kubelet also gives them to the user of all containers, which it does not do with a Secret: without a group they keep the
/// volume's mode, so that this user can read them.
const OWNERS_MODE: u32 = 0o600;

/// The rules of `Volume`.
pub const VOLUME: Fields = &[
    ("awsElasticBlockStore", Rule::Deny(FORBIDDEN)),
    ("azureDisk", Rule::Deny(FORBIDDEN)),
    ("azureFile", Rule::Deny(FORBIDDEN)),
    ("cephfs", Rule::Deny(FORBIDDEN)),
    ("cinder", Rule::Deny(FORBIDDEN)),
    ("configMap", Rule::Rewrite),
    ("csi", Rule::Rewrite),
    ("downwardAPI", Rule::Rewrite),
    ("emptyDir", Rule::Within(EMPTY_DIR)),
    ("ephemeral", Rule::Rewrite),
    ("fc", Rule::Deny(FORBIDDEN)),
    ("flexVolume", Rule::Deny(FORBIDDEN)),
    ("flocker", Rule::Deny(FORBIDDEN)),
    ("gcePersistentDisk", Rule::Deny(FORBIDDEN)),
    ("gitRepo", Rule::Deny(FORBIDDEN)),
    ("glusterfs", Rule::Deny(FORBIDDEN)),
    ("hostPath", Rule::Deny(FORBIDDEN)),
    ("image", Rule::Within(IMAGE)),
    ("iscsi", Rule::Deny(FORBIDDEN)),
    ("name", Rule::Copy),
    ("nfs", Rule::Deny(FORBIDDEN)),
    ("persistentVolumeClaim", Rule::Rewrite),
    ("photonPersistentDisk", Rule::Deny(FORBIDDEN)),
    ("portworxVolume", Rule::Deny(FORBIDDEN)),
    ("projected", Rule::Rewrite),
    ("quobyte", Rule::Deny(FORBIDDEN)),
    ("rbd", Rule::Deny(FORBIDDEN)),
    ("scaleIO", Rule::Deny(FORBIDDEN)),
    ("secret", Rule::Rewrite),
    ("storageos", Rule::Deny(FORBIDDEN)),
    ("vsphereVolume", Rule::Deny(FORBIDDEN)),
];

/// The host pod's volumes. Fields that downward API volumes read are added to `downward`.
pub fn translate(
    cache: &Cache,
    name: &Name,
    pod: &Value,
    downward: &mut BTreeSet<String>,
    issues: &mut FieldIssues,
) -> Vec<Value> {
    let volumes = json::items(pod, &["spec", "volumes"]);
    volumes
        .iter()
        .enumerate()
        .map(|(index, volume)| {
            let path = format!("spec.volumes[{index}]");
            let mut translated = Value::Object(fields::copy(volume, &path, VOLUME, issues));
            for (source, value) in volume.as_object().into_iter().flatten() {
                let path = format!("{path}.{source}");
                match source.as_str() {
                    _ if value.is_null() => {}
                    "configMap" => {
                        translated[source] = renamed(name, (KindId::ConfigMap, "name"), value, &path, issues);
                    }
                    "secret" => {
                        translated[source] = renamed(name, (KindId::Secret, "secretName"), value, &path, issues);
                    }
                    "downwardAPI" => translated[source] = downward_api(value, &path, downward, issues),
                    "projected" => {
                        translated[source] = projected((name, pod), index, value, &path, downward, issues);
                    }
                    "persistentVolumeClaim" => {
                        translated[source] = volume_claims::claim(cache, name, value, &path, issues);
                    }
                    "ephemeral" => {
                        translated["persistentVolumeClaim"] =
                            volume_claims::ephemeral_claim(cache, name, pod, volume, &path, issues);
                    }
                    "csi" => translated[source] = volume_claims::inline(cache, name, value, &path, issues),
                    _ => {}
                }
            }
            translated
        })
        .collect()
}

/// A reference to an object with the name of the host object in its field `field`.
fn renamed(pod: &Name, (kind, field): (KindId, &str), source: &Value, path: &str, issues: &mut FieldIssues) -> Value {
    let mut renamed = fields::copy(source, path, FILES, issues);
    let name = json::text(source, &[field]).unwrap_or_default();
    let host = host_name(kind, &Name::new(&pod.namespace, name));
    renamed.insert(field.into(), host.into());
    renamed.into()
}

fn downward_api(source: &Value, path: &str, downward: &mut BTreeSet<String>, issues: &mut FieldIssues) -> Value {
    let mut translated = fields::within(source, path, DOWNWARD, issues);
    for item in translated
        .get_mut("items")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        let Some(field) = json::text(item, &["fieldRef", "fieldPath"]).map(ToOwned::to_owned) else {
            continue;
        };
        if is_tenants(&field) {
            item["fieldRef"]["fieldPath"] = format!("metadata.annotations['{}']", downward::annotation(&field)).into();
            downward.insert(field);
        }
    }
    translated
}

/// Whether the host's kubelet would not know the tenant's value.
fn is_tenants(field: &str) -> bool {
    downward::literal(&Value::Null, field).is_some()
}

fn projected(
    (name, pod): (&Name, &Value),
    volume: usize,
    value: &Value,
    path: &str,
    downward: &mut BTreeSet<String>,
    issues: &mut FieldIssues,
) -> Value {
    let mut translated = fields::within(value, path, PROJECTED, issues);
    let has_group = !json::is_unset(&pod["spec"]["securityContext"]["fsGroup"]);
    let mut sources = Vec::new();
    for (index, source) in json::items(value, &["sources"]).iter().enumerate() {
        let path = format!("{path}.sources[{index}]");
        fields::copy(source, &path, PROJECTION, issues);
        for (kind, value) in source.as_object().into_iter().flatten() {
            let path = format!("{path}.{kind}");
            let object = match kind.as_str() {
                _ if value.is_null() => continue,
                "configMap" => renamed(name, (KindId::ConfigMap, "name"), value, &path, issues),
                "secret" => renamed(name, (KindId::Secret, "name"), value, &path, issues),
                "downwardAPI" => downward_api(value, &path, downward, issues),
                _ => {
                    if let Some(mut items) = items_of_token_secret(kind, value, (volume, index), &path, issues) {
                        if has_group {
                            for item in &mut items {
                                item["mode"] = OWNERS_MODE.into();
                            }
                        }
                        let secret = json!({"name": host_name(KindId::PodToken, name), "items": items});
                        sources.push(json!({"secret": secret}));
                    }
                    continue;
                }
            };
            sources.push(json!({kind.as_str(): object}));
        }
    }
    json::set(&mut translated, &["sources"], sources);
    translated
}

/// The items of the pod's token Secret that a projection becomes; none if it is no such projection.
fn items_of_token_secret(
    kind: &str,
    value: &Value,
    (volume, source): (usize, usize),
    path: &str,
    issues: &mut FieldIssues,
) -> Option<Vec<Value>> {
    let in_volume = || json::text(value, &["path"]).unwrap_or_default().to_owned();
    let (fields, files) = match kind {
        "serviceAccountToken" => (TOKEN, vec![(token_key(volume, source), in_volume())]),
        "clusterTrustBundle" => (TRUST, vec![(trust_key(volume, source), in_volume())]),
        "podCertificate" => (CERTIFICATE, certificate::items(volume, source, value)),
        _ => return None,
    };
    let copied = fields::copy(value, path, fields, issues);
    let item = |(key, path): (String, String)| {
        let mut item = copied.clone();
        item.insert("key".into(), key.into());
        item.insert("path".into(), path.into());
        Value::from(item)
    };
    Some(files.into_iter().map(item).collect())
}

/// Key in the pod's token Secret of the certificates for source `source` of volume `volume`.
pub fn trust_key(volume: usize, source: usize) -> String {
    format!("trust-{volume}-{source}")
}

/// Key in the pod's token Secret of the token for source `source` of volume `volume`.
pub fn token_key(volume: usize, source: usize) -> String {
    format!("token-{volume}-{source}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::tenant::test_tenant, registry};

    #[test]
    fn tokens_of_a_pod_with_a_group_are_for_this_group() {
        let cache = registry::new_cache(test_tenant());
        let modes = |security: Value| {
            let sources = json!([{"serviceAccountToken": {"path": "token"}}, {"secret": {"name": "a", "items": [{"key": "k", "path": "p"}]}}]);
            let pod = json!({"spec": {"securityContext": security, "volumes": [{"name": "v", "projected": {"sources": sources}}]}});
            let name = Name::new("research", "train-0");
            let volumes = translate(&cache, &name, &pod, &mut BTreeSet::new(), &mut FieldIssues::default());
            let sources = json::items(&volumes[0], &["projected", "sources"]);
            sources
                .iter()
                .map(|source| source["secret"]["items"][0]["mode"].as_u64())
                .collect::<Vec<_>>()
        };
        assert_eq!(modes(json!({"fsGroup": 10000})), [Some(0o600), None]);
        assert_eq!(modes(json!({"runAsUser": 1000})), [None, None], "root owns the files");
        assert_eq!(modes(Value::Null), [None, None]);
    }
}
