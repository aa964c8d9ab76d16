//! NetworkPolicies: only what the TenantCluster declares can be allowed, and those of the platform cannot be changed.

use super::{StolenCredential, dry_run, expect_denied};
use k8s_openapi::api::{core::v1::ConfigMap, networking::v1::NetworkPolicy};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

pub(super) async fn policies(credential: &StolenCredential) {
    let policy = |spec: Value| credential.object("networking.k8s.io/v1", "NetworkPolicy", &json!({ "spec": spec }));
    let to = |peer: Value| policy(json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": [peer]}]}));
    let from =
        |peer: Value| policy(json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"from": [peer]}]}));
    let block = |cidr: &str, except: &[&str]| json!({"ipBlock": {"cidr": cidr, "except": except}});
    let of_host = |name: &str| json!({"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}});

    for allowed in [
        policy(json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})),
        to(json!({"podSelector": {"matchLabels": {"app": "a"}}})),
        to(block("10.20.0.0/16", &["10.20.7.0/24"])),
        to(block("10.20.1.0/24", &[])),
        to(block("10.20.4.0/22", &["10.20.6.0/23"])),
        from(of_host("ingress-nginx")),
        from(block("198.51.100.128/25", &[])),
    ] {
        credential.expect_allowed(&allowed).await;
    }

    let message = "egress may be allowed only to the tenant's own pods";
    for opened in [
        policy(json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{}]})),
        policy(json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"ports": [{"port": 53}]}]})),
        to(json!({"namespaceSelector": {}})),
        to(of_host("ingress-nginx")),
        to(block("0.0.0.0/0", &[])),
        to(block("10.20.0.0/16", &[])),
        to(block("10.20.0.0/16", &["10.20.7.0/25"])),
        to(block("10.20.7.1/32", &[])),
        to(block("169.254.169.254/32", &[])),
        to(block("198.51.100.0/24", &[])),
        to(block("::/0", &[])),
    ] {
        credential.expect_denied(message, &opened).await;
    }
    let message = "ingress may be allowed only from the tenant's own pods";
    let by_label = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}});
    let mut excepted = of_host("ingress-nginx");
    excepted["namespaceSelector"]["matchExpressions"] = json!([{"key": "a", "operator": "DoesNotExist"}]);
    for opened in [
        policy(json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]})),
        from(json!({"namespaceSelector": {}})),
        from(of_host("kube-system")),
        from(by_label),
        from(excepted),
        from(block("10.20.0.0/16", &[])),
        from(block("198.51.0.0/16", &[])),
    ] {
        credential.expect_denied(message, &opened).await;
    }

    let unmarked = json!({"metadata": {"labels": {"berth.dev/managed-by": "control"}}});
    let unmarked = super::with(&policy(json!({"podSelector": {}})), &unmarked);
    // Two policies deny it, each with its own message.
    credential.expect_denied("label", &unmarked).await;
    let policies: Api<NetworkPolicy> = Api::namespaced(credential.client.clone(), &credential.namespace);
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let opened = Patch::Merge(
        json!({"metadata": {"labels": {"berth.dev/managed-by": "syncer"}}, "spec": {"policyTypes": ["Ingress"]}}),
    );
    let changed = policies.patch("berth-baseline", &params, &opened).await;
    // Either of two policies denies this as well.
    expect_denied("the platform", changed);
    let gone = DeleteParams {
        dry_run: dry_run().dry_run,
        ..DeleteParams::default()
    };
    let denied = "may not delete objects of the platform";
    expect_denied(denied, policies.delete("berth-baseline", &gone).await);
    let maps: Api<ConfigMap> = Api::namespaced(credential.client.clone(), &credential.namespace);
    expect_denied(denied, maps.delete("kube-root-ca.crt", &gone).await);
    assert!(!policies.list(&ListParams::default()).await.unwrap().items.is_empty());
}
