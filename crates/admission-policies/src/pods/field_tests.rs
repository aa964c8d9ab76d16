//! Fields of pods that the syncer does not copy as they are. With its credential, somebody can write them as they like: each has a validation, or a
//! reason why it needs none. Fields that are copied are for tenants to choose, whoever writes them.

use super::build_policies;
use berth_sync_rules::{
    kinds::pod::STRUCTURES,
    translation::fields::{Fields, Rule},
};
use std::collections::BTreeSet;

/// Fields that are validated, by structure. An expression has each after a dot, or after `.?`.
const VALIDATED: &[(&str, &[&str])] = &[
    ("Affinity", &["podAffinity", "podAntiAffinity"]),
    ("CSIVolumeSource", &["driver", "volumeAttributes"]),
    (
        "Container",
        &[
            "env",
            "envFrom",
            "lifecycle",
            "livenessProbe",
            "ports",
            "readinessProbe",
            "resources",
            "securityContext",
            "startupProbe",
            "volumeMounts",
        ],
    ),
    ("ContainerPort", &["hostPort"]),
    (
        "EphemeralContainer",
        &[
            "env",
            "envFrom",
            "lifecycle",
            "livenessProbe",
            "ports",
            "readinessProbe",
            "securityContext",
            "startupProbe",
            "volumeMounts",
        ],
    ),
    ("EnvVar", &["value", "valueFrom"]),
    ("HTTPGetAction", &["host"]),
    ("Lifecycle", &["postStart", "preStop"]),
    ("LifecycleHandler", &["httpGet", "tcpSocket"]),
    (
        "PodAffinity",
        &[
            "preferredDuringSchedulingIgnoredDuringExecution",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ],
    ),
    ("PodAffinityTerm", &["namespaceSelector", "namespaces"]),
    (
        "PodAntiAffinity",
        &[
            "preferredDuringSchedulingIgnoredDuringExecution",
            "requiredDuringSchedulingIgnoredDuringExecution",
        ],
    ),
    ("PodSecurityContext", &["windowsOptions"]),
    (
        "PodSpec",
        &[
            "affinity",
            "automountServiceAccountToken",
            "containers",
            "dnsPolicy",
            "enableServiceLinks",
            "ephemeralContainers",
            "evictionResponders",
            "hostIPC",
            "hostNetwork",
            "hostPID",
            "hostUsers",
            "initContainers",
            "nodeName",
            "nodeSelector",
            "preemptionPolicy",
            "priorityClassName",
            "resourceClaims",
            "resources",
            "runtimeClassName",
            "schedulerName",
            "securityContext",
            "serviceAccountName",
            "tolerations",
            "volumes",
        ],
    ),
    ("Probe", &["httpGet", "tcpSocket"]),
    // The list of the sources is `cel::list`.
    ("ProjectedVolumeSource", &["sources"]),
    ("SecurityContext", &["privileged", "procMount", "windowsOptions"]),
    ("ServiceAccountTokenProjection", &["audience"]),
    ("TCPSocketAction", &["host"]),
    ("VolumeMount", &["mountPath"]),
    ("WeightedPodAffinityTerm", &["podAffinityTerm"]),
];

/// Structures of which a policy lists the fields that pods may have, and these fields. All others are rejected, also those that Kubernetes adds.
const ALLOWED: &[(&str, &str, &[&str])] = &[
    (
        "Volume",
        "v",
        &[
            "configMap",
            "csi",
            "downwardAPI",
            "emptyDir",
            "image",
            "persistentVolumeClaim",
            "projected",
            "secret",
        ],
    ),
    (
        "VolumeProjection",
        "s",
        &["configMap", "downwardAPI", "secret", "serviceAccountToken"],
    ),
];

/// Where another object of the namespace is named, which are all the tenant's, or may be read by its pods.
const OF_NAMESPACE: &str = "objects of the namespace";
/// Where structures are that are in no pod on the host, because of [`ALLOWED`].
const NOT_ALLOWED: &str = "no pod may have the structure";

