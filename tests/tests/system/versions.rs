//! Which `spec.version` the definition of TenantClusters allows after what runs.

use berth_api::TenantCluster;
use berth_tests::{
    tenant::{cluster, ensure_namespace},
    test_cluster::TestCluster,
    wait::{SOON, until},
};
use kube::{
    Api,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

const NAMESPACE: &str = "versions";
const NAME: &str = "older";

/// Writes the status, and then `spec.version`; none: removes it. Control writes the status as well: what it saw last.
async fn change(
    tenants: &Api<TenantCluster>,
    status: &Value,
    version: Option<&str>,
    params: &PatchParams,
) -> kube::Result<()> {
    let status = Patch::Merge(json!({"status": status}));
    tenants
        .patch_status(NAME, &PatchParams::default(), &status)
        .await
        .unwrap();
    let version = Patch::Merge(json!({"spec": {"version": version}}));
    tenants.patch(NAME, params, &version).await.map(drop)
}

pub(crate) async fn the_next_version_is_compared_with_what_runs(host: Arc<TestCluster>) {
    ensure_namespace(&host.client, NAMESPACE).await;
    let tenants = host.tenants(NAMESPACE);
    // Control runs nothing of it.
    let mut wanted = cluster(NAME, &[("a", "no-such-pool", 1)]);
    wanted.spec.version = Some("v1.20.0".into());
    tenants.create(&PostParams::default(), &wanted).await.unwrap();
    let runs =
        |version: Option<&str>, upgrading_to: Option<&str>| json!({"version": version, "upgradingTo": upgrading_to});
    let nothing = runs(None, None);
    let older = runs(Some("v1.35.0"), None);
    let started = runs(Some("v1.35.0"), Some("v1.36.4"));
    let newer = runs(Some("v1.36.5"), None);
    let (skipped, down) = (Some("one minor version at a time"), Some("cannot go down"));
    for (number, (status, version, expected)) in [
        (&nothing, Some("v1.30.0"), None),
        (&nothing, Some("v1.20.0"), None),
        // A status is written whatever the spec says.
        (&older, Some("v1.37.1"), skipped),
        (&older, Some("v1.34.9"), down),
        (&older, Some("v1.36.4"), None),
        // It has not run yet.
        (&older, Some("v1.37.1"), skipped),
        (&older, Some("v1.36.99"), None),
        (&older, Some("v1.35.0"), None),
        (&older, Some("v1.36.4"), None),
        // What runs counts, too, after the version was removed.
        (&older, None, None),
        (&older, Some("v1.37.1"), skipped),
        (&older, Some("v1.34.9"), down),
        (&older, Some("v1.36.4"), None),
        (&started, Some("v1.35.0"), down),
        (&started, Some("v1.37.1"), skipped),
        (&started, None, None),
        (&started, Some("v1.35.0"), down),
        (&started, Some("v1.36.5"), None),
        (&newer, Some("v1.35.0"), down),
        (&newer, Some("v1.37.1"), None),
    ]
    .into_iter()
    .enumerate()
    {
        // What is to be refused is not stored. If control has just written a status that allows it, it would not be a change any more the next time.
        let params = PatchParams {
            dry_run: expected.is_some(),
            ..PatchParams::default()
        };
        until(&format!("change {number} has its answer"), SOON, async || {
            let changed = change(&tenants, status, version, &params).await;
            match (&changed, expected) {
                (Ok(()), None) => Ok(()),
                (Err(error), Some(expected)) if error.to_string().contains(expected) => Ok(()),
                _ => Err(changed),
            }
        })
        .await;
    }
    tenants.delete(NAME, &DeleteParams::default()).await.unwrap();
}
