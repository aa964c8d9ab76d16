use super::*;
use berth_api::TenantLimits;
use serde_json::json;

fn limit(limits: &'static [SizeLimit], field: &str) -> SizeLimit {
    *limits.iter().find(|limit| limit.field == field).unwrap()
}

#[test]
fn the_host_leaves_room_for_what_is_added() {
    for limits in [
        POD,
        RUNNING_POD,
        SERVICE_PORTS,
        SERVICE,
        NETWORK_POLICY_RULES,
        NETWORK_POLICY_SELECTOR,
        DISRUPTION_BUDGET,
        RESOURCE_CLAIM,
        RESOURCE_CLAIM_TEMPLATE,
    ] {
        for limit in limits {
            assert!(0 < limit.in_tenant && limit.in_tenant <= limit.on_host, "{limit:?}");
        }
    }
}

#[test]
fn the_reference_page_has_every_limit() {
    let page = include_str!("../../../../../docs/reference/object-sizes.md");
    let written = |number: usize| {
        if number < 1000 {
            number.to_string()
        } else {
            format!("{},{:03}", number / 1000, number % 1000)
        }
    };
    for (kind, limits) in [
        ("Pod", POD),
        ("Pod", RUNNING_POD),
        ("Service", SERVICE_PORTS),
        ("Service", SERVICE),
        ("NetworkPolicy", NETWORK_POLICY_RULES),
        ("NetworkPolicy", NETWORK_POLICY_SELECTOR),
        ("PodDisruptionBudget", DISRUPTION_BUDGET),
        ("ResourceClaim", RESOURCE_CLAIM),
        ("ResourceClaimTemplate", RESOURCE_CLAIM_TEMPLATE),
    ] {
        for limit in limits {
            let start = format!("| {kind} | `{}` | ", limit.field);
            let end = format!(" | {} | {} |", written(limit.in_tenant), written(limit.on_host));
            let mut rows = page.lines().filter(|line| line.starts_with(&start));
            assert!(rows.next().is_some_and(|row| row.ends_with(&end)), "{start} … {end}");
        }
    }
}

#[test]
fn lists_and_maps_are_counted_wherever_they_are() {
    let term = json!({"labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [
        {"key": "a", "operator": "In", "values": ["b", "c"]}, {"key": "d", "operator": "Exists"}]}, "namespaces": ["x"]});
    let pod = json!({"spec": {
        "nodeSelector": {"a": "b", "c": "d"},
        "containers": [{"env": [{}, {}], "envFrom": [{}]}, {}], "initContainers": [{"env": [{}]}],
        "volumes": [{"projected": {"sources": [{}, {}]}}, {"persistentVolumeClaim": {"claimName": "a", "readOnly": true}},
            {"persistentVolumeClaim": {"claimName": "a"}}, {"ephemeral": {}}, {"emptyDir": {}}],
        "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term],
            "preferredDuringSchedulingIgnoredDuringExecution": [{"podAffinityTerm": term}]}},
    }});
    for (field, expected) in [
        ("spec.nodeSelector", 2),
        ("spec.containers and spec.initContainers", 3),
        ("spec.containers[].env", 4),
        ("spec.volumes", 7),
        ("spec.volumes: claims", 3),
        ("spec.affinity.podAffinity and spec.affinity.podAntiAffinity: terms", 2),
        (
            "spec.affinity.podAffinity and spec.affinity.podAntiAffinity: selectors",
            12,
        ),
    ] {
        assert_eq!(limit(POD, field).measure.count(&pod), expected, "{field}");
        assert_eq!(limit(POD, field).measure.count(&json!({})), 0, "{field}");
    }
}

#[test]
fn an_empty_list_of_peers_or_ports_counts_as_one() {
    let measure = limit(NETWORK_POLICY_RULES, "spec.ingress and spec.egress: peers by ports").measure;
    let policy =
        json!({"spec": {"ingress": [{}, {"from": [{}, {}], "ports": [{}, {}, {}]}], "egress": [{"to": [{}, {}]}]}});
    assert_eq!(measure.count(&policy), 1 + 6 + 2);
}

#[test]
fn alternatives_and_expressions_are_counted_in_either_form_of_a_request() {
    let cel = json!({"cel": {"expression": "true"}});
    let devices = json!({"requests": [
        {"name": "a", "exactly": {"selectors": [cel], "derivedAttributes": [{}, {}]}},
        {"name": "b", "firstAvailable": [{"selectors": [cel, cel]}, {}, {"derivedAttributes": [{}]}]}, {"name": "c"}]});
    let count = |limits: &[SizeLimit], object: &Value| -> Vec<usize> {
        limits.iter().map(|limit| limit.measure.count(object)).collect()
    };
    let claim = json!({"spec": {"devices": devices}});
    assert_eq!(count(RESOURCE_CLAIM, &claim), [4, 6]);
    let template = json!({"spec": claim});
    assert_eq!(count(RESOURCE_CLAIM_TEMPLATE, &template), [4, 6]);
    assert_eq!(count(RESOURCE_CLAIM_TEMPLATE, &claim), [0, 0]);
}

