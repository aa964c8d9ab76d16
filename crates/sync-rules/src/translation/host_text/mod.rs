//! Messages of the host for the tenant: with the tenant's names instead of host names, and nothing about other tenants.

use crate::model::{
    Cache, KindId,
    resource::{self, Name},
};
use berth_api::names::{self, HASH_LENGTH};
use serde_json::Value;

/// What a namespace of another tenant is called. Such texts come from controllers and webhooks of the host that work for all tenants.
const ANOTHER_NAMESPACE: &str = "another namespace";

/// Replaces host names and namespaces in a message about the object called `about` by the tenant's. Those of other tenants are not named.
pub fn to_tenant_names(cache: &Cache, about: &Name, text: &str) -> String {
    let text = scheduling(text, cache.stores.host(KindId::Node).len());
    let mut result = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(start) = rest.find(is_name_character) {
        let (before, tail) = rest.split_at(start);
        let end = tail.find(|c| !is_name_character(c)).unwrap_or(tail.len());
        let (word, after) = tail.split_at(end);
        result.push_str(before);
        rest = match push_word(cache, about, word, &mut result) {
            Owner::AnotherTenant => without_names(after),
            Owner::Other => after,
        };
    }
    result.push_str(rest);
    result
}

/// The same in place. Most texts have no such names, and stay as they are.
pub fn map_to_tenant_names(cache: &Cache, about: &Name, text: &mut String) {
    if may_have_host_names(cache, text) {
        *text = to_tenant_names(cache, about, text);
    }
}

/// Whether [`to_tenant_names`] may change a text.
fn may_have_host_names(cache: &Cache, text: &str) -> bool {
    let tenant = &cache.tenant;
    let may_change = |word: &str| {
        looks_derived(word)
            || word == tenant.workload_namespace
            || word == tenant.control_plane_namespace
            || is_of_another_tenant(cache, word)
    };
    text.starts_with(UNSCHEDULABLE)
        || !cache.mirror_sources().is_empty()
        || text.split(|c| !is_name_character(c)).any(may_change)
}

fn is_name_character(c: char) -> bool {
    c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'
}

/// What follows the names of objects that are in a namespace, as in `namespace/name`.
fn without_names(text: &str) -> &str {
    let mut rest = text;
    while let Some(tail) = rest.strip_prefix('/') {
        let end = tail.find(|c| !is_name_character(c) && c != '.').unwrap_or(tail.len());
        // The end of a sentence.
        let name = tail[..end].trim_end_matches('.');
        if name.is_empty() {
            break;
        }
        rest = &tail[name.len()..];
    }
    rest
}

/// What a word names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// A namespace of another tenant: names that follow are of its objects.
    AnotherTenant,
    /// Anything else.
    Other,
}

fn push_word(cache: &Cache, about: &Name, word: &str, result: &mut String) -> Owner {
    if word == cache.tenant.workload_namespace {
        result.push_str(&about.namespace);
    } else if word == cache.tenant.control_plane_namespace {
        result.push_str("the platform");
    } else if let Some(name) = looks_derived(word).then(|| tenant_name(cache, about, word)).flatten() {
        result.push_str(&name.name);
    } else if let Some(name) = generated_claim_name(cache, word) {
        result.push_str(&name.name);
    } else if is_of_another_tenant(cache, word) {
        result.push_str(ANOTHER_NAMESPACE);
        return Owner::AnotherTenant;
    } else {
        result.push_str(word);
    }
    Owner::Other
}

/// Whether a word has the form of another tenant's namespace. An object of the tenant may have such a name as well: one that exists is known.
fn is_of_another_tenant(cache: &Cache, word: &str) -> bool {
    names::is_like_tenant_namespace(word) && !word.contains(&cache.tenant.slug)
}

/// Whether a word may be a derived host name: most are not, and need no look-up.
fn looks_derived(word: &str) -> bool {
    word.len() > HASH_LENGTH + 1 && word.as_bytes()[word.len() - HASH_LENGTH - 1] == b'-'
}

fn tenant_name(cache: &Cache, about: &Name, host_name: &str) -> Option<Name> {
    let mut kinds = cache.kinds.iter();
    let known = kinds.find_map(|kind| cache.stores.host(*kind).tenant_name(host_name));
    // An object that is named but does not exist has a host name, too.
    let absent = || {
        let references = cache.references();
        let users = cache.kinds.iter().map(|kind| kind.key(about.clone()));
        let mut named = users.flat_map(|user| references.targets(&user));
        named.find_map(|key| (resource::host_name(key.kind, &key.name) == host_name).then_some(key.name))
    };
    known.or_else(absent)
}

/// The tenant's name of what the host calls `host_name`, if that is a mirrored claim that the host made.
pub fn generated_claim_name(cache: &Cache, host_name: &str) -> Option<Name> {
    let mirrored = cache.mirror_sources();
    let source = (!mirrored.is_empty()).then(|| KindId::GeneratedClaim.key(Name::new("", host_name)))?;
    mirrored.of(&source).pop().map(|key| key.name)
}

