//! EndpointSlices that a syncer writes hold addresses only and carry the syncer's label, so that they cannot be confused with
//! those of the host's controllers. The API server itself rejects loopback, link-local and multicast addresses.
//!
//! An address may be that of any pod, because no expression can know whose pod has it. What contains no pods is closed:
//! metadata services, and the ranges of the host that control lists.
//!
//! Every address is compared with every closed range. The API server rejects a request if an expression costs more than a million
//! units, so both are limited: addresses here, ranges where control makes the list. So are the numbers of ports, which the
//! API server does not check.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, field_checks, validation};
use berth_api::{policy_annotations, ranges};
use berth_sync_rules::kinds::endpoint_slice::{CHECKS, MANAGED_BY, MAX_ADDRESSES, SYNCER};

pub(crate) fn build_policy() -> AdmissionPolicy {
    let is_managed_by_syncer =
        |object: &str| format!("{object}.metadata.?labels[?'{MANAGED_BY}'].orValue('') == '{SYNCER}'");
    AdmissionPolicy {
        name: "berth-endpoint-slices",
        description: "EndpointSlices that a syncer writes hold no addresses of the platform and carry the syncer's label.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "discovery.k8s.io",
            version: "v1",
            resources: &["endpointslices"],
            operations: WRITES,
        }],
        variables: vec![
            closed_variable(),
            forms_variable(),
            ("endpoints", cel::list("object", "endpoints")),
            (
                "addresses",
                "variables.endpoints.map(e, e.?addresses.orValue([]).size()).sum()".into(),
            ),
        ],
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
                format!("variables.addresses <= {MAX_ADDRESSES}"),
                "endpoints may hold at most 500 addresses in one slice",
            ),
            validation(
                field_checks::all_pass("object", &[""], CHECKS),
                "ports must be at most 100, with numbers from 1 to 65535",
            ),
            // Names and too many addresses have been rejected above: here they would only be errors.
            validation(
                format!(
                    "object.addressType == 'FQDN' || variables.addresses > {MAX_ADDRESSES} || \
                     variables.endpoints.all(e, e.?addresses.orValue([]).all(a, \
                     !variables.closed.exists(c, c.containsIP(a))))"
                ),
                "endpoints[].addresses may not hold addresses of the host's Services, nodes, API servers or metadata services",
            ),
            // In an expression of its own, so that both have the whole budget.
            validation(
                format!(
                    "object.addressType != 'IPv6' || variables.addresses > {MAX_ADDRESSES} || \
                     variables.endpoints.all(e, e.?addresses.orValue([]).all(a, \
                     !variables.forms.exists(c, c.containsIP(a))))"
                ),
                "endpoints[].addresses may not hold IPv6 forms of IPv4 addresses: what they lead to depends on who reads them",
            ),
            validation(
                "variables.endpoints.all(e, !has(e.targetRef))",
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
    (name, format!("({always} + {listed}).map(c, cidr(c))"))
}

/// Variable `forms`: the networks of IPv6 forms of IPv4 addresses.
fn forms_variable() -> (&'static str, String) {
    let forms: Vec<String> = ranges::FORMS_OF_V4.iter().map(ToString::to_string).collect();
    let forms = cel::string_list(forms.iter().map(String::as_str));
    ("forms", format!("{forms}.map(c, cidr(c))"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translated_addresses_are_closed_as_in_translation() {
        let (name, forms) = forms_variable();
        assert_eq!(name, "forms");
        for network in ["'64:ff9b::/32'", "'2002::/16'", "'2001::/32'", "'::/80'"] {
            assert!(forms.contains(network), "{network}: {forms}");
        }
        let policy = build_policy();
        let mut checked = policy.validations.iter();
        assert!(checked.any(|validation| validation.expression.contains("!variables.forms.exists(")));
    }

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

    #[test]
    fn messages_name_the_limit() {
        let limit = MAX_ADDRESSES.to_string();
        assert!(
            build_policy()
                .validations
                .iter()
                .any(|validation| validation.message.contains(&limit))
        );
    }
}
