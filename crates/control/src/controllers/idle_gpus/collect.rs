//! Reads what Prometheus knows of all GPUs.

use berth_idle_reclaim::{
    Seconds,
    evidence::Metrics,
    query::{Aggregation, QuerySettings},
    series::{RowLabels, SeriesTable},
    signal::Signal,
};
use berth_prometheus::{Prometheus, QueryError};
use futures::{StreamExt, TryStreamExt, stream};
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// Longest time for all queries of a pass. What took longer is too old to decide by.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Queries at the same time. Prometheus computes each of them on one processor, and meanwhile control reads the answer of another one. As
/// many answers are in memory, of about 6 MB for 10,000 GPUs each. Prometheus allows 20 by default, for all of its clients.
const AT_ONCE: usize = 4;

/// Where the metrics of GPUs are.
#[derive(Clone)]
pub struct GpuMetricsSource {
    /// The server.
    pub prometheus: Prometheus,
    /// How it stores them.
    pub settings: QuerySettings,
    /// Time between two passes.
    pub interval: Duration,
}

/// Asks for all signals in all windows, a few queries at the same time.
///
/// # Errors
/// One query has no complete answer, or `now` is in the past of Prometheus: then nothing is known.
pub async fn collect(
    source: &GpuMetricsSource,
    windows: &BTreeSet<Seconds>,
    signals: &BTreeSet<Signal>,
    now: Seconds,
) -> Result<Metrics, QueryError> {
    let all = collect_all(source, windows, signals, now);
    let collected = tokio::time::timeout(TIMEOUT, all).await;
    collected.unwrap_or(Err(QueryError::Timeout(TIMEOUT)))
}

async fn collect_all(
    source: &GpuMetricsSource,
    windows: &BTreeSet<Seconds>,
    signals: &BTreeSet<Signal>,
    now: Seconds,
) -> Result<Metrics, QueryError> {
    let GpuMetricsSource {
        prometheus,
        settings,
        interval: _,
    } = source;
    prometheus.check_clock(now).await?;
    let mut tables = HashMap::new();
    for window in windows {
        let mut table = SeriesTable::default();
        let asked: Vec<(Signal, Aggregation)> = signals
            .iter()
            .flat_map(|signal| Aggregation::ALL.map(|aggregation| (*signal, aggregation)))
            .collect();
        let queries = asked.into_iter().map(|(signal, aggregation)| {
            let query = settings.query(signal, aggregation, *window);
            async move {
                let rows = prometheus.query::<RowLabels>(&query, now).await?;
                Ok::<_, QueryError>((signal, aggregation, rows))
            }
        });
        // In order, so that the same answers always give the same table.
        let mut answers = stream::iter(queries).buffered(AT_ONCE);
        while let Some((signal, aggregation, rows)) = answers.try_next().await? {
            for row in rows {
                table.record(row.labels, signal, aggregation, row.value);
            }
        }
        tables.insert(*window, table);
    }
    Ok(Metrics {
        tables,
        sample_interval: settings.sample_interval,
    })
}
