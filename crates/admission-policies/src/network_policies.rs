//! NetworkPolicies: a tenant's open nothing outside of the tenant but what is declared for it, and control's own stay.
//!
//! Policies only add to what others allow, so each is looked at for itself. Ports are not looked at here: a host with policies
//! of administrators (`berth_control::network`) keeps them as well.

use super::{Place, Requests, WRITES, Wall, Who, cel, rule};
use berth_api::{
    labels::{self, NAMESPACE_NAME},
    policy_annotations,
};

pub(super) fn walls() -> [Wall; 2] {
    [written(), removed()]
}

/// Variable: a list out of an annotation of the namespace; empty without it.
fn listed(name: &'static str, annotation: &str) -> (&'static str, String) {
    let (name, list) = cel::allowed(name, annotation);
    (name, format!("{list}.filter(c, c != '')"))
}

/// Whether an object is the syncer's.
fn is_the_syncers(object: &str) -> String {
    format!(
        "{object}.metadata.?labels[?'{}'].orValue('') == '{}'",
        labels::MANAGED_BY,
        labels::MANAGED_BY_SYNCER
    )
}

/// Whether a range `p.ipBlock` lies in one of `allowed`, and what is closed within it is taken out.
fn is_open(allowed: &str) -> String {
    format!(
        "(variables.{allowed}.exists(a, cidr(a).containsCIDR(p.ipBlock.cidr)) && \
         variables.closed.all(c, !cidr(c).containsCIDR(p.ipBlock.cidr) && \
         (!cidr(p.ipBlock.cidr).containsCIDR(c) || p.ipBlock.?except.orValue([]).exists(e, cidr(e).containsCIDR(c)))))"
    )
}

fn written() -> Wall {
    let whom = |direction: &str, side: &str, peer: &str| {
        format!("variables.{direction}.all(r, size(r.?{side}.orValue([])) > 0 && r.{side}.all(p, {peer}))")
    };
    // Only by its name, which nobody but the API server sets.
    let is_let_in = format!(
        "(size(p.namespaceSelector.?matchExpressions.orValue([])) == 0 && \
         p.namespaceSelector.?matchLabels.orValue({{}}).exists(k, k == '{NAMESPACE_NAME}' && \
         p.namespaceSelector.matchLabels[k] in variables.namespaces))"
    );
    Wall {
        name: "berth-network-policies",
        about: "NetworkPolicies of a tenant open nothing outside of it but what its TenantCluster declares.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "networking.k8s.io",
            version: "v1",
            resources: &["networkpolicies"],
            operations: WRITES,
        }],
        variables: vec![
            listed("egressCidrs", policy_annotations::EGRESS_CIDRS),
            listed("ingressCidrs", policy_annotations::INGRESS_CIDRS),
            listed("namespaces", policy_annotations::INGRESS_NAMESPACES),
            listed("closed", policy_annotations::BLOCKED_CIDRS),
            ("egress", "object.spec.?egress.orValue([])".into()),
            ("ingress", "object.spec.?ingress.orValue([])".into()),
        ],
        rules: vec![
            rule(
                format!(
                    "{} && (oldObject == null || {})",
                    is_the_syncers("object"),
                    is_the_syncers("oldObject")
                ),
                "a syncer's NetworkPolicies carry its label, and the platform's own are not for it to change",
            ),
            rule(
                whom(
                    "egress",
                    "to",
                    &format!(
                        "!has(p.namespaceSelector) && (!has(p.ipBlock) || {})",
                        is_open("egressCidrs")
                    ),
                ),
                "egress may be opened to the tenant's own pods and to networks that its TenantCluster declares",
            ),
            rule(
                whom(
                    "ingress",
                    "from",
                    &format!(
                        "(!has(p.namespaceSelector) || {is_let_in}) && (!has(p.ipBlock) || {})",
                        is_open("ingressCidrs")
                    ),
                ),
                "ingress may be opened to the tenant's own pods and to whom its TenantCluster declares",
            ),
        ],
    }
}

fn removed() -> Wall {
    Wall {
        name: "berth-network-policies-removed",
        about: "A tenant's identities remove no NetworkPolicies but their own.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "networking.k8s.io",
            version: "v1",
            resources: &["networkpolicies"],
            operations: &["DELETE"],
        }],
        variables: Vec::new(),
        rules: vec![rule(
            is_the_syncers("oldObject"),
            "the platform's own NetworkPolicies are not for a tenant's identities to remove",
        )],
    }
}
