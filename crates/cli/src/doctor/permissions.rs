//! Whether Berth's ServiceAccounts have the rights that its programs use. Pure.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{labels, system};
use berth_control::install::manifests;
use k8s_openapi::api::rbac::v1::{PolicyRule, RoleRef, Subject};
use kube::ResourceExt;

use super::CheckResult;
use super::checks::UPGRADE;
use super::cluster::join_some;
use super::facts::Facts;

const CHECK: &str = "permissions";

/// The rights of control, and of the gateway and the Jobs for etcd's certificates, if there are these. Hooks of the chart have theirs only while they
/// run.
pub(super) fn check(facts: &Facts) -> Vec<CheckResult> {
    let all = [
        check_cluster_roles(facts),
        check_roles(facts),
        check_cluster_role_bindings(facts),
        check_gateway(facts),
    ];
    let mut results: Vec<CheckResult> = Vec::new();
    for result in all.into_iter().flatten() {
        // What may not be read is said once.
        if !results.contains(&result) {
            results.push(result);
        }
    }
    if results.is_empty() {
        results.push(CheckResult::ok(
            CHECK,
            "the ServiceAccounts of Berth have the rights that they need",
        ));
    }
    results
}

fn check_cluster_roles(facts: &Facts) -> Vec<CheckResult> {
    let installed = match &facts.cluster_roles {
        Ok(installed) => installed,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let wanted = manifests::cluster_roles();
    let mut results = Vec::new();
    let mut missing = Vec::new();
    for role in &wanted {
        let name = role.name_any();
        let Some(found) = installed.iter().find(|found| found.name_any() == name) else {
            missing.push(name);
            continue;
        };
        let place = format!("the ClusterRole {name}");
        let granted = found.rules.as_deref().unwrap_or_default();
        if role.aggregation_rule.is_none() {
            results.extend(check_rules(
                &place,
                role.rules.as_deref().unwrap_or_default(),
                granted,
                UPGRADE,
            ));
        } else {
            let parts = wanted
                .iter()
                .filter(|part| part.labels().contains_key(labels::AGGREGATE_TO_CONTROL));
            let rules: Vec<PolicyRule> = parts.filter_map(|part| part.rules.clone()).flatten().collect();
            let fix =
                "see whether the host's kube-controller-manager runs its controller clusterrole-aggregation-controller";
            results.extend(check_rules(&place, &rules, granted, fix));
        }
    }
    if !missing.is_empty() {
        let message = format!("ClusterRoles are missing: {}", missing.join(", "));
        results.push(CheckResult::problem(CHECK, message, UPGRADE));
    }
    results
}

/// Rights in Berth's own namespace: those of control, and of the Jobs that renew the certificates of Berth's etcd, if there are such Jobs.
fn check_roles(facts: &Facts) -> Vec<CheckResult> {
    let (roles, bindings, job) = match (&facts.roles, &facts.role_bindings, &facts.certificates_job) {
        (Ok(roles), Ok(bindings), Ok(job)) => (roles, bindings, job),
        (Err(error), _, _) | (_, Err(error), _) | (_, _, Err(error)) => {
            return vec![CheckResult::unknown(CHECK, error)];
        }
    };
    let control = match control_account(facts) {
        Ok(account) => account,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let of_certificates = job
        .as_ref()
        .map(|_| (manifests::certificates_role(), Some(system::CERTIFICATES)));
    let all = [(manifests::role(), control)];
    let mut results = Vec::new();
    for (wanted, account) in all.into_iter().chain(of_certificates) {
        let name = wanted.name_any();
        let place = format!("{}/{name}", system::NAMESPACE);
        match roles.iter().find(|role| role.name_any() == name) {
            None => results.push(CheckResult::problem(
                CHECK,
                format!("the Role {place} is missing"),
                UPGRADE,
            )),
            Some(found) => results.extend(check_rules(
                &format!("the Role {place}"),
                wanted.rules.as_deref().unwrap_or_default(),
                found.rules.as_deref().unwrap_or_default(),
                UPGRADE,
            )),
        }
        let binding = bindings.iter().find(|binding| binding.name_any() == name);
        results.extend(check_binding(
            &format!("RoleBinding {place}"),
            ("Role", name.as_str()),
            binding.map(|found| (&found.role_ref, found.subjects.as_deref())),
            account,
        ));
    }
    results
}

/// The ServiceAccount of control. Without a Deployment, control has a user of another name. An error if it is not known whether there is one.
fn control_account(facts: &Facts) -> Result<Option<&'static str>, &String> {
    let deployment = facts.control.as_ref()?;
    Ok(deployment.as_ref().map(|_| system::CONTROL))
}

/// The bindings of control's ClusterRoles.
fn check_cluster_role_bindings(facts: &Facts) -> Vec<CheckResult> {
    let installed = match &facts.cluster_role_bindings {
        Ok(installed) => installed,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let account = match control_account(facts) {
        Ok(account) => account,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let wanted = manifests::cluster_role_bindings(system::CONTROL);
    let faults = wanted.iter().filter_map(|wanted| {
        let name = wanted.name_any();
        let found = installed.iter().find(|found| found.name_any() == name);
        check_binding(
            &format!("ClusterRoleBinding {name}"),
            ("ClusterRole", wanted.role_ref.name.as_str()),
            found.map(|found| (&found.role_ref, found.subjects.as_deref())),
            account,
        )
    });
    faults.collect()
}

/// The rights of the gateway, if it is installed.
fn check_gateway(facts: &Facts) -> Vec<CheckResult> {
    let (roles, bindings, deployment) = match (&facts.cluster_roles, &facts.cluster_role_bindings, &facts.gateway) {
        (Ok(roles), Ok(bindings), Ok(deployment)) => (roles, bindings, deployment),
        (Err(error), _, _) | (_, Err(error), _) | (_, _, Err(error)) => {
            return vec![CheckResult::unknown(CHECK, error)];
        }
    };
    let role = roles.iter().find(|role| role.name_any() == system::GATEWAY);
    if role.is_none() && deployment.is_none() {
        return Vec::new();
    }
    let policies = match &facts.policies {
        Ok(policies) => policies,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let (wanted, _) = manifests::gateway_role();
    let mut results = Vec::new();
    let place = format!("the ClusterRole {}", system::GATEWAY);
    match role {
        None => results.push(CheckResult::problem(CHECK, format!("{place} is missing"), UPGRADE)),
        Some(role) => {
            let mut rules = wanted.rules.unwrap_or_default();
            // The chart grants it only with the policy that leaves one annotation of it.
            if !policies.iter().any(|policy| policy.name_any() == system::GATEWAY) {
                for rule in &mut rules {
                    rule.verbs.retain(|verb| verb != "patch");
                }
            }
            results.extend(check_rules(
                &place,
                &rules,
                role.rules.as_deref().unwrap_or_default(),
                UPGRADE,
            ));
        }
    }
    let binding = bindings.iter().find(|found| found.name_any() == system::GATEWAY);
    let binding = binding.map(|found| (&found.role_ref, found.subjects.as_deref()));
    let account = deployment.as_ref().map(|_| system::GATEWAY);
    let place = format!("ClusterRoleBinding {}", system::GATEWAY);
    results.extend(check_binding(
        &place,
        ("ClusterRole", system::GATEWAY),
        binding,
        account,
    ));
    results
}

/// A problem if not all that is wanted is granted.
fn check_rules(place: &str, wanted: &[PolicyRule], granted: &[PolicyRule], fix: &str) -> Option<CheckResult> {
    let rights = rights_of(wanted).into_iter();
    let missing: Vec<Right<'_>> = rights
        .filter(|right| !granted.iter().any(|rule| grants(rule, right)))
        .collect();
    if missing.is_empty() {
        return None;
    }
    let message = format!("{place} does not grant: {}", join_some(&describe(&missing)));
    Some(CheckResult::problem(CHECK, message, fix))
}

/// A problem if a binding does not give a role, by kind and name, to a ServiceAccount of Berth, or, without one, to anybody.
fn check_binding(
    place: &str,
    wanted: (&str, &str),
    found: Option<(&RoleRef, Option<&[Subject]>)>,
    account: Option<&str>,
) -> Option<CheckResult> {
    let Some((role, subjects)) = found else {
        return Some(CheckResult::problem(CHECK, format!("the {place} is missing"), UPGRADE));
    };
    let (kind, name) = wanted;
    if (role.kind.as_str(), role.name.as_str()) != wanted {
        let message = format!(
            "the {place} is for the {} {}, not for the {kind} {name}",
            role.kind, role.name
        );
        // The API server does not let anybody change it.
        return Some(CheckResult::problem(
            CHECK,
            message,
            format!("delete the {place}, and {UPGRADE}"),
        ));
    }
    let mut subjects = subjects.unwrap_or_default().iter();
    let message = match account {
        Some(account) if !subjects.any(|subject| is_account(subject, account)) => {
            format!(
                "the {place} does not name the ServiceAccount {}/{account}",
                system::NAMESPACE
            )
        }
        None if subjects.next().is_none() => format!("the {place} names nobody"),
        Some(_) | None => return None,
    };
    Some(CheckResult::problem(CHECK, message, UPGRADE))
}

/// Whether a subject is this ServiceAccount in Berth's namespace, by either of its names.
fn is_account(subject: &Subject, account: &str) -> bool {
    match subject.kind.as_str() {
        "ServiceAccount" => subject.name == account && subject.namespace.as_deref() == Some(system::NAMESPACE),
        "User" => subject.name == format!("system:serviceaccount:{}:{account}", system::NAMESPACE),
        _ => false,
    }
}

/// One thing that somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Right<'r> {
    group: &'r str,
    resource: &'r str,
    /// Of one object alone.
    name: Option<&'r str>,
    verb: &'r str,
}

/// What rules grant. Rules of Berth have no wildcards.
fn rights_of(rules: &[PolicyRule]) -> BTreeSet<Right<'_>> {
    let mut rights = BTreeSet::new();
    for rule in rules {
        let names: Vec<Option<&str>> = match rule.resource_names.as_deref() {
            None | Some([]) => vec![None],
            Some(names) => names.iter().map(|name| Some(name.as_str())).collect(),
        };
        for group in rule.api_groups.iter().flatten() {
            for resource in rule.resources.iter().flatten() {
                for verb in &rule.verbs {
                    rights.extend(names.iter().map(|name| Right {
                        group,
                        resource,
                        name: *name,
                        verb,
                    }));
                }
            }
        }
    }
    rights
}

/// Whether a rule grants a right, as RBAC sees it.
fn grants(rule: &PolicyRule, right: &Right<'_>) -> bool {
    let resources = rule.resources.as_deref().unwrap_or_default();
    let of_any = right
        .resource
        .split_once('/')
        .map(|(_, subresource)| format!("*/{subresource}"));
    let names = rule.resource_names.as_deref().unwrap_or_default();
    has(rule.api_groups.as_deref().unwrap_or_default(), right.group)
        && (has(resources, right.resource) || of_any.is_some_and(|any| resources.contains(&any)))
        && has(&rule.verbs, right.verb)
        && (names.is_empty() || names.iter().any(|name| right.name == Some(name.as_str())))
}

fn has(listed: &[String], value: &str) -> bool {
    listed.iter().any(|one| one == "*" || one == value)
}

/// Rights as text, one for each resource or object: `create/list jobs.batch`.
fn describe(rights: &[Right<'_>]) -> Vec<String> {
    let mut verbs: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for right in rights {
        let mut of = right.resource.to_owned();
        if !right.group.is_empty() {
            let end = of.find('/').unwrap_or(of.len());
            of.insert_str(end, &format!(".{}", right.group));
        }
        if let Some(name) = right.name {
            of = format!("{of} {name}");
        }
        verbs.entry(of).or_default().push(right.verb);
    }
    let all = verbs.into_iter();
    all.map(|(of, verbs)| format!("{} {of}", verbs.join("/"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn rules(value: Value) -> Vec<PolicyRule> {
        serde_json::from_value(value).unwrap()
    }

    fn message(wanted: Value, granted: Value) -> Option<String> {
        let (wanted, granted) = (rules(wanted), rules(granted));
        check_rules("the Role x", &wanted, &granted, "do it").map(|result| result.message)
    }

    #[test]
    fn rights_are_compared_as_rbac_does() {
        let wanted = json!([
            {"apiGroups": ["batch"], "resources": ["jobs", "jobs/status"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["services"], "resourceNames": ["a", "b"], "verbs": ["list"]},
        ]);
        for granted in [
            wanted.clone(),
            json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
            json!([
                {"apiGroups": ["batch", "apps"], "resources": ["jobs", "*/status"], "verbs": ["watch", "list"]},
                {"apiGroups": ["batch"], "resources": ["*"], "verbs": ["get"]},
                {"apiGroups": [""], "resources": ["services"], "resourceNames": [], "verbs": ["list"]},
            ]),
        ] {
            assert_eq!(message(wanted.clone(), granted.clone()), None, "{granted}");
        }
        let less = json!([
            {"apiGroups": ["batch"], "resources": ["jobs", "*/scale"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["services"], "resourceNames": ["a"], "verbs": ["list", "get"]},
            {"apiGroups": ["apps"], "resources": ["jobs/status"], "verbs": ["*"]},
        ]);
        let expected = "the Role x does not grant: list jobs.batch, get/list jobs.batch/status, list services b";
        assert_eq!(message(wanted, less).as_deref(), Some(expected));
        // A right for all objects is more than one for some.
        let all = json!([{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}]);
        let one = json!([{"apiGroups": [""], "resources": ["services"], "resourceNames": ["a"], "verbs": ["list"]}]);
        let expected = "the Role x does not grant: list services";
        assert_eq!(message(all, one).as_deref(), Some(expected));
    }

    #[test]
    fn bindings_are_for_the_account_and_the_role() {
        let reference = |kind: &str, name: &str| -> RoleRef {
            serde_json::from_value(json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}))
                .unwrap()
        };
        let subjects = |value: Value| -> Vec<Subject> { serde_json::from_value(value).unwrap() };
        let own = reference("Role", "r");
        let judge = |role: &RoleRef, subjects: &[Subject], account: Option<&str>| {
            check_binding("RoleBinding b", ("Role", "r"), Some((role, Some(subjects))), account)
                .map(|result| result.message)
        };
        let account =
            subjects(json!([{"kind": "ServiceAccount", "name": "berth-control", "namespace": "berth-system"}]));
        let user = subjects(json!([{"kind": "User", "name": "system:serviceaccount:berth-system:berth-control"}]));
        let elsewhere = subjects(json!([{"kind": "ServiceAccount", "name": "berth-control", "namespace": "default"}]));
        for of_account in [&account, &user] {
            assert_eq!(judge(&own, of_account, Some("berth-control")), None);
        }
        for of_other in [elsewhere.as_slice(), &[]] {
            let message = judge(&own, of_other, Some("berth-control")).unwrap();
            assert!(
                message.ends_with("the ServiceAccount berth-system/berth-control"),
                "{message}"
            );
        }
        assert_eq!(judge(&own, &elsewhere, None), None);
        assert!(judge(&own, &[], None).unwrap().ends_with("names nobody"));
        let message = judge(&reference("ClusterRole", "r"), &account, None).unwrap();
        assert!(
            message.ends_with("is for the ClusterRole r, not for the Role r"),
            "{message}"
        );
        assert!(check_binding("RoleBinding b", ("Role", "r"), None, None).is_some());
    }
}
