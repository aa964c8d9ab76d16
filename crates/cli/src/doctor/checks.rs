//! The checks of the installation of Berth. Pure.

use std::collections::BTreeMap;

use berth_metering::PriceBook;
use jiff::Timestamp;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

use super::CheckResult;
use super::facts::{Facts, Read};
use super::{cluster, permissions, retained};

/// The oldest minor version of Kubernetes that a host may have; as `kubeVersion` of the chart.
const OLDEST_MINOR: u32 = 34;
/// Time by which a certificate may be renewed too late before that is a warning, in seconds: control renews in its own time.
const RENEWAL_SLACK: i64 = 24 * 3600;
/// Time before its expiry from which on a certificate is a problem, in seconds.
const EXPIRY_NEAR: i64 = 7 * 24 * 3600;
/// What a Lease may be older than it says until control counts as gone. Clocks differ.
const LEASE_SLACK: i64 = 30;
/// What most fixes of an installation come to.
pub(super) const UPGRADE: &str =
    "install this version of Berth's chart: helm upgrade --install berth … (docs/guides/upgrade.md)";

/// All checks.
pub(super) fn check(facts: &Facts) -> Vec<CheckResult> {
    [
        check_version(&facts.version),
        check_definitions(&facts.definitions),
        permissions::check(facts),
        check_policies(facts),
        check_control(facts),
        check_certificates(facts),
        check_prices(facts),
        cluster::check(facts),
        retained::check(facts),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn minor_of(version: &str) -> Option<u32> {
    version.trim_start_matches('v').split('.').nth(1)?.parse().ok()
}

fn check_version(version: &Read<String>) -> Vec<CheckResult> {
    const CHECK: &str = "host version";
    let version = match version {
        Ok(version) => version,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let newest = minor_of(berth_kubernetes_versions::KUBERNETES_DEFAULT);
    let result = match minor_of(version) {
        None => CheckResult::unknown(CHECK, &format!("{version} is not a version of Kubernetes")),
        Some(minor) if minor < OLDEST_MINOR => CheckResult::problem(
            CHECK,
            format!("{version} is older than v1.{OLDEST_MINOR}"),
            format!("upgrade the host cluster to v1.{OLDEST_MINOR} or newer"),
        ),
        Some(minor) if newest.is_some_and(|newest| minor > newest) => CheckResult::warning(
            CHECK,
            format!("{version} is newer than this version of Berth was tested with"),
            "upgrade Berth",
        ),
        Some(_) => CheckResult::ok(CHECK, version.clone()),
    };
    vec![result]
}

fn check_definitions(definitions: &Read<Vec<CustomResourceDefinition>>) -> Vec<CheckResult> {
    const CHECK: &str = "definitions";
    let installed = match definitions {
        Ok(installed) => installed,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let mut results = Vec::new();
    for wanted in berth_api::crd::all() {
        let name = wanted.name_any();
        match installed.iter().find(|found| found.name_any() == name) {
            None => results.push(CheckResult::problem(CHECK, format!("{name} is not installed"), UPGRADE)),
            Some(found) if !is_established(found) => results.push(CheckResult::problem(
                CHECK,
                format!("{name} is not served"),
                format!("see kubectl describe customresourcedefinition {name}"),
            )),
            Some(found) if schemas_of(found) != schemas_of(&wanted) => results.push(CheckResult::warning(
                CHECK,
                format!(
                    "{name} is of another version than this program, {}",
                    env!("CARGO_PKG_VERSION")
                ),
                UPGRADE,
            )),
            Some(_) => {}
        }
    }
    if results.is_empty() {
        results.push(CheckResult::ok(CHECK, "all are installed, of this version"));
    }
    results
}

fn is_established(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut all = conditions.into_iter().flatten();
    all.any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// The schemas by version, which is what differs between versions of Berth.
fn schemas_of(definition: &CustomResourceDefinition) -> BTreeMap<&str, serde_json::Value> {
    let versions = definition.spec.versions.iter();
    versions
        .map(|version| {
            let mut schema = serde_json::to_value(&version.schema).unwrap_or_default();
            remove_empty(&mut schema);
            (version.name.as_str(), schema)
        })
        .collect()
}

/// Removes what API servers leave out of answers.
fn remove_empty(value: &mut serde_json::Value) {
    use serde_json::Value;
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    };
    match value {
        Value::Array(items) => items.iter_mut().for_each(remove_empty),
        Value::Object(fields) => {
            fields.values_mut().for_each(remove_empty);
            fields.retain(|_, field| !is_empty(field));
        }
        _ => {}
    }
}

fn check_policies(facts: &Facts) -> Vec<CheckResult> {
    const CHECK: &str = "admission policies";
    let installed = match &facts.policies {
        Ok(installed) => installed,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let wanted = berth_admission_policies::all_policies();
    let missing: Vec<String> = wanted
        .iter()
        .map(|policy| policy.build_policy().name_any())
        .filter(|name| installed.iter().all(|policy| policy.name_any() != *name))
        .collect();
    if missing.is_empty() {
        let message = format!("all {} ValidatingAdmissionPolicies are installed", wanted.len());
        return vec![CheckResult::ok(CHECK, message)];
    }
    let message = format!(
        "syncers are not confined: ValidatingAdmissionPolicies are missing: {}",
        missing.join(", ")
    );
    vec![CheckResult::problem(CHECK, message, UPGRADE)]
}

fn check_control(facts: &Facts) -> Vec<CheckResult> {
    const CHECK: &str = "control";
    let mut results = Vec::new();
    if let Err(error) = &facts.control {
        results.push(CheckResult::unknown(CHECK, error));
    }
    if let Ok(Some(deployment)) = &facts.control {
        let status = deployment.status.clone().unwrap_or_default();
        if status.available_replicas.unwrap_or_default() == 0 {
            results.push(CheckResult::problem(
                CHECK,
                "no replica of the Deployment berth-system/berth-control is available",
                "see kubectl describe pods -n berth-system -l app.kubernetes.io/name=berth-control",
            ));
        }
        let label = deployment.labels().get("app.kubernetes.io/version").cloned();
        if let Some(version) = label.filter(|version| version != env!("CARGO_PKG_VERSION")) {
            results.push(CheckResult::warning(
                CHECK,
                format!(
                    "its version is {version}, and that of this program {}",
                    env!("CARGO_PKG_VERSION")
                ),
                "use the berth of the same version",
            ));
        }
    }
    let lease = match &facts.lease {
        Ok(lease) => lease.as_ref().and_then(|lease| lease.spec.as_ref()),
        Err(error) => {
            results.push(CheckResult::unknown(CHECK, error));
            return results;
        }
    };
    let holder = lease
        .and_then(|lease| lease.holder_identity.clone())
        .filter(|name| !name.is_empty());
    let renewed = lease.and_then(|lease| Some(lease.renew_time.as_ref()?.0));
    let seconds = lease.and_then(|lease| lease.lease_duration_seconds).unwrap_or_default();
    let now = facts.host_time.as_ref().unwrap_or(&facts.now);
    let is_held = renewed.is_some_and(|at| now.as_second() - at.as_second() <= i64::from(seconds) + LEASE_SLACK);
    let fix = "see the log of control: kubectl logs -n berth-system -l app.kubernetes.io/name=berth-control";
    match holder {
        Some(holder) if is_held => results.push(CheckResult::ok(CHECK, format!("{holder} has the lease"))),
        Some(holder) => results.push(CheckResult::problem(
            CHECK,
            format!("{holder} has not renewed the lease in time"),
            fix,
        )),
        None => results.push(CheckResult::problem(CHECK, "no control has the lease", fix)),
    }
    results
}

fn check_certificates(facts: &Facts) -> Vec<CheckResult> {
    const CHECK: &str = "certificates";
    let certificates = match &facts.certificates {
        Ok(certificates) => certificates,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let now = facts.now.as_second();
    let mut results = Vec::new();
    for certificate in certificates {
        let end = certificate.not_after.as_second();
        let text = format_day(certificate.not_after);
        let fix = "control renews them: see its log, and the conditions of the tenant";
        if end <= now {
            results.push(CheckResult::problem(
                CHECK,
                format!("{} expired on {text}", certificate.place),
                fix,
            ));
        } else if end - now < EXPIRY_NEAR {
            results.push(CheckResult::problem(
                CHECK,
                format!("{} expires on {text}", certificate.place),
                fix,
            ));
        } else if certificate.renew_at.as_second() + RENEWAL_SLACK < now {
            let message = format!("{} should have been renewed; it expires on {text}", certificate.place);
            results.push(CheckResult::warning(CHECK, message, fix));
        }
    }
    if results.is_empty() {
        let message = match certificates.len() {
            0 => "there are none yet".to_owned(),
            number => format!("{number} are valid and renewed in time"),
        };
        results.push(CheckResult::ok(CHECK, message));
    }
    results
}

/// RateCards are accepted one by one: no API server sees that two of them contradict each other.
fn check_prices(facts: &Facts) -> Vec<CheckResult> {
    const CHECK: &str = "prices";
    let cards = match &facts.rate_cards {
        Ok(cards) => cards,
        Err(error) => return vec![CheckResult::unknown(CHECK, error)],
    };
    let prices = PriceBook::new(cards);
    let Some(first) = prices.errors().first() else {
        let message = match cards.len() {
            0 => "there are no RateCards".to_owned(),
            number => format!("RateCards are clear: {number}"),
        };
        return vec![CheckResult::ok(CHECK, message)];
    };
    let message = match prices.errors().len() {
        1 => first.to_string(),
        number => format!("{first} (the first of {number} errors)"),
    };
    let fix = "correct the RateCards: until then usage has no costs where they are wrong (docs/guides/metering.md)";
    vec![CheckResult::warning(CHECK, message, fix)]
}

fn format_day(time: Timestamp) -> String {
    time.strftime("%Y-%m-%d").to_string()
}

/// How far two clocks are apart, in seconds.
pub(super) fn difference(one: Timestamp, other: Timestamp) -> i64 {
    (one.as_second() - other.as_second()).abs()
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
