//! The status of Organizations and Projects, and the metrics of quotas.

use super::{QuotasContext, metrics, protection};
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
    quota_ledger::Measurement,
    status_write::{StatusTarget, write_status},
    user_quota_ledger::ProjectUsers,
};
use berth_api::{
    ControlPlaneServiceType, Organization, OrganizationStatus, Project, ProjectStatus, QuotaSummary, TenantLimits,
    TreeQuota, TreeQuotaStatus, TreeResource,
    conditions::{self, ConditionUpdate, DELETING, READY, WITHIN_QUOTA},
    crd,
};
use berth_quota::{
    Amounts, Claim, Decision, Outcome, Projects, QuotaUse, validate_organization, validate_project, validate_resources,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, ResourceExt, runtime::reflector::ObjectRef};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, LazyLock},
};

/// All fields of the status of an `Organization`.
static ORGANIZATION_FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(crd::status_fields::<Organization>);
/// All fields of the status of a `Project`.
static PROJECT_FIELDS: LazyLock<BTreeSet<String>> = LazyLock::new(crd::status_fields::<Project>);
/// Tenants that a message names at most.
const MAX_NAMES: usize = 10;

/// What was decided, for the status.
pub(super) struct Report<'a> {
    /// The tenants of each Project.
    pub(super) claims: BTreeMap<&'a str, Vec<&'a Claim>>,
    pub(super) outcome: &'a Outcome<'a>,
    /// What tenants use.
    pub(super) measured: &'a Measurement,
    /// Namespace and name of each tenant, by UID.
    pub(super) names: BTreeMap<String, (String, String)>,
    /// The Projects of each Organization.
    projects: BTreeMap<&'a str, Vec<String>>,
}

/// Tenants of a level.
struct Tenants {
    all: u32,
    names: Vec<String>,
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
    metrics::set_all_metrics(context, organizations, projects, report);
    let mut written = Ok(());
    for organization in organizations {
        let used = report.outcome.usage.of_organization(&organization.name_any());
        let before = organization.status.clone().unwrap_or_default();
        let after = organization_status(context, organization, &before, &used, report);
        if before != after {
            let target = StatusTarget::of(&**organization);
            written = written.and(patch::<Organization>(context, target, &ORGANIZATION_FIELDS, &after).await);
            publish(context, &**organization, &before.conditions, &after.conditions).await;
        }
    }
    for project in projects {
        let used = report.outcome.usage.of_project(&project.name_any());
        let before = project.status.clone().unwrap_or_default();
        let after = project_status(context, project, &before, owners, &used, report);
        if before != after {
            let target = StatusTarget::of(&**project);
            written = written.and(patch::<Project>(context, target, &PROJECT_FIELDS, &after).await);
            publish(context, &**project, &before.conditions, &after.conditions).await;
        }
    }
    written
}

