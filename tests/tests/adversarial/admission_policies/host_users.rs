//! Users of the host that are neither kubelets nor of Berth: agents of network plug-ins, and people of teams.

use super::{dry_run, expect_denied, rbac};
use crate::shared::attacker;
use berth_api::labels;
use berth_tests::{
    tenant::patient,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

/// Traffic goes to the addresses of pods, and to those that Services select by their labels.
pub(crate) async fn an_agent_with_rights_on_the_status_of_pods_redirects_no_traffic(host: Arc<TestCluster>) {
    const AGENT: &str = "network-agent";
    let tenant = attacker(&host).await;
    let namespace = tenant.id.workload_namespace();
    let of_admin: Api<Pod> = Api::namespaced(host.client.clone(), &namespace);
    let victim = json!({
        "metadata": {"name": "victim", "labels": {"app": "api"}},
        // Nothing starts it.
        "spec": {"schedulerName": "none", "containers": [{"name": "c", "image": "i"}]},
    });
    let victim: Pod = serde_json::from_value(victim).unwrap();
    of_admin.create(&PostParams::default(), &victim).await.unwrap();
    let rules = json!([{"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch", "update"]}]);
    rbac::grant(&host.client, "", AGENT, &rbac::user(AGENT), &rules).await;

    let client = patient(&host.kubeconfig_for(AGENT, &[]).unwrap()).await;
    until("the agent has rights", SOON, async || {
        // As network plug-ins do.
        let annotations = json!({"metadata": {"annotations": {"cni.example.com/ip": "10.1.1.1"}}});
        patch_status(&client, &namespace, &annotations).await
    })
    .await;
    let condition = json!({"status": {"conditions": [{"type": "example.com/ready", "status": "True"}]}});
    patch_status(&client, &namespace, &condition).await.unwrap();
    for (message, patch) in [
        (
            "addresses and containers",
            json!({"status": {"podIP": "10.9.9.9", "podIPs": [{"ip": "10.9.9.9"}]}}),
        ),
        ("addresses and containers", json!({"status": {"hostIP": "10.9.9.9"}})),
        (
            "addresses and containers",
            json!({"status": {"containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 0}]}}),
        ),
        ("the phase", json!({"status": {"phase": "Failed"}})),
        // With tens of thousands, nobody could preempt or collect the pod: to look at all of them would cost too much.
        (
            "whether a tenant's pod is ready",
            json!({"status": {"conditions": many_conditions(201)}}),
        ),
        (
            "whether a tenant's pod is ready",
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        ),
        (
            "labels and finalizers",
            json!({"metadata": {"labels": {"app": "other"}}}),
        ),
        (
            "labels and finalizers",
            json!({"metadata": {"finalizers": ["example.com/held"]}}),
        ),
        // The syncer deletes a pod that names another one than it was made for.
        (
            "annotations of berth.dev",
            json!({"metadata": {"annotations": {labels::ORIGIN_NAME: "other"}}}),
        ),
        (
            "annotations of berth.dev",
            json!({"metadata": {"annotations": {"cni.example.com/ip": "10.1.1.1", "downward.berth.dev/a": "other"}}}),
        ),
    ] {
        expect_denied(message, patch_status(&client, &namespace, &patch).await);
    }
    of_control_planes(&host, &client, &tenant.id.control_plane_namespace()).await;
    // Controllers of the host: of nodes that do not answer, and of pods whose node is gone.
    let controller = "system:serviceaccount:kube-system:node-controller";
    let client = patient(&host.kubeconfig_for(controller, &[]).unwrap()).await;
    let not_ready = json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}});
    patch_status(&client, &namespace, &not_ready).await.unwrap();
    let collector = "system:serviceaccount:kube-system:pod-garbage-collector";
    let client = patient(&host.kubeconfig_for(collector, &[]).unwrap()).await;
    let failed = json!({"status": {"phase": "Failed", "conditions": [{"type": "DisruptionTarget", "status": "True"}]}});
    patch_status(&client, &namespace, &failed).await.unwrap();
    let moved = json!({"status": {"podIP": "10.9.9.9"}});
    expect_denied(
        "addresses and containers",
        patch_status(&client, &namespace, &moved).await,
    );

    rbac::revoke(&host.client, AGENT).await;
    of_admin
        .delete("victim", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}

/// Who gets the label of an API server, or its address, gets the connections to it.
async fn of_control_planes(host: &TestCluster, agent: &Client, home: &str) {
    let pods: Api<Pod> = Api::namespaced(host.client.clone(), home);
    let pod = json!({
        "metadata": {"name": "victim"},
        // Nothing starts it. The namespace has the level `restricted` of Pod Security.
        "spec": {
            "schedulerName": "none",
            "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "image": "i", "securityContext": {
                "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}],
        },
    });
    let pod = serde_json::from_value(pod).unwrap();
    pods.create(&PostParams::default(), &pod).await.unwrap();
    for (message, patch) in [
        ("addresses and containers", json!({"status": {"podIP": "10.9.9.9"}})),
        (
            "labels and finalizers",
            json!({"metadata": {"labels": {"app.kubernetes.io/name": "kube-apiserver"}}}),
        ),
    ] {
        expect_denied(message, patch_status(agent, home, &patch).await);
    }
    pods.delete("victim", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}

fn many_conditions(count: usize) -> Vec<Value> {
    (0..count)
        .map(|number| json!({"type": format!("example.com/{number}"), "status": "True"}))
        .collect()
}

async fn patch_status(client: &Client, namespace: &str, patch: &Value) -> kube::Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    pods.patch_status("victim", &params, &Patch::Merge(patch)).await
}

/// Beside the pods of other tenants, and while their nodes are recycled.
pub(crate) async fn people_of_a_team_run_no_pods_on_nodes_of_tenants(host: Arc<TestCluster>) {
    const MEMBER: &str = "pod-creator";
    let tenant = attacker(&host).await;
    let namespace = tenant.namespace.clone();
    let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]}]);
    rbac::grant(&host.client, &namespace, MEMBER, &rbac::user(MEMBER), &rules).await;
    let client = patient(&host.kubeconfig_for(MEMBER, &[]).unwrap()).await;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let create = async |tolerations: Value| {
        let pod = json!({
            "metadata": {"name": "beside"},
            "spec": {"tolerations": tolerations, "containers": [{"name": "c", "image": "i"}]},
        });
        pods.create(&dry_run(), &serde_json::from_value(pod).unwrap()).await
    };
    until("the member has rights", SOON, async || {
        create(json!([{"key": "nvidia.com/gpu", "operator": "Exists"}])).await
    })
    .await;
    create(Value::Null).await.unwrap();
    for tolerations in [
        json!([{"operator": "Exists"}]),
        json!([{"operator": "Exists", "effect": "NoExecute"}]),
        json!([{"key": labels::TENANT, "operator": "Exists"}]),
        json!([{"key": labels::TENANT, "value": tenant.id.slug(), "effect": "NoExecute", "tolerationSeconds": 600}]),
    ] {
        expect_denied("may not tolerate the taint", create(tolerations).await);
    }
    many_tolerations(&host, &namespace, &pods).await;
    // Control believes the labels in workload namespaces only. Nor can the pod have them, not even later.
    let labels = json!({labels::TENANT: tenant.id.slug(), labels::MANAGED_BY: labels::MANAGED_BY_SYNCER});
    let named = json!({
        "metadata": {"name": "beside", "labels": labels},
        "spec": {"schedulerName": "none", "containers": [{"name": "c", "image": "i"}]},
    });
    let denied = "only pods in the workload namespaces of tenants";
    let mut pod: Pod = serde_json::from_value(named).unwrap();
    expect_denied(denied, pods.create(&dry_run(), &pod).await);
    for (key, denied) in [
        (labels::TENANT, "may carry berth.dev/tenant"),
        (labels::PLACEHOLDER, "may carry berth.dev/placeholder"),
    ] {
        pod.metadata.labels = Some([(key.to_owned(), "x".to_owned())].into());
        expect_denied(denied, pods.create(&dry_run(), &pod).await);
    }
    pod.metadata.labels = None;
    pods.create(&PostParams::default(), &pod).await.unwrap();
    let patch = Patch::Merge(json!({"metadata": {"labels": labels}}));
    expect_denied(denied, pods.patch("beside", &PatchParams::default(), &patch).await);
    pods.delete("beside", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}

