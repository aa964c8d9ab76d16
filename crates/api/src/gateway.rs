//! Host names at which the gateway serves the API servers of tenants: `<tenant>.<namespace>.<domain>`.

use std::{fmt, str::FromStr};

/// Maximum length of a domain. With the longest names of a TenantCluster (40) and of a namespace (63) and two dots it is a host
/// name of 253 characters, the limit of DNS.
const MAX_DOMAIN: usize = 253 - 40 - 63 - 2;
/// Maximum length of a label in DNS.
const MAX_LABEL: usize = 63;

/// The domain of the gateway: lower-case, without a dot at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayDomain(String);

impl GatewayDomain {
    /// Host name of the API server of the TenantCluster `tenant` in `namespace`. Both are DNS labels, so no two tenants have the
    /// same.
    pub fn host_name(&self, namespace: &str, tenant: &str) -> String {
        format!("{tenant}.{namespace}.{}", self.0)
    }
}

impl fmt::Display for GatewayDomain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for GatewayDomain {
    type Err = String;

    /// Reads a domain in any case.
    ///
    /// # Errors
    /// A message for the author of the domain.
    fn from_str(text: &str) -> Result<Self, String> {
        let domain = text.to_ascii_lowercase();
        if domain.len() > MAX_DOMAIN {
            return Err(format!("a domain of the gateway has at most {MAX_DOMAIN} characters"));
        }
        // The last label must not look like a part of an IPv4 address.
        let last = domain.rsplit('.').next().unwrap_or_default();
        if !domain.split('.').all(is_label) || last.chars().all(|letter| letter.is_ascii_digit()) {
            return Err(format!(
                "{text:?} is not a DNS domain: use one such as clusters.example.com"
            ));
        }
        Ok(Self(domain))
    }
}

fn is_label(label: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=MAX_LABEL).contains(&label.len())
        && label.bytes().all(is_inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tenant_has_a_host_name_of_its_own() {
        let domain: GatewayDomain = "Clusters.Example.com".parse().unwrap();
        assert_eq!(
            domain.host_name("team-a", "vision"),
            "vision.team-a.clusters.example.com"
        );
        assert_eq!(domain.to_string(), "clusters.example.com");
    }

    #[test]
    fn what_is_no_domain_is_rejected() {
        for good in ["example.com", "internal", "a-b.c1", "1.example"] {
            assert!(good.parse::<GatewayDomain>().is_ok(), "{good}");
        }
        let too_long = format!("{}com", "a.".repeat(73));
        assert!(too_long.len() > MAX_DOMAIN);
        for bad in [
            "",
            ".",
            "example.com.",
            "*.example.com",
            "-a.example.com",
            "a_b.example.com",
            "10.0.0.1",
            "https://example.com",
            "example.com:443",
            &"a".repeat(64),
            &too_long,
        ] {
            assert!(bad.parse::<GatewayDomain>().is_err(), "{bad}");
        }
    }
}
