//! Policies with more rules than they may have.

use super::{super::*, cache_with, everything, limits, translate, translate_in};
use crate::translation::sizes::{MOST_EXCEPTED, MOST_PEERS};

/// How much rules become on the host, in the words by which they are left out.
fn made(ignored: &[String]) -> Option<usize> {
    let words = ignored.iter().find_map(|why| why.split_once("this becomes "))?.1;
    words.split(' ').next()?.parse().ok()
}

#[test]
fn a_policy_with_too_many_rules_closes_its_directions() {
    let ports = |count: u16| (1..=count).map(|port| json!({"port": port})).collect::<Vec<_>>();
    let ingress = |count| {
        json!({"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [
        {"from": vec![json!({"podSelector": {"matchLabels": {"app": "a"}}}); 100], "ports": ports(count)}]})
    };
    let (spec, ignored) = translate(&ingress(50));
    assert_eq!((json::items(&spec, &["ingress"]).len(), ignored), (1, Vec::new()));
    let (spec, ignored) = translate(&ingress(51));
    assert_eq!((spec.get("ingress"), &spec["policyTypes"]), (None, &json!(["Ingress"])));
    assert!(ignored[0].contains("peers by ports: there are 5100"), "{ignored:?}");
}

#[test]
fn of_rules_that_become_too_many_no_more_is_made() {
    let mut limits = everything();
    limits.blocked = (0..250).map(|number| format!("10.{number}.0.0/16")).collect();
    let cache = cache_with(&limits);
    let egress = |rules: Vec<Value>| {
        let (spec, ignored) = translate_in(
            &cache,
            &json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": rules}),
        );
        assert_eq!(spec.get("egress"), None);
        ignored
    };
    let ignored = egress(vec![json!({}); 400_000]);
    assert!(
        ignored[0].contains("there are 400000, and one object may have at most 5000"),
        "{ignored:?}"
    );
    let many_rules = egress(vec![json!({}); 5000]);
    let many_peers = egress(vec![
        json!({"to": vec![json!({"ipBlock": {"cidr": "0.0.0.0/0"}}); 5000]}),
    ]);
    for ignored in [many_rules, many_peers] {
        let made = made(&ignored);
        assert!(
            made.is_some_and(|made| (MOST_EXCEPTED + 1..MOST_EXCEPTED + 1000).contains(&made)),
            "{ignored:?}"
        );
    }
}

#[test]
fn of_ports_that_become_too_many_no_more_is_made() {
    let translate = |declared: u16, asked: &Value| {
        let declared: Vec<u16> = (1..=declared).collect();
        let cache = cache_with(&limits(&[json!({"cidr": "192.0.2.0/24", "ports": declared})], &[]));
        let rule = json!({"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}], "ports": vec![asked; 5000]});
        translate_in(
            &cache,
            &json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [rule]}),
        )
    };
    let any = json!({"protocol": "TCP"});
    let (spec, ignored) = translate(25, &any);
    assert_eq!(spec.get("egress"), None);
    let made = made(&ignored);
    assert!(
        made.is_some_and(|made| (MOST_PEERS + 1..MOST_PEERS + 100).contains(&made)),
        "{ignored:?}"
    );
    let (spec, ignored) = translate(1, &any);
    assert_eq!(
        (&spec["egress"][0]["ports"], ignored),
        (&json!([{"protocol": "TCP", "port": 1}]), Vec::new())
    );
}

#[test]
fn networks_that_are_open_at_other_ports_do_not_count() {
    let declared = [
        json!({"cidr": "8.0.0.0/6", "ports": [53], "protocol": "UDP"}),
        json!({"cidr": "192.0.2.0/24"}),
    ];
    let mut limits = limits(&declared, &[]);
    limits.blocked = (0..200).map(|number| format!("10.{number}.0.0/16")).collect();
    let open = json!({"ipBlock": {"cidr": "192.0.2.0/24"}});
    let mut peers = vec![json!({"ipBlock": {"cidr": "8.0.0.0/6"}}); 100];
    peers.push(open.clone());
    let ports = json!([{"protocol": "TCP", "port": 443}]);
    let (spec, ignored) = translate_in(
        &cache_with(&limits),
        &json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": peers, "ports": ports}]}),
    );
    assert_eq!(
        (&spec["egress"], ignored),
        (&json!([{"to": [open], "ports": ports}]), Vec::new())
    );
}
