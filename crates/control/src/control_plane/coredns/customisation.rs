//! What a tenant may change about its DNS, in the ConfigMap `kube-system/coredns-custom`: a few words with a fixed meaning,
//! never configuration of CoreDNS, whose plugins read files and connect anywhere. Pure.
//!
//! | key | a line of it |
//! |---|---|
//! | `hosts` | an address and the names that have it, as in `/etc/hosts` |
//! | `forward` | a domain and the DNS servers that know it |
//! | `rewrite` | a name and the name to look up instead; `*.old.example *.new.example` for all below |
//! | `log` | `on` or `off`: log every query |
//!
//! `#` begins a comment. What cannot be had is left out and told; the rest holds.

use berth_api::{DnsPolicy, ranges};
use berth_sync_rules::kinds::networks;
use ipnet::IpNet;
use std::{collections::BTreeMap, net::IpAddr};

/// Entries of each key that are read.
const MOST_ENTRIES: usize = 256;
/// Fields of a line that are read.
const MOST_FIELDS: usize = 16;
/// Domains with servers of their own: each has connections and health checks.
const MOST_DOMAINS: usize = 16;
/// Servers of one such domain.
const MOST_SERVERS: usize = 3;
/// Bytes of all values together.
const LONGEST: usize = 64 << 10;
/// Refusals that are told; more say nothing new.
const MOST_REFUSALS: usize = 8;

/// What a tenant has changed about its DNS. Everything in it was checked: it can stand in CoreDNS's files as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Customisation {
    /// Names with addresses of the tenant's choice.
    pub hosts: Vec<Host>,
    /// Domains that servers of the tenant's choice know.
    pub domains: Vec<Domain>,
    /// Names that stand for others.
    pub rewrites: Vec<Rewrite>,
    /// Whether every query is logged.
    pub log: bool,
}

/// A line of `hosts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The address.
    pub address: IpAddr,
    /// Its names.
    pub names: Vec<String>,
}

/// A line of `forward`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The domain.
    pub name: String,
    /// Who knows it.
    pub servers: Vec<IpAddr>,
}

/// A line of `rewrite`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// What is asked for; without `*.` if all names below are meant.
    pub from: String,
    /// What is looked up instead.
    pub to: String,
    /// Whether the names below are meant, and not the name itself.
    pub below: bool,
}

/// What is allowed.
#[derive(Clone, Debug)]
pub struct Limits<'a> {
    /// The rules of the tenant's class.
    pub policy: &'a DnsPolicy,
    /// The domain of the tenant's cluster, whose names are the cluster's to give.
    pub domain: &'a str,
    /// Domains that are never asked for outside.
    pub blocked_domains: &'a [String],
    /// Networks that the tenant's DNS must not be led to.
    pub blocked: &'a [IpNet],
}

/// Reads the data of the ConfigMap. What is refused is told in the second part, in words, shortened if it is much.
pub fn read(data: &BTreeMap<String, String>, limits: &Limits<'_>) -> (Customisation, Vec<String>) {
    let mut read = Customisation::default();
    let mut refusals = Vec::new();
    if data.values().map(String::len).sum::<usize>() > LONGEST {
        return (
            read,
            vec![format!("more than {LONGEST} bytes: nothing of it is in effect")],
        );
    }
    for (key, text) in data {
        let add: fn(&mut Customisation, &[&str], &Limits<'_>) -> Result<(), String> = match key.as_str() {
            "hosts" => add_host,
            "forward" => add_domain,
            "rewrite" => add_rewrite,
            "log" => set_log,
            _ => {
                refusals.push(format!(
                    "{key:.63}: only hosts, forward, rewrite and log are read; configuration of CoreDNS itself is not \
                     taken"
                ));
                continue;
            }
        };
        let lines = text.lines().enumerate().filter_map(|(index, line)| {
            let line = line.split('#').next().unwrap_or_default();
            let fields: Vec<&str> = line.split_whitespace().take(MOST_FIELDS + 1).collect();
            (!fields.is_empty()).then_some((index + 1, fields))
        });
        for (count, (number, fields)) in lines.enumerate() {
            if count == MOST_ENTRIES {
                refusals.push(format!("{key}: only the first {MOST_ENTRIES} entries are in effect"));
                break;
            }
            let added = if fields.len() > MOST_FIELDS {
                Err(format!("at most {MOST_FIELDS} words a line"))
            } else {
                add(&mut read, &fields, limits)
            };
            if let Err(why) = added {
                refusals.push(format!("{key}, line {number}: {why}"));
            }
        }
    }
    let more = refusals.len().saturating_sub(MOST_REFUSALS);
    refusals.truncate(MOST_REFUSALS);
    if more > 0 {
        refusals.push(format!("and {more} more"));
    }
    (read, refusals)
}

