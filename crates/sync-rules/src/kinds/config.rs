//! ConfigMaps and Secrets.
//!
//! | field | rule |
//! |---|---|
//! | which | only those that a synced object references, as long as it does; while a kind is not listed in the tenant, those that are on the host stay |
//! | labels, annotations | not passed on: programs on the host copy Secrets and ConfigMaps between namespaces because of them, or load what is in them |
//! | `data`, `binaryData`, `immutable` | copied, but for keys in `data` that would choose devices as variables of a container; see [`device_variables`]. Of an immutable object a key that is denied later cannot be taken: the host's is deleted and created again. Keys that somebody else has added on the host are removed |
//! | `type` (Secret) | copied; tokens of service accounts become `Opaque`, for the host would mint its own |
//! | anything else | denied by name |
//!
//! Both sides are watched for metadata only; the content is read when it is needed.

use crate::{
    model::{
        Cache, DeniedField, DesiredState, HostNamespace, Kind, KindId, ToHost, Translated, WhenDenied, json,
        resource::{self, Name, Resource},
        store::WatchSpec,
    },
    translation::{
        device_variables,
        fields::{self, FieldIssues, Fields, Rule},
    },
};
use serde_json::{Map, Value, json};

const fn config(rules: &'static Config, labels: &'static str) -> Kind {
    let watch = WatchSpec::own(rules.resource).metadata_only().trimmed(trim);
    Kind::to_host(rules.resource, rules)
        .watch_tenant(watch)
        .watch_host(
            HostNamespace::Workloads,
            WatchSpec::synced(rules.resource)
                .labelled(labels)
                .metadata_only()
                .trimmed(trim),
        )
        .essential()
}

