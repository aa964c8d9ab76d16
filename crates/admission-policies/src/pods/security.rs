//! The Pod Security level `baseline` in all workload namespaces, and the capabilities that a class gives besides. Where a class gives some, the
//! namespace has the level `privileged`, because none allows a single capability, and this policy is all that holds. Elsewhere the host's
//! own check holds as well.
//!
//! The policy does not depend on the level of the namespace: a request that the host checks by the level of a moment ago, or a
//! namespace that has lost its level, opens nothing.
//!
//! The rules are those of `k8s.io/pod-security-admission/policy`, level `baseline`, and a little stricter: other values of `procMount` are not
//! allowed with a user namespace either, and sysctls are those of the oldest version. Host paths are rejected by `berth-new-pods`.

use super::shared_nodes;
use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::{policy_annotations, sync_policy::EXTRA_CAPABILITIES};
use berth_sync_rules::kinds::pod::{BASELINE_CAPABILITIES, SE_LINUX_TYPES, SYSCTLS};

/// Types of seccomp and AppArmor profiles. The first is that of a field that is not set.
const PROFILES: [&str; 2] = ["RuntimeDefault", "Localhost"];
/// Begins the keys of the annotations by which older clients name AppArmor profiles of containers.
const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";
/// The list of containers that come into a pod that runs.
const EPHEMERAL: &str = "ephemeralContainers";
/// All lists of containers.
const CONTAINERS: [&str; 3] = ["containers", "initContainers", EPHEMERAL];

pub(crate) fn build_policy() -> AdmissionPolicy {
    let mut variables = vec![
        cel::tenant_slug_variable(),
        cel::allowed_names_variable("capabilities", policy_annotations::CAPABILITIES),
    ];
    variables.extend(shared_nodes::placement_variables());
    let mut validations = validate_pod();
    for list in CONTAINERS {
        validations.extend([
            validate_security_contexts(list),
            validate_capabilities(list),
            validate_hosts(list),
        ]);
    }
    AdmissionPolicy {
        name: "berth-pod-security",
        description: "Pods of a tenant keep to the Pod Security level baseline, but for capabilities that its class gives.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        // Nothing of this can change later, but for ephemeral containers.
        resource_rules: vec![
            ResourceRule {
                group: "",
                version: "v1",
                resources: &["pods"],
                operations: &["CREATE"],
            },
            ResourceRule {
                group: "",
                version: "v1",
                resources: &["pods/ephemeralcontainers"],
                operations: WRITES,
            },
        ],
        variables,
        validations,
    }
}

fn validate_pod() -> Vec<Validation> {
    vec![
        validation(
            "object.spec.?hostNetwork.orValue(false) == false && object.spec.?hostPID.orValue(false) == false && \
             object.spec.?hostIPC.orValue(false) == false",
            "spec.hostNetwork, hostPID and hostIPC must be false: they reach the node",
        ),
        validation(
            profiles_and_labels("object.spec"),
            "spec.securityContext: profiles, SELinux options and hostProcess must be those of the Pod Security level baseline",
        ),
        validation(
            format!(
                "object.spec.?securityContext.?sysctls.orValue([]).all(s, s.name in {})",
                cel::string_list(SYSCTLS.iter().copied())
            ),
            "spec.securityContext.sysctls must be safe ones, as the Pod Security level baseline lists them",
        ),
        validation(
            format!(
                "object.metadata.?annotations.orValue({{}}).all(k, !k.startsWith('{APP_ARMOR}') || \
                 object.metadata.annotations[k] in ['', 'runtime/default'] || \
                 object.metadata.annotations[k].startsWith('localhost/'))"
            ),
            "annotations of AppArmor must name runtime/default or a profile of the node",
        ),
    ]
}

/// Whether the profiles, SELinux options and Windows options of a pod or of a container are allowed.
fn profiles_and_labels(path: &str) -> String {
    let context = format!("{path}.?securityContext");
    let profiles = cel::string_list(PROFILES);
    let (default, types) = (PROFILES[0], cel::string_list(SE_LINUX_TYPES.iter().copied()));
    format!(
        "{context}.?seccompProfile.?type.orValue('{default}') in {profiles} && \
         {context}.?appArmorProfile.?type.orValue('{default}') in {profiles} && \
         {context}.?seLinuxOptions.?type.orValue('') in {types} && {context}.?seLinuxOptions.?user.orValue('') == '' && \
         {context}.?seLinuxOptions.?role.orValue('') == '' && \
         {context}.?windowsOptions.?hostProcess.orValue(false) == false"
    )
}

fn of_containers(list: &str, expression: &str) -> String {
    format!("object.spec.?{list}.orValue([]).all(c, {expression})")
}

fn validate_security_contexts(list: &str) -> Validation {
    let expression = format!(
        "c.?securityContext.?privileged.orValue(false) == false && \
         c.?securityContext.?procMount.orValue('Default') in ['', 'Default'] && {}",
        profiles_and_labels("c")
    );
    validation(
        of_containers(list, &expression),
        "securityContext of containers must keep to the Pod Security level baseline: not privileged, no other profiles, SELinux options or procMount",
    )
}