fn organization_status(
    context: &QuotasContext,
    organization: &Organization,
    before: &OrganizationStatus,
    used: &[QuotaUse],
    report: &Report<'_>,
) -> OrganizationStatus {
    let name = organization.name_any();
    let own = report.projects_of(&name);
    let tenants = report.tenants(own.iter().map(String::as_str), used);
    let validity =
        validate_organization(organization).and_then(|()| check_resources(context, &organization.spec.quotas));
    let mut updates = vec![ready_condition(validity), tenants.within];
    updates.extend(protection::condition(organization, &tenants.names));
    let quotas = report.quotas(used, &before.quotas);
    OrganizationStatus {
        observed_generation: organization.metadata.generation,
        projects: Some(count(own.len())),
        tenants: Some(tenants.all),
        waiting_tenants: Some(tenants.waiting),
        quota_summary: QuotaSummary::of(&quotas),
        quotas,
        conditions: merge_conditions(context, organization, &before.conditions, &updates),
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
    let tenants = report.tenants([name.as_str()], used);
    let exists = |name: &str| context.stores.organizations.get(&ObjectRef::new(name)).is_some();
    let validity = validate_project(project, owners, exists);
    let validity = validity.and_then(|()| check_resources(context, &project.spec.quotas));
    let mut updates = vec![ready_condition(validity), tenants.within];
    updates.extend(protection::condition(project, &tenants.names));
    let ProjectUsers { users, not_listed } = context.users.users_of(&name);
    let quotas = report.quotas(used, &before.quotas);
    ProjectStatus {
        observed_generation: project.metadata.generation,
        tenants: Some(tenants.all),
        waiting_tenants: Some(tenants.waiting),
        quota_summary: QuotaSummary::of(&quotas),
        quotas,
        users,
        users_not_listed: (not_listed > 0).then_some(not_listed),
        conditions: merge_conditions(context, project, &before.conditions, &updates),
    }
}

/// The conditions of a level after `updates`. A deletion that does not wait for tenants any more can still wait for the finalizer of somebody else: then the
/// level does not say that tenants hold it up.
fn merge_conditions(
    context: &QuotasContext,
    level: &impl ResourceExt,
    before: &[Condition],
    updates: &[ConditionUpdate],
) -> Vec<Condition> {
    let waits = updates.iter().any(|update| update.kind == DELETING);
    let mut known = before.to_vec();
    known.retain(|condition| waits || condition.type_ != DELETING);
    conditions::merge(&known, updates, level.meta().generation, context.clock.now())
}

impl<'a> Report<'a> {
    /// Of a decision, and what tenants use. `names` are those of the tenants, by UID.
    pub(super) fn new(
        claims: &'a [Claim],
        outcome: &'a Outcome<'a>,
        measured: &'a Measurement,
        names: BTreeMap<String, (String, String)>,
        projects: &'a [Arc<Project>],
    ) -> Self {
        let mut by_project: BTreeMap<&str, Vec<&Claim>> = BTreeMap::new();
        for claim in claims {
            by_project.entry(&claim.project).or_default().push(claim);
        }
        let mut by_organization: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for project in projects {
            if let Some(organization) = &project.spec.organization_name {
                by_organization
                    .entry(organization)
                    .or_default()
                    .push(project.name_any());
            }
        }
        Self {
            claims: by_project,
            outcome,
            measured,
            names,
            projects: by_organization,
        }
    }

    /// The Projects that name an Organization.
    pub(super) fn projects_of(&self, organization: &str) -> &[String] {
        self.projects.get(organization).map(Vec::as_slice).unwrap_or_default()
    }

    /// Whether TenantClusters belong to a Project, whatever they have.
    pub(super) fn has_tenants(&self, project: &str) -> bool {
        self.claims.contains_key(project)
    }

    /// The tenants of some Projects, which have `used` of the quotas of a level.
    fn tenants<'p>(&self, projects: impl IntoIterator<Item = &'p str>, used: &[QuotaUse]) -> Tenants {
        let (mut all, mut waiting) = (0, 0);
        let mut names = Vec::new();
        let mut over: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        let claims = projects.into_iter().filter_map(|project| self.claims.get(project));
        for claim in claims.flatten() {
            all += 1;
            let (namespace, name) = self.names.get(&claim.uid).cloned().unwrap_or_default();
            let name = format!("{namespace}/{name}");
            let beyond = match self.outcome.decisions.get(&claim.uid) {
                Some(Decision::Waiting { over: beyond, .. }) => {
                    waiting += 1;
                    Some(beyond)
                }
                Some(Decision::Reserved { over: beyond, .. }) => Some(beyond),
                Some(Decision::Nothing) | None => None,
            };
            for resource in beyond.into_iter().flat_map(BTreeMap::keys) {
                over.entry(resource.as_str()).or_default().push(name.clone());
            }
            names.push(name);
        }
        Tenants {
            all,
            names,
            waiting,
            within: within_condition(&over, used),
        }
    }
}

impl Report<'_> {
    /// The quotas of a level for its status, which said this `before`. What is not measured yet stays as it was.
    fn quotas(&self, of_level: &[QuotaUse], before: &[TreeQuotaStatus]) -> Vec<TreeQuotaStatus> {
        let is_measured = self.measured.number > 0;
        let quotas = of_level.iter().map(|quota| {
            let status = quota_status(quota);
            let same = |known: &&TreeQuotaStatus| {
                (&known.resource, &known.pool_name, &known.gpu_product)
                    == (&status.resource, &status.pool_name, &status.gpu_product)
            };
            let used = if is_measured {
                Some(quota.used)
            } else {
                before.iter().find(same).and_then(|known| known.used)
            };
            TreeQuotaStatus { used, ..status }
        });
        quotas.collect()
    }

    /// What a tenant has reserved.
    pub(super) fn reserved(&self, uid: &str) -> Option<&Amounts> {
        match self.outcome.decisions.get(uid)? {
            Decision::Reserved { amounts, .. } => Some(amounts),
            Decision::Waiting { kept, .. } => kept.as_ref(),
            Decision::Nothing => None,
        }
    }
}

