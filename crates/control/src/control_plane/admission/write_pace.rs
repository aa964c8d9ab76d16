//! The pace of a tenant's large writes: a webhook by which the API server asks the syncer about each of them.
//!
//! The webhook is a file of the API server, like the [static policies](super::static_policies): nobody in the tenant can remove or change it. It
//! validates, so only what would be stored otherwise takes from the tenant's allowance.

use super::{
    super::{
        certificates::{Authorities, CONTROL_USER, TENANT_USER},
        component::FILES,
        input::ControlPlaneInput,
    },
    platform_objects::API_SERVER_USER,
    static_policies::{add_file, rule},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use berth_sync_rules::admission::writes::{LARGE, PATH};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Folder of the webhook: the plugin reads every file there.
const FOLDER: &str = "webhooks";
/// Name of the configuration. API servers accept names with this ending from files only.
const NAME: &str = "writes.berth.dev.static.k8s.io";
/// Name of the webhook; the message of each denial from the API server begins with it.
const WEBHOOK: &str = "writes.berth.dev";
/// Seconds that the API server waits for an answer: the time that a write may wait for its turn, and as much again.
const TIMEOUT_SECONDS: u32 = 10;
/// Users that never wait: the platform's own. The syncer would wait for itself.
const EXEMPT: [&str; 3] = [API_SERVER_USER, CONTROL_USER, TENANT_USER];

/// Adds the webhook to the files of an API server. Returns the configuration of the admission plugin that reads it; `kubeconfig` has the
/// certificate that the API server presents.
pub(super) fn for_api_server(
    input: &ControlPlaneInput<'_>,
    authorities: &Authorities,
    kubeconfig: &str,
    files: &mut BTreeMap<String, String>,
) -> Value {
    let url = format!("https://{}{PATH}", input.endpoints.admission.authority());
    let configuration = configuration(&url, authorities.admission.cert_pem());
    add_file(files, &format!("{FOLDER}/writes.yaml"), &[configuration]);
    json!({
        "name": "ValidatingAdmissionWebhook",
        "configuration": {
            "apiVersion": "apiserver.config.k8s.io/v1",
            "kind": "WebhookAdmissionConfiguration",
            "kubeConfigFile": format!("{FILES}/{kubeconfig}"),
            "staticManifestsDir": format!("{FILES}/{FOLDER}"),
        },
    })
}

fn configuration(url: &str, ca_pem: &str) -> Value {
    // Everything, with subresources: a status can be as large as the rest.
    let rule = rule("*", &["CREATE", "UPDATE"], &["*/*"]);
    // One expression, because an API server evaluates all conditions: the size of an object costs more than the rest.
    let users = EXEMPT.map(|user| format!("'{user}'")).join(", ");
    let large = format!(
        "!(request.userInfo.username in [{users}]) && !request.dryRun && size(bytes('%s'.format([object]))) > {LARGE}"
    );
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [{
            "name": WEBHOOK,
            "admissionReviewVersions": ["v1"],
            "clientConfig": {"url": url, "caBundle": BASE64_STANDARD.encode(ca_pem)},
            "rules": [rule],
            "matchConditions": [{"name": "large", "expression": large}],
            // What is written while nobody counts would have no limit.
            "failurePolicy": "Fail",
            "sideEffects": "NoneOnDryRun",
            "timeoutSeconds": TIMEOUT_SECONDS,
        }],
    })
}
