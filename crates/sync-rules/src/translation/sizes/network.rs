//! How much Services and NetworkPolicies may hold.

use super::{Measure, SizeLimit};

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

/// Most peers by ports of a NetworkPolicy on the host.
pub const MOST_PEERS: usize = 10_000;
/// Most networks that are excepted from them.
pub const MOST_EXCEPTED: usize = 10_000;

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
        on_host: MOST_PEERS,
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
        on_host: MOST_EXCEPTED,
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
