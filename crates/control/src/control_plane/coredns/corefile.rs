//! CoreDNS's configuration files. Pure text; what comes from a tenant is validated by
//! [`dns_customization`](crate::control_plane::dns_customization).

use crate::control_plane::{
    component::{FILES, Form},
    dns_customization::{DnsCustomization, Rewrite},
    input::{CLUSTER_DOMAIN, DnsInput},
};
use berth_api::dns_server;
use std::{fmt::Write, net::SocketAddr};

/// File with the names that the tenant gave addresses.
pub(super) const HOSTS: &str = "hosts";
/// File of a zone without names.
pub(super) const EMPTY_ZONE: &str = "empty.zone";
/// Private networks: the names that a node's resolver may know for their addresses belong to the host. A tenant resolves
/// only addresses of its own Services and pods.
const PRIVATE: [&str; 8] = [
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "fc00::/7",
    "fe80::/10",
];

/// The zone without names, for every domain that it is served as.
pub(super) fn empty_zone() -> String {
    "@ 30 IN SOA localhost. nobody.invalid. 1 3600 600 86400 30\n@ 30 IN NS localhost.\n".into()
}

/// Names with addresses, as in `/etc/hosts`.
pub(super) fn hosts(custom: &DnsCustomization) -> String {
    let mut lines = Lines::default();
    for host in &custom.hosts {
        lines.line(&format!("{} {}", host.address, host.names.join(" ")));
    }
    lines.text
}

/// The configuration of a server at `listen`.
pub(super) fn corefile(form: Form, listen: SocketAddr, input: &DnsInput, custom: &DnsCustomization) -> String {
    let mut lines = Lines::default();
    lines.open(&format!(".:{}", listen.port()));
    if form == Form::Process {
        // Without the endpoints below: the ports of several servers on one machine would collide.
        lines.line(&format!("bind {}", listen.ip()));
    } else {
        lines.block("health :8080", &["lameduck 5s"]);
        lines.line("ready :8181");
        lines.line("prometheus :9153");
    }
    lines.block("errors", &["consolidate 1m .*"]);
    if custom.log {
        lines.line("log");
    }
    lines.line("loadbalance");
    for rewrite in &custom.rewrites {
        lines.line(&rewrite_rule(rewrite));
    }
    // Names of the tenant change at any time and are answered from memory anyway.
    lines.block(
        "cache 30",
        &[
            &format!("disable success {CLUSTER_DOMAIN}"),
            &format!("disable denial {CLUSTER_DOMAIN}"),
        ],
    );
    lines.block(&format!("hosts {FILES}/{HOSTS}"), &["reload 0", "fallthrough"]);
    lines.block(
        &format!("kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa"),
        &[
            &format!("kubeconfig {FILES}/kubeconfig"),
            "pods insecure",
            "ttl 30",
            "fallthrough in-addr.arpa ip6.arpa",
        ],
    );
    add_empty_zones(&mut lines, input, custom);
    if input.policy.forward {
        // Ends the program if a forwarded query comes back.
        lines.line("loop");
    }
    for domain in &custom.domains {
        let servers: Vec<String> = domain.servers.iter().map(ToString::to_string).collect();
        forward(&mut lines, &domain.name, &servers.join(" "));
    }
    if input.policy.forward {
        let servers: Vec<String> = input
            .policy
            .upstreams
            .iter()
            .filter_map(|text| dns_server(text))
            .map(|server| server.to_string())
            .collect();
        let resolver = "/etc/resolv.conf".to_owned();
        let servers = if servers.is_empty() {
            resolver
        } else {
            servers.join(" ")
        };
        forward(&mut lines, ".", &servers);
    }
    lines.close();
    lines.text
}

