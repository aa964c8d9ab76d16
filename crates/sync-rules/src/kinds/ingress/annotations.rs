//! Annotations of Ingresses and routes. Controllers at the edge of the host read them as configuration, some even as
//! code, for all tenants at once.
//!
//! | annotation | rule |
//! |---|---|
//! | those that the tenant's class lists | copied |
//! | plain settings of ingress-nginx | copied if the value has the expected shape, denied otherwise |
//! | others of ingress controllers and gateways | denied: an Ingress without the protection it asks for is worse than none |
//! | everything else | stays in the tenant, for its own tools: certificates, DNS, deployment |

use crate::{
    model::{Cache, json},
    translation::{fields::FieldIssues, metadata},
};
use berth_api::sync_policy::lists_annotation;
use serde_json::{Map, Value};

/// The older way to name a class.
pub const CLASS: &str = "kubernetes.io/ingress.class";

/// Domains, and beginnings of keys of `kubernetes.io`, that controllers at the edge read.
pub const CONTROLLERS: &[&str] = &[
    "cilium.io",
    "cloud.google.com",
    "getambassador.io",
    "haproxy-ingress.github.io",
    "haproxy.org",
    "ingress.kubernetes.io",
    "istio.io",
    "k8s.apisix.apache.org",
    "konghq.com",
    "networking.gke.io",
    "nginx.com",
    "nginx.org",
    "projectcontour.io",
    "route.openshift.io",
    "service.beta.kubernetes.io",
    "traefik.io",
    "zalando.org",
];

/// What a value may look like.
#[derive(Clone, Copy)]
pub enum Shape {
    /// true or false.
    Flag,
    /// A number, with a unit.
    Number,
    /// One word.
    Word,
    /// Words, addresses, networks.
    List,
    /// A path, with references to parts of the requested one.
    Path,
}

impl Shape {
    fn fits(self, value: &str) -> bool {
        let every = |more: &str| value.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c));
        match self {
            Self::Flag => matches!(value, "true" | "false"),
            Self::Number => {
                let digits = value.strip_suffix(['k', 'K', 'm', 'M', 'g', 'G', 's']).unwrap_or(value);
                digits.parse::<u32>().is_ok() || matches!(digits, "1.0" | "1.1")
            }
            Self::Word => !value.is_empty() && every("._-"),
            Self::List => every("._:/*, -"),
            // `$1` stands for a part of the path; other variables are the controller's own.
            Self::Path => {
                value.starts_with('/')
                    && every("/._$-")
                    && value
                        .split('$')
                        .skip(1)
                        .all(|after| after.starts_with(|c: char| c.is_ascii_digit()))
            }
        }
    }
}

/// Domain of the settings of ingress-nginx.
pub const NGINX: &str = "nginx.ingress.kubernetes.io/";

/// Settings of ingress-nginx that concern the Ingress itself only.
pub const SETTINGS: &[(&str, Shape)] = &[
    ("affinity", Shape::Word),
    ("affinity-mode", Shape::Word),
    ("app-root", Shape::Path),
    ("backend-protocol", Shape::Word),
    ("canary", Shape::Flag),
    ("canary-by-cookie", Shape::Word),
    ("canary-by-header", Shape::Word),
    ("canary-by-header-value", Shape::Word),
    ("canary-weight", Shape::Number),
    ("canary-weight-total", Shape::Number),
    ("client-body-buffer-size", Shape::Number),
    ("cors-allow-credentials", Shape::Flag),
    ("cors-allow-headers", Shape::List),
    ("cors-allow-methods", Shape::List),
    ("cors-allow-origin", Shape::List),
    ("cors-expose-headers", Shape::List),
    ("cors-max-age", Shape::Number),
    ("denylist-source-range", Shape::List),
    ("enable-cors", Shape::Flag),
    ("force-ssl-redirect", Shape::Flag),
    ("limit-burst-multiplier", Shape::Number),
    ("limit-connections", Shape::Number),
    ("limit-rate", Shape::Number),
    ("limit-rate-after", Shape::Number),
    ("limit-rpm", Shape::Number),
    ("limit-rps", Shape::Number),
    ("proxy-body-size", Shape::Number),
    ("proxy-buffer-size", Shape::Number),
    ("proxy-buffering", Shape::Word),
    ("proxy-buffers-number", Shape::Number),
    ("proxy-connect-timeout", Shape::Number),
    ("proxy-http-version", Shape::Number),
    ("proxy-next-upstream-timeout", Shape::Number),
    ("proxy-next-upstream-tries", Shape::Number),
    ("proxy-read-timeout", Shape::Number),
    ("proxy-request-buffering", Shape::Word),
    ("proxy-send-timeout", Shape::Number),
    ("rewrite-target", Shape::Path),
    ("service-upstream", Shape::Flag),
    ("session-cookie-max-age", Shape::Number),
    ("session-cookie-name", Shape::Word),
    ("session-cookie-samesite", Shape::Word),
    ("ssl-redirect", Shape::Flag),
    ("use-regex", Shape::Flag),
    ("whitelist-source-range", Shape::List),
];

