//! Where a pod may run.
//!
//! | field | rule |
//! |---|---|
//! | nodeSelector | the tenant's, and the tenant's own nodes, always |
//! | tolerations | the tenant's, and the tenant's own taint; one for every taint becomes one for each taint the tenant can see, because it would also tolerate the platform's |
//! | affinity to nodes | copied; nodes that the tenant has cordoned are left out, for the host's scheduler does not know |
//! | affinity to pods, topology spread | selectors are narrowed to the tenant and the namespaces meant |
//! | schedulerName | only the default scheduler |
//! | priorityClassName | `system-…` is refused; others have no effect yet, and the tenant is told |

use crate::{
    json,
    kinds::{
        fields::{self, Fields, Findings, Rule},
        refusal::Refusal,
    },
    resource::{KindId, Name},
    world::World,
};
use berth_api::labels::{self, is_reserved};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Taints that nodes commonly have; those of the tenant's nodes are added.
const COMMON_TAINTS: &[&str] = &[
    "amd.com/gpu",
    "gpu.intel.com/gpu",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/unschedulable",
    "nvidia.com/gpu",
];

/// The rules of `PodAffinityTerm`.
const TERM: Fields = &[
    ("labelSelector", Rule::Rewrite),
    (
        "matchLabelKeys",
        Rule::Ignore("the tenant's API server has put them into the selector"),
    ),
    (
        "mismatchLabelKeys",
        Rule::Ignore("the tenant's API server has put them into the selector"),
    ),
    ("namespaceSelector", Rule::Rewrite),
    ("namespaces", Rule::Rewrite),
    ("topologyKey", Rule::Copy),
];

/// The rules of `TopologySpreadConstraint`.
const SPREAD: Fields = &[
    ("labelSelector", Rule::Rewrite),
    (
        "matchLabelKeys",
        Rule::Ignore("the tenant's API server has put them into the selector"),
    ),
    ("maxSkew", Rule::Copy),
    ("minDomains", Rule::Copy),
    ("nodeAffinityPolicy", Rule::Copy),
    ("nodeTaintsPolicy", Rule::Copy),
    ("topologyKey", Rule::Copy),
    ("whenUnsatisfiable", Rule::Copy),
];

const RESERVED: &str = "keys under berth.dev belong to the platform";

/// Adds everything about scheduling to the host pod's spec.
pub fn translate(world: &World, name: &Name, source: &Value, spec: &mut Map<String, Value>, findings: &mut Findings) {
    let mut selector = json::strings(source, &["nodeSelector"]);
    for key in selector.keys().filter(|key| is_reserved(key)) {
        findings.refuse(format!("spec.nodeSelector[{key}]"), RESERVED);
    }
    selector.insert(labels::TENANT.into(), world.tenant.slug.clone());
    spec.insert("nodeSelector".into(), json!(selector));
    spec.insert("tolerations".into(), tolerations(world, source, findings).into());
    if let Some(affinity) = source.get("affinity").filter(|affinity| !json::is_unset(affinity)) {
        spec.insert("affinity".into(), self::affinity(world, name, affinity, findings));
    }
    avoid_cordoned(world, source, spec);
    let constraints: Vec<Value> = json::items(source, &["topologySpreadConstraints"])
        .iter()
        .enumerate()
        .map(|(index, constraint)| {
            let path = format!("spec.topologySpreadConstraints[{index}]");
            let mut copied = fields::copy(constraint, &path, SPREAD, findings);
            if let Some(selector) = constraint.get("labelSelector") {
                let scoped = scoped(world, selector, Some(&[&*name.namespace]));
                copied.insert("labelSelector".into(), scoped);
            }
            copied.into()
        })
        .collect();
    if !constraints.is_empty() {
        spec.insert("topologySpreadConstraints".into(), constraints.into());
    }
    match json::text(source, &["schedulerName"]) {
        None | Some("" | "default-scheduler") => {}
        Some(other) => {
            findings.refuse(
                "spec.schedulerName",
                format!("{other} is not offered: pods are placed by the default scheduler"),
            );
        }
    }
    match json::text(source, &["priorityClassName"]) {
        None | Some("") => {}
        Some(class) if class.starts_with("system-") => {
            findings.refuse(
                "spec.priorityClassName",
                format!("{class} is for the platform's own pods"),
            );
        }
        Some(_) => findings.notes.push(Refusal::new(
            "spec.priorityClassName",
            "priorities are not supported yet: the pod has the platform's default priority",
        )),
    }
}

fn tolerations(world: &World, source: &Value, findings: &mut Findings) -> Vec<Value> {
    let mut result = vec![json!({
        "key": labels::TENANT, "operator": "Equal", "value": world.tenant.slug, "effect": "NoExecute"
    })];
    let mut add = |toleration: Value| {
        if !result.contains(&toleration) {
            result.push(toleration);
        }
    };
    for (index, toleration) in json::items(source, &["tolerations"]).iter().enumerate() {
        match json::text(toleration, &["key"]).filter(|key| !key.is_empty()) {
            Some(key) if is_reserved(key) => findings.refuse(format!("spec.tolerations[{index}].key"), RESERVED),
            Some(_) => add(toleration.clone()),
            None => {
                for key in visible_taints(world) {
                    let mut one = toleration.clone();
                    json::set(&mut one, &["key"], key);
                    add(one);
                }
            }
        }
    }
    result
}

