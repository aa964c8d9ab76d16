//! What tenants use, counted and written into `UsageRecord`s.
//!
//! Every minute, and when an assignment of a node has changed, a pass collects what each tenant uses ([`memory`]) and gives it to the
//! [meter](berth_metering::Meter), which says which records have to be written. What these say of two months goes into the status of the tenant ([`summary`]).
//! What pools have is counted in the same way ([`capacity`]), so that reports can say what no tenant had.
//! Which claims VolumeSnapshots are of is written into these ([`sources`]), so that the next control knows it.
//! Nothing is watched and nothing asked for: a pass in which nothing is to be written makes no request. What is counted and not written is lost with the process,
//! but what objects of the host prove is not: the next control counts it again, from where the records end.

mod capacity;
mod context;
mod expire;
mod load;
mod memory;
mod modes;
mod nodes;
mod sources;
mod sum;
mod summary;
mod write;

pub use context::{UsageContext, UsageState};

use crate::error::ReconcileError;
use berth_metering::{Cut, Observed};
use context::Counted;
use std::time::Duration;

/// Months for which records are kept besides the current one, unless the platform says otherwise: a year can be compared with the one before.
pub const RETENTION_MONTHS: u32 = 13;
/// Time between two passes.
const INTERVAL: Duration = Duration::from_secs(60);
/// Time for the writes of a control that stops. The next one counts what is left.
const SAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// Seconds by which the clock may be behind what is recorded without a message: clocks of two controls differ a little.
const CLOCK_TOLERANCE: i64 = 30;

/// Counts what tenants use, and writes the records that are due. Returns when to do it again.
///
/// # Errors
/// The host's API server refuses or does not answer. What could not be written is counted, and written later.
pub async fn reconcile(context: &UsageContext) -> Result<Option<Duration>, ReconcileError> {
    if context.retention_months == 0 {
        return Ok(None);
    }
    let done = count_and_write(context).await;
    report_age(context);
    done.map(|()| Some(INTERVAL))
}

/// Keeps what nodes prove that have left their tenants, as long as it is not known what is recorded and nothing can be counted. To be called before the controller
/// of nodes works: that removes what they prove.
pub(crate) fn keep_proofs(context: &UsageContext) {
    let mut state = context.state.lock();
    if context.retention_months > 0 && !state.is_loaded {
        state.memory.keep_proofs(&context.stores);
    }
}

async fn count_and_write(context: &UsageContext) -> Result<(), ReconcileError> {
    context.state.lock().observed_at.get_or_insert(context.clock.now());
    keep_proofs(context);
    load::load_records(context).await?;
    count(context);
    let written = write::write_due(context).await;
    // A record that cannot be written must not keep others for ever, nor the summaries of others from being written.
    let shown = summary::write_summaries(context).await;
    let expired = expire::delete_expired(context).await;
    sources::record_sources(context).await;
    written.and(shown).and(expired)
}

/// Writes what is counted and not written, when control stops.
pub(crate) async fn save(context: &UsageContext) {
    if context.retention_months == 0 || !context.state.lock().is_loaded {
        return;
    }
    count(context);
    match tokio::time::timeout(SAVE_TIMEOUT, write::write_unsaved(context)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::warn!(%error, "not all usage is recorded; the next control counts it again"),
        Err(_) => tracing::warn!("there was no time to record all usage; the next control counts it again"),
    }
}

/// Counts what tenants have used since the last time.
fn count(context: &UsageContext) {
    let now = context.clock.now();
    let mut state = context.state.lock();
    let Counted { meter, memory, .. } = &mut *state;
    let collected = memory.collect(&context.stores, now);
    let observed = meter.observe(now, &collected.identities, &collected.items);
    state.observed_at = Some(now);
    state.clock_behind = observed.clock_behind;
    drop(state);
    for (tenant, count) in &collected.lost {
        tracing::warn!(
            tenant = tenant.as_str(),
            count = *count,
            "too many pods and claims of a tenant ended before usage could be recorded: some are not counted"
        );
    }
    log_observed(&observed);
}

fn log_observed(observed: &Observed) {
    for Cut {
        tenant,
        from,
        counted_from,
    } in &observed.cut
    {
        tracing::warn!(
            namespace = tenant.namespace,
            tenant = tenant.name,
            %from,
            %counted_from,
            "usage was not recorded for too long: what a tenant used before is not counted"
        );
    }
    if !observed.unknown.is_empty() {
        tracing::debug!(uids = ?observed.unknown, "usage of tenants that do not exist is not counted");
    }
    if observed.clock_behind > CLOCK_TOLERANCE {
        tracing::warn!(
            seconds = observed.clock_behind,
            "the clock is behind what is recorded: nothing is counted for the tenants concerned until it has reached that"
        );
    }
}

/// Sets the metric for the age of what is in no record, or is not counted because the clock was ahead before.
fn report_age(context: &UsageContext) {
    let now = context.clock.now();
    let state = context.state.lock();
    let earliest = [state.meter.unrecorded_since(), state.observed_at]
        .into_iter()
        .flatten()
        .min();
    let age = earliest.map_or(0, |earliest| now.duration_since(earliest).as_secs());
    // Nothing waits for its record then, as nothing is counted.
    let behind = Some(state.clock_behind).filter(|behind| *behind > CLOCK_TOLERANCE);
    context.metrics.unrecorded_seconds.set(age.max(behind.unwrap_or(0)));
}

#[cfg(test)]
mod tests;
