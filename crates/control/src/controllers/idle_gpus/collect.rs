//! Reads what Prometheus knows of all GPUs.

use berth_idle_reclaim::{
    Seconds,
    evidence::Metrics,
    query::{Aggregation, QuerySettings},
    series::{RowLabels, SeriesTable},
    signal::Signal,
};
use berth_prometheus::{Prometheus, QueryError};
use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

/// Longest time for all queries of a pass. What took longer is too old to decide by.
const TIMEOUT: Duration = Duration::from_secs(120);

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

/// Asks for all signals in all windows, one query after the other, so that only one answer is in memory.
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
        for signal in signals {
            for aggregation in Aggregation::ALL {
                let query = settings.query(*signal, aggregation, *window);
                let rows = prometheus.query::<RowLabels>(&query, now).await?;
                for row in rows {
                    table.record(row.labels, *signal, aggregation, row.value);
                }
            }
        }
        tables.insert(*window, table);
    }
    Ok(Metrics {
        tables,
        sample_interval: settings.sample_interval,
    })
}
