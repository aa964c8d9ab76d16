//! Objects that hold more than the components that all tenants share can work with.

use super::{StolenCredential, expect_denied, with};
use k8s_openapi::api::core::v1::Service;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

pub(super) async fn validate(credential: &StolenCredential, admin: &Client) {
    pods(credential).await;
    services(credential).await;
    services_from_before_the_limits(credential, admin).await;
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

fn ports(count: usize) -> Value {
    repeated(count, |n| json!({"name": format!("p{n}"), "port": n + 1}))
}

async fn services(credential: &StolenCredential) {
    let service = |count, more: &Value| {
        let base = credential.object("v1", "Service", &json!({"spec": {"ports": ports(count)}}));
        with(&base, more)
    };
    credential.expect_allowed(&service(250, &json!({}))).await;
    credential
        .expect_denied("spec.ports: one object", &service(251, &json!({})))
        .await;
    // Nodes have no rules for headless Services.
    let headless = json!({"spec": {"clusterIP": "None"}});
    credential.expect_allowed(&service(300, &headless)).await;
}

/// An object that holds more may change as long as it does not grow.
async fn services_from_before_the_limits(credential: &StolenCredential, admin: &Client) {
    let base = json!({"metadata": {"name": "large"}, "spec": {"ports": ports(300)}});
    let large: Service = serde_json::from_value(credential.object("v1", "Service", &base)).unwrap();
    let as_admin: Api<Service> = Api::namespaced(admin.clone(), &credential.namespace);
    as_admin.create(&PostParams::default(), &large).await.unwrap();
    let services: Api<Service> = Api::namespaced(credential.client.clone(), &credential.namespace);
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = async |more: &Value| services.patch("large", &dry_run, &Patch::Merge(more)).await;
    change(&json!({"metadata": {"labels": {"pool": "a"}}})).await.unwrap();
    change(&json!({"spec": {"ports": ports(299)}})).await.unwrap();
    expect_denied(
        "spec.ports: one object",
        change(&json!({"spec": {"ports": ports(301)}})).await,
    );
    as_admin.delete("large", &DeleteParams::default()).await.unwrap();
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