/// How the scheduler's messages begin about a pod that fits nowhere.
const UNSCHEDULABLE: &str = "0/";
/// What nodes of the tenant do not match of which nothing else is said.
const UNMATCHED: &str = "the pod's node selector, affinity and tolerations";

/// The scheduler counts all nodes of the host and names taints of other tenants. A tenant sees its own nodes only.
fn scheduling(text: &str, own_nodes: usize) -> String {
    let Some((_, list)) = text
        .strip_prefix(UNSCHEDULABLE)
        .and_then(|rest| rest.split_once(" nodes are available: "))
    else {
        return text.to_owned();
    };
    let list = list
        .split(" preemption: ")
        .next()
        .unwrap_or_default()
        .trim_end_matches(['.', ' ']);
    let reasons = list.split(", ").filter(|reason| {
        // Other tenants' nodes do not match the forced selector.
        !reason.contains("berth.dev/")
            && !reason.contains("untolerated taint")
            && !reason.contains("node affinity/selector")
            // What preemption says of the same nodes.
            && !reason.contains("plugin(s) [NodeAffinity]")
    });
    let reasons: Vec<(Option<usize>, &str)> = reasons.map(|reason| count_of(reason, own_nodes)).collect();
    // A reason without a number is about all nodes.
    let counts: Option<Vec<usize>> = reasons.iter().map(|(count, _)| *count).collect();
    let counted = counts.map_or(own_nodes, |counts| counts.into_iter().fold(0, usize::saturating_add));
    let mut texts: Vec<String> = reasons
        .into_iter()
        .map(|(count, reason)| count.map_or_else(|| reason.to_owned(), |count| format!("{count} {reason}")))
        .collect();
    // The host says of nodes that the tenant has tainted or cordoned that the affinity excludes them, as of those of others.
    match own_nodes.saturating_sub(counted) {
        _ if texts.is_empty() => texts.push(format!("no node matches {UNMATCHED}")),
        0 => {}
        left => texts.push(format!("{left} node(s) didn't match {UNMATCHED}")),
    }
    format!("0/{own_nodes} nodes are available: {}.", texts.join(", "))
}

/// A reason of the scheduler's without its number of nodes, and that number, or that of the tenant's nodes if there are fewer. None: the reason
/// has no number.
fn count_of(reason: &str, own_nodes: usize) -> (Option<usize>, &str) {
    let counted = reason
        .split_once(' ')
        .and_then(|(count, rest)| Some((count.parse::<usize>().ok()?, rest)));
    match counted {
        Some((count, rest)) => (Some(count.min(own_nodes)), rest),
        None => (None, reason),
    }
}

/// Maps host names in every text below `value`. For statuses of kinds whose texts are messages or names.
pub fn translate_texts(cache: &Cache, about: &Name, value: &mut Value) {
    match value {
        Value::Object(fields) => fields
            .values_mut()
            .for_each(|value| translate_texts(cache, about, value)),
        Value::Array(items) => items.iter_mut().for_each(|item| translate_texts(cache, about, item)),
        Value::String(text) => map_to_tenant_names(cache, about, text),
        _ => {}
    }
}

/// How the webhook of ingress-nginx names the Ingress that has a path already.
const DEFINED_IN: &str = "is already defined in ingress ";
/// The same of one that is not the tenant's.
const DEFINED_ELSEWHERE: &str = "is already defined in an Ingress of another namespace";

/// Leaves out who has a path of a host, unless it is the tenant. The platform's names cannot be recognized in other texts: `word/word` may be a path,
/// an image or an API group as well.
fn without_other_ingresses(cache: &Cache, error: &str) -> String {
    let mut parts = error.split(DEFINED_IN);
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let namespace = part.split('/').next().unwrap_or_default();
        if namespace == cache.tenant.workload_namespace {
            result.extend([DEFINED_IN, part]);
        } else {
            let end = part.find(|c| !is_name_character(c)).unwrap_or(part.len());
            result.extend([DEFINED_ELSEWHERE, without_names(&part[end..])]);
        }
    }
    result
}

/// An error of the host's API server, as a message for the tenant: without host names, addresses or URLs.
pub fn sanitize_error(cache: &Cache, about: &Name, error: &str) -> String {
    let text = to_tenant_names(cache, about, &without_other_ingresses(cache, error));
    let words: Vec<&str> = text
        .split(' ')
        .map(|word| if is_address(word) { "(address)" } else { word })
        .map(|word| {
            if word.contains("system:serviceaccount:") || word.contains("berth:") {
                "the syncer"
            } else {
                word
            }
        })
        .collect();
    words.join(" ")
}

/// Whether a word is a URL, or an IP address with or without a port.
fn is_address(word: &str) -> bool {
    let word = word.trim_matches(['"', '\'', '(', ')', '[', ']', ',', '.', ':', ';']);
    word.contains("://") || word.parse::<std::net::IpAddr>().is_ok() || word.parse::<std::net::SocketAddr>().is_ok()
}

#[cfg(test)]
mod tests;
