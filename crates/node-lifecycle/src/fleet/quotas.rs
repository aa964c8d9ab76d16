//! The planner's quota tree: Organizations with their Projects, and classes for the tenants that belong to no Project.

use super::{SnapshotInput, TenantInput};
use berth_api::{Amount, FairSharing, Organization, PoolQuota, Project, TenantClass, TreeQuota, TreeResource};
use berth_planner::Quota;
use kube_core::ResourceExt;
use std::collections::{BTreeMap, HashMap};

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
    let below = sum_nominal_quotas(input.projects.iter().map(AsRef::as_ref));
    let organizations = input
        .organizations
        .iter()
        .map(|level| organization_quota(level, &below));
    let organizations: Vec<Quota> = organizations.collect();
    let mut all: Vec<Quota> = classes.chain(organizations).chain(projects).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

/// Which GPUs a quota limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Gpus {
    OfPool(String),
    OfProduct(String),
    All,
}

impl Gpus {
    /// None: the quota is one of another resource.
    fn of(quota: &TreeQuota) -> Option<Self> {
        if quota.resource != TreeResource::Gpus {
            return None;
        }
        let of_pool = quota.pool_name.clone().map(Self::OfPool);
        let of_product = || quota.gpu_product.clone().map(Self::OfProduct);
        Some(of_pool.or_else(of_product).unwrap_or(Self::All))
    }
}

/// A quota of GPUs.
#[derive(Clone, Copy)]
struct GpuQuota {
    nominal: u64,
    lending: Option<u64>,
    borrowing: Option<u64>,
}

/// The quotas of GPUs of a level. Of several entries for the same GPUs the first counts.
fn list_gpu_quotas(quotas: &[TreeQuota]) -> BTreeMap<Gpus, GpuQuota> {
    let amount = |amount: &Amount| amount.value().unwrap_or(0).min(MOST_GPUS);
    let mut listed = BTreeMap::new();
    for quota in quotas {
        let Some(gpus) = Gpus::of(quota) else { continue };
        listed.entry(gpus).or_insert(GpuQuota {
            nominal: amount(&quota.nominal_quota),
            lending: quota.lending_limit.as_ref().map(amount),
            borrowing: quota.borrowing_limit.as_ref().map(amount),
        });
    }
    listed
}

/// The nominal quotas of the Projects of each Organization, by its name.
type NominalQuotas = HashMap<String, BTreeMap<Gpus, u64>>;

