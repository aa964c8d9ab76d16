//! Ingresses and routes: foreign names, and values that could break a controller that all tenants share.

use super::{StolenCredential, wait_until_served, with};
use serde_json::{Value, json};

pub(super) async fn validate(credential: &StolenCredential) {
    ingresses(credential).await;
    paths(credential).await;
    settings(credential).await;
    let route = |more: &Value| {
        let base = json!({"spec": {"parentRefs": [{"name": "public", "namespace": "edge"}], "hostnames": ["a.policies.example.com"]}});
        credential.object("gateway.networking.k8s.io/v1", "HTTPRoute", &with(&base, more))
    };
    wait_until_served(credential, &route(&json!({}))).await;
    names_of_routes(credential, &route).await;
    backends_and_filters_of_routes(credential, &route).await;
    values_of_routes(credential, &route).await;
    routes_of_older_versions(credential).await;
    routes_of_calls(credential).await;
    nulls_of_routes(credential, &route).await;
}

/// The definitions of this test have no schema, so that the API server leaves null where a request has it. What decides whether a route is the tenant's
/// may not be null.
async fn nulls_of_routes(credential: &StolenCredential, route: &impl Fn(&Value) -> Value) {
    let backend = json!({"group": "", "kind": "Service", "namespace": credential.namespace, "name": "s", "port": 80});
    let mirror = json!({"type": "RequestMirror", "requestMirror": {"backendRef": backend}, "extensionRef": {}});
    let known = json!({"type": "RequestMirror", "requestMirror": {"backendRef": backend}});
    let parent =
        json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "edge", "name": "public"});
    let full = route(&json!({"spec": {"parentRefs": [parent], "useDefaultGateways": "None",
        "rules": [{"backendRefs": [backend], "filters": [known]}]}}));
    credential.expect_allowed(&full).await;
    let mut unknown = full.clone();
    unknown["spec"]["rules"][0]["filters"] = json!([mirror]);
    for (route, path) in [
        (&full, "/spec/parentRefs"),
        (&full, "/spec/parentRefs/0/group"),
        (&full, "/spec/parentRefs/0/kind"),
        (&full, "/spec/parentRefs/0/namespace"),
        (&full, "/spec/parentRefs/0/name"),
        (&full, "/spec/useDefaultGateways"),
        (&full, "/spec/hostnames"),
        (&full, "/spec/hostnames/0"),
        (&full, "/spec/rules/0/backendRefs/0/group"),
        (&full, "/spec/rules/0/backendRefs/0/kind"),
        (&full, "/spec/rules/0/backendRefs/0/namespace"),
        (&full, "/spec/rules/0/filters/0/requestMirror/backendRef/namespace"),
        (&unknown, "/spec/rules/0/filters/0/extensionRef"),
    ] {
        let mut route = route.clone();
        *route.pointer_mut(path).unwrap() = Value::Null;
        // An expression is false, or fails.
        match credential.create(&route).await {
            Err(kube::Error::Api(status)) => {
                let is_policy = status.message.contains("ValidatingAdmissionPolicy 'berth-routes'");
                assert!(is_policy, "{path}: {}", status.message);
            }
            other => panic!("{path}: {other:?}"),
        }
    }
}

/// Routes that match methods of services.
async fn routes_of_calls(credential: &StolenCredential) {
    let route = |method: Value| {
        let parent = json!({"name": "public", "namespace": "edge"});
        let rule = json!({"matches": [{ "method": method }]});
        let spec = json!({"parentRefs": [parent], "hostnames": ["a.policies.example.com"], "rules": [rule]});
        credential.object("gateway.networking.k8s.io/v1", "GRPCRoute", &json!({ "spec": spec }))
    };
    wait_until_served(credential, &route(json!({"service": "shop.v1.Cart", "method": "Add"}))).await;
    for denied in [
        json!({"type": "RegularExpression", "service": "(", "method": "Add"}),
        json!({"service": "shop.v1.Cart", "method": "Add\nb"}),
    ] {
        credential
            .expect_denied("matches, hostnames and times", &route(denied))
            .await;
    }
}

