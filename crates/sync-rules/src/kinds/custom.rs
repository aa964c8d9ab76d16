//! Kinds that the tenant's class names: namespaced kinds for which the host has controllers.
//!
//! | field | rule |
//! |---|---|
//! | labels, annotations | copied but for reserved ones |
//! | fields that the class lists | copied |
//! | `references` | the name becomes that of the host object, which is brought to the host |
//! | `selectors` | narrowed to the tenant and the namespace |
//! | `refused` and fields that are not listed | refused by name |
//! | status | comes back, with the tenant's names |

use crate::{
    json,
    kinds::{
        Down, Flow, HostNamespace, Kind, Report, Right, Rights, TenantWrite, Translated, WRITE, Want, fields::Findings,
        metadata, pod, references::Target, refusal::Refusal, text,
    },
    resource::{KindId, Name, Resource, host_name},
    store::WatchSpec,
    world::World,
};
use berth_api::sync_policy::{SyncPolicy, SyncedKind};
use serde_json::{Map, Value, json};
use std::{
    cmp::Ordering,
    collections::BTreeSet,
    hash::{Hash, Hasher},
    sync::{Mutex, PoisonError},
};

/// A kind that the tenant's class names.
#[derive(Debug)]
pub struct Custom {
    /// `Kind.group`: name for metrics and derived host names.
    pub label: &'static str,
    resource: Resource,
    rules: SyncedKind,
    host_rights: &'static [Right],
    tenant_rights: &'static [Right],
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.label == other.label
    }
}

impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.label.hash(state);
    }
}

impl PartialOrd for Custom {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Custom {
    fn cmp(&self, other: &Self) -> Ordering {
        self.label.cmp(other.label)
    }
}

fn leak(text: String) -> &'static str {
    text.leak()
}

impl Custom {
    /// The kinds of a class. They live as long as the process, like those that are built in, so each definition is made
    /// once, however often it is asked for.
    pub fn all(policy: &SyncPolicy) -> Vec<KindId> {
        static KNOWN: Mutex<Vec<&'static Custom>> = Mutex::new(Vec::new());
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let customs = policy.kinds.iter().map(|rules| {
            let found = known.iter().copied().find(|custom| custom.rules == *rules);
            KindId::Custom(found.unwrap_or_else(|| {
                let custom = Self::make(rules);
                known.push(custom);
                custom
            }))
        });
        customs.collect()
    }

    fn make(rules: &SyncedKind) -> &'static Self {
        let plural = leak(rules.resource.clone());
        let status: &[Right] = if rules.status {
            vec![(leak(format!("{plural}/status")), &["patch"][..])].leak()
        } else {
            &[]
        };
        Box::leak(Box::new(Self {
            label: leak(format!("{}.{}", rules.kind, rules.group)),
            resource: Resource::new(
                leak(rules.group.clone()),
                leak(rules.version.clone()),
                leak(rules.kind.clone()),
                plural,
            ),
            rules: rules.clone(),
            host_rights: vec![(plural, WRITE)].leak(),
            tenant_rights: status,
        }))
    }

    /// Where the kind lives and which way it goes.
    pub fn kind(&'static self) -> Kind {
        Kind {
            tenant: Some(WatchSpec::own(self.resource)),
            host: Some((HostNamespace::Workloads, WatchSpec::synced(self.resource))),
            flow: Flow::Down(self),
            rights: Rights {
                tenant: self.tenant_rights,
                host: self.host_rights,
            },
        }
    }
}

impl Down for Custom {
    fn resource(&self) -> Resource {
        self.resource
    }

    fn want(&self, _world: &World, _name: &Name, _object: &Value) -> Want {
        Want::Sync
    }

