//! The issuer: its discovery document, and the tokens that it gives.

use berth_api::text::one_line;
use form_urlencoded::{Serializer, byte_serialize};
use http::{StatusCode, Uri};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::error::Error;

use super::cache::Tokens;
use super::exchange::{read_answer, send};
use super::trust::Trust;
use super::{OidcArguments, claims};

/// Fields of forms that nobody else may read.
const SECRET_FIELDS: [&str; 4] = ["code", "code_verifier", "device_code", "refresh_token"];
/// Scope of a refresh token (OpenID Connect Core, 11).
const OFFLINE: &str = "offline_access";

/// Why nobody is signed in. No message contains a token, a code of a sign-in or a secret.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SignInError {
    /// The issuer cannot be reached, or sends what cannot be used.
    #[error("{0}")]
    Provider(String),
    /// The issuer refuses.
    #[error("the issuer refuses to sign you in: {}", describe(error, description.as_deref()))]
    Refused {
        /// The error by its name in OAuth.
        error: String,
        /// What the issuer says about it.
        description: Option<String>,
    },
    /// Something on this machine.
    #[error("{0}")]
    Local(String),
    /// A file.
    #[error(transparent)]
    File(#[from] berth_process::Error),
}

impl From<SignInError> for Error {
    fn from(error: SignInError) -> Self {
        Self::SignIn(error.to_string())
    }
}

fn describe(error: &str, description: Option<&str>) -> String {
    match description {
        Some(description) => format!("{} ({})", printable(description), printable(error)),
        None => printable(error),
    }
}

/// A text of an issuer as it may be shown on a terminal: one line that is not long, and nothing that controls the terminal or the order of letters.
pub(super) fn printable(text: &str) -> String {
    let shown: String = text.chars().filter(|letter| !letter.is_control()).take(300).collect();
    one_line(&shown)
}

/// Whether an address that an issuer sent may be shown on a terminal and opened in a browser.
///
/// # Errors
/// Why not.
pub(super) fn check_page(url: &str) -> Result<(), String> {
    let is_plain = |letter: char| letter.is_ascii_graphic();
    if !url.starts_with("https://") || !url.chars().all(is_plain) || url.contains('#') {
        return Err("is not a plain URL that begins with https://".into());
    }
    let uri: Uri = url.parse().map_err(|_| "is not a URL")?;
    match uri.authority() {
        // It would look like the host.
        Some(authority) if authority.as_str().contains('@') => Err("has a user before its host".into()),
        Some(authority) if !authority.host().is_empty() => Ok(()),
        _ => Err("is not a URL".into()),
    }
}

/// The parts of the discovery document that are used.
#[derive(Debug, Deserialize)]
struct Discovery {
    issuer: String,
    token_endpoint: String,
    authorization_endpoint: Option<String>,
    device_authorization_endpoint: Option<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

impl Discovery {
    /// What an issuer has answered.
    ///
    /// # Errors
    /// It is not the document of `issuer`: the text says why, and has little of what the answer says.
    fn read(issuer: &str, status: StatusCode, body: &[u8]) -> Result<Self, String> {
        if !status.is_success() {
            return Err(format!("the answer is {status}"));
        }
        let discovery: Self = serde_json::from_slice(body).map_err(|error| printable(&error.to_string()))?;
        if discovery.issuer != *issuer {
            return Err(format!(
                "it is of {:?}; use exactly this URL as --issuer",
                printable(&discovery.issuer)
            ));
        }
        // A browser opens it: another scheme would start another program.
        if let Some(endpoint) = discovery.authorization_endpoint.as_deref() {
            check_page(endpoint).map_err(|why| format!("authorization_endpoint {why}"))?;
        }
        Ok(discovery)
    }
}

/// An error of OAuth (RFC 6749, 5.2).
#[derive(Debug, Default, Deserialize)]
pub(super) struct OAuthError {
    pub(super) error: String,
    pub(super) error_description: Option<String>,
}

impl OAuthError {
    /// The error without these texts: some issuers repeat what they were sent, as it was in the form or decoded.
    fn without(self, secrets: &[&str]) -> Self {
        let remove = |text: String| {
            let secrets = secrets.iter().filter(|secret| !secret.is_empty());
            secrets.fold(text, |text, secret| {
                let in_form: String = byte_serialize(secret.as_bytes()).collect();
                text.replace(secret, "[removed]").replace(&in_form, "[removed]")
            })
        };
        Self {
            error: remove(self.error),
            error_description: self.error_description.map(remove),
        }
    }
}

impl From<OAuthError> for SignInError {
    fn from(
        OAuthError {
            error,
            error_description,
        }: OAuthError,
    ) -> Self {
        Self::Refused {
            error,
            description: error_description,
        }
    }
}

#[derive(Deserialize)]
struct TokenAnswer {
    id_token: Option<String>,
    refresh_token: Option<String>,
}

/// An issuer whose discovery document was read.
pub(super) struct Provider {
    discovery: Discovery,
    client_id: String,
    client_secret: Option<String>,
    scopes: Vec<String>,
    trust: Trust,
}

impl Provider {
    /// Reads the discovery document of the issuer.
    pub(super) async fn discover(arguments: &OidcArguments) -> Result<Self, SignInError> {
        let issuer = &arguments.issuer;
        let url = format!("{}/.well-known/openid-configuration", issuer.trim_end_matches('/'));
        let trust = Trust::read(arguments)?;
        let (status, body) = send(&trust, &url, None).await?;
        let discovery = Discovery::read(issuer, status, &body)
            .map_err(|why| SignInError::Provider(format!("{url} is no discovery document of an issuer: {why}")))?;
        let secret = arguments.client_secret_file.as_ref().map(|path| {
            let text = std::fs::read_to_string(path);
            text.map(|text| text.trim().to_owned())
                .map_err(|error| SignInError::Local(format!("cannot read {}: {error}", path.display())))
        });
        Ok(Self {
            discovery,
            client_id: arguments.client_id.clone(),
            client_secret: secret.transpose()?,
            scopes: arguments.scopes.clone(),
            trust,
        })
    }

