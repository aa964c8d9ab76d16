//! Nodes: what control publishes as `TenantNode` becomes the tenant's Node.
//!
//! | field | rule |
//! |---|---|
//! | labels | those of the TenantNode, kept as they are there; the tenant may add others |
//! | taints | see [`super::node_taints`] |
//! | `unschedulable` | set if the TenantNode says so; a tenant's own cordon stays |
//! | status | the kubelet's, as control publishes it; the kubelet's port is the one that the syncer answers at |
//! | Lease | kept fresh as long as the TenantNode exists |
//! | a Node without TenantNode | removed once no host pod runs there any more |

use super::node_taints;
use crate::model::{
    Cache, Dependency, Direction, HostNamespace, Kind, KindId, json,
    kind::WRITE,
    pod_addresses::is_finished,
    resource::{self, Name},
    store::WatchSpec,
};
use berth_api::labels;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

/// The kind.
pub const KIND: Kind = Kind::new(Direction::Nodes)
    .watch_tenant(WatchSpec::own(resource::NODE).trimmed(trim))
    .watch_host(
        HostNamespace::ControlPlane,
        WatchSpec::own(resource::TENANT_NODE).named_by(node_name),
    )
    .with_tenant_rights(&[("nodes", WRITE), ("nodes/status", &["patch"])])
    .essential()
    .depends_on(&[
        Dependency::on_host(KindId::Node, |cache, name| {
            let node = cache.stores.host(KindId::Node).get(name);
            let addresses = node.map(|node| addresses(&node.object()));
            cache.egress_index().nodes.set(name, addresses.unwrap_or_default());
            Vec::new()
        }),
        Dependency::on_host(KindId::Pod, |cache, name| {
            let pod = cache.stores.host(KindId::Pod).get(name);
            let node = pod.and_then(|pod| running_on(&pod.object()));
            cache.running_pods().set(name, node.into_iter().collect());
            Vec::new()
        }),
    ]);

/// The kubelet's port, on every node of a tenant.
pub const KUBELET_PORT: u16 = 10250;
/// Namespace of the Leases of nodes.
pub const LEASE_NAMESPACE: &str = "kube-node-lease";
/// Seconds for which a Lease is valid.
const LEASE_SECONDS: u32 = 40;

fn node_name(tenant_node: &Value) -> Option<Name> {
    Some(Name::new("", json::text(tenant_node, &["spec", "nodeName"])?))
}

fn trim(node: &mut Value) {
    if let Some(status) = node.get_mut("status").and_then(Value::as_object_mut) {
        status.remove("images");
    }
}

/// Whether the tenant's Node was made by the syncer.
pub fn is_ours(node: &Value) -> bool {
    json::text(node, &["metadata", "labels", labels::MANAGED_BY]) == Some(labels::MANAGED_BY_SYNCER)
}

/// Whether a node of the host is the tenant's alone: not one that others use as well.
pub fn is_own_alone(cache: &Cache, name: &str) -> bool {
    is_shared(cache, name) == Some(false)
}

/// Whether tenants share a node of the host that this tenant uses. `None` if it is none of its nodes.
pub fn is_shared(cache: &Cache, name: &str) -> Option<bool> {
    let published = cache.stores.host(KindId::Node).get(&Name::new("", name))?;
    Some(json::text(&published.object(), &["spec", "labels", labels::SHARED_POOL]).is_some())
}

/// The Node as the syncer applies it. `live` is the tenant's Node, if it exists.
pub fn desired(name: &str, tenant_node: &Value, live: Option<&Value>) -> Value {
    let spec = &tenant_node["spec"];
    let mut labels = json::strings(spec, &["labels"]);
    labels.insert(labels::MANAGED_BY.into(), labels::MANAGED_BY_SYNCER.into());
    let host_taints = json::items(spec, &["taints"]);
    let is_unschedulable = |object: &Value| json::at(object, &["spec", "unschedulable"]) == Some(&Value::Bool(true));
    let is_cordoned = is_unschedulable(tenant_node) || live.is_some_and(is_unschedulable);
    let mut node = json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": {labels::HOST_TAINTS: node_taints::identities(host_taints)},
        },
        "spec": {"taints": node_taints::desired(host_taints, is_cordoned, live)},
    });
    if is_unschedulable(tenant_node) {
        node["spec"]["unschedulable"] = true.into();
    }
    node
}

/// Hash of what only the host decides: labels that are removed there must be removed in the tenant.
pub fn hash(tenant_node: &Value) -> String {
    let spec = &tenant_node["spec"];
    json::hash(&json!([
        spec.get("labels"),
        spec.get("taints"),
        spec.get("unschedulable")
    ]))
}

/// Hash of what decides which pods may run on the tenant's Node.
pub fn placement(node: &Value) -> String {
    let spec = &node["spec"];
    json::hash(&json!([
        json::strings(node, &["metadata", "labels"]),
        spec.get("taints"),
        spec.get("unschedulable")
    ]))
}

/// Whether the tenant's Node differs from what is desired.
pub fn differs(desired: &Value, live: &Value) -> bool {
    let labels = json::strings(desired, &["metadata", "labels"]);
    let live_labels = json::strings(live, &["metadata", "labels"]);
    labels.iter().any(|(key, value)| live_labels.get(key) != Some(value))
        || json::items(desired, &["spec", "taints"]) != json::items(live, &["spec", "taints"])
        || desired["spec"]
            .get("unschedulable")
            .is_some_and(|wanted| live["spec"].get("unschedulable") != Some(wanted))
}

