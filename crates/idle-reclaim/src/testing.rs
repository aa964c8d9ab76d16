//! Pods and metrics for tests.

use crate::{
    Seconds,
    evidence::{Metrics, Verdict},
    ladder::{LadderState, UnknownTime},
    pass::Decision,
    pod::{DevicesHeld, GpuPod},
    query::Aggregation,
    series::{RowLabels, SeriesTable},
    signal::Signal,
    workload::WorkloadName,
};
use berth_api::IdleStep;
use std::{collections::HashMap, sync::Arc};

/// The time of tests.
pub(crate) const NOW: Seconds = 1_000_000;

/// The signals that metrics of tests have.
pub(crate) const SIGNALS: [Signal; 4] = [Signal::Engine, Signal::Tensor, Signal::Memory, Signal::Power];

/// A pod of namespace `ml` that has run for a long time.
pub(crate) fn pod(name: &str, gpus: u32) -> GpuPod {
    GpuPod {
        tenant: "vision-abc".into(),
        namespace: "berth-w".into(),
        name: format!("{name}-host"),
        uid: format!("{name}-uid"),
        origin_namespace: "ml".into(),
        origin_name: name.into(),
        devices: [("nvidia.com/gpu".to_owned(), gpus)].into(),
        devices_held: DevicesHeld::Now,
        started_at: Some(NOW - 7 * 86_400),
        ..GpuPod::default()
    }
}

/// What was decided about a workload with one pod that is due.
pub(crate) fn due(name: &str, gpus: u32) -> Decision {
    Decision {
        workload: WorkloadName {
            name: name.into(),
            ..WorkloadName::default()
        },
        pods: vec![Arc::new(pod(name, gpus))],
        gpus,
        profile: None,
        verdict: Verdict::Idle,
        is_opted_out: false,
        state: Some(LadderState {
            idle_since: NOW - 7200,
            step: IdleStep::Reclaimable,
            step_since: NOW,
            paused: false,
            unknown: UnknownTime::default(),
        }),
        next_step_at: None,
        awaits_pods: false,
    }
}

/// Labels of a GPU of a pod.
pub(crate) fn row(pod: &GpuPod, index: u32) -> RowLabels<'_> {
    RowLabels {
        uuid: format!("GPU-{}-{index}", pod.name).into(),
        model: "NVIDIA H100 80GB HBM3".into(),
        namespace: (&*pod.namespace).into(),
        pod: (&*pod.name).into(),
        ..RowLabels::default()
    }
}

/// Labels of a MIG instance of a pod.
pub(crate) fn instance_row(pod: &GpuPod, index: u32) -> RowLabels<'_> {
    RowLabels {
        instance: "1".into(),
        ..row(pod, index)
    }
}

/// Records a signal with this peak in a complete window of an hour until now.
pub(crate) fn record(table: &mut SeriesTable, labels: &RowLabels<'_>, signal: Signal, peak: f64, now: Seconds) {
    let now = f64::from(u32::try_from(now).unwrap());
    for (aggregation, value) in [
        (Aggregation::Peak, peak),
        (Aggregation::Coverage, 60.0),
        (Aggregation::LastSample, now - 15.0),
    ] {
        table.record(labels, signal, aggregation, value);
    }
}

/// Records a signal that shows no activity.
pub(crate) fn record_idle(table: &mut SeriesTable, labels: &RowLabels<'_>, signal: Signal) {
    let peak = if signal == Signal::Power { 70.0 } else { 0.0 };
    record(table, labels, signal, peak, NOW);
}

/// The metrics of a window of an hour.
pub(crate) fn metrics(table: SeriesTable) -> Metrics {
    Metrics {
        tables: HashMap::from([(3600, table)]),
        sample_interval: 60,
    }
}

/// Metrics of pods whose GPUs do nothing.
pub(crate) fn idle_table(pods: &[&GpuPod]) -> SeriesTable {
    let mut table = SeriesTable::default();
    for pod in pods {
        for index in 0..pod.devices.values().sum::<u32>() {
            for signal in SIGNALS {
                record_idle(&mut table, &row(pod, index), signal);
            }
        }
    }
    table
}
