//! Writing records.

use super::context::UsageContext;
use crate::{
    apply::is_status,
    error::{FirstError, ReconcileError, api},
    metrics::{ResultLabels, UsageMetrics},
};
use berth_api::{UsageRecord, labels};
use berth_metering::Meter;
use futures::{StreamExt, stream};
use kube::{Api, ResourceExt, api::PostParams};

/// How many records are written at once.
const CONCURRENCY: usize = 8;
/// How many records of a tenant are written in a pass: those of months that are over come first, and one that another control has written meanwhile is
/// written again.
const ROUNDS: usize = 3;

/// What became of a write.
enum Written {
    /// The API server has this record now.
    Stored(UsageRecord),
    /// This record does not exist any more.
    Missing(UsageRecord),
}

/// Writes the records that are due.
///
/// # Errors
/// The host's API server refuses or does not answer for some record. The others are written all the same.
pub(super) async fn write_due(context: &UsageContext) -> Result<(), ReconcileError> {
    let now = context.clock.now();
    write(context, |meter| meter.due(now)).await
}

/// Writes everything that is counted and in no record.
///
/// # Errors
/// As above.
pub(super) async fn write_unsaved(context: &UsageContext) -> Result<(), ReconcileError> {
    write(context, Meter::unsaved).await
}

async fn write(context: &UsageContext, next: impl Fn(&Meter) -> Vec<UsageRecord>) -> Result<(), ReconcileError> {
    let api: Api<UsageRecord> = Api::all(context.client.clone());
    let mut failed: FirstError<ReconcileError> = FirstError::default();
    for _ in 0..ROUNDS {
        let records = next(&context.state.lock().meter);
        if records.is_empty() || !failed.is_none() {
            break;
        }
        let writes: Vec<_> = { records.into_iter() }
            .map(|record| write_record(api.clone(), context.metrics.clone(), record))
            .collect();
        let mut results = stream::iter(writes).buffer_unordered(CONCURRENCY);
        // Each at once: a pass that is given up, because the API server is slow, must not forget what it has written.
        while let Some(result) = results.next().await {
            let mut state = context.state.lock();
            match failed.note(result) {
                Some(Written::Stored(record)) => state.meter.stored(record),
                Some(Written::Missing(record)) => state.meter.missing(&record),
                None => {}
            }
        }
    }
    failed.into_result()
}

/// Creates or replaces one record. If another control has written it meanwhile, it is left as that one has written it: the meter decides what is to be added.
async fn write_record(
    records: Api<UsageRecord>,
    metrics: UsageMetrics,
    record: UsageRecord,
) -> Result<Written, ReconcileError> {
    let name = record.name_any();
    let is_new = record.resource_version().is_none();
    let params = PostParams {
        field_manager: Some(labels::CONTROL_MANAGER.into()),
        ..PostParams::default()
    };
    let answer = if is_new {
        records.create(&params, &record).await
    } else {
        records.replace(&name, &params, &record).await
    };
    let (result, written) = match answer {
        Ok(stored) => ("ok", Ok(Written::Stored(stored))),
        Err(error) if is_status(&error, 409) => match records.get_opt(&name).await {
            Ok(Some(found)) => ("conflict", Ok(Written::Stored(found))),
            Ok(None) => ("missing", Ok(Written::Missing(record))),
            Err(error) => ("failed", Err(error)),
        },
        Err(error) if is_status(&error, 404) && !is_new => ("missing", Ok(Written::Missing(record))),
        Err(error) => ("failed", Err(error)),
    };
    metrics.writes.get_or_create(&ResultLabels { result }).inc();
    let written = written.map_err(api("write what a tenant used"));
    if let Err(error) = &written
        && is_of_one_record(error)
    {
        tracing::warn!(record = name, %error, "a record of what a tenant used cannot be written");
    }
    written
}

/// Whether an error is of this record only, such as one that another version of Berth has written and this one cannot read.
fn is_of_one_record(error: &ReconcileError) -> bool {
    let is_unreadable =
        matches!(error, ReconcileError::Api { source, .. } if matches!(**source, kube::Error::SerdeError(_)));
    is_unreadable || error.refusal().is_some()
}
