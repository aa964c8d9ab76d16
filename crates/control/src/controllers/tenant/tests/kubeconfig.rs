//! The Secret with the team's kubeconfig, and what is published for kubeconfigs without a secret.

use super::fixture::Fixture;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Secret;
use kube::config::Kubeconfig;
use serde_json::{Value, json};

const SECRET: &str = "/api/v1/namespaces/team/secrets/vision-kubeconfig";

#[tokio::test]
async fn the_secret_of_an_earlier_version_is_replaced_and_a_lost_one_is_written_again() {
    let mut fixture = Fixture::new();
    fixture.reconcile_until_ready().await;
    let current = fixture.host.get(SECRET).unwrap();
    assert_eq!(current["type"], "cluster.x-k8s.io/secret");
    let mut earlier = current.clone();
    earlier["type"] = "Opaque".into();
    earlier["metadata"]["uid"] = "earlier".into();
    fixture.host.insert(SECRET, earlier);
    fixture.reconcile().await.unwrap();
    let replaced = fixture.host.get(SECRET).unwrap();
    assert_eq!(replaced["type"], "cluster.x-k8s.io/secret");
    assert_ne!(replaced["metadata"]["uid"], "earlier");
    assert_eq!(replaced["data"], current["data"]);

    fixture.host.remove(SECRET);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.host.get(SECRET).unwrap()["data"], current["data"]);
}

#[tokio::test]
async fn a_secret_of_the_team_is_not_replaced_whatever_its_type() {
    let mut fixture = Fixture::new();
    let own = json!({"metadata": {"name": "vision-kubeconfig", "namespace": "team", "uid": "own"}, "type": "Opaque"});
    fixture.host.insert(SECRET, own);
    let own = fixture.host.get(SECRET);
    for _ in 0..3 {
        let _ = fixture.reconcile().await;
    }
    assert_eq!(fixture.host.get(SECRET), own);
    assert_eq!(
        fixture.condition("ControlPlaneReady").unwrap()["reason"],
        "SecretExists"
    );
}

#[tokio::test]
async fn access_is_taken_away_though_the_secret_cannot_be_written() {
    const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/berth:access:admins";
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| {
        cluster["spec"]["access"] = json!({"admins": [{"kind": "User", "name": "oidc:eve"}]});
    });
    fixture.reconcile_until_ready().await;
    assert_eq!(fixture.tenant.get(BINDING).unwrap()["subjects"][0]["name"], "oidc:eve");
    let mut foreign = fixture.host.get(SECRET).unwrap();
    foreign["metadata"]["labels"] = json!({});
    fixture.host.insert(SECRET, foreign);
    fixture.change_tenant(|cluster| cluster["spec"]["access"] = json!({}));
    for _ in 0..3 {
        let _ = fixture.reconcile().await;
    }
    assert_eq!(fixture.tenant.get(BINDING).unwrap()["subjects"], json!([]));
    assert_eq!(
        fixture.condition("ControlPlaneReady").unwrap()["reason"],
        "SecretExists"
    );
}

#[tokio::test]
async fn where_people_sign_in_is_published_with_what_the_tenant_runs_with() {
    let issuer = "https://dex.auth.svc";
    let mut fixture = Fixture::new();
    fixture.change_tenant(|cluster| {
        cluster["spec"]["authentication"] = json!({
            "jwt": [{
                "issuer": {"url": issuer, "audiences": ["berth"]},
                "claimMappings": {"username": {"claim": "sub", "prefix": "oidc:"}},
            }],
            "kubeconfig": {"issuer": issuer, "clientID": "berth", "scopes": ["groups"]},
        });
    });
    fixture.reconcile_until_ready().await;
    let secret = fixture.host.get(SECRET).unwrap()["data"]["kubeconfig"].clone();
    let secret: Secret = serde_json::from_value(json!({"data": {"kubeconfig": secret}})).unwrap();
    let text = String::from_utf8(secret.data.unwrap()["kubeconfig"].0.clone()).unwrap();
    let administrators = Kubeconfig::from_yaml(&text).unwrap();
    let cluster = administrators.clusters[0].cluster.clone().unwrap();
    let published = fixture.status()["kubeconfig"].clone();
    let authority = published["certificateAuthority"].as_str().unwrap();
    assert_eq!(
        cluster.certificate_authority_data,
        Some(STANDARD.encode(authority)),
        "the server is verified as with the Secret"
    );
    assert_eq!(cluster.server.as_deref(), fixture.status()["endpoint"].as_str());
    let expected =
        json!({"certificateAuthority": authority, "issuer": issuer, "clientID": "berth", "scopes": ["groups"]});
    assert_eq!(published, expected);

    // A spec that is not accepted changes nothing.
    fixture.change_tenant(|cluster| cluster["spec"]["authentication"]["kubeconfig"]["clientID"] = "other".into());
    fixture.reconcile().await.unwrap();
    assert_eq!(
        fixture.condition("Accepted").unwrap()["reason"],
        "AuthenticationNotAllowed"
    );
    assert_eq!(fixture.status()["kubeconfig"], published);

    fixture.change_tenant(|cluster| cluster["spec"]["authentication"]["kubeconfig"] = Value::Null);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.status()["kubeconfig"], Value::Null);
}
