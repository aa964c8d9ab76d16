//! The custom resource definitions, as the API server wants them.

use crate::{HostNodePool, TenantClass, TenantCluster, TenantNode};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// Every custom resource definition of Berth, in the order they are installed.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![
        HostNodePool::crd(),
        TenantClass::crd(),
        TenantCluster::crd(),
        TenantNode::crd(),
    ]
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_kind_has_status_columns_and_short_name() {
        for crd in super::all() {
            let name = crd.metadata.name.clone().unwrap();
            let version = &crd.spec.versions[0];
            assert!(
                version.subresources.as_ref().is_some_and(|s| s.status.is_some()),
                "{name}: no status"
            );
            assert!(
                version
                    .additional_printer_columns
                    .as_ref()
                    .is_some_and(|c| !c.is_empty()),
                "{name}: no columns"
            );
            assert!(crd.spec.names.short_names.is_some(), "{name}: no short name");
        }
    }
}
