//! What the API server of a tenant refuses once the tenant stores as much as it may.
//!
//! From 100 percent on it creates nothing more, and ConfigMaps and Secrets cannot grow. From 110 percent on no object can grow. With as
//! many CustomResourceDefinitions as the tenant may have, it creates no more of them. Deletions always work, and so do updates that do not
//! make an object larger, such as those that remove a finalizer.
//!
//! The policies are a file of the API server and no objects of the tenant, so that nobody in the tenant can delete or weaken them, nor
//! evade them under another name: they make no difference between users, except for what the API server needs to start.

use super::component::FILES;
use berth_api::DatastoreUsage;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file. The API server reads every file of its folder with this ending as a policy, so no other file may have it, nor
/// `.yml` or `.json`.
const FILE: &str = "datastore-limit.yaml";
/// Name of the policy on sizes and of its binding. API servers accept names with this ending from files only.
const NAME: &str = "datastore-limit.berth.dev.static.k8s.io";
/// The same for the policy on CustomResourceDefinitions.
const DEFINITIONS_NAME: &str = "definition-limit.berth.dev.static.k8s.io";
/// What a team reads.
const FULL: &str = "the tenant stores as much as its class allows: delete objects that are no longer needed, or ask the \
                    platform team to raise spec.limits.datastoreBytes or datastoreObjects of the class";
/// The same for an update that makes an object larger.
const GROWTH_DENIED: &str = "the tenant stores more than its class allows, so no object can become larger: delete objects that \
                             are no longer needed, or ask the platform team to raise spec.limits.datastoreBytes or \
                             datastoreObjects of the class";
/// The same for a CustomResourceDefinition.
const DEFINITIONS_FULL: &str = "the tenant has as many CustomResourceDefinitions as its class allows: delete those that are no \
                                longer needed, or ask the platform team to raise spec.limits.customResourceDefinitions of the \
                                class";
/// Fields in which ConfigMaps and Secrets have their content.
const CONTENT: [&str; 2] = ["data", "binaryData"];

/// What an API server creates for itself when it starts. Without it, it ends or never becomes ready, and an earlier one without the policy
/// would go on. Whoever may impersonate it can create these kinds as well.
const BOOTSTRAP: &str = "request.userInfo.username == 'system:apiserver' && (request.resource.group in \
                         ['rbac.authorization.k8s.io', 'flowcontrol.apiserver.k8s.io', 'scheduling.k8s.io', 'networking.k8s.io'] \
                         || request.resource.resource in ['namespaces', 'services'])";
/// Bytes that one of these objects may have: several times as many as the largest has.
const MAX_BOOTSTRAP: u32 = 32 << 10;
/// Bytes up to which an object may grow by updates in any case, without status and managed fields: Leases are renewed, and small values
/// change. Together with the following two this is what an object can gain, so it is small.
const MAX_CONTENT: u32 = 2 << 10;
/// The same for the status: that of a pod with several containers fits.
const MAX_STATUS: u32 = 8 << 10;
/// The same for managed fields: each writer of an object has an entry there.
const MAX_MANAGED_FIELDS: u32 = 8 << 10;
/// The same for an object that is being deleted: who removes a finalizer may be a new writer.
const MAX_MANAGED_FIELDS_IN_DELETION: u32 = 16 << 10;
/// Leases of components that delete what belongs to deleted objects. If one is gone, nobody could take over.
const LEADERS: &str = "request.resource.group == 'coordination.k8s.io' && request.resource.resource == 'leases' && \
                       request.namespace == 'kube-system' && object.metadata.name in ['kube-controller-manager', \
                       'kube-scheduler']";
/// Bindings of pods to nodes, without anything that the API server would add to the pod.
const PLAIN_BINDING: &str = "request.resource.resource == 'pods' && request.subResource == 'binding' && \
                             !has(object.metadata.annotations) && (!has(object.metadata.labels) || \
                             size(object.metadata.labels) <= 8)";

/// Adds the policies that a usage calls for to the files of an API server. Returns the configuration of the admission plugin that
/// reads them; none if there is no need.
pub(super) fn for_api_server(usage: DatastoreUsage, files: &mut BTreeMap<String, String>) -> Option<Value> {
    let mut documents = Vec::new();
    if usage.full || usage.growth_denied {
        documents.extend([size_policy(usage.growth_denied), binding(NAME)]);
    }
    if usage.definitions_full {
        documents.extend([definition_policy(), binding(DEFINITIONS_NAME)]);
    }
    if documents.is_empty() {
        return None;
    }
    let documents: Vec<String> = documents.iter().map(Value::to_string).collect();
    files.insert(FILE.into(), documents.join("\n---\n"));
    Some(json!({
        "name": "ValidatingAdmissionPolicy",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyConfiguration",
            "staticManifestsDir": FILES,
        },
    }))
}

