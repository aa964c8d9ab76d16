//! What the tenant's API server is told: to ask the syncer about Services. The tenant may edit or delete it, as it may
//! everything in its cluster; it is put back at once, because a Service that was admitted without it may not get its
//! address on the host.

use crate::{
    engine::api::{Api, CallError},
    json,
    resource::{self, Resource},
    store::Object,
};
use futures::{StreamExt, pin_mut};
use k8s_openapi::{
    ByteString,
    api::admissionregistration::v1::{
        MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, WebhookClientConfig,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{
    api::Patch,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};
use serde_json::{Value, json};
use std::time::Duration;

/// Name of the configuration.
pub const NAME: &str = "berth-services";
/// Name of the webhook, which the API server puts before every denial.
const WEBHOOK: &str = "services.berth.dev";
/// Path that the server answers at.
pub const PATH: &str = "/services";
/// Seconds that the API server waits for an answer.
const TIMEOUT_SECONDS: i32 = 10;
/// What is asked about, as (name, CEL expression). Everything else works without the syncer.
const CONDITIONS: [(&str, &str); 5] = [
    // A name that is to be generated is not there yet.
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
    (
        "not-only-metadata",
        "request.operation == 'CREATE' || object.spec != oldObject.spec",
    ),
];
/// Pause after the configuration was put back, and after that failed: whoever fights for it wins nothing by haste.
const PAUSE: Duration = Duration::from_millis(500);
/// Where it is served.
const RESOURCE: Resource = resource::MUTATING_WEBHOOK_CONFIGURATION;

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

/// Puts the configuration back whenever it is edited or deleted, for ever.
pub(crate) async fn keep(tenant: Api, wanted: &MutatingWebhookConfiguration) {
    let Ok(wanted) = serde_json::to_value(wanted) else {
        return;
    };
    let api: kube::Api<Object<false>> = kube::Api::all_with(tenant.client(), &RESOURCE);
    let one = watcher::Config::default().fields(&format!("metadata.name={NAME}"));
    let events = watcher::watcher(api, one).default_backoff();
    pin_mut!(events);
    let mut listed = false;
    while let Some(event) = events.next().await {
        let live = match event {
            Ok(Event::Init) => {
                listed = false;
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed = true;
                Some(object.json)
            }
            Ok(Event::Apply(object)) => Some(object.json),
            Ok(Event::InitDone) if listed => continue,
            Ok(Event::Delete(_) | Event::InitDone) => None,
            Err(error) => {
                tracing::debug!(%error, "watch of the webhook configuration interrupted");
                continue;
            }
        };
        while let Err(error) = put_back(&tenant, &wanted, live.as_ref()).await {
            tracing::warn!(%error, "cannot put the webhook configuration back");
            // Something else has happened to it since: the watch is about to say so.
            if matches!(error, CallError::Conflict(_) | CallError::NotFound) {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

async fn put_back(tenant: &Api, wanted: &Value, live: Option<&Value>) -> Result<(), CallError> {
    match live {
        Some(live) if live.get("webhooks") == wanted.get("webhooks") => return Ok(()),
        // An apply would leave what others have added, for example a condition that never holds.
        Some(live) => {
            let uid = json::text(live, &["metadata", "uid"]);
            let patch = Patch::Merge(json!({"metadata": {"uid": uid}, "webhooks": wanted["webhooks"]}));
            tenant.patch(RESOURCE, "", NAME, "", &patch).await?;
        }
        None => {
            let mut object = wanted.clone();
            object["apiVersion"] = RESOURCE.api_version().into();
            object["kind"] = RESOURCE.kind.into();
            tenant.apply(RESOURCE, "", NAME, &object).await?;
        }
    }
    tracing::info!("put the webhook configuration for Services back");
    tokio::time::sleep(PAUSE).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_as_reviewed() {
        insta::assert_yaml_snapshot!(configuration("127.0.0.1:8443", "certificate"));
    }
}
