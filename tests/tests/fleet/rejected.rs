//! A node that a foreign admission policy guards does not hold up a tenant.

use crate::setup::{SOON, Team, until_all_free};
use berth_api::{NodeGroup, labels};
use berth_tests::{
    objects::apply,
    test_cluster::TestCluster,
    wait::{until, until_true},
};
use k8s_openapi::api::{
    admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
    core::v1::{ConfigMap, Event, Node},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc};

/// The only node of the pool that may get an owner.
const OPEN: &str = "gpu-h100-04";

pub(crate) async fn rejected_reservation_moves_to_another_node(host: Arc<TestCluster>) {
    guard(&host).await;
    let team = Team::create(&host, "refused", None, vec![NodeGroup::dynamic("burst", "h100", 0, 4)]).await;
    // A gang requests two: the only open node is reserved with a guarded one, or not at all, and is released.
    let gang = json!({"metadata": {"annotations": {labels::GANG: "ring", labels::GANG_SIZE: "2"}}});
    for name in ["r0", "r1"] {
        team.run(name, 8, &gang).await;
    }
    let events: Api<Event> = Api::all(host.client.clone());
    let refused = ListParams::default().fields("reason=ReservationRejected");
    let rejections = until("Events name all guarded nodes", SOON, async || {
        let events = events.list(&refused).await.map_err(|error| error.to_string())?;
        let about = |event: &Event| event.involved_object.name.clone();
        let nodes: BTreeSet<String> = events.iter().filter_map(about).collect();
        if nodes.len() < 3 {
            Err(format!("{nodes:?}"))
        } else {
            Ok((nodes, events))
        }
    });
    let (guarded, rejections) = rejections.await;
    assert!(!guarded.contains(OPEN), "{guarded:?}");
    for event in rejections {
        let message = event.message.unwrap();
        assert!(message.contains("hands off"), "{message}");
    }
    until_true("nothing is held for a part of a gang", SOON, async || {
        team.held().await == 0
    })
    .await;
    for name in ["r0", "r1"] {
        team.stop(name).await;
    }
    // A node that changes meanwhile does not count as used.
    let nodes: Api<Node> = Api::all(host.client.clone());
    for node in &guarded {
        let touched = json!({"metadata": {"labels": {"example.com/touched": "yes"}}});
        nodes
            .patch(node, &PatchParams::default(), &Patch::Merge(&touched))
            .await
            .unwrap();
    }
    team.run("train", 8, &json!({})).await;
    until_true("the pod runs", SOON, async || team.running().await == 1).await;
    let pod = team.pods.get("train").await.unwrap();
    assert_eq!(pod.spec.unwrap().node_name.as_deref(), Some(OPEN));
    assert_eq!(team.held().await, 1);
    let markers: Api<ConfigMap> = Api::namespaced(host.client.clone(), "berth-system");
    let markers = markers
        .list(&ListParams::default().labels(labels::IN_USE_MARKER))
        .await
        .unwrap();
    let marked: Vec<_> = markers
        .iter()
        .filter_map(|marker| marker.data.as_ref()?.get("node"))
        .collect();
    assert_eq!(marked, [OPEN]);

    // Without the policy, the other nodes can be reserved again.
    let policies: Api<ValidatingAdmissionPolicy> = Api::all(host.client.clone());
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(host.client.clone());
    bindings.delete("hands-off", &DeleteParams::default()).await.unwrap();
    policies.delete("hands-off", &DeleteParams::default()).await.unwrap();
    team.run("more", 8, &json!({})).await;
    until_true("both pods run", SOON, async || team.running().await == 2).await;
    team.delete(&host).await;
    until_all_free(&host).await;
}

/// Refuses an owner on all nodes but one.
async fn guard(host: &TestCluster) {
    let rule = format!(
        "object.metadata.name == '{OPEN}' || !has(object.metadata.annotations) || !('{}' in object.metadata.annotations)",
        labels::OWNER_UID
    );
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "hands-off"},
        "spec": {
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes"]},
            ]},
            "validations": [{"expression": rule, "message": "hands off"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "hands-off"}, "spec": {"policyName": "hands-off", "validationActions": ["Deny"]},
    });
    for object in [&policy, &binding] {
        apply(&host.client, "", object).await.unwrap();
    }
    let nodes: Api<Node> = Api::all(host.client.clone());
    let own = json!({"metadata": {"annotations": {labels::OWNER_UID: "somebody"}}});
    let dry_run = PatchParams {
        dry_run: true,
        ..PatchParams::default()
    };
    until_true("the policy holds", SOON, async || {
        nodes.patch("gpu-h100-01", &dry_run, &Patch::Merge(&own)).await.is_err()
    })
    .await;
}
