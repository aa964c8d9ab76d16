//! How far the encryption of what tenants store is.

use crate::gauges::Gauges;
use berth_api::TenantCluster;
use kube::ResourceExt;
use prometheus_client::{encoding::EncodeLabelSet, registry::Registry};
use std::sync::Arc;

/// A tenant whose objects are not encrypted as they are to be, and why.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EncryptionLabels {
    /// Namespace of its `TenantCluster`.
    pub tenant_namespace: String,
    /// Name of its `TenantCluster`.
    pub tenant: String,
    /// The reason of its condition.
    pub reason: String,
}

/// How far the encryption of what tenants store is.
#[derive(Clone, Debug, Default)]
pub struct EncryptionMetrics {
    /// Tenants of which it is not known that all is encrypted that is to be, by reason.
    pub not_encrypted: Gauges<EncryptionLabels>,
}

impl EncryptionMetrics {
    /// Sets what the conditions of all tenants say.
    pub fn record(&self, tenants: &[Arc<TenantCluster>]) {
        let labels = tenants.iter().filter_map(|tenant| {
            Some(EncryptionLabels {
                tenant_namespace: tenant.namespace().unwrap_or_default(),
                tenant: tenant.name_any(),
                reason: find_obstacle(tenant)?.to_owned(),
            })
        });
        self.not_encrypted.set_all(labels.map(|labels| (labels, 1)));
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "tenant_not_encrypted",
            "1 for each tenant whose condition EncryptedAtRest is not True, by its reason, or that waits for its keys, by the reason of InfrastructureReady; none of tenants that are to encrypt nothing",
            self.not_encrypted.family.clone(),
        );
    }
}

/// Why it is not known that all is encrypted that a tenant stores and that is to be; none if it is, if nothing is to be, or if the tenant is being
/// deleted.
fn find_obstacle(tenant: &TenantCluster) -> Option<&str> {
    let is_kept = tenant.metadata.deletion_timestamp.is_none();
    let obstacle = tenant.encryption_obstacle().filter(|_| is_kept)?;
    Some(obstacle.reason.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::TenantClusterSpec;
    use serde_json::{Value, json};

    fn tenant(name: &str, conditions: &[(&str, &str, &str)]) -> TenantCluster {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status, reason)| {
                json!({"type": type_, "status": status, "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            })
            .collect();
        let mut cluster = TenantCluster::new(name, TenantClusterSpec::default());
        cluster.metadata.namespace = Some("team".into());
        cluster.status = Some(serde_json::from_value(json!({ "conditions": conditions })).unwrap());
        cluster
    }

    #[test]
    fn a_tenant_that_is_being_deleted_has_no_reason() {
        let mut tenant = tenant("vision", &[("EncryptedAtRest", "False", "Writing")]);
        assert_eq!(find_obstacle(&tenant), Some("Writing"));
        tenant.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(find_obstacle(&tenant), None);
    }

    #[test]
    fn a_tenant_has_one_reason_at_a_time_and_none_once_it_is_encrypted() {
        let metrics = EncryptionMetrics::default();
        let record = |status: &str, reason: &str| {
            metrics.record(&[Arc::new(tenant("vision", &[("EncryptedAtRest", status, reason)]))]);
            ["Writing", "Rewriting"].map(|reason| {
                let labels = EncryptionLabels {
                    tenant_namespace: "team".into(),
                    tenant: "vision".into(),
                    reason: reason.into(),
                };
                metrics.not_encrypted.family.get(&labels).map(|gauge| gauge.get())
            })
        };
        assert_eq!(record("False", "Writing"), [Some(1), None]);
        assert_eq!(record("False", "Rewriting"), [None, Some(1)]);
        assert_eq!(record("True", "Encrypted"), [None, None]);
    }
}
