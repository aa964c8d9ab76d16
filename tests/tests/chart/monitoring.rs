//! Who collects the metrics of syncers, and how.

use crate::render::{find, template};
use berth_api::{labels, names::WORKLOAD_NAMESPACE_PATTERN};
use berth_control::{
    control_plane::SYNCER,
    runtime::cluster::{ADMIN_PORT, APP_NAME, ClusterSettings},
};
use serde_json::{Value, json};

/// Values with a Prometheus of the platform.
pub(crate) fn with_prometheus() -> Value {
    let peer = json!({
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
    });
    json!({"networkPolicies": {"metricsFrom": [peer]}})
}

/// Requirements of a namespace that is none of a tenant.
fn no_tenants() -> Value {
    json!([{"key": labels::ROLE, "operator": "DoesNotExist"}])
}

/// What the settings of control say about who collects metrics.
fn metrics_from_of_control(all: &[Value]) -> Value {
    let settings = find(all, "ConfigMap/berth-control").unwrap()["data"]["settings.json"].as_str();
    let settings: ClusterSettings = serde_json::from_str(settings.unwrap()).unwrap();
    serde_json::to_value(settings.metrics_from).unwrap()
}

/// The name under which Prometheus discovers a label of a pod.
fn discovered(label: &str) -> String {
    let name = label.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
    format!("__meta_kubernetes_pod_label_{name}")
}

#[tokio::test]
async fn only_a_prometheus_that_the_platform_names_may_reach_berth_and_syncers() {
    let values = with_prometheus();
    let all = template(&values).await.unwrap();
    let peers = &values["networkPolicies"]["metricsFrom"];
    let policy = find(&all, "NetworkPolicy/berth-metrics").unwrap();
    let mut outside_tenants = peers.clone();
    outside_tenants[0]["namespaceSelector"]["matchExpressions"] = no_tenants();
    assert_eq!(policy["spec"]["ingress"][0]["from"], outside_tenants);
    // Control adds that itself.
    assert_eq!(&metrics_from_of_control(&all), peers);
    assert!(find(&all, "PodMonitor/berth-syncers").is_some());
    let all = template(&json!({})).await.unwrap();
    let policy = find(&all, "NetworkPolicy/berth-metrics").unwrap();
    assert_eq!(
        policy["spec"]["ingress"][0]["from"],
        json!([{"podSelector": {}}]),
        "people of teams may have pods in other namespaces of the host"
    );
    assert_eq!(metrics_from_of_control(&all), json!([]));
    assert!(
        find(&all, "PodMonitor/berth-syncers").is_none(),
        "no Prometheus reaches syncers"
    );
}

#[tokio::test]
async fn a_prometheus_that_labels_are_for_has_to_be_named() {
    for monitor in ["serviceMonitor", "podMonitor"] {
        let mut values = json!({"monitoring": {(monitor): {"labels": {"release": "monitoring"}}}});
        let refusal = template(&values).await.unwrap_err();
        assert!(
            refusal.contains(monitor) && refusal.contains("name it in networkPolicies.metricsFrom"),
            "{refusal}"
        );
        for policies in [json!({"enabled": false}), with_prometheus()["networkPolicies"].clone()] {
            values["networkPolicies"] = policies;
            template(&values).await.unwrap();
        }
    }
}

