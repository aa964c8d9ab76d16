//! What counts of a tenant's pod on the host when nodes are planned: pure.

use super::affinity::NodeRules;
use crate::nodes::requests::{self, Requests};
use berth_api::labels;
use berth_planner::{Amounts, Seconds};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::LabelSelector};
use kube::ResourceExt;

/// A tenant's pod on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// The tenant's slug.
    pub tenant: String,
    /// Namespace and name in the tenant, for words.
    pub name: String,
    /// Its priority on the host.
    pub priority: i32,
    /// When it was made.
    pub since: Seconds,
    /// What it asks for.
    pub amounts: Amounts,
    /// Claims of devices.
    pub claims: Vec<Claim>,
    /// What it requires of its node.
    pub rules: NodeRules,
    /// Pods with the same text here do not share a node, by their own anti-affinity.
    pub alone: Option<String>,
    /// How it is to be spread over nodes with others of its kind.
    pub spread: Option<Spread>,
    /// With whom it must be.
    pub together: Option<Together>,
    /// The gang that it belongs to.
    pub gang: Option<Gang>,
    /// Where it stands.
    pub place: Place,
}

/// A claim of devices that a pod names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Host namespace of the claim or template.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Whether it is a template, of which the host makes a claim.
    pub is_template: bool,
    /// The claim that the host made of it.
    pub generated: Option<String>,
}

/// Pods that are spread over nodes (`topologySpreadConstraints` by host name, `DoNotSchedule`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The selector of these pods; the same for all of them.
    pub key: String,
    /// By how many of them nodes may differ.
    pub max_skew: u64,
    /// Over how many nodes at least.
    pub min_nodes: u64,
}

/// Pods of a kind that must be in one domain, by their own required affinity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Together {
    /// The selector of these pods; the same for all of them.
    pub key: String,
    /// Label whose values are the domains.
    pub topology: String,
}

/// Pods that start together or not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gang {
    /// Name, unique within the tenant.
    pub name: String,
    /// How many pods must start together.
    pub size: u32,
    /// Whether all nodes must be of one topology domain.
    pub one_domain: bool,
}

/// Where a pod stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// It waits for a node.
    #[default]
    Waiting,
    /// It does not want a node yet: gates hold it, or it is being deleted.
    Held,
    /// On this node.
    On(String),
    /// It ran.
    Done,
}

impl Workload {
    /// Reads a host pod that a syncer made. None for what is no tenant's.
    pub fn read(pod: &Pod) -> Option<Self> {
        let tenant = pod.labels().get(labels::TENANT)?.clone();
        let annotation = |key: &str| pod.annotations().get(key).map(String::as_str);
        let namespace = annotation(labels::ORIGIN_NAMESPACE).unwrap_or_default();
        let name = match annotation(labels::ORIGIN_NAME) {
            Some(name) => format!("{namespace}/{name}"),
            None => pod.name_any(),
        };
        let spec = pod.spec.as_ref()?;
        Some(Self {
            tenant,
            name,
            priority: spec.priority.unwrap_or_default(),
            since: pod.creation_timestamp().map_or(0, |time| time.0.as_second()),
            amounts: needed(&requests::of_pod(pod)),
            claims: claims(pod),
            rules: NodeRules::of(pod, labels::TENANT),
            alone: alone(pod),
            spread: spread(pod),
            together: together(pod),
            gang: gang(pod, namespace),
            place: place(pod),
        })
    }

    /// Resources that keep it off nodes with others of its kind: it takes one of each.
    pub fn apart(&self) -> impl Iterator<Item = String> {
        let alone = self.alone.iter().map(|alone| format!("{ALONE}{alone}"));
        alone.chain(self.spread.iter().map(|spread| format!("{SPREAD}{}", spread.key)))
    }

    /// Whether it asks for a device of any kind.
    pub fn wants_devices(&self) -> bool {
        !self.claims.is_empty() || self.amounts.keys().any(|resource| is_device(resource))
    }
}

/// Whether a resource is that of a device: extended ones have a domain, those by claims the prefix `dra:`.
pub fn is_device(resource: &str) -> bool {
    resource.contains('/') || resource.starts_with(DRA)
}

/// Prefix of resources that count devices of a class.
pub const DRA: &str = "dra:";
/// Prefix of resources of which each node has one for all pods that stay apart from each other.
pub const ALONE: &str = "own node: ";
/// Prefix of resources of which each node has as many as it may have of pods that are spread.
pub const SPREAD: &str = "share of pods that are spread: ";
/// Label whose values are the nodes.
pub const HOST: &str = "kubernetes.io/hostname";

