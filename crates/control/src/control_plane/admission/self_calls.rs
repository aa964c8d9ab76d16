//! Webhooks by which an API server would call itself.
//!
//! An API server calls the Service `default/kubernetes`, and the URL `https://kubernetes.default.svc`, with the credentials that it has for itself, and not
//! through the egress broker. It follows redirections, and sends its credentials to where they lead: a pod of the tenant answers with one, behind a
//! proxy path of the API server. Who has these credentials may impersonate control, and change what is the platform's. Servers that extend the API
//! are called by paths below `/apis/`, where an API server passes on no redirection.

use super::static_policies::{add_file, binding, changes_nothing, policy, rule, validation};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The file.
const FILE: &str = "self-calls.yaml";
/// Name of the policy and of its binding.
const NAME: &str = "self-calls.berth.dev.static.k8s.io";
/// What a team reads.
const DENIED: &str = "the API server calls a webhook at https://kubernetes.default.svc, or at the Service kubernetes of the namespace default, as itself: name \
                      another Service, or a path of that Service below /apis/ that a server of yours answers";
/// Upstream's form of the URL, with the port or without it.
const URL: &str = "(?i)^https://kubernetes[.]default[.]svc(:443)?([/?#]|$)";

/// Adds the policy to the files of an API server.
pub(super) fn for_api_server(files: &mut BTreeMap<String, String>) {
    add_file(files, FILE, &[self_call_policy(), binding(NAME)]);
}

fn self_call_policy() -> Value {
    let configurations = ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"];
    let constraints = json!({
        "matchPolicy": "Equivalent",
        "resourceRules": [
            rule("admissionregistration.k8s.io", &["CREATE", "UPDATE"], &configurations),
            rule("apiextensions.k8s.io", &["CREATE", "UPDATE"], &["customresourcedefinitions"]),
        ],
    });
    let conversion = "object.spec.conversion";
    let clients = format!(
        "request.resource.resource == 'customresourcedefinitions' ? \
         (has({conversion}) && has({conversion}.webhook) && has({conversion}.webhook.clientConfig) ? [{conversion}.webhook.clientConfig] : []) : \
         (has(object.webhooks) ? object.webhooks.map(w, w.clientConfig) : [])"
    );
    let variables = [json!({"name": "clients", "expression": clients})];
    let is_elsewhere = format!(
        "variables.clients.all(c, (!has(c.url) || !c.url.matches('{URL}')) && \
         (!has(c.service) || c.service.name != 'kubernetes' || c.service.namespace != 'default' || \
         (has(c.service.path) && c.service.path.startsWith('/apis/'))))"
    );
    let allowed = format!("({is_elsewhere}) || ({})", changes_nothing());
    policy(NAME, &constraints, &variables, &[validation(&allowed, DENIED)])
}