/// A host may serve a kind of routes in alpha versions only.
async fn routes_of_older_versions(credential: &StolenCredential) {
    let route = |hostname: &str| {
        let parent = json!({"name": "public", "namespace": "edge"});
        let spec = json!({"parentRefs": [parent], "hostnames": [hostname]});
        credential.object(
            "gateway.networking.k8s.io/v1alpha2",
            "TLSRoute",
            &json!({ "spec": spec }),
        )
    };
    wait_until_served(credential, &route("a.policies.example.com")).await;
    credential
        .expect_denied("spec.hostnames", &route("bank.example.com"))
        .await;
    let mut foreign = route("a.policies.example.com");
    foreign["spec"]["parentRefs"][0]["name"] = "internal".into();
    credential.expect_denied("spec.parentRefs", &foreign).await;
}

async fn ingresses(credential: &StolenCredential) {
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
        // A certificate for every name.
        (
            "spec.tls[].hosts",
            ingress(&json!({"spec": {"tls": [{"secretName": "s"}]}})),
        ),
        ("spec.rules[].host", ingress(&json!({"spec": {"rules": rules("")}}))),
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
}

/// An Ingress with these paths and annotations.
fn with_paths(credential: &StolenCredential, paths: &[Value], annotations: &Value) -> Value {
    let rule = json!({"host": "shop.policies.example.com", "http": {"paths": paths}});
    let more =
        json!({"metadata": {"annotations": annotations}, "spec": {"ingressClassName": "nginx", "rules": [rule]}});
    credential.object("networking.k8s.io/v1", "Ingress", &more)
}

fn path(path: &str, path_type: &str) -> Value {
    json!({"path": path, "pathType": path_type, "backend": {"service": {"name": "s", "port": {"number": 1}}}})
}

/// Paths that a controller could not load, or could read as its own configuration.
async fn paths(credential: &StolenCredential) {
    let plain = |paths: &[Value]| with_paths(credential, paths, &json!({}));
    let regex = |text: &str| {
        let annotations = json!({"nginx.ingress.kubernetes.io/use-regex": "true"});
        with_paths(credential, &[path(text, "ImplementationSpecific")], &annotations)
    };
    // The largest that may pass must not cost more than the API server allows.
    let long = format!("/{}(a|b)?.*", "a".repeat(240));
    let largest = with_paths(
        credential,
        &vec![path(&long, "ImplementationSpecific"); 100],
        &json!({"nginx.ingress.kubernetes.io/rewrite-target": "/$1"}),
    );
    for allowed in [
        plain(&[path("/api/v1.0/~me", "Prefix"), path("/a%20b", "Exact")]),
        regex("/api(/|$)(.*)"),
        regex(r"/files/[\w-]+\.(?:png|jpe?g)$"),
        largest,
    ] {
        credential.expect_allowed(&allowed).await;
    }
    let message = "paths[].path must be a plain path";
    for denied in [
        "/api(/|$)(.*)",
        "/(",
        "/ {} } location /x { proxy_pass http://169.254.169.254; } #",
        "/a;b",
        "/${host}",
        "/a\"b",
        "/a\nb",
        "/a\\",
    ] {
        let denied = plain(&[path(denied, "ImplementationSpecific")]);
        credential.expect_denied(message, &denied).await;
    }
    let prefix = json!({"nginx.ingress.kubernetes.io/use-regex": "true"});
    let prefix = with_paths(credential, &[path("/a(b", "Prefix")], &prefix);
    credential.expect_denied(message, &prefix).await;
    for broken in [
        "/(",
        "/a)",
        "/[z-a]",
        "/(a+)+$",
        "/.*.*.*x",
        "/a{99999}",
        "/(?=a)",
        "/a;",
        "/a b",
        r"/\Q",
    ] {
        credential.expect_denied(message, &regex(broken)).await;
    }
    let long = plain(&[path(&format!("/{}", "a".repeat(300)), "Prefix")]);
    credential.expect_denied(message, &long).await;

    let many = plain(&vec![path("/", "Prefix"); 101]);
    credential.expect_denied("at most 100 rules", &many).await;
    let mut resource = path("/", "Prefix");
    resource["backend"] = json!({"resource": {"apiGroup": "example.com", "kind": "Bucket", "name": "b"}});
    credential
        .expect_denied("backends must be Services", &plain(&[resource]))
        .await;
}

