//! One request to the issuer and its answer.
//!
//! The HTTP client is that of kube: it has TLS with the one crypto provider, and time limits. It follows no redirects.

use std::time::Duration;

use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use kube::client::Body;
use kube::{Client, Config};
use serde::de::DeserializeOwned;

use super::provider::{OAuthError, SignInError, printable};
use super::trust::Trust;
use crate::error::with_causes;

/// Largest answer in bytes.
const MAX_ANSWER: usize = 1 << 20;
/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends a form, or gets a document. Only over TLS.
pub(super) async fn send(trust: &Trust, url: &str, form: Option<String>) -> Result<(StatusCode, Vec<u8>), SignInError> {
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
    let failed = |why: String| SignInError::Provider(format!("cannot reach {}: {why}", printable(url)));
    let uri: Uri = url.parse().map_err(|_| failed("it is no URL".into()))?;
    let (Some("https"), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err(failed("its URL must begin with https://".into()));
    };
    let path = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let base = Uri::builder()
        .scheme("https")
        .authority(authority.clone())
        .path_and_query("/")
        .build()
        .map_err(|error| failed(error.to_string()))?;
    let mut config = Config::new(base);
    trust.configure(&mut config);
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(TIMEOUT);
    config.write_timeout = Some(TIMEOUT);
    config.default_retry = false;
    let client = Client::try_from(config).map_err(|error| failed(with_causes(&error)))?;
    let request = Request::builder().uri(path).header(header::ACCEPT, "application/json");
    let request = match form {
        Some(form) => request
            .method(http::Method::POST)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(Body::from(form.into_bytes())),
        None => request.method(http::Method::GET).body(Body::empty()),
    };
    let request = request.map_err(|error| failed(error.to_string()))?;
    let exchange = async {
        let response = client
            .send(request)
            .await
            .map_err(|error| failed(with_causes(&error)))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|error| failed(error.to_string()))?;
        Ok((status, body.to_bytes().to_vec()))
    };
    tokio::time::timeout(TIMEOUT, exchange)
        .await
        .map_err(|_| failed(format!("no answer within {} s", TIMEOUT.as_secs())))?
}

/// Reads the answer of an endpoint to a form. An error of OAuth is the inner one.
pub(super) fn read_answer<T: DeserializeOwned>(
    url: &str,
    status: StatusCode,
    body: &[u8],
) -> Result<Result<T, OAuthError>, SignInError> {
    let failed = |why: String| SignInError::Provider(format!("{} {why}", printable(url)));
    if status.is_success() {
        let read = serde_json::from_slice(body);
        return read
            .map(Ok)
            .map_err(|_| failed("sent an answer that cannot be read".into()));
    }
    match serde_json::from_slice::<OAuthError>(body) {
        // Not with 5xx: Dex says invalid_request with 500 while the server where it finds the user does not answer. The refresh token is as
        // good as before.
        Ok(error) if !status.is_server_error() => Ok(Err(error)),
        _ => Err(failed(format!("answered {status}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Answer {
        #[expect(dead_code, reason = "only whether it can be read matters")]
        id_token: Option<String>,
    }

    #[test]
    fn an_issuer_that_fails_has_not_refused() {
        let read = |status, body: &str| read_answer::<Answer>("https://id.example.com/token", status, body.as_bytes());
        let error = r#"{"error": "invalid_request", "refresh_token": "secret"}"#;
        // Dex asks for patience with 401.
        for refused in [StatusCode::BAD_REQUEST, StatusCode::UNAUTHORIZED] {
            assert_eq!(read(refused, error).unwrap().err().unwrap().error, "invalid_request");
        }
        for (status, body) in [
            (StatusCode::INTERNAL_SERVER_ERROR, error),
            (StatusCode::BAD_GATEWAY, "<html>"),
            (StatusCode::BAD_REQUEST, "secret"),
            (StatusCode::OK, r#"{"id_token": {"secret": 1}}"#),
        ] {
            let message = read(status, body).err().unwrap().to_string();
            assert!(message.starts_with("https://id.example.com/token "), "{message}");
            assert!(!message.contains("secret"), "{message}");
        }
    }

    #[tokio::test]
    async fn an_endpoint_that_is_no_url_is_reported_without_what_controls_the_terminal() {
        for url in ["https://id.example.com/\u{1b}[2J", "http://id.example.com/"] {
            let error = send(&Trust::System, url, Some("secret=1".into()))
                .await
                .err()
                .unwrap()
                .to_string();
            assert!(
                error.contains("id.example.com") && !error.contains(['\u{1b}', '=']),
                "{error:?}"
            );
        }
    }
}
