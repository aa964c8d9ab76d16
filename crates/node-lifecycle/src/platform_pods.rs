//! Pods on nodes that no syncer made: the platform's own, and those of others who use the host itself. What they request is not left for a
//! tenant, and those that the taint of an assignment would evict keep a free node from being assigned.

use crate::{
    pod_phase::has_ended,
    pod_requests::{self, Requests},
};
use berth_api::{labels, names, system};
use k8s_openapi::api::core::v1::{Pod, Toleration};
use kube_core::ResourceExt;

/// Annotation of a mirror pod with the kubelet's ID of the static pod.
pub const MIRROR: &str = "kubernetes.io/config.mirror";
/// Kind of the owner of pods that are made for each node.
const DAEMON_SET: &str = "DaemonSet";
/// Pods that are named in a message.
const NAMED: usize = 2;

/// What is kept of such a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlatformPod {
    pub requests: Requests,
    /// See [`is_in_the_way`].
    pub is_in_the_way: bool,
}

impl PlatformPod {
    /// Reads a pod. Of those of a tenant's control plane no requests are kept: they run on nodes of no tenant. Who may create pods in another
    /// namespace can give them the same label.
    pub fn read(pod: &Pod) -> Self {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let slug = pod.labels().get(labels::TENANT);
        let is_of_control_plane = slug.is_some_and(|slug| names::is_control_plane_namespace(namespace, slug));
        Self {
            requests: if is_of_control_plane {
                Requests::new()
            } else {
                pod_requests::of_pod(pod)
            },
            is_in_the_way: is_in_the_way(pod),
        }
    }
}

/// What these pods mean for a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeUse {
    /// What they request together.
    pub requests: Requests,
    /// Those in the way, as `namespace/name`.
    pub in_the_way: Vec<String>,
}

impl NodeUse {
    /// Adds a pod with this name.
    pub fn add(&mut self, name: &str, pod: &PlatformPod) {
        pod_requests::add(&mut self.requests, &pod.requests);
        if pod.is_in_the_way {
            self.in_the_way.push(name.to_owned());
        }
    }
}

/// Whether a pod would be evicted from its node if a tenant got it, without regard to disruption budgets, and is not made for each node:
/// not a DaemonSet's, which its owner prepares for tenants' nodes, nor a static one, nor a placeholder, nor one that has ended.
pub fn is_in_the_way(pod: &Pod) -> bool {
    !matches!(controller_kind(pod), Some(DAEMON_SET | "Node"))
        && !stays_with_every_tenant(pod)
        && !has_ended(pod)
        && !pod.annotations().contains_key(MIRROR)
        && !is_placeholder(pod)
}

/// The kind of the controller that owns a pod; none if it has none.
fn controller_kind(pod: &Pod) -> Option<&str> {
    let mut owners = pod.owner_references().iter();
    let controller = owners.find(|owner| owner.controller == Some(true))?;
    Some(&controller.kind)
}

/// Whether a pod says that a DaemonSet made it.
pub fn is_of_daemon_set(pod: &Pod) -> bool {
    controller_kind(pod) == Some(DAEMON_SET)
}

/// Whether control made a pod to show demand to autoscalers. Who may create pods in another namespace can give them the same label.
pub fn is_placeholder(pod: &Pod) -> bool {
    pod.metadata.namespace.as_deref() == Some(system::NAMESPACE) && pod.labels().contains_key(labels::PLACEHOLDER)
}

/// Whether a pod stays on its node whichever tenant gets it.
pub(crate) fn stays_with_every_tenant(pod: &Pod) -> bool {
    stays(pod, tolerates_every_tenant)
}

/// Whether a pod stays on a node with a taint for ever. `tolerates`: whether a toleration is one of this taint, for ever or for a time.
pub(crate) fn stays(pod: &Pod, tolerates: fn(&Toleration) -> bool) -> bool {
    find_toleration(pod, tolerates).is_some_and(|toleration| toleration.toleration_seconds.is_none())
}

/// The toleration of a taint that counts: Kubernetes takes the first that matches.
pub(crate) fn find_toleration(pod: &Pod, tolerates: fn(&Toleration) -> bool) -> Option<&Toleration> {
    let mut tolerations = pod.spec.iter().flat_map(|spec| spec.tolerations.iter().flatten());
    tolerations.find(|toleration| tolerates(toleration))
}

/// Whether a pod with this toleration stays on a node, for ever or for a time, whichever tenant gets it.
pub(crate) fn tolerates_every_tenant(toleration: &Toleration) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    toleration.operator.as_deref() == Some("Exists")
        && (key.is_empty() || key == labels::TENANT)
        && matches!(toleration.effect.as_deref().unwrap_or_default(), "" | "NoExecute")
}

