//! The webhook configuration in the tenant, by which its API server asks the syncer about Services. The tenant may edit
//! or delete it, like everything in its cluster. The syncer restores it at once, because a Service that was admitted
//! without it may not get its address on the host.

use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, WebhookClientConfig,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};

/// Name of the configuration.
pub const NAME: &str = "berth-services";
/// Name of the webhook; the message of each denial from the API server begins with it.
const WEBHOOK: &str = "services.berth.dev";
/// Path that the server answers at.
pub const PATH: &str = "/services";
/// Seconds that the API server waits for an answer.
const TIMEOUT_SECONDS: i32 = 10;
/// Match conditions of the webhook, as (name, CEL expression). All other requests work without the syncer.
const CONDITIONS: [(&str, &str); 5] = [
    // A name that the API server will generate is not set yet.
    (
        "not-the-api-server",
        "!(request.namespace == 'default' && has(request.name) && request.name == 'kubernetes')",
    ),
    (
        "not-the-dns",
        "!(request.namespace == 'kube-system' && has(request.name) && request.name == 'kube-dns')",
    ),
    (
        "not-headless",
        "!(has(object.spec.clusterIP) && object.spec.clusterIP == 'None')",
    ),
    (
        "not-external",
        "!(has(object.spec.type) && object.spec.type == 'ExternalName')",
    ),
    // Annotations set up load balancers: one that is denied must not be stored, for the Service would be withdrawn from outside.
    (
        "not-only-metadata",
        "request.operation == 'CREATE' || object.spec != oldObject.spec || \
         (object.spec.?type.orValue('') in ['LoadBalancer', 'NodePort'] && \
         object.metadata.?annotations.orValue({}) != oldObject.metadata.?annotations.orValue({}))",
    ),
];

fn condition((name, expression): (&str, &str)) -> MatchCondition {
    MatchCondition {
        name: name.into(),
        expression: expression.into(),
    }
}

/// The configuration, for a server that is reached at `authority` (`host:port`) with a certificate signed by `ca_pem`. Every field that the API server
/// would fill in is given, so that what is read can be compared.
pub fn configuration(authority: &str, ca_pem: &str) -> MutatingWebhookConfiguration {
    let texts = |list: &[&str]| Some(list.iter().map(|text| (*text).to_owned()).collect());
    let webhook = MutatingWebhook {
        name: WEBHOOK.into(),
        admission_review_versions: vec!["v1".into()],
        client_config: WebhookClientConfig {
            url: Some(format!("https://{authority}{PATH}")),
            ca_bundle: Some(ByteString(ca_pem.as_bytes().to_vec())),
            service: None,
        },
        rules: Some(vec![RuleWithOperations {
            api_groups: texts(&[""]),
            api_versions: texts(&["v1"]),
            operations: texts(&["CREATE", "UPDATE"]),
            resources: texts(&["services"]),
            scope: Some("Namespaced".into()),
        }]),
        match_conditions: Some(CONDITIONS.map(condition).to_vec()),
        // A Service without its address would be worse than none.
        failure_policy: Some("Fail".into()),
        match_policy: Some("Equivalent".into()),
        namespace_selector: Some(LabelSelector::default()),
        object_selector: Some(LabelSelector::default()),
        reinvocation_policy: Some("Never".into()),
        side_effects: "NoneOnDryRun".into(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
    };
    MutatingWebhookConfiguration {
        metadata: ObjectMeta {
            name: Some(NAME.into()),
            ..ObjectMeta::default()
        },
        webhooks: Some(vec![webhook]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_as_reviewed() {
        insta::assert_yaml_snapshot!(configuration("127.0.0.1:8443", "certificate"));
    }
}
