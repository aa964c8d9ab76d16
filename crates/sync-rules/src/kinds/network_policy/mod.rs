//! NetworkPolicies.
//!
//! | field | rule |
//! |---|---|
//! | labels, annotations | not passed on: see `metadata` |
//! | `podSelector` | narrowed to the tenant and the namespace, and to pods that carry all of their labels if it asks for the absence of one |
//! | `policyTypes` | copied |
//! | `ingress[].ports`, `egress[].ports` | copied |
//! | peers: selectors | pods of the tenant only, see `peers` |
//! | peers: `ipBlock` | the part that is declared for the tenant, see `limits` and `blocks` |
//! | a rule without peers, which means everyone | the tenant's pods and everything that is declared |
//! | peers that mean DNS or the API server | a label of the pods that the policy selects, see `services` |
//! | too many rules, peers or ports, see [`sizes`] | the policy closes its directions, with an Event |
//! | more ranges than the host's admission policy can compare, see `cost` | the policy closes this direction, with an Event |
//! | anything else | left out, with an Event |
//!
//! What is not allowed is left out of the policy, even if no rule remains; the policy itself is always on the host, unless the selector
//! of its pods is too large. Its pods are closed then as well, because the platform allows them nothing.
//! Rules only allow traffic, so such a policy allows less than requested, never more. Denying the whole policy would be
//! worse: the host would have no policy, or an older one that still allows what the tenant has closed.
//!
//! The platform lets the pods of a tenant talk to each other, but only those that no policy of the tenant selects,
//! because Kubernetes adds up what policies allow. A label of the host pod says that no policy selects it: see
//! [`isolation`]. The pod loses it as soon as the syncer observes such a policy, even if the policy is not on the host
//! yet, and whatever else of the pod is denied here or refused by the host (see [`ToHost::closing_patch`]). It gets the label back when the
//! policy is gone from the tenant. In between, less traffic may be allowed than
//! requested, never more. For the same reason the rules that a policy loses, and those of pods that it no longer selects, are gone before it is
//! its turn to be written: see [`ToHost::narrowed`].

mod blocks;
mod cost;
pub mod isolation;
mod limits;
mod narrow;
mod peers;
mod services;

#[cfg(test)]
mod tests;

use crate::{
    model::{
        Cache, DeniedField, DesiredState, HostNamespace, Kind, ToHost, Translated, WhenDenied, json,
        resource::{Name, Resource},
        store::WatchSpec,
    },
    translation::{
        fields::{self, FieldIssues, Fields, Rule},
        metadata::{self, AnnotationRules},
        pod_selector::{of_pods_with_all_labels, scoped},
        sizes,
    },
};
use peers::{Made, Peers};
use serde_json::{Map, Value, json};

const RESOURCE: Resource = Resource::new("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies");

/// The kind.
pub const KIND: Kind = Kind::to_host(RESOURCE, &Policies)
    .watch_host(HostNamespace::Workloads, WatchSpec::synced(RESOURCE).trimmed(trim_host))
    // Pods would be open as if there were no policies.
    .essential();

/// Fields of the spec of a host policy that are the syncer's alone.
const EXCLUSIVE: &[&str] = &["egress", "ingress"];

fn trim_host(policy: &mut Value) {
    metadata::with_fields_of_spec(policy, EXCLUSIVE, metadata::only);
}

const SPEC: Fields = &[
    ("egress", Rule::Rewrite),
    ("ingress", Rule::Rewrite),
    ("podSelector", Rule::Rewrite),
    ("policyTypes", Rule::Copy),
];

const PORT: Fields = &[("endPort", Rule::Copy), ("port", Rule::Copy), ("protocol", Rule::Copy)];

/// The lists of rules, each with the side of its peers.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

struct Policies;

impl ToHost for Policies {
    fn resource(&self) -> Resource {
        RESOURCE
    }

    fn desired_state(&self, _cache: &Cache, _name: &Name, _policy: &Value) -> DesiredState {
        DesiredState::Sync
    }

    fn when_denied(&self, cache: &Cache, name: &Name, policy: &Value, _host: &Value) -> WhenDenied {
        // Without rules it closes everything in its directions.
        let mut closed = policy.clone();
        if let Some(spec) = closed.get_mut("spec").and_then(Value::as_object_mut) {
            let types: Vec<_> = isolation::directions(&policy["spec"]).collect();
            spec.insert("policyTypes".into(), json!(types));
            spec.retain(|field, _| ["podSelector", "policyTypes"].contains(&field.as_str()));
        }
        let metadata = json!({"name": &*name.name, "namespace": &*name.namespace});
        closed["metadata"] = metadata;
        self.translate(cache, name, &closed)
            .map_or(WhenDenied::Withdraw, |translated| WhenDenied::Reduce(translated.object))
    }

