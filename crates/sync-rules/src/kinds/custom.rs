//! Kinds that the tenant's class names: namespaced kinds for which the host has controllers.
//!
//! | field | rule |
//! |---|---|
//! | labels, annotations | those that the class lists |
//! | fields that the class lists | copied |
//! | size | limited, see [`sizes`] |
//! | `references` | the name becomes that of the host object; the referenced object is synced as well |
//! | `selectors` | narrowed to the tenant and the namespace; where there is none, it becomes one of all pods of the namespace in the tenant |
//! | `deniedFields` and fields that are not listed | denied by name |
//! | `spec.resourceClaims` of a PodGroup | denied, whatever the class lists |
//! | status | comes back, with the tenant's names |

use crate::{
    model::{
        Cache, CustomKind, DeniedField, DesiredState, Kind, KindId, Observation, Right, TenantWrite, ToHost,
        Translated, WhenDenied, json,
        references::Target,
        resource::{Name, Resource, host_name},
    },
    translation::{
        fields::FieldIssues,
        generation, host_text,
        metadata::{self, AnnotationRules},
        pod_selector, sizes,
    },
};
use berth_api::sync_policy::{SyncPolicy, SyncedKind};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

/// A field of one kind that no class can offer.
struct ForbiddenField {
    group: &'static str,
    kind: &'static str,
    path: &'static str,
    why: &'static str,
}

/// The host frees the devices of a pod's claim when the pod has ended, those of a group only when the group is gone.
const FORBIDDEN: &[ForbiddenField] = &[ForbiddenField {
    group: "scheduling.k8s.io",
    kind: "PodGroup",
    path: "spec.resourceClaims",
    why: "a group keeps its devices as long as it exists, also those of a node that is another tenant's by then: name the claims in the pods alone",
}];

/// Most selectors of an object. Where the tenant writes none there is one on the host, which is much larger than nothing.
const MOST_SELECTORS: usize = 2_000;

fn leak(text: String) -> &'static str {
    text.leak()
}

/// The kinds of a class. They live as long as the process, like the built-in kinds, so each definition is made only once.
pub fn kind_ids(policy: &SyncPolicy) -> Vec<KindId> {
    static KNOWN: Mutex<Vec<&'static CustomKind>> = Mutex::new(Vec::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let customs = policy.kinds.iter().map(|rules| {
        let found = known.iter().copied().find(|custom| custom.rules == *rules);
        KindId::Custom(found.unwrap_or_else(|| {
            let custom = make_kind(rules);
            known.push(custom);
            custom
        }))
    });
    customs.collect()
}

fn make_kind(rules: &SyncedKind) -> &'static CustomKind {
    let plural = leak(rules.resource.clone());
    let status: &[Right] = if rules.status {
        vec![(leak(format!("{plural}/status")), &["patch"][..])].leak()
    } else {
        &[]
    };
    Box::leak(Box::new(CustomKind {
        label: leak(format!("{}.{}", rules.kind, rules.group)),
        resource: Resource::new(
            leak(rules.group.clone()),
            leak(rules.version.clone()),
            leak(rules.kind.clone()),
            plural,
        ),
        rules: rules.clone(),
        tenant_rights: status,
    }))
}

/// Where the kind lives, and by which rules it is synced.
pub fn kind(custom: &'static CustomKind) -> Kind {
    Kind::to_host(custom.resource, custom)
        .with_tenant_rights(custom.tenant_rights)
        .extension()
        .acting_without_pods()
}

impl CustomKind {
    /// What an object has of the fields that the class lists. What it denies is noted.
    fn offered(&self, object: &Value, issues: &mut FieldIssues) -> Value {
        let mut copied = Map::new();
        for (field, value) in object.as_object().into_iter().flatten() {
            match field.as_str() {
                "apiVersion" | "kind" | "metadata" | "status" => {}
                known if self.rules.fields.iter().any(|listed| listed == known) => {
                    copied.insert(field.clone(), value.clone());
                }
                _ if json::is_unset(value) => {}
                _ => issues.deny(field, "this field is not offered here"),
            }
        }
        let copied = Value::Object(copied);
        for path in &self.rules.denied_fields {
            json::each(&copied, path, &mut |value| {
                if !json::is_unset(value) {
                    issues.deny(path, "this field is not offered here");
                }
            });
        }
        for ForbiddenField { path, why, .. } in self.forbidden_fields() {
            json::each(&copied, path, &mut |value| {
                if !json::is_unset(value) {
                    issues.deny(*path, *why);
                }
            });
        }
        copied
    }

