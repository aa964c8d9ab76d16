//! Capabilities that the tenant's class gives.

use super::super::*;
use crate::{model::tenant::test_tenant, registry};
use std::sync::Arc;

/// The fields that are denied in a pod whose containers of each kind add IPC_LOCK, in a tenant whose class gives these capabilities.
fn denied(capabilities: &[&str]) -> Vec<String> {
    let mut tenant = test_tenant();
    let policy = Arc::make_mut(&mut tenant.policy);
    policy.pods.capabilities = capabilities.iter().map(ToString::to_string).collect();
    let cache = registry::new_cache(tenant);
    let containers = |name: &str| json!([{"name": name, "image": "mpi:1", "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}}}]);
    let pod = json!({"metadata": {"name": "p", "namespace": "research", "uid": "u"}, "spec": {
        "containers": containers("a"), "initContainers": containers("b"), "ephemeralContainers": containers("c")}});
    let mut issues = FieldIssues::default();
    build::host_pod(&cache, &Name::new("research", "p"), &pod, &mut issues);
    let denied = issues.denied.into_iter().chain(issues.parts.left_out);
    let mut fields: Vec<String> = denied.map(|denied| denied.field).collect();
    fields.sort();
    fields
}

#[test]
fn the_class_gives_capabilities_to_all_but_ephemeral_containers() {
    let path = |list: &str| format!("spec.{list}[0].securityContext.capabilities.add");
    assert_eq!(denied(&["IPC_LOCK"]), [path("ephemeralContainers")]);
    assert_eq!(
        denied(&[]),
        [path("containers"), path("ephemeralContainers"), path("initContainers")]
    );
}