/// Values of settings with which nginx does not start.
async fn settings(credential: &StolenCredential) {
    for (name, value, is_allowed) in [
        ("proxy-body-size", "8m", true),
        ("proxy-buffers-number", "8", true),
        ("proxy-read-timeout", "3600", true),
        ("whitelist-source-range", "192.0.2.0/24, 2001:db8::/32", true),
        ("proxy-body-size", "8 m", false),
        ("proxy-buffering", "yes", false),
        ("proxy-buffers-number", "1", false),
        ("proxy-read-timeout", "-1", false),
        ("limit-connections", "99999", false),
        ("limit-burst-multiplier", "0", false),
        ("use-regex", "maybe", false),
        ("backend-protocol", "FTP", false),
    ] {
        let annotations = json!({ format!("nginx.ingress.kubernetes.io/{name}"): value });
        let ingress = with_paths(credential, &[path("/", "Prefix")], &annotations);
        if is_allowed {
            credential.expect_allowed(&ingress).await;
        } else {
            credential.expect_denied("instructions", &ingress).await;
        }
    }
}

async fn names_of_routes(credential: &StolenCredential, route: &impl Fn(&Value) -> Value) {
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

/// Backends and filters that make a gateway call or do what the tenant could not.
async fn backends_and_filters_of_routes(credential: &StolenCredential, route: &impl Fn(&Value) -> Value) {
    let rule = |rule: &Value| route(&json!({"spec": {"rules": [rule]}}));
    let filter = |filter: Value| rule(&json!({ "filters": [filter] }));
    let to = |backend: &Value| rule(&json!({"backendRefs": [with(&json!({"name": "s", "port": 80}), backend)]}));
    let mirror = |backend: &Value| json!({"type": "RequestMirror", "requestMirror": {"backendRef": with(&json!({"name": "s", "port": 80}), backend)}});
    let itself = json!({"group": "", "kind": "Service", "namespace": credential.namespace});
    for allowed in [to(&itself), filter(mirror(&itself))] {
        credential.expect_allowed(&allowed).await;
    }
    for backend in [
        json!({"kind": "Bucket"}),
        json!({"group": "gateway.envoyproxy.io", "kind": "Backend"}),
        json!({"group": "inference.networking.k8s.io"}),
        json!({"namespace": "kube-system"}),
    ] {
        let of_backend = json!({"backendRefs": [{"name": "s", "port": 80, "filters": [mirror(&backend)]}]});
        for denied in [to(&backend), filter(mirror(&backend)), rule(&of_backend)] {
            credential
                .expect_denied("backends of a route must be Services", &denied)
                .await;
        }
    }
    let extension =
        json!({"type": "ExtensionRef", "extensionRef": {"group": "example.com", "kind": "Filter", "name": "f"}});
    let call =
        json!({"type": "ExternalAuth", "externalAuth": {"protocol": "HTTP", "backendRef": {"name": "s", "port": 80}}});
    for denied in [extension, call, json!({"type": "Newer", "newer": {}})] {
        let of_backend = json!({"backendRefs": [{"name": "s", "port": 80, "filters": [denied]}]});
        for denied in [filter(denied.clone()), rule(&of_backend)] {
            credential.expect_denied("filters of a route", &denied).await;
        }
    }
}

/// Values that a gateway could not load, or could read as its own configuration.
async fn values_of_routes(credential: &StolenCredential, route: &impl Fn(&Value) -> Value) {
    let rule = |rule: &Value| route(&json!({"spec": {"rules": [rule]}}));
    let filter = |filter: Value| rule(&json!({ "filters": [filter] }));
    let matching = |entry: Value| rule(&json!({ "matches": [entry] }));
    let header = |name: &str, value: &str| json!({"requestHeaderModifier": {"set": [{"name": name, "value": value}]}});
    for allowed in [
        matching(
            json!({"path": {"type": "PathPrefix", "value": "/api"}, "method": "GET", "headers": [{"name": "X-A", "value": "b; c"}]}),
        ),
        matching(json!({"path": {"type": "RegularExpression", "value": "/users/[0-9]+"}})),
        filter(header(
            "Strict-Transport-Security",
            "max-age=31536000; includeSubDomains",
        )),
        filter(
            json!({"requestRedirect": {"scheme": "https", "port": 443, "path": {"type": "ReplaceFullPath", "replaceFullPath": "/b"}}}),
        ),
        rule(&json!({"backendRefs": [{"name": "s", "port": 80, "weight": 0}], "timeouts": {"request": "10s"}})),
    ] {
        credential.expect_allowed(&allowed).await;
    }
    let (numbers, matches) = ("numbers of a route", "matches, hostnames and times");
    let (headers, redirects) = ("header filters of a route", "redirects, rewrites, mirrors and CORS");
    for (message, denied) in [
        (
            matches,
            matching(json!({"path": {"type": "RegularExpression", "value": "/("}})),
        ),
        (
            matches,
            matching(json!({"path": {"type": "RegularExpression", "value": "/(a+)+$"}})),
        ),
        (
            matches,
            matching(json!({"path": {"type": "PathPrefix", "value": "/a;b"}})),
        ),
        (
            matches,
            matching(json!({"headers": [{"type": "RegularExpression", "name": "a", "value": "["}]})),
        ),
        (
            matches,
            matching(json!({"headers": [{"name": "a\r\nb", "value": "c"}]})),
        ),
        (
            matches,
            matching(json!({"queryParams": [{"type": "RegularExpression", "name": "a", "value": "*"}]})),
        ),
        (matches, rule(&json!({"timeouts": {"request": "forever"}}))),
        (headers, filter(header("X-A", "b\r\nX-Admin: 1"))),
        (headers, filter(header("X-A: 1\r\nX-B", "c"))),
        (headers, filter(header("X-A", "%UNKNOWN("))),
        (headers, filter(header("Content-Length", "0"))),
        (headers, filter(header("transfer-encoding", "chunked"))),
        (
            headers,
            filter(json!({"responseHeaderModifier": {"add": [{"name": "CONTENT-LENGTH", "value": "0"}]}})),
        ),
        (
            headers,
            filter(json!({"responseHeaderModifier": {"remove": ["Connection"]}})),
        ),
        (
            headers,
            rule(&json!({"backendRefs": [{"name": "s", "port": 80, "filters": [header("hOST", "b")]}]})),
        ),
        (
            headers,
            rule(&json!({"backendRefs": [{"name": "s", "port": 80, "filters": [header("X-A", "b\nc")]}]})),
        ),
        (redirects, filter(json!({"requestRedirect": {"port": 70_000}}))),
        (redirects, filter(json!({"requestRedirect": {"hostname": "a\nb"}}))),
        (
            redirects,
            filter(json!({"urlRewrite": {"path": {"replacePrefixMatch": "/$1\""}}})),
        ),
        (redirects, filter(json!({"requestMirror": {"percent": 1000}}))),
        (redirects, filter(json!({"cors": {"allowOrigins": ["https://a\nb"]}}))),
        (numbers, rule(&json!({"backendRefs": [{"name": "s", "port": 65_536}]}))),
        (
            numbers,
            rule(&json!({"backendRefs": [{"name": "s", "port": 80, "weight": -1}]})),
        ),
        (numbers, route(&json!({"spec": {"rules": vec![json!({}); 17]}}))),
        (numbers, rule(&json!({"matches": vec![json!({}); 65]}))),
    ] {
        credential.expect_denied(message, &denied).await;
    }
}
