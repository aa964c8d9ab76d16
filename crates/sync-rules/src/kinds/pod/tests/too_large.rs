//! Pods with more than they may have: what they would become on the host is not made.

use super::{super::*, cache, name, pod, put_host};
use crate::{
    model::{KindId, store::Stored},
    translation::sizes::{MOST_NODE_FIELDS, MOST_TOLERATIONS},
};

/// A pod with so many tolerations, none of which has a key.
fn tolerating(count: usize) -> Value {
    let toleration = |seconds| json!({"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds});
    let mut pod = pod();
    pod["spec"]["tolerations"] = (0..count).map(toleration).collect();
    pod
}

/// What is made of a pod, and which fields are denied or left out.
fn made(cache: &Cache, pod: &Value) -> (Value, Vec<String>) {
    let mut issues = FieldIssues::default();
    let object = build::host_pod(cache, &name(), pod, &mut issues);
    let denied = issues.denied.into_iter().chain(issues.parts.left_out);
    (object, denied.map(|denied| denied.field).collect())
}

fn tolerations(object: &Value) -> usize {
    json::items(object, &["spec", "tolerations"]).len()
}

#[test]
fn a_pod_with_too_long_lists_is_denied_without_them() {
    let (object, denied) = made(&cache(), &tolerating(20_000));
    assert_eq!(denied, ["spec.tolerations", "spec"], "{denied:?}");
    assert_eq!(tolerations(&object), 1, "that of the tenant's nodes");
    let (object, denied) = made(&cache(), &tolerating(100));
    assert_eq!(denied, ["spec.tolerations"], "each becomes one for each taint");
    assert_eq!(tolerations(&object), MOST_TOLERATIONS + 1);
}

#[test]
fn a_pod_that_runs_keeps_its_labels_then() {
    let cache = cache();
    put_host(&cache, &json!({"nodeName": "gpu-1"}), &json!({}));
    let running = |count| {
        let mut pod = tolerating(count);
        pod["spec"]["nodeName"] = "gpu-1".into();
        pod
    };
    let (before, _) = made(&cache, &running(1));
    let (object, denied) = made(&cache, &running(20_000));
    assert!(denied.iter().any(|field| field == "spec.tolerations"), "{denied:?}");
    assert_eq!(tolerations(&object), 1);
    assert_eq!(object["metadata"], before["metadata"]);
}

#[test]
fn nodes_that_a_pod_avoids_are_not_repeated_in_all_of_its_terms() {
    let cache = cache();
    for number in 0..100 {
        let node = Name::new("", &format!("gpu-{number}"));
        let published =
            json!({"metadata": {"name": &*node.name, "resourceVersion": "1"}, "spec": {"nodeName": &*node.name}});
        let cordoned =
            json!({"metadata": {"name": &*node.name, "resourceVersion": "1"}, "spec": {"unschedulable": true}});
        let stores = &cache.stores;
        stores.host(KindId::Node).written(node.clone(), Stored::new(&published));
        stores.tenant(KindId::Node).written(node, Stored::new(&cordoned));
    }
    let mut pod = pod();
    let term = json!({"matchExpressions": [{"key": "gpu", "operator": "Exists"}]});
    json::set(&mut pod["spec"]["affinity"], &scheduling::NODE_TERMS, vec![term; 240]);
    let (object, denied) = made(&cache, &pod);
    assert!(
        denied.iter().any(|field| field == "spec.affinity.nodeAffinity: fields"),
        "{denied:?}"
    );
    let terms = json::items(&object["spec"]["affinity"], &scheduling::NODE_TERMS).iter();
    let fields: usize = terms.map(|term| json::items(term, &["matchFields"]).len()).sum();
    assert!(
        (MOST_NODE_FIELDS + 1..=MOST_NODE_FIELDS + 100).contains(&fields),
        "{fields}"
    );
}
