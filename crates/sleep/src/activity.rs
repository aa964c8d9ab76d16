//! When a tenant was used: its API server counts requests by FlowSchema, and FlowSchemas tell users apart.
//!
//! Every request belongs to exactly one FlowSchema, which is found by the user and the verb. Those listed here are for the tenant's own
//! controllers and for Berth; all others are use. Open watches are no use: a FlowSchema of Berth catches the requests that open them,
//! because clients such as dashboards open each watch again every few minutes, for as long as they run. Reads of the platform's Argo CD are
//! no use either: it lists everything again every ten minutes. Nor are requests that nobody has authenticated: everybody who reaches the API
//! server can send them, and could keep the tenant awake.

use jiff::{SignedDuration, Timestamp};

/// FlowSchema that Berth puts into tenants, for its syncer and for the tenant's DNS.
pub const PLATFORM_SCHEMA: &str = "berth-platform";
/// FlowSchema that Berth puts into tenants, for watches of service accounts.
pub const ACCOUNT_WATCHES_SCHEMA: &str = "berth-watches-of-service-accounts";
/// FlowSchema that Berth puts into tenants, for watches of all other users.
pub const WATCHES_SCHEMA: &str = "berth-watches";
/// FlowSchema that Berth puts into tenants, for what the platform's Argo CD reads.
pub const ARGO_CD_READS_SCHEMA: &str = "berth-reads-of-argo-cd";

/// FlowSchema that Berth puts into tenants, for requests without credentials.
pub const ANONYMOUS_SCHEMA: &str = "berth-anonymous";

/// FlowSchemas whose requests are no use: Berth's own, and those of Kubernetes that are for its components alone. Kubernetes' are those of
/// `k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap/default.go`; `exempt` is for `system:masters`, which are control and the API server
/// itself, and `probes` is for probes of health.
const NO_USE: [&str; 15] = [
    PLATFORM_SCHEMA,
    ACCOUNT_WATCHES_SCHEMA,
    WATCHES_SCHEMA,
    ARGO_CD_READS_SCHEMA,
    ANONYMOUS_SCHEMA,
    "exempt",
    "probes",
    "system-leader-election",
    "endpoint-controller",
    "workload-leader-election",
    "system-node-high",
    "system-nodes",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-system-service-accounts",
];
/// The metric that counts them, up to its labels.
const REQUESTS: &str = "apiserver_flowcontrol_dispatched_requests_total{";
/// Time without a count after which it is not known whether the tenant is used.
const UNKNOWN_AFTER: SignedDuration = SignedDuration::from_secs(180);

/// The FlowSchema of a line of an API server's metrics, without its value; none if the line does not count requests by users.
fn schema_of(line: &str) -> Option<&str> {
    let labels = line.strip_prefix(REQUESTS)?;
    let (_, rest) = labels.split_once("flow_schema=\"")?;
    rest.split_once('"').map(|(schema, _)| schema)
}

/// Whether a line of an API server's metrics, without its value, counts requests that are use.
pub fn counts_use(line: &str) -> bool {
    schema_of(line).is_some_and(|schema| !NO_USE.contains(&schema))
}

/// Whether a line of an API server's metrics, without its value, shows that the API server counts requests by FlowSchema at all.
pub fn counts_requests(line: &str) -> bool {
    schema_of(line).is_some()
}

/// How often the tenant was used, as one API server has counted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// When the API server started, in seconds since the epoch: it tells API servers apart, each of which begins at zero.
    pub started_at: f64,
    /// Number of requests that are use.
    pub requests: u64,
}

/// What is known of the use of a tenant. It begins empty: what happened before is not known and counts as use.
#[derive(Clone, Copy, Debug, Default)]
pub struct ActivityLog {
    count: Option<Count>,
    /// When it was counted last.
    counted_at: Option<Timestamp>,
    last: Option<Timestamp>,
}

impl ActivityLog {
    /// Takes a count. Another count than before is use, at `now` at the latest; so is another API server, whose predecessor may have had
    /// requests that were never read.
    pub fn record(&mut self, count: Count, now: Timestamp) {
        if self.count != Some(count) {
            self.last = Some(now);
        }
        self.count = Some(count);
        self.counted_at = Some(now);
    }

    /// When the tenant was used last; none if that is not known at `now`.
    pub fn last(&self, now: Timestamp) -> Option<Timestamp> {
        let is_current = self
            .counted_at
            .is_some_and(|at| now.duration_since(at) <= UNKNOWN_AFTER);
        self.last.filter(|_| is_current)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn count(started_at: f64, requests: u64) -> Count {
        Count { started_at, requests }
    }

    #[test]
    fn requests_of_components_and_watches_are_no_use() {
        let line = |schema: &str| format!("{REQUESTS}flow_schema=\"{schema}\",priority_level=\"global-default\"}}");
        for schema in NO_USE {
            assert!(counts_requests(&line(schema)) && !counts_use(&line(schema)), "{schema}");
        }
        for schema in ["global-default", "service-accounts", "catch-all", "of-a-team", ""] {
            assert!(counts_use(&line(schema)), "{schema}");
        }
    }

    #[test]
    fn labels_may_be_in_any_order_and_other_metrics_are_ignored() {
        let turned =
            "apiserver_flowcontrol_dispatched_requests_total{priority_level=\"a\",flow_schema=\"global-default\"}";
        assert!(counts_use(turned));
        for other in [
            "apiserver_flowcontrol_dispatched_requests_total",
            "apiserver_flowcontrol_dispatched_requests_total{priority_level=\"a\"}",
            "apiserver_flowcontrol_dispatched_requests_total{flow_schema=\"cut",
            "apiserver_flowcontrol_rejected_requests_total{flow_schema=\"global-default\"}",
            "# HELP apiserver_flowcontrol_dispatched_requests_total Number",
        ] {
            assert!(!counts_use(other) && !counts_requests(other), "{other}");
        }
    }

    #[test]
    fn what_was_before_the_first_count_is_use() {
        let mut log = ActivityLog::default();
        assert_eq!(log.last(at(0)), None);
        log.record(count(1.0, 5), at(10));
        assert_eq!(log.last(at(10)), Some(at(10)));
    }

    #[test]
    fn the_same_count_is_no_use_and_another_is() {
        let mut log = ActivityLog::default();
        log.record(count(1.0, 5), at(10));
        log.record(count(1.0, 5), at(40));
        assert_eq!(log.last(at(41)), Some(at(10)));
        log.record(count(1.0, 6), at(70));
        assert_eq!(log.last(at(70)), Some(at(70)));
        // A counter that went back, and another API server with the same count.
        log.record(count(1.0, 0), at(100));
        assert_eq!(log.last(at(100)), Some(at(100)));
        log.record(count(2.0, 0), at(130));
        assert_eq!(log.last(at(130)), Some(at(130)));
    }

    #[test]
    fn use_is_unknown_without_a_count_for_a_while() {
        let mut log = ActivityLog::default();
        log.record(count(1.0, 5), at(10));
        assert_eq!(log.last(at(190)), Some(at(10)));
        assert_eq!(log.last(at(191)), None);
        // The counter shows what happened meanwhile.
        log.record(count(1.0, 5), at(300));
        assert_eq!(log.last(at(300)), Some(at(10)));
    }
}
