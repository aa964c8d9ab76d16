//! EndpointSlices that a syncer writes hold addresses only and carry the syncer's label, so that they cannot be confused with
//! those of the host's controllers. The API server itself rejects loopback, link-local and multicast addresses.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, validation};
use berth_sync_rules::kinds::endpoint_slice::{MANAGED_BY, SYNCER};

pub(super) fn build_policy() -> AdmissionPolicy {
    let is_managed_by_syncer =
        |object: &str| format!("{object}.metadata.?labels[?'{MANAGED_BY}'].orValue('') == '{SYNCER}'");
    AdmissionPolicy {
        name: "berth-endpoint-slices",
        description: "EndpointSlices that a syncer writes hold addresses only and carry the syncer's label.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        resource_rules: vec![ResourceRule {
            group: "discovery.k8s.io",
            version: "v1",
            resources: &["endpointslices"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![
            validation(
                format!(
                    "{} && (oldObject == null || {})",
                    is_managed_by_syncer("object"),
                    is_managed_by_syncer("oldObject")
                ),
                "a syncer may not write EndpointSlices of the host's own controllers",
            ),
            validation(
                "object.addressType in ['IPv4', 'IPv6']",
                "addressType must be IPv4 or IPv6: endpoints are addresses",
            ),
            validation(
                "object.?endpoints.orValue([]).all(e, !has(e.targetRef))",
                "endpoints[].targetRef may not name an object of the host",
            ),
        ],
    }
}
