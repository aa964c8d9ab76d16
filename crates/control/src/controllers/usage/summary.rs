//! Writes what a tenant used into the status of its `TenantCluster`, and no other field of it: a team may not read the records, which are of all tenants.

use super::context::UsageContext;
use crate::{
    apply::is_status,
    error::{FirstError, ReconcileError, api},
    status_write::{StatusTarget, USAGE_FIELDS, write_status},
};
use berth_api::{MonthlyUsage, TenantCluster, TenantClusterStatus};
use futures::{StreamExt, stream};
use kube::{Client, ResourceExt};
use std::sync::Arc;

/// How many statuses are written at once.
const CONCURRENCY: usize = 8;

/// Writes what the stored records say, wherever a status says something else. That is so after a record was written, and when a month begins.
///
/// # Errors
/// The host's API server refuses or does not answer for some tenant. The others are written all the same.
pub(super) async fn write_summaries(context: &UsageContext) -> Result<(), ReconcileError> {
    let changed = find_changed(context);
    let writes: Vec<_> = { changed.into_iter() }
        .map(|(cluster, summaries)| write_summary(context.client.clone(), cluster, summaries))
        .collect();
    let results: Vec<_> = stream::iter(writes).buffer_unordered(CONCURRENCY).collect().await;
    let mut failed: FirstError<ReconcileError> = FirstError::default();
    for result in results {
        failed.note(result);
    }
    failed.into_result()
}

/// The tenants whose status is to be written, and what is to be in it.
fn find_changed(context: &UsageContext) -> Vec<(Arc<TenantCluster>, Vec<MonthlyUsage>)> {
    let now = context.clock.now();
    let state = context.state.lock();
    let mut summaries = state.meter.summaries(now);
    let tenants = context.stores.tenants.state().into_iter();
    let changed = tenants.filter_map(|cluster| {
        let of_tenant = summaries.remove(cluster.uid()?.as_str())?;
        let published = cluster.status.as_ref().map(|status| status.monthly_usage.as_slice());
        (published.unwrap_or_default() != of_tenant).then_some((cluster, of_tenant))
    });
    changed.collect()
}

async fn write_summary(
    client: Client,
    cluster: Arc<TenantCluster>,
    monthly_usage: Vec<MonthlyUsage>,
) -> Result<(), ReconcileError> {
    let status = TenantClusterStatus {
        monthly_usage,
        ..TenantClusterStatus::default()
    };
    match write_status::<TenantCluster>(&client, StatusTarget::of(&*cluster), &USAGE_FIELDS, &status).await {
        Ok(()) => Ok(()),
        // It was deleted meanwhile.
        Err(error) if is_status(&error, 404) || is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("show what a tenant used in its status")(error)),
    }
}
