//! Labels of the tenant's pods. Selectors of the tenant's Services, policies, budgets and affinities need all of them on host pods. Programs
//! of the host need none of them, and would take some for orders. So host pods carry them under the keys of [`berth_api::pod_labels`],
//! and selectors are translated with the same keys.
//!
//! Labels that the class lists, but for those of Berth and of queues and schedulers, are there under their own keys as well. Selectors do not use
//! these, so that a class can change while pods run.

use super::{metadata, selector};
use crate::model::json;
use berth_api::pod_labels::{BOUND, host_key};
use serde_json::{Map, Value};

/// Labels of the host pod for those of the tenant's pod. `listed` are those that the class lists.
pub fn labels_of(pod: &Value, listed: &[String]) -> Map<String, Value> {
    let mut labels = metadata::labels(pod, &[], listed);
    for (key, value) in json::strings(pod, &["metadata", "labels"]) {
        if !BOUND.contains(&key.as_str()) {
            labels.insert(host_key(&key), value.into());
        }
    }
    labels
}

/// A selector of pods as a selector of the labels that host pods carry.
pub fn selector(selector: &Value) -> Value {
    selector::with_keys(selector, host_key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::{
        labels::{POD_LABELS, is_reserved},
        pod_labels::OF_CONTROLLERS,
    };
    use serde_json::json;
    use std::collections::BTreeMap;

    /// Keys that programs of a host take for orders.
    const ORDERS: &[&str] = &[
        "aadpodidbinding",
        "app",
        "applicationId",
        "azure.workload.identity/use",
        "berth.dev/tenant",
        "io.cilium.k8s.policy.cluster",
        "istio.io/dataplane-mode",
        "kai.scheduler/queue",
        "koordinator.sh/qosClass",
        "kueue.x-k8s.io/queue-name",
        "net.berth.dev/egress",
        "pod-group.scheduling.sigs.k8s.io",
        "projectcalico.org/namespace",
        "queue",
        "scheduling.x-k8s.io/pod-group",
        "sidecar.istio.io/inject",
        "volcano.sh/job-name",
    ];

    fn pod(keys: &[&str]) -> Value {
        let labels: Map<String, Value> = keys.iter().map(|key| ((*key).to_owned(), "v".into())).collect();
        json!({"metadata": {"labels": labels}})
    }

    #[test]
    fn no_key_of_a_tenant_means_anything_on_the_host() {
        let labels = labels_of(&pod(ORDERS), &[]);
        assert_eq!(labels.len(), ORDERS.len());
        for key in labels.keys() {
            assert!(is_reserved(key) && key.starts_with(POD_LABELS), "{key}");
        }
    }

    #[test]
    fn labels_of_kubernetes_controllers_keep_their_keys_and_those_of_the_node_are_left_to_the_host() {
        let keys = [OF_CONTROLLERS, BOUND].concat();
        let labels = labels_of(&pod(&keys), &[]);
        assert!(labels.keys().eq(OF_CONTROLLERS.iter()), "{labels:?}");
    }

    #[test]
    fn labels_that_the_class_lists_are_carried_twice_but_for_those_of_queues_and_of_berth() {
        let listed = ["app", "koordinator.sh/*", "kueue.x-k8s.io/*", "berth.dev/*"].map(ToOwned::to_owned);
        let labels = labels_of(&pod(ORDERS), &listed);
        let plain: Vec<&String> = labels.keys().filter(|key| !key.starts_with(POD_LABELS)).collect();
        assert_eq!(plain, ["app", "koordinator.sh/qosClass"]);
        assert_eq!(labels.len(), ORDERS.len() + plain.len());
    }

    #[test]
    fn selectors_match_the_same_pods_on_the_host() {
        let keys = [ORDERS, OF_CONTROLLERS].concat();
        let pod = pod(&keys);
        let on_host: BTreeMap<String, String> = labels_of(&pod, &["app".to_owned()])
            .into_iter()
            .filter_map(|(key, value)| Some((key, value.as_str()?.to_owned())))
            .collect();
        for key in keys {
            for (translated, expected) in [
                (json!({"matchLabels": {key: "v"}}), true),
                (json!({"matchLabels": {key: "w"}}), false),
                (
                    json!({"matchExpressions": [{"key": key, "operator": "DoesNotExist"}]}),
                    false,
                ),
                (
                    json!({"matchExpressions": [{"key": format!("{key}x"), "operator": "DoesNotExist"}]}),
                    true,
                ),
            ] {
                let matches = selector::matches(&selector(&translated), &on_host);
                assert_eq!(matches, Some(expected), "{translated}");
            }
        }
    }
}
