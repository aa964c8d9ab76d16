//! How much a pod may hold.

use super::{Measure, SizeLimit};

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

/// Most terms of node affinity on the host. Translation makes no more than one beyond each of these limits: what a tenant writes can become a thousand times as
/// much.
pub const MOST_NODE_TERMS: usize = 2_000;
/// Most `matchFields` in all of them.
pub const MOST_NODE_FIELDS: usize = 20_000;
/// Most tolerations on the host.
pub const MOST_TOLERATIONS: usize = 500;
/// Most ephemeral containers. What is beyond that is left out of the host pod.
pub const MOST_EPHEMERAL_CONTAINERS: usize = 250;

const SCHEDULER: &str = "the host's scheduler, which all tenants share, compares each with every node";
const PODS_AND_NODES: &str = "the host's scheduler, which all tenants share, compares each with the pods of every node";
const NODE: &str = "nodes and API servers keep them in memory and go through all of them";

/// Limits of a pod: of what cannot change once it has a node.
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
    // The scheduler does not look whether several name the same claim.
    SizeLimit {
        field: "spec.volumes: claims",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["volumes[].persistentVolumeClaim?", "volumes[].ephemeral?"],
        },
        in_tenant: 32,
        on_host: 40,
        why: "the host's scheduler, which all tenants share, looks for a volume for each on every node. Mount one claim several times by volumeMounts",
    },
    // On the host they are files of a Secret.
    SizeLimit {
        field: "spec.volumes: certificates",
        measure: Measure::Total {
            parents: &["spec"],
            entries: &["volumes[].projected.sources[].podCertificate?"],
        },
        in_tenant: 16,
        on_host: 16,
        why: "the syncer makes a key for each",
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
        in_tenant: 32,
        on_host: 32,
        why: "the host's scheduler, which all tenants share, allocates devices for all of them at once, and control keeps their names",
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
        on_host: MOST_NODE_TERMS,
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
        on_host: MOST_NODE_FIELDS,
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
        in_tenant: MOST_EPHEMERAL_CONTAINERS,
        on_host: MOST_EPHEMERAL_CONTAINERS,
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
        on_host: MOST_TOLERATIONS,
        why: SCHEDULER,
    },
];
