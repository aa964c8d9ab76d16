//! Reading a tenant's host pod.

use super::{
    node_rules::NodeRules,
    workload::{Claim, Gang, HOST, PodAffinity, SchedulingState, Spread, Workload, required_amounts, shorten},
};
use crate::{
    pod_phase::has_ended,
    pod_requests::{self, MOST_RESOURCES},
};
use berth_api::labels;
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube_core::ResourceExt;

impl Workload {
    /// Reads a host pod that a syncer created; none for other pods.
    pub fn from_pod(pod: &Pod) -> Option<Self> {
        let tenant = pod.labels().get(labels::TENANT)?.clone();
        let annotation = |key: &str| pod.annotations().get(key).map(String::as_str);
        let namespace = annotation(labels::ORIGIN_NAMESPACE).unwrap_or_default();
        let name = match annotation(labels::ORIGIN_NAME) {
            Some(name) => format!("{namespace}/{name}"),
            None => pod.name_any(),
        };
        let spec = pod.spec.as_ref()?;
        let mut amounts = required_amounts(&pod_requests::of_pod(pod));
        let scheduling = match read_scheduling_state(pod) {
            // No node can run it.
            SchedulingState::Pending if amounts.len() > MOST_RESOURCES => SchedulingState::Gated,
            state => state,
        };
        while amounts.len() > MOST_RESOURCES {
            amounts.pop_last();
        }
        Some(Self {
            tenant,
            name,
            priority: spec.priority.unwrap_or_default(),
            since: pod.creation_timestamp().map_or(0, |time| time.0.as_second()),
            amounts,
            claims: read_claims(pod),
            rules: NodeRules::of_pod(pod, labels::TENANT),
            anti_affinity: read_anti_affinity(pod),
            spread: read_spread(pod),
            affinity: read_affinity(pod),
            gang: read_gang(pod, namespace),
            scheduling,
            ends_at: pod.metadata.deletion_timestamp.as_ref().map(|time| time.0.as_second()),
        })
    }
}

fn read_scheduling_state(pod: &Pod) -> SchedulingState {
    let spec = pod.spec.as_ref();
    if has_ended(pod) {
        return SchedulingState::Finished;
    }
    if let Some(node) = spec
        .and_then(|spec| spec.node_name.clone())
        .filter(|name| !name.is_empty())
    {
        return SchedulingState::Bound(node);
    }
    let gated = spec
        .and_then(|spec| spec.scheduling_gates.as_ref())
        .is_some_and(|gates| !gates.is_empty());
    if gated || pod.metadata.deletion_timestamp.is_some() {
        return SchedulingState::Gated;
    }
    SchedulingState::Pending
}

/// The claims of devices that a host pod names.
pub fn read_claims(pod: &Pod) -> Vec<Claim> {
    let namespace = pod.namespace().unwrap_or_default();
    let all = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let made = |name: &str| {
        let status = pod.status.as_ref()?.resource_claim_statuses.as_ref()?;
        status.iter().find(|one| one.name == name)?.resource_claim_name.clone()
    };
    all.filter_map(|claim| {
        let (name, is_template) = match (&claim.resource_claim_name, &claim.resource_claim_template_name) {
            (Some(name), _) => (name.clone(), false),
            (None, Some(template)) => (template.clone(), true),
            (None, None) => return None,
        };
        Some(Claim {
            namespace: namespace.clone(),
            name,
            is_template,
            generated: made(&claim.name).filter(|_| is_template),
        })
    })
    .collect()
}

/// The selector of a required anti-affinity by host name that selects the pod itself.
fn read_anti_affinity(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.pod_anti_affinity.as_ref()?;
    let terms = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let term = terms
        .iter()
        .find(|term| term.topology_key == HOST && selects_itself(term.label_selector.as_ref(), pod))?;
    selector_key(term.label_selector.as_ref())
}

/// Identifies a selector.
fn selector_key(selector: Option<&LabelSelector>) -> Option<String> {
    serde_json::to_string(&selector).ok().map(|text| shorten(&text))
}

/// The first constraint by host name that selects the pod itself.
fn read_spread(pod: &Pod) -> Option<Spread> {
    let constraints = pod.spec.as_ref()?.topology_spread_constraints.as_ref()?;
    let constraint = constraints.iter().find(|constraint| {
        constraint.topology_key == HOST
            && constraint.when_unsatisfiable == "DoNotSchedule"
            && selects_itself(constraint.label_selector.as_ref(), pod)
    })?;
    let number = |number: i32| u64::try_from(number).unwrap_or_default().max(1);
    Some(Spread {
        // How many pods a node may have is of this tenant, whatever selectors others have.
        key: shorten(&format!(
            "{} {}",
            pod.labels().get(labels::TENANT)?,
            selector_key(constraint.label_selector.as_ref())?
        )),
        max_skew: number(constraint.max_skew),
        min_nodes: constraint.min_domains.map_or(1, number),
    })
}

/// The first required affinity that selects the pod itself.
fn read_affinity(pod: &Pod) -> Option<PodAffinity> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.pod_affinity.as_ref()?;
    let terms = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let term = terms
        .iter()
        .find(|term| selects_itself(term.label_selector.as_ref(), pod))?;
    Some(PodAffinity {
        key: selector_key(term.label_selector.as_ref())?,
        topology: term.topology_key.clone(),
    })
}

fn selects_itself(selector: Option<&LabelSelector>, pod: &Pod) -> bool {
    // An empty selector selects every pod, and a missing one none.
    let Some(selector) = selector else { return false };
    let (labels, expressions) = (&selector.match_labels, &selector.match_expressions);
    labels
        .as_ref()
        .is_none_or(|labels| labels.iter().all(|(key, value)| pod.labels().get(key) == Some(value)))
        && expressions.iter().flatten().all(|one| {
            let value = pod.labels().get(&one.key);
            let values = one.values.as_deref().unwrap_or_default();
            match one.operator.as_str() {
                "In" => value.is_some_and(|value| values.contains(value)),
                "NotIn" => value.is_none_or(|value| !values.contains(value)),
                "Exists" => value.is_some(),
                _ => value.is_none(),
            }
        })
}

/// Maximum size of a gang. A compromised syncer could write any number.
const MAX_GANG_SIZE: u32 = 10_000;

/// The gang that the syncer recorded.
fn read_gang(pod: &Pod, namespace: &str) -> Option<Gang> {
    let annotation = |key: &str| pod.annotations().get(key).map(String::as_str);
    let name = annotation(labels::GANG).filter(|name| !name.is_empty())?;
    Some(Gang {
        name: shorten(&format!("{namespace}/{name}")),
        size: annotation(labels::GANG_SIZE)?
            .parse()
            .ok()
            .filter(|size| *size <= MAX_GANG_SIZE)?,
        one_domain: annotation(labels::GANG_TOPOLOGY) == Some(labels::GANG_TOPOLOGY_REQUIRED),
    })
}
