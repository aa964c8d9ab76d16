//! The tables against the API servers' own schemas: every field of every structure of a pod, in every supported
//! version, has a rule, and no rule is for a field that no version has. The schemas are kept in `schemas/`; the
//! end-to-end tests compare them with running servers and update them with `BERTH_UPDATE_SCHEMAS=1`.

use super::super::{
    affinity, claims, container, environment, scheduling, security, spec, tables::*, volume_claims, volumes,
};
use crate::translation::fields::{Fields, Rule};
use std::collections::{BTreeMap, BTreeSet};

/// Fields and their types, by the name of the structure: `string`, `[Container]`, `{Quantity}`…
pub type Types = BTreeMap<String, BTreeMap<String, String>>;

/// The schemas of all supported versions.
pub fn schemas() -> [Types; 2] {
    [
        include_str!("../../../../schemas/pod-v1.36.4.json"),
        include_str!("../../../../schemas/pod-v1.37.1.json"),
    ]
    .map(|text| serde_json::from_str(text).unwrap())
}

const LOCAL_OBJECT: Fields = &[("name", Rule::Rewrite)];

const TABLES: &[(&str, Fields)] = &[
    ("Affinity", affinity::AFFINITY),
    ("AppArmorProfile", PROFILE),
    ("CSIVolumeSource", volume_claims::INLINE),
    ("Capabilities", CAPABILITIES),
    ("ClusterTrustBundleProjection", TRUST),
    ("ConfigMapEnvSource", OBJECT_REF),
    ("ConfigMapKeySelector", OBJECT_REF),
    ("ConfigMapProjection", FILES),
    ("ConfigMapVolumeSource", FILES),
    ("Container", container::CONTAINER),
    ("ContainerPort", container::PORT),
    ("ContainerResizePolicy", RESIZE_POLICY),
    ("ContainerRestartRule", RESTART_RULE),
    ("ContainerRestartRuleOnExitCodes", EXIT_CODES),
    ("DownwardAPIProjection", DOWNWARD),
    ("DownwardAPIVolumeFile", DOWNWARD_ITEM),
    ("DownwardAPIVolumeSource", DOWNWARD),
    ("EmptyDirVolumeSource", EMPTY_DIR),
    ("EphemeralVolumeSource", volume_claims::EPHEMERAL),
    ("EnvFromSource", environment::ENV_FROM),
    ("EnvVar", environment::VARIABLE),
    ("EnvVarSource", environment::SOURCE),
    ("EphemeralContainer", container::CONTAINER),
    ("ExecAction", EXEC),
    ("FileKeySelector", FILE_KEY_REF),
    ("GRPCAction", GRPC),
    ("HTTPGetAction", container::ENDPOINT),
    ("HTTPHeader", HTTP_HEADER),
    ("HostAlias", HOST_ALIAS),
    ("ImageVolumeSource", IMAGE),
    ("KeyToPath", KEY_TO_PATH),
    ("LabelSelector", LABEL_SELECTOR),
    ("LabelSelectorRequirement", REQUIREMENT),
    ("Lifecycle", container::LIFECYCLE),
    ("LifecycleHandler", container::HANDLER),
    ("LocalObjectReference", LOCAL_OBJECT),
    ("NodeAffinity", NODE_AFFINITY),
    ("NodeSelector", NODE_SELECTOR),
    ("NodeSelectorRequirement", REQUIREMENT),
    ("NodeSelectorTerm", NODE_TERM),
    ("ObjectFieldSelector", FIELD_REF),
    ("PersistentVolumeClaimVolumeSource", volume_claims::CLAIM),
    ("PodAffinity", affinity::PODS),
    ("PodAffinityTerm", affinity::TERM),
    ("PodAntiAffinity", affinity::PODS),
    ("PodDNSConfig", DNS_CONFIG),
    ("PodDNSConfigOption", DNS_OPTION),
    ("PodOS", OS),
    ("PodReadinessGate", READINESS_GATE),
    ("PodResourceClaim", claims::CLAIM),
    ("PodSchedulingGate", SCHEDULING_GATE),
    ("PodCertificateProjection", CERTIFICATE),
    ("PodSchedulingGroup", scheduling::GROUP),
    ("PodSecurityContext", security::POD),
    ("PodSpec", spec::SPEC),
    ("PreferredSchedulingTerm", PREFERRED_NODE_TERM),
    ("Probe", container::PROBE),
    ("ProjectedVolumeSource", PROJECTED),
    ("ResourceClaim", claims::OF_CONTAINER),
    ("ResourceFieldSelector", RESOURCE_FIELD_REF),
    ("ResourceRequirements", container::RESOURCES),
    ("SELinuxOptions", SE_LINUX),
    ("SeccompProfile", PROFILE),
    ("SecretEnvSource", OBJECT_REF),
    ("SecretKeySelector", OBJECT_REF),
    ("SecretProjection", FILES),
    ("SecretVolumeSource", FILES),
    ("SecurityContext", security::CONTAINER),
    ("ServiceAccountTokenProjection", TOKEN),
    ("SleepAction", SLEEP),
    ("Sysctl", SYSCTL),
    ("TCPSocketAction", container::ENDPOINT),
    ("Toleration", TOLERATION),
    ("TopologySpreadConstraint", affinity::SPREAD),
    ("Volume", volumes::VOLUME),
    ("VolumeDevice", container::DEVICE),
    ("VolumeMount", container::MOUNT),
    ("VolumeProjection", PROJECTION),
    ("WeightedPodAffinityTerm", affinity::WEIGHTED),
];

fn table(structure: &str) -> Option<Fields> {
    TABLES
        .iter()
        .find(|(name, _)| *name == structure)
        .map(|(_, fields)| *fields)
}

/// The structure in a field's type: `[Container]` → `Container`.
pub fn structure(kind: &str) -> &str {
    kind.trim_matches(['[', ']', '{', '}'])
}

#[test]
fn every_field_of_every_version_has_a_rule() {
    let mut wrong = BTreeSet::new();
    for types in schemas() {
        for (name, fields) in TABLES {
            for (field, kind) in types.get(*name).into_iter().flatten() {
                let inner = types.contains_key(structure(kind)).then(|| table(structure(kind)));
                let rule = fields.iter().find(|(known, _)| known == field).map(|(_, rule)| *rule);
                let problem = match (rule, inner) {
                    (None, _) => "has no rule",
                    (Some(Rule::Copy), Some(_)) => "is copied with everything below it",
                    (Some(Rule::Within(used)), Some(Some(meant))) if used == meant => continue,
                    (Some(Rule::Within(_)), _) => "is checked by another structure's table",
                    (Some(Rule::Rewrite), Some(None)) => "is made anew from a structure without table",
                    _ => continue,
                };
                wrong.insert(format!("{name}.{field} {problem}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn no_rule_is_about_a_field_that_does_not_exist() {
    let schemas = schemas();
    for (name, fields) in TABLES {
        let sharing = TABLES.iter().filter(|(_, other)| other == fields);
        let known: BTreeSet<&str> = sharing
            .flat_map(|(name, _)| schemas.iter().filter_map(move |types| types.get(*name)))
            .flat_map(|fields| fields.keys().map(String::as_str))
            .collect();
        for (field, _) in *fields {
            assert!(known.contains(field), "{name}.{field}");
        }
    }
}
