//! Kubeconfigs for people, which hold no secret: where people sign in (`spec.authentication.kubeconfig` of a TenantCluster), and what
//! control publishes of it (`status.kubeconfig`) for those who may read the TenantCluster.
//!
//! The spec is written by a team, and a program on the machine of somebody else makes a command line of it. So values that could mean
//! something else there than to their reader are refused, by control and by the program.

use std::{fmt, str::FromStr};

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
/// Longest URL to which a browser returns, in bytes.
const MAX_REDIRECT_URL: usize = 256;
/// Names of a person's own machine.
const LOOPBACK: [&str; 2] = ["127.0.0.1", "localhost"];
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
    /// Where the browser of a person returns to, as it is registered at the issuer: `http://127.0.0.1` or `http://localhost`, a port
    /// and a path. Without a port, a free one is taken. Defaults to `http://127.0.0.1/callback`.
    #[serde(rename = "redirectURL", default, skip_serializing_if = "Option::is_none")]
    #[schemars(
        length(max = 256),
        regex(pattern = r"^http://(127\.0\.0\.1|localhost)(:[1-9][0-9]{0,4})?(/[A-Za-z0-9._~/-]*)?$")
    )]
    pub redirect_url: Option<String>,
}

impl KubeconfigSignIn {
    /// The first value that is not what its field is for: the field, and what is wrong.
    pub fn find_error(&self) -> Option<String> {
        let Self {
            issuer,
            client_id,
            scopes,
            redirect_url,
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
        if let Some(wrong) = scopes.iter().find(|scope| !is_scope(scope)) {
            return Some(format!("scopes: {wrong:?} is not a scope"));
        }
        let error = redirect_url.as_deref()?.parse::<LoopbackUrl>().err()?;
        Some(format!("redirectURL: {error}"))
    }
}

/// A URL at which a program on a person's own machine waits for a browser (RFC 8252, 7.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopbackUrl {
    host: &'static str,
    port: Option<u16>,
    path: String,
}

impl Default for LoopbackUrl {
    fn default() -> Self {
        Self {
            host: LOOPBACK[0],
            port: None,
            path: "/callback".into(),
        }
    }
}

impl LoopbackUrl {
    /// The port; none for any that is free.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The path that a request for it has.
    pub fn path(&self) -> &str {
        if self.path.is_empty() { "/" } else { &self.path }
    }

    /// The same with this port.
    #[must_use]
    pub fn with_port(self, port: u16) -> Self {
        Self {
            port: Some(port),
            ..self
        }
    }
}

impl fmt::Display for LoopbackUrl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, path } = self;
        match port {
            Some(port) => write!(formatter, "http://{host}:{port}{path}"),
            None => write!(formatter, "http://{host}{path}"),
        }
    }
}

impl FromStr for LoopbackUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let rest = text.strip_prefix("http://")?;
            let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let (host, port) = match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            };
            let port = match port {
                Some(port) if port.starts_with(|first: char| first.is_ascii_digit()) => Some(port.parse().ok()?),
                Some(_) => return None,
                None => None,
            };
            let is_path = |letter: u8| letter.is_ascii_alphanumeric() || b"._~/-".contains(&letter);
            (text.len() <= MAX_REDIRECT_URL && port != Some(0) && path.bytes().all(is_path)).then_some(())?;
            Some(Self {
                host: LOOPBACK.into_iter().find(|own| *own == host)?,
                port,
                path: path.into(),
            })
        };
        read().ok_or_else(|| {
            format!("{text:?} is not a URL on a person's own machine, such as http://127.0.0.1/callback or http://localhost:8000")
        })
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
            redirect_url: None,
        }
    }

    #[test]
    fn browsers_return_to_the_persons_own_machine_and_nowhere_else() {
        for (text, port, path) in [
            ("http://127.0.0.1/callback", None, "/callback"),
            ("http://localhost", None, "/"),
            ("http://localhost:8000", Some(8000), "/"),
            ("http://127.0.0.1:65535/a/b-c_d.e~f", Some(65535), "/a/b-c_d.e~f"),
        ] {
            let read: LoopbackUrl = text.parse().unwrap();
            assert_eq!(
                (read.port(), read.path(), read.to_string().as_str()),
                (port, path, text)
            );
        }
        assert_eq!(LoopbackUrl::default(), "http://127.0.0.1/callback".parse().unwrap());
        let with_port: LoopbackUrl = "http://localhost/x".parse().unwrap();
        assert_eq!(with_port.with_port(80).to_string(), "http://localhost:80/x");
        let long = format!("http://localhost/{}", "x".repeat(MAX_REDIRECT_URL));
        for text in [
            "",
            "http://",
            "https://localhost/callback",
            "http://127.0.0.1.example.com/callback",
            "http://localhost@example.com/callback",
            "http://10.0.0.1/callback",
            "http://[::1]/callback",
            "http://localhost:/callback",
            "http://localhost:0/callback",
            "http://localhost:+80/callback",
            "http://localhost:65536/callback",
            "http://localhost:80:80/callback",
            "http://localhost/callback?x",
            "http://localhost/call back",
            "http://localhost/\n",
            &long,
        ] {
            assert!(text.parse::<LoopbackUrl>().is_err(), "{text:?}");
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
        assert!(error(|one| one.redirect_url = Some("http://example.com".into())).starts_with("redirectURL: "));
        assert_eq!(error(|one| one.redirect_url = Some("http://localhost".into())), "");
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
