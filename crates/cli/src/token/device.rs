//! Signing in with a code that the user enters in a browser on any machine (RFC 8628).

use std::time::Duration;

use serde::Deserialize;

use super::cache::Tokens;
use super::provider::{OAuthError, Provider, SignInError, check_page};
use crate::output::print_text;

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
    print_text(format_args!("{}", describe(&begun)?));
    let deadline = tokio::time::Instant::now() + Duration::from_secs(begun.expires_in.min(LONGEST));
    let fields = [("grant_type", GRANT), ("device_code", begun.device_code.as_str())];
    let mut interval = begun.interval.unwrap_or(INTERVAL).clamp(1, LONGEST);
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

/// What the user has to do. It comes from the issuer and is shown on a terminal, so nothing in it may control that.
fn describe(begun: &Begun) -> Result<String, SignInError> {
    let code: String = begun.user_code.chars().filter(char::is_ascii_graphic).collect();
    let page = begun
        .verification_uri_complete
        .as_ref()
        .unwrap_or(&begun.verification_uri);
    check_page(page)
        .map_err(|why| SignInError::Provider(format!("the address that the issuer sent to sign in {why}")))?;
    let verb = if begun.verification_uri_complete.is_some() {
        "confirm"
    } else {
        "enter"
    };
    Ok(format!("Open {page}\nand {verb} the code {code}."))
}

fn next(error: &OAuthError, interval: u64) -> Next {
    match error.error.as_str() {
        "authorization_pending" => Next::Wait(interval),
        "slow_down" => Next::Wait(interval.saturating_add(SLOW_DOWN).min(LONGEST)),
        _ => Next::Fail,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(user_code: &str, page: &str, complete: Option<&str>) -> Begun {
        Begun {
            device_code: "d".into(),
            user_code: user_code.into(),
            verification_uri: page.into(),
            verification_uri_complete: complete.map(Into::into),
            expires_in: 60,
            interval: None,
        }
    }

    #[test]
    fn the_user_sees_a_page_and_a_code_and_nothing_that_controls_the_terminal() {
        const PAGE: &str = "https://id.example.com/device";
        let text = describe(&begun("AB-CD", PAGE, None)).unwrap();
        assert_eq!(text, format!("Open {PAGE}\nand enter the code AB-CD."));
        let complete = format!("{PAGE}?code=AB-CD");
        let text = describe(&begun("AB\u{1b}[2J-CD\n", PAGE, Some(&complete))).unwrap();
        assert_eq!(text, format!("Open {complete}\nand confirm the code AB[2J-CD."));
        for page in [
            "http://id.example.com",
            "https://id.example.com/\u{1b}]0;x\u{7}",
            "file:///x",
        ] {
            let error = describe(&begun("AB", page, None)).err().unwrap().to_string();
            assert!(!error.contains('\u{1b}'), "{error:?}");
        }
    }

    #[test]
    fn waits_are_limited_whatever_the_issuer_says() {
        let slow = OAuthError {
            error: "slow_down".into(),
            error_description: None,
        };
        assert_eq!(super::next(&slow, u64::MAX), Next::Wait(LONGEST));
    }

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
