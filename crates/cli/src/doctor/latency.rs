//! How long the API server waits for etcd, from its metrics. Pure.

use std::collections::BTreeMap;

/// The histogram of requests to etcd, in seconds.
const METRIC: &str = "etcd_request_duration_seconds_bucket{";

/// The upper bound in seconds of the bucket in which this quantile (0 to 1) of all requests to etcd since the start of the API
/// server lies; infinite if it is in the last bucket. None if there were no requests.
pub(super) fn etcd_quantile(metrics: &str, quantile: f64) -> Option<f64> {
    // Buckets by their bounds in text, which are the same in every series.
    let mut buckets: BTreeMap<&str, f64> = BTreeMap::new();
    for line in metrics.lines().filter(|line| line.starts_with(METRIC)) {
        let Some((labels, value)) = line.rsplit_once('}') else {
            continue;
        };
        let bound = labels.split_once("le=\"").and_then(|(_, rest)| rest.split_once('"'));
        if let (Some((bound, _)), Some(Ok(value))) = (bound, value.split_whitespace().next().map(str::parse::<f64>)) {
            *buckets.entry(bound).or_default() += value;
        }
    }
    let parse = |bound: &str| {
        if bound == "+Inf" {
            Some(f64::INFINITY)
        } else {
            bound.parse().ok()
        }
    };
    let mut buckets: Vec<(f64, f64)> = buckets
        .into_iter()
        .filter_map(|(bound, value)| Some((parse(bound)?, value)))
        .collect();
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    let total = buckets.last()?.1;
    if total <= 0.0 {
        return None;
    }
    let found = buckets.iter().find(|(_, value)| *value >= total * quantile);
    found.map(|(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_found_across_all_series() {
        let metrics = "\
# TYPE etcd_request_duration_seconds histogram
etcd_request_duration_seconds_bucket{operation=\"get\",type=\"pods\",le=\"0.005\"} 90
etcd_request_duration_seconds_bucket{operation=\"get\",type=\"pods\",le=\"0.25\"} 100
etcd_request_duration_seconds_bucket{operation=\"get\",type=\"pods\",le=\"+Inf\"} 100
etcd_request_duration_seconds_bucket{operation=\"list\",type=\"pods\",le=\"0.005\"} 90
etcd_request_duration_seconds_bucket{operation=\"list\",type=\"pods\",le=\"0.25\"} 95
etcd_request_duration_seconds_bucket{operation=\"list\",type=\"pods\",le=\"+Inf\"} 100
etcd_request_duration_seconds_sum{operation=\"list\"} 3
other_bucket{le=\"9\"} 1";
        assert_eq!(etcd_quantile(metrics, 0.5), Some(0.005));
        assert_eq!(etcd_quantile(metrics, 0.95), Some(0.25));
        assert_eq!(etcd_quantile(metrics, 0.99), Some(f64::INFINITY));
        assert_eq!(etcd_quantile("", 0.99), None);
    }
}
