//! A client of Prometheus, or of anything with the same HTTP API (Thanos, Mimir, VictoriaMetrics): instant queries.
//!
//! The HTTP client below is that of kube: it has TLS with the one crypto provider, a certificate authority and a bearer token that
//! are read again when their files change, and time limits. Any other HTTP client would be a second one in the same process.

#![warn(missing_docs)]

mod answer;

pub use answer::{Answer, Row};

use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Limited};
use kube::{Client, Config, client::Body};
use serde::de::IgnoredAny;
use std::{net::IpAddr, path::PathBuf, time::Duration};

/// Largest answer in bytes: 100,000 rows of 600 bytes.
const MAX_ANSWER: usize = 60_000_000;
/// Characters of an error message of the server that are kept.
const MAX_MESSAGE: usize = 300;

/// Where Prometheus is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusConfig {
    /// Its URL, with a path if it is behind one.
    pub url: Uri,
    /// Certificates of the authorities that signed the server's, in PEM [default: those of the system].
    pub ca_file: Option<PathBuf>,
    /// A file with the bearer token.
    pub token_file: Option<PathBuf>,
    /// Whether the token may be sent without TLS to another machine, where everybody on the way can read it.
    pub allow_insecure_token: bool,
    /// Longest time for one query.
    pub timeout: Duration,
}

impl PrometheusConfig {
    /// The address only, without certificates and token.
    pub const fn new(url: Uri) -> Self {
        Self {
            url,
            ca_file: None,
            token_file: None,
            allow_insecure_token: false,
            timeout: Duration::from_secs(30),
        }
    }
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The URL has no scheme or host.
    #[error("{0} is not the URL of a server; write it as http://host:9090 or https://host/path")]
    Url(Uri),
    /// A token would be sent without TLS.
    #[error(
        "the token for {0} would be sent without encryption; use an https URL, or set --prometheus-allow-insecure-token \
         (gpuMetrics.allowInsecureToken of the chart) if the network is protected otherwise"
    )]
    InsecureToken(Uri),
    /// Certificates or the token cannot be used.
    #[error("cannot build a client of Prometheus: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The server cannot be reached, or the connection ended.
    #[error("cannot reach Prometheus: {0}")]
    Connection(String),
    /// There was no answer in time.
    #[error("Prometheus did not answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// The answer is too large, or the connection ended in it.
    #[error("cannot read the answer of Prometheus: {0}")]
    Body(String),
    /// The server rejected the query or failed.
    #[error("Prometheus answered {status}: {message}")]
    Rejected {
        /// HTTP status.
        status: StatusCode,
        /// What it said.
        message: String,
    },
    /// The answer is not what Prometheus sends.
    #[error("the answer is not one of Prometheus: {0}")]
    Invalid(String),
    /// A part of the data is missing, as the server says.
    #[error("the answer of Prometheus is not complete: {0}")]
    Incomplete(String),
    /// The clock of this machine is behind that of the server.
    #[error("the clock of this machine is {0} s behind that of Prometheus: synchronize both, for example with NTP")]
    ClockBehind(u64),
}

impl QueryError {
    /// The category, one of few values, for metrics.
    pub const fn category(&self) -> &'static str {
        match self {
            Self::Connection(_) => "Connection",
            Self::Timeout(_) => "Timeout",
            Self::Body(_) => "Body",
            Self::Rejected { .. } => "Rejected",
            Self::Invalid(_) => "Invalid",
            Self::Incomplete(_) => "Incomplete",
            Self::ClockBehind(_) => "ClockBehind",
        }
    }
}

/// A client of one Prometheus server.
#[derive(Clone)]
pub struct Prometheus {
    client: Client,
    timeout: Duration,
}