/// Serves domains that are never forwarded as zones without names.
fn add_empty_zones(lines: &mut Lines, input: &DnsInput, custom: &DnsCustomization) {
    let zone = format!("file {FILES}/{EMPTY_ZONE}");
    let blocked = input.blocked_domains.iter().map(String::as_str);
    let mut zones: Vec<&str> = PRIVATE.into_iter().chain(blocked).collect();
    let mut rules = vec!["reload 0".to_owned()];
    if !input.policy.forward {
        zones.push(".");
        let known: Vec<&str> = custom.domains.iter().map(|domain| domain.name.as_str()).collect();
        if !known.is_empty() {
            rules.push(format!("fallthrough {}", known.join(" ")));
        }
    }
    let rules: Vec<&str> = rules.iter().map(String::as_str).collect();
    lines.block(&format!("{zone} {}", zones.join(" ")), &rules);
}

fn forward(lines: &mut Lines, domain: &str, servers: &str) {
    lines.block(&format!("forward {domain} {servers}"), &["max_concurrent 1000"]);
}

fn rewrite_rule(Rewrite { from, to, subdomains }: &Rewrite) -> String {
    if *subdomains {
        format!("rewrite stop name suffix .{from}. .{to}. answer auto")
    } else {
        format!("rewrite stop name exact {from}. {to}. answer auto")
    }
}

/// Text with blocks.
#[derive(Default)]
struct Lines {
    text: String,
    depth: usize,
}

impl Lines {
    fn line(&mut self, line: &str) {
        // Writing into a String does not fail.
        let _ = writeln!(self.text, "{:1$}{line}", "", self.depth * 4);
    }

    fn open(&mut self, line: &str) {
        self.line(&format!("{line} {{"));
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.line("}");
    }

    fn block(&mut self, line: &str, inside: &[&str]) {
        self.open(line);
        for line in inside {
            self.line(line);
        }
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control_plane::dns_customization::{Domain, Host};
    use berth_api::DnsPolicy;

    const PODS: Form = Form::Pods { replicas: 2 };

    fn input() -> DnsInput {
        DnsInput {
            address: [10, 96, 0, 50].into(),
            policy: DnsPolicy::default(),
            blocked_domains: Vec::new(),
            customization: None,
        }
    }

    fn custom() -> DnsCustomization {
        let rewrite = |from: &str, to: &str, subdomains| Rewrite {
            from: from.into(),
            to: to.into(),
            subdomains,
        };
        DnsCustomization {
            hosts: vec![Host {
                address: [10, 20, 0, 5].into(),
                names: vec!["registry.corp.example".into(), "registry".into()],
            }],
            domains: vec![Domain {
                name: "corp.example".into(),
                servers: vec![[10, 20, 0, 53].into(), [10, 20, 0, 54].into()],
            }],
            rewrites: vec![
                rewrite("db.example", "db.shop.svc.cluster.local", false),
                rewrite("old.example", "new.example", true),
            ],
            log: true,
        }
    }

    #[test]
    fn in_a_pod_it_serves_what_is_asked_of_pods() {
        insta::assert_snapshot!(corefile(
            PODS,
            ([0, 0, 0, 0], 5353).into(),
            &input(),
            &DnsCustomization::default()
        ));
    }

    #[test]
    fn a_customised_one_on_one_machine_with_many() {
        let input = DnsInput {
            blocked_domains: vec!["k8s.example".into()],
            policy: DnsPolicy {
                upstreams: vec!["10.0.0.53".into(), "10.0.0.54:5353".into()],
                ..DnsPolicy::default()
            },
            ..input()
        };
        insta::assert_snapshot!(corefile(
            Form::Process,
            ([127, 0, 0, 1], 40005).into(),
            &input,
            &custom()
        ));
        insta::assert_snapshot!(hosts(&custom()));
    }

    #[test]
    fn without_forwarding_only_domains_with_servers_resolve() {
        let mut input = input();
        input.policy.forward = false;
        input.policy.upstreams = vec!["10.0.0.53".into()];
        let custom = custom();
        let text = corefile(PODS, ([0, 0, 0, 0], 5353).into(), &input, &custom);
        assert!(!text.contains("forward .") && !text.contains("10.0.0.53\n"), "{text}");
        assert!(
            text.contains(" . {\n        reload 0\n        fallthrough corp.example\n"),
            "{text}"
        );
        assert!(text.contains("forward corp.example 10.20.0.53 10.20.0.54"), "{text}");
    }
}
