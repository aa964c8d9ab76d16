//! What an API server needs to start: nobody in the tenant deletes or changes it.
//!
//! An API server creates and corrects its own objects when it starts, as a user like any other: admission policies and webhooks of the tenant
//! can deny it that. Then it is never ready, and the one before it goes on: with the limits and the authorities that it has. While all of
//! its objects are there as it wants them, it writes none.

use super::{
    super::certificates::{CONTROL_USER, TENANT_USER},
    own_objects::{OWN, is_one_of},
    platform_objects::{AGGREGATION, API_SERVER_USER, same_labels_and_life},
    static_policies::{add_file, binding, changes_no_content, policy, rule, validation},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file.
const FILE: &str = "own-objects.yaml";
/// Name of the policy and of its binding.
const NAME: &str = "own-objects.berth.dev.static.k8s.io";
/// What a team reads.
const DENIED: &str = "the API server creates this object for itself and needs it when it starts: it can be neither deleted nor changed. Roles \
                      and bindings can be changed with the annotation rbac.authorization.kubernetes.io/autoupdate: \"false\", which \
                      then stays";
/// With this annotation, an API server leaves a role or a binding as it is.
const KEPT_BY_TENANT: &str = "request.operation == 'UPDATE' && request.resource.group == 'rbac.authorization.k8s.io' && \
                              has(object.metadata.annotations) && 'rbac.authorization.kubernetes.io/autoupdate' in object.metadata.annotations && \
                              object.metadata.annotations['rbac.authorization.kubernetes.io/autoupdate'] == 'false'";
/// The metadata of these are nothing to an API server; a controller adds a finalizer to ServiceCIDRs.
const SAME_SPEC: &str = "request.operation == 'UPDATE' && request.resource.resource in ['services', 'servicecidrs'] && \
                         object.spec == oldObject.spec";

/// Adds the policy to the files of an API server.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) {
    add_file(files, FILE, &[own_object_policy(), binding(NAME)]);
}

fn own_object_policy() -> Value {
    // An API server is ready without its namespaces.
    let own = || OWN.iter().filter(|own| own.resources != ["namespaces"]);
    let rules: Vec<Value> = own()
        .map(|own| rule(own.group, &["UPDATE", "DELETE"], own.resources))
        .collect();
    // Where many objects are deleted at once, requests have no name.
    let is_own = is_one_of(own(), "oldObject.metadata.name");
    let variables = [json!({"name": "isOwn", "expression": is_own})];
    let users = format!("request.userInfo.username in ['{CONTROL_USER}', '{API_SERVER_USER}', '{TENANT_USER}']");
    let allowed = [
        users,
        format!("({KEPT_BY_TENANT})"),
        format!("({SAME_SPEC})"),
        format!("({AGGREGATION} && {})", same_labels_and_life()),
        format!("({})", changes_no_content()),
        "!variables.isOwn".into(),
    ];
    policy(
        NAME,
        &json!({"matchPolicy": "Equivalent", "resourceRules": rules}),
        &variables,
        &[validation(&allowed.join(" || "), DENIED)],
    )
}
