//! TenantNodes say which nodes are a tenant's. Control makes them; the syncer believes them.

use super::{Place, Requests, WRITES, Wall, Who, rule};
use berth_api::{GROUP, VERSION};

pub(super) fn wall() -> Wall {
    Wall {
        name: "berth-tenant-nodes",
        about: "TenantNodes are written by control only.",
        place: Place::ControlPlanes,
        who: Who::Anybody,
        requests: vec![Requests {
            group: GROUP,
            version: VERSION,
            resources: &["tenantnodes", "tenantnodes/status"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        rules: vec![rule("false", "which nodes a tenant has is for the platform to say")],
    }
}
