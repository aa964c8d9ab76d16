//! Nodes that several tenants use: only those of the tenant's pools, and nothing there that could reach a device or another
//! tenant's images.

use super::{StolenCredential, with};
use berth_api::{HostNodePool, NodeGroup, NodeMode, labels};
use serde_json::{Value, json};

/// A pool that the tenant requests, and one that its class would allow as well.
pub(super) fn pools() -> [HostNodePool; 2] {
    ["policies-cpu", "policies-other"].map(|name| {
        let spec = json!({"nodeSelector": {"policies.example.com/pool": name}, "modes": ["Shared"]});
        HostNodePool::new(name, serde_json::from_value(spec).unwrap())
    })
}

/// The tenant's group.
pub(super) fn group() -> NodeGroup {
    NodeGroup {
        name: "build".into(),
        pool_name: "policies-cpu".into(),
        mode: NodeMode::Shared,
        ..NodeGroup::default()
    }
}

fn term(key: &str, operator: &str, values: &[&str]) -> Value {
    json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]})
}

fn terms(terms: &[Value]) -> Value {
    let required = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    json!({"nodeSelector": null, "affinity": {"nodeAffinity": required}})
}

/// A pod as the syncer makes those that may run on shared nodes.
fn pod(credential: &StolenCredential, more: &Value) -> Value {
    let spec = with(
        &terms(&[
            term(labels::TENANT, "In", &[&credential.slug]),
            term(labels::SHARED_POOL, "In", &["policies-cpu"]),
        ]),
        &json!({"hostUsers": false, "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always"}]}),
    );
    // In an overlay, null removes a field: the last overlay has those to remove from the base.
    let pod = with(
        &credential.pod(&with(&spec, more)),
        &json!({"spec": {"nodeSelector": null}}),
    );
    with(
        &pod,
        &json!({"metadata": {"labels": {labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}}}),
    )
}

pub(super) async fn pods(credential: &StolenCredential) {
    let container = |more: &Value| {
        let base = json!({"name": "c", "image": "i", "imagePullPolicy": "Always"});
        json!({"containers": [with(&base, more)]})
    };
    for allowed in [
        json!({}),
        json!({"runtimeClassName": "gvisor", "priorityClassName": "berth-policies-3-never"}),
        container(
            &json!({"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}}),
        ),
    ] {
        credential.expect_allowed(&pod(credential, &allowed)).await;
    }
    let own = term(labels::TENANT, "In", &[&credential.slug]);
    let shared = term(labels::SHARED_POOL, "In", &["policies-cpu"]);
    let gpu = |name: &str| container(&json!({"resources": {"limits": {name: "1"}}}));
    let selector = "spec.nodeSelector must select";
    for (message, spec) in [
        // Pools: another, one that the class lists and the tenant has not requested, any, all but one, none.
        (selector, terms(&[term(labels::SHARED_POOL, "In", &["cpu"])])),
        (
            selector,
            terms(&[
                own.clone(),
                term(labels::SHARED_POOL, "In", &["policies-cpu", "policies-other"]),
            ]),
        ),
        (selector, terms(&[term(labels::SHARED_POOL, "In", &[""])])),
        (
            selector,
            terms(&[json!({"matchExpressions": [{"key": labels::SHARED_POOL, "operator": "Exists"}]})]),
        ),
        (selector, terms(&[term(labels::SHARED_POOL, "NotIn", &["other"])])),
        (
            selector,
            terms(&[shared.clone(), term("kubernetes.io/os", "In", &["linux"])]),
        ),
        (
            selector,
            terms(&[shared.clone(), term(labels::TENANT, "In", &[&credential.slug, "other"])]),
        ),
        // Devices, in every form of request.
        ("no devices on shared nodes", gpu("nvidia.com/gpu")),
        ("no devices on shared nodes", gpu("nvidia.com/mig-1g.10gb")),
        (
            "no devices on shared nodes",
            json!({"initContainers": [{"name": "i", "image": "i", "imagePullPolicy": "Always", "resources": {"limits": {"amd.com/gpu": "1"}}}]}),
        ),
        (
            "no devices on shared nodes",
            json!({"resourceClaims": [{"name": "gpu", "resourceClaimName": "gpu"}]}),
        ),
        // It would preempt other tenants' pods.
        ("preempt", json!({"priorityClassName": "berth-policies-3"})),
        // Settings that the class forbids on shared nodes.
        ("spec.hostUsers", json!({"hostUsers": null})),
        ("spec.hostUsers", json!({"hostUsers": true})),
        (
            "imagePullPolicy",
            container(&json!({"imagePullPolicy": "IfNotPresent"})),
        ),
        ("imagePullPolicy", container(&json!({"imagePullPolicy": "Never"}))),
    ] {
        let mut denied = pod(credential, &spec);
        for (key, value) in spec.as_object().unwrap() {
            if value.is_null() {
                denied["spec"].as_object_mut().unwrap().remove(key);
            }
        }
        credential.expect_denied(message, &denied).await;
    }
    // The label by which the platform finds such pods goes with the affinity.
    let unmarked = with(
        &pod(credential, &json!({})),
        &json!({"metadata": {"labels": {labels::SHARED_NODES: null}}}),
    );
    credential.expect_denied("berth.dev/shared-nodes", &unmarked).await;
    let marked = json!({"metadata": {"labels": {labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}}});
    let marked = with(&credential.pod(&json!({})), &marked);
    credential.expect_denied("berth.dev/shared-nodes", &marked).await;
}
