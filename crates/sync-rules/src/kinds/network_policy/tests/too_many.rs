//! Policies with more rules than they may have.

use super::{super::*, cache_with, everything, translate, translate_in};

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
    let blocked: Vec<String> = (0..250).map(|number| format!("10.{number}.0.0/16")).collect();
    let mut limits = everything();
    limits.blocked = blocked;
    let cache = cache_with(&limits);
    let (spec, ignored) = translate_in(
        &cache,
        &json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": vec![json!({}); 400_000]}),
    );
    assert_eq!(spec.get("egress"), None);
    assert!(
        ignored[0].contains("there are 400000, and one object may have at most 5000"),
        "{ignored:?}"
    );
    let (spec, ignored) = translate_in(
        &cache,
        &json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": vec![json!({}); 5000]}),
    );
    assert_eq!(spec.get("egress"), None);
    let made = ignored.iter().find_map(|why| {
        why.split("this becomes ")
            .nth(1)?
            .split(' ')
            .next()?
            .parse::<usize>()
            .ok()
    });
    assert!(
        made.is_some_and(|made| (MOST_EXCEPTED + 1..MOST_EXCEPTED + MOST_PEERS + 1000).contains(&made)),
        "{ignored:?}"
    );
}
