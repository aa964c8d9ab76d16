//! PromQL that aggregates a metric over a window. Prometheus sends one row for each GPU, whatever the length of the window.

use crate::{Seconds, signal::Signal};
use std::collections::BTreeSet;

/// Labels that tell GPUs, MIG instances, shares of them and pods apart. Under the default of Prometheus (`honor_labels: false`) the pod of the
/// workload is in the `exported_` labels, and the others name the pod of the exporter.
const LABELS: &str = "UUID, GPU_I_ID, vgpu, exported_namespace, exported_pod, namespace, pod";
/// The label with the product of a GPU. Limits of what a product does when it is idle are compared with peaks only.
const MODEL: &str = "modelName";

/// What a query aggregates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aggregation {
    /// The largest value in the window.
    Peak,
    /// The number of intervals in the window that have a sample, and one that is a number and not negative.
    Coverage,
    /// The time of the newest sample.
    LastSample,
}

impl Aggregation {
    /// All aggregations.
    pub const ALL: [Self; 3] = [Self::Peak, Self::Coverage, Self::LastSample];
}

/// The pods whose GPUs a query is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pods {
    /// All.
    All,
    /// Some: a regular expression that matches their names.
    Named(String),
}

/// Longest regular expression of names. A query has it twice, and servers such as VictoriaMetrics reject queries of more than 16 KiB.
const MAX_NAMES: usize = 6000;
/// So many pods are always named, however many there are.
const FEW: usize = 100;

impl Pods {
    /// The queries about some of `all` pods: none, several that name them, or one about all if that costs less.
    pub fn select(names: BTreeSet<&str>, all: usize) -> Vec<Self> {
        if names.len() > FEW && names.len() > all / 2 {
            return vec![Self::All];
        }
        let mut selected = Vec::new();
        let mut expression = String::new();
        for name in names {
            let escaped = escape(name);
            if !expression.is_empty() && expression.len() + escaped.len() >= MAX_NAMES {
                selected.push(Self::Named(std::mem::take(&mut expression)));
            }
            if !expression.is_empty() {
                expression.push('|');
            }
            expression.push_str(&escaped);
        }
        if !expression.is_empty() {
            selected.push(Self::Named(expression));
        }
        selected
    }

    /// An expression over the series of a metric that these pods have. The pod is in another label if the exporter's own were renamed.
    fn apply(&self, metric: &str, matchers: &str, expression: impl Fn(&str) -> String) -> String {
        match self {
            Self::All => expression(&format!("{metric}{{{matchers}}}")),
            Self::Named(names) => {
                let separator = if matchers.is_empty() || matchers.trim_end().ends_with(',') {
                    ""
                } else {
                    ","
                };
                let renamed = format!("{metric}{{{matchers}{separator}exported_pod=~\"{names}\"}}");
                let own = format!("{metric}{{{matchers}{separator}exported_pod=\"\",pod=~\"{names}\"}}");
                format!("{} or {}", expression(&renamed), expression(&own))
            }
        }
    }
}

