//! The audit policy of an API server.
//!
//! Of users, presets leave out only those that nobody in the tenant can be. ServiceAccounts of controllers are not among them: an administrator who
//! may have their tokens could act unseen.

use super::super::{
    admission::{created_by::CONTROLLER_MANAGER as CONTROLLER_MANAGER_USER, platform_objects::API_SERVER_USER},
    certificates::{CONTROL_USER, TENANT_USER},
    coredns::DNS_USER,
    scheduler::SCHEDULER_USER,
};
use berth_api::{AuditLevel, AuditPreset, AuditResources, AuditRule, AuditStage, ClassAudit};
use serde_json::{Value, json};

/// Resources whose requests or answers hold credentials, by group.
const CREDENTIALS: [(&str, &[&str]); 2] = [
    ("", &["secrets", "serviceaccounts/token"]),
    ("authentication.k8s.io", &["tokenreviews"]),
];
/// The API server itself, and the platform's programs. Nobody else authenticates as them.
const PLATFORM: [&str; 4] = [API_SERVER_USER, CONTROL_USER, TENANT_USER, DNS_USER];
/// Programs of the control plane. What they only read is not logged.
const PROGRAMS: [&str; 2] = [CONTROLLER_MANAGER_USER, SCHEDULER_USER];
/// Verbs that change nothing.
const READS: [&str; 3] = ["get", "list", "watch"];
/// Verbs that change something.
const WRITES: [&str; 5] = ["create", "update", "patch", "delete", "deletecollection"];
/// Resources that lead into pods and to nodes, also with the verb get.
const CONNECTIONS: [&str; 6] = [
    "pods/exec",
    "pods/attach",
    "pods/portforward",
    "pods/proxy",
    "services/proxy",
    "nodes/proxy",
];
/// Probes, discovery and public keys.
const DISCOVERY: [&str; 8] = [
    "/api*",
    "/healthz*",
    "/livez*",
    "/readyz*",
    "/version*",
    "/openapi*",
    "/.well-known/*",
    "/openid/*",
];

/// The policy for what a class sets. `encrypted` are the resources that API servers encrypt before they store them, as the class names them: who
/// may not read them in etcd does not read them in the log either.
pub(super) fn policy(audit: &ClassAudit, encrypted: &[&str]) -> Value {
    let rules = match audit.preset {
        Some(preset) => preset_rules(preset),
        None => audit.rules.clone(),
    };
    let confidential = confidential_resources(encrypted);
    let rules: Vec<AuditRule> = rules
        .into_iter()
        .flat_map(|rule| without_confidential(rule, &confidential))
        .collect();
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        // Another line follows for each request, with the result.
        "omitStages": [AuditStage::RequestReceived],
        "omitManagedFields": true,
        "rules": rules,
    })
}

fn preset_rules(preset: AuditPreset) -> Vec<AuditRule> {
    let mut rules = Vec::from(noise());
    match preset {
        AuditPreset::Writes => rules.extend(writes()),
        AuditPreset::Metadata => rules.push(level(AuditLevel::Metadata)),
        AuditPreset::Request => rules.extend([
            AuditRule {
                resources: vec![resources("", &["configmaps"])],
                ..level(AuditLevel::Metadata)
            },
            AuditRule {
                verbs: texts(&WRITES),
                ..level(AuditLevel::Request)
            },
            level(AuditLevel::Metadata),
        ]),
    }
    rules
}

/// What no preset logs: requests of the platform, Leases and Events as controllers write them all the time, probes and discovery.
fn noise() -> [AuditRule; 4] {
    let repeated: Vec<&str> = READS.into_iter().chain(["create", "update", "patch"]).collect();
    [
        AuditRule {
            users: texts(&PLATFORM),
            ..level(AuditLevel::None)
        },
        AuditRule {
            users: texts(&PROGRAMS),
            verbs: texts(&READS),
            ..level(AuditLevel::None)
        },
        // Who deletes Events may hide something.
        AuditRule {
            verbs: texts(&repeated),
            resources: vec![
                resources("", &["events"]),
                resources("events.k8s.io", &["events"]),
                resources("coordination.k8s.io", &["leases"]),
            ],
            ..level(AuditLevel::None)
        },
        AuditRule {
            non_resource_urls: texts(&DISCOVERY),
            ..level(AuditLevel::None)
        },
    ]
}