/// A selector that has been left empty selects the namespaces of tenants as well.
#[tokio::test]
async fn no_selector_of_namespaces_selects_those_of_tenants() {
    let team = json!({"key": "team", "operator": "Exists"});
    let peers = json!([
        {"namespaceSelector": {}, "podSelector": {}},
        {"namespaceSelector": {"matchExpressions": [team]}},
        {"podSelector": {"matchLabels": {"app": "prometheus"}}},
        {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.7/32"]}},
    ]);
    let all = template(&json!({"networkPolicies": {"metricsFrom": peers}}))
        .await
        .unwrap();
    let mut expected = peers.clone();
    expected[0]["namespaceSelector"]["matchExpressions"] = no_tenants();
    expected[1]["namespaceSelector"]["matchExpressions"] = json!([team, no_tenants()[0]]);
    let policy = find(&all, "NetworkPolicy/berth-metrics").unwrap();
    assert_eq!(policy["spec"]["ingress"][0]["from"], expected);
    assert_eq!(metrics_from_of_control(&all), peers);
}

#[tokio::test]
async fn policies_of_control_planes_follow_the_value_without_those_of_berth() {
    let mut values = with_prometheus();
    values["networkPolicies"]["enabled"] = false.into();
    // The values of an older release do not have this one.
    for (monitor, expected) in [
        (json!({}), true),
        (json!({"enabled": false}), false),
        (json!(null), false),
    ] {
        values["monitoring"] = json!({ "podMonitor": monitor });
        let all = template(&values).await.unwrap();
        assert!(find(&all, "NetworkPolicy/berth-metrics").is_none());
        assert_eq!(metrics_from_of_control(&all), values["networkPolicies"]["metricsFrom"]);
        assert_eq!(
            find(&all, "PodMonitor/berth-syncers").is_some(),
            expected,
            "{}",
            values["monitoring"]
        );
    }
}

/// A syncer that has been taken over serves what it likes, and pods of tenants may have labels of syncers: neither may say anything of others.
#[tokio::test]
async fn syncers_are_found_in_control_planes_and_say_things_of_their_own_tenant_only() {
    let mut values = with_prometheus();
    values["monitoring"] = json!({"podMonitor": {"interval": "1m", "labels": {"release": "monitoring"}}});
    let all = template(&values).await.unwrap();
    let monitor = find(&all, "PodMonitor/berth-syncers").unwrap();
    assert_eq!(monitor["metadata"]["labels"]["release"], "monitoring");
    let workloads = WORKLOAD_NAMESPACE_PATTERN.trim_start_matches('^').trim_end_matches('$');
    let label = |target: &str, label: &str| json!({"sourceLabels": [discovered(label)], "targetLabel": target, "action": "replace"});
    let expected = json!({
        "selector": {"matchLabels": {APP_NAME: SYNCER}},
        "namespaceSelector": {"any": true},
        "bodySizeLimit": "4MB",
        "sampleLimit": 20_000,
        "labelLimit": 30,
        "labelNameLengthLimit": 64,
        "labelValueLengthLimit": 512,
        "podMetricsEndpoints": [{
            "port": ADMIN_PORT,
            "path": "/metrics",
            "scheme": "http",
            "interval": "1m",
            "followRedirects": false,
            "honorLabels": false,
            "honorTimestamps": false,
            "relabelings": [
                {"sourceLabels": ["__meta_kubernetes_namespace"], "regex": format!("{workloads}-cp"), "action": "keep"},
                label("tenant_namespace", labels::TENANT_NAMESPACE),
                label("tenant", labels::TENANT_NAME),
            ],
            "metricRelabelings": [{"sourceLabels": ["__name__"], "regex": "berth_syncer_.+", "action": "keep"}],
        }],
    });
    assert_eq!(monitor["spec"], expected);
}

/// Clients from everywhere reach the gateway. One that has been taken over must not say what control says of tenants.
#[tokio::test]
async fn control_the_gateway_and_etcd_are_limited_as_syncers_are() {
    let all = template(&json!({"gateway": {"enabled": true, "domain": "tenants.example.com"}}))
        .await
        .unwrap();
    let spec = &find(&all, "ServiceMonitor/berth").unwrap()["spec"];
    for (limit, value) in [
        ("bodySizeLimit", json!("256MB")),
        ("sampleLimit", json!(1_000_000)),
        ("labelLimit", json!(30)),
        ("labelNameLengthLimit", json!(64)),
        // Users choose values of labels of control.
        ("labelValueLengthLimit", json!(null)),
    ] {
        assert_eq!(spec[limit], value, "{limit}");
    }
    let endpoints = spec["endpoints"].as_array().unwrap();
    assert_eq!(endpoints.len(), 2);
    for endpoint in endpoints {
        for field in ["followRedirects", "honorLabels", "honorTimestamps"] {
            assert_eq!(endpoint[field], false, "{field} of {endpoint}");
        }
    }
    let services = ["berth-control", "berth-gateway-admin"];
    assert!(
        services
            .iter()
            .all(|name| find(&all, &format!("Service/{name}")).is_some())
    );
    let regex = format!("{};berth_control_.+|{};berth_gateway_.+", services[0], services[1]);
    let kept = json!([{"sourceLabels": ["service", "__name__"], "regex": regex, "action": "keep"}]);
    assert_eq!(
        (&endpoints[0]["port"], &endpoints[0]["metricRelabelings"]),
        (&json!("admin"), &kept)
    );
}

/// A name that Kubernetes does not know would be left out of a selector, and an empty selector is everybody. A value that it does not take would
/// keep every tenant from its policies.
#[tokio::test]
async fn peers_that_no_policy_can_have_are_refused() {
    for peer in [
        json!({}),
        json!({"namespaces": "monitoring"}),
        json!({"namespaceSelector": {"matchLabel": {"a": "b"}}}),
        json!({"podSelector": {"matchExpressions": [{"key": "a", "op": "Exists"}]}}),
        json!({"ipBlock": {"cidr": "192.0.2.7/32"}, "podSelector": {}}),
        json!({"ipBlock": {"cidr": "192.0.2.7"}}),
        json!({"ipBlock": {"cidr": "192.0.2.0/24", "except": ["192.0.2.7"]}}),
        json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
        json!({"podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}),
    ] {
        let refusal = template(&json!({"networkPolicies": {"metricsFrom": [peer]}})).await;
        assert!(
            refusal.unwrap_err().contains("/networkPolicies/metricsFrom/0"),
            "{peer}"
        );
    }
}
