//! A tenant's pod on the host, as far as it matters for planning.

use super::node_rules::NodeRules;
use crate::pod_requests::Requests;
use berth_api::{DEVICES_BY_CLASS, names};
use berth_planner::{Amounts, Seconds};

/// A tenant's pod on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Workload {
    /// Slug of the tenant.
    pub tenant: String,
    /// Namespace and name in the tenant, for messages.
    pub name: String,
    pub priority: i32,
    /// When it was created.
    pub since: Seconds,
    /// Amounts that it requests.
    pub amounts: Amounts,
    pub claims: Vec<Claim>,
    /// Its requirements on a node.
    pub rules: NodeRules,
    /// Selector of a required anti-affinity to pods like itself: pods with the same one do not share a node.
    pub anti_affinity: Option<String>,
    /// How pods like it are spread over nodes.
    pub spread: Option<Spread>,
    /// Required affinity to pods like itself.
    pub affinity: Option<PodAffinity>,
    pub gang: Option<Gang>,
    pub scheduling: SchedulingState,
    /// If it is being deleted: when its grace period is over.
    pub ends_at: Option<Seconds>,
}

/// A claim of devices that a pod names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Host namespace of the claim or template.
    pub namespace: String,
    pub name: String,
    /// Whether it is a template, from which the host creates a claim.
    pub is_template: bool,
    /// The claim that the host created from it.
    pub generated: Option<String>,
}

/// Pods that are spread over nodes (`topologySpreadConstraints` by host name, `DoNotSchedule`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spread {
    /// The selector of these pods; the same for all of them.
    pub key: String,
    /// How many more of them a node may have than another.
    pub max_skew: u64,
    /// Minimum number of nodes.
    pub min_nodes: u64,
}

/// A required affinity of pods to each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodAffinity {
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

/// How far the scheduling of a pod has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SchedulingState {
    #[default]
    Pending,
    /// It cannot be scheduled yet: it has scheduling gates, or is being deleted.
    Gated,
    Bound(String),
    Finished,
}

impl Workload {
    /// Resources that represent its anti-affinity and spread: it takes one unit of each.
    pub fn anti_affinity_resources(&self) -> impl Iterator<Item = String> {
        let anti_affinity = self
            .anti_affinity
            .iter()
            .map(|selector| format!("{ANTI_AFFINITY_PREFIX}{selector}"));
        let spread = self
            .spread
            .iter()
            .map(|spread| format!("{SPREAD_PREFIX}{}", spread.key));
        anti_affinity.chain(spread)
    }
}

/// Most bytes of a text that only identifies something and is shown in messages.
const LONGEST: usize = 256;

/// A text, or its beginning and a hash if it is long. Selectors can have 100 KiB, and the planner has one for each pod and each node.
pub fn shorten(text: &str) -> String {
    if text.len() <= LONGEST {
        return text.to_owned();
    }
    let hash = names::hash(&[text]);
    format!("{}… ({hash})", &text[..text.floor_char_boundary(LONGEST - hash.len())])
}

/// Whether a resource counts devices: extended resources have a domain, those of claims the prefix `dra:`.
pub fn is_device(resource: &str) -> bool {
    resource.contains('/') || resource.starts_with(DRA_PREFIX)
}

/// Whether a resource counts devices that pods get by claims, their own or those that the scheduler makes for them.
pub fn is_of_claims(resource: &str) -> bool {
    resource.starts_with(DRA_PREFIX) || resource.starts_with(DEVICES_BY_CLASS)
}

/// Whether two extended resources have the same domain: `nvidia.com/gpu` and `nvidia.com/mig-1g.10gb`.
pub fn is_of_same_domain(one: &str, other: &str) -> bool {
    domain_of(one).is_some_and(|domain| domain_of(other) == Some(domain))
}

fn domain_of(resource: &str) -> Option<&str> {
    resource.split_once('/').map(|(domain, _)| domain)
}

/// Prefix of resources that count devices of a class.
pub const DRA_PREFIX: &str = "dra:";
/// Prefix of resources that represent a required anti-affinity: each node has one.
pub const ANTI_AFFINITY_PREFIX: &str = "anti-affinity: ";
/// Prefix of resources that represent a spread constraint: each node has as many as it may have of the pods.
pub const SPREAD_PREFIX: &str = "topology spread: ";
/// Label whose values are the nodes.
pub const HOST: &str = "kubernetes.io/hostname";

