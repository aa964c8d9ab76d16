//! Environment variables by which container runtimes give devices of the node: only those that the tenant's class lists, in
//! containers, and as keys of the ConfigMaps and Secrets that containers take variables from.
//!
//! The rules are those of `berth_sync_rules::translation::device_variables`, from the same lists.

use super::WAS_THERE;
use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, validation};
use berth_api::policy_annotations;
use berth_sync_rules::kinds::pod::DEVICE_MOUNTS;
use berth_sync_rules::translation::device_variables::{
    CUDA_VERSION, DENIED_NAMES, DENIED_PREFIX, HARMLESS_INFIX, HARMLESS_NAMES, HARMLESS_PREFIXES, HARMLESS_SUFFIXES,
    HARMLESS_VISIBLE_DEVICES, NO_DEVICE, NVIDIA, VISIBLE_DEVICES, VISIBLE_DEVICES_KEY, cut_visible_devices,
};

/// Shown for each denied variable.
const MESSAGE: &str = "environment variables may not choose devices: the scheduler assigns them";

/// Variable `deviceVariables`: what the tenant's class lists.
pub(crate) fn given_variables() -> (&'static str, String) {
    cel::allowed_names_variable("deviceVariables", policy_annotations::DEVICE_VARIABLES)
}

/// No variable of the containers in a list of a pod's spec chooses devices, by its name or by a prefix for keys. Those of a container that
/// exists cannot change, and stay if the class no longer lists them: what closes the pod must reach it.
pub(crate) fn validate_containers(containers: &str) -> Validation {
    let no_device = cel::string_list(NO_DEVICE.iter().copied());
    let exists = if containers == "ephemeralContainers" {
        WAS_THERE
    } else {
        "oldObject != null"
    };
    validation(
        format!(
            "object.spec.?{containers}.orValue([]).all(c, {exists} || (c.?env.orValue([]).all(e, !{} || (!has(e.valueFrom) && \
             (e.?value.orValue('') == '' || (e.name != '{CUDA_VERSION}' && e.value in {no_device})))) && \
             c.?envFrom.orValue([]).all(f, !{})))",
            is_denied("e.name"),
            is_completed("f.?prefix.orValue('')"),
        ),
        MESSAGE,
    )
}

/// No mount of the containers in a list of a pod's spec is one that runtimes take for a device: those are chosen by the scheduler as well.
pub(crate) fn validate_mounts(containers: &str) -> Validation {
    validation(
        format!(
            "object.spec.?{containers}.orValue([]).all(c, \
             c.?volumeMounts.orValue([]).all(m, !m.mountPath.contains('{DEVICE_MOUNTS}')))"
        ),
        "volumeMounts may not choose devices by their mountPath: the scheduler assigns them",
    )
}

/// No key of a ConfigMap or Secret is the name of such a variable.
pub(crate) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-variable-sources",
        description: "ConfigMaps and Secrets of a tenant have no keys that choose devices as environment variables.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["configmaps", "secrets"],
            operations: WRITES,
        }],
        variables: vec![given_variables()],
        validations: vec![validation(
            format!(
                "object.?data.orValue({{}}).all(k, k != '{VISIBLE_DEVICES_KEY}' && !{})",
                is_denied("k")
            ),
            MESSAGE,
        )],
    }
}

/// Whether a variable is denied. The regular expression is the most expensive part, and only names that need it get there.
fn is_denied(name: &str) -> String {
    let names = HARMLESS_NAMES.join("|");
    let prefixes = HARMLESS_PREFIXES.join("|");
    let suffixes = HARMLESS_SUFFIXES.join("|");
    let of_libraries = HARMLESS_VISIBLE_DEVICES.join("|");
    format!(
        "((({name}.endsWith('{VISIBLE_DEVICES}') && !{name}.matches('(^|_)({of_libraries})$')) || \
         ({name}.startsWith('{NVIDIA}') && \
         !{name}.matches('^({names})$|^({prefixes})|({suffixes})$|{HARMLESS_INFIX}')) || \
         {name}.startsWith('{DENIED_PREFIX}') || {name} in {}) && !({name} in variables.deviceVariables))",
        cel::string_list(DENIED_NAMES.iter().copied())
    )
}

/// Whether a key with this prefix could become a denied variable.
fn is_completed(prefix: &str) -> String {
    let harmless = HARMLESS_PREFIXES.join("|");
    let begins = |whole: &str| format!("'{whole}'.startsWith({prefix}) || {prefix}.startsWith('{whole}')");
    let cuts: Vec<&str> = cut_visible_devices().collect();
    format!(
        "({prefix} != '' && ((!{prefix}.matches('^({harmless})') && ({} || {} || \
         {}.exists(n, n.startsWith({prefix})))) || ({prefix}.matches('({})$') && !{}.exists(n, n.startsWith({prefix})))))",
        begins(NVIDIA),
        begins(DENIED_PREFIX),
        cel::string_list(DENIED_NAMES.iter().copied()),
        cuts.join("|"),
        cel::string_list(HARMLESS_VISIBLE_DEVICES.iter().copied())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lists are put into expressions as they are.
    #[test]
    fn names_need_no_quotes() {
        let lists = [
            HARMLESS_NAMES,
            HARMLESS_PREFIXES,
            HARMLESS_SUFFIXES,
            HARMLESS_VISIBLE_DEVICES,
            DENIED_NAMES,
        ];
        let single = [
            NVIDIA,
            DENIED_PREFIX,
            HARMLESS_INFIX,
            CUDA_VERSION,
            VISIBLE_DEVICES,
            VISIBLE_DEVICES_KEY,
        ];
        for name in lists.iter().copied().flatten().chain(&single) {
            let is_plain = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
            assert!(!name.is_empty() && name.bytes().all(is_plain), "{name}");
        }
        assert!(HARMLESS_PREFIXES.iter().all(|prefix| prefix.starts_with(NVIDIA)));
    }

    #[test]
    fn every_list_of_containers_and_every_source_is_checked() {
        let pods = crate::pods::build_policies();
        let pods = pods.iter().find(|policy| policy.name == "berth-pods").unwrap();
        for containers in ["containers", "initContainers", "ephemeralContainers"] {
            let expected = validate_containers(containers);
            assert!(pods.validations.contains(&expected), "{containers}");
            for part in [
                "env.orValue",
                "envFrom.orValue",
                "variables.deviceVariables",
                "'NVIDIA_'",
                "'_VISIBLE_DEVICES'",
                "'CUDA_VERSION'",
            ] {
                assert!(expected.expression.contains(part), "{part}");
            }
        }
        assert!(pods.variables.contains(&given_variables()));
        let new_pods = crate::pods::build_policies();
        let new_pods = new_pods.iter().find(|policy| policy.name == "berth-new-pods").unwrap();
        for containers in ["containers", "initContainers"] {
            let expected = validate_mounts(containers);
            assert!(new_pods.validations.contains(&expected), "{containers}");
        }
        let of_ephemeral = validate_mounts("ephemeralContainers").expression;
        let is_in = |validation: &Validation| validation.expression.ends_with(&format!(" || {of_ephemeral}"));
        assert!(pods.validations.iter().any(is_in));
        let sources = build_policy();
        assert_eq!(sources.resource_rules[0].resources, ["configmaps", "secrets"]);
    }
}
