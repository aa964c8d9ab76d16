//! Claims of devices that nothing uses and that keep a node from being free.
//!
//! The host's controllers free the devices of a claim when the last of its pods has ended. They do not do so if a pod is deleted after its claim has got devices and
//! before it has its node: the scheduler only takes back that the pod uses the claim. A user can make that happen, with each node that the tenant has, and none would
//! get to the next tenant. The devices of a claim that is deleted are freed. The claim is still in the tenant, whose syncer makes it again.

use crate::{
    device_claims::{ClaimObject, delete_claim, read_claim},
    error::ReconcileError,
};
use berth_node_lifecycle::devices::DeviceClaim;
use kube::{Client, ResourceExt};

/// Claims that are looked at in one pass.
const MOST: usize = 64;

/// Deletes claims (`namespace/name`) that have devices of a node on which no pod of a tenant is, if nothing uses them. What fails is tried again in the next pass:
/// the time limit of the validation holds all the same.
pub(super) async fn delete_unused(client: &Client, node: &str, claims: &[String]) {
    for claim in claims.iter().take(MOST) {
        if let Err(error) = delete_if_unused(client, node, claim).await {
            tracing::warn!(node, claim, %error, "cannot free the devices of a claim that may be unused");
        }
    }
}

async fn delete_if_unused(client: &Client, node: &str, claim: &str) -> Result<(), ReconcileError> {
    let Some((namespace, name)) = claim.split_once('/') else {
        return Ok(());
    };
    match read_claim(client, namespace, name).await? {
        Some(found) if is_unused(&found, node) => {
            tracing::info!(
                node,
                claim,
                "a claim that nothing uses has devices of the node, and is deleted"
            );
            delete_claim(client, &found).await
        }
        _ => Ok(()),
    }
}

/// Whether a claim has devices of a node and nothing uses it. Those that belong to a pod are deleted with it.
fn is_unused(claim: &ClaimObject, node: &str) -> bool {
    let is_left = claim.metadata.deletion_timestamp.is_none() && claim.owner_references().is_empty();
    let status = claim.status.as_ref().filter(|status| !status.is_reserved());
    let allocation = status.and_then(|status| DeviceClaim::read(None, Some(status)).allocation);
    is_left && allocation.is_some_and(|allocation| allocation.is_on_node(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Script, ScriptedApi};
    use serde_json::json;

    #[tokio::test]
    async fn a_claim_that_changes_before_it_is_deleted_stays() {
        const PATH: &str = "/apis/resource.k8s.io/v1/namespaces/berth-w/resourceclaims/c";
        let host = ScriptedApi::new("host", &Script::default());
        let allocation = json!({"devices": {"results": [{"request": "r", "pool": "a"}]}});
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "berth-w"},
            "spec": {}, "status": {"allocation": allocation},
        });
        host.insert(PATH, claim);
        let claims = ["berth-w/c".to_owned()];
        // As if a pod used it since it was read.
        host.change_before_writes(PATH, 1);
        delete_unused(&host.client(), "a", &claims).await;
        assert!(host.get(PATH).is_some());
        delete_unused(&host.client(), "a", &claims).await;
        assert!(host.get(PATH).is_none());
    }
}