/// Why a free node with these pods in the way is not assigned; none if there are none.
pub fn describe_use(in_the_way: &[String]) -> Option<String> {
    let mut sorted: Vec<&str> = in_the_way.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    let more = match sorted.len() {
        0 => return None,
        count if count > NAMED => format!(" and {} more", count - NAMED),
        _ => String::new(),
    };
    let verb = if sorted.len() == 1 { "runs" } else { "run" };
    sorted.truncate(NAMED);
    let named = sorted.join(", ");
    Some(format!("it is in use: {named}{more} {verb} there"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(more: &Value) -> Pod {
        let mut pod = json!({
            "metadata": {"name": "web-1", "namespace": "shop"},
            "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
        });
        for (part, fields) in more.as_object().unwrap() {
            for (key, value) in fields.as_object().unwrap() {
                pod[part][key] = value.clone();
            }
        }
        serde_json::from_value(pod).unwrap()
    }

    fn owned_by(kind: &str) -> Value {
        json!({"metadata": {"ownerReferences": [
            {"apiVersion": "apps/v1", "kind": kind, "name": "o", "uid": "u", "controller": true},
        ]}})
    }

    fn tolerating(toleration: &Value) -> Value {
        json!({"spec": {"tolerations": [toleration]}})
    }

    #[test]
    fn pods_that_an_assignment_would_evict_are_in_the_way() {
        for more in [
            json!({}),
            owned_by("ReplicaSet"),
            json!({"metadata": {"labels": {labels::TENANT: "vision-abc"}}}),
            // Another namespace than control's.
            json!({"metadata": {"labels": {labels::PLACEHOLDER: "h100"}}}),
            json!({"status": {"phase": "Pending"}}),
            json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}),
            tolerating(&json!({"key": "nvidia.com/gpu", "operator": "Exists"})),
            tolerating(&json!({"key": labels::TENANT, "operator": "Equal", "value": "vision-abc"})),
            tolerating(&json!({"operator": "Exists", "effect": "NoSchedule"})),
            tolerating(&json!({"operator": "Exists", "tolerationSeconds": 300})),
        ] {
            assert!(is_in_the_way(&pod(&more)), "{more}");
        }
    }

    #[test]
    fn pods_of_each_node_and_those_that_stay_or_have_ended_are_not() {
        for more in [
            owned_by("DaemonSet"),
            owned_by("Node"),
            json!({"metadata": {"annotations": {MIRROR: "id"}}}),
            json!({"metadata": {"namespace": system::NAMESPACE, "labels": {labels::PLACEHOLDER: "h100"}}}),
            json!({"status": {"phase": "Succeeded"}}),
            json!({"status": {"phase": "Failed"}}),
            tolerating(&json!({"operator": "Exists"})),
            tolerating(&json!({"key": labels::TENANT, "operator": "Exists"})),
            tolerating(&json!({"key": labels::TENANT, "operator": "Exists", "effect": "NoExecute"})),
        ] {
            assert!(!is_in_the_way(&pod(&more)), "{more}");
        }
    }

    #[test]
    fn the_first_toleration_that_matches_says_how_long_a_pod_stays() {
        let for_a_time = json!({"key": labels::TENANT, "operator": "Exists", "tolerationSeconds": 60});
        let always = json!({"operator": "Exists"});
        let is_in_the_way = |first: &Value, second: &Value| {
            let other = json!({"key": "nvidia.com/gpu", "operator": "Exists", "tolerationSeconds": 60});
            is_in_the_way(&pod(&json!({"spec": {"tolerations": [other, first, second]}})))
        };
        assert!(is_in_the_way(&for_a_time, &always));
        assert!(!is_in_the_way(&always, &for_a_time));
    }

    #[test]
    fn the_use_of_a_node_is_the_sum_of_its_pods() {
        let mut used = NodeUse::default();
        used.add("shop/web-1", &PlatformPod::read(&pod(&json!({}))));
        used.add("net/agent", &PlatformPod::read(&pod(&owned_by("DaemonSet"))));
        assert_eq!((used.requests["cpu"], used.requests["pods"]), (2000, 2000));
        assert_eq!(used.in_the_way, ["shop/web-1"]);
    }

    #[test]
    fn only_pods_in_the_namespace_of_a_control_plane_hide_what_they_request() {
        let id = names::TenantId::new("vision", "6f2c");
        for (namespace, is_counted) in [
            (id.control_plane_namespace(), false),
            (id.workload_namespace(), true),
            (names::TenantId::new("speech", "6f2d").control_plane_namespace(), true),
            ("shop".to_owned(), true),
        ] {
            let labels = json!({labels::TENANT: id.slug()});
            let read = PlatformPod::read(&pod(&json!({"metadata": {"namespace": namespace, "labels": labels}})));
            assert_eq!(read.requests.contains_key("cpu"), is_counted, "{namespace}");
            assert!(read.is_in_the_way, "{namespace}");
        }
    }

    #[test]
    fn a_message_names_two_pods() {
        let describe = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            describe_use(&names).unwrap_or_default()
        };
        assert_eq!(describe(&[]), "");
        assert_eq!(describe(&["a/b"]), "it is in use: a/b runs there");
        assert_eq!(describe(&["c/d", "a/b"]), "it is in use: a/b, c/d run there");
        assert_eq!(
            describe(&["c/d", "a/b", "e/f", "g/h"]),
            "it is in use: a/b, c/d and 2 more run there"
        );
    }
}
