use super::*;

fn parse_with(policy: &DnsPolicy, data: &[(&str, &str)]) -> (DnsCustomization, Vec<String>) {
    let data = data.iter().map(|(key, text)| ((*key).into(), (*text).into()));
    let limits = Limits {
        policy,
        cluster_domain: "cluster.local",
        blocked_domains: &["host.example".into()],
        blocked_cidrs: &[ranges::parse("10.96.0.0/16").unwrap()],
    };
    parse_customization(&data.collect(), &limits)
}

fn policy_with_servers() -> DnsPolicy {
    DnsPolicy {
        server_cidrs: vec!["10.0.0.0/8".into(), "fd00::/8".into(), "0.0.0.0/1".into()],
        ..DnsPolicy::default()
    }
}

fn parse_errors(data: &[(&str, &str)]) -> String {
    let (read, errors) = parse_with(&policy_with_servers(), data);
    assert_eq!(read, DnsCustomization::default(), "{data:?}");
    errors.join("; ")
}

#[test]
fn all_keys_are_parsed() {
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
    let (read, errors) = parse_with(&policy_with_servers(), &data);
    assert_eq!(errors, Vec::<String>::new());
    insta::assert_debug_snapshot!(read);
}

#[test]
fn configuration_of_coredns_is_rejected() {
    let errors = parse_errors(&[
        ("evil.server", "example.com:53 { file /etc/shadow }"),
        ("Corefile", "."),
    ]);
    assert!(
        errors.contains("Corefile: only hosts, forward, rewrite and log"),
        "{errors}"
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
        assert!(parse_errors(&[("hosts", text)]).contains("line 1"), "{text}");
    }
    assert!(parse_errors(&[("log", "on { class all }")]).contains("on or off"));
}

#[test]
fn servers_must_be_in_allowed_and_not_in_blocked_cidrs() {
    for bad in [
        "127.0.0.1",
        "169.254.169.254",
        "10.96.0.10",
        "192.168.0.53",
        "0.0.0.0",
        "224.0.0.1",
        "::ffff:10.0.0.1",
        "fe80::1",
        "fd00:ec2::254",
        "fd00:42::42",
        "/etc/resolv.conf",
        "tls://10.0.0.1",
        "10.0.0.1:53",
        "dns.example.com",
    ] {
        let errors = parse_errors(&[("forward", &format!("corp.example {bad}"))]);
        assert!(errors.starts_with("forward, line 1: "), "{bad}: {errors}");
    }
    let none = parse_with(&DnsPolicy::default(), &[("forward", "corp.example 10.20.0.53")]);
    assert_eq!(
        none.1,
        ["forward, line 1: 10.20.0.53 is not an allowed server: your platform allows no servers"]
    );
}

#[test]
fn names_of_the_cluster_and_the_host_cannot_be_changed() {
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
        assert!(parse_errors(&[(key, text)]).contains("line 1"), "{key} {text}");
    }
    let (read, _) = parse_with(&policy_with_servers(), &[("hosts", "10.0.0.5 mycluster.local")]);
    assert_eq!(read.hosts.len(), 1, "another domain with the same ending");
}

#[test]
fn size_is_limited() {
    let many = |line: fn(usize) -> String, count: usize| (0..count).map(line).collect::<Vec<_>>().join("\n");
    let (read, errors) = parse_with(
        &policy_with_servers(),
        &[
            ("hosts", &many(|n| format!("10.0.0.1 h{n}"), 300)),
            ("forward", &many(|n| format!("d{n}.example 10.0.0.53"), 20)),
        ],
    );
    assert_eq!((read.hosts.len(), read.domains.len()), (MAX_ENTRIES, MAX_DOMAINS));
    assert!(errors.iter().any(|why| why.contains("first 256 entries")), "{errors:?}");
    let (_, errors) = parse_with(&policy_with_servers(), &[("hosts", &many(|_| "x".into(), 20))]);
    assert_eq!((errors.len(), errors.last().unwrap().as_str()), (9, "and 12 more"));
    let long = parse_errors(&[("hosts", &"x".repeat(MAX_BYTES + 1))]);
    assert!(long.contains("no entry takes effect"), "{long}");
    assert!(parse_errors(&[("hosts", &format!("10.0.0.1 {}", "a ".repeat(16)))]).contains("16 fields"));
}
