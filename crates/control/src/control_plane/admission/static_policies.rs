//! Admission policies that are files of the API server and no objects of the tenant: nobody in the tenant can delete, change or evade
//! them. API servers read such files from Kubernetes 1.37 on.

use super::super::component::FILES;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The configuration of the admission plugin that reads the files. It reads every file of the folder that ends with `.yaml`, `.yml` or
/// `.json`, so no other file of the API server may.
pub(super) fn plugin() -> Value {
    json!({
        "name": "ValidatingAdmissionPolicy",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyConfiguration",
            "staticManifestsDir": FILES,
        },
    })
}

/// Folder of the policies that change objects. Each of the two plugins fails if its folder has policies of the other kind.
const MUTATING: &str = "mutating";

/// The same for the policies that change objects.
pub(super) fn mutating_plugin() -> Value {
    json!({
        "name": "MutatingAdmissionPolicy",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "MutatingAdmissionPolicyConfiguration",
            "staticManifestsDir": format!("{FILES}/{MUTATING}"),
        },
    })
}

/// Adds a file with policies that change objects, and their bindings.
pub(super) fn add_mutating_file(files: &mut BTreeMap<String, String>, name: &str, documents: &[Value]) {
    add_file(files, &format!("{MUTATING}/{name}"), documents);
}

/// A policy that changes objects by a JSON patch. It is evaluated again after webhooks of the tenant have changed the object.
pub(super) fn mutating_policy(
    name: &str,
    constraints: &Value,
    conditions: &[(&str, String)],
    variables: &[Value],
    patch: &str,
) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(name, expression)| json!({"name": name, "expression": expression}))
        .collect();
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "IfNeeded",
            "matchConstraints": constraints,
            "matchConditions": conditions,
            "variables": variables,
            "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}],
        },
    })
}

/// The binding by which such a policy acts.
pub(super) fn mutating_binding(name: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name},
    })
}

/// Adds a file with these policies and bindings.
pub(super) fn add_file(files: &mut BTreeMap<String, String>, name: &str, documents: &[Value]) {
    let documents: Vec<String> = documents.iter().map(Value::to_string).collect();
    files.insert(name.into(), documents.join("\n---\n"));
}

/// A policy with its constraints, variables and validations. API servers accept names that end with `.static.k8s.io` from files only.
pub(super) fn policy(name: &str, constraints: &Value, variables: &[Value], validations: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": constraints,
            "variables": variables,
            "validations": validations,
        },
    })
}

/// The binding by which a policy denies.
pub(super) fn binding(name: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    })
}

/// A rule of the constraints.
pub(super) fn rule(group: &str, operations: &[&str], resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["*"], "operations": operations, "resources": resources, "scope": "*"})
}

/// Whether a request is an update that changes nothing but what every update does, as those by which stored objects are migrated. Who owns
/// the fields is a part of the object: somebody who owned them as well would keep those that their owner gives up.
pub(super) fn changes_nothing() -> String {
    changes_only("['resourceVersion', 'generation']")
}

/// The same, but the fields may have other owners.
pub(super) fn changes_no_content() -> String {
    changes_only("['managedFields', 'resourceVersion', 'generation']")
}

/// Whether a request is an update that changes these fields of the metadata at most.
fn changes_only(fields: &str) -> String {
    let same = |new: &str, old: &str, except: &str| {
        format!(
            "{new}.all(key, key in {except} || (key in {old} && {new}[key] == {old}[key])) && \
             {old}.all(key, key in {except} || key in {new})"
        )
    };
    format!(
        "request.operation == 'UPDATE' && {} && {}",
        same("object", "oldObject", "['metadata']"),
        same("object.metadata", "oldObject.metadata", fields)
    )
}

/// An expression that must be true, and what a team reads if it is not.
pub(super) fn validation(expression: &str, message: &str) -> Value {
    json!({"expression": expression, "message": message, "reason": "Forbidden"})
}
