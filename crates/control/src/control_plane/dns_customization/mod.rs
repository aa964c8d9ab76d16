//! What a tenant may change about its DNS in the ConfigMap `kube-system/coredns-custom`: four keys with a fixed meaning, never
//! configuration of CoreDNS itself, whose plugins read files and connect to any address. Pure.
//!
//! | key | each line |
//! |---|---|
//! | `hosts` | an address and the names that have it, as in `/etc/hosts` |
//! | `forward` | a domain and the DNS servers that know it |
//! | `rewrite` | a name and the name to look up instead; `*.old.example *.new.example` for all below |
//! | `log` | `on` or `off`: log every query |
//!
//! `#` begins a comment. Entries with an error are skipped and reported; the others take effect.

use berth_api::{DnsPolicy, ranges};
use berth_sync_rules::translation::workload_address;
use ipnet::IpNet;
use std::{collections::BTreeMap, net::IpAddr};

/// Entries per key.
const MAX_ENTRIES: usize = 256;
/// Fields per line.
const MAX_FIELDS: usize = 16;
/// Domains with their own servers: each costs connections and health checks.
const MAX_DOMAINS: usize = 16;
/// Servers per domain.
const MAX_SERVERS: usize = 3;
/// Bytes of all values together.
const MAX_BYTES: usize = 64 << 10;
/// Errors that are reported in full; the others are counted.
const MAX_ERRORS: usize = 8;

/// A tenant's changes to its DNS. Everything is validated: it can be written to CoreDNS's files as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DnsCustomization {
    /// Addresses of names.
    pub hosts: Vec<Host>,
    /// Domains that are forwarded to certain servers.
    pub domains: Vec<Domain>,
    /// Names that are replaced by others.
    pub rewrites: Vec<Rewrite>,
    /// Whether every query is logged.
    pub log: bool,
}

/// A line of `hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The address that the names resolve to.
    pub address: IpAddr,
    /// The names.
    pub names: Vec<String>,
}

/// A line of `forward`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The domain.
    pub name: String,
    /// The DNS servers that it is forwarded to.
    pub servers: Vec<IpAddr>,
}

/// A line of `rewrite`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// The name in the query, without `*.` if subdomains are meant.
    pub from: String,
    /// The name that is looked up instead.
    pub to: String,
    /// Whether the subdomains are meant, and not the name itself.
    pub subdomains: bool,
}

/// What a customization may contain.
#[derive(Clone, Debug)]
pub struct Limits<'a> {
    /// DNS settings of the tenant's class.
    pub policy: &'a DnsPolicy,
    /// The domain of the tenant's cluster. A customization may not change its names.
    pub cluster_domain: &'a str,
    /// Domains that are never forwarded.
    pub blocked_domains: &'a [String],
    /// Networks in which no DNS server may be.
    pub blocked_cidrs: &'a [IpNet],
}

/// Parses the data of the ConfigMap. Returns the valid part, and a message for each error.
pub fn parse_customization(data: &BTreeMap<String, String>, limits: &Limits<'_>) -> (DnsCustomization, Vec<String>) {
    let mut customization = DnsCustomization::default();
    let mut errors = Vec::new();
    if data.values().map(String::len).sum::<usize>() > MAX_BYTES {
        return (
            customization,
            vec![format!("more than {MAX_BYTES} bytes: no entry takes effect")],
        );
    }
    for (key, text) in data {
        let add: fn(&mut DnsCustomization, &[&str], &Limits<'_>) -> Result<(), String> = match key.as_str() {
            "hosts" => add_host,
            "forward" => add_domain,
            "rewrite" => add_rewrite,
            "log" => set_log,
            _ => {
                errors.push(format!(
                    "{key:.63}: only hosts, forward, rewrite and log are read; configuration of CoreDNS itself is not \
                     accepted"
                ));
                continue;
            }
        };
        let lines = text.lines().enumerate().filter_map(|(index, line)| {
            let line = line.split('#').next().unwrap_or_default();
            let fields: Vec<&str> = line.split_whitespace().take(MAX_FIELDS + 1).collect();
            (!fields.is_empty()).then_some((index + 1, fields))
        });
        for (count, (number, fields)) in lines.enumerate() {
            if count == MAX_ENTRIES {
                errors.push(format!("{key}: only the first {MAX_ENTRIES} entries take effect"));
                break;
            }
            let added = if fields.len() > MAX_FIELDS {
                Err(format!("at most {MAX_FIELDS} fields per line"))
            } else {
                add(&mut customization, &fields, limits)
            };
            if let Err(why) = added {
                errors.push(format!("{key}, line {number}: {why}"));
            }
        }
    }
    let more = errors.len().saturating_sub(MAX_ERRORS);
    errors.truncate(MAX_ERRORS);
    if more > 0 {
        errors.push(format!("and {more} more"));
    }
    (customization, errors)
}

