//! Histograms of programs: what was added to one between two moments, and quantiles of that. Pure.

use berth_tests::scrape::Metrics;

/// A histogram.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Histogram {
    /// Upper bounds, the lowest first, each with how many values are not above it.
    buckets: Vec<(f64, f64)>,
    /// All values added up.
    sum: f64,
}

impl Histogram {
    /// All series of one name that have these labels, added up.
    pub(super) fn read(metrics: &Metrics, name: &str, labels: &[(&str, &str)]) -> Self {
        let mut names = vec!["le"];
        names.extend(labels.iter().map(|(label, _)| *label));
        let is_asked = |values: &[String]| {
            let mut pairs = values.iter().zip(labels);
            pairs.all(|(value, (_, wanted))| value.as_str() == *wanted)
        };
        let found = metrics.sum_by(&format!("{name}_bucket"), &names).into_iter();
        let mut buckets: Vec<(f64, f64)> = found
            .filter(|(values, _)| is_asked(&values[1..]))
            .filter_map(|(values, count)| Some((values[0].parse().ok()?, count)))
            .collect();
        buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut parts = vec![format!("{name}_sum")];
        parts.extend(labels.iter().map(|(label, value)| format!("{label}=\"{value}\"")));
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Self {
            buckets,
            sum: metrics.sum(&parts),
        }
    }

    /// How many values there are.
    pub(super) fn count(&self) -> f64 {
        self.buckets.last().map_or(0.0, |(_, count)| *count)
    }

    /// What was added since `before`.
    pub(super) fn since(&self, before: &Self) -> Self {
        // A program that was started again counts from zero.
        if self.count() < before.count() {
            return self.clone();
        }
        let earlier = |bound: f64| {
            let same = before.buckets.iter().find(|(other, _)| other.total_cmp(&bound).is_eq());
            same.map_or(0.0, |(_, count)| *count)
        };
        Self {
            buckets: self
                .buckets
                .iter()
                .map(|(bound, count)| (*bound, count - earlier(*bound)))
                .collect(),
            sum: self.sum - before.sum,
        }
    }

    /// The mean; none of nothing.
    pub(super) fn mean(&self) -> Option<f64> {
        (self.count() > 0.0).then(|| self.sum / self.count())
    }

    /// The value below which this part (0 to 1, without 0) of all values lies, as Prometheus estimates it: values are taken to be spread evenly over
    /// their bucket, and those above all bounds to be at the last bound. None of nothing.
    pub(super) fn quantile(&self, part: f64) -> Option<f64> {
        if self.count() <= 0.0 {
            return None;
        }
        let rank = part * self.count();
        let at = self.buckets.iter().position(|(_, count)| *count >= rank)?;
        let (upper, until) = self.buckets[at];
        let (lower, before) = at.checked_sub(1).map_or((0.0, 0.0), |below| self.buckets[below]);
        if upper.is_infinite() {
            return Some(lower);
        }
        Some(lower + (upper - lower) * (rank - before) / (until - before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A histogram of requests with the bounds 0.1, 0.2 and infinity, of which so many are not above each.
    fn text(verb: &str, counts: [u32; 3], sum: f64) -> String {
        let [few, more, all] = counts;
        format!(
            "took_bucket{{verb=\"{verb}\",le=\"0.2\"}} {more}\n\
             took_bucket{{verb=\"{verb}\",le=\"0.1\"}} {few}\n\
             took_bucket{{verb=\"{verb}\",le=\"+Inf\"}} {all}\n\
             took_sum{{verb=\"{verb}\"}} {sum}\n\
             took_count{{verb=\"{verb}\"}} {all}\n"
        )
    }

    fn read(text: &str, labels: &[(&str, &str)]) -> Histogram {
        Histogram::read(&Metrics::parse(text), "took", labels)
    }

    #[test]
    fn series_are_chosen_by_labels_and_added_up() {
        let both = text("POST", [1, 2, 3], 1.0) + &text("PUT", [10, 20, 30], 2.0);
        assert_eq!(
            read(&both, &[("verb", "POST")]),
            Histogram {
                buckets: vec![(0.1, 1.0), (0.2, 2.0), (f64::INFINITY, 3.0)],
                sum: 1.0
            }
        );
        assert_eq!((read(&both, &[]).count(), read(&both, &[]).sum), (33.0, 3.0));
    }

    #[test]
    fn quantiles_are_of_what_was_added() {
        let (before, after) = (text("POST", [100, 100, 100], 5.0), text("POST", [102, 104, 104], 5.5));
        let added = read(&after, &[]).since(&read(&before, &[]));
        assert_eq!((added.count(), added.mean()), (4.0, Some(0.125)));
        assert_eq!(added.quantile(0.25), Some(0.05));
        assert_eq!(added.quantile(0.5), Some(0.1));
        // Halfway through the second bucket.
        assert!((added.quantile(0.75).unwrap() - 0.15).abs() < 1e-9);
    }

    #[test]
    fn values_above_all_bounds_are_at_the_last_one() {
        assert_eq!(read(&text("POST", [0, 1, 4], 9.0), &[]).quantile(0.99), Some(0.2));
    }

    #[test]
    fn nothing_has_no_quantiles() {
        let same = text("POST", [1, 2, 3], 1.0);
        let nothing = read(&same, &[]).since(&read(&same, &[]));
        assert_eq!((nothing.mean(), nothing.quantile(0.5)), (None, None));
        assert_eq!(read("", &[]).quantile(0.5), None);
    }

    #[test]
    fn a_program_that_was_started_again_counts_from_zero() {
        let (before, after) = (text("POST", [9, 9, 9], 1.0), text("POST", [2, 2, 2], 0.1));
        assert_eq!(read(&after, &[]).since(&read(&before, &[])).mean(), Some(0.05));
    }
}
