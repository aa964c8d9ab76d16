//! Which class applies to a tenant.

use berth_api::{DEFAULT_CLASS, TenantCluster};
use std::sync::Arc;

/// The name of the class that applies to a tenant: the one it names, else `default` if that exists or if its rules are
/// what the tenant has now. A class that is deleted does not change what a running tenant may do.
pub fn class_of(cluster: &TenantCluster, exists: impl Fn(&str) -> bool) -> Option<String> {
    if let Some(named) = &cluster.spec.class_name {
        return Some(named.clone());
    }
    let earlier = cluster.status.as_ref().and_then(|status| status.class_name.as_deref());
    (exists(DEFAULT_CLASS) || earlier == Some(DEFAULT_CLASS)).then(|| DEFAULT_CLASS.to_owned())
}

/// Whether a tenant runs with the rules of a class that is gone.
pub(super) fn is_remembered(tenants: &[Arc<TenantCluster>], class: &str) -> bool {
    tenants
        .iter()
        .any(|tenant| tenant.status.as_ref().and_then(|status| status.class_name.as_deref()) == Some(class))
}