fn place(pod: &Pod) -> Place {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let spec = pod.spec.as_ref();
    if matches!(phase, Some("Succeeded" | "Failed")) {
        return Place::Done;
    }
    if let Some(node) = spec
        .and_then(|spec| spec.node_name.clone())
        .filter(|name| !name.is_empty())
    {
        return Place::On(node);
    }
    let gated = spec
        .and_then(|spec| spec.scheduling_gates.as_ref())
        .is_some_and(|gates| !gates.is_empty());
    if gated || pod.metadata.deletion_timestamp.is_some() {
        return Place::Held;
    }
    Place::Waiting
}

fn claims(pod: &Pod) -> Vec<Claim> {
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

/// The text by which pods know each other that keep each other off their nodes: the selector of a required anti-affinity by
/// host name that selects the pod itself.
fn alone(pod: &Pod) -> Option<String> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.pod_anti_affinity.as_ref()?;
    let terms = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let term = terms
        .iter()
        .find(|term| term.topology_key == HOST && selects_itself(term.label_selector.as_ref(), pod))?;
    serde_json::to_string(&term.label_selector).ok()
}

/// The first constraint that spreads pods of its kind over nodes.
fn spread(pod: &Pod) -> Option<Spread> {
    let constraints = pod.spec.as_ref()?.topology_spread_constraints.as_ref()?;
    let constraint = constraints.iter().find(|constraint| {
        constraint.topology_key == HOST
            && constraint.when_unsatisfiable == "DoNotSchedule"
            && selects_itself(constraint.label_selector.as_ref(), pod)
    })?;
    let number = |number: i32| u64::try_from(number).unwrap_or_default().max(1);
    Some(Spread {
        key: serde_json::to_string(&constraint.label_selector).ok()?,
        max_skew: number(constraint.max_skew),
        min_nodes: constraint.min_domains.map_or(1, number),
    })
}

/// The first required affinity to pods of its kind.
fn together(pod: &Pod) -> Option<Together> {
    let affinity = pod.spec.as_ref()?.affinity.as_ref()?.pod_affinity.as_ref()?;
    let terms = affinity.required_during_scheduling_ignored_during_execution.as_ref()?;
    let term = terms
        .iter()
        .find(|term| selects_itself(term.label_selector.as_ref(), pod))?;
    Some(Together {
        key: serde_json::to_string(&term.label_selector).ok()?,
        topology: term.topology_key.clone(),
    })
}

