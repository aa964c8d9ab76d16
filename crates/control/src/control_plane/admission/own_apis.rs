//! APIs that an API server serves itself: nobody in the tenant registers another server for them.
//!
//! Requests to a group go where its `APIService` says, also those of the API server to itself: for roles, quotas and admission policies.
//! With another server for such a group, a tenant could hide the platform's objects from everything that enforces them, without changing
//! one of them.

use super::{
    own_objects,
    static_policies::{add_file, binding, policy, rule, validation},
};
use serde_json::json;
use std::collections::BTreeMap;

/// The file.
const FILE: &str = "own-apis.yaml";
/// Name of the policy and of its binding.
const NAME: &str = "own-apis.berth.dev.static.k8s.io";
/// What a team reads.
const DENIED: &str = "the API server serves this group itself, so no other server can be registered for it: remove spec.service, or use a \
                      group of your own";

/// Adds the policy to the files of an API server.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) {
    let rules = [rule("apiregistration.k8s.io", &["CREATE", "UPDATE"], &["apiservices"])];
    let constraints = json!({"matchPolicy": "Equivalent", "resourceRules": rules});
    let groups = own_objects::served_groups().map(|group| format!("'{group}'"));
    let groups: Vec<String> = groups.collect();
    let expression = format!(
        "!has(object.spec.service) || !((has(object.spec.group) ? object.spec.group : '') in [{}])",
        groups.join(", ")
    );
    let denied = validation(&expression, DENIED);
    add_file(
        files,
        FILE,
        &[policy(NAME, &constraints, &[], &[denied]), binding(NAME)],
    );
}
