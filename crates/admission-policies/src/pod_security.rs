//! The Pod Security level `baseline`, with the capabilities that a class gives besides, for the workload namespaces of such classes: they have the
//! level `privileged`, because none allows a single capability. In all others the host's own check holds.
//!
//! The rules are those of `k8s.io/pod-security-admission/policy`, level `baseline`. Host paths are rejected by `berth-new-pods` in every
//! workload namespace.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, shared_nodes, validation};
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

pub(super) fn build_policy() -> AdmissionPolicy {
    let mut variables = vec![
        cel::tenant_slug_variable(),
        cel::allowed_names_variable("capabilities", policy_annotations::CAPABILITIES),
        ("isReplaced", "variables.capabilities.size() > 0".into()),
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
        description: "Where a class gives capabilities, pods keep to the Pod Security level baseline otherwise.",
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

/// What holds in namespaces of classes that give capabilities.
fn where_replaced(expression: &str, message: &'static str) -> Validation {
    validation(format!("!variables.isReplaced || ({expression})"), message)
}

fn validate_pod() -> Vec<Validation> {
    vec![
        where_replaced(
            "object.spec.?hostNetwork.orValue(false) == false && object.spec.?hostPID.orValue(false) == false && \
             object.spec.?hostIPC.orValue(false) == false",
            "spec.hostNetwork, hostPID and hostIPC must be false: they reach the node",
        ),
        where_replaced(
            &profiles_and_labels("object.spec"),
            "spec.securityContext: profiles, SELinux options and hostProcess must be those of the Pod Security level baseline",
        ),
        where_replaced(
            &format!(
                "object.spec.?securityContext.?sysctls.orValue([]).all(s, s.name in {})",
                cel::string_list(SYSCTLS.iter().copied())
            ),
            "spec.securityContext.sysctls must be safe ones, as the Pod Security level baseline lists them",
        ),
        where_replaced(
            &format!(
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
    where_replaced(
        &of_containers(list, &expression),
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
    where_replaced(
        &of_containers(
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
    where_replaced(
        &of_containers(list, &expression),
        "hostPort of ports, and host of probes and lifecycle handlers, may not be set: they reach the node and its network",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_validated_where_the_hosts_own_check_holds() {
        let policy = build_policy();
        for validation in &policy.validations {
            let expression = &validation.expression;
            assert!(expression.starts_with("!variables.isReplaced || ("), "{expression}");
        }
        let order: Vec<&str> = policy.variables.iter().map(|(name, _)| *name).collect();
        let position = |name: &str| order.iter().position(|known| *known == name).unwrap();
        // A variable may read only those before it.
        assert!(position("capabilities") < position("isReplaced") && position("slug") < position("ownNodesOnly"));
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
            expression.ends_with("|| (variables.ownNodesOnly && a in ['IPC_LOCK'] && a in variables.capabilities))))"),
            "{expression}"
        );
    }
}