/// ConfigMaps.
pub const CONFIG_MAP: Kind = config(
    &Config {
        id: KindId::ConfigMap,
        resource: resource::CONFIG_MAP,
    },
    "berth.dev/managed-by=syncer",
);
/// Secrets, without those that hold tokens of pods.
pub const SECRET: Kind = config(
    &Config {
        id: KindId::Secret,
        resource: resource::SECRET,
    },
    "berth.dev/managed-by=syncer,!berth.dev/pod-token",
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

/// How API servers refuse an update because of what somebody else has done to the host object: it is immutable, or a Secret with another type; it has a key as
/// text and as binary data; it has more than an object may have. The tenant's API server allows no such object, and an apply leaves keys of others.
const REFUSALS: [&str; 3] = [
    "field is immutable",
    "duplicate of key present in",
    "may not be more than 1048576 bytes",
];

const FIELDS: Fields = &[
    ("apiVersion", Rule::Ignore("the engine sets it")),
    ("binaryData", Rule::Copy),
    ("data", Rule::Copy),
    ("immutable", Rule::Copy),
    ("kind", Rule::Ignore("the engine sets it")),
    ("metadata", Rule::Rewrite),
    ("stringData", Rule::Ignore("API servers keep it in the data")),
    ("type", Rule::Rewrite),
];

struct Config {
    id: KindId,
    resource: Resource,
}

impl ToHost for Config {
    fn resource(&self) -> Resource {
        self.resource
    }

    fn desired_state(&self, cache: &Cache, name: &Name, _object: &Value) -> DesiredState {
        if cache.references().is_used(&self.id.key(name.clone())) {
            DesiredState::Sync
        } else if cache.knows_all_users() {
            DesiredState::Absent
        } else {
            DesiredState::Leave
        }
    }

    fn translate(&self, cache: &Cache, _name: &Name, object: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let mut copied = fields::copy(object, self.resource.kind, FIELDS, &mut issues);
        if let Some(kind) = json::text(object, &["type"]) {
            let opaque = kind == "kubernetes.io/service-account-token" || kind == "bootstrap.kubernetes.io/token";
            copied.insert("type".into(), if opaque { "Opaque" } else { kind }.into());
        }
        if let Some(data) = copied.get_mut("data").and_then(Value::as_object_mut) {
            let rules = &cache.tenant.policy.pods;
            data.retain(|key, _| {
                let is_denied = device_variables::is_denied_key(rules, key);
                if is_denied {
                    let why = "as an environment variable it would choose devices without the scheduler: pods do not get \
                               it, unless the class lists it (sync.pods.deviceVariables)";
                    issues.ignore(format!("data[{key}]"), why);
                }
                !is_denied
            });
        }
        copied.insert("metadata".into(), json!({}));
        issues.into_result(copied.into())
    }

    fn without_foreign_fields(&self, desired: &Value, written: &Value) -> Option<Value> {
        // An apply leaves keys that somebody else has added, and pods read every key.
        let mut removed = Map::new();
        for field in ["data", "binaryData"] {
            let keys = written[field].as_object().into_iter().flat_map(Map::keys);
            let foreign = keys.filter(|key| desired[field].get(key.as_str()).is_none());
            let foreign: Map<String, Value> = foreign.map(|key| (key.clone(), Value::Null)).collect();
            if !foreign.is_empty() {
                removed.insert(field.into(), foreign.into());
            }
        }
        (!removed.is_empty()).then(|| removed.into())
    }

    fn must_replace_after(&self, refusal: &str) -> bool {
        REFUSALS.iter().any(|text| refusal.contains(text))
    }

    fn when_refused(&self, _cache: &Cache, _name: &Name, object: &Value, _host: &Value) -> WhenDenied {
        // The host takes no other content of an immutable one. Pods that run keep what they have read, and new ones wait until it is there again.
        if object.get("immutable") == Some(&Value::Bool(true)) {
            WhenDenied::Withdraw
        } else {
            WhenDenied::Keep
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::schemas;
    use crate::model::tenant::test_tenant;
    use crate::registry;

    fn translate(object: &Value) -> Result<Translated, Vec<DeniedField>> {
        let cache = registry::new_cache(test_tenant());
        let rules = Config {
            id: KindId::Secret,
            resource: resource::SECRET,
        };
        rules.translate(&cache, &Name::new("a", "s"), object)
    }

    #[test]
    fn content_is_copied_and_account_tokens_become_opaque() {
        let secret = json!({"kind": "Secret", "apiVersion": "v1", "type": "kubernetes.io/service-account-token", "data": {"token": "eA=="},
            "metadata": {"name": "s", "namespace": "a", "labels": {"x": "y"}, "finalizers": ["f"], "ownerReferences": [{}],
            "annotations": {"kubernetes.io/service-account.name": "default"}}});
        insta::assert_yaml_snapshot!(translate(&secret).unwrap().object);
    }

    #[test]
    fn what_makes_programs_of_the_host_load_or_copy_it_stays_in_the_tenant() {
        let secret = json!({"data": {}, "metadata": {"name": "s", "labels": {"grafana_dashboard": "1"}, "annotations": {
            "replicator.v1.mittwald.de/replicate-from": "kube-system/admin",
            "reflector.v1.k8s.emberstack.com/reflection-auto-enabled": "true"}}});
        let translated = translate(&secret).unwrap();
        assert_eq!(translated.object["metadata"], json!({}));
        assert!(translated.ignored.is_empty());
    }

    #[test]
    fn keys_that_choose_devices_stay_in_the_tenant() {
        let mut tenant = test_tenant();
        std::sync::Arc::make_mut(&mut tenant.policy).pods.device_variables = vec!["NVIDIA_GDS".into()];
        let cache = registry::new_cache(tenant);
        let rules = Config {
            id: KindId::ConfigMap,
            resource: resource::CONFIG_MAP,
        };
        let map = json!({"data": {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_MOFED": "enabled", "NVIDIA_GDS": "enabled",
            "CUDA_VERSION": "12.4", "VISIBLE_DEVICES": "all", "NVIDIA_API_KEY": "k", "MODE": "fast"}});
        let translated = rules.translate(&cache, &Name::new("a", "s"), &map).unwrap();
        let mut kept: Vec<&String> = translated.object["data"].as_object().unwrap().keys().collect();
        kept.sort_unstable();
        assert_eq!(kept, ["MODE", "NVIDIA_API_KEY", "NVIDIA_GDS"]);
        let mut left_out: Vec<&str> = translated.ignored.iter().map(|denied| denied.field.as_str()).collect();
        left_out.sort_unstable();
        assert_eq!(
            left_out,
            [
                "data[CUDA_VERSION]",
                "data[NVIDIA_MOFED]",
                "data[NVIDIA_VISIBLE_DEVICES]",
                "data[VISIBLE_DEVICES]"
            ]
        );
    }

    #[test]
    fn only_what_the_host_cannot_change_is_made_again() {
        let cache = registry::new_cache(test_tenant());
        let rules = Config {
            id: KindId::ConfigMap,
            resource: resource::CONFIG_MAP,
        };
        let when_refused = |object: Value| rules.when_refused(&cache, &Name::new("a", "s"), &object, &Value::Null);
        assert_eq!(
            when_refused(json!({"data": {}, "immutable": true})),
            WhenDenied::Withdraw
        );
        assert_eq!(when_refused(json!({"data": {}, "immutable": false})), WhenDenied::Keep);
        assert_eq!(when_refused(json!({"data": {}})), WhenDenied::Keep);
    }

    #[test]
    fn keys_that_somebody_else_has_added_are_removed() {
        let rules = Config {
            id: KindId::ConfigMap,
            resource: resource::CONFIG_MAP,
        };
        let desired = json!({"data": {"a": "b"}, "metadata": {}});
        let removed = |written: Value| rules.without_foreign_fields(&desired, &written);
        assert_eq!(removed(json!({"data": {"a": "b"}})), None);
        assert_eq!(removed(json!({"metadata": {}})), None, "no content is known of it");
        assert_eq!(
            removed(json!({"data": {"a": "b", "c": "d"}, "binaryData": {"e": "Zg=="}})),
            Some(json!({"data": {"c": null}, "binaryData": {"e": null}}))
        );
    }

    #[test]
    fn what_somebody_else_keeps_from_a_change_is_made_again() {
        let rules = Config {
            id: KindId::Secret,
            resource: resource::SECRET,
        };
        for refusal in [
            "Secret \"s-x\" is invalid: data: Forbidden: field is immutable when `immutable` is set",
            "Secret \"s-x\" is invalid: type: Invalid value: \"Opaque\": field is immutable",
            "ConfigMap \"s-x\" is invalid: data[a]: Invalid value: \"a\": duplicate of key present in binaryData",
            "Secret \"s-x\" is invalid: data: Too long: may not be more than 1048576 bytes",
        ] {
            assert!(rules.must_replace_after(refusal), "{refusal}");
        }
        assert!(!rules.must_replace_after("secrets \"s-x\" is forbidden: a policy of the host says so"));
    }

    #[test]
    fn unknown_fields_are_denied() {
        let denied = translate(&json!({"data": {}, "novelty": 1})).unwrap_err();
        assert_eq!(denied[0].field, "Secret.novelty");
    }

    #[test]
    fn only_referenced_objects_are_synced() {
        let cache = registry::new_cache(test_tenant());
        let rules = Config {
            id: KindId::Secret,
            resource: resource::SECRET,
        };
        let name = Name::new("a", "s");
        assert_eq!(rules.desired_state(&cache, &name, &Value::Null), DesiredState::Absent);
        let routes = cache.stores.tenant(KindId::HttpRoute);
        routes.stop_waiting_for_list();
        assert_eq!(
            rules.desired_state(&cache, &name, &Value::Null),
            DesiredState::Leave,
            "an object that is not known may use it"
        );
        routes.set_unavailable(None);
        let target = crate::model::references::Target {
            kind: KindId::Secret,
            name: name.clone(),
        };
        cache
            .references()
            .set(&KindId::Pod.key(Name::new("a", "pod")), [target].into());
        assert_eq!(rules.desired_state(&cache, &name, &Value::Null), DesiredState::Sync);
    }

    #[test]
    fn every_field_of_every_version_has_a_rule() {
        schemas::check(&[("ConfigMap", FIELDS), ("Secret", FIELDS)]);
    }
}
