//! Which objects of the platform are in a bundle about some tenants. Pure.

use std::collections::BTreeSet;

use berth_api::{ALL_NAMESPACES, TenantCluster};
use kube::ResourceExt as _;
use serde_json::Value;

/// The objects of one kind, and the file for them.
pub(super) struct Objects {
    pub(super) kind: String,
    pub(super) path: String,
    pub(super) items: Vec<Value>,
}

/// Leaves those that have to do with these tenants. What other tenants used, what the platform charges for it, and the users, quotas and schedules of
/// others are left out.
pub(super) fn keep_related(lists: &mut [Objects], tenants: &[TenantCluster]) {
    let parents = Parents::find(lists, tenants);
    for Objects { kind, items, .. } in lists {
        items.retain(|object| match kind.as_str() {
            "UsageRecord" => tenants
                .iter()
                .any(|tenant| tenant.metadata.uid.as_deref() == text(object, "/spec/tenant/uid")),
            "Project" => has_name(object, &parents.projects),
            "Organization" => has_name(object, &parents.organizations),
            "SchedulePolicy" => array(object, "/spec/targets").any(|target| parents.are_target(target, tenants)),
            "RateCard" => false,
            _ => true,
        });
    }
}

/// Whether a TenantSnapshot in a namespace is of one of these tenants, or of an earlier one of the name.
pub(super) fn is_snapshot_of(snapshot: &Value, namespace: &str, tenants: &[TenantCluster]) -> bool {
    let name = text(snapshot, "/spec/tenantClusterName");
    let is_its_name = |tenant: &TenantCluster| {
        tenant.metadata.namespace.as_deref() == Some(namespace) && tenant.metadata.name.as_deref() == name
    };
    tenants.iter().any(is_its_name)
}

/// Whether an Event is about an object of this kind with one of these names. Events about others in the namespace are of others.
pub(super) fn is_event_about(event: &Value, kind: &str, names: &BTreeSet<String>) -> bool {
    let is_of_kind = text(event, "/involvedObject/kind") == Some(kind);
    is_of_kind && text(event, "/involvedObject/name").is_some_and(|name| names.contains(name))
}

/// The name of an object.
pub(super) fn name_of(object: &Value) -> Option<&str> {
    text(object, "/metadata/name")
}

/// Names of the objects whose quotas and schedules count for some tenants.
struct Parents {
    projects: BTreeSet<String>,
    organizations: BTreeSet<String>,
}

impl Parents {
    fn find(lists: &[Objects], tenants: &[TenantCluster]) -> Self {
        let of_kind = lists.iter().filter(|list| list.kind == "Project");
        let all: Vec<&Value> = of_kind.flat_map(|list| &list.items).collect();
        let named: BTreeSet<&str> = all.iter().copied().flat_map(namespaces).collect();
        let own: BTreeSet<String> = tenants
            .iter()
            .filter_map(TenantCluster::namespace)
            // The Project of all namespaces has those that no Project names.
            .map(|namespace| {
                if named.contains(namespace.as_str()) {
                    namespace
                } else {
                    ALL_NAMESPACES.to_owned()
                }
            })
            .collect();
        let related = |project: &&Value| namespaces(project).any(|namespace| own.contains(namespace));
        let related: Vec<&Value> = all.into_iter().filter(related).collect();
        let names = |pointer: &str| -> BTreeSet<String> {
            let names = related.iter().filter_map(|project| text(project, pointer));
            names.map(str::to_owned).collect()
        };
        Self {
            projects: names("/metadata/name"),
            organizations: names("/spec/organizationName"),
        }
    }

    /// Whether a target of a SchedulePolicy is one of the tenants, has them, or is a class, which is nobody's alone.
    fn are_target(&self, target: &Value, tenants: &[TenantCluster]) -> bool {
        match text(target, "/kind") {
            Some("Organization") => text(target, "/name").is_some_and(|name| self.organizations.contains(name)),
            Some("Project") => text(target, "/name").is_some_and(|name| self.projects.contains(name)),
            Some("TenantCluster") => tenants.iter().any(|tenant| {
                tenant.metadata.name.as_deref() == text(target, "/name")
                    && tenant.metadata.namespace.as_deref() == text(target, "/namespace")
            }),
            _ => true,
        }
    }
}

fn has_name(object: &Value, names: &BTreeSet<String>) -> bool {
    name_of(object).is_some_and(|name| names.contains(name))
}

/// The namespaces that a Project names.
fn namespaces(project: &Value) -> impl Iterator<Item = &str> {
    array(project, "/spec/namespaces").filter_map(Value::as_str)
}

