//! Nodes that several tenants use: only those of the tenant's pools, and nothing there that could reach a device or another
//! tenant's images.

use super::{StolenCredential, expect_denied, with};
use berth_api::{HostNodePool, NodeGroup, NodeMode, labels};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
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

/// A container as the syncer makes those of pods that may run on shared nodes.
fn container(name: &str, more: &Value) -> Value {
    let base = json!({"name": name, "image": "i", "imagePullPolicy": "Always",
        "securityContext": {"capabilities": {"drop": ["NET_RAW"]}}});
    with(&base, more)
}

/// A pod as the syncer makes those that may run on shared nodes.
pub(super) fn pod(credential: &StolenCredential, more: &Value) -> Value {
    let spec = with(
        &terms(&[
            term(labels::TENANT, "In", &[&credential.slug]),
            term(labels::SHARED_POOL, "In", &["policies-cpu"]),
        ]),
        &json!({"hostUsers": false, "containers": [container("c", &json!({}))],
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}),
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

/// A capability that the class gives is for nodes of the tenant's own.
pub(super) async fn capabilities(credential: &StolenCredential) {
    let add = json!({"securityContext": {"capabilities": {"drop": ["NET_RAW"], "add": ["IPC_LOCK"]}}});
    let shared = pod(credential, &json!({"containers": [container("c", &add)]}));
    credential.expect_denied("capabilities.add", &shared).await;
}

pub(super) async fn pods(credential: &StolenCredential, admin: &Client) {
    let container_with = |more: &Value| json!({"containers": [container("c", more)]});
    for allowed in [
        json!({}),
        json!({"runtimeClassName": "gvisor", "priorityClassName": "berth-policies-3-never"}),
        container_with(
            &json!({"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "1Gi", "hugepages-2Mi": "2Mi"}}}),
        ),
        container_with(&json!({"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}})),
        json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "audit.json"}}}),
    ] {
        credential.expect_allowed(&pod(credential, &allowed)).await;
    }
    let own = term(labels::TENANT, "In", &[&credential.slug]);
    let shared = term(labels::SHARED_POOL, "In", &["policies-cpu"]);
    let gpu = |name: &str| container_with(&json!({"resources": {"limits": {name: "1"}}}));
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
            json!({"initContainers": [container("i", &json!({"resources": {"limits": {"amd.com/gpu": "1"}}}))]}),
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
            container_with(&json!({"imagePullPolicy": "IfNotPresent"})),
        ),
        ("imagePullPolicy", container_with(&json!({"imagePullPolicy": "Never"}))),
        // The kubelet may run pods without a profile unconfined.
        ("seccompProfile", json!({"securityContext": null})),
        // Raw sockets: container runtimes give them to every container, and know their capability by one name only.
        ("capabilities.drop", container_with(&json!({"securityContext": null}))),
        (
            "capabilities.drop",
            container_with(&json!({"securityContext": {"capabilities": {"drop": ["CAP_NET_RAW", "KILL"]}}})),
        ),
        (
            "capabilities.drop",
            json!({"initContainers": [container("i", &json!({"securityContext": null}))]}),
        ),
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
    ephemeral_containers(credential, admin).await;
    pods_from_before(credential, admin).await;
}

/// Containers that are added to a running pod have no raw sockets either.
async fn ephemeral_containers(credential: &StolenCredential, admin: &Client) {
    let pods: Api<Pod> = Api::namespaced(credential.client.clone(), &credential.namespace);
    let running = with(&pod(credential, &json!({})), &json!({"metadata": {"name": "shared"}}));
    let running: Pod = serde_json::from_value(running).unwrap();
    pods.create(&PostParams::default(), &running).await.unwrap();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let debug = async |more: &Value| {
        let patch = json!({"spec": {"ephemeralContainers": [container("d", more)]}});
        pods.patch_subresource("ephemeralcontainers", "shared", &dry_run, &Patch::Merge(&patch))
            .await
    };
    expect_denied("capabilities.drop", debug(&json!({"securityContext": null})).await);
    debug(&json!({})).await.unwrap();
    // Not even a capability that the class gives, nor what the level of the namespace no longer denies.
    for more in [
        json!({"capabilities": {"drop": ["NET_RAW"], "add": ["IPC_LOCK"]}}),
        json!({"capabilities": {"drop": ["NET_RAW"], "add": ["SYS_PTRACE"]}}),
    ] {
        expect_denied("capabilities.add", debug(&json!({"securityContext": more})).await);
    }
    let privileged = json!({"capabilities": {"drop": ["NET_RAW"]}, "privileged": true});
    expect_denied(
        "Pod Security level",
        debug(&json!({"securityContext": privileged})).await,
    );

    // What is there from before this rule stays as it is: only what is added must follow it.
    let old = container("old", &json!({"securityContext": null}));
    let existing = Patch::Merge(json!({"spec": {"ephemeralContainers": [old]}}));
    let as_admin: Api<Pod> = Api::namespaced(admin.clone(), &credential.namespace);
    as_admin
        .patch_subresource("ephemeralcontainers", "shared", &PatchParams::default(), &existing)
        .await
        .unwrap();
    let second = async |more: &Value| {
        let patch = json!({"spec": {"ephemeralContainers": [old, container("d", more)]}});
        pods.patch_subresource("ephemeralcontainers", "shared", &dry_run, &Patch::Merge(&patch))
            .await
    };
    expect_denied("capabilities.drop", second(&json!({"securityContext": null})).await);
    second(&json!({})).await.unwrap();
    pods.delete("shared", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}

/// A pod keeps what its class allowed when it was created: labels, by which policies close it, must still reach it. Nothing that comes into
/// it later has an exception.
async fn pods_from_before(credential: &StolenCredential, admin: &Client) {
    let variable = json!([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]);
    let mut spec = terms(&[term(labels::SHARED_POOL, "In", &["policies-other"])]);
    spec["hostUsers"] = true.into();
    spec["containers"] = json!([container(
        "c",
        &json!({"imagePullPolicy": "IfNotPresent", "env": variable})
    )]);
    let before = json!({"metadata": {"name": "before", "labels": {"pod.berth.dev/app": "a"}}});
    // A pod that waits for a node of another pool, or is on one, would be deleted by Berth.
    spec["nodeName"] = "gone".into();
    let before = with(&pod(credential, &spec), &before);
    let before: Pod = serde_json::from_value(before).unwrap();
    let as_admin: Api<Pod> = Api::namespaced(admin.clone(), &credential.namespace);
    as_admin.create(&PostParams::default(), &before).await.unwrap();

    let pods: Api<Pod> = Api::namespaced(credential.client.clone(), &credential.namespace);
    let relabeled = json!({"metadata": {"labels": {"pod.berth.dev/app": null}}});
    pods.patch("before", &PatchParams::default(), &Patch::Merge(&relabeled))
        .await
        .unwrap();
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    let other_image = json!({"spec": {"containers": [{"name": "c", "image": "of-another-tenant"}]}});
    let patched = pods.patch("before", &dry_run, &Patch::Strategic(&other_image)).await;
    expect_denied("imagePullPolicy", patched);
    let debug = async |more: &Value| {
        let patch = json!({"spec": {"ephemeralContainers": [container("d", more)]}});
        pods.patch_subresource("ephemeralcontainers", "before", &dry_run, &Patch::Merge(&patch))
            .await
    };
    expect_denied("imagePullPolicy", debug(&json!({"imagePullPolicy": "Never"})).await);
    expect_denied("choose devices", debug(&json!({"env": variable})).await);
    debug(&json!({})).await.unwrap();
    pods.delete("before", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}
