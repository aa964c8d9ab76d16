//! Writes into VolumeSnapshots which claim they are of, for the controls that start later.

use super::context::UsageContext;
use crate::{
    apply::is_status,
    error::{FirstError, ReconcileError, api},
    metered_use::{MeteredUse, UnrecordedSource, VolumeSnapshot, snapshot_resource},
};
use berth_api::labels;
use futures::{StreamExt, future::ready, stream};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

/// How many snapshots are written at once.
const CONCURRENCY: usize = 8;
/// How many snapshots are written in a pass.
const MOST: usize = 200;
/// Time for the writes of a pass. A webhook that does not answer must not keep usage from being counted.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Writes into snapshots which claim they are of, as far as that is known and they do not say so. Nothing depends on it before the next control: what fails is tried
/// again in a later pass, after all others.
pub(super) async fn record_sources(context: &UsageContext) {
    let unrecorded = context.stores.metered.unrecorded_sources(MOST);
    let writes: Vec<_> = { unrecorded.into_iter() }
        .map(|found| record_source(context.client.clone(), context.stores.metered.clone(), found))
        .collect();
    let mut failed: FirstError<ReconcileError> = FirstError::default();
    let written = stream::iter(writes).buffer_unordered(CONCURRENCY).for_each(|result| {
        failed.note(result);
        ready(())
    });
    if timeout(TIMEOUT, written).await.is_err() {
        tracing::warn!("there was no time to write into all VolumeSnapshots which claims they are of; trying again");
    }
    if let Err(error) = failed.into_result() {
        tracing::warn!(%error, "not all VolumeSnapshots say which claims they are of; trying again");
    }
}

async fn record_source(client: Client, metered: MeteredUse, found: UnrecordedSource) -> Result<(), ReconcileError> {
    let UnrecordedSource { snapshot, uid, source } = found;
    metered.note_tried_source(&snapshot);
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
