//! PromQL that aggregates a metric over a window. Prometheus sends one row for each GPU, whatever the length of the window.

use crate::{Seconds, signal::Signal};

/// Labels that tell GPUs, MIG instances and pods apart. Under the default of Prometheus (`honor_labels: false`) the pod of the
/// workload is in the `exported_` labels, and the others name the pod of the exporter.
const LABELS: &str = "UUID, GPU_I_ID, exported_namespace, exported_pod, namespace, pod";
/// The label with the product of a GPU. Limits of what a product does when it is idle are compared with peaks only.
const MODEL: &str = "modelName";

/// What a query aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// The largest value in the window.
    Peak,
    /// The number of intervals in the window that have a sample.
    Coverage,
    /// The time of the newest sample.
    LastSample,
}

impl Aggregation {
    /// All aggregations.
    pub const ALL: [Self; 3] = [Self::Peak, Self::Coverage, Self::LastSample];
}

/// How the metrics are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuerySettings {
    /// Matchers that select the series of the exporters, for example `job="dcgm-exporter"`. Empty: all series of the metrics.
    pub matchers: String,
    /// Length of an interval in which there must be a sample: twice the time between two scrapes.
    pub sample_interval: Seconds,
}

impl Default for QuerySettings {
    fn default() -> Self {
        Self {
            matchers: String::new(),
            sample_interval: 60,
        }
    }
}

impl QuerySettings {
    /// Whether the settings can be part of a query.
    ///
    /// # Errors
    /// What to change.
    pub fn validate(&self) -> Result<(), String> {
        if self.matchers.contains(['{', '}', '\n']) {
            return Err(format!(
                "{:?} has braces or line breaks: write matchers as in job=\"dcgm-exporter\"",
                self.matchers
            ));
        }
        if !(1..=600).contains(&self.sample_interval) {
            return Err(format!(
                "{} s is no interval of samples: it must be from 1 s to 10 min",
                self.sample_interval
            ));
        }
        Ok(())
    }

    /// The query for one signal and one aggregation over a window.
    pub fn query(&self, signal: Signal, aggregation: Aggregation, window: Seconds) -> String {
        let (metric, matchers, interval) = (signal.metric(), &self.matchers, self.sample_interval);
        let series = format!("{metric}{{{matchers}}}");
        let inner = match aggregation {
            Aggregation::Peak => format!("max_over_time({series}[{window}s])"),
            // Of each signal: one may have a gap while the others of the same GPU have none, and the number of samples alone
            // does not show it.
            Aggregation::Coverage => {
                format!("count_over_time(present_over_time({series}[{interval}s])[{window}s:{interval}s])")
            }
            Aggregation::LastSample => format!("timestamp({series})"),
        };
        // Of several series of one GPU, as two exporters have them, the most active and the least complete counts.
        match aggregation {
            Aggregation::Peak => format!("max by ({LABELS}, {MODEL}) ({inner})"),
            Aggregation::Coverage | Aggregation::LastSample => format!("min by ({LABELS}) ({inner})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_aggregate_in_prometheus() {
        let settings = QuerySettings {
            matchers: "job=\"dcgm-exporter\"".into(),
            sample_interval: 30,
        };
        assert_eq!(
            settings.query(Signal::Engine, Aggregation::Peak, 3600),
            "max by (UUID, GPU_I_ID, exported_namespace, exported_pod, namespace, pod, modelName) \
             (max_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{job=\"dcgm-exporter\"}[3600s]))"
        );
        let coverage = settings.query(Signal::Power, Aggregation::Coverage, 3600);
        assert!(
            coverage.ends_with(
                "(count_over_time(present_over_time(DCGM_FI_DEV_POWER_USAGE{job=\"dcgm-exporter\"}[30s])[3600s:30s]))"
            ),
            "{coverage}"
        );
        let last = QuerySettings::default().query(Signal::Tensor, Aggregation::LastSample, 3600);
        assert!(
            last.ends_with("(timestamp(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{}))"),
            "{last}"
        );
    }

    #[test]
    fn of_two_series_of_one_gpu_the_most_active_and_the_least_complete_counts() {
        for (aggregation, combined) in [
            (Aggregation::Peak, "max by (UUID,"),
            (Aggregation::Coverage, "min by (UUID,"),
            (Aggregation::LastSample, "min by (UUID,"),
        ] {
            let query = QuerySettings::default().query(Signal::Engine, aggregation, 3600);
            assert!(query.starts_with(combined), "{query}");
        }
    }

    #[test]
    fn only_peaks_are_compared_with_limits_of_a_product() {
        for aggregation in Aggregation::ALL {
            let query = QuerySettings::default().query(Signal::Power, aggregation, 3600);
            assert_eq!(query.contains("modelName"), aggregation == Aggregation::Peak, "{query}");
        }
    }

    #[test]
    fn gaps_are_looked_for_in_every_signal() {
        for signal in Signal::ALL {
            let query = QuerySettings::default().query(signal, Aggregation::Coverage, 3600);
            let intervals = format!("present_over_time({}{{}}[60s])[3600s:60s]", signal.metric());
            assert!(query.contains(&intervals), "{query}");
        }
    }

    #[test]
    fn settings_that_would_break_a_query_are_rejected() {
        assert_eq!(QuerySettings::default().validate(), Ok(()));
        for (matchers, sample_interval) in [("{job=\"a\"}", 60), ("", 0), ("", 3600)] {
            let settings = QuerySettings {
                matchers: matchers.into(),
                sample_interval,
            };
            assert!(settings.validate().is_err(), "{settings:?}");
        }
    }
}
