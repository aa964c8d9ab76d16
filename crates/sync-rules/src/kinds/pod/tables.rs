//! The rules of the small structures that pods and containers are made of. The larger ones have theirs beside the code
//! that translates them. Together they name every field that a pod of any supported version can have: a test compares
//! them with the API servers' own schemas.

use crate::translation::fields::{Fields, Rule};

/// The fields of a pod's spec with containers.
pub const CONTAINERS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

macro_rules! copied {
    ($($(#[$doc:meta])* $name:ident: $($field:literal)+;)+) => {
        $($(#[$doc])* pub const $name: Fields = &[$(($field, Rule::Copy)),+];)+
    };
}

copied! {
    /// The rules of `ContainerResizePolicy`.
    RESIZE_POLICY: "resourceName" "restartPolicy";
    /// The rules of `ContainerRestartRuleOnExitCodes`.
    EXIT_CODES: "operator" "values";
    /// The rules of `ExecAction`.
    EXEC: "command";
    /// The rules of `GRPCAction`: it calls the pod itself, never another host.
    GRPC: "mode" "port" "service";
    /// The rules of `HTTPHeader`.
    HTTP_HEADER: "name" "value";
    /// The rules of `SleepAction`.
    SLEEP: "seconds";
    /// The rules of `ObjectFieldSelector`.
    FIELD_REF: "apiVersion" "fieldPath";
    /// The rules of `ResourceFieldSelector`.
    RESOURCE_FIELD_REF: "containerName" "divisor" "resource";
    /// The rules of `FileKeySelector`: a file in a volume of the pod.
    FILE_KEY_REF: "key" "optional" "path" "volumeName";
    /// The rules of `Capabilities`, which are checked one by one.
    CAPABILITIES: "add" "drop";
    /// The rules of `SeccompProfile` and `AppArmorProfile`.
    PROFILE: "localhostProfile" "type";
    /// The rules of `SELinuxOptions`.
    SE_LINUX: "level" "role" "type" "user";
    /// The rules of `Sysctl`.
    SYSCTL: "name" "value";
    /// The rules of `PodDNSConfigOption`.
    DNS_OPTION: "name" "value";
    /// The rules of `HostAlias`.
    HOST_ALIAS: "hostnames" "ip";
    /// The rules of `PodOS`.
    OS: "name";
    /// The rules of `PodReadinessGate`.
    READINESS_GATE: "conditionType";
    /// The rules of `PodSchedulingGate`.
    SCHEDULING_GATE: "name";
    /// The rules of `Toleration`.
    TOLERATION: "effect" "key" "operator" "tolerationSeconds" "value";
    /// The rules of `LabelSelectorRequirement` and `NodeSelectorRequirement`.
    REQUIREMENT: "key" "operator" "values";
    /// The rules of `EmptyDirVolumeSource`.
    EMPTY_DIR: "medium" "mode" "sizeLimit";
    /// The rules of `ImageVolumeSource`.
    IMAGE: "pullPolicy" "reference";
    /// The rules of `KeyToPath`.
    KEY_TO_PATH: "key" "mode" "path" "user";
}

/// The rules of `ContainerRestartRule`.
pub const RESTART_RULE: Fields = &[("action", Rule::Copy), ("exitCodes", Rule::Within(EXIT_CODES))];

/// The rules of `PodDNSConfig`.
pub const DNS_CONFIG: Fields = &[
    ("nameservers", Rule::Copy),
    ("options", Rule::Within(DNS_OPTION)),
    ("searches", Rule::Copy),
];

/// The rules of `LabelSelector`.
pub const LABEL_SELECTOR: Fields = &[
    ("matchExpressions", Rule::Within(REQUIREMENT)),
    ("matchLabels", Rule::Copy),
];

/// The rules of `NodeSelectorTerm`.
pub const NODE_TERM: Fields = &[
    ("matchExpressions", Rule::Within(REQUIREMENT)),
    ("matchFields", Rule::Within(REQUIREMENT)),
];

/// The rules of `PreferredSchedulingTerm`.
pub const PREFERRED_NODE_TERM: Fields = &[("preference", Rule::Within(NODE_TERM)), ("weight", Rule::Copy)];

/// The rules of `NodeSelector`.
pub const NODE_SELECTOR: Fields = &[("nodeSelectorTerms", Rule::Within(NODE_TERM))];

/// The rules of `NodeAffinity`.
pub const NODE_AFFINITY: Fields = &[
    (
        "preferredDuringSchedulingIgnoredDuringExecution",
        Rule::Within(PREFERRED_NODE_TERM),
    ),
    (
        "requiredDuringSchedulingIgnoredDuringExecution",
        Rule::Within(NODE_SELECTOR),
    ),
];

/// The rules of `ConfigMapKeySelector`, `SecretKeySelector`, `ConfigMapEnvSource`, `SecretEnvSource`: the name becomes that
/// of the host object.
pub const OBJECT_REF: Fields = &[("key", Rule::Copy), ("name", Rule::Rewrite), ("optional", Rule::Copy)];

/// The rules of `ConfigMapVolumeSource`, `SecretVolumeSource`, `ConfigMapProjection` and `SecretProjection`.
pub const FILES: Fields = &[
    ("defaultMode", Rule::Copy),
    ("defaultUser", Rule::Copy),
    ("items", Rule::Within(KEY_TO_PATH)),
    ("name", Rule::Rewrite),
    ("optional", Rule::Copy),
    ("secretName", Rule::Rewrite),
];

/// The rules of `DownwardAPIVolumeSource` and `DownwardAPIProjection`.
pub const DOWNWARD: Fields = &[
    ("defaultMode", Rule::Copy),
    ("defaultUser", Rule::Copy),
    ("items", Rule::Within(DOWNWARD_ITEM)),
];

/// The rules of `DownwardAPIVolumeFile`.
pub const DOWNWARD_ITEM: Fields = &[
    ("fieldRef", Rule::Within(FIELD_REF)),
    ("mode", Rule::Copy),
    ("path", Rule::Copy),
    ("resourceFieldRef", Rule::Within(RESOURCE_FIELD_REF)),
    ("user", Rule::Copy),
];

/// The rules of `ProjectedVolumeSource`.
pub const PROJECTED: Fields = &[
    ("defaultMode", Rule::Copy),
    ("defaultUser", Rule::Copy),
    ("sources", Rule::Rewrite),
];

/// The rules of `ServiceAccountTokenProjection`: it becomes an item of the Secret that carries the pod's tokens.
pub const TOKEN: Fields = &[
    ("audience", Rule::Ignore("the token is asked for with it")),
    ("expirationSeconds", Rule::Ignore("the token is asked for with it")),
    ("path", Rule::Copy),
    ("user", Rule::Copy),
];

/// The rules of `ClusterTrustBundleProjection`: it becomes an item of the same Secret.
pub const TRUST: Fields = &[
    ("labelSelector", Rule::Ignore(SELECTED)),
    ("name", Rule::Ignore(SELECTED)),
    ("optional", Rule::Ignore(SELECTED)),
    ("path", Rule::Copy),
    ("signerName", Rule::Ignore(SELECTED)),
    ("user", Rule::Copy),
];

/// The rules of `PodCertificateProjection`: it becomes items of the same Secret.
pub const CERTIFICATE: Fields = &[
    ("certificateChainPath", Rule::Rewrite),
    ("credentialBundlePath", Rule::Rewrite),
    ("keyPath", Rule::Rewrite),
    ("keyType", Rule::Ignore(REQUESTED)),
    ("maxExpirationSeconds", Rule::Ignore(REQUESTED)),
    ("signerName", Rule::Ignore(REQUESTED)),
    ("user", Rule::Copy),
    ("userAnnotations", Rule::Ignore(REQUESTED)),
];

const REQUESTED: &str = "the certificate is requested with it";

const SELECTED: &str = "the certificates are selected with it";

/// The rules of `VolumeProjection`.
pub const PROJECTION: Fields = &[
    ("clusterTrustBundle", Rule::Rewrite),
    ("configMap", Rule::Rewrite),
    ("downwardAPI", Rule::Rewrite),
    ("podCertificate", Rule::Rewrite),
    ("secret", Rule::Rewrite),
    ("serviceAccountToken", Rule::Rewrite),
];
