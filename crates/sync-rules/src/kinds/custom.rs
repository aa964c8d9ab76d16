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
//! | `priority`, `priorityClassName` and `preemptionPolicy` in the spec of a PodGroup or CompositePodGroup | those of the step of the class's band that the priority falls on, as of its pods; none without a band. They cannot change |
//! | status | comes back, with the tenant's names |

use super::pod::group_priority_class;
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

/// Group of the kinds by which schedulers place pods together.
const SCHEDULING: &str = "scheduling.k8s.io";
/// The resources of that group whose priority the host's scheduler goes by, in place of that of their pods: in its queue, and when it looks for pods to
/// preempt.
const GROUPS_OF_PODS: [&str; 2] = ["podgroups", "compositepodgroups"];
/// Fields of their spec that decide on the priority.
const PRIORITY: [&str; 3] = ["priority", "priorityClassName", "preemptionPolicy"];

/// A field of one kind that no class can offer.
struct ForbiddenField {
    group: &'static str,
    kind: &'static str,
    path: &'static str,
    why: &'static str,
}

/// The host frees the devices of a pod's claim when the pod has ended, those of a group only when the group is gone.
const FORBIDDEN: &[ForbiddenField] = &[ForbiddenField {
    group: SCHEDULING,
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
        let mut copied = Value::Object(copied);
        self.remove_priority(&mut copied);
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
        // Those that are missing are counted as well, before there is one for each.
        let selectors = self.rules.selectors.iter();
        let count: usize = selectors.map(|path| json::count_fields(object, path)).sum();
        if count > MOST_SELECTORS {
            let why = format!("there are {count} selectors, and one object may have at most {MOST_SELECTORS}");
            issues.deny("metadata and spec", why);
            return;
        }
        for path in &self.rules.selectors {
            // No spec may mean the same.
            if let Some((first, _)) = path.split_once('.')
                && !first.ends_with("[]")
                && object[first].is_null()
            {
                object[first] = json!({});
            }
            json::each_field_mut(object, path, &mut |selector| match selector {
                Value::Null => *selector = pod_selector::scoped(cache, &json!({}), Some(&[&name.namespace])),
                Value::Object(_) => *selector = pod_selector::scoped(cache, selector, Some(&[&name.namespace])),
                _ => issues.deny(path, "this must be a selector of labels"),
            });
        }
    }

    fn is_group_of_pods(&self) -> bool {
        self.rules.group == SCHEDULING && GROUPS_OF_PODS.contains(&self.rules.resource.as_str())
    }

    fn remove_priority(&self, object: &mut Value) {
        if self.is_group_of_pods()
            && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        {
            for field in PRIORITY {
                spec.remove(field);
            }
        }
    }

    /// Gives a group of pods a priority of the tenant's band, as its pods have one. A group that is on the host keeps its own, which cannot change: fields that
    /// an apply leaves out would be removed.
    fn set_priority(&self, cache: &Cache, name: &Name, object: &Value, copied: &mut Value, issues: &mut FieldIssues) {
        if !self.is_group_of_pods() {
            return;
        }
        let Some(spec) = copied.get_mut("spec").and_then(Value::as_object_mut) else {
            return;
        };
        if cache.tenant.policy.pods.priority.is_none() && json::filled(object, &["spec", "priorityClassName"]).is_some()
        {
            let why = "tenants of this class have no priorities on the host: the group has the host's default priority";
            issues.ignore("spec.priorityClassName", why);
        }
        let kind = cache.find_kind_by_name(self.label);
        if let Some(live) = kind.and_then(|kind| cache.stores.host(kind).get(name)) {
            let live = live.object();
            let kept = PRIORITY
                .iter()
                .filter_map(|field| Some((*field, live["spec"].get(*field)?)));
            spec.extend(kept.map(|(field, value)| (field.to_owned(), value.clone())));
        } else if let Some(class) = group_priority_class(cache, &object["spec"]) {
            spec.insert("priorityClassName".into(), class.into());
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
        self.set_priority(cache, name, object, &mut copied, &mut issues);
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

    fn mutable_part(&self, desired: &Value) -> Value {
        let mut mutable = desired.clone();
        self.remove_priority(&mut mutable);
        mutable
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
#[path = "custom_tests.rs"]
mod tests;
