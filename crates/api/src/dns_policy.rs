//! The names that the DNS of a class's tenants resolves besides the tenant's own. Part of a [`TenantClass`](crate::TenantClass).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Default port of DNS servers.
const PORT: u16 = 53;

/// The rules of a class for its tenants' DNS. Names of the tenant's cluster are always answered, those of the host
/// cluster never.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DnsPolicy {
    /// Whether names outside of the tenant's cluster are resolved. If not, they do not exist for its pods.
    pub forward: bool,
    /// DNS servers that resolve them, such as `10.0.0.53` or `10.0.0.53:5353`. Empty: the resolver of the node that the
    /// tenant's DNS runs on.
    #[schemars(length(max = 8), inner(length(max = 64), regex(pattern = r"^[0-9a-fA-F.:\[\]]+$")))]
    pub upstreams: Vec<String>,
    /// Domains that are never resolved outside, besides the host cluster's own.
    #[schemars(
        length(max = 64),
        inner(
            length(max = 253),
            regex(pattern = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$")
        )
    )]
    pub blocked_domains: Vec<String>,
    /// Networks in which the DNS servers lie that tenants may ask for domains of their own.
    #[schemars(
        length(max = 64),
        inner(length(max = 43)),
        extend("x-kubernetes-validations" = [
            {"rule": "self.all(c, isCIDR(c))", "message": "every entry must be a network such as 10.20.0.0/16"}
        ])
    )]
    #[serde(rename = "serverCIDRs")]
    pub server_cidrs: Vec<String>,
}

impl Default for DnsPolicy {
    fn default() -> Self {
        Self {
            forward: true,
            upstreams: Vec::new(),
            blocked_domains: Vec::new(),
            server_cidrs: Vec::new(),
        }
    }
}

/// Parses a DNS server of [`DnsPolicy::upstreams`]: an address, with or without a port.
pub fn dns_server(text: &str) -> Option<SocketAddr> {
    let with_port = text.parse::<SocketAddr>().ok();
    with_port.or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, PORT)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_addresses_with_or_without_a_port() {
        for (text, server) in [
            ("10.0.0.53", "10.0.0.53:53"),
            ("10.0.0.53:5353", "10.0.0.53:5353"),
            ("fd00::53", "[fd00::53]:53"),
            ("[fd00::53]:5353", "[fd00::53]:5353"),
        ] {
            assert_eq!(dns_server(text), server.parse().ok());
        }
        for bad in ["dns.example.com", "10.0.0", "10.0.0.53:", "[fd00::53]", ""] {
            assert_eq!(dns_server(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_outside_are_resolved_unless_the_class_says_otherwise() {
        let policy: DnsPolicy = serde_json::from_str("{}").unwrap();
        assert_eq!(policy, DnsPolicy::default());
        assert!(policy.forward);
    }
}
