//! The target of a CONNECT: `host:port`. Whatever could be read in two ways is denied.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// The target of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The port; never 0.
    pub port: u16,
}

/// A host as a CONNECT names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name in lower case, without a dot at its end.
    Name(String),
    /// An address.
    Address(IpAddr),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
            Host::Address(address) => write!(f, "{address}:{}", self.port),
        }
    }
}

impl Target {
    /// Reads `host:port`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let (host, port) = text.rsplit_once(':').ok_or("the target has no port")?;
        if port.is_empty() || port.len() > 5 || !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err("the target's port is not a number");
        }
        let port = port
            .parse()
            .ok()
            .filter(|port| *port != 0)
            .ok_or("the target's port is not valid")?;
        let host = if let Some(inner) = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let address: Ipv6Addr = inner.parse().map_err(|_| "the target is not an IPv6 address")?;
            Host::Address(address.into())
        } else if let Ok(address) = host.parse::<Ipv4Addr>() {
            Host::Address(address.into())
        } else {
            Host::Name(name(host)?)
        };
        Ok(Self { host, port })
    }
}

/// A DNS name. Forms that some resolvers take for an address (`127.1`, `0x7f000001`, `2130706433`) are rejected.
fn name(text: &str) -> Result<String, &'static str> {
    const NO_NAME: &str = "the target is neither a host name nor an address";
    let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let label_is_good = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if text.len() > 253 || !text.split('.').all(label_is_good) {
        return Err(NO_NAME);
    }
    let last = text.rsplit('.').next().unwrap_or_default();
    if last.bytes().all(|byte| byte.is_ascii_digit()) || last.starts_with("0x") {
        return Err(NO_NAME);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn targets_are_parsed_unambiguously() {
        let parse = |text| Target::parse(text).map(|target| target.to_string());
        for (text, read) in [
            ("10.0.0.1:443", "10.0.0.1:443"),
            ("[fd00::1]:80", "[fd00::1]:80"),
            ("Hook.Example.COM.:8443", "hook.example.com:8443"),
            ("gpu-h100-01:10250", "gpu-h100-01:10250"),
        ] {
            assert_eq!(parse(text).as_deref(), Ok(read));
        }
        for text in [
            "",
            ":443",
            "example.com",
            "example.com:",
            "example.com:0",
            "example.com:65536",
            "example.com:+443",
            "example.com: 443",
            "example.com:443/path",
            "user@169.254.169.254:80",
            "169.254.169.254#@example.com:80",
            "fd00::1:443",
            "[fe80::1%25eth0]:443",
            "[::1]x:443",
            "127.1:80",
            "0x7f.0x1:80",
            "0x7f000001:80",
            "2130706433:80",
            "0177.0.0.01:80",
            "1.2.3.4.:80",
            "a..b:80",
            "-a.b:80",
            "exa mple.com:80",
            "example.com\r\nHost: x:80",
            "ex\u{e4}mple.com:80",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn parsed_targets_print_and_parse_to_the_same_target(text in ".{0,300}") {
            if let Ok(target) = Target::parse(&text) {
                prop_assert_eq!(Target::parse(&target.to_string()), Ok(target));
            }
        }

        #[test]
        fn addresses_parse_to_themselves(address: IpAddr, port in 1_u16..) {
            let target = Target { host: Host::Address(address), port };
            prop_assert_eq!(Target::parse(&target.to_string()), Ok(target));
        }
    }
}