/// What changes something, and what leads to secrets or into pods.
fn writes() -> [AuditRule; 3] {
    [
        // Reviews are created and change nothing.
        AuditRule {
            resources: vec![
                resources("authorization.k8s.io", &[]),
                resources("authentication.k8s.io", &["tokenreviews", "selfsubjectreviews"]),
            ],
            ..level(AuditLevel::None)
        },
        AuditRule {
            resources: vec![resources("", &["secrets"]), resources("", &CONNECTIONS)],
            ..level(AuditLevel::Metadata)
        },
        AuditRule {
            verbs: texts(&WRITES),
            ..level(AuditLevel::Metadata)
        },
    ]
}

/// A rule of this level for everything.
fn level(level: AuditLevel) -> AuditRule {
    AuditRule {
        level,
        ..AuditRule::default()
    }
}

fn resources(group: &str, resources: &[&str]) -> AuditResources {
    AuditResources {
        group: group.into(),
        resources: texts(resources),
        resource_names: Vec::new(),
    }
}

fn texts(list: &[&str]) -> Vec<String> {
    list.iter().map(ToString::to_string).collect()
}

/// The resources whose content is in no log: [`CREDENTIALS`], and those that are encrypted, with their subresources, as a request for
/// `widgets/status` has the whole object.
fn confidential_resources(encrypted: &[&str]) -> Vec<AuditResources> {
    let credentials = CREDENTIALS.iter().map(|(group, names)| resources(group, names));
    let is_credential = |name: &str| {
        CREDENTIALS
            .iter()
            .any(|(group, names)| group.is_empty() && names.contains(&name))
    };
    let others = encrypted.iter().filter(|name| !is_credential(name)).map(|name| {
        let (plural, group) = name.split_once('.').unwrap_or((*name, ""));
        AuditResources {
            group: group.into(),
            resources: vec![format!("{plural}/*")],
            resource_names: Vec::new(),
        }
    });
    credentials.chain(others).collect()
}

/// A rule that logs content, behind one that logs the metadata of the requests among these that are for confidential resources. Other rules stay as
/// they are.
fn without_confidential(rule: AuditRule, confidential: &[AuditResources]) -> impl Iterator<Item = AuditRule> {
    let logs_content = matches!(rule.level, AuditLevel::Request | AuditLevel::RequestResponse);
    let is_for_resources = rule.non_resource_urls.is_empty();
    let found = if logs_content && is_for_resources {
        find_confidential(&rule.resources, confidential)
    } else {
        Vec::new()
    };
    let metadata = (!found.is_empty()).then(|| AuditRule {
        level: AuditLevel::Metadata,
        resources: found,
        ..rule.clone()
    });
    metadata.into_iter().chain([rule])
}

/// Those of the confidential resources that are among the resources of a rule, of which an empty list stands for all.
fn find_confidential(listed: &[AuditResources], confidential: &[AuditResources]) -> Vec<AuditResources> {
    if listed.is_empty() {
        return confidential.to_vec();
    }
    let covered = |one: &AuditResources| -> Option<AuditResources> {
        let of_group = confidential.iter().filter(|known| known.group == one.group);
        let names = of_group.flat_map(|known| &known.resources);
        let names: Vec<String> = names.flat_map(|name| find_covered(&one.resources, name)).collect();
        (!names.is_empty()).then(|| AuditResources {
            group: one.group.clone(),
            resources: names,
            resource_names: one.resource_names.clone(),
        })
    };
    listed.iter().filter_map(covered).collect()
}

/// What the patterns of a rule, of which an empty list stands for all, match of a resource; of `name/*` it may be a part.
fn find_covered(patterns: &[String], name: &str) -> Vec<String> {
    let is_whole = |pattern: &String| pattern == "*" || pattern == name;
    if patterns.is_empty() || patterns.iter().any(is_whole) {
        return vec![name.to_owned()];
    }
    let Some(resource) = name.strip_suffix("/*") else {
        let is_covered = patterns.iter().any(|pattern| covers(pattern, name));
        return is_covered.then(|| name.to_owned()).into_iter().collect();
    };
    let part = |pattern: &String| match pattern.strip_prefix("*/") {
        Some(subresource) => Some(format!("{resource}/{subresource}")),
        None => (pattern.split('/').next() == Some(resource)).then(|| pattern.clone()),
    };
    patterns.iter().filter_map(part).collect()
}

/// Whether a pattern of a rule matches a resource, as API servers compare them: `pods/*` also matches `pods`.
fn covers(pattern: &str, name: &str) -> bool {
    let (resource, subresource) = name
        .split_once('/')
        .map_or((name, None), |(resource, subresource)| (resource, Some(subresource)));
    let of_any = pattern.strip_prefix("*/");
    pattern == "*"
        || pattern == name
        || pattern.strip_suffix("/*") == Some(resource)
        || of_any.is_some_and(|pattern| subresource == Some(pattern))
}
