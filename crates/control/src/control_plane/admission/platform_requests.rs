//! Requests of the platform in a tenant: the tenant's admission policies and webhooks do not see those of control and of the API server itself.
//!
//! A policy that denies them, or a webhook that does not answer, would keep a new API server from being ready, and manifests of a class from
//! being applied; one that changes objects would change the platform's. So each policy, and each webhook without conditions, gets a match condition that
//! ends its evaluation for these users. One file sets it when somebody creates or changes such an object, the other denies what
//! is without it all the same, because a policy of the tenant that changes objects may have removed it. A webhook that has match conditions of its own
//! stays as it is: clients compare them with what they wrote, and so does a test of upstream's conformance suite.
//!
//! API servers look for the parameters of a policy before they evaluate match conditions, and deny requests if there are none and the binding
//! says so. A policy with parameters therefore does not select the platform's objects at all. It would then select no object without
//! labels either, as those of `exec` are: such a policy may not be for connections.

use super::{
    super::certificates::{CONTROL_USER, TENANT_USER},
    platform_objects::API_SERVER_USER,
    static_policies::{
        add_file, add_mutating_file, binding, mutating_binding, mutating_policy, policy, rule, validation,
    },
};
use berth_api::labels;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file of each folder.
const FILE: &str = "platform-requests.yaml";
/// Name of the policies and of their bindings.
const NAME: &str = "platform-requests.berth.dev.static.k8s.io";
/// Name of the match condition.
const CONDITION: &str = "berth.dev/platform-requests";
/// Kinds with match conditions of their own.
const POLICIES: [&str; 2] = ["mutatingadmissionpolicies", "validatingadmissionpolicies"];
/// Kinds whose webhooks have match conditions.
const WEBHOOKS: [&str; 2] = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];

/// What a team reads.
const DENIED: &str = "requests of Berth and of the API server itself are not for policies and webhooks of this cluster: the API server adds the match \
                      condition berth.dev/platform-requests, and nobody can change it";
/// What a team reads of a policy with parameters.
const DENIED_SELECTOR: &str = "a policy with spec.paramKind does not select objects of the platform: the API server adds the requirement that the \
                               label berth.dev/managed-by is not platform to spec.matchConstraints.objectSelector, and nobody can change it";
/// What a team reads of a policy with parameters for connections.
const DENIED_CONNECTIONS: &str = "a policy with spec.paramKind cannot be for the operation CONNECT: in rules with subresources, list the operations \
                                  CREATE, UPDATE and DELETE, or use a policy without parameters";

/// Adds the policies to the files of an API server.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) {
    add_mutating_file(files, FILE, &[setting_policy(), mutating_binding(NAME)]);
    add_file(files, FILE, &[checking_policy(), binding(NAME)]);
}

fn constraints() -> Value {
    let resources = [POLICIES, WEBHOOKS].concat();
    let rules = [rule("admissionregistration.k8s.io", &["CREATE", "UPDATE"], &resources)];
    json!({"matchPolicy": "Equivalent", "resourceRules": rules})
}

/// Whether a request is the platform's. What control applies is as it wants it, and nobody else can change it. The syncer writes one webhook, by which
/// control's Services get addresses as well.
fn is_platform() -> String {
    let (key, value) = (labels::MANAGED_BY, labels::MANAGED_BY_PLATFORM);
    format!(
        "(request.userInfo.username in ['{CONTROL_USER}', '{TENANT_USER}'] || \
         (has(object.metadata.labels) && '{key}' in object.metadata.labels && object.metadata.labels['{key}'] == '{value}'))"
    )
}

/// The expression of the match condition.
fn condition() -> String {
    format!("!(request.userInfo.username in ['{CONTROL_USER}', '{API_SERVER_USER}'])")
}

/// Whether `object` has the match condition.
fn has_condition(object: &str) -> String {
    format!(
        "(has({object}.matchConditions) && {object}.matchConditions.exists(c, c.name == '{CONDITION}' && c.expression == \"{}\"))",
        condition()
    )
}

/// Whether a webhook has match conditions, this one or others.
fn has_conditions(webhook: &str) -> String {
    format!("(has({webhook}.matchConditions) && {webhook}.matchConditions.size() > 0)")
}

/// Whether a request is for a policy, not for a configuration of webhooks.
fn is_policy() -> String {
    let names = POLICIES.map(|name| format!("'{name}'"));
    format!("request.resource.resource in [{}]", names.join(", "))
}

