//! Who may do what in the tenant: RBAC decides, except that nobody impersonates the API server, control, the other programs of the control
//! plane, Argo CD, or the controllers whose pods keep the creator that their templates name.
//!
//! A tenant's administrator may do everything by RBAC, and thus impersonate any user. Limits of the datastore exempt what the API server makes for
//! itself, and only these two may change the platform's objects. The API server lets no request of the syncer and of DNS wait
//! (`flow_schemas`), and does not count what Argo CD reads as use. Only the controller manager may have tokens of the controllers. No rule of RBAC denies anything, but an authorizer before it does: a webhook that is called for this request only, at an address
//! where nothing listens. A call that fails is a denial.
//!
//! No authorizer is asked about the group `system:masters`, which an administrator may impersonate. Its members still impersonate nobody
//! else, as a request has one identity to act as; for what else they may not do there are admission policies.

use super::{
    admission::{
        created_by::{CONTROLLER_MANAGER, CONTROLLERS},
        platform_objects::API_SERVER_USER,
    },
    certificates::{ARGO_CD_USER, Authorities, CONTROL_USER, TENANT_USER},
    component::{FILES, file_flag},
    coredns::DNS_USER,
    scheduler::SCHEDULER_USER,
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde_json::json;
use std::collections::BTreeMap;

/// File of the API server with its authorization configuration.
const FILE: &str = "authorization.conf";
/// File that says where the webhook is.
const WEBHOOK: &str = "authorization.kubeconfig";
/// Where nothing listens.
const NOWHERE: &str = "https://127.0.0.1:1";
/// Users that nobody impersonates.
const USERS: [&str; 7] = [
    API_SERVER_USER,
    CONTROL_USER,
    ARGO_CD_USER,
    TENANT_USER,
    DNS_USER,
    CONTROLLER_MANAGER,
    SCHEDULER_USER,
];

/// Requests that impersonate one of [`USERS`] or of the controllers. From Kubernetes 1.36 on there are several verbs for it.
fn impersonates_platform() -> String {
    let users = USERS.map(|user| format!("'{user}'")).join(", ");
    let controllers = CONTROLLERS.map(|name| format!("'{name}'")).join(", ");
    let attributes = "request.resourceAttributes";
    let is_user = format!("{attributes}.resource == 'users' && {attributes}.name in [{users}]");
    let is_controller = format!(
        "{attributes}.resource == 'serviceaccounts' && {attributes}.namespace == 'kube-system' && {attributes}.name in [{controllers}]"
    );
    format!("has({attributes}) && {attributes}.verb.startsWith('impersonate') && ({is_user} || {is_controller})")
}

/// The API server's end: its files and its flag.
pub(super) fn for_api_server(authorities: &Authorities, files: &mut BTreeMap<String, String>) -> String {
    let webhook = json!({
        "authorizedTTL": "1s",
        "unauthorizedTTL": "1s",
        "timeout": "1s",
        "subjectAccessReviewVersion": "v1",
        "matchConditionSubjectAccessReviewVersion": "v1",
        "failurePolicy": "Deny",
        "connectionInfo": {"type": "KubeConfigFile", "kubeConfigFile": format!("{FILES}/{WEBHOOK}")},
        "matchConditions": [{"expression": impersonates_platform()}],
    });
    let configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthorizationConfiguration",
        "authorizers": [
            {"type": "Webhook", "name": "impersonation.berth.dev", "webhook": webhook},
            {"type": "RBAC", "name": "rbac"},
        ],
    });
    // The API server connects through the egress broker, which is the syncer's. An authority that signs no servers lets nobody answer there.
    let authority = BASE64_STANDARD.encode(authorities.front_proxy.cert_pem());
    let kubeconfig = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "nowhere", "cluster": {"server": NOWHERE, "certificate-authority-data": authority}}],
        "users": [{"name": "none", "user": {}}],
        "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "none"}}],
        "current-context": "nowhere",
    });
    files.insert(FILE.into(), configuration.to_string());
    files.insert(WEBHOOK.into(), kubeconfig.to_string());
    file_flag("authorization-config", FILE)
}