    fn references(&self, world: &World, name: &Name, object: &Value) -> BTreeSet<Target> {
        let mut targets = BTreeSet::new();
        for reference in &self.rules.references {
            let Some(kind) = world.kind_named(&reference.kind) else {
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

    fn translate(&self, world: &World, name: &Name, object: &Value) -> Result<Translated, Vec<Refusal>> {
        let mut findings = Findings::default();
        let mut copied = Map::new();
        for (field, value) in object.as_object().into_iter().flatten() {
            match field.as_str() {
                "apiVersion" | "kind" | "metadata" | "status" => {}
                known if self.rules.fields.iter().any(|listed| listed == known) => {
                    copied.insert(field.clone(), value.clone());
                }
                _ if json::is_unset(value) => {}
                _ => findings.refuse(field, "this field is not offered here"),
            }
        }
        let mut copied = Value::Object(copied);
        for path in &self.rules.denied_fields {
            json::each(&copied, path, &mut |value| {
                if !json::is_unset(value) {
                    findings.refuse(path, "this field is not offered here");
                }
            });
        }
        for reference in &self.rules.references {
            match world.kind_named(&reference.kind) {
                Some(kind) => json::each_mut(&mut copied, &reference.path, &mut |value| {
                    if let Some(target) = value.as_str().filter(|text| !text.is_empty()) {
                        *value = host_name(kind, &Name::new(&name.namespace, target)).into();
                    }
                }),
                None => json::each(&copied, &reference.path, &mut |value| {
                    if !json::is_unset(value) {
                        let why = format!("objects of the kind {} are not offered here", reference.kind);
                        findings.refuse(&reference.path, why);
                    }
                }),
            }
        }
        for path in &self.rules.selectors {
            json::each_mut(&mut copied, path, &mut |value| {
                if value.is_object() {
                    *value = pod::scoped(world, value, Some(&[&name.namespace]));
                }
            });
        }
        let annotations = metadata::annotations(object, &mut findings.refused);
        copied["metadata"] = json!({"labels": metadata::labels(object), "annotations": annotations});
        findings.into_result(copied)
    }

    fn back(&self, world: &World, name: &Name, report: &Report<'_>) -> Vec<TenantWrite> {
        if !self.rules.status {
            return Vec::new();
        }
        let Some(status) = report.host.get("status") else {
            return Vec::new();
        };
        let mut object = json!({"status": status});
        for reference in &self.rules.references {
            json::each_mut(&mut object, &reference.path, &mut |value| {
                let tenants = world.kind_named(&reference.kind).zip(value.as_str());
                if let Some(known) = tenants.and_then(|(kind, host)| world.stores.host(kind).tenant_name(host)) {
                    *value = (*known.name).into();
                }
            });
        }
        text::map_texts(world, name, &mut object["status"]);
        vec![TenantWrite::Status(text::observed(report, object["status"].take()))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::test_tenant;
    use berth_api::sync_policy::FieldReference;
    use jiff::Timestamp;
    use std::sync::Arc;

    fn world() -> World {
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
            }],
            ..SyncPolicy::default()
        });
        World::new(tenant)
    }

    fn rules(world: &World) -> (KindId, &'static dyn Down) {
        let id = world.kind_named("Gang.example.com").unwrap();
        (id, id.down().unwrap())
    }

    #[test]
    fn a_definition_is_made_once_however_often_it_is_asked_for() {
        let pointer = |id: KindId| match id {
            KindId::Custom(custom) => std::ptr::from_ref(custom),
            _ => panic!("{id:?}"),
        };
        let policy = world().tenant.policy;
        let [first, again] = [(); 2].map(|()| Custom::all(&policy).into_iter().map(pointer).collect::<Vec<_>>());
        assert_eq!(first, again);
        let mut changed = SyncPolicy::clone(&policy);
        changed.kinds[0].status = false;
        assert_ne!(
            first,
            Custom::all(&changed).into_iter().map(pointer).collect::<Vec<_>>()
        );
    }

    #[test]
    fn references_and_selectors_are_the_hosts() {
        let world = world();
        let (id, rules) = rules(&world);
        let name = Name::new("research", "g");
        let object = json!({"metadata": {"labels": {"a": "b"}, "ownerReferences": [{}]}, "spec": {
            "tls": [{"secretName": "cert"}, {"secretName": ""}], "parent": "p", "selector": {"matchLabels": {"a": "b"}}, "count": 3},
            "status": {"phase": "x"}});
        let translated = rules.translate(&world, &name, &object).unwrap().object;
        insta::assert_yaml_snapshot!(translated);
        let targets: Vec<_> = rules
            .references(&world, &name, &object)
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
    fn what_the_class_does_not_list_is_refused() {
        let world = world();
        let (_, rules) = rules(&world);
        let object = json!({"metadata": {}, "spec": {"hostPath": "/", "unknown": "u"}, "extra": 1});
        let refused = rules.translate(&world, &Name::new("a", "g"), &object).unwrap_err();
        let fields: Vec<_> = refused.iter().map(|refusal| refusal.field.as_str()).collect();
        assert_eq!(fields, ["extra", "spec.hostPath", "spec.unknown"]);
    }

    #[test]
    fn the_status_speaks_of_the_tenants_objects() {
        let world = world();
        let (id, rules) = rules(&world);
        let (name, parent) = (Name::new("research", "g"), Name::new("research", "p"));
        let host = host_name(id, &parent);
        let known = json!({"metadata": {"name": host, "resourceVersion": "1"}});
        world.stores.host(id).written(parent, crate::store::Stored::new(&known));
        let report = Report {
            tenant: &json!({"metadata": {"generation": 4}}),
            host: &json!({"status": {"parent": host, "observedGeneration": 9, "message": format!("waits for {host}")}}),
            in_sync: true,
            refused: &[],
            now: Timestamp::UNIX_EPOCH,
        };
        let writes = rules.back(&world, &name, &report);
        let status = json!({"parent": "p", "observedGeneration": 4, "message": "waits for p"});
        assert_eq!(writes, [TenantWrite::Status(status)]);
    }
}
