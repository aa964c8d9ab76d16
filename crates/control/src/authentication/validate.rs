//! What an API server does not start with, as far as it can be known without compiling CEL.

use berth_api::{
    ClaimMappings, ClaimOrExpression, ClaimValidationRule, ExtraMapping, Issuer, JwtAuthenticator, KubeconfigSignIn,
    PrefixedClaimOrExpression, ServiceAccountIssuer, TenantAuthentication, is_reserved_identity,
};
use berth_sync_rules::{
    egress::target::{Host, Target},
    translation::workload_address,
};
use std::collections::BTreeSet;

use crate::control_plane::SERVICE_ACCOUNT_ISSUER;

/// Domains of keys that API servers and Berth keep for themselves.
const RESERVED_DOMAINS: [&str; 3] = ["k8s.io", "kubernetes.io", berth_api::GROUP];

/// Most bytes of authenticators, as JSON. They are in two objects on the host beside other settings, for each of which an API server takes 1 MiB.
pub(super) const MAX_BYTES: usize = 256 * 1024;

/// The first error in what a class or a tenant sets: the field below `authentication`, and what is wrong.
pub fn find_error(rules: &TenantAuthentication) -> Option<String> {
    let TenantAuthentication {
        jwt,
        kubeconfig,
        // Whether there is a gateway is not known here: see [`check_service_account_issuer`].
        service_account_issuer: _,
    } = rules;
    let bytes = serde_json::to_vec(jwt).map_or(0, |text| text.len());
    if bytes > MAX_BYTES {
        return Some(format!(
            "jwt: all issuers together may have at most {MAX_BYTES} bytes as JSON, and have {bytes}; write shorter expressions, or list \
             fewer issuers"
        ));
    }
    let mut urls = BTreeSet::new();
    for (index, authenticator) in jwt.iter().enumerate() {
        let Issuer { url, discovery_url, .. } = &authenticator.issuer;
        for (field, url) in [("url", Some(url)), ("discoveryURL", discovery_url.as_ref())] {
            if let Some(url) = url
                && !urls.insert(url)
            {
                return Some(format!(
                    "jwt[{index}].issuer.{field}: {url} is listed twice; remove one of them"
                ));
            }
        }
        if let Some(error) = find_error_in(authenticator) {
            return Some(format!("jwt[{index}].{error}"));
        }
    }
    let sign_in = kubeconfig.as_ref()?;
    if let Some(error) = sign_in.find_error() {
        return Some(format!("kubeconfig.{error}"));
    }
    let KubeconfigSignIn {
        issuer,
        client_id,
        scopes: _,
        redirect_url: _,
    } = sign_in;
    let issues = |one: &JwtAuthenticator| one.issuer.url == *issuer && one.issuer.audiences.contains(client_id);
    (!jwt.iter().any(issues)).then(|| {
        format!(
            "kubeconfig: tokens of {issuer} for the client {client_id} would not be accepted; list the issuer in jwt, with the client ID \
             among its audiences"
        )
    })
}

/// Whether ServiceAccounts of a tenant can have the issuer that its settings ask for, and no issuer of people is also theirs. `gateway` is the
/// URL of the tenant at the gateway, if there is one.
///
/// # Errors
/// Why not, and what to do.
pub fn check_service_account_issuer(rules: &TenantAuthentication, gateway: Option<&str>) -> Result<(), String> {
    if rules.service_account_issuer == ServiceAccountIssuer::Gateway && gateway.is_none() {
        return Err(
            "spec.authentication.serviceAccountIssuer: Gateway needs a gateway, and the platform has none; remove the field, or ask the \
             platform team to set the chart's gateway.domain"
                .into(),
        );
    }
    let is_own = |one: &JwtAuthenticator| gateway.is_some_and(|own| own == one.issuer.url.trim_end_matches('/'));
    match rules.jwt.iter().position(is_own) {
        Some(index) => Err(format!(
            "spec.authentication.jwt[{index}].issuer.url: {} is the issuer of the tenant's own ServiceAccounts, whose tokens are accepted \
             anyway; remove it",
            rules.jwt[index].issuer.url
        )),
        None => Ok(()),
    }
}