fn add_host(read: &mut Customisation, fields: &[&str], limits: &Limits<'_>) -> Result<(), String> {
    let [address, names @ ..] = fields else { return Ok(()) };
    let address = address
        .parse()
        .map_err(|_| format!("{} is not an address", shown(address)))?;
    if names.is_empty() {
        return Err("a name is missing".into());
    }
    let names = names.iter().map(|name| outside(name, limits));
    read.hosts.push(Host {
        address,
        names: names.collect::<Result<_, _>>()?,
    });
    Ok(())
}

fn add_domain(read: &mut Customisation, fields: &[&str], limits: &Limits<'_>) -> Result<(), String> {
    let [name, servers @ ..] = fields else { return Ok(()) };
    let name = outside(name, limits)?;
    if ["in-addr.arpa", "ip6.arpa"].iter().any(|zone| is_within(&name, zone)) {
        return Err("names of addresses are not looked up elsewhere".into());
    }
    if let Some(blocked) = limits.blocked_domains.iter().find(|blocked| is_within(&name, blocked)) {
        return Err(format!("{blocked} is not asked for outside"));
    }
    if servers.is_empty() || servers.len() > MOST_SERVERS {
        return Err(format!("give 1 to {MOST_SERVERS} addresses of DNS servers"));
    }
    let servers: Vec<IpAddr> = servers
        .iter()
        .map(|text| server(text, limits))
        .collect::<Result<_, _>>()?;
    if read.domains.iter().any(|known| known.name == name) {
        return Err(format!("{name} is there twice"));
    }
    if read.domains.len() == MOST_DOMAINS {
        return Err(format!("at most {MOST_DOMAINS} domains"));
    }
    read.domains.push(Domain { name, servers });
    Ok(())
}

/// A DNS server that the tenant may have asked: in a network that the class names for it, and in none that is blocked.
fn server(text: &str, limits: &Limits<'_>) -> Result<IpAddr, String> {
    let address: IpAddr = text.parse().map_err(|_| format!("{} is not an address", shown(text)))?;
    let offered = limits.policy.server_cidrs.iter();
    let is_offered = offered
        .filter_map(|cidr| ranges::parse(cidr).ok())
        .any(|network| network.contains(&address));
    let is_blocked = limits.blocked.iter().any(|network| network.contains(&address));
    if is_offered && !is_blocked && networks::is_workload_address(address) {
        return Ok(address);
    }
    let offer = if limits.policy.server_cidrs.is_empty() {
        "your platform offers none".to_owned()
    } else {
        format!("servers in {} may be asked", limits.policy.server_cidrs.join(", "))
    };
    Err(format!("{address} may not be asked: {offer}"))
}

fn add_rewrite(read: &mut Customisation, fields: &[&str], limits: &Limits<'_>) -> Result<(), String> {
    let [from, to] = fields else {
        return Err("give two names: the one that is asked for, and the one to look up instead".into());
    };
    let (from, to, below) = match (from.strip_prefix("*."), to.strip_prefix("*.")) {
        (Some(from), Some(to)) => (from, to, true),
        (None, None) => (*from, *to, false),
        _ => return Err("either both names begin with *. or none".into()),
    };
    read.rewrites.push(Rewrite {
        from: outside(from, limits)?,
        to: name(to)?,
        below,
    });
    Ok(())
}

fn set_log(read: &mut Customisation, fields: &[&str], _limits: &Limits<'_>) -> Result<(), String> {
    read.log = match fields {
        ["on"] => true,
        ["off"] => false,
        _ => return Err("on or off".into()),
    };
    Ok(())
}

/// A name that is not the cluster's.
fn outside(text: &str, limits: &Limits<'_>) -> Result<String, String> {
    let name = name(text)?;
    if is_within(&name, limits.domain) {
        return Err(format!("names in {} are the cluster's own", limits.domain));
    }
    Ok(name)
}

/// A name of plain characters, in lower case and without a dot at its end.
fn name(text: &str) -> Result<String, String> {
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let is_label = |label: &str| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        (1..=63).contains(&label.len())
            && label.bytes().all(is_plain)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if name.len() > 253 || !name.split('.').all(is_label) || name.parse::<IpAddr>().is_ok() {
        return Err(format!("{} is not a name", shown(text)));
    }
    Ok(name)
}

/// Whether a name is `domain` or one below it.
fn is_within(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain)
        .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// What somebody wrote, as it can stand in a message.
