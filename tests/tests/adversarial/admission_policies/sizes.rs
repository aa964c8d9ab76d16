//! Objects that hold more than the components that all tenants share can work with.

use super::{StolenCredential, with};
use serde_json::{Value, json};

pub(super) async fn validate(credential: &StolenCredential) {
    pods(credential).await;
    services(credential).await;
    network_policies(credential).await;
    disruption_budgets(credential).await;
}

fn repeated(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

async fn pods(credential: &StolenCredential) {
    let tolerations =
        |count| json!({"tolerations": repeated(count, |n| json!({"key": format!("t{n}"), "operator": "Exists"}))});
    let expression = |values: usize| json!({"key": "zone", "operator": "In", "values": repeated(values, |n| format!("z{n}").into())});
    let required = |terms: Value| {
        json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    };
    let terms = |count| required(repeated(count, |_| json!({"matchExpressions": [expression(1)]})));
    let expressions = |count| required(json!([{"matchExpressions": repeated(count, |_| expression(1))}]));
    let values = |count| required(json!([{"matchExpressions": [expression(count)]}]));
    let near = |selector: &Value| json!({"topologyKey": "zone", "labelSelector": selector});
    let apart = |terms: Value| {
        json!({"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": terms}}})
    };
    let selector = json!({"matchLabels": {"app": "a"}});
    let large = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": repeated(4000, |n| format!("v{n}").into())}]});
    let spread = |count| {
        json!({"topologySpreadConstraints": repeated(count, |n| json!({
            "topologyKey": format!("zone{n}"), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}))})
    };
    let containers =
        |count| json!({"initContainers": repeated(count, |n| json!({"name": format!("i{n}"), "image": "i"}))});
    let claims = |count| json!({"resourceClaims": repeated(count, |n| json!({"name": format!("c{n}"), "resourceClaimName": format!("c{n}")}))});
    let volumes = |count| json!({"volumes": repeated(count, |n| json!({"name": format!("v{n}"), "emptyDir": {}}))});
    let aliases =
        |count| json!({"hostAliases": [{"ip": "192.0.2.1", "hostnames": repeated(count, |n| format!("h{n}").into())}]});
    // The API server adds two tolerations itself.
    for allowed in [
        tolerations(450),
        terms(2000),
        values(19_000),
        apart(repeated(60, |_| near(&selector))),
        spread(40),
        containers(149),
        claims(100),
        volumes(500),
        aliases(4999),
    ] {
        credential.expect_allowed(&credential.pod(&allowed)).await;
    }
    for (message, denied) in [
        ("spec.tolerations: one object may have at most 500", tolerations(501)),
        ("nodeAffinity: terms", terms(2001)),
        ("nodeAffinity: expressions", expressions(8001)),
        ("nodeAffinity: values", values(20_001)),
        ("podAntiAffinity: terms", apart(repeated(61, |_| near(&selector)))),
        ("podAntiAffinity: selectors", apart(json!([near(&large)]))),
        ("spec.topologySpreadConstraints: one object", spread(41)),
        ("spec.initContainers", containers(150)),
        ("spec.resourceClaims: one object", claims(101)),
        ("spec.volumes: one object", volumes(601)),
        ("spec.hostAliases", aliases(5000)),
    ] {
        credential.expect_denied(message, &credential.pod(&denied)).await;
    }
}

async fn services(credential: &StolenCredential) {
    let service = |count| {
        let ports = repeated(count, |n| json!({"name": format!("p{n}"), "port": n + 1}));
        credential.object("v1", "Service", &json!({"spec": {"ports": ports}}))
    };
    credential.expect_allowed(&service(250)).await;
    credential.expect_denied("spec.ports: one object", &service(251)).await;
}

async fn network_policies(credential: &StolenCredential) {
    let base = credential.object(
        "networking.k8s.io/v1",
        "NetworkPolicy",
        &json!({"spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
    );
    let ingress = |peers: usize, ports: usize| {
        let from = repeated(peers, |_| json!({"podSelector": {"matchLabels": {"app": "a"}}}));
        let ports = repeated(ports, |n| json!({"port": n + 1}));
        with(&base, &json!({"spec": {"ingress": [{"from": from, "ports": ports}]}}))
    };
    credential.expect_allowed(&ingress(100, 100)).await;
    credential.expect_denied("peers by ports", &ingress(100, 101)).await;
    let values = repeated(600, |n| format!("v{n}").into());
    let selector = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
    credential
        .expect_denied(
            "spec.podSelector",
            &with(&base, &json!({"spec": {"podSelector": selector}})),
        )
        .await;
}

async fn disruption_budgets(credential: &StolenCredential) {
    let budget = |count| {
        let values = repeated(count, |n| format!("v{n}").into());
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
        let spec = json!({"minAvailable": 1, "selector": selector});
        credential.object("policy/v1", "PodDisruptionBudget", &json!({ "spec": spec }))
    };
    credential.expect_allowed(&budget(500)).await;
    credential.expect_denied("spec.selector", &budget(510)).await;
}
