//! The status of Organizations and Projects, and the metrics of quotas.

use super::QuotasContext;
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
    metrics::QuotaLabels,
    user_quota_ledger::ProjectUsers,
};
use berth_api::{
    Organization, OrganizationStatus, Project, ProjectStatus, TreeQuotaStatus,
    conditions::{self, ConditionUpdate, READY, WITHIN_QUOTA},
    labels,
};
use berth_quota::{Claim, Decision, LevelKind, Outcome, Projects, QuotaUse, validate_organization, validate_project};
use jiff::Timestamp;
use kube::{
    Api, Resource, ResourceExt,
    api::{Patch, PatchParams},
    runtime::reflector::ObjectRef,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;
use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

/// Tenants that a message names at most.
const MAX_NAMES: usize = 10;

/// What was decided, for the status.
pub(super) struct Report<'a> {
    /// The tenants of each Project.
    pub(super) claims: BTreeMap<&'a str, Vec<&'a Claim>>,
    pub(super) outcome: &'a Outcome<'a>,
    /// Namespace and name of each tenant, by UID.
    pub(super) names: BTreeMap<String, String>,
}

/// Tenants of a level.
struct Tenants {
    all: u32,
    waiting: u32,
    within: ConditionUpdate,
}

/// Writes the status of each level that changed, and the metrics.
pub(super) async fn write(
    context: &QuotasContext,
    organizations: &[Arc<Organization>],
    projects: &[Arc<Project>],
    owners: &Projects<'_>,
    report: &Report<'_>,
) -> Result<(), ReconcileError> {
    set_all_metrics(context, organizations, projects, report);
    let mut written = Ok(());
    for organization in organizations {
        let used = report.outcome.usage.of_organization(&organization.name_any());
        let before = organization.status.clone().unwrap_or_default();
        let after = organization_status(organization, &before, projects, &used, report);
        if before != after {
            written = written.and(patch(context, &**organization, &after).await);
        }
    }
    for project in projects {
        let used = report.outcome.usage.of_project(&project.name_any());
        let before = project.status.clone().unwrap_or_default();
        let after = project_status(context, project, &before, owners, &used, report);
        if before != after {
            written = written.and(patch(context, &**project, &after).await);
        }
    }
    written
}

fn organization_status(
    organization: &Organization,
    before: &OrganizationStatus,
    projects: &[Arc<Project>],
    used: &[QuotaUse],
    report: &Report<'_>,
) -> OrganizationStatus {
    let name = organization.name_any();
    let generation = organization.metadata.generation;
    let own: Vec<String> = projects
        .iter()
        .filter(|project| project.spec.organization_name.as_ref() == Some(&name))
        .map(|project| project.name_any())
        .collect();
    let tenants = report.tenants(own.iter().map(String::as_str));
    let updates = [ready_condition(validate_organization(organization)), tenants.within];
    OrganizationStatus {
        observed_generation: generation,
        projects: Some(count(own.len())),
        tenants: Some(tenants.all),
        waiting_tenants: Some(tenants.waiting),
        quotas: used.iter().map(quota_status).collect(),
        conditions: conditions::merge(&before.conditions, &updates, generation, Timestamp::now()),
    }
}

fn project_status(
    context: &QuotasContext,
    project: &Project,
    before: &ProjectStatus,
    owners: &Projects<'_>,
    used: &[QuotaUse],
    report: &Report<'_>,
) -> ProjectStatus {
    let name = project.name_any();
    let generation = project.metadata.generation;
    let tenants = report.tenants([name.as_str()]);
    let exists = |name: &str| context.stores.organizations.get(&ObjectRef::new(name)).is_some();
    let validity = validate_project(project, owners, exists);
    let updates = [ready_condition(validity), tenants.within];
    let ProjectUsers { users, not_listed } = context.users.users_of(&name);
    ProjectStatus {
        observed_generation: generation,
        tenants: Some(tenants.all),
        waiting_tenants: Some(tenants.waiting),
        quotas: used.iter().map(quota_status).collect(),
        users,
        users_not_listed: (not_listed > 0).then_some(not_listed),
        conditions: conditions::merge(&before.conditions, &updates, generation, Timestamp::now()),
    }
}

