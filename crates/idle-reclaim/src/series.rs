//! What Prometheus knows of each GPU, by the pod that has it.

use crate::{query::Aggregation, signal::Signal};
use serde::Deserialize;
use std::{
    borrow::Cow,
    collections::{BTreeSet, HashMap},
};

/// Labels of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RowLabels<'a> {
    /// The GPU.
    #[serde(rename = "UUID", borrow)]
    pub uuid: Cow<'a, str>,
    /// The MIG instance; empty for a whole GPU.
    #[serde(rename = "GPU_I_ID", borrow)]
    pub instance: Cow<'a, str>,
    /// The share of a GPU or MIG instance that several containers take turns on; empty for one that a container has alone, and if the exporter does not
    /// name shares.
    #[serde(rename = "vgpu", borrow)]
    pub share: Cow<'a, str>,
    /// Name of the product.
    #[serde(rename = "modelName", borrow)]
    pub model: Cow<'a, str>,
    /// Namespace of the pod that has the GPU, if the exporter's own labels were renamed.
    #[serde(borrow)]
    pub exported_namespace: Cow<'a, str>,
    /// The pod that has the GPU, if the exporter's own labels were renamed.
    #[serde(borrow)]
    pub exported_pod: Cow<'a, str>,
    /// Namespace of the pod that has the GPU, or of the exporter.
    #[serde(borrow)]
    pub namespace: Cow<'a, str>,
    /// The pod that has the GPU, or the exporter.
    #[serde(borrow)]
    pub pod: Cow<'a, str>,
}

impl RowLabels<'_> {
    /// Namespace and name of the pod that has the GPU; none for a GPU that no pod has.
    fn owner(&self) -> Option<(&str, &str)> {
        let (namespace, pod) = if self.exported_pod.is_empty() {
            (&*self.namespace, &*self.pod)
        } else {
            (&*self.exported_namespace, &*self.exported_pod)
        };
        (!namespace.is_empty() && !pod.is_empty()).then_some((namespace, pod))
    }
}

/// What is known of one signal of one GPU in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Aggregate {
    /// The largest value.
    pub peak: Option<f64>,
    /// Intervals with a sample.
    pub coverage: Option<f64>,
    /// Time of the newest sample, in seconds since the epoch.
    pub last_sample: Option<f64>,
}

/// What is known of one GPU or MIG instance of one pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceSeries {
    /// The GPU.
    pub uuid: String,
    /// The MIG instance; empty for a whole GPU.
    pub instance: String,
    /// The shares of it that the pod has; none if it is not shared.
    pub shares: BTreeSet<String>,
    /// Name of the product.
    pub model: String,
    /// Each signal, at its [`Signal::index`].
    pub signals: [Aggregate; Signal::COUNT],
}

impl DeviceSeries {
    /// Whether it is a MIG instance.
    pub fn is_instance(&self) -> bool {
        !self.instance.is_empty()
    }

    /// How many units of an extended resource the pod has of it: each of its shares is one.
    pub fn units(&self) -> usize {
        self.shares.len().max(1)
    }

    fn record(&mut self, labels: &RowLabels<'_>, signal: Signal, aggregation: Aggregation, value: f64) {
        // Only rows of peaks have it.
        if self.model.is_empty() {
            self.model = labels.model.clone().into_owned();
        }
        if !labels.share.is_empty() && !self.shares.contains(&*labels.share) {
            self.shares.insert(labels.share.clone().into_owned());
        }
        let aggregate = &mut self.signals[signal.index()];
        match aggregation {
            // Not a number, or less than nothing, which no GPU can do: nothing is known, which is not idle.
            Aggregation::Peak => {
                let value = if value >= 0.0 { value } else { f64::INFINITY };
                aggregate.peak = Some(aggregate.peak.map_or(value, |known| known.max(value)));
            }
            Aggregation::Coverage => aggregate.coverage = Some(least(aggregate.coverage, value)),
            Aggregation::LastSample => aggregate.last_sample = Some(least(aggregate.last_sample, value)),
        }
    }
}

/// Rows of all queries of one window, by pod.
#[derive(Clone, Debug, Default)]
pub struct SeriesTable {
    by_pod: HashMap<String, HashMap<String, Vec<DeviceSeries>>>,
}

impl SeriesTable {
    /// Adds a row. Rows of one GPU that differ in other labels only are combined so that it counts as active rather than idle.
    pub fn record(&mut self, labels: &RowLabels<'_>, signal: Signal, aggregation: Aggregation, value: f64) {
        let Some((namespace, pod)) = labels.owner().filter(|_| !labels.uuid.is_empty()) else {
            return;
        };
        let is_it = |device: &&mut DeviceSeries| device.uuid == labels.uuid && device.instance == labels.instance;
        let known = self.by_pod.get_mut(namespace).and_then(|pods| pods.get_mut(pod));
        if let Some(device) = known.and_then(|devices| devices.iter_mut().find(is_it)) {
            device.record(labels, signal, aggregation, value);
            return;
        }
        let mut device = DeviceSeries {
            uuid: labels.uuid.clone().into_owned(),
            instance: labels.instance.clone().into_owned(),
            ..DeviceSeries::default()
        };
        device.record(labels, signal, aggregation, value);
        let pods = self.by_pod.entry(namespace.to_owned()).or_default();
        pods.entry(pod.to_owned()).or_default().push(device);
    }

    /// What is known of the GPUs of a pod.
    pub fn of_pod(&self, namespace: &str, pod: &str) -> &[DeviceSeries] {
        let devices = self.by_pod.get(namespace).and_then(|pods| pods.get(pod));
        devices.map_or(&[], Vec::as_slice)
    }

