//! NetworkPolicies: those of a tenant allow nothing outside the tenant but its allowed CIDRs and namespaces, and those of
//! control cannot be changed.
//!
//! Policies only add to what others allow, so each is validated for itself. Ports are not validated here: on a host with
//! administrative network policies (`berth_control::network`) those restrict ports as well.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, cel, validation};
use berth_api::{labels::NAMESPACE_NAME, policy_annotations};

/// Whether the CIDR of `p.ipBlock` lies in one of the list `allowed` and excepts all blocked CIDRs within it.
///
/// Translation excepts blocked CIDRs as they are listed, and finding a text costs little. Only the others are compared one by
/// one. `berth_sync_rules::kinds::network_policy::cost` counts what this costs.
fn is_allowed_block(allowed: &str) -> String {
    format!(
        "(variables.{allowed}.exists(a, cidr(a).containsCIDR(p.ipBlock.cidr)) && \
         variables.blockedCidrs.all(c, !cidr(c).containsCIDR(p.ipBlock.cidr) && \
         (!cidr(p.ipBlock.cidr).containsCIDR(c) || c in p.ipBlock.?except.orValue([]) || \
         p.ipBlock.?except.orValue([]).exists(e, cidr(e).containsCIDR(c)))))"
    )
}

pub(crate) fn build_policy() -> AdmissionPolicy {
    let all_peers = |direction: &str, side: &str, peer: &str| {
        format!("variables.{direction}.all(r, size(r.?{side}.orValue([])) > 0 && r.{side}.all(p, {peer}))")
    };
    // Only by the label with its name, which the API server alone sets.
    let is_allowed_namespace = format!(
        "(size(p.namespaceSelector.?matchExpressions.orValue([])) == 0 && \
         p.namespaceSelector.?matchLabels.orValue({{}}).exists(k, k == '{NAMESPACE_NAME}' && \
         p.namespaceSelector.matchLabels[k] in variables.namespaces))"
    );
    AdmissionPolicy {
        name: "berth-network-policies",
        description: "NetworkPolicies of a tenant allow nothing outside the tenant but what its TenantCluster declares.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::TenantIdentities,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: "networking.k8s.io",
            version: "v1",
            resources: &["networkpolicies"],
            operations: WRITES,
        }],
        variables: vec![
            cel::allowed_names_variable("egressCidrs", policy_annotations::EGRESS_CIDRS),
            cel::allowed_names_variable("ingressCidrs", policy_annotations::INGRESS_CIDRS),
            cel::allowed_names_variable("namespaces", policy_annotations::INGRESS_NAMESPACES),
            cel::allowed_names_variable("blockedCidrs", policy_annotations::BLOCKED_CIDRS),
            ("egress", "object.spec.?egress.orValue([])".into()),
            ("ingress", "object.spec.?ingress.orValue([])".into()),
        ],
        validations: vec![
            validation(
                format!(
                    "{} && (oldObject == null || {})",
                    cel::is_managed_by_syncer("object"),
                    cel::is_managed_by_syncer("oldObject")
                ),
                "a syncer's NetworkPolicies must carry its label, and it may not change those of the platform",
            ),
            validation(
                all_peers(
                    "egress",
                    "to",
                    &format!(
                        "!has(p.namespaceSelector) && (!has(p.ipBlock) || {})",
                        is_allowed_block("egressCidrs")
                    ),
                ),
                "egress may be allowed only to the tenant's own pods and to networks that its TenantCluster declares",
            ),
            validation(
                all_peers(
                    "ingress",
                    "from",
                    &format!(
                        "(!has(p.namespaceSelector) || {is_allowed_namespace}) && (!has(p.ipBlock) || {})",
                        is_allowed_block("ingressCidrs")
                    ),
                ),
                "ingress may be allowed only from the tenant's own pods and from peers that its TenantCluster declares",
            ),
        ],
    }
}