/// Whether all of the object has the match condition: a configuration has as many as webhooks.
fn all_have_condition() -> String {
    format!(
        "({} ? {} : !has(object.webhooks) || object.webhooks.all(w, {}))",
        is_policy(),
        has_condition("object.spec"),
        has_conditions("w")
    )
}

/// Whether the object is a policy that has to leave the platform's objects out, and does.
fn has_selector() -> String {
    let selector = "object.spec.matchConstraints.objectSelector";
    format!(
        "(!({policies}) || !has(object.spec.paramKind) || !has(object.spec.matchConstraints) || \
         (has({selector}) && has({selector}.matchExpressions) && \
         {selector}.matchExpressions.exists(e, e.key == '{key}' && e.operator == 'NotIn' && has(e.values) && e.values == ['{value}'])))",
        policies = is_policy(),
        key = labels::MANAGED_BY,
        value = labels::MANAGED_BY_PLATFORM,
    )
}

/// Whether the object is no policy with parameters for connections, which are to subresources.
fn is_not_for_connections() -> String {
    let constraints = "object.spec.matchConstraints";
    format!(
        "!({policies}) || !has(object.spec.paramKind) || !has({constraints}) || !has({constraints}.resourceRules) || \
         {constraints}.resourceRules.all(r, !r.operations.exists(o, o in ['*', 'CONNECT']) || \
         !r.resources.exists(n, n.contains('/')))",
        policies = is_policy(),
    )
}

/// Sets what is missing.
fn setting_policy() -> Value {
    let conditions = [
        ("concerns-tenant", format!("!{}", is_platform())),
        (
            "is-not-right",
            format!("!({} && {})", all_have_condition(), has_selector()),
        ),
    ];
    let patch = format!(
        "{policies} ? ({add_condition}) + ({add_selector}) : \
         object.webhooks.transformList(i, w, !{has}, {add_to_webhook})",
        policies = is_policy(),
        add_condition = format_args!(
            "{} ? [] : [{}]",
            has_condition("object.spec"),
            add_condition("object.spec", "'/spec'")
        ),
        add_selector = add_selector(),
        has = has_conditions("w"),
        add_to_webhook = add_condition("w", "'/webhooks/' + string(i)"),
    );
    mutating_policy(NAME, &constraints(), &conditions, &[], &patch)
}

/// A patch that adds the condition to `object` at `path`, an expression, or replaces the one with its name.
fn add_condition(object: &str, path: &str) -> String {
    let condition = format!("{{'name': '{CONDITION}', 'expression': \"{}\"}}", condition());
    format!(
        "has({object}.matchConditions) ? (\
         {object}.matchConditions.exists(c, c.name == '{CONDITION}') ? \
         JSONPatch{{op: 'replace', path: {path} + '/matchConditions', value: {object}.matchConditions.map(c, \
         c.name == '{CONDITION}' ? {condition} : {{'name': c.name, 'expression': c.expression}})}} : \
         JSONPatch{{op: 'add', path: {path} + '/matchConditions/-', value: {condition}}}) : \
         JSONPatch{{op: 'add', path: {path} + '/matchConditions', value: [{condition}]}}"
    )
}

/// Patches that add the requirement to the object selector of a policy with parameters.
fn add_selector() -> String {
    let selector = "object.spec.matchConstraints.objectSelector";
    let path = "/spec/matchConstraints/objectSelector";
    let requirement = format!(
        "{{'key': dyn('{}'), 'operator': dyn('NotIn'), 'values': dyn(['{}'])}}",
        labels::MANAGED_BY,
        labels::MANAGED_BY_PLATFORM
    );
    format!(
        "{has} ? [] : !has({selector}) ? \
         [JSONPatch{{op: 'add', path: '{path}', value: {{'matchExpressions': [{requirement}]}}}}] : \
         has({selector}.matchExpressions) ? \
         [JSONPatch{{op: 'add', path: '{path}/matchExpressions/-', value: {requirement}}}] : \
         [JSONPatch{{op: 'add', path: '{path}/matchExpressions', value: [{requirement}]}}]",
        has = has_selector(),
    )
}

/// Denies what is without it.
fn checking_policy() -> Value {
    let variables = [json!({"name": "isPlatform", "expression": is_platform()})];
    let check = |expression: String, message| validation(&format!("variables.isPlatform || {expression}"), message);
    policy(
        NAME,
        &constraints(),
        &variables,
        &[
            check(all_have_condition(), DENIED),
            check(has_selector(), DENIED_SELECTOR),
            check(format!("({})", is_not_for_connections()), DENIED_CONNECTIONS),
        ],
    )
}