/// Its processes would go on, and Berth would not know of them.
pub(crate) async fn people_of_a_team_remove_no_pod_that_may_run(host: Arc<TestCluster>) {
    const MEMBER: &str = "pod-remover";
    let tenant = attacker(&host).await;
    let namespace = tenant.namespace.clone();
    let rules = json!([
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    ]);
    rbac::grant(&host.client, &namespace, MEMBER, &rbac::user(MEMBER), &rules).await;
    let of_admin: Api<Pod> = Api::namespaced(host.client.clone(), &namespace);
    let pod = json!({
        "metadata": {"name": "stays"},
        // Nothing starts it there.
        "spec": {"nodeName": "nowhere", "containers": [{"name": "c", "image": "i"}]},
    });
    let pod = serde_json::from_value(pod).unwrap();
    of_admin.create(&PostParams::default(), &pod).await.unwrap();
    let within = |seconds: Option<u32>| DeleteParams {
        dry_run: true,
        grace_period_seconds: seconds,
        ..DeleteParams::default()
    };
    let client = patient(&host.kubeconfig_for(MEMBER, &[]).unwrap()).await;
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    until("the member has rights", SOON, async || {
        pods.delete("stays", &within(Some(1))).await
    })
    .await;
    // The client of kube sends no options of an eviction.
    let evict_within = async |seconds: u32| -> kube::Result<Value> {
        let eviction = json!({
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "stays"},
            "deleteOptions": {"gracePeriodSeconds": seconds, "dryRun": ["All"]},
        });
        pods.create_subresource("eviction", "stays", &dry_run(), &eviction)
            .await
    };
    let denied = "may not be removed by force";
    expect_denied(denied, pods.delete("stays", &within(Some(0))).await);
    expect_denied(
        denied,
        pods.delete_collection(&within(Some(0)), &ListParams::default()).await,
    );
    expect_denied(denied, evict_within(0).await);
    evict_within(1).await.unwrap();
    pods.delete("stays", &within(None)).await.unwrap();
    // A controller of the host, of pods whose node is gone.
    let collector = "system:serviceaccount:kube-system:pod-garbage-collector";
    let client = patient(&host.kubeconfig_for(collector, &[]).unwrap()).await;
    let of_collector: Api<Pod> = Api::namespaced(client, &namespace);
    of_collector.delete("stays", &within(Some(0))).await.unwrap();
    of_admin
        .delete("stays", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}

