//! `berth quota`: the tree of Organizations, Projects and users, what each of them has reserved of its quotas and uses of that, and why
//! tenants and pods wait.

use std::process::ExitCode;

use berth_api::{Organization, Project, TenantCluster, TreeQuotaStatus, UserStatus, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde::Serialize;

use crate::error::{Error, describe as describe_error, failed, is_forbidden};
use crate::host::HostArguments;
use crate::output::{ObjectFormat, join_lines, print_named};
use crate::tenant::{self, TenantName, VisibleTenants};

/// Characters of a bar.
const BAR: u64 = 20;

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

pub(crate) async fn run(host: &HostArguments, format: ObjectFormat) -> Result<ExitCode, Error> {
    let given = host.namespace.as_deref();
    let host = host.connect().await?;
    let VisibleTenants { tenants, namespace } = tenant::list_visible(&host, given).await?;
    let params = ListParams::default();
    let (all_organizations, all_projects) = (
        Api::<Organization>::all(host.client.clone()),
        Api::<Project>::all(host.client.clone()),
    );
    let (organizations, projects) = tokio::join!(all_organizations.list(&params), all_projects.list(&params));
    let view = match (organizations, projects) {
        (Ok(organizations), Ok(projects)) => {
            let (mut organizations, mut projects) = (organizations.items, projects.items);
            if let Some(namespace) = &namespace {
                retain_levels_of(namespace, &mut organizations, &mut projects);
            }
            build_view(&organizations, &projects, &tenants)
        }
        (Err(error), _) | (_, Err(error)) if is_forbidden(&error) => view_of_tenants(&tenants, &describe_error(&error)),
        (Err(error), _) => return Err(failed("list the Organizations")(error)),
        (_, Err(error)) => return Err(failed("list the Projects")(error)),
    };
    print_named(&view, &list_names(&view.levels), describe, format)?;
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
        levels_not_shown: None,
        waiting: Vec::new(),
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

fn describe(view: &QuotaView) -> String {
    let mut lines = Vec::new();
    // One level is all there is.
    if view.levels.len() > 1 && !view.total.is_empty() {
        lines.push("All Organizations and Projects".to_owned());
        describe_quotas(&view.total, "", &mut lines);
    }
    for level in &view.levels {
        describe_level(level, "", &mut lines);
    }
    if let Some(why) = &view.levels_not_shown {
        lines.push(format!("Organizations and Projects are not shown: {why}"));
        let waits = view
            .waiting
            .iter()
            .map(|wait| format!("{}: {}", wait.tenant, wait.message));
        lines.extend(waits);
        lines.push("`berth get NAME` shows what is reserved for a tenant, and what it uses".into());
    } else if view.levels.is_empty() {
        lines.push("There are no Organizations and no Projects: no quotas apply besides those of classes.".into());
    } else if view.tenants_without_project > 0 {
        lines.push(format!("Tenants without a Project: {}", view.tenants_without_project));
    }
    join_lines(&lines)
}

fn describe_level(level: &LevelView, indent: &str, lines: &mut Vec<String>) {
    let tenants = usize::try_from(level.tenants).unwrap_or(usize::MAX);
    let waiting = match level.waiting_tenants {
        0 => String::new(),
        waiting => format!(", {waiting} waiting for quota"),
    };
    let kind = level.kind;
    lines.push(format!(
        "{indent}{kind} {}: {}{waiting}",
        level.name,
        plural(tenants, "tenant")
    ));
    lines.extend(level.problems.iter().map(|problem| format!("{indent}  ! {problem}")));
    describe_quotas(&level.quotas, indent, lines);
    for user in &level.users {
        describe_user(user, &format!("{indent}  "), lines);
    }
    if let Some(number) = level.users_not_listed {
        let number = usize::try_from(number).unwrap_or(usize::MAX);
        lines.push(format!("{indent}  and {} with pods", plural(number, "more user")));
    }
    for wait in &level.waiting {
        lines.push(format!("{indent}  {}: {}", wait.tenant, wait.message));
    }
    for project in &level.projects {
        describe_level(project, &format!("{indent}  "), lines);
    }
}

fn describe_quotas(quotas: &[TreeQuotaStatus], indent: &str, lines: &mut Vec<String>) {
    let names: Vec<String> = quotas.iter().map(name_quota).collect();
    let width = names.iter().map(String::len).max().unwrap_or_default();
    for (quota, name) in quotas.iter().zip(&names) {
        lines.push(format!("{indent}  {name:<width$}  {}", describe_quota(quota)));
    }
}

fn describe_user(user: &UserStatus, indent: &str, lines: &mut Vec<String>) {
    let waiting = match usize::try_from(user.waiting_pods).unwrap_or(usize::MAX) {
        0 => String::new(),
        1 => ": 1 pod waits".to_owned(),
        waiting => format!(": {} wait", plural(waiting, "pod")),
    };
    lines.push(format!("{indent}User {}{waiting}", user.user));
    let names = user.resources.iter().map(|resource| resource.resource.len());
    let width = names.max().unwrap_or_default();
    for resource in &user.resources {
        let bar = draw_bar(resource.used, resource.used, resource.limit);
        let (name, used, limit) = (&resource.resource, resource.used, resource.limit);
        lines.push(format!("{indent}  {name:<width$}  [{bar}] {used} of {limit}"));
    }
    if !user.message.is_empty() {
        lines.push(format!("{indent}  {}", user.message));
    }
}

/// A bar of what is used (`#`) of what is reserved (`=`) of a quota.
fn draw_bar(used: u64, reserved: u64, nominal: u64) -> String {
    let filled = |amount: u64| match nominal {
        0 if amount == 0 => 0,
        0 => BAR,
        nominal => (amount.min(nominal).saturating_mul(BAR) / nominal).min(BAR),
    };
    let (used, reserved) = (filled(used), filled(reserved));
    (0..BAR)
        .map(|position| match position {
            position if position < used => '#',
            position if position < reserved => '=',
            _ => '.',
        })
        .collect()
}

fn name_quota(quota: &TreeQuotaStatus) -> String {
    match quota.pool_name.as_ref().or(quota.gpu_product.as_ref()) {
        Some(of) => format!("{} of {of}", quota.resource.as_str()),
        None => quota.resource.as_str().to_owned(),
    }
}

/// A bar, and the numbers.
fn describe_quota(quota: &TreeQuotaStatus) -> String {
    let amount = |amount: u64| quota.resource.format_amount(amount);
    let bar = draw_bar(quota.used.unwrap_or_default(), quota.reserved, quota.nominal_quota);
    let used = match quota.used {
        None => String::new(),
        Some(used) => format!("{} used, ", amount(used)),
    };
    let borrowed = match quota.borrowed {
        0 => String::new(),
        borrowed => format!(", {} borrowed", amount(borrowed)),
    };
    format!(
        "[{bar}] {used}{} reserved of {}{borrowed}",
        amount(quota.reserved),
        amount(quota.nominal_quota)
    )
}

fn plural(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn the_tree_shows_what_is_reserved_and_used_and_why_a_tenant_waits() {
        let organization: Organization = read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Organization", "metadata": {"name": "lab"}, "spec": {},
            "status": {"tenants": 3, "waitingTenants": 1},
        }));
        let project: Project = read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "vision"},
            "spec": {"organizationName": "lab", "namespaces": ["team"]},
            "status": {"tenants": 3, "waitingTenants": 1, "quotas": [
                {"resource": "gpus", "poolName": "h100", "nominalQuota": 16, "reserved": 24, "used": 8, "borrowed": 8},
                {"resource": "gpus", "gpuProduct": "H100", "nominalQuota": 48, "reserved": 24, "used": 0, "borrowed": 0},
                {"resource": "tenantclusters", "nominalQuota": 4, "reserved": 2, "borrowed": 0},
                {"resource": "datastore.bytes", "nominalQuota": 2_147_483_648_u64, "reserved": 1_073_741_824, "borrowed": 0},
                {"resource": "requests.cpu", "nominalQuota": 64, "reserved": 32, "used": 32, "borrowed": 0},
                {"resource": "requests.memory", "nominalQuota": 2_147_483_648_u64, "reserved": 1_073_741_824,
                 "used": 536_870_912, "borrowed": 0},
            ]},
        }));
        let view = build_view(
            &[organization],
            &[project],
            &[waiting_tenant("team"), waiting_tenant("other")],
        );
        let expected = "Organization lab: 3 tenants, 1 waiting for quota\n  \
                        Project vision: 3 tenants, 1 waiting for quota\n    \
                        gpus of h100     [##########==========] 8 used, 24 reserved of 16, 8 borrowed\n    \
                        gpus of H100     [==========..........] 0 used, 24 reserved of 48\n    \
                        tenantclusters   [==========..........] 2 reserved of 4\n    \
                        datastore.bytes  [==========..........] 1Gi reserved of 2Gi\n    \
                        requests.cpu     [##########..........] 32 used, 32 reserved of 64\n    \
                        requests.memory  [#####=====..........] 512Mi used, 1Gi reserved of 2Gi\n    \
                        team/a: no quota is left\n\
                        Tenants without a Project: 1";
        assert_eq!(describe(&view), expected);
        assert_eq!(
            list_names(&view.levels),
            ["organization.berth.dev/lab", "project.berth.dev/vision"]
        );
    }

    #[test]
    fn several_levels_are_summed_up() {
        let level = |kind: &str, name: &str, spec: Value, quotas: Value| {
            json!({"apiVersion": "berth.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
                "status": {"quotas": quotas}})
        };
        let quota = |resource: &str, nominal: u64, reserved: u64, used: u64| json!({"resource": resource, "nominalQuota": nominal, "reserved": reserved, "used": used, "borrowed": 0});
        let lab = level("Organization", "lab", json!({}), json!([quota("pods", 100, 60, 30)]));
        let of_lab = json!({"organizationName": "lab"});
        let vision = json!([quota("pods", 50, 60, 30), quota("services", 9, 5, 1)]);
        let vision = level("Project", "vision", of_lab, vision);
        let unmeasured = json!({"resource": "pods", "nominalQuota": 20, "reserved": 10, "borrowed": 0});
        let alone = json!([unmeasured, quota("services", 1, 2, 2)]);
        let alone = level("Project", "alone", json!({}), alone);
        let view = build_view(&[read(lab)], &[read(vision), read(alone)], &[]);
        let expected = "All Organizations and Projects\n  \
                        pods      [===========.........] 70 reserved of 120\n  \
                        services  [######========......] 3 used, 7 reserved of 10\n\
                        Organization lab: 0 tenants\n";
        let text = describe(&view);
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn users_are_below_their_project() {
        let project: Project = read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "vision"}, "spec": {},
            "status": {"usersNotListed": 2, "users": [
                {"user": "alice", "waitingPods": 3, "message": "delete what is no longer needed", "resources": [
                    {"resource": "nvidia.com/gpu", "limit": 8, "used": 8}, {"resource": "pods", "limit": 20, "used": 5},
                ]},
                {"user": "bob", "resources": [{"resource": "pods", "limit": 20, "used": 1}]},
            ]},
        }));
        let view = build_view(&[], &[project], &[]);
        let expected = "Project vision: 0 tenants\n  \
                        User alice: 3 pods wait\n    \
                        nvidia.com/gpu  [####################] 8 of 8\n    \
                        pods            [#####...............] 5 of 20\n    \
                        delete what is no longer needed\n  \
                        User bob\n    \
                        pods  [#...................] 1 of 20\n  \
                        and 2 more users with pods";
        assert_eq!(describe(&view), expected);
    }

    /// A tenant of this namespace that waits for quota.
    fn waiting_tenant(namespace: &str) -> TenantCluster {
        read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster",
            "metadata": {"name": "a", "namespace": namespace}, "spec": {},
            "status": {"conditions": [{
                "type": "QuotaReserved", "status": "False", "reason": "QuotaExceeded", "message": "no quota is left",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]},
        }))
    }

    #[test]
    fn of_one_namespace_only_its_project_and_organization_are_shown() {
        let organization = |name: &str| -> Organization {
            read(
                json!({"apiVersion": "berth.dev/v1alpha1", "kind": "Organization", "metadata": {"name": name}, "spec": {}}),
            )
        };
        let project = |name: &str, organization: &str| -> Project {
            read(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": name},
                "spec": {"organizationName": organization, "namespaces": [name]},
            }))
        };
        let levels_of = |namespace: &str| {
            let mut organizations = vec![organization("lab"), organization("shop")];
            let mut projects = vec![
                project("vision", "lab"),
                project("sound", "lab"),
                project("web", "shop"),
            ];
            retain_levels_of(namespace, &mut organizations, &mut projects);
            list_names(&build_view(&organizations, &projects, &[]).levels)
        };
        assert_eq!(
            levels_of("vision"),
            ["organization.berth.dev/lab", "project.berth.dev/vision"]
        );
        assert!(levels_of("none").is_empty());
    }

    #[test]
    fn a_team_that_may_not_list_projects_sees_why_its_tenants_wait() {
        let view = view_of_tenants(&[waiting_tenant("team")], "projects is forbidden");
        let expected = "Organizations and Projects are not shown: projects is forbidden\n\
                        team/a: no quota is left\n\
                        `berth get NAME` shows what is reserved for a tenant, and what it uses";
        assert_eq!(describe(&view), expected);
    }

    #[test]
    fn a_user_forges_no_line() {
        let forged = "mallory\n  User bob: 9 pods wait\n    pods\t[####################] 20 of 20";
        let project: Project = read(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "Project", "metadata": {"name": "vision"}, "spec": {},
            "status": {"users": [{"user": forged, "waitingPods": 1, "message": format!("pods of user {forged} wait")}]},
        }));
        let text = describe(&build_view(&[], &[project], &[]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(
            lines[1].starts_with("  User mallory\u{fffd}") && !text.contains('\t'),
            "{text}"
        );
    }
}
