//! Signing in with a code that the user enters in a browser on any machine (RFC 8628).

use std::time::Duration;

use serde::Deserialize;

use super::cache::Tokens;
use super::provider::{OAuthError, Provider, SignInError};

/// Seconds between two requests where the issuer names none (RFC 8628, 3.2).
const INTERVAL: u64 = 5;
/// Seconds that are added when the issuer wants fewer requests (RFC 8628, 3.5).
const SLOW_DOWN: u64 = 5;
/// Longest time in seconds for which this process waits for the user, whatever the issuer allows.
const LONGEST: u64 = 1800;
const GRANT: &str = "urn:ietf:params:oauth:grant-type:device_code";

#[derive(Deserialize)]
struct Begun {
    device_code: String,
    user_code: String,
    // Google's name for it is older than the RFC.
    #[serde(alias = "verification_url")]
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_in: u64,
    interval: Option<u64>,
}

/// What to do after an answer.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    /// Ask again after so many seconds.
    Wait(u64),
    /// Give up.
    Fail,
}

pub(super) async fn sign_in(provider: &Provider) -> Result<Tokens, SignInError> {
    let endpoint = provider.device_endpoint().ok_or_else(|| {
        SignInError::Provider("the issuer has no device flow; use --flow browser on a machine with a browser".into())
    })?;
    let scope = provider.scope();
    let begun: Begun = provider.post(endpoint, &[("scope", scope.as_str())]).await??;
    match &begun.verification_uri_complete {
        Some(url) => eprintln!("Open {url}\nand confirm the code {}.", begun.user_code),
        None => eprintln!(
            "Open {}\nand enter the code {}.",
            begun.verification_uri, begun.user_code
        ),
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(begun.expires_in.min(LONGEST));
    let fields = [("grant_type", GRANT), ("device_code", begun.device_code.as_str())];
    let mut interval = begun.interval.unwrap_or(INTERVAL).max(1);
    loop {
        tokio::time::sleep(Duration::from_secs(interval)).await;
        if tokio::time::Instant::now() > deadline {
            return Err(SignInError::Provider("the code has expired; try again".into()));
        }
        let error = match provider.ask_for_tokens(&fields, None).await? {
            Ok(tokens) => return Ok(tokens),
            Err(error) => error,
        };
        match next(&error, interval) {
            Next::Wait(seconds) => interval = seconds,
            Next::Fail => return Err(error.into()),
        }
    }
}

fn next(error: &OAuthError, interval: u64) -> Next {
    match error.error.as_str() {
        "authorization_pending" => Next::Wait(interval),
        "slow_down" => Next::Wait(interval + SLOW_DOWN),
        _ => Next::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_issuer_decides_how_often_it_is_asked() {
        let next = |error: &str| {
            let error = OAuthError {
                error: error.into(),
                error_description: None,
            };
            next(&error, 5)
        };
        assert_eq!(next("authorization_pending"), Next::Wait(5));
        assert_eq!(next("slow_down"), Next::Wait(10));
        for final_error in ["access_denied", "expired_token", "invalid_grant"] {
            assert_eq!(next(final_error), Next::Fail, "{final_error}");
        }
    }
}
