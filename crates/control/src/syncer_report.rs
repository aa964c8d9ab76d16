//! What control knows of the syncer of a tenant: whether the class of the tenant is enforced on the host.
//!
//! Not every platform collects the metrics of syncers, so control says this in its own, for alerts. The conditions are not enough: a team can
//! make another step fail, and then they stay as they were. A syncer that has been taken over can say anything; it is said of its own tenant
//! only.

/// The names of the numbers in the metrics of a syncer.
const UNLISTED: &str = "berth_syncer_unlisted_kinds";
const FAILING: &str = "berth_syncer_failing_keys";
const HOST_SILENT: &str = "berth_syncer_host_silent_seconds";
const UNCOMPARED: &str = "berth_syncer_uncompared_objects ";

/// Seconds without an answer of the host's API server after which a syncer counts as one that the host does not answer. A server that is restarted needs less.
const LONGEST_SILENCE: i64 = 60;

/// What was read last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncerReport {
    /// Whether the syncer was ready in the last reconcile of the tenant.
    pub is_ready: bool,
    /// Kinds of which the tenant may have objects that its syncer does not know.
    pub unlisted_kinds: i64,
    /// Objects on the host that its syncer cannot bring up to date.
    pub failing_keys: i64,
    /// Seconds for which the host's API server has not answered its syncer.
    pub host_silent_seconds: i64,
}

impl SyncerReport {
    /// Reads the numbers in the metrics of the syncer.
    pub(crate) fn read(&mut self, metrics: &str) {
        self.unlisted_kinds = sum(metrics, UNLISTED);
        self.failing_keys = sum(metrics, FAILING);
        self.host_silent_seconds = sum(metrics, HOST_SILENT);
    }

    /// Whether the host's API server does not answer the syncer: it keeps nothing up to date there.
    pub(crate) fn is_host_silent(&self) -> bool {
        self.host_silent_seconds >= LONGEST_SILENCE
    }
}

/// Whether the metrics of a syncer say that it has compared everything on the host with the rules that it was started with. One that has not listed both
/// sides yet does not say it, nor does an older one. Kinds that it does not know count with what the host has of them.
pub(crate) fn has_compared_everything(metrics: &str) -> bool {
    let uncompared = metrics.lines().find_map(|line| line.strip_prefix(UNCOMPARED));
    uncompared.is_some_and(|left| left.trim() == "0")
}

/// The sum of all series of a gauge. What no gauge of a syncer can have counts nothing.
fn sum(metrics: &str, gauge: &str) -> i64 {
    let series = metrics.lines().filter_map(|line| line.strip_prefix(gauge));
    let series = series.filter(|rest| rest.starts_with([' ', '{']));
    let values = series.filter_map(|rest| rest.rsplit(' ').next()?.parse::<i64>().ok());
    values.filter(|value| *value > 0).fold(0, i64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_all_kinds() {
        let metrics = "# TYPE berth_syncer_unlisted_kinds gauge\nberth_syncer_unlisted_kinds 2\n\
                       berth_syncer_failing_keys{kind=\"Pod\"} 3\nberth_syncer_failing_keys{kind=\"Ingress\"} 4\n\
                       berth_syncer_failing_keys_of_others 7\n# EOF\n";
        let mut report = SyncerReport::default();
        report.read(metrics);
        assert_eq!((report.unlisted_kinds, report.failing_keys), (2, 7));
        assert!(!report.is_host_silent());
        for (seconds, is_silent) in [(0, false), (59, false), (60, true)] {
            report.read(&format!("berth_syncer_host_silent_seconds {seconds}\n"));
            assert_eq!(report.is_host_silent(), is_silent, "{seconds}");
        }
        report.read("");
        assert_eq!(report, SyncerReport::default(), "an older syncer does not say it");
    }

    #[test]
    fn everything_is_compared_once_the_syncer_says_so() {
        let metrics = |unlisted: u32, uncompared: &str| {
            format!(
                "# TYPE berth_syncer_uncompared_objects gauge\nberth_syncer_unlisted_kinds {unlisted}\n\
                 berth_syncer_uncompared_objects {uncompared}\n# EOF\n"
            )
        };
        assert!(has_compared_everything(&metrics(0, "0")));
        assert!(!has_compared_everything(&metrics(0, "3")));
        assert!(
            has_compared_everything(&metrics(1, "0")),
            "the host has nothing of the kind"
        );
        assert!(!has_compared_everything(&metrics(0, "-1")), "it lists");
        assert!(
            !has_compared_everything("berth_syncer_unlisted_kinds 0\n"),
            "an older syncer"
        );
    }

    #[test]
    fn a_syncer_that_was_taken_over_can_say_no_number_that_there_is_not() {
        let of = |values: &[&str]| {
            let lines: Vec<_> = values
                .iter()
                .map(|value| format!("{FAILING}{{kind=\"Pod\"}} {value}"))
                .collect();
            sum(&lines.join("\n"), FAILING)
        };
        assert_eq!(of(&["-1", "1.5", "x", "", "9223372036854775808", "5"]), 5);
        assert_eq!(of(&["9223372036854775807", "9223372036854775807"]), i64::MAX);
    }
}
