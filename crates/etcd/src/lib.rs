//! A client of etcd, with the part of its gRPC API that Berth and its tests use.
//!
//! The crate `etcd-client` offers all of the API and generates it with `protoc` whenever it is built. Berth calls a dozen
//! methods, and building Berth should not require a protocol buffer compiler: see `docs/adr/0014-libraries.md`.

use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

/// etcd's messages and clients. Generated: see `dev/grpc-generator`.
#[expect(
    missing_docs,
    clippy::pedantic,
    reason = "generated; the documentation is in proto/rpc.proto"
)]
pub mod api {
    include!("generated/etcdserverpb.rs");
}

pub use tonic::Status;

use api::{
    auth_client::AuthClient, kv_client::KvClient, lease_client::LeaseClient, maintenance_client::MaintenanceClient,
    watch_client::WatchClient,
};

/// How often an idle connection is checked.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

/// The endpoints of etcd, and the client's credentials.
#[derive(Clone, Debug)]
pub struct ConnectOptions<'a> {
    /// URLs of etcd's members. Requests are spread over them.
    pub endpoints: &'a [String],
    /// Certificate of the authority that signed the members' certificates, PEM.
    pub ca_certificate: &'a str,
    /// The client's certificate, PEM. Its common name is the user.
    pub certificate: &'a str,
    /// The client's key, PEM.
    pub key: &'a str,
    /// Maximum time to connect, and for each request.
    pub timeout: Duration,
}

/// The options have no endpoint, one that is not an `https` URL, or certificates that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOptions {
    /// There is no endpoint.
    #[error("no etcd endpoint is given")]
    NoEndpoint,
    /// An endpoint is not an `https` URL.
    #[error("the etcd endpoint {0} is not an https URL; write it as https://host:2379")]
    NotHttps(String),
    /// A URL or a certificate cannot be read.
    #[error(transparent)]
    Transport(#[from] tonic::transport::Error),
}

/// A client of etcd. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
}

impl Client {
    /// A client that connects with its first request. Must be called in a Tokio runtime.
    ///
    /// # Errors
    /// The options are invalid.
    pub fn new(options: &ConnectOptions<'_>) -> Result<Self, InvalidOptions> {
        if options.endpoints.is_empty() {
            return Err(InvalidOptions::NoEndpoint);
        }
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(options.ca_certificate))
            .identity(Identity::from_pem(options.certificate, options.key));
        let endpoints = options.endpoints.iter().map(|url| {
            if !url.starts_with("https://") {
                return Err(InvalidOptions::NotHttps(url.clone()));
            }
            Ok(Endpoint::from_shared(url.clone())?
                .tls_config(tls.clone())?
                .connect_timeout(options.timeout)
                .timeout(options.timeout)
                .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
                .keep_alive_timeout(options.timeout))
        });
        let endpoints: Vec<Endpoint> = endpoints.collect::<Result<_, InvalidOptions>>()?;
        Ok(Self {
            channel: Channel::balance_list(endpoints.into_iter()),
        })
    }

    /// Keys and values.
    pub fn keys(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone())
    }

    /// Users, roles and permissions.
    pub fn auth(&self) -> AuthClient<Channel> {
        AuthClient::new(self.channel.clone())
    }

    /// Watches of keys.
    pub fn watches(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone())
    }

    /// Leases.
    pub fn leases(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    /// Defragmentation and snapshots.
    pub fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }
}

/// The end of the range of all keys that begin with `prefix`: the smallest key after them.
pub fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // There is no greater key: the range is open.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_a_prefix_ends_before_the_next_key() {
        assert_eq!(prefix_end("/berth/a/"), b"/berth/a0");
        assert_eq!(prefix_end(""), [0]);
    }

    #[tokio::test]
    async fn endpoints_without_tls_are_refused() {
        let refused = |endpoints: &[String]| {
            let options = ConnectOptions {
                endpoints,
                ca_certificate: "",
                certificate: "",
                key: "",
                timeout: Duration::from_secs(1),
            };
            Client::new(&options).unwrap_err().to_string()
        };
        assert_eq!(refused(&[]), "no etcd endpoint is given");
        let plain = "http://127.0.0.1:2379";
        assert_eq!(
            refused(&[plain.into()]),
            format!("the etcd endpoint {plain} is not an https URL; write it as https://host:2379")
        );
    }
}
