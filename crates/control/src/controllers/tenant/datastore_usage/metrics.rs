//! What an API server says in its metrics about what it stores.

use crate::{apply::Applier, controllers::slots::Slot};
use berth_sleep::activity::{self, Count};
use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, TryStreamExt};
use std::{collections::HashMap, io, pin::pin, time::Duration};

/// Bytes of metrics that are read at most.
const MAX_BYTES: u64 = 256 << 20;
/// Resources whose counts are kept at most; a tenant decides how many there are. Those beyond count as not measured.
const MAX_RESOURCES: usize = 20_000;
/// Time an API server may take to return its metrics.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Number of objects, with the labels of the resource.
const OBJECTS: &str = "apiserver_resource_objects{";
/// Their size, with the same labels.
const SIZES: &str = "apiserver_resource_size_estimate_bytes{";
/// Events that it could not write into its audit log, with the label of the part that failed.
const AUDIT_ERRORS: &str = "apiserver_audit_error_total{";
/// Labels of CustomResourceDefinitions.
const DEFINITIONS: &str = "group=\"apiextensions.k8s.io\",resource=\"customresourcedefinitions\"}";

/// What an API server says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Metrics {
    /// Size of all objects whose size it knows.
    pub(super) bytes: u64,
    /// Number of all objects.
    pub(super) objects: u64,
    /// Number of objects whose size is in `bytes`.
    pub(super) sized_objects: u64,
    /// Number of CustomResourceDefinitions.
    pub(super) definitions: u64,
    /// When it started, in seconds since the epoch.
    pub(super) started_at: f64,
    /// How often the tenant was used; none if the API server does not count that.
    pub(super) count: Option<Count>,
    /// Events that it could not write into its audit log.
    pub(super) audit_errors: u64,
}

/// Reads the metrics of an API server. The error says why that is not possible.
pub(super) async fn fetch(api_server: &Applier, slot: &Slot) -> Result<Metrics, String> {
    let failed = |why: &dyn std::fmt::Display| format!("the metrics of its API server cannot be read: {why}");
    let request = http::Request::get("/metrics")
        .body(Vec::new())
        .map_err(|error| failed(&error))?;
    let answer = async {
        let stream = api_server.client().request_stream(request).await?;
        read(stream).await.map_err(|error| kube::Error::Service(error.into()))
    };
    match slot.lend(TIMEOUT, answer).await {
        Some(Ok(Some(metrics))) => Ok(metrics),
        Some(Ok(None)) => Err(failed(&"they count no objects")),
        Some(Err(error)) => Err(failed(&error)),
        None => Err(failed(&"it does not answer in time")),
    }
}

/// Reads metrics in the text format of Prometheus; none if the API server counts no objects. At most one line is kept, and the
/// numbers of [`MAX_RESOURCES`].
async fn read(metrics: impl AsyncBufRead) -> Result<Option<Metrics>, io::Error> {
    let (mut objects, mut sizes, mut started_at) = (Counts::default(), Counts::default(), 0.0);
    let mut requests: Option<f64> = None;
    let mut audit_errors = 0.0;
    let mut lines = pin!(metrics.take(MAX_BYTES).lines());
    while let Some(line) = lines.try_next().await? {
        let Some((name, value)) = line.rsplit_once(' ') else {
            continue;
        };
        let Some(value) = value.parse::<f64>().ok().filter(|value| value.is_finite()) else {
            continue;
        };
        if let Some(resource) = name.strip_prefix(SIZES) {
            sizes.add(resource, value);
        } else if let Some(resource) = name.strip_prefix(OBJECTS) {
            objects.add(resource, value);
        } else if name == "process_start_time_seconds" {
            started_at = value;
        } else if name.starts_with(AUDIT_ERRORS) {
            audit_errors += value;
        } else if activity::counts_requests(name) {
            let sum = requests.get_or_insert(0.0);
            if activity::counts_use(name) {
                *sum += value;
            }
        }
    }
    let sized = objects.by_resource.iter();
    let sized = sized.filter(|(resource, _)| sizes.by_resource.contains_key(*resource));
    let metrics = Metrics {
        bytes: whole(sizes.total),
        objects: whole(objects.total),
        sized_objects: whole(sized.map(|(_, count)| count).sum()),
        definitions: whole(objects.by_resource.get(DEFINITIONS).copied().unwrap_or_default()),
        started_at,
        count: requests.map(|requests| Count {
            started_at,
            requests: whole(requests),
        }),
        audit_errors: whole(audit_errors),
    };
    Ok(objects.is_known.then_some(metrics))
}

/// A number of each resource, and their sum.
#[derive(Default)]
struct Counts {
    by_resource: HashMap<String, f64>,
    total: f64,
    is_known: bool,
}

impl Counts {
    /// A negative value is an unknown one.
    fn add(&mut self, resource: &str, value: f64) {
        self.is_known = true;
        if value < 0.0 {
            return;
        }
        self.total += value;
        if self.by_resource.len() < MAX_RESOURCES {
            self.by_resource.insert(resource.to_owned(), value);
        }
    }
}

/// A number that is not negative as a whole one.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "far below the limits of both"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const METRICS: &str = r#"# HELP apiserver_resource_objects Number of stored objects
# TYPE apiserver_resource_objects gauge
apiserver_resource_objects{group="",resource="configmaps"} 12
apiserver_resource_objects{group="",resource="events"} 70
apiserver_resource_objects{group="",resource="secrets"} -1
apiserver_resource_objects{group="apiextensions.k8s.io",resource="customresourcedefinitions"} 3
apiserver_resource_size_estimate_bytes{group="",resource="configmaps"} 1.2582912e+07
apiserver_resource_size_estimate_bytes{group="",resource="events"} -1
apiserver_resource_size_estimate_bytes{group="",resource="secrets"} -1
apiserver_resource_size_estimate_bytes{group="apiextensions.k8s.io",resource="customresourcedefinitions"} 0
apiserver_storage_objects{resource="configmaps"} 12
apiserver_audit_error_total{plugin="buffered"} 2
apiserver_audit_error_total{plugin="truncate"} 1
apiserver_audit_event_total 1000
apiserver_flowcontrol_dispatched_requests_total{flow_schema="exempt",priority_level="exempt"} 900
apiserver_flowcontrol_dispatched_requests_total{flow_schema="global-default",priority_level="global-default"} 5
apiserver_flowcontrol_dispatched_requests_total{flow_schema="service-accounts",priority_level="workload-low"} 2
process_start_time_seconds 1.7e+09
"#;

    fn read_all(text: &str) -> Option<Metrics> {
        futures::executor::block_on(read(text.as_bytes())).unwrap()
    }

    #[test]
    fn sizes_and_counts_are_summed_up_and_unknown_ones_left_out() {
        let expected = Metrics {
            bytes: 12 << 20,
            objects: 85,
            // An API server does not know the size of Events, which it does not cache.
            sized_objects: 15,
            definitions: 3,
            started_at: 1.7e9,
            count: Some(Count {
                started_at: 1.7e9,
                requests: 7,
            }),
            audit_errors: 3,
        };
        assert_eq!(read_all(METRICS), Some(expected));
        assert_eq!(read_all("up 1\n"), None);
    }

    #[test]
    fn more_resources_than_are_kept_count_but_are_not_measured() {
        let mut counts = Counts::default();
        for number in 0..=MAX_RESOURCES {
            counts.add(&number.to_string(), 1.0);
        }
        assert_eq!((counts.by_resource.len(), whole(counts.total)), (MAX_RESOURCES, 20_001));
    }
}