fn selects_itself(selector: Option<&LabelSelector>, pod: &Pod) -> bool {
    // One that is empty selects every pod, and one that is not there selects none.
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

/// Pods of the largest gang that a syncer writes down. Whoever has stolen one's identity writes what it likes.
const LARGEST_GANG: u32 = 10_000;

/// The gang as the syncer wrote it down.
fn gang(pod: &Pod, namespace: &str) -> Option<Gang> {
    let annotation = |key: &str| pod.annotations().get(key).map(String::as_str);
    let name = annotation(labels::GANG).filter(|name| !name.is_empty())?;
    Some(Gang {
        name: format!("{namespace}/{name}"),
        size: annotation(labels::GANG_SIZE)?
            .parse()
            .ok()
            .filter(|size| *size <= LARGEST_GANG)?,
        one_domain: annotation(labels::GANG_TOPOLOGY) == Some(labels::GANG_TOPOLOGY_REQUIRED),
    })
}

/// Names and units of amounts, as explanations print them: devices by their number, CPU in thousandths, the rest in MiB.
fn unit(resource: &str) -> (String, i128) {
    const MEBI: i128 = 1024 * 1024;
    match resource {
        "cpu" => ("millicpu".into(), 1),
        "pods" => (resource.into(), 1000),
        _ if is_device(resource) => (resource.into(), 1000),
        other => (format!("MiB {other}"), 1000 * MEBI),
    }
}

/// What is asked for, rounded up.
pub fn needed(requests: &Requests) -> Amounts {
    convert(requests, |thousandths, unit| (thousandths + unit - 1) / unit)
}

/// What there is, rounded down.
pub fn available(requests: &Requests) -> Amounts {
    convert(requests, |thousandths, unit| thousandths / unit)
}

fn convert(requests: &Requests, round: impl Fn(i128, i128) -> i128) -> Amounts {
    let all = requests.iter().map(|(resource, thousandths)| {
        let (name, unit) = unit(resource);
        (
            name,
            u64::try_from(round((*thousandths).max(0), unit)).unwrap_or(u64::MAX),
        )
    });
    all.filter(|(_, amount)| *amount > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(more: &Value) -> Workload {
        let mut pod = json!({
            "metadata": {
                "name": "x-123", "namespace": "berth-w", "creationTimestamp": "1970-01-01T00:01:40Z",
                "labels": {"berth.dev/tenant": "vision-abc", "app": "a"},
                "annotations": {"berth.dev/origin-namespace": "ml", "berth.dev/origin-name": "train-0"},
            },
            "spec": {"priority": 7, "containers": [{"name": "c", "resources": {"requests": {
                "cpu": "1500m", "memory": "1Gi", "nvidia.com/gpu": "8",
            }}}]},
        });
        merge(&mut pod, more);
        Workload::read(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    fn merge(target: &mut Value, patch: &Value) {
        match patch {
            Value::Object(fields) if target.is_object() => {
                for (key, value) in fields {
                    merge(&mut target[key], value);
                }
            }
            _ => *target = patch.clone(),
        }
    }

    #[test]
    fn amounts_have_units_that_can_be_read() {
        let read = pod(&json!({}));
        let expected = [
            ("MiB memory", 1024),
            ("millicpu", 1500),
            ("nvidia.com/gpu", 8),
            ("pods", 1),
        ];
        assert_eq!(
            read.amounts,
            expected.map(|(name, amount)| (name.to_owned(), amount)).into()
        );
        assert_eq!((read.name.as_str(), read.priority, read.since), ("ml/train-0", 7, 100));
        assert!(read.wants_devices());
        assert_eq!(needed(&[("memory".to_owned(), 1000)].into())["MiB memory"], 1);
        assert!(available(&[("memory".to_owned(), 1000)].into()).is_empty());
    }

    #[test]
    fn where_a_pod_stands() {
        assert_eq!(pod(&json!({})).place, Place::Waiting);
        assert_eq!(pod(&json!({"spec": {"nodeName": "n1"}})).place, Place::On("n1".into()));
        assert_eq!(
            pod(&json!({"spec": {"schedulingGates": [{"name": "g"}]}})).place,
            Place::Held
        );
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
        assert_eq!(pod(&deleted).place, Place::Held);
        let done = json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Succeeded"}});
        assert_eq!(pod(&done).place, Place::Done);
    }

    #[test]
    fn gangs_and_claims() {
        let read = pod(&json!({
            "metadata": {"annotations": {
                "berth.dev/gang": "train", "berth.dev/gang-size": "4", "berth.dev/gang-topology": "required",
            }},
            "spec": {"resourceClaims": [
                {"name": "a", "resourceClaimName": "x"}, {"name": "b", "resourceClaimTemplateName": "y"},
            ]},
        }));
        let gang = Gang {
            name: "ml/train".into(),
            size: 4,
            one_domain: true,
        };
        assert_eq!(read.gang, Some(gang));
        let claims: Vec<_> = read
            .claims
            .iter()
            .map(|claim| (claim.name.as_str(), claim.is_template))
            .collect();
        assert_eq!(claims, [("x", false), ("y", true)]);
        let unsized_gang = pod(&json!({"metadata": {"annotations": {"berth.dev/gang": "train"}}}));
        assert_eq!(unsized_gang.gang, None);
    }

    #[test]
    fn pods_that_stay_apart() {
        let term = |app: &str, key: &str| {
            json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}},
            ]}}}})
        };
        assert!(pod(&term("a", "kubernetes.io/hostname")).alone.is_some());
        assert_eq!(pod(&term("b", "kubernetes.io/hostname")).alone, None);
        assert_eq!(pod(&term("a", "topology.kubernetes.io/zone")).alone, None);
    }

    #[test]
    fn pods_that_are_spread() {
        let constraint = |app: &str, key: &str, when: &str| {
            let selector = json!({"matchLabels": {"app": app}});
            pod(&json!({"spec": {"topologySpreadConstraints": [
                {"topologyKey": key, "whenUnsatisfiable": when, "maxSkew": 2, "minDomains": 3, "labelSelector": selector},
            ]}}))
            .spread
        };
        let spread = constraint("a", HOST, "DoNotSchedule").unwrap();
        assert_eq!((spread.max_skew, spread.min_nodes), (2, 3));
        assert_eq!(constraint("b", HOST, "DoNotSchedule"), None);
        assert_eq!(constraint("a", "zone", "DoNotSchedule"), None);
        assert_eq!(constraint("a", HOST, "ScheduleAnyway"), None);
    }

    #[test]
    fn pods_that_must_be_together() {
        let term = |app: &str| {
            let term = json!({"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": app}}});
            pod(&json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}}))
                .together
        };
        assert_eq!(term("a").unwrap().topology, "rack");
        assert_eq!(term("b"), None, "whom others follow is no concern of theirs");
    }
}
