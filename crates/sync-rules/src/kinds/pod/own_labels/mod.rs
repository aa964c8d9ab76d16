//! Labels that a tenant gives its Nodes itself. The host's scheduler does not see them, so what a pod asks of them becomes names of
//! nodes when the host pod is created.
//!
//! | the pod asks for | the host pod |
//! |---|---|
//! | a label (`nodeSelector`, `In`, `Exists`, `Gt`, `Lt`) that some Nodes have | may run on these Nodes only |
//! | a label that no Node has | stays pending, as the label is unknown on the host |
//! | the absence of a label or value (`NotIn`, `DoesNotExist`) | may not run on the Nodes that have it |
//! | any of these as a preference | prefers the same Nodes, with the same weight, as long as these are few |
//! | the label as a topology | has the topology in vain, and an Event says so: domains of several nodes have no name on the host |
//!
//! As everywhere in Kubernetes, labels that change later move no pod.

use super::scheduling::{NODE_PREFERENCES, NODE_TERMS};
use crate::{
    model::{Cache, KindId, cache::OwnLabels, json},
    translation::sizes::{MOST_NODE_FIELDS, MOST_NODE_TERMS},
};
use berth_api::labels::is_reserved;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// Replaces requirements on the tenant's own labels in a host pod's `selector` and in the node affinity of its spec.
pub fn resolve(cache: &Cache, selector: &mut Map<String, Value>, spec: &mut Map<String, Value>) {
    let terms = spec
        .get("affinity")
        .map(|affinity| json::items(affinity, &NODE_TERMS).to_vec());
    let terms = terms.unwrap_or_default();
    let preferences = spec
        .get("affinity")
        .map(|affinity| json::items(affinity, &NODE_PREFERENCES).to_vec());
    let preferences = preferences.unwrap_or_default();
    if selector.is_empty() && terms.is_empty() && preferences.is_empty() {
        return;
    }
    let nodes = own_labels(cache);
    let is_own = |key: &str| nodes.values().any(|labels| labels.contains_key(key));
    resolve_preferences(preferences, &nodes, &is_own, spec);
    let selected: Vec<Value> = selector
        .iter()
        .filter(|(key, _)| is_own(key))
        .map(|(key, value)| json!({"key": key, "operator": "In", "values": [value]}))
        .collect();
    let asks = |term: &Value| requirements(term).iter().any(|requirement| is_own(key(requirement)));
    if selected.is_empty() && !terms.iter().any(asks) {
        return;
    }
    let whole = if terms.is_empty() { vec![json!({})] } else { terms };
    let mut made = Made::default();
    let resolved: Option<Vec<Vec<Value>>> = whole
        .iter()
        .map(|term| by_name(term, &selected, &nodes, &is_own, &mut made))
        .collect();
    // If a term asks for what no Node has, the host decides as it always did: its nodes do not have the label either.
    let Some(resolved) = resolved else {
        return;
    };
    selector.retain(|key, _| !is_own(key));
    let affinity = spec.entry("affinity").or_insert_with(|| json!({}));
    json::set(affinity, &NODE_TERMS, resolved.concat());
}

/// Names of Nodes in what all preferences become. A pod has to be accepted on the host however many Nodes there are: preferences
/// beyond this number stay as they are, and have no effect.
const MOST_PREFERRED_NAMES: usize = 500;

/// Replaces requirements on the tenant's own labels in preferences. A Node fulfils at most one of those that one becomes, so that its
/// weight counts once.
fn resolve_preferences(
    preferences: Vec<Value>,
    nodes: &OwnLabels,
    is_own: &impl Fn(&str) -> bool,
    spec: &mut Map<String, Value>,
) {
    let asks = |preference: &Value| {
        let asked = requirements(&preference["preference"]);
        asked.iter().any(|requirement| is_own(key(requirement)))
    };
    if !preferences.iter().any(asks) {
        return;
    }
    let mut left = MOST_PREFERRED_NAMES;
    let resolved: Vec<Value> = preferences
        .into_iter()
        .flat_map(|preference| {
            let is_resolved = asks(&preference) && nodes.len() <= left;
            if is_resolved {
                left -= nodes.len();
            }
            let terms =
                is_resolved.then(|| by_name(&preference["preference"], &[], nodes, is_own, &mut Made::default()));
            match terms.flatten() {
                Some(terms) => terms
                    .into_iter()
                    .map(|term| json!({"weight": preference["weight"], "preference": term}))
                    .collect(),
                // No Node has what it asks for, neither here nor on the host.
                None => vec![preference],
            }
        })
        .collect();
    if let Some(affinity) = spec.get_mut("affinity") {
        json::set(affinity, &NODE_PREFERENCES, resolved);
    }
}

/// Whether the tenant gave this label to a Node: the host's scheduler does not see it.
pub fn is_own_label(cache: &Cache, key: &str) -> bool {
    own_labels(cache).values().any(|labels| labels.contains_key(key))
}

