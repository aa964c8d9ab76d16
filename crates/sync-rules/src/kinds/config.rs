//! ConfigMaps and Secrets.
//!
//! | field | rule |
//! |---|---|
//! | which | only those that something synced references, as long as it does |
//! | labels, annotations | copied but for reserved ones |
//! | `data`, `binaryData`, `immutable` | copied, but for keys that would choose devices as variables of a container |
//! | `type` (Secret) | copied; tokens of service accounts become `Opaque`, for the host would mint its own |
//! | anything else | refused by name |
//!
//! Both sides are watched for metadata only; the content is read when it is needed.

use crate::{
    json,
    kinds::{
        Down, Flow, HostNamespace, Kind, Right, Rights, Translated, WRITE, Want,
        fields::{self, Fields, Findings, Rule},
        metadata, origin_name, pod,
        refusal::Refusal,
    },
    resource::{self, KindId, Name, Resource},
    store::{Detail, WatchSpec},
    world::World,
};
use serde_json::{Value, json};

const fn watches(resource: Resource, labels: &'static str, rules: &'static Config, writes: &'static [Right]) -> Kind {
    Kind {
        tenant: Some(WatchSpec::own(resource).metadata_only().trimmed(trim)),
        host: Some((
            HostNamespace::Workloads,
            WatchSpec {
                resource,
                detail: Detail::Metadata,
                labels,
                name: origin_name,
                trim,
            },
        )),
        flow: Flow::Down(rules),
        rights: Rights {
            tenant: &[],
            host: writes,
        },
    }
}

/// ConfigMaps.
pub const CONFIG_MAP: Kind = watches(
    resource::CONFIG_MAP,
    "berth.dev/managed-by=syncer",
    &Config {
        id: KindId::ConfigMap,
        resource: resource::CONFIG_MAP,
    },
    &[("configmaps", WRITE)],
);
/// Secrets, without those that carry pods' tokens.
pub const SECRET: Kind = watches(
    resource::SECRET,
    "berth.dev/managed-by=syncer,!berth.dev/pod-token",
    &Config {
        id: KindId::Secret,
        resource: resource::SECRET,
    },
    &[("secrets", WRITE)],
);

/// Only what decisions need: the content is read when it is synced.
fn trim(object: &mut Value) {
    let mut metadata = object.get_mut("metadata").map(Value::take).unwrap_or_default();
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.retain(|key, _| {
            matches!(
                key.as_str(),
                "name" | "namespace" | "uid" | "resourceVersion" | "deletionTimestamp" | "annotations"
            )
        });
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|key, _| berth_api::labels::is_reserved(key));
        }
    }
    *object = json!({"metadata": metadata});
}

const FIELDS: Fields = &[
    ("apiVersion", Rule::Ignore("the engine sets it")),
    ("binaryData", Rule::Copy),
    ("data", Rule::Copy),
    ("immutable", Rule::Copy),
    ("kind", Rule::Ignore("the engine sets it")),
    ("metadata", Rule::Rewrite),
    ("type", Rule::Rewrite),
];

struct Config {
    id: KindId,
    resource: Resource,
}

impl Down for Config {
    fn resource(&self) -> Resource {
        self.resource
    }

    fn want(&self, world: &World, name: &Name, _object: &Value) -> Want {
        if world.references().is_used(&self.id.key(name.clone())) {
            Want::Sync
        } else {
            Want::Absent
        }
    }

    fn translate(&self, _world: &World, _name: &Name, object: &Value) -> Result<Translated, Vec<Refusal>> {
        let mut findings = Findings::default();
        let mut copied = fields::copy(object, self.resource.kind, FIELDS, &mut findings);
        if let Some(kind) = json::text(object, &["type"]) {
            let opaque = kind == "kubernetes.io/service-account-token" || kind == "bootstrap.kubernetes.io/token";
            copied.insert("type".into(), if opaque { "Opaque" } else { kind }.into());
        }
        if let Some(data) = copied.get_mut("data").and_then(Value::as_object_mut) {
            for key in pod::DEVICE_VARIABLES {
                if data.remove(*key).is_some() {
                    let why = "as a variable it would choose devices past the scheduler: pods do not get this key";
                    findings.notes.push(Refusal::new(format!("data[{key}]"), why));
                }
            }
        }
        // Annotations that pods may not have are harmless here, but have no use either.
        let annotations = metadata::annotations(object, &mut Vec::new());
        copied.insert(
            "metadata".into(),
            json!({"labels": metadata::labels(object), "annotations": annotations}),
        );
        findings.into_result(copied.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::test_tenant;

    fn translate(object: &Value) -> Result<Translated, Vec<Refusal>> {
        let world = World::new(test_tenant());
        let rules = Config {
            id: KindId::Secret,
            resource: resource::SECRET,
        };
        rules.translate(&world, &Name::new("a", "s"), object)
    }

    #[test]
    fn content_is_copied_and_account_tokens_become_opaque() {
        let secret = json!({"kind": "Secret", "apiVersion": "v1", "type": "kubernetes.io/service-account-token", "data": {"token": "eA=="},
            "metadata": {"name": "s", "namespace": "a", "labels": {"x": "y"}, "finalizers": ["f"], "ownerReferences": [{}],
            "annotations": {"kubernetes.io/service-account.name": "default"}}});
        insta::assert_yaml_snapshot!(translate(&secret).unwrap().object);
    }

    #[test]
    fn unknown_content_is_refused() {
        let refused = translate(&json!({"data": {}, "novelty": 1})).unwrap_err();
        assert_eq!(refused[0].field, "Secret.novelty");
    }

    #[test]
    fn only_what_is_referenced_is_wanted() {
        let world = World::new(test_tenant());
        let rules = Config {
            id: KindId::Secret,
            resource: resource::SECRET,
        };
        let name = Name::new("a", "s");
        assert_eq!(rules.want(&world, &name, &Value::Null), Want::Absent);
        let target = crate::kinds::references::Target {
            kind: KindId::Secret,
            name: name.clone(),
        };
        world
            .references()
            .set(&KindId::Pod.key(Name::new("a", "pod")), [target].into());
        assert_eq!(rules.want(&world, &name, &Value::Null), Want::Sync);
    }
}