/// An API server admits what a policy with parameters cannot evaluate, for example because it costs too much.
async fn many_tolerations(host: &TestCluster, namespace: &str, of_member: &Api<Pod>) {
    // It adds two to a new pod.
    let pod = |count: usize| -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "crowded"},
            "spec": {
                // Nothing starts it.
                "schedulerName": "none", "tolerations": vec![json!({"key": "a"}); count],
                "containers": [{"name": "c", "image": "i"}],
            },
        }))
        .unwrap()
    };
    let denied = "at most 500";
    expect_denied(denied, of_member.create(&dry_run(), &pod(100_000)).await);
    expect_denied(denied, of_member.create(&dry_run(), &pod(499)).await);
    of_member.create(&dry_run(), &pod(498)).await.unwrap();
    // One from before the policy. People may add tolerations to a pod that waits, and replace one of two that are alike.
    let of_admin: Api<Pod> = Api::namespaced(host.client.clone(), namespace);
    let crowded = of_admin.create(&PostParams::default(), &pod(100_000)).await.unwrap();
    let before = serde_json::to_value(crowded.spec.unwrap().tolerations.unwrap()).unwrap();
    let tolerated = json!({"key": labels::TENANT, "operator": "Exists"});
    let (mut added, mut replaced) = (before.clone(), before);
    added.as_array_mut().unwrap().push(tolerated.clone());
    replaced[0] = tolerated;
    let params = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    for tolerations in [added, replaced] {
        let patch = Patch::Merge(json!({"spec": {"tolerations": tolerations}}));
        expect_denied(denied, of_member.patch("crowded", &params, &patch).await);
    }
    let patch = Patch::Merge(json!({"metadata": {"labels": {"app": "crowded"}}}));
    of_member.patch("crowded", &params, &patch).await.unwrap();
    of_admin
        .delete("crowded", &DeleteParams::default().grace_period(0))
        .await
        .unwrap();
}