/// The Node's status in the tenant; `None` if control has not published one yet. [`crate::egress`] answers for its
/// kubelet at any of its addresses, or at its name if it has none, and always at [`KUBELET_PORT`].
pub fn status(name: &str, tenant_node: &Value) -> Option<Value> {
    let mut status = tenant_node
        .get("status")?
        .get("node")
        .filter(|status| !json::is_unset(status))?
        .clone();
    if json::items(&status, &["addresses"]).is_empty() {
        status["addresses"] = json!([{"type": "Hostname", "address": name}]);
    }
    status["daemonEndpoints"] = json!({"kubeletEndpoint": {"Port": KUBELET_PORT}});
    Some(status)
}

/// The Lease that says that a node is alive.
pub fn lease(name: &str, uid: &str, now: Timestamp) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": name, "uid": uid}],
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string(),
        },
    })
}

/// The addresses of the host's node, as control publishes them.
fn addresses(tenant_node: &Value) -> BTreeSet<IpAddr> {
    let addresses = json::items(tenant_node, &["status", "node", "addresses"]).iter();
    let texts = addresses.filter_map(|address| json::text(address, &["address"]));
    texts.filter_map(|text| text.parse().ok()).collect()
}

/// The node on which a host pod runs. Finished pods do not count: they are deleted with the tenant's pod.
fn running_on(pod: &Value) -> Option<Arc<str>> {
    let node = json::text(pod, &["spec", "nodeName"]).filter(|_| !is_finished(&pod["status"]));
    node.map(Arc::from)
}

/// Whether any host pod of this tenant still runs on a node.
pub fn has_running_pods(cache: &Cache, node: &str) -> bool {
    cache.running_pods().has(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{resource::Side, store::Stored, tenant::test_tenant},
        registry,
    };

    fn tenant_node() -> Value {
        json!({"spec": {"nodeName": "gpu-1", "labels": {"gpu": "h100"}, "taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]},
               "status": {"node": {"capacity": {"cpu": "8"}}}})
    }

    #[test]
    fn the_tenants_labels_stay_and_changes_of_the_hosts_are_undone() {
        let desired = desired("gpu-1", &tenant_node(), None);
        let mut live = desired.clone();
        live["metadata"]["labels"]["mine"] = "yes".into();
        assert!(!differs(&desired, &live));
        live["metadata"]["labels"]["gpu"] = "b300".into();
        assert!(differs(&desired, &live));
    }

    #[test]
    fn a_cordon_by_the_tenant_gets_its_taint_and_stays_the_tenants() {
        let live = json!({"spec": {"unschedulable": true}});
        let desired = desired("gpu-1", &tenant_node(), Some(&live));
        assert!(desired["spec"].get("unschedulable").is_none());
        let keys: Vec<_> = json::items(&desired, &["spec", "taints"])
            .iter()
            .filter_map(|taint| json::text(taint, &["key"]))
            .collect();
        assert_eq!(keys, ["nvidia.com/gpu", "node.kubernetes.io/unschedulable"]);
        assert!(differs(&desired, &live));
    }

    #[test]
    fn pods_that_run_on_a_node_are_known_without_reading_them() {
        let cache = registry::new_cache(test_tenant());
        let (name, pods) = (Name::new("team", "p"), cache.stores.host(KindId::Pod));
        let on = |node: &str| has_running_pods(&cache, node);
        for (pod, expected) in [
            (json!({"spec": {}}), [false, false]),
            (json!({"spec": {"nodeName": "gpu-1"}}), [true, false]),
            (
                json!({"spec": {"nodeName": "gpu-2"}, "status": {"phase": "Running"}}),
                [false, true],
            ),
            (
                json!({"spec": {"nodeName": "gpu-2"}, "status": {"phase": "Failed"}}),
                [false, false],
            ),
            (json!({"spec": {"nodeName": "gpu-2"}}), [false, true]),
        ] {
            pods.watched(name.clone(), Stored::from(pod));
            cache.update_dependents(Side::Host, KindId::Pod, &name);
            assert_eq!(["gpu-1", "gpu-2"].map(on), expected);
        }
        pods.forget(&name);
        assert!(on("gpu-2"), "the store is not read");
        cache.update_dependents(Side::Host, KindId::Pod, &name);
        assert!(!on("gpu-2"));
    }

    #[test]
    fn a_node_has_no_status_before_control_publishes_one() {
        assert_eq!(status("gpu-1", &json!({"spec": {}})), None);
    }

    #[test]
    fn the_kubelet_endpoint_is_that_of_the_syncer() {
        let endpoints = json!({"kubeletEndpoint": {"Port": 10250}});
        let named = json!([{"type": "Hostname", "address": "gpu-1"}]);
        assert_eq!(
            status("gpu-1", &tenant_node()),
            Some(json!({"capacity": {"cpu": "8"}, "addresses": named, "daemonEndpoints": endpoints}))
        );
        let mut real = tenant_node();
        let addresses = json!([{"type": "InternalIP", "address": "10.0.0.5"}]);
        real["status"]["node"] =
            json!({"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": 10247}}});
        assert_eq!(
            status("gpu-1", &real),
            Some(json!({"addresses": addresses, "daemonEndpoints": endpoints}))
        );
    }
}