    /// Narrows the selectors to the pods of the namespace in the tenant. What no selector means is for the controller to say, and for many it is every pod
    /// of the namespace on the host: there all namespaces of the tenant are one.
    fn narrow_selectors(&self, cache: &Cache, name: &Name, object: &mut Value, issues: &mut FieldIssues) {
        let mut count = 0;
        for path in &self.rules.selectors {
            // No spec may mean the same.
            if let Some((first, _)) = path.split_once('.')
                && !first.ends_with("[]")
                && object[first].is_null()
            {
                object[first] = json!({});
            }
            json::each_field_mut(object, path, &mut |selector| {
                count += 1;
                match selector {
                    // They are denied.
                    _ if count > MOST_SELECTORS => {}
                    Value::Null => *selector = pod_selector::scoped(cache, &json!({}), Some(&[&name.namespace])),
                    Value::Object(_) => *selector = pod_selector::scoped(cache, selector, Some(&[&name.namespace])),
                    _ => issues.deny(path, "this must be a selector of labels"),
                }
            });
        }
        if count > MOST_SELECTORS {
            let why = format!("there are {count} selectors, and one object may have at most {MOST_SELECTORS}");
            issues.deny("metadata and spec", why);
        }
    }

    fn forbidden_fields(&self) -> impl Iterator<Item = &'static ForbiddenField> {
        let (group, kind) = (self.rules.group.as_str(), self.rules.kind.as_str());
        FORBIDDEN
            .iter()
            .filter(move |field| field.group == group && field.kind == kind)
    }
}

impl ToHost for CustomKind {
    fn resource(&self) -> Resource {
        self.resource
    }

    fn desired_state(&self, _cache: &Cache, _name: &Name, _object: &Value) -> DesiredState {
        DesiredState::Sync
    }

    fn when_denied(&self, _cache: &Cache, _name: &Name, _object: &Value, host: &Value) -> WhenDenied {
        // It may be at work. But what the class took away must end.
        let mut issues = FieldIssues::default();
        self.offered(host, &mut issues);
        if issues.denied.is_empty() {
            WhenDenied::Keep
        } else {
            WhenDenied::Withdraw
        }
    }

    fn references(&self, cache: &Cache, name: &Name, object: &Value) -> BTreeSet<Target> {
        let mut targets = BTreeSet::new();
        for reference in &self.rules.references {
            let Some(kind) = cache.find_kind_by_name(&reference.kind) else {
                continue;
            };
            json::each(object, &reference.path, &mut |value| {
                if let Some(target) = value.as_str().filter(|text| !text.is_empty()) {
                    targets.insert(Target {
                        kind,
                        name: Name::new(&name.namespace, target),
                    });
                }
            });
        }
        targets
    }

    fn translate(&self, cache: &Cache, name: &Name, object: &Value) -> Result<Translated, Vec<DeniedField>> {
        let mut issues = FieldIssues::default();
        let mut copied = self.offered(object, &mut issues);
        for reference in &self.rules.references {
            match cache.find_kind_by_name(&reference.kind) {
                Some(kind) => json::each_mut(&mut copied, &reference.path, &mut |value| {
                    if let Some(target) = value.as_str().filter(|text| !text.is_empty()) {
                        *value = host_name(kind, &Name::new(&name.namespace, target)).into();
                    }
                }),
                None => json::each(&copied, &reference.path, &mut |value| {
                    if !json::is_unset(value) {
                        let why = format!("objects of the kind {} are not offered here", reference.kind);
                        issues.deny(&reference.path, why);
                    }
                }),
            }
        }
        self.narrow_selectors(cache, name, &mut copied, &mut issues);
        let rules = AnnotationRules {
            listed: &self.rules.annotations,
            class_field: Some("sync.kinds[].annotations"),
            ..AnnotationRules::default()
        };
        let annotations = metadata::annotations(object, &rules, &mut issues);
        copied["metadata"] =
            json!({"labels": metadata::labels(object, &[], &self.rules.labels), "annotations": annotations});
        sizes::check_object(&copied, &mut issues);
        issues.into_result(copied)
    }

