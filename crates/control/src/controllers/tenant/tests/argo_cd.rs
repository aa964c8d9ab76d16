//! Tenants in Argo CD: a Secret that follows the tenant, and that nothing outlives.

use super::{
    fixture::{Fixture, TENANT, UID},
    removals::{store_binding, wake},
    sleep::fall_asleep,
};
use crate::control_plane::GatewayConfig;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use berth_api::labels;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

const BINDING: &str = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/berth:argocd";
const ARGO_CD: &str = "argocd";

fn secret_path(fixture: &Fixture, namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/secrets/{}", fixture.id.argo_cd_secret())
}

fn record_path(fixture: &Fixture) -> String {
    format!(
        "/api/v1/namespaces/{}/configmaps/argo-cd",
        fixture.id.control_plane_namespace()
    )
}

fn set_class(fixture: &Fixture, rules: &Value) {
    let spec = json!({"integrations": {"argoCD": rules}, "enforcementGracePeriod": "0s"});
    fixture.set_class(&spec);
}

/// A tenant of a class that lets tenants be clusters of Argo CD, which asks for that.
fn asking() -> Fixture {
    let mut fixture = Fixture::new();
    fixture.context.argo_cd_namespace = Some(ARGO_CD.into());
    set_class(
        &fixture,
        &json!({"registration": "OnRequest", "projects": ["{namespace}"]}),
    );
    fixture.change_tenant(|cluster| {
        cluster["spec"]["className"] = "gold".into();
        cluster["spec"]["integrations"] = json!({"argoCD": {}});
    });
    fixture
}

/// Lets the class lead Argo CD to tenants through the gateway.
fn lead_through_gateway(fixture: &Fixture) {
    let rules = json!({"registration": "OnRequest", "projects": ["{namespace}"], "server": "Gateway"});
    set_class(fixture, &rules);
}

/// Gives the platform a gateway.
fn configure_gateway(fixture: &mut Fixture) {
    fixture.context.network_config.gateway = Some(GatewayConfig {
        domain: "clusters.example.com".parse().unwrap(),
        port: 8443,
    });
}

pub(super) async fn registered() -> Fixture {
    let mut fixture = asking();
    assert!(Box::pin(fixture.reconcile_until_ready()).await.is_empty());
    Box::pin(fixture.reconcile()).await.unwrap();
    assert_eq!(reason(&fixture), "Registered");
    fixture
}

fn opt_out(fixture: &Fixture) {
    fixture.change_tenant(|cluster| {
        cluster["spec"].as_object_mut().unwrap().remove("integrations");
    });
}

fn reason(fixture: &Fixture) -> Value {
    let condition = fixture.condition("ArgoCDRegistered").unwrap_or_default();
    condition["reason"].clone()
}

fn text(secret: &Value, key: &str) -> String {
    let encoded = secret["data"][key].as_str().unwrap();
    String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
}

#[tokio::test]
async fn a_tenant_that_asks_for_it_is_a_cluster_of_argo_cd() {
    let mut fixture = registered().await;
    let secret = fixture.host.get(&secret_path(&fixture, ARGO_CD)).unwrap();
    assert_eq!(text(&secret, "name"), "vision.team");
    assert_eq!(text(&secret, "project"), "team");
    assert!(text(&secret, "server").starts_with("https://"));
    assert_eq!(secret["metadata"]["annotations"][labels::OWNER_UID], UID);
    assert_eq!(
        secret["metadata"]["labels"]["argocd.argoproj.io/secret-type"],
        "cluster"
    );
    assert_eq!(fixture.tenant.get(BINDING).unwrap()["roleRef"]["name"], "cluster-admin");
    // Nothing is written again.
    fixture.reconcile().await.unwrap();
    let before = fixture.count_calls();
    fixture.reconcile().await.unwrap();
    let calls = fixture.script.calls().split_off(before);
    let writes = |text: &str| text.contains(" PATCH ") && (text.contains("/secrets/") || text.contains("berth:argocd"));
    assert!(!calls.iter().any(|call| writes(&call.text)), "{calls:#?}");
}

#[tokio::test]
async fn the_secret_has_the_certificate_that_is_stored_and_a_lost_one_is_written_again() {
    let mut fixture = registered().await;
    let path = secret_path(&fixture, ARGO_CD);
    let first = text(&fixture.host.get(&path).unwrap(), "config");
    let leaves = format!(
        "/api/v1/namespaces/{}/secrets/certificates",
        fixture.id.control_plane_namespace()
    );
    let config: Value = serde_json::from_str(&first).unwrap();
    let stored = fixture.host.get(&leaves).unwrap();
    assert_eq!(config["tlsClientConfig"]["certData"], stored["data"]["argo-cd.crt"]);

    fixture.host.remove(&path);
    fixture.reconcile().await.unwrap();
    assert_eq!(text(&fixture.host.get(&path).unwrap(), "config"), first);

    // Its certificates are lost, and another control has taken over.
    fixture.host.remove(&leaves);
    fixture.context.tenants = Arc::default();
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    let renewed = text(&fixture.host.get(&path).unwrap(), "config");
    assert_ne!(renewed, first);
    let config: Value = serde_json::from_str(&renewed).unwrap();
    let stored = fixture.host.get(&leaves).unwrap();
    assert_eq!(config["tlsClientConfig"]["certData"], stored["data"]["argo-cd.crt"]);
}