fn is_controllers(key: &str) -> bool {
    key.starts_with("kubernetes.io/ingress.") || CONTROLLERS.iter().any(|domain| metadata::in_domain(key, domain))
}

/// Annotations of the host object.
pub fn translate(cache: &Cache, object: &Value, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = Map::new();
    let listed = &cache.tenant.policy.ingress.annotations;
    for (key, value) in json::strings(object, &["metadata", "annotations"]) {
        if key == CLASS || berth_api::labels::is_reserved(&key) {
            continue;
        }
        let field = || format!("metadata.annotations[{key}]");
        let setting = key
            .strip_prefix(NGINX)
            .and_then(|name| SETTINGS.iter().find(|(known, _)| *known == name));
        match setting {
            _ if lists_annotation(listed, &key) => drop(copied.insert(key, value.into())),
            Some((_, shape)) if shape.fits(&value) => drop(copied.insert(key, value.into())),
            Some(_) => issues.deny(field(), "the value has characters that are not offered here"),
            None if is_controllers(&key) => {
                issues.deny(
                    field(),
                    "the controller is shared with others, and this setting is not offered here",
                );
            }
            None => {}
        }
    }
    copied
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tenant::test_tenant;
    use crate::registry;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn settings_cross_and_instructions_do_not() {
        let mut tenant = test_tenant();
        Arc::make_mut(&mut tenant.policy).ingress.annotations = vec!["traefik.io/*".into(), "haproxy.org/check".into()];
        let cache = registry::new_cache(tenant);
        let object = json!({"metadata": {"annotations": {
            "nginx.ingress.kubernetes.io/rewrite-target": "/api/$2", "nginx.ingress.kubernetes.io/proxy-body-size": "100m",
            "nginx.ingress.kubernetes.io/whitelist-source-range": "192.0.2.0/24, 2001:db8::/32",
            "nginx.ingress.kubernetes.io/ssl-redirect": "true; return 200",
            "nginx.ingress.kubernetes.io/app-root": "/$host",
            "nginx.ingress.kubernetes.io/configuration-snippet": "proxy_pass http://169.254.169.254;",
            "nginx.ingress.kubernetes.io/auth-url": "http://auth.example.com",
            "alb.ingress.kubernetes.io/scheme": "internet-facing", "kubernetes.io/ingress.global-static-ip-name": "other",
            "kubernetes.io/ingress.class": "nginx", "traefik.io/middleware": "m", "haproxy.org/check": "true", "haproxy.org/backend-config-snippet": "x",
            "meta.helm.sh/release-name": "web", "cert-manager.io/cluster-issuer": "mine", "berth.dev/tenant": "other", "note": "n"
        }}});
        let mut issues = FieldIssues::default();
        let copied = translate(&cache, &object, &mut issues);
        let denied: Vec<_> = issues.denied.iter().map(ToString::to_string).collect();
        insta::assert_yaml_snapshot!((copied, denied));
    }
}
