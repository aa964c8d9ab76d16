//! Endpoints that a tenant has made itself, on the host while its syncer does not run. docs/adr/0060 says why they go.
//!
//! Only the syncer takes the address of a pod that has ended out of them. Another tenant's pod may get it, and would be reached through what leads to the
//! endpoints. Those of Services with a selector are the host's own controllers', which go on, so they stay. The syncer makes what is missing again.

use crate::{
    apply::delete_several,
    error::{FirstError, ReconcileError, api},
};
use berth_api::{NetworkLimits, names::TenantId};
use berth_runtime::watched::{PAGE, Watched, list_page};
use berth_sync_rules::{
    kinds::endpoint_slice::{MANAGED_BY, SYNCER},
    translation::endpoint_address::OfferedNetworks,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{
    Api, Client, Resource,
    api::ListParams,
    core::{NamespaceResourceScope, PartialObjectMeta},
};
use serde::de::DeserializeOwned;
use std::{fmt::Debug, net::IpAddr};

/// Slices of which the names are listed at a time.
const NAMES: u32 = 500;

/// What came of a deletion.
pub(super) struct Deletion {
    /// How many slices were deleted now. Others may be held since an earlier deletion.
    pub(super) deleted: usize,
    /// Why not all of those are deleted that must go.
    pub(super) result: Result<(), ReconcileError>,
}

/// Slices whose contents are not read.
type Slices = Api<Watched<PartialObjectMeta<EndpointSlice>>>;

/// Deletes all of them: of a tenant of which no pod is left, or that is being deleted. A tenant without any costs one short list.
///
/// # Errors
/// The host refuses or does not answer. Some may be deleted by then.
pub(super) async fn delete_all(client: &Client, tenant: &TenantId) -> Result<(), ReconcileError> {
    delete_those::<PartialObjectMeta<EndpointSlice>>(client, tenant, NAMES, |_| true)
        .await
        .result
}

/// Deletes those with an address that may be a pod's, of a tenant whose pods run on. What the tenant reaches outside of the cluster stays reachable.
pub(super) async fn delete_of_pods(client: &Client, tenant: &TenantId, network: &NetworkLimits) -> Deletion {
    let outside = OfferedNetworks::new(network);
    delete_those::<EndpointSlice>(client, tenant, PAGE, |slice| !is_outside(slice, &outside)).await
}

/// Whether every address of a slice is in a network without pods of the host.
fn is_outside(slice: &EndpointSlice, outside: &OfferedNetworks) -> bool {
    let mut addresses = slice
        .endpoints
        .iter()
        .flatten()
        .flat_map(|endpoint| &endpoint.addresses);
    addresses.all(|address| address.parse::<IpAddr>().is_ok_and(|address| outside.allow(address)))
}

/// Deletes the slices that must go, page by page. One that cannot be deleted keeps no other one, and one that is being deleted is left to those who hold it.
async fn delete_those<K>(client: &Client, tenant: &TenantId, page: u32, must_go: impl Fn(&K) -> bool) -> Deletion
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let namespace = tenant.workload_namespace();
    let listed: Api<Watched<K>> = Api::namespaced(client.clone(), &namespace);
    let slices: Slices = Api::namespaced(client.clone(), &namespace);
    let ours = format!("{MANAGED_BY}={SYNCER}");
    let mut params = ListParams::default().labels(&ours).limit(page);
    let mut failed = FirstError::<ReconcileError>::default();
    let mut deleted = 0;
    loop {
        let page = list_page(&listed, &mut params).await;
        let Some(page) = failed.note(page.map_err(api("list the tenant's own EndpointSlices"))) else {
            break;
        };
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        let mut found = Vec::new();
        for slice in page.items {
            let metadata = slice.meta().clone();
            // Of one that cannot be read nothing is known.
            if slice
                .readable()
                .is_none_or(|slice| must_go(&slice) && slice.meta().deletion_timestamp.is_none())
            {
                found.push(metadata);
            }
        }
        let (now, result) = delete_several(&slices, found).await;
        deleted += now;
        failed.note(result.map_err(api("delete the tenant's own EndpointSlices")));
        let Some(token) = next else { break };
        params = params.continue_token(&token);
    }
    Deletion {
        deleted,
        result: failed.into_result(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_slices_that_lead_outside_of_the_cluster_alone_are_safe() {
        let network = NetworkLimits {
            endpoint_cidrs: vec!["10.0.0.0/8".into()],
            blocked: vec!["10.244.0.0/16".into()],
            ..NetworkLimits::default()
        };
        let outside = OfferedNetworks::new(&network);
        let is_safe = |endpoints: &[&[&str]]| {
            let endpoints: Vec<_> = endpoints
                .iter()
                .map(|addresses| json!({"addresses": addresses}))
                .collect();
            let slice = json!({"metadata": {"name": "a"}, "addressType": "IPv4", "endpoints": endpoints});
            is_outside(&serde_json::from_value(slice).unwrap(), &outside)
        };
        assert!(is_safe(&[]));
        assert!(is_safe(&[&["10.20.0.1"], &["10.20.0.2", "10.20.0.3"]]));
        for pod in ["10.244.1.7", "192.0.2.1", "database.example.com"] {
            assert!(!is_safe(&[&["10.20.0.1"], &["10.20.0.2", pod]]), "{pod}");
        }
    }
}
