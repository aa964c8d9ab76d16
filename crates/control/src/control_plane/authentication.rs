//! Who authenticates to the tenant's API server, besides client certificates and tokens of ServiceAccounts: OIDC issuers. And anonymous
//! requests: only its health endpoints accept them, for the probes of the kubelet, and the discovery document of its ServiceAccounts if that is
//! public.
//!
//! The file is one of the files that a runtime never changes for a running API server: other issuers are another API server. API servers
//! read it again by themselves, but they keep the issuers that they had if one of the new ones does not answer for a minute, so that an
//! issuer that was removed would still sign people in.

use berth_api::{AudienceMatchPolicy, JwtAuthenticator, RESERVED_PREFIXES, TenantAuthentication};
use serde_json::{Value, json};

/// File of the API server with its authentication configuration.
pub const FILE: &str = "authentication.conf";
/// Path of the liveness probe, without its query.
const LIVE: &str = "/livez";
/// Path of the readiness probe, without its query.
const READY: &str = "/readyz";
/// Paths of the discovery document of ServiceAccounts, and of the public keys that it names (OpenID Connect Discovery, 4).
const DISCOVERY: [&str; 2] = ["/.well-known/openid-configuration", "/openid/v1/jwks"];
/// The connections of the egress selector by which the API server gets the keys of issuers: through the syncer's broker.
const EGRESS: &str = "cluster";

/// The file. `is_discovery_public`: everybody may read the discovery document and the public keys of the tenant's ServiceAccounts.
pub(super) fn configuration(rules: &TenantAuthentication, is_discovery_public: bool) -> String {
    let discovery = DISCOVERY.iter().filter(|_| is_discovery_public);
    let paths = [LIVE, READY].iter().chain(discovery);
    let conditions: Vec<Value> = paths.map(|path| json!({ "path": path })).collect();
    let mut configuration = json!({
        "apiVersion": "apiserver.config.k8s.io/v1",
        "kind": "AuthenticationConfiguration",
        "anonymous": {"enabled": true, "conditions": conditions},
    });
    if !rules.jwt.is_empty() {
        configuration["jwt"] = rules.jwt.iter().map(authenticator).collect();
    }
    configuration.to_string()
}

/// An issuer as the API server reads it, with the platform's rules.
fn authenticator(rules: &JwtAuthenticator) -> Value {
    let mut rules = rules.clone();
    rules.issuer.audience_match_policy = Some(AudienceMatchPolicy::MatchAny);
    // It cannot fail: there are only texts and lists.
    let mut value = serde_json::to_value(&rules).unwrap_or_default();
    value["issuer"]["egressSelectorType"] = EGRESS.into();
    let reserved = reserved_names();
    let mut team = value["userValidationRules"].as_array().cloned().unwrap_or_default();
    // API servers refuse a rule that is there twice.
    team.retain(|rule| reserved.iter().all(|own| own["expression"] != rule["expression"]));
    value["userValidationRules"] = reserved.into_iter().chain(team).collect();
    value
}

/// Rules by which no token authenticates a user, or a member of a group, of Kubernetes or of the platform, whatever the issuer says.
fn reserved_names() -> [Value; 2] {
    let is_free = |name: &str| {
        RESERVED_PREFIXES
            .map(|prefix| format!("!{name}.startsWith('{prefix}')"))
            .join(" && ")
    };
    let rule = |expression: String, what: &str| {
        let message = format!(
            "names of {what} that begin with {} are reserved",
            RESERVED_PREFIXES.join(" or ")
        );
        json!({"expression": expression, "message": message})
    };
    [
        rule(is_free("user.username"), "users"),
        rule(format!("user.groups.all(group, {})", is_free("group")), "groups"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_issuers_only_probes_are_anonymous() {
        let read: Value = serde_json::from_str(&configuration(&TenantAuthentication::default(), false)).unwrap();
        assert!(read.get("jwt").is_none());
        assert_eq!(
            read["anonymous"]["conditions"],
            json!([{"path": "/livez"}, {"path": "/readyz"}])
        );
    }

    #[test]
    fn a_public_discovery_document_is_read_without_credentials_and_nothing_else_is() {
        let read: Value = serde_json::from_str(&configuration(&TenantAuthentication::default(), true)).unwrap();
        let paths = [
            "/livez",
            "/readyz",
            "/.well-known/openid-configuration",
            "/openid/v1/jwks",
        ];
        let expected: Vec<Value> = paths.iter().map(|path| json!({ "path": path })).collect();
        assert_eq!(read["anonymous"]["conditions"], json!(expected));
    }

    #[test]
    fn issuers_are_reached_through_the_broker_and_reserved_names_are_denied_first() {
        let rules = serde_json::from_value(json!({"jwt": [
            {
                "issuer": {"url": "https://a.example.com", "audiences": ["a"]},
                "claimMappings": {"username": {"claim": "sub", "prefix": ""}, "groups": {"claim": "groups", "prefix": ""}},
                "userValidationRules": [
                    {"expression": "!user.username.startsWith('system:') && !user.username.startsWith('berth:')"},
                    {"expression": "user.username != 'x'", "message": "not x"},
                ],
            },
            {
                "issuer": {"url": "https://b.example.com", "audiences": ["b"]},
                "claimMappings": {"username": {"expression": "claims.sub"}},
            },
        ]}))
        .unwrap();
        let read: Value = serde_json::from_str(&configuration(&rules, false)).unwrap();
        for issuer in read["jwt"].as_array().unwrap() {
            assert_eq!(issuer["issuer"]["egressSelectorType"], "cluster");
            assert_eq!(issuer["issuer"]["audienceMatchPolicy"], "MatchAny");
            let expressions: Vec<&str> = issuer["userValidationRules"]
                .as_array()
                .unwrap()
                .iter()
                .map(|rule| rule["expression"].as_str().unwrap())
                .collect();
            assert_eq!(
                expressions[..2],
                [
                    "!user.username.startsWith('system:') && !user.username.startsWith('berth:')",
                    "user.groups.all(group, !group.startsWith('system:') && !group.startsWith('berth:'))",
                ]
            );
        }
        assert_eq!(read["jwt"][0]["userValidationRules"][2]["message"], "not x");
        assert_eq!(read["jwt"][1]["userValidationRules"].as_array().unwrap().len(), 2);
    }
}