    pub(crate) fn of_pod_mut(&mut self, namespace: &str, pod: &str) -> &mut [DeviceSeries] {
        let devices = self.by_pod.get_mut(namespace).and_then(|pods| pods.get_mut(pod));
        devices.map_or(&mut [], Vec::as_mut_slice)
    }

    /// Number of GPUs and MIG instances that pods have.
    pub fn devices(&self) -> usize {
        self.by_pod.values().flat_map(HashMap::values).map(Vec::len).sum()
    }
}

fn least(known: Option<f64>, value: f64) -> f64 {
    let value = if value.is_nan() { 0.0 } else { value };
    known.map_or(value, |known| known.min(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels<'a>(uuid: &'a str, namespace: &'a str, pod: &'a str) -> RowLabels<'a> {
        RowLabels {
            uuid: uuid.into(),
            namespace: namespace.into(),
            pod: pod.into(),
            ..RowLabels::default()
        }
    }

    #[test]
    fn the_pod_is_in_the_exported_labels_if_there_are_any() {
        let mut table = SeriesTable::default();
        let row = RowLabels {
            exported_namespace: "berth-w".into(),
            exported_pod: "train".into(),
            ..labels("GPU-1", "gpu-operator", "dcgm-exporter-x")
        };
        table.record(&row, Signal::Engine, Aggregation::Peak, 0.5);
        table.record(
            &labels("GPU-2", "berth-w", "other"),
            Signal::Engine,
            Aggregation::Peak,
            0.0,
        );
        table.record(&labels("GPU-3", "", ""), Signal::Engine, Aggregation::Peak, 0.0);
        assert_eq!(table.of_pod("berth-w", "train")[0].uuid, "GPU-1");
        assert_eq!(table.of_pod("berth-w", "other")[0].uuid, "GPU-2");
        assert!(table.of_pod("gpu-operator", "dcgm-exporter-x").is_empty());
        assert_eq!(table.devices(), 2);
    }

    #[test]
    fn the_product_is_known_from_any_row_that_names_it() {
        let mut table = SeriesTable::default();
        let named = RowLabels {
            model: "NVIDIA H100".into(),
            ..labels("GPU-1", "berth-w", "train")
        };
        for row in [
            labels("GPU-1", "berth-w", "train"),
            named,
            labels("GPU-1", "berth-w", "train"),
        ] {
            table.record(&row, Signal::Power, Aggregation::Coverage, 1.0);
        }
        assert_eq!(table.of_pod("berth-w", "train")[0].model, "NVIDIA H100");
    }

    #[test]
    fn instances_of_one_gpu_are_told_apart() {
        let mut table = SeriesTable::default();
        for instance in ["1", "2"] {
            let row = RowLabels {
                instance: instance.into(),
                ..labels("GPU-1", "berth-w", "train")
            };
            table.record(&row, Signal::Engine, Aggregation::Peak, 0.0);
        }
        let devices = table.of_pod("berth-w", "train").iter();
        let devices: Vec<(&str, &str)> = devices.map(|series| (&*series.uuid, &*series.instance)).collect();
        assert_eq!(devices, [("GPU-1", "1"), ("GPU-1", "2")]);
    }

    #[test]
    fn shares_of_one_gpu_are_one_gpu_and_several_units() {
        let mut table = SeriesTable::default();
        for (share, peak) in [("0", 0.0), ("3", 0.4), ("0", 0.0)] {
            let row = RowLabels {
                share: share.into(),
                ..labels("GPU-1", "berth-w", "train")
            };
            table.record(&row, Signal::Engine, Aggregation::Peak, peak);
        }
        table.record(
            &labels("GPU-2", "berth-w", "train"),
            Signal::Engine,
            Aggregation::Peak,
            0.0,
        );
        let devices = table.of_pod("berth-w", "train").iter();
        let devices: Vec<(&str, usize)> = devices.map(|series| (&*series.uuid, series.units())).collect();
        assert_eq!(devices, [("GPU-1", 2), ("GPU-2", 1)]);
        let peak = table.of_pod("berth-w", "train")[0].signals[Signal::Engine.index()].peak;
        assert_eq!(peak, Some(0.4));
    }

    #[test]
    fn several_rows_of_one_gpu_count_as_the_most_active_and_the_least_complete() {
        let mut table = SeriesTable::default();
        for (peak, coverage, last) in [(0.0, 60.0, 100.0), (0.4, 20.0, 90.0), (f64::NAN, f64::NAN, 95.0)] {
            let row = || labels("GPU-1", "berth-w", "train");
            table.record(&row(), Signal::Engine, Aggregation::Peak, peak);
            table.record(&row(), Signal::Engine, Aggregation::Coverage, coverage);
            table.record(&row(), Signal::Engine, Aggregation::LastSample, last);
        }
        let expected = Aggregate {
            peak: Some(f64::INFINITY),
            coverage: Some(0.0),
            last_sample: Some(90.0),
        };
        assert_eq!(table.of_pod("berth-w", "train")[0].signals[0], expected);
    }

    #[test]
    fn values_that_no_gpu_can_have_are_not_idle() {
        for value in [-1.0, f64::NEG_INFINITY, f64::NAN] {
            let mut table = SeriesTable::default();
            table.record(
                &labels("GPU-1", "berth-w", "train"),
                Signal::Power,
                Aggregation::Peak,
                value,
            );
            let peak = table.of_pod("berth-w", "train")[0].signals[Signal::Power.index()].peak;
            assert_eq!(peak, Some(f64::INFINITY), "{value}");
        }
    }
}
