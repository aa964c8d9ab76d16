//! Kubeconfigs for people, which hold no secret: where people sign in (`spec.authentication.kubeconfig` of a TenantCluster), and what
//! control publishes of it (`status.kubeconfig`) for those who may read the TenantCluster.
//!
//! The spec is written by a team, and a program on the machine of somebody else makes a command line of it. So values that could mean
//! something else there than to their reader are refused, by control and by the program.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest URL in bytes.
const MAX_URL: usize = 1024;
/// Longest ID of a client in bytes.
const MAX_CLIENT_ID: usize = 256;
/// Most scopes.
const MAX_SCOPES: usize = 16;
/// Longest scope in bytes.
const MAX_SCOPE: usize = 128;
/// Printable characters that have a meaning in URLs other than in a path, or none at all.
const NOT_IN_PLAIN_URLS: &str = "?#@\\\"<>^`{|}";

/// What a kubeconfig needs to sign in with `berth token`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeconfigSignIn {
    /// URL of one of the issuers.
    #[schemars(length(min = 1, max = 1024))]
    pub issuer: String,
    /// ID of a public client (without a secret) at this issuer. Printable ASCII.
    #[serde(rename = "clientID")]
    #[schemars(length(min = 1, max = 256), regex(pattern = r"^[ -~]+$"))]
    pub client_id: String,
    /// Scopes to request besides `openid` and `offline_access`, for example `groups`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(length(min = 1, max = 128), regex(pattern = r"^[!#-\[\]-~]+$"))
    )]
    pub scopes: Vec<String>,
}

impl KubeconfigSignIn {
    /// The first value that is not what its field is for: the field, and what is wrong.
    pub fn find_error(&self) -> Option<String> {
        let Self {
            issuer,
            client_id,
            scopes,
        } = self;
        if !is_plain_https_url(issuer) {
            return Some(format!(
                "issuer: {issuer:?} is not a URL such as https://id.example.com/path in ASCII"
            ));
        }
        if !is_text(client_id, MAX_CLIENT_ID, |letter| matches!(letter, b' '..=b'~')) {
            return Some(format!(
                "clientID: {client_id:?} is not 1 to {MAX_CLIENT_ID} printable ASCII characters"
            ));
        }
        if scopes.len() > MAX_SCOPES {
            return Some(format!("scopes: there are more than {MAX_SCOPES}"));
        }
        // RFC 6749, 3.3.
        let is_scope = |scope: &&String| {
            is_text(scope, MAX_SCOPE, |letter| {
                letter.is_ascii_graphic() && !matches!(letter, b'"' | b'\\')
            })
        };
        let wrong = scopes.iter().find(|scope| !is_scope(scope))?;
        Some(format!("scopes: {wrong:?} is not a scope"))
    }
}

/// What a kubeconfig without a secret needs besides `status.endpoint`. Nothing of it is secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KubeconfigStatus {
    /// Certificates (PEM) of the authorities that the API server is verified with.
    pub certificate_authority: String,
    /// Where people sign in, and as which client.
    #[serde(flatten)]
    pub sign_in: KubeconfigSignIn,
    /// Certificates (PEM) of the authorities that the issuer is verified with. Defaults to those of the system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer_certificate_authority: Option<String>,
}

/// Whether a text is a URL with `https`, a host and at most a path, in printable ASCII: what it shows is where it leads.
pub fn is_plain_https_url(text: &str) -> bool {
    let Some(rest) = text.strip_prefix("https://") else {
        return false;
    };
    let host = rest.split('/').next().unwrap_or_default();
    !host.is_empty()
        && is_text(text, MAX_URL, |letter| {
            letter.is_ascii_graphic() && !NOT_IN_PLAIN_URLS.contains(char::from(letter))
        })
}

fn is_text(text: &str, longest: usize, is_allowed: impl Fn(u8) -> bool) -> bool {
    (1..=longest).contains(&text.len()) && text.bytes().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sign_in() -> KubeconfigSignIn {
        KubeconfigSignIn {
            issuer: "https://id.example.com/realms/staff".into(),
            client_id: "berth".into(),
            scopes: vec!["groups".into()],
        }
    }

    #[test]
    fn urls_lead_where_they_show() {
        for url in [
            "https://id.example.com",
            "https://id.example.com:8443/realms/a/",
            "https://10.0.0.1",
            "https://[fd00::1]:6443",
        ] {
            assert!(is_plain_https_url(url), "{url}");
        }
        for url in [
            "",
            "https://",
            "https:///path",
            "http://id.example.com",
            "HTTPS://id.example.com",
            "file:///etc/passwd",
            "https://id.example.com@evil.example.com",
            "https://id.example.com?next=x",
            "https://id.example.com/#x",
            "https://id.example.com\\@evil.example.com",
            "https://id.example.com/a b",
            "https://id.example.com/\n--ca-file=/x",
            "https://id.example.com/\u{1b}[2J",
            "https://ıd.example.com",
        ] {
            assert!(!is_plain_https_url(url), "{url:?}");
        }
        assert!(!is_plain_https_url(&format!("https://a/{}", "b".repeat(MAX_URL))));
    }

    #[test]
    fn values_that_are_not_what_their_field_is_for_are_named() {
        assert_eq!(sign_in().find_error(), None);
        let error = |change: fn(&mut KubeconfigSignIn)| {
            let mut changed = sign_in();
            change(&mut changed);
            changed.find_error().unwrap_or_default()
        };
        assert!(error(|one| one.issuer = "http://id.example.com".into()).starts_with("issuer: "));
        for client in ["", "a\0b", "a\nb", "ä"] {
            let changed = KubeconfigSignIn {
                client_id: client.into(),
                ..sign_in()
            };
            assert!(changed.find_error().unwrap().starts_with("clientID: "), "{client:?}");
        }
        assert!(error(|one| one.client_id = "x".repeat(257)).starts_with("clientID: "));
        for scope in ["", "a b", "a\"b", "a\\b", "a\nb"] {
            let changed = KubeconfigSignIn {
                scopes: vec!["groups".into(), scope.into()],
                ..sign_in()
            };
            assert!(changed.find_error().unwrap().starts_with("scopes: "), "{scope:?}");
        }
        assert!(error(|one| one.scopes = vec!["x".repeat(129)]).starts_with("scopes: "));
        assert!(error(|one| one.scopes = vec!["x".into(); 17]).starts_with("scopes: "));
    }

    #[test]
    fn what_is_published_has_the_fields_of_the_spec() {
        let published = KubeconfigStatus {
            certificate_authority: "pem".into(),
            sign_in: sign_in(),
            issuer_certificate_authority: None,
        };
        let value = serde_json::to_value(&published).unwrap();
        let expected = json!({
            "certificateAuthority": "pem", "issuer": "https://id.example.com/realms/staff", "clientID": "berth", "scopes": ["groups"],
        });
        assert_eq!(value, expected);
        assert_eq!(serde_json::from_value::<KubeconfigStatus>(value).unwrap(), published);
    }
}