fn shown(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(policy: &DnsPolicy, data: &[(&str, &str)]) -> (Customisation, Vec<String>) {
        let data = data.iter().map(|(key, text)| ((*key).into(), (*text).into()));
        let limits = Limits {
            policy,
            domain: "cluster.local",
            blocked_domains: &["host.example".into()],
            blocked: &[ranges::parse("10.96.0.0/16").unwrap()],
        };
        read(&data.collect(), &limits)
    }

    fn offering() -> DnsPolicy {
        DnsPolicy {
            server_cidrs: vec!["10.0.0.0/8".into(), "fd00::/8".into(), "0.0.0.0/1".into()],
            ..DnsPolicy::default()
        }
    }

    fn refused(data: &[(&str, &str)]) -> String {
        let (read, refusals) = read_with(&offering(), data);
        assert_eq!(read, Customisation::default(), "{data:?}");
        refusals.join("; ")
    }

    #[test]
    fn the_vocabulary_is_read() {
        let data = [
            (
                "hosts",
                "# ours\n10.20.0.5 Registry.corp.example. registry\n\nfd00::5 registry # six",
            ),
            ("forward", "corp.example 10.20.0.53 fd00::53"),
            (
                "rewrite",
                "db.old.example db.shop.svc.cluster.local\n*.old.example *.new.example",
            ),
            ("log", "on\n"),
        ];
        let (read, refusals) = read_with(&offering(), &data);
        assert_eq!(refusals, Vec::<String>::new());
        insta::assert_debug_snapshot!(read);
    }

    #[test]
    fn configuration_of_coredns_is_not_taken() {
        let words = refused(&[
            ("evil.server", "example.com:53 { file /etc/shadow }"),
            ("Corefile", "."),
        ]);
        assert!(
            words.contains("Corefile: only hosts, forward, rewrite and log"),
            "{words}"
        );
        for text in [
            "10.0.0.5 a{b",
            "10.0.0.5 a}",
            "10.0.0.5 \"a\"",
            "10.0.0.5 a;b",
            "10.0.0.5 $(FILES)",
            "10.0.0.5 *.a",
            "10.0.0.5 {$HOME}",
            "import /etc/passwd",
            "10.0.0.5 -a",
            "10.0.0.5 ü",
            "10.0.0.5",
            "10.0.0.5 10.0.0.6",
        ] {
            assert!(refused(&[("hosts", text)]).contains("line 1"), "{text}");
        }
        assert!(refused(&[("log", "on { class all }")]).contains("on or off"));
    }

    #[test]
    fn servers_lie_where_the_class_says_and_never_where_they_must_not() {
        for bad in [
            "127.0.0.1",
            "169.254.169.254",
            "10.96.0.10",
            "192.168.0.53",
            "0.0.0.0",
            "224.0.0.1",
            "::ffff:10.0.0.1",
            "fe80::1",
            "/etc/resolv.conf",
            "tls://10.0.0.1",
            "10.0.0.1:53",
            "dns.example.com",
        ] {
            let words = refused(&[("forward", &format!("corp.example {bad}"))]);
            assert!(words.starts_with("forward, line 1: "), "{bad}: {words}");
        }
        let none = read_with(&DnsPolicy::default(), &[("forward", "corp.example 10.20.0.53")]);
        assert_eq!(
            none.1,
            ["forward, line 1: 10.20.0.53 may not be asked: your platform offers none"]
        );
    }

    #[test]
    fn names_of_the_cluster_and_of_the_host_stay_what_they_are() {
        for (key, text) in [
            ("hosts", "10.0.0.5 kubernetes.default.svc.cluster.local"),
            ("hosts", "10.0.0.5 cluster.local."),
            ("forward", "svc.CLUSTER.local 10.0.0.53"),
            ("rewrite", "a.cluster.local b.example"),
            ("rewrite", "*.cluster.local *.example"),
            ("forward", "x.host.example 10.0.0.53"),
            ("forward", "10.in-addr.arpa 10.0.0.53"),
            ("forward", ". 10.0.0.53"),
        ] {
            assert!(refused(&[(key, text)]).contains("line 1"), "{key} {text}");
        }
        let (read, _) = read_with(&offering(), &[("hosts", "10.0.0.5 mycluster.local")]);
        assert_eq!(read.hosts.len(), 1, "another domain that ends alike");
    }

    #[test]
    fn it_is_bounded() {
        let many = |line: fn(usize) -> String, count: usize| (0..count).map(line).collect::<Vec<_>>().join("\n");
        let (read, refusals) = read_with(
            &offering(),
            &[
                ("hosts", &many(|n| format!("10.0.0.1 h{n}"), 300)),
                ("forward", &many(|n| format!("d{n}.example 10.0.0.53"), 20)),
            ],
        );
        assert_eq!((read.hosts.len(), read.domains.len()), (MOST_ENTRIES, MOST_DOMAINS));
        assert!(
            refusals.iter().any(|why| why.contains("first 256 entries")),
            "{refusals:?}"
        );
        let (_, refusals) = read_with(&offering(), &[("hosts", &many(|_| "x".into(), 20))]);
        assert_eq!((refusals.len(), refusals.last().unwrap().as_str()), (9, "and 12 more"));
        let long = refused(&[("hosts", &"x".repeat(LONGEST + 1))]);
        assert!(long.contains("nothing of it is in effect"), "{long}");
        assert!(refused(&[("hosts", &format!("10.0.0.1 {}", "a ".repeat(16)))]).contains("16 words"));
    }
}
