//! How much one object of a tenant may hold: many entries in one object cost components that all tenants share as much as many
//! objects.
//!
//! The host's admission policies enforce the same tables. Each limit has two numbers. Translation checks what the tenant wrote by
//! [`SizeLimit::in_tenant`]. It checks what becomes of it by [`SizeLimit::on_host`], as the admission policies do. The second is
//! higher, because Berth adds entries, and so do webhooks of the host. No reasonable workload reaches either.

use super::fields::FieldIssues;
use crate::model::json;
use serde_json::Value;

/// A limit of entries in one object.
#[derive(Clone, Copy, Debug)]
pub struct SizeLimit {
    /// The field, or the fields, in messages.
    pub field: &'static str,
    /// What is counted.
    pub measure: Measure,
    /// Most in the tenant's object.
    pub in_tenant: usize,
    /// Most in the host's object.
    pub on_host: usize,
    /// What more would cost, as the end of a sentence.
    pub why: &'static str,
}

/// What a [`SizeLimit`] counts. Paths are those of [`json::each`]. The last step names what is counted: `[]` stands for the items of a
/// list, `{}` for the entries of a map.
#[derive(Clone, Copy, Debug)]
pub enum Measure {
    /// All `entries` below all `parents`.
    Total {
        /// Paths of objects.
        parents: &'static [&'static str],
        /// Paths within each of them.
        entries: &'static [&'static str],
    },
    /// The sum over objects of the product of two lists in each. An empty list counts as one entry.
    Products(&'static [(&'static str, [&'static str; 2])]),
}

impl Measure {
    /// How many there are in an object.
    pub fn count(&self, object: &Value) -> usize {
        let mut total: usize = 0;
        match self {
            Self::Total { parents, entries } => {
                for parent in *parents {
                    json::each(object, parent, &mut |parent| {
                        total += entries.iter().map(|path| count_entries(parent, path)).sum::<usize>();
                    });
                }
            }
            Self::Products(products) => {
                for (parent, factors) in *products {
                    json::each(object, parent, &mut |parent| {
                        let [one, other] = factors.map(|path| count_entries(parent, path).max(1));
                        total = total.saturating_add(one.saturating_mul(other));
                    });
                }
            }
        }
        total
    }
}

/// The entries at a path.
fn count_entries(object: &Value, path: &str) -> usize {
    let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
    let field = last.trim_end_matches("[]").trim_end_matches("{}");
    let mut total = 0;
    json::each(object, parent, &mut |parent| {
        total += match parent.get(field) {
            Some(Value::Array(items)) => items.len(),
            Some(Value::Object(entries)) => entries.len(),
            _ => 0,
        };
    });
    total
}

/// Denies what is beyond the limits in the tenant's object, or in the host's that it becomes.
pub fn check(limits: &[SizeLimit], tenant: &Value, host: &Value, issues: &mut FieldIssues) {
    for limit in limits {
        check_limit(limit, tenant, host, issues);
    }
}

/// The same for an object that is on the host as `live`, or null. What it holds there may stay: it may be older than these limits.
pub fn check_growth(limits: &[SizeLimit], live: &Value, tenant: &Value, host: &Value, issues: &mut FieldIssues) {
    for limit in limits {
        if limit.measure.count(live) < limit.measure.count(host) {
            check_limit(limit, tenant, host, issues);
        }
    }
}

/// Denies what is beyond the limits of the host.
pub fn check_on_host(limits: &[SizeLimit], host: &Value, issues: &mut FieldIssues) {
    for limit in limits {
        check_limit_on_host(limit, host, issues);
    }
}

fn check_limit(limit: &SizeLimit, tenant: &Value, host: &Value, issues: &mut FieldIssues) {
    let SizeLimit {
        field,
        measure,
        in_tenant,
        on_host: _,
        why,
    } = limit;
    let written = measure.count(tenant);
    if written > *in_tenant {
        let why = format!("there are {written}, and one object may have at most {in_tenant}: {why}");
        issues.deny(*field, why);
    } else {
        check_limit_on_host(limit, host, issues);
    }
}

fn check_limit_on_host(limit: &SizeLimit, host: &Value, issues: &mut FieldIssues) {
    let SizeLimit {
        field,
        measure,
        in_tenant: _,
        on_host,
        why,
    } = limit;
    let translated = measure.count(host);
    if translated > *on_host {
        let why =
            format!("this becomes {translated} on the host, and one object may have at most {on_host} there: {why}");
        issues.deny(*field, why);
    }
}

/// Most bytes of a pod's spec in the tenant, as JSON. API servers take requests of 1.5 MiB or less, and the host's pod is larger: it has the
/// variables of Services. Schedulers and kubelets keep the specs of all their pods in memory.
pub const MAX_POD_SPEC_BYTES: usize = 512 * 1024;

/// Denies a pod whose spec is too large.
pub fn check_pod_bytes(pod: &Value, issues: &mut FieldIssues) {
    let mut bytes = ByteCounter(0);
    // Counting cannot fail.
    if serde_json::to_writer(&mut bytes, &pod["spec"]).is_ok() && bytes.0 > MAX_POD_SPEC_BYTES {
        let why = format!(
            "it has {} bytes, and may have at most {MAX_POD_SPEC_BYTES}: schedulers and nodes keep it in memory. Put data into \
             ConfigMaps and Secrets",
            bytes.0
        );
        issues.deny("spec", why);
    }
}

/// Counts what is written to it.
struct ByteCounter(usize);

impl std::io::Write for ByteCounter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const ALL_CONTAINERS: &[&str] = &[
    "spec.containers[]",
    "spec.initContainers[]",
    "spec.ephemeralContainers[]",
];

const REQUIRED_POD_TERMS: &str = "requiredDuringSchedulingIgnoredDuringExecution[]";
const PREFERRED_POD_TERMS: &str = "preferredDuringSchedulingIgnoredDuringExecution[]";

/// The terms of node affinity; `preference` has the fields of a term.
const NODE_TERMS: &[&str] = &[
    "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[]",
    "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference",
];

/// The terms of pod affinity, with what they select.
const POD_TERMS: &[&str] = &[
    "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[]",
    "spec.affinity.podAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm",
    "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[]",
    "spec.affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm",
];

const SCHEDULER: &str = "the host's scheduler, which all tenants share, compares each with every node";
const PODS_AND_NODES: &str = "the host's scheduler, which all tenants share, compares each with the pods of every node";
const NODE: &str = "nodes and API servers keep them in memory and go through all of them";

/// Limits of a pod: of what cannot change once it has a node. Before that, a pod with scheduling gates may still change.
pub const POD: &[SizeLimit] = &[
    // Pods of a dozen containers are large. Webhooks add a few.
    SizeLimit {
        field: "spec.containers and spec.initContainers",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["containers[]", "initContainers[]"],
        },
        in_tenant: 100,
        on_host: 150,
        why: NODE,
    },
    // The tenant's own; each Service of the namespace adds seven or more to each container.
    SizeLimit {
        field: "spec.containers[].env",
        measure: Measure::Total {
            parents: ALL_CONTAINERS,
            entries: &["env[]", "envFrom[]"],
        },
        in_tenant: 5_000,
        on_host: 30_000,
        why: "nodes and API servers keep them in memory. If they are those of Services, set spec.enableServiceLinks to false",
    },
    // The kernel of the node has an entry for each.
    SizeLimit {
        field: "spec.containers[].volumeMounts",
        measure: Measure::Total {
            parents: ALL_CONTAINERS,
            entries: &["volumeMounts[]", "volumeDevices[]"],
        },
        in_tenant: 2_000,
        on_host: 2_500,
        why: "the node mounts each",
    },
    SizeLimit {
        field: "spec.containers[].ports",
        measure: Measure::Total {
            parents: ALL_CONTAINERS,
            entries: &["ports[]"],
        },
        in_tenant: 1_000,
        on_host: 1_100,
        why: NODE,
    },
    SizeLimit {
        field: "spec.volumes",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["volumes[]", "volumes[].projected.sources[]"],
        },
        in_tenant: 500,
        on_host: 600,
        why: "the node fetches and mounts each",
    },
    SizeLimit {
        field: "spec.hostAliases",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["hostAliases[]", "hostAliases[].hostnames[]"],
        },
        in_tenant: 5_000,
        on_host: 5_000,
        why: NODE,
    },
    SizeLimit {
        field: "spec.imagePullSecrets",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["imagePullSecrets[]"],
        },
        in_tenant: 100,
        on_host: 120,
        why: "the node reads each for every image",
    },
    SizeLimit {
        field: "spec.readinessGates and spec.schedulingGates",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["readinessGates[]", "schedulingGates[]"],
        },
        in_tenant: 100,
        on_host: 120,
        why: NODE,
    },
    SizeLimit {
        field: "spec.resourceClaims",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["resourceClaims[]"],
        },
        in_tenant: 100,
        on_host: 100,
        why: "the host's scheduler, which all tenants share, allocates devices for all of them at once",
    },
    SizeLimit {
        field: "spec.nodeSelector",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["nodeSelector{}"],
        },
        in_tenant: 100,
        on_host: 120,
        why: SCHEDULER,
    },
    // A term that asks for a label of the tenant's own becomes one for each Node that has it, and on shared nodes two.
    SizeLimit {
        field: "spec.affinity.nodeAffinity: terms",
        measure: Measure::Total {
            parents: &["spec.affinity.nodeAffinity"],
            entries: &[
                "requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[]",
                "preferredDuringSchedulingIgnoredDuringExecution[]",
            ],
        },
        in_tenant: 250,
        on_host: 2_000,
        why: SCHEDULER,
    },
    SizeLimit {
        field: "spec.affinity.nodeAffinity: expressions",
        measure: Measure::Total {
            parents: NODE_TERMS,
            entries: &["matchExpressions[]"],
        },
        in_tenant: 1_000,
        on_host: 8_000,
        why: SCHEDULER,
    },
    // Each Node that the tenant has cordoned or tainted is one in each term.
    SizeLimit {
        field: "spec.affinity.nodeAffinity: fields",
        measure: Measure::Total {
            parents: NODE_TERMS,
            entries: &["matchFields[]"],
        },
        in_tenant: 250,
        on_host: 20_000,
        why: SCHEDULER,
    },
    // Lists of nodes by name.
    SizeLimit {
        field: "spec.affinity.nodeAffinity: values",
        measure: Measure::Total {
            parents: NODE_TERMS,
            entries: &["matchExpressions[].values[]"],
        },
        in_tenant: 5_000,
        on_host: 20_000,
        why: SCHEDULER,
    },
    SizeLimit {
        field: "spec.affinity.podAffinity and spec.affinity.podAntiAffinity: terms",
        measure: Measure::Total {
            parents: &["spec.affinity.podAffinity", "spec.affinity.podAntiAffinity"],
            entries: &[REQUIRED_POD_TERMS, PREFERRED_POD_TERMS],
        },
        in_tenant: 50,
        on_host: 60,
        why: PODS_AND_NODES,
    },
    // Translation adds the tenant and the namespace to each.
    SizeLimit {
        field: "spec.affinity.podAffinity and spec.affinity.podAntiAffinity: selectors",
        measure: Measure::Total {
            parents: POD_TERMS,
            entries: &[
                "labelSelector.matchLabels{}",
                "labelSelector.matchExpressions[]",
                "labelSelector.matchExpressions[].values[]",
                "namespaceSelector.matchLabels{}",
                "namespaceSelector.matchExpressions[]",
                "namespaceSelector.matchExpressions[].values[]",
                "namespaces[]",
            ],
        },
        in_tenant: 2_000,
        on_host: 4_000,
        why: PODS_AND_NODES,
    },
    SizeLimit {
        field: "spec.topologySpreadConstraints",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["topologySpreadConstraints[]"],
        },
        in_tenant: 30,
        on_host: 40,
        why: PODS_AND_NODES,
    },
    SizeLimit {
        field: "spec.topologySpreadConstraints: selectors",
        measure: Measure::Total {
            parents: &["spec.topologySpreadConstraints[]"],
            entries: &[
                "labelSelector.matchLabels{}",
                "labelSelector.matchExpressions[]",
                "labelSelector.matchExpressions[].values[]",
            ],
        },
        in_tenant: 1_000,
        on_host: 2_000,
        why: PODS_AND_NODES,
    },
];