fn rule(group: &str, operation: &str, resources: &[&str]) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["*"], "operations": [operation], "resources": resources, "scope": "*"})
}

fn size_policy(growth_denied: bool) -> Value {
    let create = rule("*", "CREATE", &["*"]);
    let (included, excluded) = if growth_denied {
        let binding = rule("", "CREATE", &["pods/binding"]);
        // With every subresource.
        let update = rule("*", "UPDATE", &["*/*"]);
        (vec![create, binding, update], Vec::new())
    } else {
        let update = rule("", "UPDATE", &["configmaps", "secrets"]);
        // Without Leases nodes are lost, and no controller manager becomes the leader.
        let leases = rule("coordination.k8s.io", "CREATE", &["leases"]);
        (vec![create, update], vec![leases])
    };
    let mut validations = vec![validation(&creation(growth_denied), FULL), validation(&values(), FULL)];
    if growth_denied {
        validations.extend(growth().iter().map(|expression| validation(expression, GROWTH_DENIED)));
    }
    policy(NAME, &included, &excluded, &validations)
}

fn definition_policy() -> Value {
    let create = rule("apiextensions.k8s.io", "CREATE", &["customresourcedefinitions"]);
    let denied = validation("false", DEFINITIONS_FULL);
    policy(DEFINITIONS_NAME, &[create], &[], &[denied])
}

fn policy(name: &str, included: &[Value], excluded: &[Value], validations: &[Value]) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent",
                "resourceRules": included,
                "excludeResourceRules": excluded,
            },
            "validations": validations,
        },
    })
}

fn binding(name: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    })
}

fn validation(expression: &str, message: &str) -> Value {
    json!({"expression": expression, "message": message, "reason": "Forbidden"})
}

/// What is created in spite of the policy: what the API server needs to start. Where no object may grow, Leases are not exempt
/// as a whole any more, and bindings must add nothing to their pods.
fn creation(growth_denied: bool) -> String {
    let bootstrap = bootstrap();
    if growth_denied {
        let leader = format!("({LEADERS} && {} <= {MAX_CONTENT})", content_size("object"));
        format!("request.operation != 'CREATE' || {bootstrap} || {leader} || ({PLAIN_BINDING})")
    } else {
        format!("request.operation != 'CREATE' || {bootstrap}")
    }
}

fn bootstrap() -> String {
    format!("({BOOTSTRAP} && {} <= {MAX_BOOTSTRAP})", content_size("object"))
}

/// Updates of ConfigMaps and Secrets: no value is new or longer.
fn values() -> String {
    let not_larger = CONTENT.map(|field| {
        format!(
            "(!has(object.{field}) || (has(oldObject.{field}) && object.{field}.all(key, key in oldObject.{field} && \
             size(object.{field}[key]) <= size(oldObject.{field}[key]))))"
        )
    });
    format!(
        "request.operation != 'UPDATE' || request.resource.group != '' || !(request.resource.resource in ['configmaps', \
         'secrets']) || ({})",
        not_larger.join(" && ")
    )
}

/// Updates of any object: each part is small, or not larger than before.
fn growth() -> [String; 3] {
    let fits = |size: &dyn Fn(&str) -> String, max: u32| {
        let (new, old) = (size("object"), size("oldObject"));
        format!("{new} <= {max} || {new} <= {old}")
    };
    let update = "request.operation != 'UPDATE'";
    let in_deletion = format!(
        "(has(oldObject.metadata.deletionTimestamp) && {} <= {MAX_MANAGED_FIELDS_IN_DELETION})",
        field_size("object", "metadata.managedFields")
    );
    [
        format!("{update} || {} || {}", bootstrap(), fits(&content_size, MAX_CONTENT)),
        format!("{update} || {}", fits(&|of: &str| field_size(of, "status"), MAX_STATUS)),
        format!(
            "{update} || {} || {in_deletion}",
            fits(&|of: &str| field_size(of, "metadata.managedFields"), MAX_MANAGED_FIELDS)
        ),
    ]
}

/// The bytes of an object as text, without its status and without what every update changes.
fn content_size(of: &str) -> String {
    let fields = format!("{of}.map(key, !(key in ['metadata', 'status']), [key, {of}[key]])");
    let metadata = format!(
        "{of}.metadata.map(key, !(key in ['managedFields', 'resourceVersion', 'generation']), [key, {of}.metadata[key]])"
    );
    format!("size(bytes('%s'.format([[{fields}, {metadata}]])))")
}

/// The bytes of one field as text; 0 if it is missing.
fn field_size(of: &str, field: &str) -> String {
    format!("(has({of}.{field}) ? size(bytes('%s'.format([{of}.{field}]))) : 0)")
}
