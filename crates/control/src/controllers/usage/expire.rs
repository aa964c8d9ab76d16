//! Deleting records that are older than the platform keeps them.

use super::context::UsageContext;
use crate::{
    apply::{delete_same, is_status},
    error::{FirstError, ReconcileError, api},
    metrics::ResultLabels,
};
use berth_api::{UsageRecord, labels};
use berth_metering::{Month, day_of, is_expired};
use berth_runtime::watched::{Watched, for_each};
use futures::{StreamExt, stream};
use jiff::{SignedDuration, Span, Timestamp};
use kube::{Api, ResourceExt, api::ListParams, core::PartialObjectMeta};

/// Time between two looks for expired records: they expire at the end of a month.
const INTERVAL: SignedDuration = SignedDuration::from_hours(24);
/// How many records are deleted in a pass.
const MOST_DELETED: usize = 500;
/// How many records are deleted at once.
const CONCURRENCY: usize = 8;

/// Deletes the records that have expired, once a day.
///
/// # Errors
/// The host's API server refuses or does not answer. The others are deleted all the same.
pub(super) async fn delete_expired(context: &UsageContext) -> Result<(), ReconcileError> {
    let now = context.clock.now();
    let looked = context.state.lock().expired_at;
    if looked.is_some_and(|looked| now.duration_since(looked).abs() < INTERVAL) {
        return Ok(());
    }
    // By a clock that is years ahead all records would be old.
    if !context.clock.is_confirmed() {
        return Ok(());
    }
    let (names, has_more) = find_old(context, now).await?;
    let deletions: Vec<_> = names
        .into_iter()
        .map(|name| delete_if_expired(context, name, now))
        .collect();
    let results: Vec<_> = stream::iter(deletions).buffer_unordered(CONCURRENCY).collect().await;
    let mut failed: FirstError<ReconcileError> = FirstError::default();
    for result in results {
        failed.note(result);
    }
    if failed.is_none() && !has_more {
        context.state.lock().expired_at = Some(now);
    }
    failed.into_result()
}

/// Names of records whose labels say that they are old, and whether there are more of them.
async fn find_old(context: &UsageContext, now: Timestamp) -> Result<(Vec<String>, bool), ReconcileError> {
    let kept = Span::new().months(context.retention_months);
    let Ok(oldest) = Month::of(day_of(now)).first_day().checked_sub(kept) else {
        return Ok((Vec::new(), false));
    };
    let records: Api<Watched<PartialObjectMeta<UsageRecord>>> = Api::all(context.client.clone());
    let (mut names, mut has_more) = (Vec::new(), false);
    for_each(&records, ListParams::default(), |record| {
        let Some(record) = record.readable() else { return };
        let month = record
            .labels()
            .get(labels::USAGE_MONTH)
            .and_then(|month| month.parse::<Month>().ok());
        if month.is_none_or(|month| month >= Month::of(oldest)) {
            return;
        }
        if names.len() < MOST_DELETED {
            names.push(record.name_any());
        } else {
            has_more = true;
        }
    })
    .await
    .map_err(api("list what tenants used"))?;
    Ok((names, has_more))
}

/// Deletes a record if it is expired by what it says itself.
async fn delete_if_expired(context: &UsageContext, name: String, now: Timestamp) -> Result<(), ReconcileError> {
    let records: Api<UsageRecord> = Api::all(context.client.clone());
    let found = records.get_opt(&name).await.map_err(api("read what a tenant used"))?;
    let Some(record) = found.filter(|record| is_expired(record, now, context.retention_months)) else {
        return Ok(());
    };
    match delete_same(&records, &record.metadata, record.resource_version()).await {
        Ok(true) => {
            let result = "expired";
            context.metrics.writes.get_or_create(&ResultLabels { result }).inc();
            tracing::info!(
                record = name,
                "what a tenant used is older than records are kept, and deleted"
            );
            Ok(())
        }
        Ok(false) => Ok(()),
        // It has changed: the next look decides.
        Err(error) if is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("delete what a tenant used")(error)),
    }
}
