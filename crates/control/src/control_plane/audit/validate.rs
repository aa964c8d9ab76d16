//! What an API server does not start with. The schema rejects it already; this finds it in classes that were stored before the schema rejected it,
//! or on a host that cannot check it. With a policy that cannot be read no API server of the class would start.

use super::policy::policy;
use berth_api::{AuditResources, AuditRule, ClassAudit};

/// Most bytes of the policy, as JSON. It is in two objects on the host beside other settings, for each of which an API server takes 1 MiB.
pub(super) const MAX_BYTES: usize = 64 * 1024;
/// The same with what is added for what the class encrypts: enough for as many rules and resources as a class may have, so that a class whose rules are
/// short enough is refused because of that only if a rule lists the same again and again.
const MAX_BYTES_WITH_ENCRYPTION: usize = 384 * 1024;

/// The first error in what a class sets: a field below `audit`, and what is wrong. `encrypted` are the resources that the class encrypts.
pub fn find_error(audit: &ClassAudit, encrypted: &[&str]) -> Option<String> {
    let ClassAudit { preset, rules } = audit;
    if preset.is_some() != rules.is_empty() {
        return Some("preset: set one of preset and rules".into());
    }
    for (index, rule) in rules.iter().enumerate() {
        if let Some(error) = find_error_in(rule) {
            return Some(format!("rules[{index}].{error}"));
        }
    }
    let bytes = policy(audit, &[]).to_string().len();
    if bytes > MAX_BYTES {
        return Some(format!(
            "rules: all rules together may have at most {MAX_BYTES} bytes as JSON, and have {bytes}, with those that Berth adds to keep \
             credentials out of the log; list fewer names"
        ));
    }
    let bytes = policy(audit, encrypted).to_string().len();
    (bytes > MAX_BYTES_WITH_ENCRYPTION).then(|| {
        format!(
            "rules: with those that Berth adds to keep what is encrypted out of the log, all rules together may have at most \
             {MAX_BYTES_WITH_ENCRYPTION} bytes as JSON, and have {bytes}; list fewer resources"
        )
    })
}

fn find_error_in(rule: &AuditRule) -> Option<String> {
    let AuditRule {
        level: _,
        users: _,
        user_groups: _,
        verbs,
        resources,
        namespaces,
        non_resource_urls,
        omit_stages: _,
        omit_managed_fields: _,
    } = rule;
    if !non_resource_urls.is_empty() && (!resources.is_empty() || !namespaces.is_empty()) {
        return Some("nonResourceURLs: a rule is for nonResourceURLs, or for resources and namespaces".into());
    }
    if let Some(bad) = non_resource_urls.iter().find(|url| !is_url(url)) {
        return Some(format!(
            "nonResourceURLs: {bad:?} is not a path such as /metrics or /logs*"
        ));
    }
    let is_verb = |verb: &&String| !verb.is_empty() && verb.bytes().all(|byte| byte.is_ascii_lowercase());
    if let Some(bad) = verbs.iter().find(|verb| !is_verb(verb)) {
        return Some(format!(
            "verbs: {bad:?} is not a verb such as create; an empty list stands for all"
        ));
    }
    resources.iter().find_map(find_error_in_resources)
}

fn find_error_in_resources(listed: &AuditResources) -> Option<String> {
    let AuditResources {
        group,
        resources,
        resource_names,
    } = listed;
    if !is_group(group) {
        return Some(format!("resources: {group:?} is not an API group such as apps"));
    }
    if let Some(bad) = resources.iter().find(|resource| !is_resource(resource)) {
        return Some(format!(
            "resources: {bad:?} is not a resource such as pods, pods/log, pods/*, */scale or *"
        ));
    }
    (!resource_names.is_empty() && resources.is_empty())
        .then(|| "resources: resourceNames needs resources in the same entry".into())
}

/// `*`, or a path that may end with `*`.
fn is_url(url: &str) -> bool {
    let path = url.strip_suffix('*').unwrap_or(url);
    url == "*" || (path.starts_with('/') && !path.contains('*'))
}

/// A DNS subdomain, or nothing.
fn is_group(group: &str) -> bool {
    group.is_empty() || (group.len() <= 253 && group.split('.').all(is_label))
}

/// Small letters and digits, with dashes between them.
fn is_label(label: &str) -> bool {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [label.bytes().next(), label.bytes().next_back()];
    ends.into_iter().all(|end| end.is_some_and(is_alphanumeric))
        && label.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-')
}

/// A resource, a subresource, or all of one of both. API servers match nothing with `*/*`.
fn is_resource(text: &str) -> bool {
    let is_name = |name: &str| !name.is_empty() && name.split('.').all(is_label);
    match text.split_once('/') {
        None => text == "*" || is_name(text),
        Some(("*", subresource)) => is_name(subresource),
        Some((resource, subresource)) => is_name(resource) && (subresource == "*" || is_name(subresource)),
    }
}