fn sum_nominal_quotas<'a>(projects: impl Iterator<Item = &'a Project>) -> NominalQuotas {
    let mut sums = NominalQuotas::new();
    for project in projects {
        let Some(organization) = &project.spec.organization_name else {
            continue;
        };
        let of_organization = sums.entry(organization.clone()).or_default();
        for (gpus, quota) in list_gpu_quotas(&project.spec.quotas) {
            let sum = of_organization.entry(gpus).or_default();
            *sum = sum.saturating_add(quota.nominal);
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
        ..Quota::default()
    }
}

/// The quota of an Organization. Its nominal quota is at least the sum of those of its Projects, also where its limit is concerned.
fn organization_quota(organization: &Organization, below: &NominalQuotas) -> Quota {
    let (spec, name) = (&organization.spec, organization.name_any());
    let below = below.get(&name);
    level_quota(
        organization_name(&name),
        None,
        spec.fair_sharing,
        &spec.quotas,
        |gpus| below.and_then(|below| below.get(gpus)).copied().unwrap_or(0),
    )
}

fn project_quota(project: &Project) -> Quota {
    let spec = &project.spec;
    let parent = spec.organization_name.as_deref().map(organization_name);
    let name = project_name(&project.name_any());
    Quota {
        // The tenants of a class may belong to any team.
        shares_pauses: true,
        ..level_quota(name, parent, spec.fair_sharing, &spec.quotas, |_| 0)
    }
}

/// The GPUs among the quotas of a level. `below` says how much the nominal quotas of the levels below it are together.
fn level_quota(
    name: String,
    parent: Option<String>,
    fair_sharing: FairSharing,
    quotas: &[TreeQuota],
    below: impl Fn(&Gpus) -> u64,
) -> Quota {
    let mut quota = Quota {
        name,
        parent,
        weight: fair_sharing.weight,
        ..Quota::default()
    };
    for (gpus, listed) in list_gpu_quotas(quotas) {
        let nominal = listed.nominal.max(below(&gpus));
        let limit = listed.borrowing.map(|borrowing| nominal.saturating_add(borrowing));
        match gpus {
            Gpus::OfPool(pool) => {
                quota
                    .lending_limit
                    .extend(listed.lending.map(|lending| (pool.clone(), lending)));
                quota.limit.extend(limit.map(|limit| (pool.clone(), limit)));
                quota.nominal_quota.insert(pool, listed.nominal);
            }
            Gpus::OfProduct(product) => quota.product_limit.extend(limit.map(|limit| (product, limit))),
            Gpus::All => quota.total_limit = limit,
        }
    }
    quota
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{OrganizationSpec, ProjectSpec, TenantCluster, TenantClusterSpec};

    #[test]
    fn the_limit_of_an_organization_leaves_room_for_the_nominal_quotas_of_its_projects() {
        let gpus = |nominal: u32, borrowing: Option<u32>| TreeQuota {
            resource: TreeResource::Gpus,
            pool_name: Some("h100".into()),
            gpu_product: None,
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
            Project::new(name, spec)
        };
        let spec = OrganizationSpec {
            quotas: vec![gpus(10, Some(2))],
            ..OrganizationSpec::default()
        };
        let organization = Organization::new("lab", spec);
        let limit = |projects: &[Project]| {
            organization_quota(&organization, &sum_nominal_quotas(projects.iter())).limit["h100"]
        };
        assert_eq!(limit(&[project("a")]), 12);
        assert_eq!(limit(&[project("a"), project("b")]), 18);
    }

    #[test]
    fn gpus_of_several_pools_have_a_maximum() {
        let gpus = |product: Option<&str>, nominal: u32, borrowing: u32| TreeQuota {
            resource: TreeResource::Gpus,
            pool_name: None,
            gpu_product: product.map(Into::into),
            nominal_quota: nominal.into(),
            borrowing_limit: Some(borrowing.into()),
            lending_limit: None,
        };
        let project = |name: &str| {
            let spec = ProjectSpec {
                organization_name: Some("lab".into()),
                quotas: vec![gpus(None, 24, 8), gpus(Some("H100"), 16, 0)],
                ..ProjectSpec::default()
            };
            Project::new(name, spec)
        };
        let projects = [project("a"), project("b")];
        let built = project_quota(&projects[0]);
        assert_eq!((built.total_limit, built.product_limit["H100"]), (Some(32), 16));
        assert!(built.nominal_quota.is_empty() && built.limit.is_empty());
        let spec = OrganizationSpec {
            quotas: vec![gpus(None, 40, 0)],
            ..OrganizationSpec::default()
        };
        let above = organization_quota(&Organization::new("lab", spec), &sum_nominal_quotas(projects.iter()));
        assert_eq!(above.total_limit, Some(48), "its Projects have 48 together");
        assert!(above.product_limit.is_empty());
    }

    #[test]
    fn the_largest_quotas_can_be_added_up() {
        let quota = TreeQuota {
            resource: TreeResource::Gpus,
            pool_name: Some("h100".into()),
            gpu_product: None,
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
            class: class.map(Into::into),
            project: project.map(Into::into),
            ..TenantInput::accepted(TenantCluster::new("a", TenantClusterSpec::default()))
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
            gpu_product: None,
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
                shares_pauses: true,
                ..Quota::default()
            }
        );
    }
}