    /// Where a sign-in with a code begins, if the issuer has that.
    pub(super) fn device_endpoint(&self) -> Option<&str> {
        self.discovery.device_authorization_endpoint.as_deref()
    }

    /// Where a sign-in in a browser begins, if the issuer has that.
    pub(super) fn authorization_endpoint(&self) -> Option<&str> {
        self.discovery.authorization_endpoint.as_deref()
    }

    /// The issuer's URL.
    pub(super) fn issuer(&self) -> &str {
        &self.discovery.issuer
    }

    /// The client's ID.
    pub(super) fn client_id(&self) -> &str {
        &self.client_id
    }

    /// The scopes to request, separated by spaces.
    pub(super) fn scope(&self) -> String {
        let offline = self.discovery.scopes_supported.iter().any(|scope| scope == OFFLINE);
        let mut scopes = vec!["openid"];
        scopes.extend(offline.then_some(OFFLINE));
        let further = self.scopes.iter().map(String::as_str);
        for scope in further {
            if !scopes.contains(&scope) {
                scopes.push(scope);
            }
        }
        scopes.join(" ")
    }

    /// Sends a form with the client's ID to an endpoint of the issuer. An error of OAuth is the inner one.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        url: &str,
        fields: &[(&str, &str)],
    ) -> Result<Result<T, OAuthError>, SignInError> {
        let mut form = Serializer::new(String::new());
        form.append_pair("client_id", &self.client_id);
        if let Some(secret) = &self.client_secret {
            form.append_pair("client_secret", secret);
        }
        form.extend_pairs(fields);
        let (status, body) = send(&self.trust, url, Some(form.finish())).await?;
        let is_secret = |(name, _): &&(&str, &str)| SECRET_FIELDS.contains(name);
        let sent = fields.iter().filter(is_secret).map(|(_, value)| *value);
        let secrets: Vec<&str> = sent.chain(self.client_secret.as_deref()).collect();
        Ok(read_answer(url, status, &body)?.map_err(|error: OAuthError| error.without(&secrets)))
    }

    /// Asks for tokens. An error of OAuth is the inner one.
    pub(super) async fn ask_for_tokens(
        &self,
        fields: &[(&str, &str)],
        nonce: Option<&str>,
    ) -> Result<Result<Tokens, OAuthError>, SignInError> {
        let answer = match self.post::<TokenAnswer>(&self.discovery.token_endpoint, fields).await? {
            Ok(answer) => answer,
            Err(error) => return Ok(Err(error)),
        };
        let TokenAnswer {
            id_token,
            refresh_token,
        } = answer;
        let id_token = id_token.ok_or_else(|| {
            SignInError::Provider("the issuer sent no ID token; check that the client may use the scope openid".into())
        })?;
        let claims = claims::read(&id_token)?;
        claims::check(
            &claims,
            self.issuer(),
            &self.client_id,
            nonce,
            Timestamp::now().as_second(),
        )?;
        Ok(Ok(Tokens {
            id_token,
            refresh_token,
        }))
    }