/// Fields that are not validated, by structure, and why. Structures with the same rules have the same fields here: those of Secrets have a field of
/// ConfigMaps.
const FREE: &[(&str, &[&str], &str)] = &[
    ("CSIVolumeSource", &["nodePublishSecretRef"], OF_NAMESPACE),
    (
        "ClusterTrustBundleProjection",
        &["labelSelector", "name", "optional", "signerName"],
        NOT_ALLOWED,
    ),
    ("ConfigMapEnvSource", &["name"], OF_NAMESPACE),
    ("ConfigMapKeySelector", &["name"], OF_NAMESPACE),
    ("ConfigMapProjection", &["name", "secretName"], OF_NAMESPACE),
    ("ConfigMapVolumeSource", &["name", "secretName"], OF_NAMESPACE),
    ("Container", &["volumeDevices"], "the volumes are validated"),
    ("ContainerPort", &["hostIP"], "has no effect without a port of the host"),
    ("EnvFromSource", &["configMapRef", "secretRef"], OF_NAMESPACE),
    ("EnvVarSource", &["configMapKeyRef", "secretKeyRef"], OF_NAMESPACE),
    ("EphemeralContainer", &["resources"], "API servers reject them"),
    ("EphemeralContainer", &["volumeDevices"], "the volumes are validated"),
    ("EphemeralVolumeSource", &["volumeClaimTemplate"], NOT_ALLOWED),
    ("LocalObjectReference", &["name"], OF_NAMESPACE),
    ("PersistentVolumeClaimVolumeSource", &["claimName"], OF_NAMESPACE),
    (
        "PodAffinityTerm",
        &["labelSelector", "matchLabelKeys", "mismatchLabelKeys"],
        "they select among the pods of the namespace",
    ),
    (
        "PodCertificateProjection",
        &[
            "certificateChainPath",
            "credentialBundlePath",
            "keyPath",
            "keyType",
            "maxExpirationSeconds",
            "signerName",
            "userAnnotations",
        ],
        NOT_ALLOWED,
    ),
    (
        "PodResourceClaim",
        &["resourceClaimName", "resourceClaimTemplateName"],
        OF_NAMESPACE,
    ),
    ("PodSchedulingGroup", &["podGroupName"], OF_NAMESPACE),
    (
        "PodSpec",
        &[
            "dnsConfig",
            "hostAliases",
            "hostname",
            "hostnameOverride",
            "setHostnameAsFQDN",
        ],
        "files and names in the pod",
    ),
    ("PodSpec", &["imagePullSecrets", "schedulingGroup"], OF_NAMESPACE),
    (
        "PodSpec",
        &["overhead", "priority", "serviceAccount"],
        "API servers make them of other fields, and reject other values",
    ),
    (
        "PodSpec",
        &["topologySpreadConstraints"],
        "they count the pods of the namespace",
    ),
    ("ResourceRequirements", &["claims"], "the claims are those of the pod"),
    ("SecretEnvSource", &["name"], OF_NAMESPACE),
    ("SecretKeySelector", &["name"], OF_NAMESPACE),
    ("SecretProjection", &["name", "secretName"], OF_NAMESPACE),
    ("SecretVolumeSource", &["name", "secretName"], OF_NAMESPACE),
    (
        "ServiceAccountTokenProjection",
        &["expirationSeconds"],
        "API servers limit it, and the class lists the audiences",
    ),
    (
        "TopologySpreadConstraint",
        &["labelSelector", "matchLabelKeys"],
        "they select among the pods of the namespace",
    ),
    (
        "VolumeMount",
        &["mountPropagation"],
        "API servers let privileged containers alone reach the node by it",
    ),
];

/// Fields that the syncer does not copy as they are.
fn find_decided(fields: Fields) -> impl Iterator<Item = &'static str> {
    let decided = fields
        .iter()
        .filter(|(_, rule)| !matches!(rule, Rule::Copy | Rule::Within(_)));
    decided.map(|(field, _)| *field)
}

#[test]
fn every_field_that_is_not_copied_is_validated_or_needs_no_validation() {
    let listed: BTreeSet<&str> = ALLOWED.iter().map(|(structure, ..)| *structure).collect();
    let tables = STRUCTURES.iter().filter(|(structure, _)| !listed.contains(structure));
    let decided: BTreeSet<String> = tables
        .flat_map(|(structure, fields)| find_decided(fields).map(move |field| format!("{structure}.{field}")))
        .collect();
    let validated = VALIDATED.iter().map(|(structure, fields)| (*structure, *fields));
    let free = FREE.iter().map(|(structure, fields, _)| (*structure, *fields));
    let all: Vec<String> = { validated.chain(free) }
        .flat_map(|(structure, fields)| fields.iter().map(move |field| format!("{structure}.{field}")))
        .collect();
    let known: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(known.len(), all.len(), "a field is in both tables, or twice in one");
    assert_eq!(known, decided);
}

#[test]
fn expressions_have_the_fields_that_are_validated() {
    let policies = build_policies();
    let expressions: Vec<&str> = { policies.iter() }
        .flat_map(|policy| {
            let variables = policy.variables.iter().map(|(_, expression)| expression.as_str());
            variables.chain({ policy.validations.iter() }.map(|validation| validation.expression.as_str()))
        })
        .collect();
    let is_end = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_alphanumeric());
    let has = |text: &str| {
        let mut found = { expressions.iter() }.flat_map(|expression| {
            expression
                .match_indices(text)
                .map(move |(at, _)| &expression[at + text.len()..])
        });
        found.any(is_end)
    };
    for (structure, fields) in VALIDATED {
        for field in *fields {
            assert!(
                has(&format!(".{field}")) || has(&format!(".?{field}")),
                "{structure}.{field}"
            );
        }
    }
}

#[test]
fn structures_with_an_allow_list_have_no_other_fields() {
    let policies = build_policies();
    let new_pods = policies.iter().find(|policy| policy.name == "berth-new-pods").unwrap();
    for (structure, variable, allowed) in ALLOWED {
        let begin = format!("has({variable}.");
        // The one that is true only of a field that is set.
        let mut lists = { new_pods.validations.iter() }.map(|validation| validation.expression.as_str());
        let list = lists
            .find(|expression| expression.contains(&format!("{begin}configMap) || {begin}secret)")))
            .unwrap();
        let named = list.split(&begin).skip(1).filter_map(|rest| rest.split(')').next());
        let named: BTreeSet<&str> = named.collect();
        let allowed: BTreeSet<&str> = allowed.iter().copied().collect();
        assert_eq!(named, allowed, "{structure}");
        // None of them is one that the syncer denies.
        let (_, fields) = STRUCTURES.iter().find(|(name, _)| name == structure).unwrap();
        for (field, rule) in *fields {
            let is_denied = matches!(rule, Rule::Deny(_));
            assert!(!(is_denied && allowed.contains(field)), "{structure}.{field}");
        }
    }
}
