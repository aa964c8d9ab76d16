//! What is said about errors of a bucket: one line, without credentials.

use crate::error::StoreError;
use object_store::Error as ObjectError;
use std::error::Error;

/// Characters of a message at most.
const MAX_LENGTH: usize = 400;
/// Credentials that are shorter are not looked for: the words of a message would be replaced.
const SHORTEST_SECRET: usize = 4;
/// The code of S3 for a bucket that does not exist.
const NO_BUCKET: &str = "NoSuchBucket";
/// The code of S3 for a range of bytes that is behind the end of an object.
const BAD_RANGE: &str = "InvalidRange";
/// Codes of S3 that are about credentials and permissions. Their status is not always 401 or 403, and the client does not say which status
/// an answer about an upload of several parts has.
const DENIED_CODES: [&str; 9] = [
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
];

/// Values that may not be in a message.
#[derive(Clone, Default)]
pub(super) struct Secrets(Vec<String>);

impl Secrets {
    /// Of options of a bucket, those that are credentials.
    pub(super) fn of_options(options: &[(String, String)]) -> Self {
        let is_secret = |name: &str| {
            let name = name.to_ascii_lowercase();
            let of_credentials = ["access_key", "token", "customer_key", "proxy_url"];
            of_credentials.iter().any(|words| name.contains(words)) && !name.ends_with("_file")
        };
        let secrets = options.iter().filter(|(name, _)| is_secret(name));
        let mut secrets: Vec<_> = secrets.map(|(_, value)| value.clone()).collect();
        secrets.retain(|value| value.len() >= SHORTEST_SECRET);
        // One may be a part of another one.
        secrets.sort_by_key(|value| std::cmp::Reverse(value.len()));
        Self(secrets)
    }

    /// One line of a text, shortened, without the secrets.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.0 {
            text = text.replace(secret, "(hidden)");
        }
        let is_space = |character: char| character.is_whitespace() || character.is_control();
        let words: Vec<_> = text.split(is_space).filter(|word| !word.is_empty()).collect();
        words.join(" ").chars().take(MAX_LENGTH).collect()
    }

    /// What an answer of a bucket, or that there was none, means for a caller.
    pub(super) fn classify(&self, error: &ObjectError) -> StoreError {
        let all = chain(error);
        let code = between(&all, "<Code>", "</Code>");
        // Other parts of the answer repeat the request with its credentials.
        let text = match (code, between(&all, "<Message>", "</Message>")) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (Some(code), None) => code.to_owned(),
            (None, _) => all.clone(),
        };
        let text = self.hide(&text);
        match error {
            ObjectError::NotFound { .. } => StoreError::NotFound(text),
            _ if code == Some(NO_BUCKET) => StoreError::NotFound(text),
            ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. } => StoreError::Denied(text),
            _ if code.is_some_and(|code| DENIED_CODES.contains(&code)) => StoreError::Denied(text),
            _ => StoreError::Unreachable(text),
        }
    }
}

/// Whether an error says that an object does not exist, in a bucket that exists.
pub(super) fn is_missing_object(error: &ObjectError) -> bool {
    matches!(error, ObjectError::NotFound { .. }) && !chain(error).contains(NO_BUCKET)
}

/// Whether an error says that an object has no byte of those that were asked for.
pub(super) fn is_empty_object(error: &ObjectError) -> bool {
    chain(error).contains(BAD_RANGE)
}

/// The text of an error with what caused it, where it does not contain that.
fn chain(error: &ObjectError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(before)?;
    let (found, _) = rest.split_once(after)?;
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    const ANSWER: &str = "Server returned non-2xx status code: 403 Forbidden: <?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code>\
        <Message>The request signature\nfor AKIDEXAMPLE does not match</Message><AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId>\
        <StringToSign>AWS4-HMAC-SHA256</StringToSign></Error>";

    fn secrets() -> Secrets {
        let options = [
            ("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"),
            ("aws_secret_access_key", "the secret"),
            ("AWS_SESSION_TOKEN", "the secret token"),
            ("AWS_REGION", "us-east-1"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token"),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
        Secrets::of_options(&options)
    }

    fn source(text: &str) -> Box<dyn Error + Send + Sync> {
        Box::new(io::Error::other(text.to_owned()))
    }

    fn generic(text: &str) -> ObjectError {
        ObjectError::Generic {
            store: "S3",
            source: source(text),
        }
    }

    #[test]
    fn credentials_are_hidden_and_all_is_one_line() {
        let denied = ObjectError::PermissionDenied {
            path: "a".to_owned(),
            source: source(ANSWER),
        };
        let found = secrets().classify(&denied);
        let expected = "SignatureDoesNotMatch: The request signature for (hidden) does not match";
        assert_eq!(found, StoreError::Denied(expected.to_owned()));

        let text = "with the secret token,\r\nthe secret and AKIDEXAMPLE in us-east-1 of /var/run/token";
        let hidden = "with (hidden), (hidden) and (hidden) in us-east-1 of /var/run/token";
        assert_eq!(secrets().hide(text), hidden);
        assert_eq!(secrets().hide(&"a ".repeat(1000)).len(), MAX_LENGTH);
    }

    #[test]
    fn errors_say_what_a_caller_can_do() {
        let missing = |text: &str| ObjectError::NotFound {
            path: "a".to_owned(),
            source: source(text),
        };
        let (object, bucket) = (missing("<Code>NoSuchKey</Code>"), missing("<Code>NoSuchBucket</Code>"));
        assert!(is_missing_object(&object) && !is_missing_object(&bucket));
        assert_eq!(
            secrets().classify(&bucket),
            StoreError::NotFound("NoSuchBucket".to_owned())
        );
        assert!(
            matches!(secrets().classify(&generic("no route")), StoreError::Unreachable(text) if text.contains("no route"))
        );
        let expired = generic("<Code>ExpiredToken</Code><Message>It has expired.</Message>");
        assert_eq!(
            secrets().classify(&expired),
            StoreError::Denied("ExpiredToken: It has expired.".to_owned())
        );
        assert!(!is_missing_object(&expired));
        // As errors about uploads of several parts are.
        let no_bucket = generic("<Code>NoSuchBucket</Code>");
        assert!(matches!(secrets().classify(&no_bucket), StoreError::NotFound(_)));
        assert!(matches!(secrets().classify(&generic(ANSWER)), StoreError::Denied(_)));
    }
}
