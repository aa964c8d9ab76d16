//! Events about pods of tenants, with the credential of a kubelet. A tenant decides on what they say, by the output of probes and by commands, and no
//! quota counts them.

use super::{dry_run, expect_denied, kubelets::kubelet_of};
use crate::shared::attacker;
use berth_admission_policies::mutating_policies;
use berth_tests::{
    objects::nodes_of_tenant,
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingAdmissionPolicyBinding, core::v1::Event, events::v1::Event as NewerEvent,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc};

const NAME: &str = "unhealthy.1";
/// Bytes of a message that are allowed.
const MOST: usize = 1024;

pub(crate) async fn events_about_pods_of_tenants_are_small(host: Arc<TestCluster>) {
    let tenant = attacker(&host).await;
    let node = nodes_of_tenant(&host.client, tenant.id.slug()).await.remove(0);
    let kubelet = kubelet_of(&host, &node).await;
    let namespaces = [tenant.id.workload_namespace(), tenant.id.control_plane_namespace()];
    for namespace in &namespaces {
        long_messages(&kubelet, namespace).await;
        the_rest(&kubelet, namespace).await;
    }
    repeated_event(&host, &kubelet, &namespaces[0]).await;
    // The platform's own are as they were written, up to a size (see `kubelet_sizes`).
    let long = "a".repeat(5000);
    let events: Api<Event> = Api::namespaced(kubelet.clone(), "default");
    let created = events.create(&dry_run(), &event("default", &long)).await.unwrap();
    assert_eq!(created.message, Some(long));
    on_a_host_that_cuts_no_messages(&host, &kubelet, &namespaces[0]).await;
}

/// Whether a message is the beginning of what was written.
fn is_cut(message: Option<&str>, written: &str) -> bool {
    let kept = message.and_then(|message| message.strip_suffix('…'));
    kept.is_some_and(|kept| (900..MOST).contains(&kept.len()) && written.starts_with(kept))
}

async fn long_messages(kubelet: &Client, namespace: &str) {
    let events: Api<Event> = Api::namespaced(kubelet.clone(), namespace);
    let longest = "a".repeat(MOST);
    let created = events.create(&dry_run(), &event(namespace, &longest)).await.unwrap();
    assert_eq!(created.message, Some(longest));
    for written in [
        "a".repeat(MOST + 1),
        "b".repeat(200_000),
        "é".repeat(600),
        "漢".repeat(400),
        "🦀".repeat(300),
    ] {
        let created = events.create(&dry_run(), &event(namespace, &written)).await.unwrap();
        assert!(is_cut(created.message.as_deref(), &written), "{:?}", created.message);
    }
}

/// What tenants do not decide on, somebody can fill who is root on a node.
async fn the_rest(kubelet: &Client, namespace: &str) {
    let denied = "an Event about an object of a tenant may have at most 8,192 bytes";
    let notes = |length: usize| Some(BTreeMap::from([("example.com/note".to_owned(), "a".repeat(length))]));
    let events: Api<Event> = Api::namespaced(kubelet.clone(), namespace);
    let mut filled = event(namespace, "short");
    filled.metadata.annotations = notes(9000);
    expect_denied(denied, events.create(&dry_run(), &filled).await);
    filled.metadata.annotations = notes(2000);
    events.create(&dry_run(), &filled).await.unwrap();

    let newer: Api<NewerEvent> = Api::namespaced(kubelet.clone(), namespace);
    let mut filled: NewerEvent = serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "regarding": {"apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "p"},
        "type": "Warning", "reason": "Unhealthy", "action": "Probe", "note": "short",
        "eventTime": "2026-01-01T00:00:00.000000Z", "reportingController": "kubelet", "reportingInstance": "n",
    }))
    .unwrap();
    newer.create(&dry_run(), &filled).await.unwrap();
    filled.metadata.annotations = notes(9000);
    expect_denied(denied, newer.create(&dry_run(), &filled).await);
}

/// A kubelet sends the whole message again when an Event happens again.
async fn repeated_event(host: &TestCluster, kubelet: &Client, namespace: &str) {
    let events: Api<Event> = Api::namespaced(kubelet.clone(), namespace);
    let written = "a".repeat(5000);
    events
        .create(&PostParams::default(), &event(namespace, &written))
        .await
        .unwrap();
    let again = Patch::Strategic(json!({"message": written, "count": 2}));
    let patched = events.patch(NAME, &PatchParams::default(), &again).await.unwrap();
    assert!(is_cut(patched.message.as_deref(), &written), "{:?}", patched.message);
    assert_eq!(patched.count, Some(2));
    let of_admin: Api<Event> = Api::namespaced(host.client.clone(), namespace);
    of_admin.delete(NAME, &DeleteParams::default()).await.unwrap();
}

/// As before Kubernetes 1.36.
async fn on_a_host_that_cuts_no_messages(host: &TestCluster, kubelet: &Client, namespace: &str) {
    let events: Api<Event> = Api::namespaced(kubelet.clone(), namespace);
    let bindings: Api<MutatingAdmissionPolicyBinding> = Api::all(host.client.clone());
    let [(_, binding)] = mutating_policies();
    bindings
        .delete(&binding.name_any(), &DeleteParams::default())
        .await
        .unwrap();
    let long = event(namespace, &"a".repeat(MOST + 1));
    until("messages are not cut", SOON, async || {
        match events.create(&dry_run(), &long).await {
            Err(kube::Error::Api(_)) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    let denied = "the message of an Event about an object of a tenant may have at most 1,024 bytes";
    expect_denied(denied, events.create(&dry_run(), &long).await);
    let longest = event(namespace, &"a".repeat(MOST));
    events.create(&dry_run(), &longest).await.unwrap();
    bindings.create(&PostParams::default(), &binding).await.unwrap();
    until("messages are cut again", SOON, async || {
        events.create(&dry_run(), &long).await
    })
    .await;
}

/// An Event as a kubelet writes it when a probe fails.
fn event(namespace: &str, message: &str) -> Event {
    serde_json::from_value(json!({
        "metadata": {"name": NAME},
        "involvedObject": {
            "apiVersion": "v1", "kind": "Pod", "namespace": namespace, "name": "p", "fieldPath": "spec.containers{c}",
        },
        "type": "Warning", "reason": "Unhealthy", "message": message, "count": 1,
        "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:00:00Z",
        "source": {"component": "kubelet", "host": "n"}, "reportingComponent": "kubelet", "reportingInstance": "n",
    }))
    .unwrap()
}
