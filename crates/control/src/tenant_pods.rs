//! Which pods of the host are a tenant's.

use berth_api::{labels, names};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

pub(crate) use berth_node_lifecycle::platform_pods::MIRROR;

/// Whether a syncer made a pod: it says so, and is in the workload namespace of the tenant that its label names. Everything else is the platform's,
/// such as its DaemonSets, in whichever namespace. Who may create pods in another namespace could otherwise make the nodes of a tenant grow, keep it
/// from falling asleep, use up limits of its users, and keep nodes from being recycled. Nor are mirror pods a tenant's: whatever deletes one, its
/// kubelet makes it again.
pub(crate) fn is_of_tenant(pod: &Pod) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let label = |key: &str| pod.labels().get(key).map(String::as_str).unwrap_or_default();
    label(labels::MANAGED_BY) == labels::MANAGED_BY_SYNCER
        && names::is_workload_namespace(namespace, label(labels::TENANT))
        && !pod.annotations().contains_key(MIRROR)
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::names::TenantId;
    use serde_json::{Value, json};

    fn is_of(namespace: &str, labels: &Value, annotations: &Value) -> bool {
        let metadata = json!({"name": "p", "namespace": namespace, "labels": labels, "annotations": annotations});
        is_of_tenant(&serde_json::from_value(json!({"metadata": metadata})).unwrap())
    }

    #[test]
    fn a_label_in_another_namespace_makes_no_pod_of_a_tenant() {
        let id = TenantId::new("vision", "6f2c");
        let labels = json!({(labels::TENANT): id.slug(), (labels::MANAGED_BY): labels::MANAGED_BY_SYNCER});
        assert!(is_of(&id.workload_namespace(), &labels, &json!({})));
        let namespace_of_another = TenantId::new("speech", "6f2d").workload_namespace();
        for other in [
            "team",
            "default",
            "kube-system",
            "berth-system",
            &id.control_plane_namespace(),
            "berth-other",
            &namespace_of_another,
        ] {
            assert!(!is_of(other, &labels, &json!({})), "{other}");
        }
    }

    #[test]
    fn pods_of_the_platform_and_static_pods_are_no_tenants() {
        let id = TenantId::new("vision", "6f2c");
        let own = id.workload_namespace();
        let labels = json!({(labels::TENANT): id.slug(), (labels::MANAGED_BY): labels::MANAGED_BY_SYNCER});
        // Those of a DaemonSet have no label, or have that of the tenant alone, as the policies demand in its namespace.
        for of_platform in [
            json!({}),
            json!({(labels::TENANT): id.slug()}),
            json!({"app": "dcgm-exporter"}),
        ] {
            for namespace in ["monitoring", &own] {
                assert!(!is_of(namespace, &of_platform, &json!({})), "{namespace} {of_platform}");
            }
        }
        assert!(!is_of(
            &own,
            &json!({(labels::MANAGED_BY): labels::MANAGED_BY_SYNCER}),
            &json!({})
        ));
        let mirror = json!({(MIRROR): "1f0c"});
        for namespace in ["kube-system", &own] {
            assert!(!is_of(namespace, &labels, &mirror), "{namespace}");
        }
    }
}
