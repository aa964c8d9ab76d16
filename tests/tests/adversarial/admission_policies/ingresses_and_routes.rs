//! Ingresses and routes.

use super::{StolenCredential, wait_until_served, with};
use serde_json::{Value, json};

pub(super) async fn validate(credential: &StolenCredential) {
    let rules = |host: &str| {
        let backend = json!({"service": {"name": "s", "port": {"number": 1}}});
        json!([{"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}}])
    };
    let ingress = |more: &Value| {
        let base = json!({"spec": {"ingressClassName": "nginx", "rules": rules("shop.policies.example.com")}});
        credential.object("networking.k8s.io/v1", "Ingress", &with(&base, more))
    };
    let annotated = |key: &str, value: &str| ingress(&json!({"metadata": {"annotations": {key: value}}}));
    for allowed in [
        ingress(&json!({})),
        ingress(&json!({"spec": {"rules": rules("shop.policies.adv-policies.example.org")}})),
        annotated("nginx.ingress.kubernetes.io/rewrite-target", "/$2"),
        annotated("traefik.io/middleware", "m"),
    ] {
        credential.expect_allowed(&allowed).await;
    }
    for (message, denied) in [
        (
            "spec.ingressClassName",
            ingress(&json!({"spec": {"ingressClassName": "internal"}})),
        ),
        (
            "spec.ingressClassName",
            ingress(&json!({"spec": {"ingressClassName": null}})),
        ),
        (
            "spec.rules[].host",
            ingress(&json!({"spec": {"rules": rules("bank.example.com")}})),
        ),
        (
            "spec.rules[].host",
            ingress(&json!({"spec": {"rules": rules("policies.example.com")}})),
        ),
        // Names of the tenant `policies` in another namespace, and of another tenant.
        (
            "spec.rules[].host",
            ingress(&json!({"spec": {"rules": rules("shop.policies.adv-other.example.org")}})),
        ),
        (
            "spec.rules[].host",
            ingress(&json!({"spec": {"rules": rules("shop.other.adv-policies.example.org")}})),
        ),
        (
            "spec.rules[].host",
            ingress(&json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {"number": 1}}}}})),
        ),
        (
            "spec.tls[].hosts",
            ingress(&json!({"spec": {"tls": [{"hosts": ["bank.example.com"]}]}})),
        ),
        (
            "instructions",
            annotated("nginx.ingress.kubernetes.io/configuration-snippet", "return 200;"),
        ),
        (
            "instructions",
            annotated("nginx.ingress.kubernetes.io/rewrite-target", "/; return 200"),
        ),
        ("instructions", annotated("haproxy.org/backend-config-snippet", "x")),
    ] {
        credential.expect_denied(message, &denied).await;
    }
    let route = |more: &Value| {
        let base = json!({"spec": {"parentRefs": [{"name": "public", "namespace": "edge"}], "hostnames": ["a.policies.example.com"]}});
        credential.object("gateway.networking.k8s.io/v1", "HTTPRoute", &with(&base, more))
    };
    wait_until_served(credential, &route(&json!({}))).await;
    for (message, more) in [
        (
            "spec.parentRefs",
            json!({"spec": {"parentRefs": [{"name": "internal", "namespace": "edge"}]}}),
        ),
        (
            "spec.parentRefs",
            json!({"spec": {"parentRefs": [{"kind": "Service", "group": "", "name": "public", "namespace": "edge"}]}}),
        ),
        ("spec.hostnames", json!({"spec": {"hostnames": ["bank.example.com"]}})),
        ("spec.hostnames", json!({"spec": {"hostnames": null}})),
        (
            "spec.useDefaultGateways",
            json!({"spec": {"useDefaultGateways": "All"}}),
        ),
    ] {
        credential.expect_denied(message, &route(&more)).await;
    }
}
