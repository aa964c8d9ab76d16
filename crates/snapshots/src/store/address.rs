//! What the URL and the options of a store say.

use super::{location::is_name, message::Secrets};
use crate::error::InvalidStore;
use object_store::{ClientConfigKey, aws::AmazonS3ConfigKey};
use std::path::PathBuf;

/// Names of options, in lower case.
const PREFIX: &str = "aws_";
const ALLOW_HTTP: &str = "aws_allow_http";
/// Begins the names of those that are URLs.
const ENDPOINT: &str = "aws_endpoint";
/// What the client of the bucket takes for true.
const TRUE: [&str; 5] = ["1", "true", "on", "yes", "y"];

/// Where a store is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Address {
    Bucket {
        name: String,
        /// Without `/` at its ends; may be empty.
        prefix: String,
    },
    Directory(PathBuf),
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, InvalidStore> {
        // A path may have all characters: the names of home directories have an @ on some machines.
        if let Some(path) = url.strip_prefix("file://") {
            let path = PathBuf::from(path);
            return if path.is_absolute() {
                Ok(Self::Directory(path))
            } else {
                invalid("the URL of the store is not file:/// and the absolute path of a directory")
            };
        }
        // A URL with a user or a query may contain credentials: it is not repeated.
        if url.contains(['@', '?', '#', '%']) {
            return invalid("the URL of a store contains no @, ?, # and %: credentials are options");
        }
        let Some(rest) = url.strip_prefix("s3://") else {
            return invalid(format!("the URL {url} begins neither with s3:// nor with file:///"));
        };
        let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let prefix = prefix.trim_end_matches('/');
        if !is_name(name) {
            return invalid(format!("the URL {url} is not s3:// and the name of a bucket"));
        }
        if !prefix.is_empty() && !prefix.split('/').all(is_name) {
            return invalid(format!(
                "the prefix of {url} does not consist of names with letters, digits and - _ . = that are separated by /"
            ));
        }
        Ok(Self::Bucket {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
        })
    }
}

/// The options of a bucket.
pub(super) struct Options {
    pub(super) of_client: Vec<(AmazonS3ConfigKey, String)>,
    pub(super) secrets: Secrets,
}

impl Options {
    /// Those that the client of buckets does not know are ignored, as the AWS environment variables have more than it needs. Empty ones are not
    /// set.
    pub(super) fn parse(options: impl IntoIterator<Item = (String, String)>) -> Result<Self, InvalidStore> {
        let options: Vec<_> = options
            .into_iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), value))
            .filter(|(name, value)| name.starts_with(PREFIX) && !value.is_empty())
            .collect();
        let is_true = |value: &str| TRUE.contains(&value.to_ascii_lowercase().as_str());
        let allows_http = options.iter().any(|(name, value)| name == ALLOW_HTTP && is_true(value));
        for (name, value) in options.iter().filter(|(name, _)| name.starts_with(ENDPOINT)) {
            check_endpoint(&name.to_ascii_uppercase(), value, allows_http)?;
        }
        let secrets = Secrets::of_options(&options);
        let mut of_client = Vec::new();
        for (name, value) in options {
            let Ok(key) = name.parse::<AmazonS3ConfigKey>() else {
                continue;
            };
            if key == AmazonS3ConfigKey::Client(ClientConfigKey::AllowInvalidCertificates) && is_true(&value) {
                return invalid("the certificate of a bucket is always verified");
            }
            of_client.push((key, value));
        }
        Ok(Self { of_client, secrets })
    }
}

fn check_endpoint(name: &str, url: &str, allows_http: bool) -> Result<(), InvalidStore> {
    if url.contains(['@', '?', '#']) {
        return invalid(format!("{name} contains no @, ? and #: credentials are options"));
    }
    if url.starts_with("https://") {
        return Ok(());
    }
    if !url.starts_with("http://") {
        return invalid(format!("{name} is not a URL that begins with https:// or http://"));
    }
    if !allows_http {
        return invalid(format!(
            "{name} is a URL without TLS: set AWS_ALLOW_HTTP=true if others may read the snapshots"
        ));
    }
    Ok(())
}

fn invalid<T>(text: impl Into<String>) -> Result<T, InvalidStore> {
    Err(InvalidStore(text.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(name: &str, prefix: &str) -> Address {
        Address::Bucket {
            name: name.to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    fn options(options: &[(&str, &str)]) -> Result<Options, InvalidStore> {
        Options::parse(
            options
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned())),
        )
    }

    #[test]
    fn urls_are_buckets_or_directories() {
        let cases = [
            ("s3://snapshots", bucket("snapshots", "")),
            ("s3://snapshots/", bucket("snapshots", "")),
            ("s3://my.snap-shots/berth/a=b/", bucket("my.snap-shots", "berth/a=b")),
            ("file:///var/lib/berth", Address::Directory("/var/lib/berth".into())),
            (
                "file:///home/eve@example.com/a b/100%#?",
                Address::Directory("/home/eve@example.com/a b/100%#?".into()),
            ),
        ];
        for (url, expected) in cases {
            assert_eq!(Address::parse(url).unwrap(), expected, "{url}");
        }
        for url in [
            "",
            "/var/lib",
            "file://",
            "file://host/path",
            "s3://",
            "s3:///prefix",
            "s3://b/a//b",
            "s3://b/../a",
            "s3://b//a",
            "https://bucket.s3.amazonaws.com",
            "gs://bucket",
            "S3://bucket",
        ] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
    }

    #[test]
    fn credentials_in_urls_are_refused_and_not_repeated() {
        for url in [
            "s3://key:secret@bucket/a",
            "https://u:secret@host/",
            "s3://bucket/a?token=secret",
            "file://key:secret@host/path",
        ] {
            let error = Address::parse(url).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"));
        }
        for url in ["https://u:secret@host", "https://host/?token=secret"] {
            let error = options(&[("AWS_ENDPOINT_URL", url)]).err().unwrap();
            assert!(!format!("{error} {error:?}").contains("secret"));
            assert!(error.to_string().contains("AWS_ENDPOINT_URL"));
        }
    }

    #[test]
    fn options_are_those_of_aws() {
        let found = options(&[
            ("AWS_ACCESS_KEY_ID", "key"),
            ("aws_region", "eu-west-1"),
            ("AWS_SESSION_TOKEN", ""),
            ("AWS_STS_REGIONAL_ENDPOINTS", "regional"),
            ("REGION", "elsewhere"),
            ("TOKEN", "of something else"),
        ]);
        let expected = [
            (AmazonS3ConfigKey::AccessKeyId, "key".to_owned()),
            (AmazonS3ConfigKey::Region, "eu-west-1".to_owned()),
        ];
        assert_eq!(found.unwrap().of_client, expected);
    }

    #[test]
    fn without_tls_only_if_that_is_allowed() {
        for name in ["AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3"] {
            let error = options(&[(name, "http://store")]).err().unwrap();
            assert!(error.to_string().starts_with(name), "{error}");
            assert!(options(&[(name, "http://store"), ("AWS_ALLOW_HTTP", "false")]).is_err());
            assert!(options(&[("AWS_ALLOW_HTTP", "True"), (name, "http://store")]).is_ok());
            assert!(options(&[(name, "https://store")]).is_ok());
            assert!(options(&[(name, "store:9000")]).is_err());
        }
        assert!(options(&[("AWS_ALLOW_INVALID_CERTIFICATES", "true")]).is_err());
        assert!(options(&[("AWS_ALLOW_INVALID_CERTIFICATES", "false")]).is_ok());
    }
}
