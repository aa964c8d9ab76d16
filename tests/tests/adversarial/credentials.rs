//! Identity: what a tenant's admin holds opens that tenant and nothing else.

use crate::shared::attacker_and_victim;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use berth_tests::{
    tenant::{READY_WITHIN, patient_with},
    test_cluster::TestCluster,
    token::{client as with_token, of_default_account},
    wait::until,
};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret};
use kube::{
    Api, Client,
    api::{ListParams, PostParams},
    config::Kubeconfig,
};
use serde_json::{Value, json};
use std::sync::Arc;

/// The status code of the answer to a list of namespaces; 200 if the list succeeds.
pub(crate) async fn try_to_list(client: &Client) -> u16 {
    match Api::<Namespace>::all(client.clone()).list(&ListParams::default()).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("no answer at all: {error}"),
    }
}

/// The same with headers in which the aggregation layer of API servers says who asks.
async fn try_to_list_as_remote_user(client: &Client) -> u16 {
    let request = http::Request::get("/api/v1/namespaces")
        .header("X-Remote-User", "admin")
        .header("X-Remote-Group", "system:masters")
        .body(Vec::new())
        .unwrap();
    match client.request::<Value>(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("no answer at all: {error}"),
    }
}

/// The status code of the answer to a request for a page of text.
async fn try_to_read(client: &Client, path: &str) -> u16 {
    let request = http::Request::get(path).body(Vec::new()).unwrap();
    match client.request_text(request).await {
        Ok(_) => 200,
        Err(kube::Error::Api(status)) => status.code,
        Err(error) => panic!("no answer at all: {error}"),
    }
}

/// A client with the credential of one kubeconfig at the address, and trusting the authority, of another.
pub(crate) async fn crossed(credential: &str, target: &str) -> Client {
    let mut crossed = Kubeconfig::from_yaml(target).unwrap();
    let user = Kubeconfig::from_yaml(credential).unwrap().auth_infos[0]
        .auth_info
        .clone();
    crossed.auth_infos[0].auth_info = user;
    patient_with(crossed).await
}

pub(crate) fn host_kubeconfig(host: &TestCluster) -> String {
    std::fs::read_to_string(host.home().admin_kubeconfig()).unwrap()
}

pub(crate) async fn tenant_admin_has_no_rights_elsewhere(host: Arc<TestCluster>) {
    let (a, b) = attacker_and_victim(&host).await;
    assert_eq!(try_to_list(&a.client).await, 200);
    assert_eq!(
        try_to_list(&crossed(&a.kubeconfig, &b.kubeconfig).await).await,
        401,
        "A's certificate at B"
    );
    assert_eq!(
        try_to_list(&crossed(&a.kubeconfig, &host_kubeconfig(&host)).await).await,
        401,
        "A's certificate at the host"
    );
    // A client that trusts B does not accept A's server: the authorities differ.
    let mut mixed = Kubeconfig::from_yaml(&a.kubeconfig).unwrap();
    let of_b = Kubeconfig::from_yaml(&b.kubeconfig)
        .unwrap()
        .clusters
        .remove(0)
        .cluster
        .unwrap();
    mixed.clusters[0].cluster.as_mut().unwrap().certificate_authority_data = of_b.certificate_authority_data;
    assert!(
        Api::<Namespace>::all(patient_with(mixed).await)
            .list(&ListParams::default())
            .await
            .is_err()
    );
    // Inside its own cluster A sees its own node and no Secret of the control plane.
    let nodes: Api<Node> = Api::all(a.client.clone());
    // A tenant is ready once the node is its own; its syncer mirrors it a moment later.
    let nodes = until("A sees a node", READY_WITHIN, async || {
        let list = nodes.list(&ListParams::default()).await;
        let items = list.map_err(|error| error.to_string())?.items;
        if items.is_empty() {
            Err("none".to_owned())
        } else {
            Ok(items)
        }
    })
    .await;
    assert_eq!(nodes.len(), 1);
    let own: Secret = serde_json::from_value(json!({"metadata": {"name": "own"}, "stringData": {"key": "x"}})).unwrap();
    let of_team: Api<Secret> = Api::namespaced(a.client.clone(), "default");
    of_team.create(&PostParams::default(), &own).await.unwrap();
    let secrets = Api::<Secret>::all(a.client.clone())
        .list(&ListParams::default())
        .await
        .unwrap();
    assert!(!secrets.items.is_empty());
    assert!(secrets.items.iter().all(|secret| {
        secret
            .data
            .as_ref()
            .is_none_or(|data| !data.keys().any(|key| key.ends_with("ca.key")))
    }));
    // Nor the platform's settings of its API server.
    assert_eq!(try_to_read(&a.client, "/version").await, 200);
    for path in ["/flagz", "/debug/pprof/cmdline"] {
        assert_eq!(try_to_read(&a.client, path).await, 404, "{path}");
    }
    // Anonymous requests get nothing.
    let anonymous = with_token(&a.kubeconfig, "").await;
    assert_eq!(try_to_list(&anonymous).await, 401);
    assert_eq!(try_to_list_as_remote_user(&anonymous).await, 401);
    for target in [&b.kubeconfig, &host_kubeconfig(&host)] {
        let elsewhere = crossed(&a.kubeconfig, target).await;
        assert_eq!(try_to_list_as_remote_user(&elsewhere).await, 401);
    }
}

/// The claims of a token.
fn claims(token: &str) -> Value {
    let part = token.split('.').nth(1).unwrap();
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap()
}

pub(crate) async fn nobody_gets_a_token_for_years(host: Arc<TestCluster>) {
    let (a, _) = attacker_and_victim(&host).await;
    let token = of_default_account(&a.client, 10 * 365 * 24 * 3600).await;
    let claims = claims(&token);
    let lifetime = claims["exp"].as_i64().unwrap() - claims["iat"].as_i64().unwrap();
    assert_eq!(lifetime, 24 * 3600, "{claims}");
    assert_eq!(
        try_to_list(&with_token(&a.kubeconfig, &token).await).await,
        403,
        "it is valid"
    );
}

pub(crate) async fn tokens_are_rejected_elsewhere(host: Arc<TestCluster>) {
    let (a, b) = attacker_and_victim(&host).await;
    let token = of_default_account(&a.client, 3600).await;
    // Its own API server authenticates it as a user without rights; others do not authenticate it.
    assert_eq!(try_to_list(&with_token(&a.kubeconfig, &token).await).await, 403);
    // Headers make it no other user: they count with the certificate of the aggregation layer alone.
    let of_account = with_token(&a.kubeconfig, &token).await;
    assert_eq!(try_to_list_as_remote_user(&of_account).await, 403);
    assert_eq!(try_to_list(&with_token(&b.kubeconfig, &token).await).await, 401);
    assert_eq!(
        try_to_list(&with_token(&host_kubeconfig(&host), &token).await).await,
        401
    );
    for nonsense in ["x", "eyJhbGciOiJub25lIn0.e30.", "Bearer", &token[..token.len() - 4]] {
        assert_eq!(
            try_to_list(&with_token(&a.kubeconfig, nonsense).await).await,
            401,
            "{nonsense}"
        );
    }
    // No token of the host opens a tenant.
    let host_token = of_default_account(&host.client, 3600).await;
    assert_eq!(try_to_list(&with_token(&a.kubeconfig, &host_token).await).await, 401);
    let pods: Api<Pod> = Api::namespaced(a.client.clone(), "default");
    assert!(pods.list(&ListParams::default()).await.is_ok());
}