fn find_error_in(authenticator: &JwtAuthenticator) -> Option<String> {
    let JwtAuthenticator {
        issuer,
        claim_validation_rules,
        claim_mappings,
        user_validation_rules,
    } = authenticator;
    if let Some(error) = find_error_in_issuer(issuer) {
        return Some(format!("issuer.{error}"));
    }
    let mut seen = BTreeSet::new();
    for (index, rule) in claim_validation_rules.iter().enumerate() {
        let ClaimValidationRule {
            claim,
            required_value,
            expression,
            message,
        } = rule;
        if claim.is_some() == expression.is_some()
            || (required_value.is_some() && claim.is_none())
            || (message.is_some() && expression.is_none())
        {
            return Some(format!(
                "claimValidationRules[{index}]: give claim and requiredValue, or expression and message"
            ));
        }
        if !seen.insert((claim, expression)) {
            return Some(format!(
                "claimValidationRules[{index}]: another rule is for the same; remove one of them"
            ));
        }
    }
    let mut seen = BTreeSet::new();
    let twice = user_validation_rules
        .iter()
        .position(|rule| !seen.insert(&rule.expression));
    if let Some(index) = twice {
        return Some(format!(
            "userValidationRules[{index}]: another rule is the same; remove one of them"
        ));
    }
    find_error_in_mappings(claim_mappings)
        .map(|error| format!("claimMappings.{error}"))
        .or_else(|| find_unverified_email(authenticator))
}

fn find_error_in_issuer(issuer: &Issuer) -> Option<String> {
    let Issuer {
        url,
        discovery_url,
        certificate_authority,
        audiences,
        // There is one value. Berth sets it where it is missing.
        audience_match_policy: _,
    } = issuer;
    for (field, url) in [("url", Some(url)), ("discoveryURL", discovery_url.as_ref())] {
        if let Some(error) = url.and_then(|url| host_of(url).err()) {
            return Some(format!("{field}: {:?} {error}", url.map_or("", String::as_str)));
        }
    }
    let same_url = |other: &String| other.trim_end_matches('/') == url.trim_end_matches('/');
    if discovery_url.as_ref().is_some_and(same_url) {
        return Some("discoveryURL: it is the same as url; leave it out".into());
    }
    if url.trim_end_matches('/') == SERVICE_ACCOUNT_ISSUER {
        return Some(format!(
            "url: {SERVICE_ACCOUNT_ISSUER} is the issuer of the tenant's ServiceAccounts"
        ));
    }
    if audiences.is_empty() || audiences.iter().any(String::is_empty) {
        return Some("audiences: list at least one audience, such as a client ID".into());
    }
    let pem = certificate_authority.as_deref()?;
    berth_pki::count_certificates(pem)
        .err()
        .map(|error| format!("certificateAuthority: {error}; give certificates in PEM"))
}

/// The host and the port of an `https` URL that an API server may connect to.
///
/// # Errors
/// What is wrong with it, to be put after the URL.
pub(super) fn host_of(url: &str) -> Result<Target, String> {
    const FORM: &str = "is not a URL such as https://id.example.com/path";
    let rest = url.strip_prefix("https://").ok_or(FORM)?;
    // Without user, query and fragment, in any form of writing them.
    if rest.contains(['?', '#', '@', '\\']) || rest.chars().any(|one| one.is_whitespace() || one.is_control()) {
        return Err(FORM.into());
    }
    // Go parses no URL with a percent sign before anything but two hexadecimal digits (RFC 3986, 2.1).
    let is_hex = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !{ rest.split('%').skip(1) }.all(|after| after.get(..2).is_some_and(is_hex)) {
        return Err(FORM.into());
    }
    let authority = rest.split('/').next().unwrap_or_default();
    let target = Target::parse(authority)
        .or_else(|_| Target::parse(&format!("{authority}:443")))
        .map_err(|_| FORM)?;
    if let Host::Address(address) = target.host
        && let Some(kind) = workload_address::special(address)
    {
        return Err(format!("has {kind}, to which API servers do not connect"));
    }
    if target.host == Host::Name("localhost".into()) {
        return Err("is at the API server itself, to which it does not connect".into());
    }
    Ok(target)
}