/// The name of a pod in a regular expression, without a backslash: the expression is in a text of PromQL.
fn escape(name: &str) -> String {
    let is_literal = |c: char| c.is_ascii_alphanumeric() || c == '-';
    name.chars().fold(String::new(), |mut escaped, c| {
        match c {
            '.' => escaped.push_str("[.]"),
            c if is_literal(c) => escaped.push(c),
            // No name of a pod has others.
            _ => escaped.push('.'),
        }
        escaped
    })
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
    pub fn query(&self, signal: Signal, aggregation: Aggregation, window: Seconds, pods: &Pods) -> String {
        let interval = self.sample_interval;
        let inner = pods.apply(signal.metric(), &self.matchers, |series| match aggregation {
            Aggregation::Peak => format!("max_over_time({series}[{window}s])"),
            // Of each signal: one may have a gap while the others of the same GPU have none, and the number of samples alone
            // does not show it. What is no number, or less than nothing, is no sample: the peak of a window hides it.
            Aggregation::Coverage => {
                format!("count_over_time((max_over_time({series}[{interval}s]) >= 0)[{window}s:{interval}s])")
            }
            Aggregation::LastSample => format!("timestamp({series})"),
        });
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
            settings.query(Signal::Engine, Aggregation::Peak, 3600, &Pods::All),
            "max by (UUID, GPU_I_ID, vgpu, exported_namespace, exported_pod, namespace, pod, modelName) \
             (max_over_time(DCGM_FI_PROF_GR_ENGINE_ACTIVE{job=\"dcgm-exporter\"}[3600s]))"
        );
        let coverage = settings.query(Signal::Power, Aggregation::Coverage, 3600, &Pods::All);
        assert!(
            coverage.ends_with(
                "(count_over_time((max_over_time(DCGM_FI_DEV_POWER_USAGE{job=\"dcgm-exporter\"}[30s]) >= 0)[3600s:30s]))"
            ),
            "{coverage}"
        );
        let last = QuerySettings::default().query(Signal::Tensor, Aggregation::LastSample, 3600, &Pods::All);
        assert!(
            last.ends_with("(timestamp(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{}))"),
            "{last}"
        );
    }

    #[test]
    fn pods_are_named_in_either_label() {
        let settings = QuerySettings {
            matchers: "job=\"dcgm-exporter\"".into(),
            sample_interval: 30,
        };
        let pods = Pods::select(["web.1", "train-0"].into(), 1000);
        let query = settings.query(Signal::Engine, Aggregation::LastSample, 3600, &pods[0]);
        let series = "DCGM_FI_PROF_GR_ENGINE_ACTIVE{job=\"dcgm-exporter\",";
        assert!(
            query.ends_with(&format!(
                "(timestamp({series}exported_pod=~\"train-0|web[.]1\"}}) or \
                 timestamp({series}exported_pod=\"\",pod=~\"train-0|web[.]1\"}}))"
            )),
            "{query}"
        );
        let query = QuerySettings::default().query(Signal::Engine, Aggregation::Peak, 60, &pods[0]);
        assert!(query.contains("ACTIVE{exported_pod=~"), "{query}");
    }

    #[test]
    fn no_query_is_longer_than_servers_accept() {
        let names: Vec<String> = (0..600)
            .map(|index| format!("a-rather-long-name-of-a-pod-{index:04}"))
            .collect();
        let names = || names.iter().map(String::as_str).collect::<BTreeSet<&str>>();
        assert_eq!(Pods::select(names(), 1000), [Pods::All], "more than half of them");
        let selected = Pods::select(names(), 10_000);
        assert!(selected.len() > 1);
        let mut named = 0;
        for pods in &selected {
            let query = QuerySettings::default().query(Signal::Tensor, Aggregation::Coverage, 3600, pods);
            assert!(query.len() < 16 * 1024, "{}", query.len());
            let Pods::Named(names) = pods else { panic!("{pods:?}") };
            named += names.split('|').count();
        }
        assert_eq!(named, 600);
        assert!(Pods::select(BTreeSet::new(), 10).is_empty());
    }

    #[test]
    fn a_name_is_never_an_expression() {
        assert_eq!(escape("train-0.a"), "train-0[.]a");
        assert_eq!(escape("a\"|.*"), "a..[.].");
    }

    #[test]
    fn of_two_series_of_one_gpu_the_most_active_and_the_least_complete_counts() {
        for (aggregation, combined) in [
            (Aggregation::Peak, "max by (UUID,"),
            (Aggregation::Coverage, "min by (UUID,"),
            (Aggregation::LastSample, "min by (UUID,"),
        ] {
            let query = QuerySettings::default().query(Signal::Engine, aggregation, 3600, &Pods::All);
            assert!(query.starts_with(combined), "{query}");
        }
    }

    #[test]
    fn only_peaks_are_compared_with_limits_of_a_product() {
        for aggregation in Aggregation::ALL {
            let query = QuerySettings::default().query(Signal::Power, aggregation, 3600, &Pods::All);
            assert_eq!(query.contains("modelName"), aggregation == Aggregation::Peak, "{query}");
        }
    }

    #[test]
    fn gaps_are_looked_for_in_every_signal() {
        for signal in Signal::ALL {
            let query = QuerySettings::default().query(signal, Aggregation::Coverage, 3600, &Pods::All);
            // Intervals of which all values are NaN or negative do not count.
            let intervals = format!("(max_over_time({}{{}}[60s]) >= 0)[3600s:60s]", signal.metric());
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
