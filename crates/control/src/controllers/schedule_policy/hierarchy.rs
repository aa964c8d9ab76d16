//! What targets of policies there are, and to which of them a tenant belongs.

use crate::{controllers::tenant_class::class_of, stores::Stores};
use berth_api::{ALL_NAMESPACES, ScheduleTarget, ScheduleTargetKind, TenantCluster};
use berth_quota::Projects;
use berth_schedules::Place;
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use std::collections::{BTreeMap, BTreeSet};

/// Projects and Organizations.
#[derive(Debug, Default)]
pub(super) struct Hierarchy {
    /// The Project of each namespace that one names; with the key `*` that of all others.
    project_of_namespace: BTreeMap<String, String>,
    /// All Projects, each with the Organization that it names.
    organization_of_project: BTreeMap<String, Option<String>>,
    /// All Organizations.
    organizations: BTreeSet<String>,
}

impl Hierarchy {
    /// Those of the host, by the rules that quotas have.
    pub(super) fn observe(stores: &Stores) -> Self {
        let projects = stores.projects.state();
        let owners = Projects::new(projects.iter().map(AsRef::as_ref));
        let namespaces = projects.iter().flat_map(|project| &project.spec.namespaces);
        let owned = namespaces.filter_map(|namespace| Some((namespace.clone(), owners.of(namespace)?.to_owned())));
        let organizations = stores.organizations.state();
        Self {
            project_of_namespace: owned.collect(),
            organization_of_project: projects
                .iter()
                .map(|project| (project.name_any(), project.spec.organization_name.clone()))
                .collect(),
            organizations: organizations
                .iter()
                .map(|organization| organization.name_any())
                .collect(),
        }
    }

    fn project_of(&self, namespace: &str) -> Option<&str> {
        let named = self.project_of_namespace.get(namespace);
        named
            .or_else(|| self.project_of_namespace.get(ALL_NAMESPACES))
            .map(String::as_str)
    }

    /// The Organization of a Project. One that does not exist has no Projects.
    fn organization_of(&self, project: &str) -> Option<&str> {
        let name = self.organization_of_project.get(project)?.as_deref()?;
        self.has_organization(name).then_some(name)
    }

    fn has_project(&self, name: &str) -> bool {
        self.organization_of_project.contains_key(name)
    }

    fn has_organization(&self, name: &str) -> bool {
        self.organizations.contains(name)
    }
}

/// Where a tenant belongs.
pub(super) fn place_of(stores: &Stores, hierarchy: &Hierarchy, cluster: &TenantCluster) -> Place {
    let namespace = cluster.namespace().unwrap_or_default();
    let project = hierarchy.project_of(&namespace);
    Place {
        organization: project
            .and_then(|project| hierarchy.organization_of(project))
            .map(ToOwned::to_owned),
        project: project.map(ToOwned::to_owned),
        class: class_that_applies(stores, cluster),
        name: cluster.name_any(),
        namespace,
    }
}

/// The class that a tenant runs with, and before it runs the one that its spec asks for. Otherwise a spec that names another class and is
/// not accepted would be a way around the policies of the class whose rules the tenant keeps.
fn class_that_applies(stores: &Stores, cluster: &TenantCluster) -> Option<String> {
    let running = cluster.status.as_ref().and_then(|status| status.class_name.clone());
    running.or_else(|| class_of(cluster, |name| stores.classes.get(&ObjectRef::new(name)).is_some()))
}

/// Targets that do not exist, as texts.
pub(super) fn missing_targets(stores: &Stores, hierarchy: &Hierarchy, targets: &[ScheduleTarget]) -> Vec<String> {
    let exists = |target: &&ScheduleTarget| {
        let ScheduleTarget {
            kind,
            name,
            namespace,
            workloads: _,
        } = target;
        match kind {
            ScheduleTargetKind::Organization => hierarchy.has_organization(name),
            ScheduleTargetKind::Project => hierarchy.has_project(name),
            ScheduleTargetKind::TenantClass => stores.classes.get(&ObjectRef::new(name)).is_some(),
            ScheduleTargetKind::TenantCluster => {
                let namespace = namespace.as_deref().unwrap_or_default();
                stores.tenants.get(&ObjectRef::new(name).within(namespace)).is_some()
            }
        }
    };
    let missing = targets.iter().filter(|target| !exists(target));
    missing.map(describe).collect()
}