/// Whether no tenant has more than the quotas allow. `over` has the tenants that do, by resource; `used` what the level uses, also of GPUs,
/// which are not reserved.
fn within_condition(over: &BTreeMap<&str, Vec<String>>, used: &[QuotaUse]) -> ConditionUpdate {
    let messages: Vec<String> = describe_reserved(over).into_iter().chain(describe_gpus(used)).collect();
    if messages.is_empty() {
        let message = "no tenant has more than the quotas allow";
        return ConditionUpdate::mark_true(WITHIN_QUOTA, "WithinQuota", message);
    }
    ConditionUpdate::mark_false(WITHIN_QUOTA, "OverQuota", messages.join(". "))
}

/// What is reserved beyond the quotas, and what follows; none if nothing is.
fn describe_reserved(over: &BTreeMap<&str, Vec<String>>) -> Option<String> {
    let resources: Vec<String> = over
        .iter()
        .map(|(resource, tenants)| format!("{resource} ({})", list_names(tenants)))
        .collect();
    (!resources.is_empty()).then(|| {
        format!(
            "more is reserved than the quotas allow, by the youngest tenants: {}; what exists goes on, these tenants create no more than \
             they use now, and no tenant gets more until tenants are deleted or the quota is raised",
            resources.join(", ")
        )
    })
}

/// Which GPUs tenants have beyond the limits, and what follows; none if there are none.
fn describe_gpus(used: &[QuotaUse]) -> Option<String> {
    let over = used
        .iter()
        .filter(|quota| quota.key.resource == TreeResource::Gpus && quota.is_over_limit());
    let amounts: Vec<String> = over
        .map(|quota| {
            let of = match (&quota.key.pool, &quota.key.product) {
                (Some(pool), _) => format!("of pool {pool}"),
                (None, Some(product)) => format!("of product {product}"),
                (None, None) => "of all pools".to_owned(),
            };
            let limit = quota.limit.unwrap_or_default();
            format!("{} {of}, at most {limit}", quota.reserved)
        })
        .collect();
    (!amounts.is_empty()).then(|| {
        format!(
            "tenants have more GPUs than the quotas allow: {}; Berth reclaims nodes from the tenant furthest above its share, those with \
             the least important work first, then the youngest, and those of minimums last, after policy.reclaimGracePeriod of the pool",
            amounts.join(", ")
        )
    })
}

/// Some tenants, in the order of their names so that the text does not change without them, and how many more there are.
pub(super) fn list_names(tenants: &[String]) -> String {
    let mut tenants = tenants.to_vec();
    tenants.sort_unstable();
    let named = tenants.get(..MAX_NAMES).unwrap_or(&tenants).join(", ");
    match tenants.len().saturating_sub(MAX_NAMES) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// Whether some class limits each resource of these quotas. What Berth limits without a class is limited.
fn check_resources(context: &QuotasContext, quotas: &[TreeQuota]) -> Result<(), (&'static str, String)> {
    if quotas.is_empty() {
        return Ok(());
    }
    let classes = context.stores.classes.state();
    let without_class = TenantLimits::default();
    let all: Vec<&TenantLimits> = classes
        .iter()
        .map(|class| &class.spec.limits)
        .chain([&without_class])
        .collect();
    let service = ControlPlaneServiceType::ClusterIp;
    let is_limited = |resource: &TreeResource| all.iter().any(|limits| resource.reserved_by(limits, service).is_some());
    validate_resources(quotas, is_limited)
}

fn ready_condition(validity: Result<(), (&'static str, String)>) -> ConditionUpdate {
    match validity {
        Ok(()) => ConditionUpdate::mark_true(READY, "Ready", "the quotas apply"),
        Err((reason, message)) => ConditionUpdate::mark_false(READY, reason, message),
    }
}

fn quota_status(used: &QuotaUse) -> TreeQuotaStatus {
    TreeQuotaStatus {
        resource: used.key.resource.clone(),
        pool_name: used.key.pool.clone(),
        gpu_product: used.key.product.clone(),
        nominal_quota: used.nominal,
        reserved: used.reserved,
        used: Some(used.used),
        borrowed: used.borrowed(),
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Publishes an Event, if the deletion of a level begins to wait.
async fn publish<K>(context: &QuotasContext, object: &K, before: &[Condition], after: &[Condition])
where
    K: Resource<DynamicType = ()>,
{
    if let Some(event) = protection::event(before, after) {
        context.recorder.publish(&event, &object.object_ref(&())).await;
    }
}

/// Writes a status. An object that is gone meanwhile needs none.
async fn patch<K>(
    context: &QuotasContext,
    target: StatusTarget<'_>,
    fields: &BTreeSet<String>,
    status: &(impl Serialize + Sync),
) -> Result<(), ReconcileError>
where
    K: Resource<DynamicType = ()>,
{
    match write_status::<K>(&context.client, target, fields, status).await {
        Ok(()) => Ok(()),
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("write the status of a quota")(error)),
    }
}