/// Capabilities of the class are for pods that select nodes of the tenant's own. An ephemeral container gets none.
fn validate_capabilities(list: &str) -> Validation {
    let baseline = format!("a in {}", cel::string_list(BASELINE_CAPABILITIES.iter().copied()));
    let given = format!(
        " || (variables.ownNodesOnly && a in {} && a in variables.capabilities)",
        cel::string_list(EXTRA_CAPABILITIES)
    );
    let given = if list == EPHEMERAL { "" } else { &given };
    validation(
        of_containers(
            list,
            &format!("c.?securityContext.?capabilities.?add.orValue([]).all(a, {baseline}{given})"),
        ),
        "capabilities.add must be of the Pod Security level baseline, or of the tenant's class in a pod that runs on the tenant's own nodes alone",
    )
}

/// No port of the node, and no host that a kubelet would call.
fn validate_hosts(list: &str) -> Validation {
    let handlers = [
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle.?postStart",
        "lifecycle.?preStop",
    ];
    let calls_pod = handlers.map(|handler| {
        format!("c.?{handler}.?httpGet.?host.orValue('') == '' && c.?{handler}.?tcpSocket.?host.orValue('') == ''")
    });
    let expression = format!(
        "c.?ports.orValue([]).all(p, p.?hostPort.orValue(0) == 0) && {}",
        calls_pod.join(" && ")
    );
    validation(
        of_containers(list, &expression),
        "hostPort of ports, and host of probes and lifecycle handlers, may not be set: they reach the node and its network",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a pod could come in while a class loses the option: checked by the level from before, and by the annotations from after.
    #[test]
    fn only_capabilities_depend_on_the_namespace() {
        let policy = build_policy();
        let reading = policy.validations.iter().filter(|validation| {
            let expression = &validation.expression;
            expression.contains("variables.") || expression.contains("namespaceObject")
        });
        let reading: Vec<&Validation> = reading.collect();
        let expected = ["containers", "initContainers"].map(validate_capabilities);
        assert_eq!(reading, expected.iter().collect::<Vec<_>>());
        assert!(policy.conditions.is_empty());
    }

    /// As in `k8s.io/pod-security-admission/policy`, of 1.37.
    #[test]
    fn every_field_of_the_level_is_validated() {
        let policy = build_policy();
        let all: Vec<&str> = policy
            .validations
            .iter()
            .map(|validation| validation.expression.as_str())
            .collect();
        let all = all.join("\n");
        for field in ["hostNetwork", "hostPID", "hostIPC"] {
            assert!(
                all.contains(&format!("object.spec.?{field}.orValue(false) == false")),
                "{field}"
            );
        }
        let of_context = [
            "seccompProfile.?type",
            "appArmorProfile.?type",
            "seLinuxOptions.?type",
            "seLinuxOptions.?user",
            "seLinuxOptions.?role",
            "windowsOptions.?hostProcess",
        ];
        for field in of_context {
            // In the pod's context, and in that of each list of containers: both paths end alike.
            let count = |path: &str| {
                all.matches(&format!("{path}.?securityContext.?{field}.orValue("))
                    .count()
            };
            assert_eq!((count("object.spec"), count("c")), (1, 1 + CONTAINERS.len()), "{field}");
        }
        for handler in [
            "livenessProbe",
            "readinessProbe",
            "startupProbe",
            "lifecycle.?postStart",
            "lifecycle.?preStop",
        ] {
            for call in ["httpGet", "tcpSocket"] {
                let host = format!("c.?{handler}.?{call}.?host.orValue('') == ''");
                assert_eq!(all.matches(&host).count(), CONTAINERS.len(), "{host}");
            }
        }
        assert!(all.contains(APP_ARMOR) && all.contains("?sysctls"));
    }

    #[test]
    fn a_variable_reads_only_those_before_it() {
        let policy = build_policy();
        let order: Vec<&str> = policy.variables.iter().map(|(name, _)| *name).collect();
        let position = |name: &str| order.iter().position(|known| *known == name).unwrap();
        assert!(position("slug") < position("ownNodesOnly"));
    }

    #[test]
    fn every_kind_of_container_is_validated_and_ephemeral_ones_get_nothing() {
        let policy = build_policy();
        for list in CONTAINERS {
            let of_list = format!("object.spec.?{list}.orValue([]).all(c, ");
            let own = policy.validations.iter();
            let own: Vec<&str> = own
                .map(|validation| validation.expression.as_str())
                .filter(|expression| expression.contains(&of_list))
                .collect();
            assert_eq!(own.len(), 3, "{list}");
            let has = |part: &str| own.iter().any(|expression| expression.contains(part));
            for part in [
                "privileged",
                "procMount",
                "hostPort",
                "tcpSocket",
                "'CHOWN'",
                "hostProcess",
            ] {
                assert!(has(part), "{list}: {part}");
            }
            assert_eq!(has("'IPC_LOCK'"), list != EPHEMERAL, "{list}");
        }
    }

    #[test]
    fn a_capability_of_the_class_is_for_own_nodes_alone() {
        let expression = validate_capabilities("containers").expression;
        assert!(
            expression.ends_with("|| (variables.ownNodesOnly && a in ['IPC_LOCK'] && a in variables.capabilities)))"),
            "{expression}"
        );
    }
}
