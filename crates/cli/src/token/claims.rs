//! What an ID token says: pure.
//!
//! Its signature is not verified here: the token comes from the issuer itself, over TLS (OpenID Connect Core, 3.1.3.7), and the API server
//! verifies it.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::provider::SignInError;

/// The claims that are checked.
#[derive(Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Claims {
    /// The issuer.
    pub(super) iss: String,
    /// The user, by the issuer's name.
    pub(super) sub: Option<String>,
    /// Whom the token is for.
    pub(super) aud: Audience,
    /// When it expires, in seconds since the epoch.
    pub(super) exp: i64,
    /// What this process made up for one sign-in.
    pub(super) nonce: Option<String>,
}

/// One audience or several.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(super) enum Audience {
    One(String),
    Several(Vec<String>),
}

impl Audience {
    fn has(&self, audience: &str) -> bool {
        match self {
            Self::One(one) => one == audience,
            Self::Several(all) => all.iter().any(|one| one == audience),
        }
    }
}

/// Reads the claims of a token. No error shows a part of it.
pub(super) fn read(token: &str) -> Result<Claims, SignInError> {
    let invalid = || SignInError::Provider("the issuer sent an ID token that cannot be read".into());
    let mut parts = token.split('.');
    let (Some(_), Some(payload), Some(_), None) = (parts.next(), parts.next(), parts.next(), parts.next()) else {
        return Err(invalid());
    };
    let bytes = URL_SAFE_NO_PAD
        .decode(payload.trim_end_matches('='))
        .map_err(|_| invalid())?;
    serde_json::from_slice(&bytes).map_err(|_| invalid())
}

/// Checks that a token is of this issuer, for this client, of this sign-in, and not expired at `now`.
pub(super) fn check(
    claims: &Claims,
    issuer: &str,
    client_id: &str,
    nonce: Option<&str>,
    now: i64,
) -> Result<(), SignInError> {
    let problem = if claims.iss != issuer {
        "it is of another issuer"
    } else if !claims.aud.has(client_id) {
        "it is for another client"
    } else if nonce.is_some() && claims.nonce.as_deref() != nonce {
        "it is not of this sign-in"
    } else if claims.exp <= now {
        "it has expired; set the clock of this machine"
    } else {
        return Ok(());
    };
    Err(SignInError::Provider(format!(
        "the issuer sent an ID token that cannot be used: {problem}"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn token(claims: &Value) -> String {
        format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims.to_string()))
    }

    #[test]
    fn one_audience_and_several_are_read() {
        for aud in [json!("berth"), json!(["x", "berth"])] {
            let claims = read(&token(&json!({"iss": "https://a", "aud": aud, "exp": 10}))).unwrap();
            assert!(check(&claims, "https://a", "berth", None, 9).is_ok());
        }
    }

    #[test]
    fn tokens_of_others_are_rejected() {
        let claims = read(&token(
            &json!({"iss": "https://a", "aud": "berth", "exp": 10, "nonce": "n"}),
        ))
        .unwrap();
        let check = |issuer, client, nonce, now| check(&claims, issuer, client, nonce, now).is_ok();
        assert!(check("https://a", "berth", Some("n"), 9));
        assert!(!check("https://b", "berth", Some("n"), 9));
        assert!(!check("https://a/", "berth", Some("n"), 9));
        assert!(!check("https://a", "other", Some("n"), 9));
        assert!(!check("https://a", "berth", Some("m"), 9));
        assert!(!check("https://a", "berth", Some("n"), 10));
    }

    #[test]
    fn errors_do_not_show_the_token() {
        for bad in ["", "secret", "a.secret.c", "a.b.c.d", "e30.c2VjcmV0.c"] {
            let message = read(bad).unwrap_err().to_string();
            assert!(
                !message.contains("secret") && !message.contains("c2VjcmV0"),
                "{message}"
            );
        }
    }
}