fn add_host(customization: &mut DnsCustomization, fields: &[&str], limits: &Limits<'_>) -> Result<(), String> {
    let [address, names @ ..] = fields else { return Ok(()) };
    let address = address
        .parse()
        .map_err(|_| format!("{} is not an address", quote(address)))?;
    if names.is_empty() {
        return Err("a name is missing".into());
    }
    let names = names.iter().map(|name| parse_external_name(name, limits));
    customization.hosts.push(Host {
        address,
        names: names.collect::<Result<_, _>>()?,
    });
    Ok(())
}

fn add_domain(customization: &mut DnsCustomization, fields: &[&str], limits: &Limits<'_>) -> Result<(), String> {
    let [name, servers @ ..] = fields else { return Ok(()) };
    let name = parse_external_name(name, limits)?;
    if ["in-addr.arpa", "ip6.arpa"]
        .iter()
        .any(|zone| is_in_domain(&name, zone))
    {
        return Err("reverse zones cannot be forwarded".into());
    }
    if let Some(blocked) = limits
        .blocked_domains
        .iter()
        .find(|blocked| is_in_domain(&name, blocked))
    {
        return Err(format!("{blocked} is not forwarded"));
    }
    if servers.is_empty() || servers.len() > MAX_SERVERS {
        return Err(format!("give 1 to {MAX_SERVERS} addresses of DNS servers"));
    }
    let servers: Vec<IpAddr> = servers
        .iter()
        .map(|text| parse_server(text, limits))
        .collect::<Result<_, _>>()?;
    if customization.domains.iter().any(|known| known.name == name) {
        return Err(format!("{name} is listed twice"));
    }
    if customization.domains.len() == MAX_DOMAINS {
        return Err(format!("at most {MAX_DOMAINS} domains"));
    }
    customization.domains.push(Domain { name, servers });
    Ok(())
}

/// A DNS server that the tenant may use: in a network that the class lists, and in no blocked one.
fn parse_server(text: &str, limits: &Limits<'_>) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| format!("{} is not an address", quote(text)))?;
    let offered = limits.policy.server_cidrs.iter();
    let is_offered = offered
        .filter_map(|cidr| ranges::parse(cidr).ok())
        .any(|network| network.contains(&address));
    let is_blocked = limits.blocked_cidrs.iter().any(|network| network.contains(&address));
    if is_offered && !is_blocked && workload_address::special(address).is_none() {
        return Ok(address);
    }
    let offer = if limits.policy.server_cidrs.is_empty() {
        "your platform allows no servers".to_owned()
    } else {
        format!("servers in {} are allowed", limits.policy.server_cidrs.join(", "))
    };
    Err(format!("{address} is not an allowed server: {offer}"))
}

fn add_rewrite(customization: &mut DnsCustomization, fields: &[&str], limits: &Limits<'_>) -> Result<(), String> {
    let [from, to] = fields else {
        return Err("give two names: the name in the query, and the name to look up instead".into());
    };
    let (from, to, subdomains) = match (from.strip_prefix("*."), to.strip_prefix("*.")) {
        (Some(from), Some(to)) => (from, to, true),
        (None, None) => (*from, *to, false),
        _ => return Err("both names must begin with *. or neither".into()),
    };
    customization.rewrites.push(Rewrite {
        from: parse_external_name(from, limits)?,
        to: parse_name(to)?,
        subdomains,
    });
    Ok(())
}

fn set_log(customization: &mut DnsCustomization, fields: &[&str], _limits: &Limits<'_>) -> Result<(), String> {
    customization.log = match fields {
        ["on"] => true,
        ["off"] => false,
        _ => return Err("the value must be on or off".into()),
    };
    Ok(())
}

/// A name outside the cluster's domain.
fn parse_external_name(text: &str, limits: &Limits<'_>) -> Result<String, String> {
    let name = parse_name(text)?;
    if is_in_domain(&name, limits.cluster_domain) {
        return Err(format!("names in {} cannot be changed", limits.cluster_domain));
    }
    Ok(name)
}

/// A DNS name in lower case and without a dot at its end.
fn parse_name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(is_label) || name.parse::<IpAddr>().is_ok() {
        return Err(format!("{} is not a name", quote(text)));
    }
    Ok(name)
}

/// Whether a name is `domain` or one below it.
fn is_in_domain(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Text of a tenant, quoted and shortened for a message.
fn quote(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

#[cfg(test)]
mod tests;