#[test]
fn what_is_too_much_is_denied_with_both_numbers() {
    let pod = |count: usize| json!({"spec": {"tolerations": vec![json!({"key": "a"}); count]}});
    let denied = |tenant: usize, host: usize| {
        let mut issues = FieldIssues::default();
        check(RUNNING_POD, &pod(tenant), &pod(host), &mut issues);
        issues.denied.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(denied(100, 500).is_empty());
    let written = denied(101, 102);
    assert_eq!(written.len(), 1);
    assert!(
        written[0].starts_with("spec.tolerations: there are 101, and one object may have at most 100: "),
        "{written:?}"
    );
    let translated = denied(100, 501);
    assert_eq!(translated.len(), 1);
    assert!(translated[0].contains("this becomes 501 on the host"), "{translated:?}");
}

#[test]
fn what_is_on_the_host_may_stay() {
    let service = |count: usize| json!({"spec": {"ports": vec![json!({"port": 1}); count]}});
    let denied = |live: &Value, count: usize| {
        let mut issues = FieldIssues::default();
        check_growth(SERVICE_PORTS, live, &service(count), &service(count), &mut issues);
        issues.denied.len()
    };
    assert_eq!((denied(&service(300), 300), denied(&service(300), 299)), (0, 0));
    assert_eq!((denied(&service(300), 301), denied(&Value::Null, 251)), (1, 1));
    assert_eq!((denied(&Value::Null, 250), denied(&service(10), 250)), (0, 0));
}

#[test]
fn a_spec_of_half_a_mebibyte_is_denied() {
    let denied = |bytes: usize| {
        let pod = json!({"spec": {"containers": [{"args": ["a".repeat(bytes)]}]}});
        let mut issues = FieldIssues::default();
        check_pod_bytes(&pod, &pod, &mut issues);
        issues.denied
    };
    assert!(denied(MAX_POD_SPEC_BYTES - 100).is_empty());
    assert!(denied(MAX_POD_SPEC_BYTES)[0].why.contains("ConfigMaps"));
}

#[test]
fn a_pod_that_becomes_much_larger_is_denied() {
    let denied = |added: usize| {
        let pod = |text: String| json!({"metadata": {"labels": {"app": "a"}}, "spec": {"nodeName": text}});
        let mut issues = FieldIssues::default();
        check_pod_bytes(&pod(String::new()), &pod("a".repeat(added)), &mut issues);
        issues.denied
    };
    assert!(denied(MAX_ADDED_POD_BYTES).is_empty());
    assert!(denied(MAX_ADDED_POD_BYTES + 1)[0].why.contains("larger on the host"));
}

/// docs/guides/host-limits.md names these costs.
#[test]
fn the_budgets_of_a_tenant_cost_the_host_little_at_each_change_of_a_pod() {
    // Measured with Kubernetes 1.37: 1.3 µs for a label with a short key and value, 2 µs for one with a long key and value.
    const NANOSECONDS: usize = 2000;
    let entries = limit(DISRUPTION_BUDGET, "spec.selector").on_host;
    let budgets = usize::try_from(TenantLimits::default().pod_disruption_budgets).unwrap();
    assert!(budgets * entries * NANOSECONDS <= 2_000_000, "more than 2 ms");
    // A domain, a slash, a name, a value, and what JSON has around them.
    let longest = 253 + 1 + 63 + 63 + 6;
    assert!(entries * longest < 5 * 1024, "more than 5 KiB");
}

#[test]
fn the_reference_page_has_the_limits_of_bytes() {
    let page = include_str!("../../../../../docs/reference/object-sizes.md");
    for limit in [
        MAX_POD_SPEC_BYTES,
        MAX_ADDED_POD_BYTES,
        MAX_SERVICE_VARIABLE_BYTES,
        MAX_POD_SECRET_BYTES,
        MAX_NAMESPACE_LABELS,
    ] {
        let (thousands, rest) = (limit / 1000, limit % 1000);
        let written = if thousands == 0 {
            rest.to_string()
        } else {
            format!("{thousands},{rest:03}")
        };
        assert!(page.contains(&format!(" {written} ")), "{written}");
    }
}
