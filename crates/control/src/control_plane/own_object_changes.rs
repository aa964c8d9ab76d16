//! What an API server needs to start: nobody in the tenant deletes or changes it.
//!
//! An API server creates and corrects its own objects when it starts, as a user like any other: admission policies and webhooks of the tenant
//! can deny it that. Then it is never ready, and the one before it goes on: with the limits and the authorities that it has. While all of
//! its objects are there as it wants them, it writes none.

use super::{
    certificates::CONTROL_USER,
    own_objects::OWN,
    platform_objects::{AGGREGATION, API_SERVER_USER},
    static_policies::{add_file, binding, policy, rule, validation},
    syncer::TENANT_USER,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file.
const FILE: &str = "own-objects.yaml";
/// Name of the policy and of its binding.
const NAME: &str = "own-objects.berth.dev.static.k8s.io";
/// What a team reads.
const DENIED: &str = "the API server creates this object for itself and needs it when it starts: it can be neither deleted nor changed. Roles \
                      and bindings can be changed with the annotation rbac.authorization.kubernetes.io/autoupdate: \"false\"";
/// With this annotation, an API server leaves a role or a binding as it is.
const KEPT_BY_TENANT: &str = "request.operation == 'UPDATE' && request.resource.group == 'rbac.authorization.k8s.io' && \
                              has(object.metadata.annotations) && 'rbac.authorization.kubernetes.io/autoupdate' in object.metadata.annotations && \
                              object.metadata.annotations['rbac.authorization.kubernetes.io/autoupdate'] == 'false'";
/// Labels and annotations of Services are nothing to an API server.
const SAME_SERVICE: &str =
    "request.operation == 'UPDATE' && request.resource.resource == 'services' && object.spec == oldObject.spec";

/// Adds the policy to the files of an API server.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) {
    add_file(files, FILE, &[own_object_policy(), binding(NAME)]);
}

fn own_object_policy() -> Value {
    // Namespaces are only created, and the API server itself lets nobody delete these.
    let own = || OWN.iter().filter(|own| own.resources != ["namespaces"]);
    let rules: Vec<Value> = own()
        .map(|own| rule(own.group, &["UPDATE", "DELETE"], own.resources))
        .collect();
    // Where many objects are deleted at once, requests have no name.
    let is_own: Vec<String> = own()
        .map(|own| {
            let namespace = match own.namespace {
                "" => String::new(),
                namespace => format!(" && request.namespace == '{namespace}'"),
            };
            format!(
                "(request.resource.group == '{}' && request.resource.resource in {}{namespace} && oldObject.metadata.name in {})",
                own.group,
                json!(own.resources),
                json!(own.names)
            )
        })
        .collect();
    let variables = [json!({"name": "isOwn", "expression": is_own.join(" || ")})];
    let users = format!("request.userInfo.username in ['{CONTROL_USER}', '{API_SERVER_USER}', '{TENANT_USER}']");
    let allowed = format!("{users} || ({KEPT_BY_TENANT}) || ({SAME_SERVICE}) || ({AGGREGATION}) || !variables.isOwn");
    policy(
        NAME,
        &json!({"matchPolicy": "Equivalent", "resourceRules": rules}),
        &variables,
        &[validation(&allowed, DENIED)],
    )
}
