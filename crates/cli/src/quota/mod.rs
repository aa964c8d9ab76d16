//! `berth quota`: the tree of Organizations, Projects and users, what each of them has reserved of its quotas and uses of that, and why
//! tenants and pods wait.

#[cfg(test)]
mod tests;
mod text;

use std::process::ExitCode;

use berth_api::{Organization, Project, TenantCluster, TreeQuotaStatus, UserStatus, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde::Serialize;

use crate::error::{Error, describe as describe_error, failed, is_forbidden};
use crate::host::HostArguments;
use crate::output::{ObjectFormat, print_named};
use crate::tenant::{self, NamespacesArgument, TenantName, VisibleTenants};

/// The whole tree. Programs read it: fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct QuotaView {
    /// All Organizations and Projects together.
    total: Vec<TreeQuotaStatus>,
    /// Organizations with their Projects, and Projects without an Organization.
    levels: Vec<LevelView>,
    /// TenantClusters that belong to no Project.
    tenants_without_project: usize,
    /// The one namespace that was asked for, if it belongs to none of the Projects.
    #[serde(skip_serializing_if = "Option::is_none")]
    namespace_without_project: Option<String>,
    /// Why there are no levels, if the user may not list them.
    #[serde(skip_serializing_if = "Option::is_none")]
    levels_not_shown: Option<String>,
    /// Tenants that do not get what they request, if there are no levels for that reason.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<WaitingView>,
}

/// An Organization or a Project.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LevelView {
    kind: &'static str,
    name: String,
    tenants: u32,
    waiting_tenants: u32,
    /// What is wrong with it.
    problems: Vec<String>,
    quotas: Vec<TreeQuotaStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    projects: Vec<LevelView>,
    /// Users of a Project that limits them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    users: Vec<UserStatus>,
    /// Users with pods that the Project does not list, because they are too many.
    #[serde(skip_serializing_if = "Option::is_none")]
    users_not_listed: Option<u32>,
    /// Tenants of a Project that do not get what they request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    waiting: Vec<WaitingView>,
}

/// A tenant that waits for quota, or for nodes because of a quota.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WaitingView {
    tenant: String,
    message: String,
}

pub(crate) async fn run(
    host: &HostArguments,
    namespaces: NamespacesArgument,
    format: ObjectFormat,
) -> Result<ExitCode, Error> {
    let given = namespaces.given(host);
    let host = host.connect().await?;
    let VisibleTenants { tenants, namespace } = tenant::list_visible(&host, given, namespaces).await?;
    let params = ListParams::default();
    let (all_organizations, all_projects) = (
        Api::<Organization>::all(host.client.clone()),
        Api::<Project>::all(host.client.clone()),
    );
    let (organizations, projects) = tokio::join!(all_organizations.list(&params), all_projects.list(&params));
    let view = match (organizations, projects) {
        (Ok(organizations), Ok(projects)) => view_of_levels(organizations.items, projects.items, &tenants, namespace),
        (Err(error), _) | (_, Err(error)) if is_forbidden(&error) => view_of_tenants(&tenants, &describe_error(&error)),
        (Err(error), _) => return Err(failed("list the Organizations")(error)),
        (_, Err(error)) => return Err(failed("list the Projects")(error)),
    };
    print_named(&view, &list_names(&view.levels), text::describe, format)?;
    Ok(ExitCode::SUCCESS)
}

/// Resource and name of each level, Projects behind their Organization.
fn list_names(levels: &[LevelView]) -> Vec<String> {
    let names = levels.iter().flat_map(|level| {
        let own = format!("{}.berth.dev/{}", level.kind.to_lowercase(), level.name);
        std::iter::once(own).chain(list_names(&level.projects))
    });
    names.collect()
}

fn build_view(organizations: &[Organization], projects: &[Project], tenants: &[TenantCluster]) -> QuotaView {
    let owners = berth_quota::Projects::new(projects);
    let owner = |tenant: &TenantCluster| owners.of(&tenant.namespace().unwrap_or_default());
    let exists = |name: &str| organizations.iter().any(|one| one.name_any() == name);
    let view = |project: &Project| {
        let name = project.name_any();
        let own = tenants.iter().filter(|tenant| owner(tenant) == Some(name.as_str()));
        project_view(project, own)
    };
    let is_in = |project: &&Project, name: &str| project.spec.organization_name.as_deref() == Some(name);
    let mut levels: Vec<LevelView> = organizations
        .iter()
        .map(|organization| {
            let name = organization.name_any();
            let own = projects.iter().filter(|project| is_in(project, &name));
            organization_view(organization, own.map(view).collect())
        })
        .collect();
    let alone = projects.iter().filter(|project| {
        let organization = project.spec.organization_name.as_deref();
        !organization.is_some_and(exists)
    });
    levels.extend(alone.map(view));
    QuotaView {
        total: sum_up(&levels),
        levels,
        tenants_without_project: tenants.iter().filter(|tenant| owner(tenant).is_none()).count(),
        namespace_without_project: None,
        levels_not_shown: None,
        waiting: Vec::new(),
    }
}

