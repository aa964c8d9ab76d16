//! TenantNodes say which nodes are assigned to a tenant, and its TenantSchedule when its pods run. Control writes them; the syncer trusts
//! them.

use crate::{AdmissionPolicy, ResourceRule, Scope, Subjects, WRITES, validation};
use berth_api::{GROUP, VERSION};

pub(crate) fn build_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-tenant-nodes",
        description: "TenantNodes and TenantSchedules can be written by control only.",
        scope: Scope::ControlPlaneNamespaces,
        subjects: Subjects::Everyone,
        parameters: None,
        conditions: Vec::new(),
        resource_rules: vec![ResourceRule {
            group: GROUP,
            version: VERSION,
            resources: &["tenantnodes", "tenantnodes/status", "tenantschedules"],
            operations: WRITES,
        }],
        variables: Vec::new(),
        validations: vec![validation(
            "false",
            "only the platform may write TenantNodes and TenantSchedules: they say which nodes a tenant has, and when its pods run",
        )],
    }
}