#[tokio::test]
async fn a_tenant_that_no_longer_asks_leaves_no_credential() {
    let mut fixture = registered().await;
    opt_out(&fixture);
    fixture.reconcile().await.unwrap();
    assert!(fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_none());
    assert!(fixture.host.get(&record_path(&fixture)).is_none());
    assert!(fixture.tenant.get(BINDING).is_none());
    assert!(fixture.condition("ArgoCDRegistered").is_none());
    let before = fixture.count_calls();
    fixture.reconcile().await.unwrap();
    let calls = fixture.script.calls().split_off(before);
    assert!(!calls.iter().any(|call| call.text.contains("/argocd/")), "{calls:#?}");
    // It asks again at once.
    fixture.change_tenant(|cluster| cluster["spec"]["integrations"] = json!({"argoCD": {}}));
    fixture.reconcile().await.unwrap();
    assert!(fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_some());
    assert!(fixture.tenant.get(BINDING).is_some());
    assert!(fixture.host.get(&record_path(&fixture)).is_some());
}

#[tokio::test]
async fn a_registration_ends_although_the_spec_is_not_accepted() {
    let mut fixture = registered().await;
    opt_out(&fixture);
    fixture.change_tenant(|cluster| cluster["spec"]["nodeGroups"][0]["replicas"] = 1000.into());
    for asks_again in [false, true] {
        if asks_again {
            fixture.change_tenant(|cluster| cluster["spec"]["integrations"] = json!({"argoCD": {}}));
        }
        for _ in 0..6 {
            Box::pin(fixture.reconcile()).await.unwrap();
        }
        assert_eq!(fixture.condition("Accepted").unwrap()["reason"], "NotEnoughNodes");
        assert!(
            fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_none(),
            "{asks_again}"
        );
        assert!(fixture.tenant.get(BINDING).is_none(), "{asks_again}");
    }
}

#[tokio::test]
async fn a_class_takes_the_registration_away() {
    let mut fixture = registered().await;
    set_class(&fixture, &json!({}));
    // It is reported first.
    for _ in 0..3 {
        let _ = fixture.reconcile().await;
    }
    let accepted = fixture.condition("Accepted").unwrap();
    assert_eq!(accepted["reason"], "ArgoCDNotAllowed", "{accepted}");
    assert!(fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_none());
    assert!(fixture.tenant.get(BINDING).is_none());
}

#[tokio::test]
async fn a_class_leads_argo_cd_through_the_gateway() {
    let mut fixture = registered().await;
    let secret = secret_path(&fixture, ARGO_CD);
    let server = |fixture: &Fixture| text(&fixture.host.get(&secret).unwrap(), "server");
    let direct = server(&fixture);

    // Without a gateway nothing that works is taken away.
    lead_through_gateway(&fixture);
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture), "GatewayNotConfigured");
    assert_eq!(server(&fixture), direct);

    configure_gateway(&mut fixture);
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture), "Registered");
    assert_eq!(server(&fixture), "https://vision.team.clusters.example.com:8443");

    set_class(
        &fixture,
        &json!({"registration": "OnRequest", "projects": ["{namespace}"]}),
    );
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert_eq!(server(&fixture), direct);
}

#[tokio::test(start_paused = true)]
async fn a_tenant_whose_webhooks_never_answer_does_not_use_up_the_time_of_its_reconciles() {
    let mut fixture = registered().await;
    // Another control has taken over, which knows no object that was applied.
    fixture.context.tenants = Arc::default();
    fixture.tenant.never_answer_writes(Some("/apis/rbac"));
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        let begun = Instant::now();
        let _ = Box::pin(fixture.reconcile()).await;
        longest = longest.max(begun.elapsed());
        if reason(&fixture) == "APIServerSlow" {
            break;
        }
    }
    assert_eq!(reason(&fixture), "APIServerSlow");
    assert!(longest < Duration::from_secs(50), "{longest:?}");

    fixture.tenant.never_answer_writes(None);
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture), "Registered");
}

#[tokio::test]
async fn another_secret_of_the_name_is_neither_overwritten_nor_deleted() {
    let mut fixture = asking();
    let path = secret_path(&fixture, ARGO_CD);
    let foreign = json!({"metadata": {"name": fixture.id.argo_cd_secret(), "namespace": ARGO_CD, "uid": "theirs",
        "annotations": {labels::OWNER_UID: "another"}}, "data": {}});
    fixture.host.insert(&path, foreign);
    let foreign = fixture.host.get(&path);
    // Ready does not depend on it.
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    let condition = fixture.condition("ArgoCDRegistered").unwrap();
    assert_eq!(
        (&condition["status"], &condition["reason"]),
        (&"False".into(), &"SecretExists".into())
    );
    opt_out(&fixture);
    fixture.reconcile().await.unwrap();
    assert_eq!(fixture.host.get(&path), foreign);
    assert!(fixture.delete().await.is_empty());
    assert_eq!(fixture.host.get(&path), foreign);
}

