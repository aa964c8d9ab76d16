//! EndpointSlices that a syncer writes: addresses only, and marked as its own, so that neither the host's controllers nor
//! theirs are mistaken for each other's. The API server itself refuses loopback, link-local and multicast addresses.

use super::{Place, Requests, WRITES, Wall, Who, rule};
use berth_sync_rules::kinds::endpoint_slice::{MANAGED_BY, SYNCER};

pub(super) fn wall() -> Wall {
    let is_syncers = |object: &str| format!("{object}.metadata.?labels[?'{MANAGED_BY}'].orValue('') == '{SYNCER}'");
    Wall {
        name: "berth-endpoint-slices",
        about: "EndpointSlices that a syncer writes hold addresses and are marked as its own.",
        place: Place::Workloads,
        who: Who::Tenant,
        requests: vec![Requests {
            group: "discovery.k8s.io",
            version: "v1",
            resources: &["endpointslices"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        rules: vec![
            rule(
                format!(
                    "{} && (oldObject == null || {})",
                    is_syncers("object"),
                    is_syncers("oldObject")
                ),
                "EndpointSlices of the host's own controllers are not the tenant's to write",
            ),
            rule(
                "object.addressType in ['IPv4', 'IPv6']",
                "addressType must be IPv4 or IPv6: endpoints are addresses",
            ),
            rule(
                "object.?endpoints.orValue([]).all(e, !has(e.targetRef))",
                "endpoints[].targetRef may name no object of the host",
            ),
        ],
    }
}
