//! What a policy may cost: the largest slice that is allowed, compared with the longest list of closed networks.

use super::StolenCredential;
use berth_api::policy_annotations;
use berth_tests::wait::{SOON, until};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// Long addresses cost most.
pub(super) fn address(network: &str, number: usize) -> String {
    format!("{network}:3456:789a:bcde:f012:3456:789a:{:x}", 0x1000 + 2 * number)
}

fn slice(credential: &StolenCredential, addresses: &[String]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address]}))
        .collect();
    let more = json!({"addressType": "IPv6", "endpoints": endpoints, "ports": [{"name": "a", "port": 80}],
        "metadata": {"labels": {"endpointslice.kubernetes.io/managed-by": "syncer.berth.dev"}}});
    credential.object("discovery.k8s.io/v1", "EndpointSlice", &more)
}

async fn expect_closed(credential: &StolenCredential, object: &Value) -> Result<(), String> {
    match credential.create(object).await {
        Err(kube::Error::Api(status)) if status.message.contains("endpoints[].addresses may not hold") => Ok(()),
        other => Err(format!("not denied as closed: {other:?}")),
    }
}

pub(super) async fn largest_slice(credential: &StolenCredential, admin: &Client) {
    let closed: Vec<String> = (0..100).map(|n| address("fd99", n) + "/128").collect();
    let annotations = json!({policy_annotations::CLOSED_TO_ENDPOINTS: closed.join(",")});
    let patch = json!({"metadata": {"annotations": annotations}});
    let open: Vec<String> = (0..500).map(|n| address("fd12", n)).collect();
    let mut mixed = open.clone();
    mixed[499] = address("fd99", 99);
    let (open, mixed) = (slice(credential, &open), slice(credential, &mixed));
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    until("the largest slice is compared with all networks", SOON, async || {
        // Control may restore its own list meanwhile.
        namespaces
            .patch(&credential.namespace, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .map_err(|error| error.to_string())?;
        expect_closed(credential, &mixed).await?;
        credential.create(&open).await.map_err(|error| error.to_string())?;
        expect_closed(credential, &mixed).await
    })
    .await;
}