/// Names and units of amounts, as messages show them: devices by their number, CPU in thousandths, the rest in MiB.
fn unit_of(resource: &str) -> (String, i128) {
    const MEBI: i128 = 1024 * 1024;
    match resource {
        "cpu" => ("millicpu".into(), 1),
        "pods" => (resource.into(), 1000),
        _ if is_device(resource) => (resource.into(), 1000),
        other => (format!("MiB {other}"), 1000 * MEBI),
    }
}

/// Requests as amounts, rounded up.
pub fn required_amounts(requests: &Requests) -> Amounts {
    convert_units(requests, |thousandths, unit| (thousandths + unit - 1) / unit)
}

/// Capacity as amounts, rounded down.
pub fn available_amounts(requests: &Requests) -> Amounts {
    convert_units(requests, |thousandths, unit| thousandths / unit)
}

fn convert_units(requests: &Requests, round: impl Fn(i128, i128) -> i128) -> Amounts {
    let all = requests.iter().map(|(resource, thousandths)| {
        let (name, unit) = unit_of(resource);
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
    use json_patch::merge;
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
        Workload::from_pod(&serde_json::from_value(pod).unwrap()).unwrap()
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
        assert_eq!(required_amounts(&[("memory".to_owned(), 1000)].into())["MiB memory"], 1);
        assert!(available_amounts(&[("memory".to_owned(), 1000)].into()).is_empty());
    }

    #[test]
    fn little_is_kept_of_what_tenants_write() {
        let long = "x".repeat(63);
        let values: Vec<String> = (0..1_000).map(|number| format!("{long}{number}")).collect();
        let selector = json!({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": values}]});
        let requests: serde_json::Map<String, Value> = (0..1_000)
            .map(|number| (format!("example.com/r{number}"), Value::from("1")))
            .collect();
        let read = pod(&json!({
            "metadata": {"annotations": {"berth.dev/gang": "g".repeat(100_000), "berth.dev/gang-size": "2"}},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": requests}}],
                "affinity": {
                    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "rack", "labelSelector": selector}]},
                    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": HOST, "labelSelector": selector}]},
                },
                "topologySpreadConstraints": [
                    {"topologyKey": HOST, "whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1, "labelSelector": selector},
                ],
            },
        }));
        assert!(read.affinity.is_some() && read.anti_affinity.is_some() && read.spread.is_some());
        assert_eq!(read.scheduling, SchedulingState::Gated, "no node has so many resources");
        let kept = format!("{read:?}").len();
        assert!(kept < 8_000, "{kept}");
    }

    #[test]
    fn scheduling_state_of_a_pod_is_read() {
        assert_eq!(pod(&json!({})).scheduling, SchedulingState::Pending);
        assert_eq!(
            pod(&json!({"spec": {"nodeName": "n1"}})).scheduling,
            SchedulingState::Bound("n1".into())
        );
        assert_eq!(
            pod(&json!({"spec": {"schedulingGates": [{"name": "g"}]}})).scheduling,
            SchedulingState::Gated
        );
        let deleted = json!({"metadata": {"deletionTimestamp": "1970-01-01T00:02:00Z"}});
        assert_eq!(pod(&deleted).scheduling, SchedulingState::Gated);
        assert_eq!((pod(&deleted).ends_at, pod(&json!({})).ends_at), (Some(120), None));
        let done = json!({"spec": {"nodeName": "n1"}, "status": {"phase": "Succeeded"}});
        assert_eq!(pod(&done).scheduling, SchedulingState::Finished);
    }

    #[test]
    fn gangs_and_claims_are_read() {
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
    fn required_anti_affinity_is_read() {
        let term = |app: &str, key: &str| {
            json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}},
            ]}}}})
        };
        assert!(pod(&term("a", "kubernetes.io/hostname")).anti_affinity.is_some());
        assert_eq!(pod(&term("b", "kubernetes.io/hostname")).anti_affinity, None);
        assert_eq!(pod(&term("a", "topology.kubernetes.io/zone")).anti_affinity, None);
    }

    #[test]
    fn spread_constraint_is_read() {
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
    fn required_affinity_is_read() {
        let term = |app: &str| {
            let term = json!({"topologyKey": "rack", "labelSelector": {"matchLabels": {"app": app}}});
            pod(&json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}}))
                .affinity
        };
        assert_eq!(term("a").unwrap().topology, "rack");
        assert_eq!(term("b"), None, "it does not select itself");
    }
}