    fn sync_status(&self, cache: &Cache, name: &Name, observation: &Observation<'_>) -> Vec<TenantWrite> {
        if !self.rules.status {
            return Vec::new();
        }
        let Some(status) = observation.host.get("status") else {
            return Vec::new();
        };
        let mut object = json!({"status": status});
        for reference in &self.rules.references {
            json::each_mut(&mut object, &reference.path, &mut |value| {
                let tenants = cache.find_kind_by_name(&reference.kind).zip(value.as_str());
                if let Some(known) = tenants.and_then(|(kind, host)| cache.stores.host(kind).tenant_name(host)) {
                    *value = (*known.name).into();
                }
            });
        }
        host_text::translate_texts(cache, name, &mut object["status"]);
        vec![TenantWrite::Status(generation::with_tenant_generation(
            observation,
            &observation.tenant["status"],
            object["status"].take(),
        ))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant::test_tenant;
    use crate::registry;
    use berth_api::sync_policy::FieldReference;
    use jiff::Timestamp;
    use std::sync::Arc;

    fn cache() -> Cache {
        let reference = |path: &str, kind: &str| FieldReference {
            path: path.into(),
            kind: kind.into(),
        };
        let mut tenant = test_tenant();
        tenant.policy = Arc::new(SyncPolicy {
            kinds: vec![SyncedKind {
                group: "example.com".into(),
                version: "v1".into(),
                kind: "Gang".into(),
                resource: "gangs".into(),
                fields: vec!["spec".into()],
                status: true,
                references: vec![
                    reference("spec.tls[].secretName", "Secret"),
                    reference("spec.parent", "Gang.example.com"),
                    reference("spec.unknown", "Nothing"),
                    reference("status.parent", "Gang.example.com"),
                ],
                selectors: vec!["spec.selector".into()],
                denied_fields: vec!["spec.hostPath".into()],
                annotations: vec!["example.com/*".into()],
                labels: vec!["tier".into()],
            }],
            ..SyncPolicy::default()
        });
        registry::new_cache(tenant)
    }

    fn rules(cache: &Cache) -> (KindId, &'static dyn ToHost) {
        let id = cache.find_kind_by_name("Gang.example.com").unwrap();
        (id, cache.rules_to_host(id).unwrap())
    }

    #[test]
    fn each_definition_is_made_once() {
        let pointer = |id: KindId| match id {
            KindId::Custom(custom) => std::ptr::from_ref(custom),
            _ => panic!("{id:?}"),
        };
        let policy = cache().tenant.policy;
        let [first, again] = [(); 2].map(|()| kind_ids(&policy).into_iter().map(pointer).collect::<Vec<_>>());
        assert_eq!(first, again);
        let mut changed = SyncPolicy::clone(&policy);
        changed.kinds[0].status = false;
        assert_ne!(first, kind_ids(&changed).into_iter().map(pointer).collect::<Vec<_>>());
    }

    #[test]
    fn references_and_selectors_are_the_hosts() {
        let cache = cache();
        let (id, rules) = rules(&cache);
        let name = Name::new("research", "g");
        let object = json!({"metadata": {"labels": {"a": "b", "tier": "front"}, "ownerReferences": [{}]}, "spec": {
            "tls": [{"secretName": "cert"}, {"secretName": ""}], "parent": "p", "selector": {"matchLabels": {"a": "b"}}, "count": 3},
            "status": {"phase": "x"}});
        let translated = rules.translate(&cache, &name, &object).unwrap().object;
        insta::assert_yaml_snapshot!(translated);
        let targets: Vec<_> = rules
            .references(&cache, &name, &object)
            .into_iter()
            .map(|target| (target.kind, target.name.to_string()))
            .collect();
        assert_eq!(
            targets,
            [
                (KindId::Secret, "research/cert".to_owned()),
                (id, "research/p".to_owned())
            ]
        );
    }

    #[test]
    fn a_selector_that_is_missing_selects_the_pods_of_the_namespace() {
        let cache = cache();
        let (_, rules) = rules(&cache);
        let translate = |object: Value| rules.translate(&cache, &Name::new("research", "g"), &object);
        let all =
            json!({"matchLabels": {"berth.dev/tenant": "vision-aaaaaaaaaaaaa", "berth.dev/namespace": "research"}});
        for object in [
            json!({"metadata": {}, "spec": {"count": 3}}),
            json!({"metadata": {}, "spec": {"selector": null}}),
            json!({"metadata": {}, "spec": {"selector": {}}}),
            json!({"metadata": {}, "spec": {}}),
            json!({"metadata": {}, "spec": null}),
            json!({"metadata": {}}),
        ] {
            assert_eq!(
                translate(object.clone()).unwrap().object["spec"]["selector"],
                all,
                "{object}"
            );
        }
        for odd in [json!("app=a"), json!([{"matchLabels": {}}]), json!(true)] {
            let denied = translate(json!({"metadata": {}, "spec": {"selector": odd}})).unwrap_err();
            assert_eq!(denied[0].field, "spec.selector");
        }
    }

    #[test]
    fn selectors_without_end_are_denied_before_they_are_made() {
        let mut tenant = cache().tenant;
        Arc::make_mut(&mut tenant.policy).kinds[0].selectors = vec!["spec.groups[].selector".into()];
        let cache = registry::new_cache(tenant);
        let (_, rules) = rules(&cache);
        let translate = |count: usize| {
            let object = json!({"metadata": {}, "spec": {"groups": vec![json!({}); count]}});
            rules.translate(&cache, &Name::new("research", "g"), &object)
        };
        assert!(translate(1000).is_ok());
        let denied = translate(200_000).unwrap_err();
        assert!(denied[0].why.starts_with("there are 200000 selectors"), "{denied:?}");
        let words: Vec<&str> = denied[1].why.split(' ').collect();
        let bytes: usize = words[3].parse().unwrap();
        assert!(bytes < 2_000_000, "most are not made: {}", denied[1].why);
    }

    #[test]
    fn annotations_that_the_class_lists_are_copied() {
        let cache = cache();
        let (_, rules) = rules(&cache);
        let object =
            json!({"metadata": {"annotations": {"example.com/a": "1", "note": "n", "velero.io/x": "y"}}, "spec": {}});
        let translated = rules.translate(&cache, &Name::new("a", "g"), &object).unwrap();
        assert_eq!(
            translated.object["metadata"]["annotations"],
            json!({"example.com/a": "1"})
        );
        assert_eq!(translated.ignored[0].field, "metadata.annotations[velero.io/x]");
    }

    #[test]
    fn fields_that_the_class_does_not_list_are_denied() {
        let cache = cache();
        let (_, rules) = rules(&cache);
        let object = json!({"metadata": {}, "spec": {"hostPath": "/", "unknown": "u"}, "extra": 1});
        let denied = rules.translate(&cache, &Name::new("a", "g"), &object).unwrap_err();
        let fields: Vec<_> = denied.iter().map(|denied| denied.field.as_str()).collect();
        assert_eq!(fields, ["extra", "spec.hostPath", "spec.unknown"]);
    }

    #[test]
    fn no_class_gives_groups_of_pods_devices() {
        let mut policy = SyncPolicy::clone(&cache().tenant.policy);
        policy.kinds = vec![SyncedKind {
            group: "scheduling.k8s.io".into(),
            version: "v1beta1".into(),
            kind: "PodGroup".into(),
            resource: "podgroups".into(),
            fields: vec!["spec".into()],
            ..SyncedKind::default()
        }];
        let mut tenant = test_tenant();
        tenant.policy = Arc::new(policy);
        let cache = registry::new_cache(tenant);
        let id = cache.find_kind_by_name("PodGroup.scheduling.k8s.io").unwrap();
        let rules = cache.rules_to_host(id).unwrap();
        let name = Name::new("research", "ring");
        let group = |claims: Value| json!({"metadata": {}, "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}, "resourceClaims": claims}});
        let with_claims = group(json!([{"name": "gpu", "resourceClaimName": "one"}]));
        let denied = rules.translate(&cache, &name, &with_claims).unwrap_err();
        let denied: Vec<_> = denied.iter().map(ToString::to_string).collect();
        assert!(
            matches!(&denied[..], [one] if one.starts_with("spec.resourceClaims: a group keeps its devices")),
            "{denied:?}"
        );
        assert!(rules.translate(&cache, &name, &group(json!([]))).is_ok());
        // One that is on the host already ends.
        let when_denied = rules.when_denied(&cache, &name, &Value::Null, &with_claims);
        assert_eq!(when_denied, WhenDenied::Withdraw);
    }

    #[test]
    fn what_is_too_large_for_the_host_is_denied_in_words() {
        let mut policy = SyncPolicy::clone(&cache().tenant.policy);
        policy.kinds[0].labels = vec!["many.example.com/*".into()];
        let mut tenant = test_tenant();
        tenant.policy = Arc::new(policy);
        let cache = registry::new_cache(tenant);
        let (_, rules) = rules(&cache);
        let object = |labels: usize, annotation: usize, text: usize| {
            let labels: Map<String, Value> = (0..labels)
                .map(|number| (format!("many.example.com/{number}"), "".into()))
                .collect();
            let annotations = json!({"example.com/a": "a".repeat(annotation), "not-copied": "a".repeat(250_000)});
            json!({"metadata": {"labels": labels, "annotations": annotations}, "spec": {"text": "a".repeat(text)}})
        };
        let denied = |object: Value| {
            let denied = rules.translate(&cache, &Name::new("a", "g"), &object).err();
            let denied = denied.into_iter().flatten();
            denied.map(|denied| denied.field).collect::<Vec<_>>()
        };
        assert_eq!(denied(object(390, 100_000, 100_000)), [""; 0]);
        assert_eq!(denied(object(391, 0, 0)), ["metadata.labels"]);
        assert_eq!(denied(object(0, 240_000, 0)), ["metadata and spec"]);
        assert_eq!(denied(object(0, 120_000, 120_000)), ["metadata and spec"]);
    }

    #[test]
    fn the_status_has_the_tenants_names() {
        let cache = cache();
        let (id, rules) = rules(&cache);
        let (name, parent) = (Name::new("research", "g"), Name::new("research", "p"));
        let host = host_name(id, &parent);
        let known = json!({"metadata": {"name": host, "resourceVersion": "1"}});
        cache
            .stores
            .host(id)
            .written(parent, crate::model::store::Stored::new(&known));
        let observation = Observation {
            tenant: &json!({"metadata": {"generation": 4}}),
            host: &json!({"status": {"parent": host, "observedGeneration": 9, "message": format!("waits for {host}")}}),
            in_sync: true,
            denied: &[],
            now: Timestamp::UNIX_EPOCH,
        };
        let writes = rules.sync_status(&cache, &name, &observation);
        let status = json!({"parent": "p", "observedGeneration": 4, "message": "waits for p"});
        assert_eq!(writes, [TenantWrite::Status(status)]);
    }

    #[test]
    fn what_the_class_took_away_is_withdrawn() {
        let cache = cache();
        let KindId::Custom(kind) = kind_ids(&cache.tenant.policy)[0] else {
            panic!("a kind of the class")
        };
        let name = Name::new("shop", "one");
        let when_denied = |host: Value| kind.when_denied(&cache, &name, &Value::Null, &host);
        assert_eq!(
            when_denied(json!({"metadata": {"name": "x"}, "spec": {"size": 3}})),
            WhenDenied::Keep
        );
        assert_eq!(
            when_denied(json!({"metadata": {"name": "x"}, "spec": {}, "extra": 1})),
            WhenDenied::Withdraw
        );
    }
}
