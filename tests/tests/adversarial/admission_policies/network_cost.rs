//! What a policy may cost: the largest NetworkPolicies that translation writes, compared with the longest list of blocked networks.

use super::{StolenCredential, endpoint_cost::address};
use berth_api::policy_annotations;
use berth_tests::wait::{SOON, until};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::{Value, json};

/// Peers that just fit into the limit of `network_policy::cost`, with the most that control blocks.
const EVERYWHERE: usize = 55;
const SMALL: usize = 160;

fn policy(credential: &StolenCredential, peers: &[Value]) -> Value {
    let spec = json!({"podSelector": {}, "policyTypes": ["Egress"], "egress": [{"to": peers}]});
    credential.object("networking.k8s.io/v1", "NetworkPolicy", &json!({ "spec": spec }))
}

async fn expect_open(credential: &StolenCredential, object: &Value) -> Result<(), String> {
    match credential.create(object).await {
        Err(kube::Error::Api(status)) if status.message.contains("egress may be allowed only") => Ok(()),
        other => Err(format!("not denied as open: {other:?}")),
    }
}

pub(super) async fn largest_policies(credential: &StolenCredential, admin: &Client) {
    let blocked: Vec<String> = (0..100).map(|n| address("fd99", n) + "/128").collect();
    let annotations = json!({
        policy_annotations::BLOCKED_CIDRS: blocked.join(","),
        policy_annotations::EGRESS_CIDRS: "::/0",
    });
    let patch = json!({"metadata": {"annotations": annotations}});
    let everywhere = json!({"ipBlock": {"cidr": "::/0", "except": blocked}});
    let closed = policy(credential, &vec![everywhere.clone(); EVERYWHERE]);
    let small: Vec<Value> = (0..SMALL)
        .map(|n| json!({"ipBlock": {"cidr": address("fd12", n) + "/128"}}))
        .collect();
    let small = policy(credential, &small);
    // A wider exception closes as much, and is found by comparing.
    let wider = json!({"ipBlock": {"cidr": "::/0", "except": ["fd98::/16", "fd99::/16"]}});
    let wider = policy(credential, &vec![wider; EVERYWHERE]);
    let mut open = vec![everywhere; EVERYWHERE];
    open[EVERYWHERE - 1]["ipBlock"]["except"][99] = "fd98::/16".into();
    let open = policy(credential, &open);
    let namespaces: Api<Namespace> = Api::all(admin.clone());
    until(
        "the largest policies are compared with all networks",
        SOON,
        async || {
            // Control may restore its own lists meanwhile.
            namespaces
                .patch(&credential.namespace, &PatchParams::default(), &Patch::Merge(&patch))
                .await
                .map_err(|error| error.to_string())?;
            expect_open(credential, &open).await?;
            for allowed in [&closed, &small, &wider] {
                credential.create(allowed).await.map_err(|error| error.to_string())?;
            }
            expect_open(credential, &open).await
        },
    )
    .await;
}
