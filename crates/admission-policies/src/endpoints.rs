//! EndpointSlices that a syncer writes hold addresses only and carry the syncer's label, so that they cannot be confused with
//! those of the host's controllers. The API server itself rejects loopback, link-local and multicast addresses.
//!
//! An address may be that of any pod, because no expression can know whose pod has it. What contains no pods is closed:
//! metadata services, and the ranges of the host that control lists.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::{policy_annotations, ranges};
use berth_sync_rules::kinds::endpoint_slice::{MANAGED_BY, SYNCER};

pub(super) fn build_policy() -> AdmissionPolicy {
    let is_managed_by_syncer =
        |object: &str| format!("{object}.metadata.?labels[?'{MANAGED_BY}'].orValue('') == '{SYNCER}'");
    AdmissionPolicy {
        name: "berth-endpoint-slices",
        description: "EndpointSlices that a syncer writes hold no addresses of the platform and carry the syncer's label.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        resource_rules: vec![ResourceRule {
            group: "discovery.k8s.io",
            version: "v1",
            resources: &["endpointslices"],
            operations: WRITES,
        }],
        variables: vec![closed_variable()],
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
            // Names have been rejected above: here they would only be errors.
            validation(
                "object.addressType == 'FQDN' || object.?endpoints.orValue([]).all(e, e.?addresses.orValue([]).all(a, \
                 !variables.closed.exists(c, c.containsIP(a))))",
                "endpoints[].addresses may not hold addresses of the host's Services, nodes, API servers or metadata services",
            ),
            validation(
                "object.?endpoints.orValue([]).all(e, !has(e.targetRef))",
                "endpoints[].targetRef may not name an object of the host",
            ),
        ],
    }
}

/// Variable `closed`: networks in which no endpoint may lie, parsed once for all addresses.
fn closed_variable() -> (&'static str, String) {
    let always: Vec<String> = ranges::never_open().map(|network| network.to_string()).collect();
    let (name, listed) = cel::allowed_names_variable("closed", policy_annotations::CLOSED_TO_ENDPOINTS);
    let always = cel::string_list(always.iter().map(String::as_str));
    (
        name,
        format!("({always} + {listed}.filter(c, c != '')).map(c, cidr(c))"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_services_and_what_control_lists_is_closed() {
        let (name, closed) = closed_variable();
        assert_eq!(name, "closed");
        for part in [
            "'100.100.100.200/32'",
            "'169.254.0.0/16'",
            "deny.berth.dev/endpoint-cidrs",
        ] {
            assert!(closed.contains(part), "{part}: {closed}");
        }
        let policy = build_policy();
        let checked = policy
            .validations
            .iter()
            .filter(|validation| validation.expression.contains("variables.closed"));
        assert_eq!(checked.count(), 1);
    }
}
