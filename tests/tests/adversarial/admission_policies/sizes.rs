//! Objects that hold more than the components that all tenants share can work with.

use super::{StolenCredential, expect_denied, with};
use berth_sync_rules::translation::sizes::{DISRUPTION_BUDGET, POD, RESOURCE_CLAIM, RUNNING_POD};
use k8s_openapi::api::{
    core::v1::{Pod, Service},
    policy::v1::PodDisruptionBudget,
};
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
    budgets_from_before_the_limits(credential, admin).await;
    claims_of_devices(credential).await;
    objects_that_nobody_could_delete(credential).await;
}

/// Nothing can be written into an object of 1.5 MiB, not even that it is being deleted.
async fn objects_that_nobody_could_delete(credential: &StolenCredential) {
    let labels = |count| {
        let all = (0..count).map(|n| (format!("l{n}.berth.dev/a"), json!("a")));
        json!({"metadata": {"labels": all.collect::<serde_json::Map<_, _>>()}})
    };
    let argument = |length| json!({"containers": [{"name": "c", "image": "i", "args": ["a".repeat(length)]}]});
    let annotated = |length| json!({"metadata": {"annotations": {"berth.dev/a": "a".repeat(length)}}});
    let claim = credential.object(
        "v1",
        "PersistentVolumeClaim",
        &json!({"spec": {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}}),
    );
    let map = |length| credential.object("v1", "ConfigMap", &json!({"data": {"a": "a".repeat(length)}}));
    for allowed in [
        with(&credential.pod(&json!({})), &labels(390)),
        credential.pod(&argument(1_000_000)),
        with(&claim, &annotated(200_000)),
        map(1_000_000),
    ] {
        credential.expect_allowed(&allowed).await;
    }
    for (message, denied) in [
        ("may have at most 400", with(&credential.pod(&json!({})), &labels(401))),
        ("may have at most 400", with(&map(1), &labels(401))),
        ("a pod may have at most", credential.pod(&argument(1_060_000))),
        // Three bytes each.
        (
            "a pod may have at most",
            credential.pod(&json!({"containers": [{"name": "c", "image": "i", "args": ["漢".repeat(355_000)]}]})),
        ),
        ("an object may have at most", with(&claim, &annotated(250_000))),
    ] {
        credential.expect_denied(message, &denied).await;
    }
    statuses_that_nobody_could_delete(credential).await;
}