    /// Asks for other tokens of the same user without the user. `subject` is whom the earlier token is of. None: the user has to sign in again.
    pub(super) async fn refresh(
        &self,
        refresh_token: &str,
        subject: Option<&str>,
    ) -> Result<Option<Tokens>, SignInError> {
        let fields = [("grant_type", "refresh_token"), ("refresh_token", refresh_token)];
        match self
            .post::<TokenAnswer>(&self.discovery.token_endpoint, &fields)
            .await?
        {
            Ok(answer) => {
                // Some issuers send no ID token then (OpenID Connect Core, 12.2).
                let Some(id_token) = answer.id_token else {
                    return Ok(None);
                };
                let claims = claims::read(&id_token)?;
                claims::check(
                    &claims,
                    self.issuer(),
                    &self.client_id,
                    None,
                    Timestamp::now().as_second(),
                )?;
                // OpenID Connect Core, 12.2: nobody becomes another user without signing in.
                if subject.is_some() && claims.sub.as_deref() != subject {
                    return Ok(None);
                }
                Ok(Some(Tokens {
                    id_token,
                    // Without another one the old one stays valid.
                    refresh_token: answer.refresh_token.or_else(|| Some(refresh_token.to_owned())),
                }))
            }
            Err(error) if is_temporary(&error) => Err(error.into()),
            // The refresh token has ended, or the client may not use it any more: to sign in again works, or says why not.
            Err(_) => Ok(None),
        }
    }
}

/// Whether an issuer that sends this error may answer later.
fn is_temporary(error: &OAuthError) -> bool {
    matches!(
        error.error.as_str(),
        "temporarily_unavailable" | "server_error" | "slow_down"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_pages_are_shown_and_opened() {
        for page in [
            "https://id.example.com/auth",
            "https://id.example.com:8443/a?tenant=x&y=%20",
        ] {
            assert_eq!(check_page(page), Ok(()), "{page}");
        }
        for other in [
            "",
            "http://id.example.com/auth",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "vscode://x/y",
            "--help",
            "https://",
            "https:///path",
            "https://id.example.com/a b",
            "https://id.example.com/\u{1b}[2J",
            "https://id.example.com/\nCode: 1",
            "https://id.example.com/#x",
            "https://id.example.com@evil.example.com/auth",
            "https://\u{202e}moc.elpmaxe",
        ] {
            assert!(check_page(other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn errors_that_pass_do_not_make_the_user_sign_in_again() {
        let is_temporary = |error: &str| {
            is_temporary(&OAuthError {
                error: error.into(),
                error_description: None,
            })
        };
        assert!(is_temporary("temporarily_unavailable") && is_temporary("server_error"));
        for final_error in [
            "invalid_grant",
            "invalid_request",
            "unauthorized_client",
            "interaction_required",
        ] {
            assert!(!is_temporary(final_error), "{final_error}");
        }
    }

    #[test]
    fn an_issuer_that_repeats_a_secret_is_not_repeated() {
        let error = OAuthError {
            error: "invalid_grant".into(),
            error_description: Some("the token r-1 of s-2 has ended".into()),
        };
        let error = SignInError::from(error.without(&["r-1", "", "s-2"])).to_string();
        assert!(
            error.ends_with("the token [removed] of [removed] has ended (invalid_grant)"),
            "{error}"
        );
    }

    #[test]
    fn a_secret_is_not_repeated_as_it_was_in_the_form() {
        let error = OAuthError {
            error: "invalid_client".into(),
            error_description: Some("client_secret=a%2Bb%2Fc%3D&grant_type=x: a+b/c= is wrong".into()),
        };
        let description = error.without(&["a+b/c="]).error_description;
        let expected = "client_secret=[removed]&grant_type=x: [removed] is wrong";
        assert_eq!(description.as_deref(), Some(expected));
    }

    #[test]
    fn what_an_issuer_says_cannot_control_the_terminal() {
        let text = describe("access_denied\u{1b}[2J", Some("no\r\nfake: line\u{202e}"));
        assert_eq!(text, "nofake: line\u{fffd} (access_denied[2J)");
    }

    #[test]
    fn an_answer_that_is_no_discovery_document_is_not_repeated_as_a_whole() {
        let read = |status: StatusCode, body: &str| Discovery::read("https://id.example.com", status, body.as_bytes());
        let document = |issuer: &str, scopes: &str| {
            format!(
                r#"{{"issuer": "{issuer}", "token_endpoint": "https://id.example.com/token", "scopes_supported": {scopes}}}"#
            )
        };
        assert!(read(StatusCode::OK, &document("https://id.example.com", "[]")).is_ok());
        assert!(read(StatusCode::FOUND, &document("https://id.example.com", "[]")).is_err());
        let long = "x".repeat(1 << 19);
        for body in [
            document(&long, "[]"),
            document("https://id.example.com", &format!("\"{long}\"")),
        ] {
            let error = read(StatusCode::OK, &body).err().unwrap();
            assert!(error.contains("xxx") && error.len() < 500, "{} bytes", error.len());
        }
    }
}
