//! What targets of policies there are, and to which of them a tenant belongs.

use crate::{controllers::tenant_class::class_of, stores::Stores};
use berth_api::{ScheduleTarget, ScheduleTargetKind, TenantCluster};
use berth_schedules::Place;
use kube::{ResourceExt, runtime::reflector::ObjectRef};
use std::collections::BTreeMap;

/// Projects and organizations.
#[derive(Debug, Default)]
pub(super) struct Hierarchy {
    /// The project of each namespace that belongs to one.
    project_of_namespace: BTreeMap<String, String>,
    /// All projects, each with its organization if it has one.
    organization_of_project: BTreeMap<String, Option<String>>,
}

impl Hierarchy {
    /// Those of the host: none, since there are no kinds for them yet.
    pub(super) fn observe(_stores: &Stores) -> Self {
        Self::default()
    }

    fn project_of(&self, namespace: &str) -> Option<&str> {
        self.project_of_namespace.get(namespace).map(String::as_str)
    }

    fn organization_of(&self, project: &str) -> Option<&str> {
        self.organization_of_project.get(project)?.as_deref()
    }

    fn has_project(&self, name: &str) -> bool {
        self.organization_of_project.contains_key(name)
    }

    fn has_organization(&self, name: &str) -> bool {
        let mut organizations = self.organization_of_project.values();
        organizations.any(|organization| organization.as_deref() == Some(name))
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
        class: class_of(cluster, |name| stores.classes.get(&ObjectRef::new(name)).is_some()),
        name: cluster.name_any(),
        namespace,
    }
}

/// Targets that do not exist, as texts.
pub(super) fn missing_targets(stores: &Stores, targets: &[ScheduleTarget]) -> Vec<String> {
    let hierarchy = Hierarchy::observe(stores);
    let exists = |target: &&ScheduleTarget| {
        let ScheduleTarget { kind, name, namespace } = target;
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
    use berth_api::TenantClusterSpec;
    use serde_json::json;

    fn hierarchy() -> Hierarchy {
        Hierarchy {
            project_of_namespace: [("team".to_owned(), "research".to_owned())].into(),
            organization_of_project: [
                ("research".to_owned(), Some("acme".to_owned())),
                ("free".to_owned(), None),
            ]
            .into(),
        }
    }

    fn target(kind: ScheduleTargetKind, name: &str, namespace: Option<&str>) -> ScheduleTarget {
        ScheduleTarget {
            kind,
            name: name.into(),
            namespace: namespace.map(ToOwned::to_owned),
        }
    }

    #[test]
    fn a_tenant_belongs_to_the_project_of_its_namespace() {
        let (stores, _writers) = StoreWriters::new();
        let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
        cluster.metadata.namespace = Some("team".into());
        cluster.spec.class_name = Some("gold".into());
        let place = place_of(&stores, &hierarchy(), &cluster);
        assert_eq!(place.organization.as_deref(), Some("acme"));
        assert_eq!(place.project.as_deref(), Some("research"));
        assert_eq!(place.class.as_deref(), Some("gold"));
        cluster.metadata.namespace = Some("other".into());
        let place = place_of(&stores, &hierarchy(), &cluster);
        assert_eq!((place.organization, place.project), (None, None));
        let found = hierarchy();
        assert!(found.has_project("free") && found.has_organization("acme"));
        assert!(!found.has_project("acme") && !found.has_organization("research"));
    }

    #[test]
    fn targets_that_do_not_exist_are_listed() {
        let host = ScriptedApi::new("host", &Script::default());
        host.insert(
            "/apis/berth.dev/v1alpha1/tenantclasses/gold",
            json!({"metadata": {"name": "gold"}, "spec": {}}),
        );
        let (stores, mut writers) = StoreWriters::new();
        writers.update(&host);
        let targets = [
            target(ScheduleTargetKind::TenantClass, "gold", None),
            target(ScheduleTargetKind::TenantClass, "silver", None),
            target(ScheduleTargetKind::TenantCluster, "vision", Some("team")),
            target(ScheduleTargetKind::Project, "research", None),
        ];
        assert_eq!(
            missing_targets(&stores, &targets),
            ["TenantClass silver", "TenantCluster team/vision", "Project research"]
        );
    }
}
