//! Volumes.
//!
//! | source | rule |
//! |---|---|
//! | configMap, secret | renamed; the object is synced because it is referenced |
//! | emptyDir, image | copied |
//! | downwardAPI | metadata by annotations, see `downward` |
//! | projected | configMap, secret and downwardAPI as above; serviceAccountToken from the pod's token Secret |
//! | persistentVolumeClaim, ephemeral, csi | see `volume_claims` |
//! | everything else | refused: it reaches the node or the platform's network |

use super::{
    downward,
    tables::{DOWNWARD, EMPTY_DIR, FILES, IMAGE, PROJECTED, PROJECTION, TOKEN},
    volume_claims,
};
use crate::{
    json,
    kinds::fields::{self, Fields, Findings, Rule},
    resource::{KindId, Name, host_name},
    world::World,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const FORBIDDEN: &str = "volumes must not reach the node or the platform's network";

/// The rules of `Volume`.
pub const VOLUME: Fields = &[
    ("awsElasticBlockStore", Rule::Refuse(FORBIDDEN)),
    ("azureDisk", Rule::Refuse(FORBIDDEN)),
    ("azureFile", Rule::Refuse(FORBIDDEN)),
    ("cephfs", Rule::Refuse(FORBIDDEN)),
    ("cinder", Rule::Refuse(FORBIDDEN)),
    ("configMap", Rule::Rewrite),
    ("csi", Rule::Rewrite),
    ("downwardAPI", Rule::Rewrite),
    ("emptyDir", Rule::Within(EMPTY_DIR)),
    ("ephemeral", Rule::Rewrite),
    ("fc", Rule::Refuse(FORBIDDEN)),
    ("flexVolume", Rule::Refuse(FORBIDDEN)),
    ("flocker", Rule::Refuse(FORBIDDEN)),
    ("gcePersistentDisk", Rule::Refuse(FORBIDDEN)),
    ("gitRepo", Rule::Refuse(FORBIDDEN)),
    ("glusterfs", Rule::Refuse(FORBIDDEN)),
    ("hostPath", Rule::Refuse(FORBIDDEN)),
    ("image", Rule::Within(IMAGE)),
    ("iscsi", Rule::Refuse(FORBIDDEN)),
    ("name", Rule::Copy),
    ("nfs", Rule::Refuse(FORBIDDEN)),
    ("persistentVolumeClaim", Rule::Rewrite),
    ("photonPersistentDisk", Rule::Refuse(FORBIDDEN)),
    ("portworxVolume", Rule::Refuse(FORBIDDEN)),
    ("projected", Rule::Rewrite),
    ("quobyte", Rule::Refuse(FORBIDDEN)),
    ("rbd", Rule::Refuse(FORBIDDEN)),
    ("scaleIO", Rule::Refuse(FORBIDDEN)),
    ("secret", Rule::Rewrite),
    ("storageos", Rule::Refuse(FORBIDDEN)),
    ("vsphereVolume", Rule::Refuse(FORBIDDEN)),
];

/// The host pod's volumes. Fields that downward API volumes read are added to `downward`.
pub fn translate(
    world: &World,
    name: &Name,
    pod: &Value,
    downward: &mut BTreeSet<String>,
    findings: &mut Findings,
) -> Vec<Value> {
    let volumes = json::items(pod, &["spec", "volumes"]);
    volumes
        .iter()
        .enumerate()
        .map(|(index, volume)| {
            let path = format!("spec.volumes[{index}]");
            let mut translated = Value::Object(fields::copy(volume, &path, VOLUME, findings));
            for (source, value) in volume.as_object().into_iter().flatten() {
                let path = format!("{path}.{source}");
                match source.as_str() {
                    _ if value.is_null() => {}
                    "configMap" => {
                        translated[source] = renamed(name, (KindId::ConfigMap, "name"), value, &path, findings);
                    }
                    "secret" => {
                        translated[source] = renamed(name, (KindId::Secret, "secretName"), value, &path, findings);
                    }
                    "downwardAPI" => translated[source] = downward_api(value, &path, downward, findings),
                    "projected" => {
                        translated[source] = projected(name, index, value, &path, downward, findings);
                    }
                    "persistentVolumeClaim" => translated[source] = volume_claims::claim(name, value, &path, findings),
                    "ephemeral" => {
                        translated["persistentVolumeClaim"] =
                            volume_claims::ephemeral_claim(world, name, pod, volume, &path, findings);
                    }
                    "csi" => translated[source] = volume_claims::inline(world, name, value, &path, findings),
                    _ => {}
                }
            }
            translated
        })
        .collect()
}

/// A reference to an object with the name of the host object in its field `field`.
fn renamed(pod: &Name, (kind, field): (KindId, &str), source: &Value, path: &str, findings: &mut Findings) -> Value {
    let mut renamed = fields::copy(source, path, FILES, findings);
    let name = json::text(source, &[field]).unwrap_or_default();
    let host = host_name(kind, &Name::new(&pod.namespace, name));
    renamed.insert(field.into(), host.into());
    renamed.into()
}

fn downward_api(source: &Value, path: &str, downward: &mut BTreeSet<String>, findings: &mut Findings) -> Value {
    let mut translated = fields::within(source, path, DOWNWARD, findings);
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
    name: &Name,
    volume: usize,
    value: &Value,
    path: &str,
    downward: &mut BTreeSet<String>,
    findings: &mut Findings,
) -> Value {
    let mut translated = fields::within(value, path, PROJECTED, findings);
    let mut sources = Vec::new();
    for (index, source) in json::items(value, &["sources"]).iter().enumerate() {
        let path = format!("{path}.sources[{index}]");
        fields::copy(source, &path, PROJECTION, findings);
        for (kind, value) in source.as_object().into_iter().flatten() {
            let path = format!("{path}.{kind}");
            let object = match kind.as_str() {
                _ if value.is_null() => continue,
                "configMap" => renamed(name, (KindId::ConfigMap, "name"), value, &path, findings),
                "secret" => renamed(name, (KindId::Secret, "name"), value, &path, findings),
                "downwardAPI" => downward_api(value, &path, downward, findings),
                "serviceAccountToken" => {
                    let mut item = fields::copy(value, &path, TOKEN, findings);
                    item.insert("key".into(), token_key(volume, index).into());
                    let secret = json!({"name": host_name(KindId::PodToken, name), "items": [item]});
                    sources.push(json!({"secret": secret}));
                    continue;
                }
                _ => continue,
            };
            sources.push(json!({kind.as_str(): object}));
        }
    }
    json::set(&mut translated, &["sources"], sources);
    translated
}

/// Key in the pod's token Secret of the token for source `source` of volume `volume`.
pub fn token_key(volume: usize, source: usize) -> String {
    format!("token-{volume}-{source}")
}