/// Limits of what can be added to a pod that has a node.
pub const RUNNING_POD: &[SizeLimit] = &[
    // They stay until the pod goes: each `kubectl debug` adds one.
    SizeLimit {
        field: "spec.ephemeralContainers",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["ephemeralContainers[]"],
        },
        in_tenant: 250,
        on_host: 250,
        why: NODE,
    },
    // A toleration without a key becomes one for each taint that the tenant can see.
    SizeLimit {
        field: "spec.tolerations",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["tolerations[]"],
        },
        in_tenant: 100,
        on_host: 500,
        why: SCHEDULER,
    },
];

/// Limits of the ports of a Service. Nodes have no rules for a headless one.
pub const SERVICE_PORTS: &[SizeLimit] = &[SizeLimit {
    field: "spec.ports",
    measure: Measure::Total {
        parents: &["spec"],
        entries: &["ports[]"],
    },
    in_tenant: 250,
    on_host: 250,
    why: "every node has rules for each of them",
}];

/// Further limits of a Service.
pub const SERVICE: &[SizeLimit] = &[
    SizeLimit {
        field: "spec.loadBalancerSourceRanges",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["loadBalancerSourceRanges[]"],
        },
        in_tenant: 250,
        on_host: 250,
        why: "every node has rules for each of them",
    },
    SizeLimit {
        field: "spec.ports by spec.loadBalancerSourceRanges",
        measure: Measure::Products(&[("spec", ["ports[]", "loadBalancerSourceRanges[]"])]),
        in_tenant: 5_000,
        on_host: 5_000,
        why: "every node has a rule for each range at each port",
    },
    SizeLimit {
        field: "spec.selector",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["selector{}"],
        },
        in_tenant: 100,
        on_host: 110,
        why: "controllers of the host compare each with every pod",
    },
];