#[tokio::test]
async fn rights_end_in_a_sleep_before_the_api_server_starts() {
    for (is_registered, deleted) in [(true, Vec::new()), (false, vec!["berth:argocd".to_owned()])] {
        let mut fixture = registered().await;
        Box::pin(fall_asleep(&mut fixture)).await;
        store_binding(&fixture, "berth:argocd", "cluster-admin", &["berth:argocd"]);
        if !is_registered {
            opt_out(&fixture);
        }
        assert_eq!(Box::pin(wake(&mut fixture)).await, deleted);
        assert_eq!(fixture.tenant.get(BINDING).is_some(), is_registered);
    }
}

#[tokio::test]
async fn the_secret_follows_argo_cd_to_another_namespace_and_goes_with_it() {
    let mut fixture = registered().await;
    fixture.context.argo_cd_namespace = Some("argo".into());
    fixture.context.tenants = Arc::default();
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert!(fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_none());
    assert!(fixture.host.get(&secret_path(&fixture, "argo")).is_some());
    assert!(fixture.tenant.get(BINDING).is_some());

    fixture.context.argo_cd_namespace = None;
    fixture.context.tenants = Arc::default();
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert!(fixture.host.get(&secret_path(&fixture, "argo")).is_none());
    assert!(fixture.tenant.get(BINDING).is_none());
    assert_eq!(reason(&fixture), "ArgoCDNotConfigured");
}

#[tokio::test]
async fn the_secret_stays_where_it_is_while_it_would_lead_to_a_gateway_that_does_not_exist() {
    let mut fixture = registered().await;
    lead_through_gateway(&fixture);
    fixture.context.argo_cd_namespace = Some("argo".into());
    fixture.context.tenants = Arc::default();
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture), "GatewayNotConfigured");
    assert!(fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_some());
    assert!(fixture.host.get(&secret_path(&fixture, "argo")).is_none());

    configure_gateway(&mut fixture);
    fixture.reconcile_until_ready().await;
    fixture.reconcile().await.unwrap();
    assert_eq!(reason(&fixture), "Registered");
    assert!(fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_none());
    assert!(fixture.host.get(&secret_path(&fixture, "argo")).is_some());
}

#[tokio::test]
async fn a_deleted_tenant_leaves_no_secret_even_if_the_platform_forgot_its_argo_cd() {
    for namespace in [Some(ARGO_CD.to_owned()), None] {
        let mut fixture = registered().await;
        fixture.context.argo_cd_namespace = namespace;
        let before = fixture.count_calls();
        assert!(fixture.delete().await.is_empty());
        assert!(fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_none());
        // Before anything else stops.
        let calls = fixture.script.calls().split_off(before);
        let first = |part: &str| calls.iter().position(|call| call.text.contains(part)).unwrap();
        assert!(first("DELETE /api/v1/namespaces/argocd/secrets/") < first("runtime stop"));
    }
}

#[tokio::test]
async fn a_tenant_that_vanished_leaves_no_secret() {
    let mut fixture = registered().await;
    fixture.host.remove(TENANT);
    for _ in 0..10 {
        fixture.reconcile().await.unwrap();
    }
    assert!(fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_none());
}

#[tokio::test]
async fn each_call_may_fail_once_and_the_tenant_is_registered_and_unregistered() {
    let calls = registered().await.count_calls();
    for number in 0..calls {
        let mut fixture = asking();
        fixture.script.fail_call(number);
        let _ = fixture.reconcile_until_ready().await;
        // A failure is tried again.
        for _ in 0..3 {
            let _ = fixture.reconcile().await;
        }
        let failed = fixture.script.failed();
        assert_eq!(reason(&fixture), "Registered", "{failed:?}");
        assert!(
            fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_some(),
            "{failed:?}"
        );
    }
    let mut healthy = registered().await;
    let before = healthy.count_calls();
    opt_out(&healthy);
    healthy.reconcile().await.unwrap();
    for number in 0..healthy.count_calls() - before {
        let mut fixture = registered().await;
        opt_out(&fixture);
        fixture.script.fail_call(fixture.count_calls() + number);
        for _ in 0..4 {
            let _ = fixture.reconcile().await;
        }
        let failed = fixture.script.failed();
        assert!(
            fixture.host.get(&secret_path(&fixture, ARGO_CD)).is_none(),
            "{failed:?}"
        );
        assert!(fixture.tenant.get(BINDING).is_none(), "{failed:?}");
        assert!(fixture.host.get(&record_path(&fixture)).is_none(), "{failed:?}");
        assert!(fixture.condition("ArgoCDRegistered").is_none(), "{failed:?}");
    }
}
