//! Secrets: never of a type that the host fills with credentials.

use super::{Place, Requests, WRITES, Wall, Who, rule};

pub(super) fn wall() -> Wall {
    Wall {
        name: "berth-secrets",
        about: "A tenant's Secrets hold what the tenant put there, never a token of the host.",
        place: Place::Workloads,
        who: Who::Anybody,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["secrets"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        rules: vec![rule(
            "!(object.?type.orValue('') in ['kubernetes.io/service-account-token', 'bootstrap.kubernetes.io/token'])",
            "Secrets of this type would be filled with a token of the host",
        )],
    }
}
