//! Whether quotas are consistent. The schema checks what one field shows.

use crate::projects::Projects;
use berth_api::{Organization, Project, TreeQuota, TreeResource};
use std::collections::BTreeSet;

/// Reason of a Project whose Organization does not exist, and of its tenants that wait for that.
pub(crate) const UNKNOWN_ORGANIZATION: &str = "UnknownOrganization";

/// Whether the quotas of an Organization are consistent.
///
/// # Errors
/// CamelCase reason, and what to change.
pub fn validate_organization(organization: &Organization) -> Result<(), (&'static str, String)> {
    validate_quotas(&organization.spec.quotas)
}

/// Whether a Project can have what it names. `exists` says whether there is an Organization of a name.
///
/// # Errors
/// CamelCase reason, and what to change.
pub fn validate_project(
    project: &Project,
    projects: &Projects<'_>,
    exists: impl Fn(&str) -> bool,
) -> Result<(), (&'static str, String)> {
    if let Some(name) = project.spec.organization_name.as_deref().filter(|name| !exists(name)) {
        let message = format!(
            "spec.organizationName: there is no Organization {name}, so that the tenants of the Project keep what they have and get no \
             more; create it, or correct the name"
        );
        return Err((UNKNOWN_ORGANIZATION, message));
    }
    validate_quotas(&project.spec.quotas)?;
    let taken: Vec<String> = projects
        .taken(project)
        .into_iter()
        .map(|(namespace, owner)| format!("{namespace} (Project {owner})"))
        .collect();
    if taken.is_empty() {
        return Ok(());
    }
    let message = format!(
        "spec.namespaces: these belong to an older Project that names them too: {}; remove them from one of both",
        taken.join(", ")
    );
    Err(("NamespacesTaken", message))
}

/// Whether some class limits each resource that quotas list. Otherwise every tenant waits for a limit: the name is wrong, or the classes come later.
///
/// # Errors
/// CamelCase reason, and what to change.
pub fn validate_resources(
    quotas: &[TreeQuota],
    is_limited_by_class: impl Fn(&TreeResource) -> bool,
) -> Result<(), (&'static str, String)> {
    let unknown = quotas
        .iter()
        .enumerate()
        .find(|(_, quota)| !is_limited_by_class(&quota.resource));
    let Some((index, quota)) = unknown else {
        return Ok(());
    };
    let message = format!(
        "spec.quotas[{index}].resource: no TenantClass limits {}, so that no tenant gets anything new: correct the name, or set {} in the classes",
        quota.resource.as_str(),
        quota.resource.class_field().unwrap_or_default()
    );
    Err(("ResourceWithoutLimit", message))
}

fn validate_quotas(quotas: &[TreeQuota]) -> Result<(), (&'static str, String)> {
    let invalid = |message: String| Err(("InvalidQuotas", message));
    let mut seen = BTreeSet::new();
    for (index, quota) in quotas.iter().enumerate() {
        let path = format!("spec.quotas[{index}]");
        let name = quota.resource.as_str();
        if !seen.insert((&quota.resource, &quota.pool_name, &quota.gpu_product)) {
            return invalid(format!("{path}: {name} is listed twice; the first entry counts"));
        }
        let amounts = [
            ("nominalQuota", Some(&quota.nominal_quota)),
            ("borrowingLimit", quota.borrowing_limit.as_ref()),
            ("lendingLimit", quota.lending_limit.as_ref()),
        ];
        for (field, amount) in amounts {
            if amount.is_some_and(|amount| amount.value().is_none()) {
                return invalid(format!(
                    "{path}.{field}: it is no amount such as 10 or 50Gi, and counts as 0"
                ));
            }
        }
        let lending = quota.lending_limit.as_ref().and_then(berth_api::Amount::value);
        if lending > quota.nominal_quota.value() {
            return invalid(format!("{path}.lendingLimit: it must not be greater than nominalQuota"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{limited, project};

    #[test]
    fn inconsistent_projects_say_what_to_change() {
        let tenants = TreeResource::TenantClusters;
        let twice = [limited(tenants.clone(), 1), limited(tenants.clone(), 2)];
        let twice = project("twice", None, 1, &[], &twice);
        let mut lends = limited(tenants, 1);
        lends.lending_limit = Some(2_u32.into());
        let lends = project("lends", None, 1, &[], &[lends]);
        let orphan = project("orphan", Some("gone"), 1, &[], &[]);
        let (old, new) = (
            project("old", None, 1, &["a"], &[]),
            project("new", None, 2, &["a"], &[]),
        );
        let all = [twice, lends, orphan, old, new];
        let projects = Projects::new(&all);
        let reasons: Vec<Option<&str>> = all
            .iter()
            .map(|project| {
                validate_project(project, &projects, |_| false)
                    .err()
                    .map(|(reason, _)| reason)
            })
            .collect();
        assert_eq!(
            reasons,
            [
                Some("InvalidQuotas"),
                Some("InvalidQuotas"),
                Some("UnknownOrganization"),
                None,
                Some("NamespacesTaken")
            ]
        );
    }

    #[test]
    fn a_resource_that_no_class_limits_is_named() {
        let typo = TreeResource::Host("requests.nvidia.com/gppu".into());
        let quotas = [limited(TreeResource::Gpus, 1), limited(typo.clone(), 1)];
        assert_eq!(validate_resources(&quotas, |_| true), Ok(()));
        let (reason, message) = validate_resources(&quotas, |resource| *resource != typo).unwrap_err();
        assert_eq!(reason, "ResourceWithoutLimit");
        for part in [
            "spec.quotas[1].resource",
            "no TenantClass limits requests.nvidia.com/gppu",
            "correct the name",
        ] {
            assert!(message.contains(part), "{message}");
        }
    }
}