impl Prometheus {
    /// A client. No connection is made yet. Call it within a Tokio runtime.
    ///
    /// # Errors
    /// The URL, the certificates or the token cannot be used, or the token would be sent without TLS.
    pub fn new(config: PrometheusConfig) -> Result<Self, ClientError> {
        const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
        let PrometheusConfig {
            url,
            ca_file,
            token_file,
            allow_insecure_token,
            timeout,
        } = config;
        if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none() {
            return Err(ClientError::Url(url));
        }
        let is_insecure = url.scheme_str() == Some("http") && !url.host().is_some_and(is_loopback);
        if token_file.is_some() && is_insecure && !allow_insecure_token {
            return Err(ClientError::InsecureToken(url));
        }
        let has_own_roots = ca_file.is_some() || url.scheme_str() == Some("http");
        let mut connection = Config::new(url);
        // Those of the system are read otherwise, and not every machine has any.
        connection.root_cert = has_own_roots.then(Vec::new);
        connection.root_cert_file = ca_file;
        connection.auth_info.token_file = token_file.map(|file| file.display().to_string());
        connection.connect_timeout = Some(CONNECT_TIMEOUT);
        connection.read_timeout = Some(timeout);
        connection.write_timeout = Some(timeout);
        connection.reset_reader_on_write = true;
        // The next pass asks again.
        connection.default_retry = false;
        // A proxy from the environment would see the token.
        connection.proxy_url = None;
        let client = Client::try_from(connection).map_err(|error| ClientError::Client(Box::new(error)))?;
        Ok(Self { client, timeout })
    }

    /// A client that sends its requests with another one, for tests.
    pub const fn with_client(client: Client, timeout: Duration) -> Self {
        Self { client, timeout }
    }

    /// What a PromQL expression is at a time (seconds since the epoch).
    ///
    /// # Errors
    /// There is no answer. Whether it is complete is known once its [rows](Answer::rows) are read.
    pub async fn query(&self, promql: &str, at: i64) -> Result<Answer, QueryError> {
        self.query_at(promql, Some(at)).await
    }

    /// Checks that a time is not in the past of the server. What is asked about the past says nothing about now.
    ///
    /// # Errors
    /// There is no complete answer, or `now` is more than a minute behind the clock of the server.
    pub async fn check_clock(&self, now: i64) -> Result<(), QueryError> {
        let answer = self.query_at("vector(time())", None).await?;
        let rows = answer.rows::<IgnoredAny>()?;
        let Some(row) = rows.first() else {
            return Err(QueryError::Invalid("it has no time".to_owned()));
        };
        check_behind(now, row.value)
    }

    /// What an expression is at a time, or now by the clock of the server.
    async fn query_at(&self, promql: &str, at: Option<i64>) -> Result<Answer, QueryError> {
        let asked = tokio::time::timeout(self.timeout, self.ask(promql, at)).await;
        asked.unwrap_or(Err(QueryError::Timeout(self.timeout)))
    }

    fn form(&self, promql: &str, at: Option<i64>) -> String {
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("query", promql);
        form.append_pair("timeout", &format!("{}s", self.timeout.as_secs().max(1)));
        if let Some(at) = at {
            form.append_pair("time", &at.to_string());
        }
        form.finish()
    }

    async fn ask(&self, promql: &str, at: Option<i64>) -> Result<Answer, QueryError> {
        let request = Request::post("/api/v1/query")
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ACCEPT, "application/json")
            .body(Body::from(self.form(promql, at).into_bytes()))
            .map_err(|error| QueryError::Connection(error.to_string()))?;
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| QueryError::Connection(shorten(&describe(&error))))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_ANSWER);
        let collected = body
            .collect()
            .await
            .map_err(|error| QueryError::Body(shorten(&error.to_string())))?;
        Answer::new(status, collected.to_bytes().into())
    }
}

/// Whether a time is too far behind that of the server, both in seconds since the epoch. Being ahead is no error: then samples are too old.
fn check_behind(now: i64, server: f64) -> Result<(), QueryError> {
    const TOLERATED: Duration = Duration::from_secs(60);
    let now = Duration::from_secs(u64::try_from(now).unwrap_or_default());
    let server =
        Duration::try_from_secs_f64(server).map_err(|_| QueryError::Invalid(format!("{server} is no time")))?;
    let behind = server.saturating_sub(now);
    if behind > TOLERATED {
        return Err(QueryError::ClockBehind(behind.as_secs()));
    }
    Ok(())
}

/// An error with its causes: the client's own says only that a request failed.
fn describe(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// The beginning of a message of the server.
fn shorten(message: &str) -> String {
    message.chars().take(MAX_MESSAGE).collect()
}

/// Whether a host of a URL is this machine. A name other than `localhost` may be any machine.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is_address = address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    is_address || host.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests;
