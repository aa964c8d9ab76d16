//! Events about objects of tenants. No ResourceQuota counts them, and tenants decide on their messages: a kubelet repeats the output of
//! probes and the commands of containers, as long as they are. The API `events.k8s.io` takes messages of at most 1,024 bytes, the older one of any
//! length. Both are limited to that here, and so is the rest of an Event, which somebody could fill who has the credential of a kubelet.
//!
//! A client of Kubernetes drops an Event that is rejected. Where the host can change requests, it cuts long messages before, so that their
//! beginning can be read.

use super::{
    AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, build_metadata, cel, match_condition, room,
};
use k8s_openapi::{
    api::admissionregistration::v1::{
        JSONPatch, MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
        MutatingAdmissionPolicyBindingSpec, MutatingAdmissionPolicySpec, Mutation, Variable,
    },
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};

/// Name of the policy that cuts messages.
const CUTS_MESSAGES: &str = "berth-event-messages";
/// Bytes of a message.
const MESSAGE: u32 = 1024;
/// Bytes of an Event with its message, as text. One of a kubelet has about 1,100 without the message, if names are short.
const EVENT: u32 = 8 * 1024;
/// The end of a message that was cut.
const CUT: char = '…';
/// Characters that may be kept of a message, most first: those of most languages take one to three bytes, and none takes more than four.
const KEPT: [u32; 7] = [1021, 1000, 900, 700, 500, 340, 255];

pub(super) fn build_policy() -> AdmissionPolicy {
    let unless_bypassed = |Validation { expression, message }: Validation| Validation {
        expression: format!("{expression} || {}", cel::may_bypass_policies()),
        message,
    };
    AdmissionPolicy {
        name: "berth-event-sizes",
        description: "Events about objects of tenants are small.",
        scope: Scope::TenantNamespaces,
        subjects: Subjects::EveryoneAskedLast,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![events_of(""), events_of("events.k8s.io")],
        variables: Vec::new(),
        validations: vec![
            unless_bypassed(room::at_most(
                message,
                MESSAGE,
                "the message of an Event about an object of a tenant may have at most 1,024 bytes",
            )),
            unless_bypassed(room::at_most(
                room::whole,
                EVENT,
                "an Event about an object of a tenant may have at most 8,192 bytes",
            )),
        ],
    }
}

/// Cuts messages that would be rejected, of all users. If it cannot, they are rejected.
pub(super) fn build_mutating_policy() -> (MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding) {
    let metadata = build_metadata(
        CUTS_MESSAGES,
        "Messages of Events about objects of tenants are cut where they are too long.",
    );
    let scope = Scope::TenantNamespaces;
    let policy = MutatingAdmissionPolicy {
        metadata: metadata.clone(),
        spec: Some(MutatingAdmissionPolicySpec {
            failure_policy: Some("Ignore".into()),
            reinvocation_policy: Some("IfNeeded".into()),
            match_constraints: Some(MatchResources {
                // The other API rejects what is longer.
                match_policy: Some("Exact".into()),
                namespace_selector: Some(scope.namespace_selector()),
                object_selector: Some(LabelSelector::default()),
                resource_rules: Some(vec![events_of("").build(scope)]),
                exclude_resource_rules: None,
            }),
            match_conditions: Some(vec![match_condition(
                "is-too-long",
                format!("size(bytes(object.?message.orValue(''))) > {MESSAGE}"),
            )]),
            variables: Some(vec![Variable {
                name: "kept".into(),
                expression: kept(),
            }]),
            mutations: Some(vec![Mutation {
                patch_type: "JSONPatch".into(),
                json_patch: Some(JSONPatch {
                    expression: Some(format!(
                        "[JSONPatch{{op: 'replace', path: '/message', value: object.message.substring(0, variables.kept) + '{CUT}'}}]"
                    )),
                }),
                apply_configuration: None,
            }]),
            param_kind: None,
        }),
    };
    let binding = MutatingAdmissionPolicyBinding {
        metadata,
        spec: Some(MutatingAdmissionPolicyBindingSpec {
            policy_name: Some(CUTS_MESSAGES.into()),
            ..MutatingAdmissionPolicyBindingSpec::default()
        }),
    };
    (policy, binding)
}

const fn events_of(group: &'static str) -> ResourceRule {
    ResourceRule {
        group,
        version: "v1",
        resources: &["events"],
        operations: WRITES,
    }
}

/// The message of an Event of either API.
fn message(event: &str) -> String {
    format!("bytes({event}.?message.orValue('') + {event}.?note.orValue(''))")
}

/// How many characters of a message that is too long leave room for its end.
fn kept() -> String {
    let lengths = KEPT.map(|length| length.to_string()).join(", ");
    let room = MESSAGE as usize - CUT.len_utf8();
    format!(
        "[{lengths}].filter(n, n <= size(object.message) && size(bytes(object.message.substring(0, n))) <= {room})[0]"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the expression of [`kept`] selects for a text.
    fn kept_of(text: &str) -> Option<usize> {
        let room = MESSAGE as usize - CUT.len_utf8();
        let bytes = |length: usize| text.chars().take(length).map(char::len_utf8).sum::<usize>();
        let mut lengths = KEPT.into_iter().map(|length| length as usize);
        lengths.find(|length| *length <= text.chars().count() && bytes(*length) <= room)
    }

    #[test]
    fn whatever_is_too_long_can_be_cut() {
        for character in ['a', 'é', '漢', '🦀'] {
            // The shortest that is too long.
            let text: String = std::iter::repeat_n(character, MESSAGE as usize / character.len_utf8() + 1).collect();
            assert!(text.len() > MESSAGE as usize);
            let kept = kept_of(&text).map(|length| length * character.len_utf8());
            assert!(
                kept.is_some_and(|bytes| (1000..=1021).contains(&bytes)),
                "{character}: {kept:?}"
            );
        }
        let mixed = format!("→{}", "a".repeat(2000));
        assert_eq!(kept_of(&mixed), Some(1000), "one character costs little");
    }

    #[test]
    fn messages_of_both_apis_are_counted_in_bytes() {
        let policy = build_policy();
        let [message, _] = policy.validations.as_slice() else {
            panic!("{policy:?}")
        };
        let counted = "size(bytes(dyn(object).?message.orValue('') + dyn(object).?note.orValue(''))) <= 1024 || (oldObject != null && ";
        assert!(message.expression.starts_with(counted), "{}", message.expression);
    }

    #[test]
    fn what_is_not_cut_is_rejected() {
        let (policy, binding) = build_mutating_policy();
        let spec = policy.spec.unwrap();
        assert_eq!(spec.failure_policy.as_deref(), Some("Ignore"));
        let conditions = spec.match_conditions.unwrap();
        assert_eq!(
            conditions[0].expression,
            "size(bytes(object.?message.orValue(''))) > 1024"
        );
        let mutations = spec.mutations.unwrap();
        let patch = mutations[0].json_patch.as_ref().unwrap();
        assert!(patch.expression.as_deref().unwrap().ends_with(" + '…'}]"), "{patch:?}");
        assert_eq!(binding.spec.unwrap().policy_name, policy.metadata.name);
        // In the same namespaces.
        let checked = build_policy().build_policy().spec.unwrap().match_constraints.unwrap();
        let cut = spec.match_constraints.unwrap();
        assert_eq!(cut.namespace_selector, checked.namespace_selector);
    }
}