/// Limits of the rules of a NetworkPolicy.
pub const NETWORK_POLICY_RULES: &[SizeLimit] = &[
    // Network plug-ins make an entry of each. A peer becomes one for each network of the TenantCluster that it lies in.
    SizeLimit {
        field: "spec.ingress and spec.egress: peers by ports",
        measure: Measure::Products(&[
            ("spec.ingress[]", ["from[]", "ports[]"]),
            ("spec.egress[]", ["to[]", "ports[]"]),
        ]),
        in_tenant: 5_000,
        on_host: 10_000,
        why: "every node with a pod that the policy selects has a rule for each peer at each port",
    },
    // Translation adds the networks that are blocked for the tenant.
    SizeLimit {
        field: "spec.ingress and spec.egress: ipBlock.except",
        measure: Measure::Total {
            parents: &["spec.ingress[].from[]", "spec.egress[].to[]"],
            entries: &["ipBlock.except[]"],
        },
        in_tenant: 1_000,
        on_host: 10_000,
        why: "every node with a pod that the policy selects has a rule for each of them",
    },
    SizeLimit {
        field: "spec.ingress and spec.egress: selectors",
        measure: Measure::Total {
            parents: &["spec.ingress[].from[]", "spec.egress[].to[]"],
            entries: &[
                "podSelector.matchLabels{}",
                "podSelector.matchExpressions[]",
                "podSelector.matchExpressions[].values[]",
                "namespaceSelector.matchLabels{}",
                "namespaceSelector.matchExpressions[]",
                "namespaceSelector.matchExpressions[].values[]",
            ],
        },
        in_tenant: 5_000,
        on_host: 20_000,
        why: "every node compares each with all pods",
    },
];

