//! Annotations of Ingresses and routes. Controllers at the edge of the host read them as configuration, some even as
//! code, for all tenants at once.
//!
//! | annotation | rule |
//! |---|---|
//! | those that the tenant's class lists | copied |
//! | plain settings of ingress-nginx | see `settings`: copied if the value is one that the controller can load, denied otherwise |
//! | others of ingress controllers and gateways | denied: an Ingress without the protection it asks for is worse than none |
//! | everything else | stays in the tenant, for its own tools: certificates, DNS, deployment |

use super::settings;
use crate::{
    model::{Cache, json},
    translation::{fields::FieldIssues, metadata},
};
use berth_api::sync_policy::lists_key;
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
        match settings::pattern(&key) {
            _ if lists_key(listed, &key) => drop(copied.insert(key, value.into())),
            Some(pattern) => match pattern.denial(&value) {
                None => drop(copied.insert(key, value.into())),
                Some(why) => issues.deny(field(), why),
            },
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
            "nginx.ingress.kubernetes.io/app-root": "/$host", "nginx.ingress.kubernetes.io/proxy-buffering": "yes",
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