fn describe(target: &ScheduleTarget) -> String {
    let kind = target.kind.name();
    match &target.namespace {
        Some(namespace) => format!("{kind} {namespace}/{}", target.name),
        None => format!("{kind} {}", target.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi, StoreWriters};
    use berth_api::{TenantClusterSpec, TenantClusterStatus};
    use serde_json::json;

    const API: &str = "/apis/berth.dev/v1alpha1";

    /// An Organization `acme` with the Project `research` of the namespace `team`, and `free` for all other namespaces, whose
    /// Organization does not exist.
    fn host() -> ScriptedApi {
        let host = ScriptedApi::new("host", &Script::default());
        host.insert(
            &format!("{API}/organizations/acme"),
            json!({"metadata": {"name": "acme"}, "spec": {}}),
        );
        for (name, organization, namespaces) in [("research", "acme", json!(["team"])), ("free", "gone", json!(["*"]))]
        {
            let spec = json!({"organizationName": organization, "namespaces": namespaces});
            host.insert(
                &format!("{API}/projects/{name}"),
                json!({"metadata": {"name": name}, "spec": spec}),
            );
        }
        host
    }

    fn place(stores: &Stores, namespace: &str) -> (Option<String>, Option<String>) {
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        cluster.metadata.namespace = Some(namespace.into());
        let place = place_of(stores, &Hierarchy::observe(stores), &cluster);
        (place.organization, place.project)
    }

    fn target(kind: ScheduleTargetKind, name: &str, namespace: Option<&str>) -> ScheduleTarget {
        ScheduleTarget {
            kind,
            name: name.into(),
            namespace: namespace.map(ToOwned::to_owned),
            workloads: None,
        }
    }

    #[test]
    fn a_tenant_belongs_to_the_project_of_its_namespace() {
        let (host, (stores, mut writers)) = (host(), StoreWriters::new());
        assert_eq!(place(&stores, "team"), (None, None), "there are no Projects");
        writers.update(&host);
        let (acme, research) = (Some("acme".to_owned()), Some("research".to_owned()));
        assert_eq!(place(&stores, "team"), (acme, research));
        assert_eq!(place(&stores, "other"), (None, Some("free".to_owned())));
        host.remove(&format!("{API}/projects/free"));
        host.remove(&format!("{API}/organizations/acme"));
        writers.update(&host);
        assert_eq!(place(&stores, "other"), (None, None));
        assert_eq!(place(&stores, "team"), (None, Some("research".to_owned())));
    }

    #[test]
    fn a_namespace_that_two_projects_name_belongs_to_the_older_one() {
        let host = ScriptedApi::new("host", &Script::default());
        for (name, created) in [("alpha", "2026-01-02T00:00:00Z"), ("zeta", "2026-01-01T00:00:00Z")] {
            host.insert(
                &format!("{API}/projects/{name}"),
                json!({
                    "metadata": {"name": name, "creationTimestamp": created}, "spec": {"namespaces": ["team"]},
                }),
            );
        }
        let (stores, mut writers) = StoreWriters::new();
        writers.update(&host);
        assert_eq!(place(&stores, "team"), (None, Some("zeta".to_owned())));
    }

    #[test]
    fn a_tenant_belongs_to_the_class_that_it_runs_with() {
        let (stores, _writers) = StoreWriters::new();
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        let class = |cluster: &TenantCluster| place_of(&stores, &Hierarchy::default(), cluster).class;
        assert_eq!(class(&cluster), None);
        cluster.spec.class_name = Some("gold".into());
        assert_eq!(class(&cluster).as_deref(), Some("gold"), "it does not run yet");
        cluster.status = Some(TenantClusterStatus {
            class_name: Some("gold".into()),
            ..TenantClusterStatus::default()
        });
        // There is no such class: the spec is not accepted, and the tenant keeps the rules that it has.
        cluster.spec.class_name = Some("without-schedule".into());
        assert_eq!(class(&cluster).as_deref(), Some("gold"));
    }

    #[test]
    fn targets_that_do_not_exist_are_listed() {
        let host = host();
        host.insert(
            &format!("{API}/tenantclasses/gold"),
            json!({"metadata": {"name": "gold"}, "spec": {}}),
        );
        let (stores, mut writers) = StoreWriters::new();
        writers.update(&host);
        let targets = [
            target(ScheduleTargetKind::TenantClass, "gold", None),
            target(ScheduleTargetKind::TenantClass, "silver", None),
            target(ScheduleTargetKind::TenantCluster, "vision", Some("team")),
            target(ScheduleTargetKind::Project, "research", None),
            target(ScheduleTargetKind::Project, "acme", None),
            target(ScheduleTargetKind::Organization, "acme", None),
            target(ScheduleTargetKind::Organization, "gone", None),
        ];
        assert_eq!(
            missing_targets(&stores, &Hierarchy::observe(&stores), &targets),
            [
                "TenantClass silver",
                "TenantCluster team/vision",
                "Project acme",
                "Organization gone"
            ]
        );
    }
}