/// A syncer may write conditions of pods.
async fn statuses_that_nobody_could_delete(credential: &StolenCredential) {
    let pods: Api<Pod> = Api::namespaced(credential.client.clone(), &credential.namespace);
    let pod = with(&credential.pod(&json!({})), &json!({"metadata": {"name": "full"}}));
    let pod: Pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let condition = |length: usize| {
        let condition = json!({"type": "berth.dev/GPUsIdle", "status": "True", "message": "a".repeat(length)});
        Patch::Strategic(json!({"status": {"conditions": [condition]}}))
    };
    pods.patch_status("full", &dry_run, &condition(100_000)).await.unwrap();
    expect_denied(
        "a pod may have at most",
        pods.patch_status("full", &dry_run, &condition(1_450_000)).await,
    );
    pods.delete("full", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}

fn repeated(count: usize, item: impl Fn(usize) -> Value) -> Value {
    (0..count).map(item).collect()
}

/// The most that a pod on the host may hold of what the limit counts.
fn most_in_pod(field: &str) -> usize {
    let limit = POD.iter().chain(RUNNING_POD).find(|limit| limit.field == field);
    limit.unwrap_or_else(|| panic!("no limit of {field}")).on_host
}

async fn pods(credential: &StolenCredential) {
    let expression = |values: usize| json!({"key": "zone", "operator": "In", "values": repeated(values, |n| format!("z{n}").into())});
    let required = |terms: Value| {
        json!({"affinity": {"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}})
    };
    let near = |selector: &Value| json!({"topologyKey": "zone", "labelSelector": selector});
    let apart = |terms: Value| {
        json!({"affinity": {"podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": terms}}})
    };
    let selector = json!({"matchLabels": {"app": "a"}});
    // Each makes what is added to a pod for it to hold that many.
    let limited: [(&str, &dyn Fn(usize) -> Value); 11] = [
        // The API server adds two itself.
        (
            "spec.tolerations",
            &|count| json!({"tolerations": repeated(count - 2, |n| json!({"key": format!("t{n}"), "operator": "Exists"}))}),
        ),
        ("spec.affinity.nodeAffinity: terms", &|count| {
            required(repeated(count, |_| json!({"matchExpressions": [expression(1)]})))
        }),
        ("spec.affinity.nodeAffinity: expressions", &|count| {
            required(json!([{"matchExpressions": repeated(count, |_| expression(1))}]))
        }),
        ("spec.affinity.nodeAffinity: values", &|count| {
            required(json!([{"matchExpressions": [expression(count)]}]))
        }),
        (
            "spec.affinity.podAffinity and spec.affinity.podAntiAffinity: terms",
            &|count| apart(repeated(count, |_| near(&selector))),
        ),
        ("spec.topologySpreadConstraints", &|count| {
            json!({"topologySpreadConstraints": repeated(count, |n| json!({
                "topologyKey": format!("zone{n}"), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}))})
        }),
        // The pod has a container already.
        (
            "spec.containers and spec.initContainers",
            &|count| json!({"initContainers": repeated(count - 1, |n| json!({"name": format!("i{n}"), "image": "i"}))}),
        ),
        (
            "spec.resourceClaims",
            &|count| json!({"resourceClaims": repeated(count, |n| json!({"name": format!("c{n}"), "resourceClaimName": format!("c{n}")}))}),
        ),
        (
            "spec.volumes",
            &|count| json!({"volumes": repeated(count, |n| json!({"name": format!("v{n}"), "emptyDir": {}}))}),
        ),
        // They may all name the same claim.
        ("spec.volumes: claims", &|count| {
            let claim = json!({"claimName": "data"});
            json!({"volumes": repeated(count, |n| json!({"name": format!("v{n}"), "persistentVolumeClaim": claim}))})
        }),
        // The address counts like a name.
        (
            "spec.hostAliases",
            &|count| json!({"hostAliases": [{"ip": "192.0.2.1", "hostnames": repeated(count - 1, |n| format!("h{n}").into())}]}),
        ),
    ];
    for (field, holding) in limited {
        let most = most_in_pod(field);
        credential.expect_allowed(&credential.pod(&holding(most))).await;
        let message = format!("{field}: one object may have at most {most}");
        credential
            .expect_denied(&message, &credential.pod(&holding(most + 1)))
            .await;
    }
    let field = "spec.affinity.podAffinity and spec.affinity.podAntiAffinity: selectors";
    let values = repeated(most_in_pod(field), |n| format!("v{n}").into());
    let large = json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]});
    credential
        .expect_denied(field, &credential.pod(&apart(json!([near(&large)]))))
        .await;
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

/// A selector with this number of labels.
fn labels_selector(count: usize) -> Value {
    let labels = (0..count).map(|n| (format!("l{n}"), json!("a")));
    json!({"matchLabels": labels.collect::<serde_json::Map<_, _>>()})
}

/// A budget that disturbs nobody, and whose selector costs the host something at each change of a pod.
fn budget(credential: &StolenCredential, selector: &Value) -> Value {
    let spec = json!({"minAvailable": 0, "selector": selector});
    credential.object("policy/v1", "PodDisruptionBudget", &json!({ "spec": spec }))
}

async fn disruption_budgets(credential: &StolenCredential) {
    // The expression counts as well.
    let values_selector = |count: usize| {
        let values = repeated(count - 1, |n| format!("v{n}").into());
        json!({"matchExpressions": [{"key": "a", "operator": "In", "values": values}]})
    };
    let both = |count: usize| with(&labels_selector(10), &values_selector(count - 10));
    let most = DISRUPTION_BUDGET[0].on_host;
    assert_eq!(most, 12);
    let message = "spec.selector: one object may have at most 12";
    for selector in [&labels_selector as &dyn Fn(usize) -> Value, &values_selector, &both] {
        credential.expect_allowed(&budget(credential, &selector(most))).await;
        credential
            .expect_denied(message, &budget(credential, &selector(most + 1)))
            .await;
    }
}

/// A budget that holds more may be changed as long as it does not grow: its syncer withdraws it.
async fn budgets_from_before_the_limits(credential: &StolenCredential, admin: &Client) {
    let base = with(
        &budget(credential, &labels_selector(500)),
        &json!({"metadata": {"name": "large"}}),
    );
    let large: PodDisruptionBudget = serde_json::from_value(base).unwrap();
    let as_admin: Api<PodDisruptionBudget> = Api::namespaced(admin.clone(), &credential.namespace);
    as_admin.create(&PostParams::default(), &large).await.unwrap();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(credential.client.clone(), &credential.namespace);
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let change = async |more: &Value| budgets.patch("large", &dry_run, &Patch::Merge(more)).await;
    change(&json!({"spec": {"selector": {"matchLabels": {"l0": null}}}}))
        .await
        .unwrap();
    expect_denied(
        "spec.selector: one object may have at most 12",
        change(&json!({"spec": {"selector": {"matchLabels": {"more": "a"}}}})).await,
    );
    as_admin.delete("large", &DeleteParams::default()).await.unwrap();
}

async fn claims_of_devices(credential: &StolenCredential) {
    let asked = |name: usize, selectors: usize| {
        let selectors = repeated(selectors, |_| json!({"cel": {"expression": "true"}}));
        json!({"name": format!("a{name}"), "deviceClassName": "gpu", "selectors": selectors})
    };
    // The API server itself admits eight alternatives of a request.
    let either = |count: usize, selectors: usize| {
        let numbers: Vec<usize> = (0..count).collect();
        let requests = numbers.chunks(8).enumerate().map(|(index, part)| {
            let alternatives: Vec<Value> = part.iter().map(|number| asked(*number, selectors)).collect();
            json!({"name": format!("r{index}"), "firstAvailable": alternatives})
        });
        json!({"devices": {"requests": requests.collect::<Vec<_>>()}})
    };
    let exactly = |count: usize| {
        let request = |number: usize| {
            let mut asked = asked(number, 13);
            asked.as_object_mut().unwrap().remove("name");
            json!({"name": format!("r{number}"), "exactly": asked})
        };
        json!({"devices": {"requests": repeated(count, request)}})
    };
    let [most_alternatives, most_expressions] = [0, 1].map(|index: usize| RESOURCE_CLAIM[index].on_host);
    assert_eq!((most_alternatives, most_expressions), (64, 64));
    for (message, allowed, denied) in [
        (
            "requests: alternatives: one object may have at most 64",
            either(64, 0),
            either(65, 0),
        ),
        (
            "requests: expressions: one object may have at most 64",
            either(64, 1),
            either(33, 2),
        ),
        (
            "requests: expressions: one object may have at most 64",
            exactly(4),
            exactly(5),
        ),
    ] {
        for kind in ["ResourceClaim", "ResourceClaimTemplate"] {
            let object = |spec: &Value| {
                let spec = match kind {
                    "ResourceClaim" => spec.clone(),
                    _ => json!({ "spec": spec }),
                };
                credential.object("resource.k8s.io/v1", kind, &json!({ "spec": spec }))
            };
            credential.expect_allowed(&object(&allowed)).await;
            credential.expect_denied(message, &object(&denied)).await;
        }
    }
}
