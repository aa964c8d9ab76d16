//! Where the servers of a control plane listen, and where they are reached. The two differ as soon as a server is a pod
//! behind a Service.

use super::certificates::Leaf;
use berth_api::{GatewayDomain, TenantCluster};
use kube::ResourceExt;
use std::net::{IpAddr, SocketAddr};

/// The port of URLs that name none.
const HTTPS: u16 = 443;

/// The ports that servers of one control plane listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The API server.
    pub api_server: u16,
    /// `/healthz`, `/readyz` and `/metrics` of the syncer.
    pub syncer_admin: u16,
    /// Where the syncer answers the API server's admission webhooks.
    pub admission: u16,
    /// Where the syncer takes the API server's connections to the tenant's pods, Services and nodes (HTTP CONNECT).
    pub egress: u16,
    /// DNS, over UDP and TCP.
    pub dns: u16,
}

/// One server: where it listens, and where the other components and control reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address and port that the program binds to.
    pub listen: SocketAddr,
    /// Host name or address under which it is reached; its certificate is valid for it.
    pub host: String,
    /// Port at which it is reached.
    pub port: u16,
}

impl Endpoint {
    /// A server that is reached where it listens.
    pub fn direct(address: SocketAddr) -> Self {
        Self {
            listen: address,
            host: address.ip().to_string(),
            port: address.port(),
        }
    }

    /// A server that listens on every address of its pod and is reached at `host`:`port`.
    pub fn behind(listen_port: u16, host: impl Into<String>, port: u16) -> Self {
        Self {
            listen: SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), listen_port),
            host: host.into(),
            port,
        }
    }

    /// `host:port` at which it is reached, as it stands in a URL.
    pub fn authority(&self) -> String {
        authority(&self.host, self.port)
    }

    /// URL at which it is reached.
    pub fn https_url(&self) -> String {
        format!("https://{}", self.authority())
    }
}

/// `host:port`, with brackets around an IPv6 address.
pub fn authority(host: &str, port: u16) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) => SocketAddr::new(address, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}

/// Where teams reach their API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicEndpoint {
    /// The URL in their kubeconfig.
    pub url: String,
    /// Host names and addresses that the API server's certificate is valid for besides those inside of the cluster.
    pub hosts: Vec<String>,
}

/// Where teams reach the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// The domain in which each tenant has a host name.
    pub domain: GatewayDomain,
    /// The port.
    pub port: u16,
}

impl GatewayConfig {
    /// Host name of a tenant's API server at the gateway.
    pub fn host_name(&self, cluster: &TenantCluster) -> String {
        let namespace = cluster.namespace().unwrap_or_default();
        self.domain.host_name(&namespace, &cluster.name_any())
    }

    /// URL of a tenant's API server at the gateway, as it stands in tokens: without the port that URLs have anyway.
    pub fn url(&self, cluster: &TenantCluster) -> String {
        let host = self.host_name(cluster);
        match self.port {
            HTTPS => format!("https://{host}"),
            port => format!("https://{}", authority(&host, port)),
        }
    }
}

/// Where a tenant's servers listen and are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoints {
    /// The API server, for the other components and control.
    pub api_server: Endpoint,
    /// `/healthz`, `/readyz` and `/metrics` of the syncer.
    pub syncer_admin: Endpoint,
    /// Where the syncer answers the API server's admission webhooks.
    pub admission: Endpoint,
    /// Where the syncer takes the API server's connections to the tenant's pods, Services and nodes (HTTP CONNECT).
    pub egress: Endpoint,
    /// DNS for the tenant's pods.
    pub dns: Endpoint,
    /// The API server, for teams.
    pub public: PublicEndpoint,
    /// URL of the API server at the gateway, if there is one.
    pub gateway: Option<String>,
}

impl Endpoints {
    /// Servers that are all reached at the one address on which they listen.
    pub fn direct(address: IpAddr, ports: &Ports) -> Self {
        let at = |port| Endpoint::direct(SocketAddr::new(address, port));
        let api_server = at(ports.api_server);
        Self {
            public: PublicEndpoint {
                url: api_server.https_url(),
                hosts: Vec::new(),
            },
            api_server,
            syncer_admin: at(ports.syncer_admin),
            admission: at(ports.admission),
            egress: at(ports.egress),
            dns: at(ports.dns),
            gateway: None,
        }
    }
}

impl Leaf {
    /// Valid for these host names and addresses, besides what it is valid for already.
    #[must_use]
    pub fn hosts<'a>(mut self, hosts: impl IntoIterator<Item = &'a str>) -> Self {
        for host in hosts {
            self = match host.parse() {
                Ok(address) => self.ip_address(address),
                Err(_) => self.dns_name(host),
            };
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_hosts_as_urls_do() {
        let pod = Endpoint::behind(6443, "kube-apiserver.berth-a-cp.svc", 443);
        assert_eq!(pod.https_url(), "https://kube-apiserver.berth-a-cp.svc:443");
        assert_eq!(pod.listen.to_string(), "0.0.0.0:6443");
        let process = Endpoint::direct(([127, 0, 0, 1], 16000).into());
        assert_eq!(process.https_url(), "https://127.0.0.1:16000");
        assert_eq!(authority("fd00::1", 443), "[fd00::1]:443");
    }

    #[test]
    fn the_url_at_the_gateway_has_a_port_only_if_it_is_another_one() {
        let mut cluster = TenantCluster::new("vision", berth_api::TenantClusterSpec::default());
        cluster.metadata.namespace = Some("team".into());
        let url = |port| {
            let domain = "clusters.example.com".parse().unwrap();
            GatewayConfig { domain, port }.url(&cluster)
        };
        assert_eq!(url(443), "https://vision.team.clusters.example.com");
        assert_eq!(url(8443), "https://vision.team.clusters.example.com:8443");
    }
}