/// The first of the issuers that a class lists to which no API server connects.
pub fn find_unusable_issuer(urls: &[String]) -> Option<String> {
    urls.iter()
        .find_map(|url| host_of(url).err().map(|error| format!("{url:?} {error}")))
}

fn find_error_in_mappings(mappings: &ClaimMappings) -> Option<String> {
    let ClaimMappings {
        username,
        groups,
        uid,
        extra,
    } = mappings;
    for (field, mapping) in [("username", Some(username)), ("groups", groups.as_ref())] {
        if let Some(error) = mapping.and_then(find_error_in_claim) {
            return Some(format!("{field}: {error}"));
        }
    }
    if let Some(ClaimOrExpression { claim, expression }) = uid
        && claim.is_some() == expression.is_some()
    {
        return Some("uid: give exactly one of claim and expression".into());
    }
    let mut keys = BTreeSet::new();
    for (index, ExtraMapping { key, .. }) in extra.iter().enumerate() {
        let domain = key.split('/').next().unwrap_or_default();
        let is_reserved = RESERVED_DOMAINS
            .iter()
            .any(|reserved| domain == *reserved || domain.ends_with(&format!(".{reserved}")));
        if is_reserved {
            return Some(format!(
                "extra[{index}].key: {key:?} has a reserved domain; use one of your own"
            ));
        }
        if !key.contains('/') || key.chars().any(char::is_uppercase) || !keys.insert(key) {
            return Some(format!(
                "extra[{index}].key: {key:?} must be lower-case, with a domain as in example.com/team, and listed once"
            ));
        }
    }
    None
}

fn find_error_in_claim(mapping: &PrefixedClaimOrExpression) -> Option<String> {
    let PrefixedClaimOrExpression {
        claim,
        prefix,
        expression,
    } = mapping;
    if claim.is_some() == expression.is_some() {
        return Some("give exactly one of claim and expression".into());
    }
    if claim.is_some() != prefix.is_some() {
        return Some("claim needs a prefix, which may be empty, and expression has none".into());
    }
    let prefix = prefix.as_deref().filter(|prefix| is_reserved_identity(prefix))?;
    Some(format!("the prefix {prefix:?} is reserved"))
}

/// API servers require that an expression for the user name with an email also looks at whether the email was verified.
fn find_unverified_email(authenticator: &JwtAuthenticator) -> Option<String> {
    const EMAIL: &str = "claims.email";
    const VERIFIED: &str = "claims.email_verified";
    let username = authenticator.claim_mappings.username.expression.as_deref()?;
    let rest = username.replace(VERIFIED, "");
    let uses_email = rest.match_indices(EMAIL).any(|(at, found)| {
        let next = rest[at + found.len()..].chars().next();
        !next.is_some_and(|letter| letter.is_ascii_alphanumeric() || letter == '_')
    });
    let extra = authenticator.claim_mappings.extra.iter();
    let mut expressions = extra
        .map(|mapping| mapping.value_expression.as_str())
        .chain(
            authenticator
                .claim_validation_rules
                .iter()
                .filter_map(|rule| rule.expression.as_deref()),
        )
        .chain([username]);
    (uses_email && !expressions.any(|text| text.contains(VERIFIED))).then(|| {
        format!(
            "claimMappings.username.expression: uses {EMAIL}, which users of some issuers choose; add a rule to claimValidationRules \
             with the expression {VERIFIED} == true"
        )
    })
}