/// Taints that a toleration without key stands for.
fn visible_taints(world: &World) -> BTreeSet<String> {
    let mut keys: BTreeSet<String> = COMMON_TAINTS.iter().map(|key| (*key).to_owned()).collect();
    for (_, node) in world.stores.host(KindId::Node).all() {
        let node = node.object();
        let taints = json::items(&node, &["spec", "taints"]).iter();
        keys.extend(
            taints
                .filter_map(|taint| json::text(taint, &["key"]))
                .filter(|key| !is_reserved(key))
                .map(ToOwned::to_owned),
        );
    }
    keys
}

fn affinity(world: &World, name: &Name, affinity: &Value, findings: &mut Findings) -> Value {
    let mut translated = json!({});
    for (kind, value) in affinity.as_object().into_iter().flatten() {
        let path = format!("spec.affinity.{kind}");
        match kind.as_str() {
            "nodeAffinity" => translated[kind] = value.clone(),
            "podAffinity" | "podAntiAffinity" => {
                for (when, terms) in value.as_object().into_iter().flatten() {
                    let path = format!("{path}.{when}");
                    translated[kind][when] = json::items(terms, &[])
                        .iter()
                        .enumerate()
                        .map(|(index, term)| match term.get("podAffinityTerm") {
                            Some(inner) => {
                                let path = format!("{path}[{index}].podAffinityTerm");
                                json!({"weight": term.get("weight"), "podAffinityTerm": pod_term(world, name, inner, &path, findings)})
                            }
                            None => pod_term(world, name, term, &format!("{path}[{index}]"), findings),
                        })
                        .collect::<Vec<_>>()
                        .into();
                }
            }
            _ if json::is_unset(value) => {}
            _ => findings.refuse(path, "this kind of affinity is not known here"),
        }
    }
    translated
}

/// Keeps a new pod off nodes that the tenant has cordoned, unless it tolerates that. A pod with scheduling gates is left
/// alone: its affinity could then only become narrower, never wider again.
fn avoid_cordoned(world: &World, source: &Value, spec: &mut Map<String, Value>) {
    const TAINT: &str = "node.kubernetes.io/unschedulable";
    let tolerates = json::items(source, &["tolerations"]).iter().any(|toleration| {
        let key = json::text(toleration, &["key"]).unwrap_or_default();
        key == TAINT || (key.is_empty() && json::text(toleration, &["operator"]) == Some("Exists"))
    });
    if tolerates || !json::items(source, &["schedulingGates"]).is_empty() {
        return;
    }
    let mut cordoned: Vec<Value> = Vec::new();
    for (name, node) in world.stores.tenant(KindId::Node).all() {
        if json::at(&node.object(), &["spec", "unschedulable"]) == Some(&Value::Bool(true)) {
            cordoned.push(json!({"key": "metadata.name", "operator": "NotIn", "values": [&*name.name]}));
        }
    }
    if cordoned.is_empty() {
        return;
    }
    cordoned.sort_by_key(ToString::to_string);
    let path = [
        "nodeAffinity",
        "requiredDuringSchedulingIgnoredDuringExecution",
        "nodeSelectorTerms",
    ];
    let affinity = spec.entry("affinity").or_insert_with(|| json!({}));
    let mut terms = json::items(affinity, &path).to_vec();
    if terms.is_empty() {
        terms.push(json!({}));
    }
    for term in &mut terms {
        let mut fields = json::items(term, &["matchFields"]).to_vec();
        fields.extend(cordoned.iter().cloned());
        json::set(term, &["matchFields"], fields);
    }
    json::set(affinity, &path, terms);
}

fn pod_term(world: &World, name: &Name, term: &Value, path: &str, findings: &mut Findings) -> Value {
    let mut copied = fields::copy(term, path, TERM, findings);
    let listed: Vec<&str> = json::items(term, &["namespaces"])
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let namespaces = match term.get("namespaceSelector").filter(|selector| !selector.is_null()) {
        None if listed.is_empty() => Some(vec![&*name.namespace]),
        None => Some(listed),
        // An empty selector means every namespace of the tenant.
        Some(selector) if json::is_unset(selector) => None,
        Some(_) => {
            findings.refuse(
                format!("{path}.namespaceSelector"),
                "selecting namespaces by labels is not supported yet",
            );
            None
        }
    };
    // Without a selector a term matches no pod; it stays so.
    if let Some(selector) = term.get("labelSelector").filter(|selector| !selector.is_null()) {
        copied.insert("labelSelector".into(), scoped(world, selector, namespaces.as_deref()));
    }
    copied.into()
}

/// A selector of pods narrowed to the tenant and, unless `None`, to some of its namespaces.
pub fn scoped(world: &World, selector: &Value, namespaces: Option<&[&str]>) -> Value {
    let mut scoped = selector.clone();
    json::set(&mut scoped, &["matchLabels", labels::TENANT], world.tenant.slug.clone());
    match namespaces {
        None => {}
        Some([one]) => json::set(&mut scoped, &["matchLabels", labels::TENANT_OBJECT_NAMESPACE], *one),
        Some(several) => {
            let mut expressions = json::items(selector, &["matchExpressions"]).to_vec();
            expressions.push(json!({"key": labels::TENANT_OBJECT_NAMESPACE, "operator": "In", "values": several}));
            json::set(&mut scoped, &["matchExpressions"], expressions);
        }
    }
    scoped
}