/// Limits of the pods that a NetworkPolicy is for.
pub const NETWORK_POLICY_SELECTOR: &[SizeLimit] = &[SizeLimit {
    field: "spec.podSelector",
    measure: Measure::Total {
        parents: &["spec.podSelector"],
        entries: &["matchLabels{}", "matchExpressions[]", "matchExpressions[].values[]"],
    },
    in_tenant: 500,
    on_host: 510,
    why: "every node compares each with all pods",
}];

/// Limits of a PodDisruptionBudget.
pub const DISRUPTION_BUDGET: &[SizeLimit] = &[SizeLimit {
    field: "spec.selector",
    measure: Measure::Total {
        parents: &["spec.selector"],
        entries: &["matchLabels{}", "matchExpressions[]", "matchExpressions[].values[]"],
    },
    in_tenant: 500,
    on_host: 510,
    why: "the host compares each with all pods, and again at each eviction",
}];

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn limit(limits: &'static [SizeLimit], field: &str) -> SizeLimit {
        *limits.iter().find(|limit| limit.field == field).unwrap()
    }

    #[test]
    fn the_host_leaves_room_for_what_is_added() {
        for limits in [
            POD,
            RUNNING_POD,
            SERVICE_PORTS,
            SERVICE,
            NETWORK_POLICY_RULES,
            NETWORK_POLICY_SELECTOR,
            DISRUPTION_BUDGET,
        ] {
            for limit in limits {
                assert!(0 < limit.in_tenant && limit.in_tenant <= limit.on_host, "{limit:?}");
            }
        }
    }

    #[test]
    fn the_reference_page_has_every_limit() {
        let page = include_str!("../../../../docs/reference/object-sizes.md");
        let written = |number: usize| {
            if number < 1000 {
                number.to_string()
            } else {
                format!("{},{:03}", number / 1000, number % 1000)
            }
        };
        for (kind, limits) in [
            ("Pod", POD),
            ("Pod", RUNNING_POD),
            ("Service", SERVICE_PORTS),
            ("Service", SERVICE),
            ("NetworkPolicy", NETWORK_POLICY_RULES),
            ("NetworkPolicy", NETWORK_POLICY_SELECTOR),
            ("PodDisruptionBudget", DISRUPTION_BUDGET),
        ] {
            for limit in limits {
                let start = format!("| {kind} | `{}` | ", limit.field);
                let end = format!(" | {} | {} |", written(limit.in_tenant), written(limit.on_host));
                let mut rows = page.lines().filter(|line| line.starts_with(&start));
                assert!(rows.next().is_some_and(|row| row.ends_with(&end)), "{start} … {end}");
            }
        }
    }

    #[test]
    fn lists_and_maps_are_counted_wherever_they_are() {
        let term = json!({"labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [
            {"key": "a", "operator": "In", "values": ["b", "c"]}, {"key": "d", "operator": "Exists"}]}, "namespaces": ["x"]});
        let pod = json!({"spec": {
            "nodeSelector": {"a": "b", "c": "d"},
            "containers": [{"env": [{}, {}], "envFrom": [{}]}, {}], "initContainers": [{"env": [{}]}],
            "volumes": [{"projected": {"sources": [{}, {}]}}, {}],
            "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term],
                "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]}},
        }});
        for (field, expected) in [
            ("spec.nodeSelector", 2),
            ("spec.containers and spec.initContainers", 3),
            ("spec.containers[].env", 4),
            ("spec.volumes", 4),
            ("spec.affinity.podAffinity and spec.affinity.podAntiAffinity: terms", 2),
            (
                "spec.affinity.podAffinity and spec.affinity.podAntiAffinity: selectors",
                12,
            ),
        ] {
            assert_eq!(limit(POD, field).measure.count(&pod), expected, "{field}");
            assert_eq!(limit(POD, field).measure.count(&json!({})), 0, "{field}");
        }
    }

    #[test]
    fn an_empty_list_of_peers_or_ports_counts_as_one() {
        let measure = limit(NETWORK_POLICY_RULES, "spec.ingress and spec.egress: peers by ports").measure;
        let policy =
            json!({"spec": {"ingress": [{}, {"from": [{}, {}], "ports": [{}, {}, {}]}], "egress": [{"to": [{}, {}]}]}});
        assert_eq!(measure.count(&policy), 1 + 6 + 2);
    }

    #[test]
    fn what_is_too_much_is_denied_with_both_numbers() {
        let pod = |count: usize| json!({"spec": {"tolerations": vec![json!({"key": "a"}); count]}});
        let denied = |tenant: usize, host: usize| {
            let mut issues = FieldIssues::default();
            check(RUNNING_POD, &pod(tenant), &pod(host), &mut issues);
            issues.denied.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(denied(100, 500).is_empty());
        let written = denied(101, 102);
        assert_eq!(written.len(), 1);
        assert!(
            written[0].starts_with("spec.tolerations: there are 101, and one object may have at most 100: "),
            "{written:?}"
        );
        let translated = denied(100, 501);
        assert_eq!(translated.len(), 1);
        assert!(translated[0].contains("this becomes 501 on the host"), "{translated:?}");
    }

    #[test]
    fn what_is_on_the_host_may_stay() {
        let service = |count: usize| json!({"spec": {"ports": vec![json!({"port": 1}); count]}});
        let denied = |live: &Value, count: usize| {
            let mut issues = FieldIssues::default();
            check_growth(SERVICE_PORTS, live, &service(count), &service(count), &mut issues);
            issues.denied.len()
        };
        assert_eq!((denied(&service(300), 300), denied(&service(300), 299)), (0, 0));
        assert_eq!((denied(&service(300), 301), denied(&Value::Null, 251)), (1, 1));
        assert_eq!((denied(&Value::Null, 250), denied(&service(10), 250)), (0, 0));
    }

    #[test]
    fn a_spec_of_half_a_mebibyte_is_denied() {
        let denied = |bytes: usize| {
            let mut issues = FieldIssues::default();
            check_pod_bytes(
                &json!({"spec": {"containers": [{"args": ["a".repeat(bytes)]}]}}),
                &mut issues,
            );
            issues.denied
        };
        assert!(denied(MAX_POD_SPEC_BYTES - 100).is_empty());
        assert!(denied(MAX_POD_SPEC_BYTES)[0].why.contains("ConfigMaps"));
    }
}
