//! Which `spec.version` the definition of TenantClusters allows after what runs.

use berth_api::TenantCluster;
use berth_tests::{
    tenant::{cluster, ensure_namespace},
    test_cluster::TestCluster,
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const NAMESPACE: &str = "versions";
const NAME: &str = "older";

/// What a change is about.
enum Change {
    Spec(&'static str),
    Status(Value),
}

async fn change(tenants: &Api<TenantCluster>, change: &Change) -> kube::Result<TenantCluster> {
    let params = PatchParams::default();
    match change {
        Change::Spec(version) => {
            let patch = Patch::Merge(json!({"spec": {"version": version}}));
            tenants.patch(NAME, &params, &patch).await
        }
        Change::Status(status) => {
            let patch = Patch::Merge(json!({"status": status}));
            tenants.patch_status(NAME, &params, &patch).await
        }
    }
}

pub(crate) async fn the_next_version_is_compared_with_what_runs(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, NAMESPACE).await;
    let tenants = host.tenants(NAMESPACE);
    // Control runs nothing of it, and leaves its status.version as it is.
    let mut wanted = cluster(NAME, &[("a", "no-such-pool", 1)]);
    wanted.spec.version = "v1.20.0".into();
    tenants.create(&PostParams::default(), &wanted).await.unwrap();
    let (skipped, down) = ("one minor version at a time", "cannot go down");
    for (number, (wanted, expected)) in [
        // Nothing of it has run.
        (Change::Spec("v1.30.0"), None),
        (Change::Spec("v1.20.0"), None),
        (Change::Status(json!({"version": "v1.34.9"})), None),
        // A status is written whatever the spec says.
        (Change::Status(json!({"version": "v1.35.0"})), None),
        (Change::Spec("v1.37.1"), Some(skipped)),
        (Change::Spec("v1.34.9"), Some(down)),
        (Change::Spec("v1.36.4"), None),
        // It has not run yet.
        (Change::Spec("v1.37.1"), Some(skipped)),
        (Change::Spec("v1.36.99"), None),
        (Change::Spec("v1.35.0"), None),
        (Change::Spec("v1.36.4"), None),
        // It has been started.
        (Change::Status(json!({"upgradingTo": "v1.36.4"})), None),
        (Change::Spec("v1.35.0"), Some(down)),
        (Change::Spec("v1.37.1"), Some(skipped)),
        (Change::Spec("v1.36.5"), None),
        // It runs.
        (Change::Status(json!({"version": "v1.36.5", "upgradingTo": null})), None),
        (Change::Spec("v1.35.0"), Some(down)),
        (Change::Spec("v1.37.1"), None),
    ]
    .into_iter()
    .enumerate()
    {
        match (change(&tenants, &wanted).await, expected) {
            (Ok(_), None) => {}
            (Err(error), Some(expected)) => assert!(error.to_string().contains(expected), "{number}: {error}"),
            (answer, _) => panic!("{number}: {answer:?}"),
        }
    }
    tenants.delete(NAME, &DeleteParams::default()).await.unwrap();
}
