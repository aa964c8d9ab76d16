//! The finalizer of Organizations and Projects: while TenantClusters belong to one, its deletion waits, and its quotas apply.
//!
//! Only levels with tenants have it, so that nothing holds up the uninstallation of Berth, before which no tenant may exist.

use super::{QuotasContext, report::Report};
use crate::{
    apply::is_status,
    error::{ReconcileError, api},
    finalizers,
};
use berth_api::{
    Organization, Project,
    conditions::{ConditionUpdate, DELETING},
    labels,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Resource, ResourceExt,
    runtime::events::{Event, EventType},
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, sync::Arc};

/// Reason of the condition and of the Event.
const TENANTS_EXIST: &str = "TenantsExist";

/// What becomes of the finalizer of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Keep,
    Add,
    Remove,
}

/// What is known of a level.
#[derive(Clone, Copy, Debug)]
struct Level {
    deletion: Option<Deletion>,
    has_finalizer: bool,
    has_tenants: bool,
}

/// How a level is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deletion {
    /// After its tenants.
    Protected,
    /// At once.
    Forced,
}

impl Level {
    fn new(object: &impl ResourceExt, has_tenants: bool) -> Self {
        let is_deleted = object.meta().deletion_timestamp.is_some();
        let deletion = if is_forced(object) {
            Deletion::Forced
        } else {
            Deletion::Protected
        };
        Self {
            deletion: is_deleted.then_some(deletion),
            has_finalizer: finalizers::is_set(object, labels::QUOTA_FINALIZER),
            has_tenants,
        }
    }

    /// A deleted object gets no new finalizer: the API server rejects that.
    const fn step(self) -> Step {
        match self {
            Self {
                has_finalizer: false,
                deletion: None,
                has_tenants: true,
            } => Step::Add,
            Self {
                has_finalizer: true,
                has_tenants: false,
                ..
            }
            | Self {
                has_finalizer: true,
                deletion: Some(Deletion::Forced),
                ..
            } => Step::Remove,
            _ => Step::Keep,
        }
    }
}

/// Whether the deletion does not wait for tenants.
fn is_forced(object: &impl ResourceExt) -> bool {
    object.annotations().get(labels::FORCE_DELETE).map(String::as_str) == Some("true")
}

/// Adds the finalizer to levels with tenants and removes it from the others. Returns whether a level was changed meanwhile, so that
/// this has to be done again.
///
/// # Errors
/// The host refuses or does not answer. Everything was tried.
pub(super) async fn update(
    context: &QuotasContext,
    organizations: &[Arc<Organization>],
    projects: &[Arc<Project>],
    report: &Report<'_>,
) -> Result<bool, ReconcileError> {
    let mut result = Ok(false);
    for organization in organizations {
        let own = report.projects_of(&organization.name_any());
        let has_tenants = own.iter().any(|project| report.has_tenants(project));
        result = and(result, take_step(context, organization.as_ref(), has_tenants).await);
    }
    for project in projects {
        let has_tenants = report.has_tenants(&project.name_any());
        result = and(result, take_step(context, project.as_ref(), has_tenants).await);
    }
    result
}

fn and(a: Result<bool, ReconcileError>, b: Result<bool, ReconcileError>) -> Result<bool, ReconcileError> {
    match (a, b) {
        (Ok(a), Ok(b)) => Ok(a || b),
        (Err(error), _) | (_, Err(error)) => Err(error),
    }
}

async fn take_step<K>(context: &QuotasContext, object: &K, has_tenants: bool) -> Result<bool, ReconcileError>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let objects: Api<K> = Api::all(context.client.clone());
    let written = match Level::new(object, has_tenants).step() {
        Step::Keep => Ok(()),
        Step::Add => finalizers::add(&objects, object, labels::QUOTA_FINALIZER).await,
        Step::Remove => finalizers::remove(&objects, object, labels::QUOTA_FINALIZER).await,
    };
    match written {
        Ok(()) => Ok(false),
        Err(error) if is_status(&error, 404) => Ok(false),
        Err(error) if is_status(&error, 409) => Ok(true),
        Err(error) => Err(api("write the finalizer of a quota")(error)),
    }
}

/// The condition of a level whose deletion waits for these tenants.
pub(super) fn condition<K>(object: &K, tenants: &[String]) -> Option<ConditionUpdate>
where
    K: Resource<DynamicType = ()>,
{
    if object.meta().deletion_timestamp.is_none() || tenants.is_empty() || is_forced(object) {
        return None;
    }
    let kind = K::kind(&());
    let elsewhere = if kind == "Project" {
        "name their namespaces in another Project and remove them from spec.namespaces of this one"
    } else {
        "name another Organization in the Projects"
    };
    let message = format!(
        "TenantClusters belong to the {kind}, and its quotas apply until they are gone: {}. Delete them, or {elsewhere}. To give up the \
         quotas while they exist: kubectl annotate {} {} {}=true",
        super::report::list_names(tenants),
        kind.to_lowercase(),
        object.name_any(),
        labels::FORCE_DELETE
    );
    Some(ConditionUpdate::mark_true(DELETING, TENANTS_EXIST, message))
}

/// A warning, if the deletion of a level begins to wait.
pub(super) fn event(before: &[Condition], after: &[Condition]) -> Option<Event> {
    let waits = |conditions: &[Condition]| {
        let mut deleting = conditions.iter().filter(|condition| condition.type_ == DELETING);
        deleting.next().map(|condition| condition.message.clone())
    };
    let message = waits(after)?;
    waits(before).is_none().then(|| Event {
        type_: EventType::Warning,
        reason: TENANTS_EXIST.into(),
        note: Some(message),
        action: "Delete".into(),
        secondary: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::ProjectSpec;
    use serde_json::json;

    #[test]
    fn levels_with_tenants_have_the_finalizer_and_no_others() {
        let step = |[is_deleted, has_finalizer, has_tenants, is_forced]: [bool; 4]| {
            Level {
                deletion: is_deleted.then_some(if is_forced {
                    Deletion::Forced
                } else {
                    Deletion::Protected
                }),
                has_finalizer,
                has_tenants,
            }
            .step()
        };
        let (no, yes) = (false, true);
        for (level, expected) in [
            ([no, no, no, no], Step::Keep),
            ([no, no, yes, no], Step::Add),
            ([no, yes, yes, no], Step::Keep),
            ([no, yes, no, no], Step::Remove),
            ([no, yes, yes, yes], Step::Keep),
            ([yes, no, yes, no], Step::Keep),
            ([yes, yes, yes, no], Step::Keep),
            ([yes, yes, yes, yes], Step::Remove),
            ([yes, yes, no, no], Step::Remove),
            ([yes, no, no, no], Step::Keep),
        ] {
            assert_eq!(step(level), expected, "{level:?}");
        }
    }

    #[test]
    fn a_deletion_that_waits_names_the_tenants_and_what_to_do() {
        let mut project = Project::new("vision", ProjectSpec::default());
        let tenants = ["team/a".to_owned()];
        assert_eq!(condition(&project, &tenants), None);
        project.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).ok();
        assert_eq!(condition(&project, &[]), None);
        let message = condition(&project, &tenants).unwrap().message;
        assert!(
            message.contains("until they are gone: team/a. Delete them"),
            "{message}"
        );
        assert!(
            message.ends_with("kubectl annotate project vision berth.dev/force-delete=true"),
            "{message}"
        );
        project
            .annotations_mut()
            .insert(labels::FORCE_DELETE.into(), "true".into());
        assert_eq!(condition(&project, &tenants), None);
    }
}
