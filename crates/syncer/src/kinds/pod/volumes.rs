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

use super::{downward, volume_claims};
use crate::{
    json,
    kinds::fields::Findings,
    resource::{KindId, Name, host_name},
    world::World,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;

const FORBIDDEN: &str = "volumes must not reach the node or the platform's network";

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
            let mut translated = json!({"name": volume.get("name")});
            for (source, value) in volume
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(field, _)| *field != "name")
            {
                let path = format!("{path}.{source}");
                match source.as_str() {
                    "emptyDir" | "image" => translated[source] = value.clone(),
                    "configMap" => translated[source] = renamed(name, KindId::ConfigMap, "name", value),
                    "secret" => translated[source] = renamed(name, KindId::Secret, "secretName", value),
                    "downwardAPI" => translated[source] = downward_api(value, downward),
                    "projected" => {
                        translated[source] = projected(name, index, value, &path, downward, findings);
                    }
                    "persistentVolumeClaim" => translated[source] = volume_claims::claim(name, value, &path, findings),
                    "ephemeral" => {
                        translated["persistentVolumeClaim"] =
                            volume_claims::ephemeral_claim(world, name, pod, volume, &path, findings);
                    }
                    "csi" => translated[source] = volume_claims::inline(world, name, value, &path, findings),
                    _ if json::is_unset(value) => {}
                    _ => findings.refuse(path, FORBIDDEN),
                }
            }
            translated
        })
        .collect()
}

fn renamed(pod: &Name, kind: KindId, field: &str, source: &Value) -> Value {
    let mut renamed = source.clone();
    let name = json::text(source, &[field]).unwrap_or_default();
    json::set(
        &mut renamed,
        &[field],
        host_name(kind, &Name::new(&pod.namespace, name)),
    );
    renamed
}

fn downward_api(source: &Value, downward: &mut BTreeSet<String>) -> Value {
    let mut translated = source.clone();
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
    let mut translated = value.clone();
    let mut sources = Vec::new();
    for (index, source) in json::items(value, &["sources"]).iter().enumerate() {
        for (kind, value) in source.as_object().into_iter().flatten() {
            match kind.as_str() {
                "configMap" => sources.push(json!({"configMap": renamed(name, KindId::ConfigMap, "name", value)})),
                "secret" => sources.push(json!({"secret": renamed(name, KindId::Secret, "name", value)})),
                "downwardAPI" => sources.push(json!({"downwardAPI": downward_api(value, downward)})),
                "serviceAccountToken" => {
                    let item = json!({"key": token_key(volume, index), "path": value.get("path")});
                    sources.push(json!({"secret": {"name": host_name(KindId::PodToken, name), "items": [item]}}));
                }
                _ if json::is_unset(value) => {}
                _ => findings.refuse(
                    format!("{path}.sources[{index}].{kind}"),
                    "this source is not supported yet",
                ),
            }
        }
    }
    json::set(&mut translated, &["sources"], sources);
    translated
}

/// Key in the pod's token Secret of the token for source `source` of volume `volume`.
pub fn token_key(volume: usize, source: usize) -> String {
    format!("token-{volume}-{source}")
}