/// The view of all levels, or of those of one namespace.
fn view_of_levels(
    mut organizations: Vec<Organization>,
    mut projects: Vec<Project>,
    tenants: &[TenantCluster],
    namespace: Option<String>,
) -> QuotaView {
    let has_levels = !(organizations.is_empty() && projects.is_empty());
    if let Some(namespace) = &namespace {
        retain_levels_of(namespace, &mut organizations, &mut projects);
    }
    QuotaView {
        namespace_without_project: namespace.filter(|_| has_levels && projects.is_empty()),
        ..build_view(&organizations, &projects, tenants)
    }
}

/// Keeps the Project of a namespace, and its Organization.
fn retain_levels_of(namespace: &str, organizations: &mut Vec<Organization>, projects: &mut Vec<Project>) {
    let owner = berth_quota::Projects::new(projects.iter())
        .of(namespace)
        .map(ToOwned::to_owned);
    projects.retain(|project| Some(project.name_any()) == owner);
    organizations.retain(|organization| {
        let name = organization.name_any();
        let mut all = projects.iter();
        all.any(|project| project.spec.organization_name.as_ref() == Some(&name))
    });
}

/// What is known to somebody who may not list Organizations and Projects, for the reason `error`.
fn view_of_tenants(tenants: &[TenantCluster], error: &str) -> QuotaView {
    QuotaView {
        total: Vec::new(),
        levels: Vec::new(),
        tenants_without_project: 0,
        namespace_without_project: None,
        levels_not_shown: Some(error.to_owned()),
        waiting: tenants.iter().flat_map(list_waits).collect(),
    }
}

/// What levels have together of everything that any of them limits, and what they use of it if all of them know it.
fn sum_up(levels: &[LevelView]) -> Vec<TreeQuotaStatus> {
    let mut sums: Vec<TreeQuotaStatus> = Vec::new();
    for level in levels {
        // Of what an Organization does not limit, its Projects have quotas of their own.
        let below = sum_up(&level.projects);
        let is_listed = |quota: &TreeQuotaStatus| level.quotas.iter().any(|own| is_same(own, quota));
        let unlisted = below.into_iter().filter(|quota| !is_listed(quota));
        for quota in level.quotas.iter().cloned().chain(unlisted) {
            match sums.iter_mut().find(|sum| is_same(sum, &quota)) {
                Some(sum) => add(sum, &quota),
                None => sums.push(quota),
            }
        }
    }
    for sum in &mut sums {
        // There is nothing above from which it could be borrowed.
        sum.borrowed = 0;
    }
    sums.sort_by(|a, b| {
        let key = |quota: &TreeQuotaStatus| {
            (
                quota.resource.clone(),
                quota.pool_name.clone(),
                quota.gpu_product.clone(),
            )
        };
        key(a).cmp(&key(b))
    });
    sums
}

/// Whether two levels limit the same.
fn is_same(a: &TreeQuotaStatus, b: &TreeQuotaStatus) -> bool {
    (&a.resource, &a.pool_name, &a.gpu_product) == (&b.resource, &b.pool_name, &b.gpu_product)
}

fn add(sum: &mut TreeQuotaStatus, quota: &TreeQuotaStatus) {
    sum.nominal_quota = sum.nominal_quota.saturating_add(quota.nominal_quota);
    sum.reserved = sum.reserved.saturating_add(quota.reserved);
    sum.used = sum.used.zip(quota.used).map(|(a, b)| a.saturating_add(b));
}

fn organization_view(organization: &Organization, projects: Vec<LevelView>) -> LevelView {
    let status = organization.status.clone().unwrap_or_default();
    LevelView {
        kind: "Organization",
        name: organization.name_any(),
        tenants: status.tenants.unwrap_or_default(),
        waiting_tenants: status.waiting_tenants.unwrap_or_default(),
        problems: list_problems(&status.conditions),
        quotas: status.quotas,
        projects,
        users: Vec::new(),
        users_not_listed: None,
        waiting: Vec::new(),
    }
}

fn project_view<'a>(project: &Project, tenants: impl Iterator<Item = &'a TenantCluster>) -> LevelView {
    let status = project.status.clone().unwrap_or_default();
    LevelView {
        kind: "Project",
        name: project.name_any(),
        tenants: status.tenants.unwrap_or_default(),
        waiting_tenants: status.waiting_tenants.unwrap_or_default(),
        problems: list_problems(&status.conditions),
        quotas: status.quotas,
        projects: Vec::new(),
        users: status.users,
        users_not_listed: status.users_not_listed,
        waiting: tenants.flat_map(list_waits).collect(),
    }
}

/// Messages of conditions that are not met.
fn list_problems(conditions: &[Condition]) -> Vec<String> {
    let unmet = conditions.iter().filter(|condition| condition.status == "False");
    unmet.map(|condition| condition.message.clone()).collect()
}

/// Why a tenant waits for quota, and what its node groups wait for.
fn list_waits(tenant: &TenantCluster) -> Vec<WaitingView> {
    let Some(status) = &tenant.status else {
        return Vec::new();
    };
    let name = TenantName::of(tenant).to_string();
    let quota = status
        .conditions
        .iter()
        .filter(|condition| condition.type_ == conditions::QUOTA_RESERVED && condition.status == "False");
    let groups = status.node_groups.iter().filter(|group| !group.message.is_empty());
    let messages = quota
        .map(|condition| condition.message.clone())
        .chain(groups.map(|group| format!("group {}: {}", group.name, group.message)));
    messages
        .map(|message| WaitingView {
            tenant: name.clone(),
            message,
        })
        .collect()
}
