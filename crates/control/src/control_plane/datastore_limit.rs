//! What the API server of a tenant does once the tenant stores as much as it may: it creates nothing more.
//!
//! The policy is a file of the API server and no object of the tenant, so that nobody in the tenant can delete or weaken it, nor
//! evade it under another name: it makes no difference between users. Deletions, status updates and requests of pods that run
//! go on.

use super::component::FILES;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file. The API server reads every file of its folder with this ending as a policy, so no other file may have it, nor
/// `.yml` or `.json`.
const FILE: &str = "datastore-limit.yaml";
/// Name of the policy and of its binding. API servers accept names with this ending from files only.
const NAME: &str = "datastore-limit.berth.dev.static.k8s.io";
/// What a team reads.
const MESSAGE: &str = "the tenant stores as much as its class allows: delete objects that are no longer needed, or ask the \
                       platform team to raise spec.limits.datastoreBytes or datastoreObjects of the class";
/// Fields in which ConfigMaps and Secrets have their content.
const CONTENT: [&str; 2] = ["data", "binaryData"];

/// What an API server creates for itself when it starts. Without it, it ends or never becomes ready, and an earlier one without the policy
/// would go on. Whoever may impersonate it can create these kinds as well.
const BOOTSTRAP: &str = "request.userInfo.username == 'system:apiserver' && (request.resource.group in \
                         ['rbac.authorization.k8s.io', 'flowcontrol.apiserver.k8s.io', 'scheduling.k8s.io', 'networking.k8s.io'] \
                         || request.resource.resource in ['namespaces', 'services'])";

/// Adds the policy to the files of an API server. Returns the configuration of the admission plugin that reads it.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) -> Value {
    let documents = [policy(), binding()].map(|document| document.to_string());
    files.insert(FILE.into(), documents.join("\n---\n"));
    json!({
        "name": "ValidatingAdmissionPolicy",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyConfiguration",
            "staticManifestsDir": FILES,
        },
    })
}

fn policy() -> Value {
    let rule = |group: &str, operation: &str, resources: &[&str]| {
        json!({
            "apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": resources, "scope": "*",
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": NAME},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": [
                    rule("*", "CREATE", &["*"]),
                    rule("", "UPDATE", &["configmaps", "secrets"]),
                ],
                // Without Leases nodes are lost, and no controller manager becomes the leader.
                "excludeResourceRules": [rule("coordination.k8s.io", "CREATE", &["leases"])],
            },
            "validations": [{
                "expression": allowed(),
                "message": MESSAGE,
                "reason": "Forbidden",
            }],
        },
    })
}

/// What is allowed in spite of the policy: what the API server needs to start, and updates of ConfigMaps and Secrets in which no value
/// is new or longer.
fn allowed() -> String {
    let not_larger = CONTENT.map(|field| {
        format!(
            "(!has(object.{field}) || (has(oldObject.{field}) && object.{field}.all(key, key in oldObject.{field} && \
             size(object.{field}[key]) <= size(oldObject.{field}[key]))))"
        )
    });
    let update = format!("request.operation == 'UPDATE' && {}", not_larger.join(" && "));
    format!("({BOOTSTRAP}) || ({update})")
}

fn binding() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": NAME},
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    })
}
