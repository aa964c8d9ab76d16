//! Writes into VolumeSnapshots which claim they are of, for the controls that start later.

use super::context::UsageContext;
use crate::{
    apply::is_status,
    error::{FirstError, ReconcileError, api},
    metered_use::{UnrecordedSource, VolumeSnapshot, snapshot_resource},
};
use berth_api::labels;
use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;

/// How many snapshots are written at once.
const CONCURRENCY: usize = 8;
/// How many snapshots are written in a pass.
const MOST: usize = 200;

/// Writes into snapshots which claim they are of, as far as that is known and they do not say so.
///
/// # Errors
/// The host's API server refuses or does not answer for some snapshot. The others are written all the same.
pub(super) async fn record_sources(context: &UsageContext) -> Result<(), ReconcileError> {
    let unrecorded = context.stores.metered.unrecorded_sources(MOST);
    let writes: Vec<_> = { unrecorded.into_iter() }
        .map(|found| record_source(context.client.clone(), found))
        .collect();
    let results: Vec<_> = stream::iter(writes).buffer_unordered(CONCURRENCY).collect().await;
    let mut failed: FirstError<ReconcileError> = FirstError::default();
    for result in results {
        failed.note(result);
    }
    failed.into_result()
}

async fn record_source(client: Client, found: UnrecordedSource) -> Result<(), ReconcileError> {
    let UnrecordedSource { snapshot, uid, source } = found;
    let Some((namespace, name)) = snapshot.split_once('/') else {
        return Ok(());
    };
    let snapshots: Api<VolumeSnapshot> = Api::namespaced_with(client, namespace, &snapshot_resource());
    // Another snapshot of this name is of another claim.
    let metadata = json!({"uid": uid, "annotations": {labels::SNAPSHOT_SOURCE: source.to_string()}});
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    match snapshots.patch(name, &PatchParams::default(), &patch).await {
        Ok(_) => Ok(()),
        Err(error) if [404, 409, 422].iter().any(|code| is_status(&error, *code)) => Ok(()),
        Err(error) => Err(api("write into a VolumeSnapshot which claim it is of")(error)),
    }
}