impl Report<'_> {
    /// The tenants of some Projects.
    fn tenants<'p>(&self, projects: impl IntoIterator<Item = &'p str>) -> Tenants {
        let (mut all, mut waiting) = (0, 0);
        let mut over: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let claims = projects.into_iter().filter_map(|project| self.claims.get(project));
        for claim in claims.flatten() {
            all += 1;
            match self.outcome.decisions.get(&claim.uid) {
                Some(Decision::Waiting { .. }) => waiting += 1,
                Some(Decision::Reserved { over: beyond, .. }) => {
                    let name = self.names.get(&claim.uid).map(String::as_str).unwrap_or_default();
                    for resource in beyond {
                        over.entry(resource.as_str()).or_default().push(name);
                    }
                }
                Some(Decision::Nothing) | None => {}
            }
        }
        Tenants {
            all,
            waiting,
            within: within_condition(&over),
        }
    }
}

/// Whether no tenant has more than the quotas allow. `over` has the tenants that do, by resource.
fn within_condition(over: &BTreeMap<&str, Vec<&str>>) -> ConditionUpdate {
    if over.is_empty() {
        let message = "no tenant has reserved more than the quotas allow";
        return ConditionUpdate::mark_true(WITHIN_QUOTA, "WithinQuota", message);
    }
    let resources: Vec<String> = over
        .iter()
        .map(|(resource, tenants)| {
            let more = tenants.len().saturating_sub(MAX_NAMES);
            let rest = if more > 0 {
                format!(" and {more} more")
            } else {
                String::new()
            };
            let named = tenants.get(..MAX_NAMES).unwrap_or(tenants);
            format!("{resource} ({}{rest})", named.join(", "))
        })
        .collect();
    let message = format!(
        "more is reserved than the quotas allow, by the youngest tenants: {}; nothing is taken away, and no tenant gets more until \
         tenants are deleted or the quota is raised",
        resources.join(", ")
    );
    ConditionUpdate::mark_false(WITHIN_QUOTA, "OverQuota", message)
}

fn ready_condition(validity: Result<(), (&'static str, String)>) -> ConditionUpdate {
    match validity {
        Ok(()) => ConditionUpdate::mark_true(READY, "Ready", "the quotas apply"),
        Err((reason, message)) => ConditionUpdate::mark_false(READY, reason, message),
    }
}

fn quota_status(used: &QuotaUse) -> TreeQuotaStatus {
    TreeQuotaStatus {
        resource: used.key.resource,
        pool_name: used.key.pool.clone(),
        nominal_quota: used.nominal,
        used: used.used,
        borrowed: used.borrowed(),
    }
}

/// Sets the metrics of all levels before any status is written: writes take time, in which a scrape would miss levels.
fn set_all_metrics(
    context: &QuotasContext,
    organizations: &[Arc<Organization>],
    projects: &[Arc<Project>],
    report: &Report<'_>,
) {
    context.metrics.clear_quotas();
    let usage = &report.outcome.usage;
    for organization in organizations {
        let name = organization.name_any();
        set_metrics(context, LevelKind::Organization, &name, &usage.of_organization(&name));
    }
    for project in projects {
        let name = project.name_any();
        set_metrics(context, LevelKind::Project, &name, &usage.of_project(&name));
    }
}

fn set_metrics(context: &QuotasContext, kind: LevelKind, name: &str, quotas: &[QuotaUse]) {
    let gauge = |amount: u64| i64::try_from(amount).unwrap_or(i64::MAX);
    for quota in quotas {
        let labels = QuotaLabels {
            level: match kind {
                LevelKind::Root => "root",
                LevelKind::Organization => "organization",
                LevelKind::Project => "project",
            },
            name: name.to_owned(),
            resource: quota.key.resource.as_str(),
            pool: quota.key.pool.clone().unwrap_or_default(),
        };
        let metrics = &context.metrics;
        metrics.quota_used.get_or_create(&labels).set(gauge(quota.used));
        metrics.quota_nominal.get_or_create(&labels).set(gauge(quota.nominal));
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Writes a status. An object that is gone meanwhile needs none.
async fn patch<K>(context: &QuotasContext, object: &K, status: &(impl Serialize + Sync)) -> Result<(), ReconcileError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let objects: Api<K> = Api::all(context.client.clone());
    let body = json!({
        "apiVersion": K::api_version(&()), "kind": K::kind(&()),
        "metadata": {"name": object.name_any(), "uid": object.uid()}, "status": status,
    });
    let params = PatchParams::apply(labels::CONTROL_MANAGER).force();
    match objects
        .patch_status(&object.name_any(), &params, &Patch::Apply(&body))
        .await
    {
        Ok(_) => Ok(()),
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("write the status of a quota")(error)),
    }
}
