//! Reads what Prometheus knows of all GPUs.

use berth_idle_reclaim::{
    Seconds,
    evidence::{Metrics, Unknown, Verdict},
    gaps::GapMemory,
    query::{Aggregation, Pods, QuerySettings},
    question::{Question, Questions},
    series::RowLabels,
};
use berth_prometheus::{Prometheus, QueryError};
use futures::{StreamExt, TryStreamExt, stream};
use std::{collections::HashMap, time::Duration};

/// Longest time for all queries of a pass. What took longer is too old to decide by.
const PASS_TIMEOUT: Duration = Duration::from_secs(120);
/// Queries at the same time. Prometheus computes each of them on one processor, and meanwhile control reads the answer of another one. As
/// many answers are in memory, of about 6 MB for 10,000 GPUs each. Prometheus allows 20 by default, for all of its clients.
const AT_ONCE: usize = 4;

/// What is known of a pod without activity before its newest samples are, and then before its gaps are.
const STALE: Verdict = Verdict::Unknown(Unknown::StaleSeries);
const PARTIAL: Verdict = Verdict::Unknown(Unknown::PartialSeries);

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

/// Asks about all pods of the questions of a pass, a few queries at the same time. Of gaps it asks only what it does not remember.
///
/// # Errors
/// One query has no complete answer, or `now` is in the past of Prometheus: then nothing is known.
pub async fn collect(
    source: &GpuMetricsSource,
    questions: &Questions<'_>,
    gaps: &mut GapMemory,
    now: Seconds,
) -> Result<Metrics, QueryError> {
    let all = collect_all(source, questions, gaps, now);
    let collected = tokio::time::timeout(PASS_TIMEOUT, all).await;
    collected.unwrap_or(Err(QueryError::Timeout(PASS_TIMEOUT)))
}

/// The same with another time limit for all queries together, and without memory: everything is asked.
pub(super) async fn collect_anew(
    source: &GpuMetricsSource,
    questions: &Questions<'_>,
    timeout: Duration,
    now: Seconds,
) -> Result<Metrics, QueryError> {
    let mut nothing = GapMemory::default();
    let all = collect_all(source, questions, &mut nothing, now);
    let collected = tokio::time::timeout(timeout, all).await;
    collected.unwrap_or(Err(QueryError::Timeout(timeout)))
}

async fn collect_all(
    source: &GpuMetricsSource,
    questions: &Questions<'_>,
    gaps: &mut GapMemory,
    now: Seconds,
) -> Result<Metrics, QueryError> {
    source.prometheus.check_clock(now).await?;
    let mut metrics = Metrics {
        tables: HashMap::new(),
        sample_interval: source.settings.sample_interval,
    };
    for question in &questions.by_window {
        let window = question.window;
        let pods = questions.pods(question);
        fill(source, question, &pods, Aggregation::Peak, &mut metrics, now).await?;
        let pods = questions.pods_with(STALE, question, &metrics, now);
        let pods = questions.select(&pods);
        fill(source, question, &pods, Aggregation::LastSample, &mut metrics, now).await?;
        let mut pods = questions.pods_with(PARTIAL, question, &metrics, now);
        let table = metrics.tables.entry(window).or_default();
        pods.retain(|pod| !gaps.recall(pod, window, table, now));
        let pods = questions.select(&pods);
        fill(source, question, &pods, Aggregation::Coverage, &mut metrics, now).await?;
        let idle = questions.pods_with(Verdict::Idle, question, &metrics, now);
        let table = metrics.tables.entry(window).or_default();
        for pod in idle {
            gaps.remember(pod, window, table, now);
        }
    }
    gaps.end_pass(now);
    Ok(metrics)
}

/// Adds what is known of the GPUs of some pods to the table of a window.
async fn fill(
    source: &GpuMetricsSource,
    question: &Question<'_>,
    pods: &[Pods],
    aggregation: Aggregation,
    metrics: &mut Metrics,
    now: Seconds,
) -> Result<(), QueryError> {
    let GpuMetricsSource {
        prometheus,
        settings,
        interval: _,
    } = source;
    let mut asked = Vec::new();
    for pods in pods {
        for signal in &question.signals {
            let query = settings.query(*signal, aggregation, question.window, pods);
            asked.push((*signal, query));
        }
    }
    let queries = asked.into_iter().map(|(signal, query)| async move {
        let answer = prometheus.query(&query, now).await?;
        Ok::<_, QueryError>((signal, answer))
    });
    let table = metrics.tables.entry(question.window).or_default();
    // In order, so that the same answers always give the same table.
    let mut answers = stream::iter(queries).buffered(AT_ONCE);
    while let Some((signal, answer)) = answers.try_next().await? {
        for row in answer.rows::<RowLabels<'_>>()? {
            table.record(&row.labels, signal, aggregation, row.value);
        }
    }
    Ok(())
}