    fn exclusive_fields(&self) -> &'static [&'static str] {
        EXCLUSIVE
    }

    fn narrows_at_once(&self) -> bool {
        true
    }

    fn narrowed(&self, desired: &Value, live: &Value) -> Option<Value> {
        narrow::narrowed(desired, live)
    }

    fn translate(&self, cache: &Cache, name: &Name, policy: &Value) -> Result<Translated, Vec<DeniedField>> {
        let source = &policy["spec"];
        let mut issues = FieldIssues::default();
        let mut spec = fields::copy(source, "spec", SPEC, &mut issues);
        // An unknown field may change what the rules mean. Rules that are too many are left out, so they need not be made.
        let makes_rules = issues.denied.is_empty() && !has_too_many_rules(policy);
        let selected = source.get("podSelector").cloned().unwrap_or_else(|| json!({}));
        let selected = scoped(cache, &selected, Some(&[&*name.namespace]));
        spec.insert("podSelector".into(), of_pods_with_all_labels(selected));
        if json::items(source, &["policyTypes"]).is_empty() {
            let types = isolation::directions(source);
            spec.insert("policyTypes".into(), json!(types.collect::<Vec<_>>()));
        }
        let peers = Peers::new(cache, &name.namespace);
        let mut made = Made::default();
        for (direction, side) in DIRECTIONS {
            let mut all: Vec<Value> = Vec::new();
            for (index, source) in json::items(source, &[direction]).iter().enumerate() {
                // With so many, none of them stays.
                if !makes_rules || made.are_too_many() {
                    break;
                }
                let path = format!("spec.{direction}[{index}]");
                all.extend(rules(&peers, source, (side, &path), &mut made, &mut issues));
            }
            if !all.is_empty() {
                spec.insert(direction.into(), all.into());
            }
        }
        let annotations = metadata::annotations(policy, &AnnotationRules::default(), &mut issues);
        let metadata = json!({"annotations": annotations});
        let mut object = json!({"metadata": metadata, "spec": spec});
        limit_size(policy, &mut object, &mut issues)?;
        limit_cost(&peers, &mut object, &mut issues);
        issues.ignored.append(&mut issues.denied);
        issues.into_result(object)
    }
}

/// Whether a policy of the tenant has more rules, peers or ports than it may have.
fn has_too_many_rules(policy: &Value) -> bool {
    let mut limits = sizes::NETWORK_POLICY_RULES.iter();
    limits.any(|limit| limit.measure.count(policy) > limit.in_tenant)
}

/// Takes all rules out of a policy that has too many: it then closes its directions.
///
/// # Errors
/// The selector of the policy's pods is too large.
fn limit_size(policy: &Value, object: &mut Value, issues: &mut FieldIssues) -> Result<(), Vec<DeniedField>> {
    let mut too_large = FieldIssues::default();
    sizes::check(sizes::NETWORK_POLICY_SELECTOR, policy, object, &mut too_large);
    if !too_large.denied.is_empty() {
        return Err(too_large.denied);
    }
    sizes::check(sizes::NETWORK_POLICY_RULES, policy, object, &mut too_large);
    if !too_large.denied.is_empty()
        && let Some(spec) = object["spec"].as_object_mut()
    {
        spec.retain(|field, _| !["ingress", "egress"].contains(&field.as_str()));
    }
    issues.denied.append(&mut too_large.denied);
    Ok(())
}

/// Takes all rules out of a direction that the host's API server would reject because comparing its ranges costs too much.
fn limit_cost(peers: &Peers<'_>, object: &mut Value, issues: &mut FieldIssues) {
    for (direction, side) in DIRECTIONS {
        let cost = peers
            .cost(side)
            .of_rules(json::items(object, &["spec", direction]), side);
        if cost > cost::MAX_COST
            && let Some(spec) = object["spec"].as_object_mut()
        {
            spec.remove(direction);
            issues.deny(
                format!("spec.{direction}"),
                "its networks are too many for the host: it compares each with every network that is allowed or blocked for this \
                 cluster. Nothing is allowed here; write fewer and wider networks, or divide them among several policies",
            );
        }
    }
}

/// The rules on the host for a rule of the tenant; none if nothing of it is allowed. A rule without peers allows every
/// peer and one without ports every port, so leaving something out must never produce such a rule.
fn rules(
    peers: &Peers<'_>,
    source: &Value,
    (side, path): (&'static str, &str),
    made: &mut Made,
    issues: &mut FieldIssues,
) -> Vec<Value> {
    let before = issues.denied.len();
    let known = ["ports", side];
    for key in source.as_object().into_iter().flatten().map(|(key, _)| key) {
        if !known.contains(&key.as_str()) && !json::is_unset(&source[key]) {
            issues.deny(format!("{path}.{key}"), "this field is not supported");
        }
    }
    let ports: Vec<Map<String, Value>> = json::items(source, &["ports"])
        .iter()
        .enumerate()
        .map(|(index, port)| fields::copy(port, &format!("{path}.ports[{index}]"), PORT, issues))
        .collect();
    if issues.denied.len() > before {
        return Vec::new();
    }
    let rule_peers = match json::items(source, &[side]) {
        [] => peers.everyone(),
        listed => peers.listed(listed, side, path, issues),
    };
    peers.rules(rule_peers, side, &ports, made)
}
