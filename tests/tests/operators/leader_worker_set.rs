//! LeaderWorkerSet: an inference service whose replicas are groups of pods over several nodes.

use crate::{
    chart::{Chart, Helm},
    host_objects,
    team::{FOREVER, accepted, container, refused, team},
};
use berth_tests::{
    objects::{dynamic, phase},
    tenant::{Tenant, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until, until_true},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PropagationPolicy},
};
use serde_json::{Value, json};
use std::{collections::BTreeMap, sync::Arc};

/// The operator. Its program is `./cmd`.
const LWS: Chart = Chart {
    name: "lws",
    version: "v0.8.0",
    namespace: "lws-system",
    deployment: "lws-controller-manager",
    pull_policy: &["image", "manager", "pullPolicy"],
};

/// The label whose value is the same for the pods of a group.
const DOMAIN: &str = "kubernetes.io/hostname";

/// A service with `replicas` groups of a leader and a worker, each with half of a node's GPUs; a group has a node to itself.
fn inference(replicas: u32) -> Value {
    let pod = json!({"spec": {"containers": [container(4, FOREVER)]}});
    json!({
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "chat", "annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": DOMAIN}},
        "spec": {"replicas": replicas, "leaderWorkerTemplate": {"size": 2, "leaderTemplate": pod, "workerTemplate": pod}},
    })
}

async fn running(host: &TestCluster, tenant: &Tenant, names: &[&str]) -> BTreeMap<String, Pod> {
    until(&format!("{names:?} run on the host"), SOON, async || {
        let pods = host_objects::pods(host, tenant, "team").await;
        let found: Vec<_> = pods
            .iter()
            .map(|(name, pod)| format!("{name} {}", phase(pod)))
            .collect();
        let wanted: Vec<_> = names.iter().map(|name| format!("{name} Running")).collect();
        if found == wanted { Ok(pods) } else { Err(found) }
    })
    .await
}

pub(crate) async fn groups_of_an_inference_service(host: Arc<TestCluster>) {
    let tenant = team(&host).await;
    let helm = Helm::new(tenant);
    helm.install(&host, &LWS).await;
    ensure_namespace(&tenant.client, "team").await;

    let mut wrong = inference(1);
    wrong["metadata"]["name"] = "9".into();
    // When a webhook does not answer, the message names it, too, but differs.
    refused(
        tenant,
        &wrong,
        "admission webhook \"vleaderworkerset.kb.io\" denied the request",
    )
    .await;

    accepted(tenant, &inference(2)).await;
    let pods = running(&host, tenant, &["chat-0", "chat-0-1", "chat-1", "chat-1-1"]).await;
    let place = |name: &str| pods[name].spec.clone().unwrap().node_name.unwrap();
    assert_eq!(place("chat-0"), place("chat-0-1"), "a group is on one node");
    assert_eq!(place("chat-1"), place("chat-1-1"));
    assert_ne!(place("chat-0"), place("chat-1"), "and has it to itself");
    for (name, pod) in &pods {
        let spec = pod.spec.clone().unwrap();
        assert_eq!(spec.hostname.as_deref(), Some(name.as_str()));
        assert_eq!(
            spec.subdomain.as_deref(),
            Some("chat"),
            "the names are those of the set's headless Service"
        );
        // The address by which a worker finds its leader; the webhook adds it.
        let leader = spec.containers[0]
            .env
            .iter()
            .flatten()
            .find(|env| env.name == "LWS_LEADER_ADDRESS");
        let group = &name[.."chat-0".len()];
        assert_eq!(leader.unwrap().value, Some(format!("{group}.chat.team")));
    }
    let service = host_objects::service(&host, tenant, "team", "chat").await.spec.unwrap();
    assert_eq!(service.cluster_ip.as_deref(), Some("None"));
    assert_eq!(service.publish_not_ready_addresses, Some(true));

    let sets = dynamic(
        &tenant.client,
        "leaderworkerset.x-k8s.io",
        "v1",
        "LeaderWorkerSet",
        "team",
    );
    until_true("the service is available", SOON, async || {
        sets.get("chat").await.is_ok_and(|set| {
            let conditions = set.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions
                .iter()
                .any(|condition| condition["type"] == "Available" && condition["status"] == "True")
        })
    })
    .await;

    // A group restarts as a whole: when one of its pods is lost, all of them are created again.
    let own: Api<Pod> = Api::namespaced(tenant.client.clone(), "team");
    let before = own.get("chat-1").await.unwrap().metadata.uid;
    own.delete("chat-1-1", &DeleteParams::default()).await.unwrap();
    until_true("the leader is created again", SOON, async || {
        own.get_opt("chat-1")
            .await
            .is_ok_and(|pod| pod.is_some_and(|pod| pod.metadata.uid != before))
    })
    .await;
    running(&host, tenant, &["chat-0", "chat-0-1", "chat-1", "chat-1-1"]).await;

    let fewer = Patch::Merge(json!({"spec": {"replicas": 1}}));
    until("the change is accepted", SOON, async || {
        sets.patch("chat", &PatchParams::default(), &fewer).await
    })
    .await;
    running(&host, tenant, &["chat-0", "chat-0-1"]).await;

    let params = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    sets.delete("chat", &params).await.unwrap();
    until_true("the service is gone", SOON, async || {
        sets.get_opt("chat").await.is_ok_and(|set| set.is_none())
    })
    .await;
    helm.uninstall(&LWS).await;
}
