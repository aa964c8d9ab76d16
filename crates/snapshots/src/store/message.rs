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
/// The code of S3 for an object that does not exist.
const NO_OBJECT: &str = "NoSuchKey";
/// The code of S3 for an upload of several parts that is finished or was given up.
const NO_UPLOAD: &str = "NoSuchUpload";
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
        let code = code(&all);
        // Other parts of the answer repeat the request with its credentials.
        let text = match (code, between(&all, "<Message>", "</Message>")) {
            (Some(code), Some(message)) => format!("{code}: {message}"),
            (Some(code), None) => code.to_owned(),
            (None, _) => without_times(&all),
        };
        let text = self.hide(&text);
        match error {
            // The answer to an earlier request that finished it was lost.
            _ if code == Some(NO_UPLOAD) => StoreError::Unreachable(text),
            _ if code == Some(NO_BUCKET) => StoreError::NotFound(text),
            ObjectError::NotFound { .. } => StoreError::NotFound(text),
            ObjectError::PermissionDenied { .. } | ObjectError::Unauthenticated { .. } => StoreError::Denied(text),
            _ if code.is_some_and(|code| DENIED_CODES.contains(&code)) => StoreError::Denied(text),
            _ => StoreError::Unreachable(text),
        }
    }
}

/// Whether an error says that an object does not exist, in a bucket that exists. What is not S3 says only that something does not exist.
pub(super) fn is_missing_object(error: &ObjectError) -> bool {
    matches!(error, ObjectError::NotFound { .. }) && code(&chain(error)) == Some(NO_OBJECT)
}

/// Whether an error says that an object has no byte of those that were asked for.
pub(super) fn is_empty_object(error: &ObjectError) -> bool {
    code(&chain(error)) == Some(BAD_RANGE)
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

/// The client says how long a request took, and how often it was repeated. A text that is in a status has to be the same for the same error.
fn without_times(text: &str) -> String {
    let parts = text.split_once("Error performing ").and_then(|(before, rest)| {
        let (request, rest) = rest.split_once(" in ")?;
        let (_, cause) = rest.split_once(" - ")?;
        Some(format!("{before}Error performing {request}: {cause}"))
    });
    parts.unwrap_or_else(|| text.to_owned())
}

/// The code of S3 in an answer that is an error.
fn code(text: &str) -> Option<&str> {
    between(text, "<Code>", "</Code>")
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
        // Something that is not S3: what is there would not be deleted.
        let page = missing("<html>404 page not found: NoSuchKey</html>");
        assert!(!is_missing_object(&page) && matches!(secrets().classify(&page), StoreError::NotFound(_)));
        // The bucket exists, and trying again helps.
        let upload = missing("<Code>NoSuchUpload</Code>");
        assert!(matches!(secrets().classify(&upload), StoreError::Unreachable(_)));
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

    #[test]
    fn the_same_error_has_the_same_text() {
        let text = |took: &str| {
            let text = format!("Error performing PUT http://store/a in {took} - HTTP error: connection - refused");
            secrets().classify(&generic(&text))
        };
        let expected = "Generic S3 error: Error performing PUT http://store/a: HTTP error: connection - refused";
        assert_eq!(text("1.5s"), StoreError::Unreachable(expected.to_owned()));
        assert_eq!(
            text("2s, after 3 retries, max_retries: 3, retry_timeout: 60s "),
            text("1.5s")
        );
    }
}
