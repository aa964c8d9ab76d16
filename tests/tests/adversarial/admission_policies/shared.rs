//! Nodes that several tenants use: only those of the tenant's pools, and nothing there that could reach a device or another
//! tenant's images.

use super::{Thief, with};
use berth_api::{HostNodePool, NodeGroup, NodeMode, labels};
use serde_json::{Value, json};

/// A pool that the tenant asks for, and one that its class would allow as well.
pub(super) fn pools() -> [HostNodePool; 2] {
    ["walls-cpu", "walls-other"].map(|name| {
        let spec = json!({"nodeSelector": {"walls.example.com/pool": name}, "modes": ["Shared"]});
        HostNodePool::new(name, serde_json::from_value(spec).unwrap())
    })
}

/// The tenant's group.
pub(super) fn group() -> NodeGroup {
    NodeGroup {
        name: "build".into(),
        pool_name: "walls-cpu".into(),
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
fn pod(thief: &Thief, more: &Value) -> Value {
    let spec = with(
        &terms(&[
            term(labels::TENANT, "In", &[&thief.slug]),
            term(labels::SHARED_POOL, "In", &["walls-cpu"]),
        ]),
        &json!({"hostUsers": false, "containers": [{"name": "c", "image": "i", "imagePullPolicy": "Always"}]}),
    );
    // Of the overlays, null removes: what is to be removed of the base is in the last one.
    let pod = with(&thief.pod(&with(&spec, more)), &json!({"spec": {"nodeSelector": null}}));
    with(
        &pod,
        &json!({"metadata": {"labels": {labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}}}),
    )
}

pub(super) async fn pods(thief: &Thief) {
    let container = |more: &Value| {
        let base = json!({"name": "c", "image": "i", "imagePullPolicy": "Always"});
        json!({"containers": [with(&base, more)]})
    };
    for honest in [
        json!({}),
        json!({"runtimeClassName": "gvisor", "priorityClassName": "berth-walls-3-never"}),
        container(
            &json!({"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}}),
        ),
    ] {
        thief.passes(&pod(thief, &honest)).await;
    }
    let own = term(labels::TENANT, "In", &[&thief.slug]);
    let shared = term(labels::SHARED_POOL, "In", &["walls-cpu"]);
    let gpu = |name: &str| container(&json!({"resources": {"limits": {name: "1"}}}));
    let at_home = "spec.nodeSelector must ask";
    for (words, spec) in [
        // Pools: another, one that the class lists and the tenant has not asked for, any, all but one, none of both.
        (at_home, terms(&[term(labels::SHARED_POOL, "In", &["cpu"])])),
        (
            at_home,
            terms(&[
                own.clone(),
                term(labels::SHARED_POOL, "In", &["walls-cpu", "walls-other"]),
            ]),
        ),
        (at_home, terms(&[term(labels::SHARED_POOL, "In", &[""])])),
        (
            at_home,
            terms(&[json!({"matchExpressions": [{"key": labels::SHARED_POOL, "operator": "Exists"}]})]),
        ),
        (at_home, terms(&[term(labels::SHARED_POOL, "NotIn", &["other"])])),
        (
            at_home,
            terms(&[shared.clone(), term("kubernetes.io/os", "In", &["linux"])]),
        ),
        (
            at_home,
            terms(&[shared.clone(), term(labels::TENANT, "In", &[&thief.slug, "other"])]),
        ),
        // Devices, however they are asked for.
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
        // Others' pods would have to leave for it.
        ("preempt nobody", json!({"priorityClassName": "berth-walls-3"})),
        // What the class keeps from shared nodes.
        ("spec.hostUsers", json!({"hostUsers": null})),
        ("spec.hostUsers", json!({"hostUsers": true})),
        (
            "imagePullPolicy",
            container(&json!({"imagePullPolicy": "IfNotPresent"})),
        ),
        ("imagePullPolicy", container(&json!({"imagePullPolicy": "Never"}))),
    ] {
        let mut stolen = pod(thief, &spec);
        for (key, value) in spec.as_object().unwrap() {
            if value.is_null() {
                stolen["spec"].as_object_mut().unwrap().remove(key);
            }
        }
        thief.refused(words, &stolen).await;
    }
    // The label by which the platform finds such pods goes with the affinity.
    let unmarked = with(
        &pod(thief, &json!({})),
        &json!({"metadata": {"labels": {labels::SHARED_NODES: null}}}),
    );
    thief.refused("berth.dev/shared-nodes", &unmarked).await;
    let marked = json!({"metadata": {"labels": {labels::SHARED_NODES: labels::SHARED_NODES_ALLOWED}}});
    let marked = with(&thief.pod(&json!({})), &marked);
    thief.refused("berth.dev/shared-nodes", &marked).await;
}
