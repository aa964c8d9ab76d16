//! Connections to API servers.

use crate::{
    answers::LimitAnswers, corrected::CorrectAnswers, long_answers::LongAnswers, page_limit::LimitPages,
    present_lists::ask_for_present,
};
use hyper_util::{
    client::legacy::{Client as HttpClient, connect::HttpConnector},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{ClientBuilder, ConfigExt},
    config::{InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError},
};
use std::{path::Path, time::Duration};
use tower::{BoxError, ServiceExt, util::MapRequestLayer};

/// Maximum time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time without data after which a connection is closed. A healthy watch never reaches it: watches send bookmarks about
/// once a minute, and start again after 290 s.
const READ_TIMEOUT: Duration = Duration::from_secs(295);

/// TCP keepalive of streams: the idle time after which the kernel probes the other end, the number of probes, and how
/// long sent data may stay unacknowledged.
const KEEPALIVE: Duration = Duration::from_secs(30);
const PROBES: u32 = 4;
const UNACKNOWLEDGED: Duration = Duration::from_mins(2);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The kubeconfig cannot be read or used.
    #[error("cannot use the kubeconfig {path}: {source}")]
    Kubeconfig {
        /// The file.
        path: String,
        /// The cause.
        #[source]
        source: Box<KubeconfigError>,
    },
    /// The program does not run in a pod with a service account.
    #[error(
        "no kubeconfig was given, and the process does not run in a pod with a service account: {0}; set --kubeconfig"
    )]
    InCluster(#[source] Box<InClusterError>),
    /// The client cannot be built from the configuration.
    #[error("cannot build a client: {0}")]
    Client(#[source] Box<kube::Error>),
}

/// A client from a kubeconfig file that Berth itself wrote.
///
/// # Errors
/// The file is missing or wrong, or TLS cannot be set up from it. No connection is made yet.
pub async fn from_file(path: &Path) -> Result<Client, ConnectError> {
    limited_and_reading_all(config_of(path).await?)
}

/// The configuration in a kubeconfig file that Berth itself wrote.
///
/// # Errors
/// The file is missing or wrong.
pub async fn config_of(path: &Path) -> Result<Config, ConnectError> {
    config_from(Kubeconfig::read_from(path), &path.display().to_string()).await
}

/// A client from the text of a kubeconfig that Berth itself made. Never pass one that a tenant wrote: a kubeconfig can
/// name programs to run.
///
/// # Errors
/// As [`from_file`].
pub async fn from_text(text: &str) -> Result<Client, ConnectError> {
    limited_and_reading_all(config_from_text(text).await?)
}

/// The configuration in the text of such a kubeconfig.
///
/// # Errors
/// It is wrong.
pub async fn config_from_text(text: &str) -> Result<Config, ConnectError> {
    config_from(Kubeconfig::from_yaml(text), "(text)").await
}

/// The configuration in a kubeconfig that was read from `path`.
async fn config_from(read: Result<Kubeconfig, KubeconfigError>, path: &str) -> Result<Config, ConnectError> {
    let fail = |source| ConnectError::Kubeconfig {
        path: path.into(),
        source: Box::new(source),
    };
    Config::from_custom_kubeconfig(read.map_err(fail)?, &KubeConfigOptions::default())
        .await
        .map_err(fail)
}

/// A client for the cluster in which this program runs as a pod, with its service account.
///
/// # Errors
/// The program does not run in a pod, or has no token.
pub fn in_cluster() -> Result<Client, ConnectError> {
    limited_and_reading_all(config_in_cluster()?)
}

/// The configuration of such a client.
///
/// # Errors
/// As [`in_cluster`].
pub fn config_in_cluster() -> Result<Config, ConnectError> {
    Config::incluster().map_err(|error| ConnectError::InCluster(Box::new(error)))
}

/// A client that [reads all that Kubernetes stores](crate::corrected), with the time limits of the configuration.
///
/// # Errors
/// TLS cannot be set up.
pub fn reading_all(config: Config) -> kube::Result<Client> {
    Ok(ClientBuilder::try_from(config)?
        .with_layer(&CorrectAnswers::All)
        .build())
}

/// The same with Berth's time limits, with [limited](LimitPages) pages of lists, and with streams of lists that are
/// [of now](crate::present_lists): for programs that read what others fill.
///
/// # Errors
/// As [`reading_all`].
pub fn limited_and_reading_all(config: Config) -> Result<Client, ConnectError> {
    let builder = ClientBuilder::try_from(with_limits(config));
    let builder = builder.map_err(|error| ConnectError::Client(Box::new(error)))?;
    // The limit counts what is received.
    Ok(builder
        .with_layer(&LimitPages)
        .with_layer(&MapRequestLayer::new(ask_for_present))
        .with_layer(&CorrectAnswers::All)
        .build())
}

/// A client from a configuration, with Berth's time limits. Of its answers [nothing but the bytes is changed](CorrectAnswers::Bytes), so that
/// all are text: for those who parse no object with others.
///
/// # Errors
/// TLS cannot be set up.
pub fn from_config(config: Config) -> Result<Client, ConnectError> {
    let builder = ClientBuilder::try_from(with_limits(config));
    let builder = builder.map_err(|error| ConnectError::Client(Box::new(error)))?;
    Ok(builder
        .with_layer(&MapRequestLayer::new(ask_for_present))
        .with_layer(&CorrectAnswers::Bytes)
        .build())
}

/// The same for a tenant's API server, whose answers are [limited](LimitAnswers): a tenant can serve a part of its API by a server of its own.
///
/// # Errors
/// As [`from_config`].
pub fn from_config_of_tenant(config: Config) -> Result<Client, ConnectError> {
    let builder = ClientBuilder::try_from(with_limits(config));
    let builder = builder.map_err(|error| ConnectError::Client(Box::new(error)))?;
    Ok(builder
        .with_layer(&LimitAnswers)
        .with_layer(&MapRequestLayer::new(ask_for_present))
        .with_layer(&CorrectAnswers::Bytes)
        .build())
}

/// Berth's time limits for requests.
fn with_limits(mut config: Config) -> Config {
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    config.write_timeout = Some(CONNECT_TIMEOUT);
    // The queue retries: it backs off per object and delays no other object.
    config.default_retry = false;
    // A proxy from the environment would see credentials, and no cluster of Berth is behind one.
    config.proxy_url = None;
    config
}

/// A client for a tenant's API server, from the text of a kubeconfig that Berth itself made. A tenant can serve a part of its API by a
/// server of its own, so answers are [limited](LimitAnswers), and few are long at the same time of all clients with the same places.
///
/// # Errors
/// As [`from_file`].
pub async fn for_tenant(kubeconfig: &str, long: &LongAnswers) -> Result<Client, ConnectError> {
    let config = with_limits(config_from_text(kubeconfig).await?);
    let builder = ClientBuilder::try_from(config).map_err(|error| ConnectError::Client(Box::new(error)))?;
    // The limit counts what is received: of what is corrected nothing may be left.
    Ok(builder.with_layer(long).with_layer(&CorrectAnswers::All).build())
}

/// A client for a tenant's API server with the time limits of the configuration, whose answers are [limited](LimitAnswers), and
/// [corrected](CorrectAnswers). For the programs of people: somebody who changed the kubeconfig may have led it to another server.
///
/// # Errors
/// TLS cannot be set up.
pub fn for_person_in_tenant(config: Config) -> kube::Result<Client> {
    let builder = ClientBuilder::try_from(config)?;
    // The limit counts what is received: of what is corrected nothing may be left.
    Ok(builder
        .with_layer(&LimitAnswers)
        .with_layer(&CorrectAnswers::All)
        .build())
}

/// A client for streams such as exec, port-forward and logs: connections may be silent for any time, as long as the other end
/// is reachable. Each request has a connection of its own.
///
/// # Errors
/// TLS cannot be set up.
pub fn for_streams(config: &Config) -> Result<Client, ConnectError> {
    let fail = |error| ConnectError::Client(Box::new(error));
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
    connector.set_keepalive(Some(KEEPALIVE));
    connector.set_keepalive_interval(Some(KEEPALIVE / PROBES));
    connector.set_keepalive_retries(Some(PROBES));
    connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
    let connector = config.rustls_https_connector_with_connector(connector).map_err(fail)?;
    let client = HttpClient::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build::<_, kube::client::Body>(connector)
        .map_err(BoxError::from);
    let builder = ClientBuilder::new(client, config.default_namespace.as_str()).with_layer(&config.base_uri_layer());
    Ok(match config.auth_layer().map_err(fail)? {
        Some(layer) => builder.with_layer(&layer).build(),
        None => builder.build(),
    })
}
