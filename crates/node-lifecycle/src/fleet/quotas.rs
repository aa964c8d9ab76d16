//! The planner's quota tree: Organizations with their Projects, and classes for the tenants that belong to no Project.

use super::{SnapshotInput, TenantInput};
use berth_api::{Amount, FairSharing, Organization, PoolQuota, Project, TenantClass, TreeQuota, TreeResource};
use berth_planner::Quota;
use kube_core::ResourceExt;
use std::collections::HashMap;

/// More GPUs than any pool has: the planner adds quotas up, and a quota may be any number that its author takes for no limit.
const MOST_GPUS: u64 = 1 << 32;

/// The quota that a tenant belongs to. In a Project, the quotas of the class do not apply.
pub(super) fn quota_of(tenant: &TenantInput) -> Option<String> {
    let project = tenant.project.as_deref().map(project_name);
    project.or_else(|| tenant.class.clone())
}

/// All quotas, by name.
pub(super) fn build_tree(input: &SnapshotInput<'_>) -> Vec<Quota> {
    let classes = input.classes.iter().map(|class| class_quota(class));
    let projects: Vec<Quota> = input.projects.iter().map(|level| project_quota(level)).collect();
    let below = sum_nominal_quotas(&projects);
    let organizations = input
        .organizations
        .iter()
        .map(|level| organization_quota(level, &below));
    let organizations: Vec<Quota> = organizations.collect();
    let mut all: Vec<Quota> = classes.chain(organizations).chain(projects).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// The nominal quotas of the Projects of each Organization, by the name of its quota and the pool.
fn sum_nominal_quotas(projects: &[Quota]) -> HashMap<(String, String), u64> {
    let mut sums = HashMap::new();
    for project in projects {
        let Some(parent) = &project.parent else { continue };
        for (pool, nominal) in &project.nominal_quota {
            let sum: &mut u64 = sums.entry((parent.clone(), pool.clone())).or_default();
            *sum = sum.saturating_add(*nominal);
        }
    }
    sums
}

// No class has a slash in its name.
fn organization_name(name: &str) -> String {
    format!("organization/{name}")
}

fn project_name(name: &str) -> String {
    format!("project/{name}")
}

fn class_quota(class: &TenantClass) -> Quota {
    let quotas = || class.spec.quotas.iter();
    let of = |quota: &PoolQuota, amount: u64| (quota.pool_name.clone(), amount);
    Quota {
        name: class.name_any(),
        parent: None,
        weight: class.spec.fair_sharing.weight,
        nominal_quota: quotas().map(|quota| of(quota, quota.nominal_quota)).collect(),
        lending_limit: quotas()
            .filter_map(|quota| Some(of(quota, quota.lending_limit?)))
            .collect(),
        limit: quotas()
            .filter_map(|quota| Some(of(quota, quota.nominal_quota.saturating_add(quota.borrowing_limit?))))
            .collect(),
    }
}

/// The quota of an Organization. Its nominal quota is at least the sum of those of its Projects, also where its limit is concerned.
fn organization_quota(organization: &Organization, below: &HashMap<(String, String), u64>) -> Quota {
    let spec = &organization.spec;
    let name = organization_name(&organization.name_any());
    let mut quota = level_quota(name, None, spec.fair_sharing, &spec.quotas);
    for (pool, limit) in &mut quota.limit {
        let below = below.get(&(quota.name.clone(), pool.clone())).copied().unwrap_or(0);
        let nominal = quota.nominal_quota.get(pool).copied().unwrap_or(0);
        *limit = limit.saturating_add(below.saturating_sub(nominal));
    }
    quota
}

fn project_quota(project: &Project) -> Quota {
    let spec = &project.spec;
    let parent = spec.organization_name.as_deref().map(organization_name);
    level_quota(
        project_name(&project.name_any()),
        parent,
        spec.fair_sharing,
        &spec.quotas,
    )
}

/// The GPUs among the quotas of a level. Of several entries for a pool the first counts.
fn level_quota(name: String, parent: Option<String>, fair_sharing: FairSharing, quotas: &[TreeQuota]) -> Quota {
    let mut quota = Quota {
        name,
        parent,
        weight: fair_sharing.weight,
        ..Quota::default()
    };
    let amount = |amount: &Amount| amount.value().unwrap_or(0).min(MOST_GPUS);
    for listed in quotas.iter().filter(|listed| listed.resource == TreeResource::Gpus) {
        let Some(pool) = listed.pool_name.clone() else { continue };
        if quota.nominal_quota.contains_key(&pool) {
            continue;
        }
        let nominal = amount(&listed.nominal_quota);
        if let Some(lending) = &listed.lending_limit {
            quota.lending_limit.insert(pool.clone(), amount(lending));
        }
        if let Some(borrowing) = &listed.borrowing_limit {
            quota
                .limit
                .insert(pool.clone(), nominal.saturating_add(amount(borrowing)));
        }
        quota.nominal_quota.insert(pool, nominal);
    }
    quota
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::WithdrawnNodes;
    use berth_api::{OrganizationSpec, ProjectSpec, ScheduleState, TenantCluster, TenantClusterSpec};
    use std::sync::Arc;

    #[test]
    fn the_limit_of_an_organization_leaves_room_for_the_nominal_quotas_of_its_projects() {
        let gpus = |nominal: u32, borrowing: Option<u32>| TreeQuota {
            resource: TreeResource::Gpus,
            pool_name: Some("h100".into()),
            nominal_quota: nominal.into(),
            borrowing_limit: borrowing.map(Into::into),
            lending_limit: None,
        };
        let project = |name: &str| {
            let spec = ProjectSpec {
                organization_name: Some("lab".into()),
                quotas: vec![gpus(8, None)],
                ..ProjectSpec::default()
            };
            project_quota(&Project::new(name, spec))
        };
        let spec = OrganizationSpec {
            quotas: vec![gpus(10, Some(2))],
            ..OrganizationSpec::default()
        };
        let organization = Organization::new("lab", spec);
        let limit = |projects: &[Quota]| organization_quota(&organization, &sum_nominal_quotas(projects)).limit["h100"];
        assert_eq!(limit(&[project("a")]), 12);
        assert_eq!(limit(&[project("a"), project("b")]), 18);
    }

    #[test]
    fn the_largest_quotas_can_be_added_up() {
        let quota = TreeQuota {
            resource: TreeResource::Gpus,
            pool_name: Some("h100".into()),
            nominal_quota: Amount::Number(i64::MAX),
            borrowing_limit: Some(Amount::Number(i64::MAX)),
            lending_limit: Some(Amount::Number(i64::MAX)),
        };
        let spec = ProjectSpec {
            quotas: vec![quota],
            ..ProjectSpec::default()
        };
        let built = project_quota(&Project::new("vision", spec));
        assert_eq!(built.nominal_quota["h100"], MOST_GPUS);
        assert_eq!(built.lending_limit["h100"], MOST_GPUS);
        assert_eq!(built.limit["h100"], 2 * MOST_GPUS);
    }

    #[test]
    fn a_tenant_belongs_to_its_project_or_else_to_its_class() {
        let tenant = |class: Option<&str>, project: Option<&str>| TenantInput {
            cluster: Arc::new(TenantCluster::new("a", TenantClusterSpec::default())),
            accepted: true,
            withdrawn: WithdrawnNodes::default(),
            gone: false,
            class: class.map(Into::into),
            project: project.map(Into::into),
            schedule: ScheduleState::Running,
        };
        for (class, project, quota) in [
            (Some("gold"), Some("vision"), Some("project/vision")),
            (Some("gold"), None, Some("gold")),
            (None, None, None),
        ] {
            assert_eq!(quota_of(&tenant(class, project)).as_deref(), quota);
        }
    }

    #[test]
    fn gpus_of_a_project_are_a_quota_below_its_organization() {
        let quota = |resource: TreeResource, pool: Option<&str>, nominal: u32| TreeQuota {
            resource,
            pool_name: pool.map(Into::into),
            nominal_quota: nominal.into(),
            borrowing_limit: Some(2_u32.into()),
            lending_limit: Some(1_u32.into()),
        };
        let spec = ProjectSpec {
            organization_name: Some("lab".into()),
            quotas: vec![
                quota(TreeResource::TenantClusters, None, 3),
                quota(TreeResource::Gpus, Some("h100"), 16),
                quota(TreeResource::Gpus, Some("h100"), 99),
            ],
            ..ProjectSpec::default()
        };
        let built = project_quota(&Project::new("vision", spec));
        assert_eq!(
            built,
            Quota {
                name: "project/vision".into(),
                parent: Some("organization/lab".into()),
                weight: 1,
                nominal_quota: [("h100".to_owned(), 16)].into(),
                lending_limit: [("h100".to_owned(), 1)].into(),
                limit: [("h100".to_owned(), 18)].into(),
            }
        );
    }
}