/// How much was made of a pod's terms.
#[derive(Default)]
struct Made {
    terms: usize,
    fields: usize,
}

impl Made {
    /// Counts another term with so many `matchFields`, unless there are more than a pod may have already: it is denied then.
    fn add(&mut self, fields: usize) -> bool {
        let has_room = self.terms <= MOST_NODE_TERMS && self.fields <= MOST_NODE_FIELDS;
        if has_room {
            self.terms += 1;
            self.fields += fields;
        }
        has_room
    }
}

/// The terms that a term becomes: one for each Node that it asks for, or itself without some Nodes. None if it asks for what no Node
/// has.
fn by_name(
    term: &Value,
    selected: &[Value],
    nodes: &OwnLabels,
    is_own: &impl Fn(&str) -> bool,
    made: &mut Made,
) -> Option<Vec<Value>> {
    let nothing = BTreeMap::new();
    let (own, others): (Vec<Value>, Vec<Value>) = requirements(term)
        .iter()
        .cloned()
        .partition(|requirement| is_own(key(requirement)));
    let all = own.iter().chain(selected);
    let (excluding, including): (Vec<&Value>, Vec<&Value>) = all.partition(|requirement| holds(requirement, &nothing));
    let fulfils = |labels: &BTreeMap<String, String>, all: &[&Value]| all.iter().all(|one| holds(one, labels));
    let mut rest = term.clone();
    if !own.is_empty() {
        // What holds without the label holds on the host's nodes. It stays: a term without requirements selects no node.
        let absent = own.iter().filter(|requirement| holds(requirement, &nothing)).cloned();
        json::set(
            &mut rest,
            &["matchExpressions"],
            others.into_iter().chain(absent).collect::<Vec<_>>(),
        );
    }
    let excluded = nodes.iter().filter(|(_, labels)| !fulfils(labels, &excluding));
    let excluded: Vec<Value> = excluded.map(|(name, _)| named("NotIn", name)).collect();
    if !excluded.is_empty() {
        let fields = json::items(term, &["matchFields"]).iter().cloned();
        json::set(&mut rest, &["matchFields"], fields.chain(excluded).collect::<Vec<_>>());
    }
    let fields = json::items(&rest, &["matchFields"]).to_vec();
    if including.is_empty() {
        return Some(made.add(fields.len()).then_some(rest).into_iter().collect());
    }
    let mut included = nodes
        .iter()
        .filter(|(_, labels)| fulfils(labels, &including))
        .peekable();
    included.peek()?;
    let terms = included
        .take_while(|_| made.add(fields.len() + 1))
        .map(|(name, _)| {
            let mut term = rest.clone();
            let fields = fields.iter().cloned().chain([named("In", name)]);
            json::set(&mut term, &["matchFields"], fields.collect::<Vec<_>>());
            term
        })
        .collect();
    Some(terms)
}

/// A requirement on the name of the node.
fn named(operator: &str, name: &str) -> Value {
    json!({"key": "metadata.name", "operator": operator, "values": [name]})
}

fn requirements(term: &Value) -> &[Value] {
    json::items(term, &["matchExpressions"])
}

fn key(requirement: &Value) -> &str {
    json::text(requirement, &["key"]).unwrap_or_default()
}

/// Whether labels fulfil a `NodeSelectorRequirement`.
fn holds(requirement: &Value, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(key(requirement)).map(String::as_str);
    let values: Vec<&str> = json::items(requirement, &["values"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let number = |text: &str| text.parse::<i64>().ok();
    let numbers = || Some((number(value?)?, number(values.first()?)?));
    match json::text(requirement, &["operator"]).unwrap_or_default() {
        "In" => value.is_some_and(|value| values.contains(&value)),
        "NotIn" => value.is_none_or(|value| !values.contains(&value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => numbers().is_some_and(|(value, limit)| value > limit),
        "Lt" => numbers().is_some_and(|(value, limit)| value < limit),
        _ => false,
    }
}

/// The tenant's own labels of its Nodes.
fn own_labels(cache: &Cache) -> Arc<OwnLabels> {
    let stores = [cache.stores.tenant(KindId::Node), cache.stores.host(KindId::Node)];
    cache.own_labels.get(&stores, || read(cache))
}

fn read(cache: &Cache) -> OwnLabels {
    let of_tenant = cache.stores.tenant(KindId::Node).all().into_iter();
    of_tenant
        .filter_map(|(name, node)| {
            // A Node that is no longer the tenant's gets no pods, and which of its labels were the host's is not known.
            let host = cache.stores.host(KindId::Node).get(&name)?;
            let of_host = json::strings(&host.object(), &["spec", "labels"]);
            let mut labels = json::strings(&node.object(), &["metadata", "labels"]);
            labels.retain(|key, _| !of_host.contains_key(key) && !is_reserved(key));
            Some((name.name.to_string(), labels))
        })
        .collect()
}

#[cfg(test)]
mod tests;