fn array<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

fn text<'a>(object: &'a Value, pointer: &str) -> Option<&'a str> {
    object.pointer(pointer)?.as_str()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tenant() -> TenantCluster {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "a", "namespace": "team", "uid": "own"}, "spec": {},
        }))
        .unwrap()
    }

    fn object(name: &str, spec: &Value) -> Value {
        json!({"metadata": {"name": name}, "spec": spec})
    }

    fn objects(kind: &str, items: Vec<Value>) -> Objects {
        Objects {
            kind: kind.into(),
            path: String::new(),
            items,
        }
    }

    fn names(list: &Objects) -> Vec<&str> {
        list.items.iter().filter_map(name_of).collect()
    }

    #[test]
    fn snapshots_of_a_tenant_are_found_by_its_namespace_and_name() {
        let of = |tenant: &str| object("nightly", &json!({"tenantClusterName": tenant}));
        let tenants = [tenant()];
        assert!(is_snapshot_of(&of("a"), "team", &tenants));
        assert!(!is_snapshot_of(&of("b"), "team", &tenants));
        assert!(!is_snapshot_of(&of("a"), "others", &tenants));
        assert!(!is_snapshot_of(&object("broken", &json!({})), "team", &tenants));
    }

    #[test]
    fn events_are_of_a_tenant_if_they_are_about_it_or_one_of_its_snapshots() {
        let about = |kind: &str, name: &str| json!({"involvedObject": {"kind": kind, "name": name}});
        let names = BTreeSet::from(["a".to_owned()]);
        assert!(is_event_about(&about("TenantSnapshot", "a"), "TenantSnapshot", &names));
        assert!(!is_event_about(&about("TenantSnapshot", "b"), "TenantSnapshot", &names));
        assert!(!is_event_about(&about("TenantCluster", "a"), "TenantSnapshot", &names));
        assert!(!is_event_about(&json!({}), "TenantSnapshot", &names));
    }

    #[test]
    fn objects_of_others_are_left_out() {
        let target = |name: &str, target: Value| object(name, &json!({"targets": [target]}));
        let organizations = ["org", "other-org"].map(|name| object(name, &json!({})));
        let projects = vec![
            object("own", &json!({"namespaces": ["x", "team"], "organizationName": "org"})),
            object(
                "other",
                &json!({"namespaces": ["others"], "organizationName": "other-org"}),
            ),
            object("of-the-rest", &json!({"namespaces": ["*"]})),
            object("of-none", &json!({})),
        ];
        let policies = vec![
            target(
                "of-tenant",
                json!({"kind": "TenantCluster", "name": "a", "namespace": "team"}),
            ),
            target("of-project", json!({"kind": "Project", "name": "own"})),
            target("of-organization", json!({"kind": "Organization", "name": "org"})),
            target("of-class", json!({"kind": "TenantClass", "name": "gold"})),
            target(
                "other-namespace",
                json!({"kind": "TenantCluster", "name": "a", "namespace": "others"}),
            ),
            target("other-project", json!({"kind": "Project", "name": "other"})),
            target(
                "other-organization",
                json!({"kind": "Organization", "name": "other-org"}),
            ),
            object("of-nobody", &json!({})),
        ];
        let records = ["own", "other"].map(|uid| object(uid, &json!({"tenant": {"uid": uid}})));
        let mut lists = [
            // As they are read: before the Projects that say which of them count.
            objects("Organization", organizations.to_vec()),
            objects("Project", projects),
            objects("RateCard", vec![object("card", &json!({}))]),
            objects("SchedulePolicy", policies),
            objects("TenantClass", vec![object("gold", &json!({}))]),
            objects("UsageRecord", records.to_vec()),
        ];
        keep_related(&mut lists, &[tenant()]);
        let [organizations, projects, cards, policies, classes, records] = &lists;
        assert_eq!(names(organizations), ["org"]);
        assert_eq!(names(projects), ["own"]);
        assert!(names(cards).is_empty());
        assert_eq!(
            names(policies),
            ["of-tenant", "of-project", "of-organization", "of-class"]
        );
        assert_eq!(names(classes), ["gold"]);
        assert_eq!(names(records), ["own"]);
    }

    #[test]
    fn the_project_of_all_namespaces_has_those_that_no_project_names() {
        let mut lists = [objects(
            "Project",
            vec![
                object("other", &json!({"namespaces": ["others"]})),
                object("of-the-rest", &json!({"namespaces": ["*"]})),
            ],
        )];
        keep_related(&mut lists, &[tenant()]);
        assert_eq!(names(&lists[0]), ["of-the-rest"]);
    }
}
