//! What only the tenant's API server knows before the tenant falls asleep: its pods, Jobs and CronJobs, and whether it was used just now.

use super::super::{datastore_usage, target::Tenant};
use crate::apply::Applier;
use berth_runtime::answers::is_too_long;
use berth_schedules::cron_jobs;
use berth_sleep::Inside;
use http_body_util::{BodyExt, Limited};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Api, Client, api::ListParams, client::Body};
use serde::{Deserialize, de::DeserializeOwned};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// Time for all that is read.
const LIMIT: Duration = Duration::from_secs(10);
/// Where all CronJobs are.
const CRON_JOBS: &str = "/apis/batch/v1/cronjobs?";
/// Where all Jobs are.
const JOBS: &str = "/apis/batch/v1/jobs?";
/// Pods that have not ended.
const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Where all pods are that have not ended and have a node. The selector is encoded.
const PLACED_PODS: &str =
    "/api/v1/pods?fieldSelector=status.phase%21%3DSucceeded%2Cstatus.phase%21%3DFailed%2Cspec.nodeName%21%3D&";
/// Objects that are listed at a time: many, so that thousands are read in [`LIMIT`]; fewer from there on where they are more than
/// [`MAX_PAGE`]. The tenant decides on their size: one has up to 1.5 MiB in etcd, and as text several times that.
const PAGES: [u32; 3] = [500, 50, 5];
/// Bytes of such a page that are read. Control serves all tenants with little memory.
const MAX_PAGE: usize = 16 << 20;
/// How long a run of a CronJob that is due may wait for its Job. The controller creates it within seconds, if it does at all: one whose
/// deadline has passed, or that must not run beside the one before, gets none.
const JOB_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// Reads CronJobs, Jobs and pods, in the order in which one creates the next. The error says why that is not possible.
pub(super) async fn read(tenant: &Tenant, now: Timestamp) -> Result<Inside, String> {
    let api_server = connect(tenant)?;
    let client = api_server.client().clone();
    let reading = async {
        let next_job = find_next_job(&client, now).await?;
        let has_jobs = any(&client, JOBS, may_create_pods).await?;
        Ok::<_, String>(Inside {
            has_pods: has_pods(&client).await.map_err(|error| error.to_string())?,
            has_started_pods: any(&client, PLACED_PODS, is_started).await?,
            has_jobs,
            next_job,
        })
    };
    match tenant.slot.lend(LIMIT, reading).await {
        Some(read) => read.map_err(|error| format!("its pods, Jobs and CronJobs cannot be listed: {error}")),
        None => Err(format!(
            "its API server does not list its pods, Jobs and CronJobs within {} s",
            LIMIT.as_secs()
        )),
    }
}

/// Reads again how often the tenant was used. The error says why that is not possible.
pub(super) async fn count_use(tenant: &Tenant) -> Result<(), String> {
    let api_server = connect(tenant)?;
    let count = datastore_usage::count_use(&api_server, &tenant.slot).await?;
    let mut log = tenant.memory.activity.lock().unwrap_or_else(PoisonError::into_inner);
    log.record(count, Timestamp::now());
    Ok(())
}

fn connect(tenant: &Tenant) -> Result<Arc<Applier>, String> {
    let api_server = tenant.memory.connection.applier();
    api_server.ok_or_else(|| "its API server does not answer".to_owned())
}

/// Whether a pod has not ended, on the host or not.
async fn has_pods(client: &Client) -> kube::Result<bool> {
    let pods: Api<Pod> = Api::all(client.clone());
    let first = ListParams::default().fields(UNFINISHED).limit(1);
    Ok(!pods.list_metadata(&first).await?.items.is_empty())
}

/// What is read of a list.
#[derive(Deserialize)]
struct Page<Item> {
    #[serde(default)]
    metadata: PageMetadata,
    items: Vec<Item>,
}

#[derive(Default, Deserialize)]
struct PageMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// What is read of an object's metadata.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    creation_timestamp: Option<Time>,
    deletion_timestamp: Option<Time>,
}

/// What is read of a CronJob.
#[derive(Deserialize)]
struct CronJob {
    metadata: Metadata,
    spec: CronJobSpec,
    #[serde(default)]
    status: CronJobStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CronJobSpec {
    schedule: String,
    time_zone: Option<String>,
    suspend: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct CronJobStatus {
    last_schedule_time: Option<Time>,
}

/// What is read of a Job.
#[derive(Deserialize)]
struct Job {
    metadata: Metadata,
    spec: JobSpec,
    #[serde(default)]
    status: JobStatus,
}

#[derive(Deserialize)]
struct JobSpec {
    suspend: Option<bool>,
    parallelism: Option<i32>,
}

#[derive(Default, Deserialize)]
struct JobStatus {
    #[serde(default)]
    conditions: Vec<JobCondition>,
}

#[derive(Deserialize)]
struct JobCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
}

/// What is read of a pod with a node.
#[derive(Deserialize)]
struct PlacedPod {
    metadata: Metadata,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    start_time: Option<Time>,
}

/// Reads a list page by page.
struct Pages<'a> {
    client: &'a Client,
    /// Path and query of the list, to which more is added.
    from: &'a str,
    /// Where the next page begins; none after the last one.
    token: Option<String>,
    /// Objects of the next page, and of the smaller ones that are left to try.
    sizes: &'static [u32],
}

impl<'a> Pages<'a> {
    fn new(client: &'a Client, from: &'a str) -> Self {
        let token = Some(String::new());
        Self {
            client,
            from,
            token,
            sizes: &PAGES,
        }
    }

    /// The objects of the next page; none after the last one.
    async fn next<Item: DeserializeOwned>(&mut self) -> Result<Option<Vec<Item>>, String> {
        let Some(token) = &self.token else { return Ok(None) };
        let page: Page<Item> = loop {
            let &[size, ref smaller @ ..] = self.sizes else {
                let smallest = PAGES[PAGES.len() - 1];
                return Err(format!("{smallest} objects are more than {} MiB", MAX_PAGE >> 20));
            };
            match get_page(self.client, self.from, token, size).await? {
                Some(page) => break page,
                None => self.sizes = smaller,
            }
        };
        self.token = page.metadata.next.filter(|token| !token.is_empty());
        Ok(Some(page.items))
    }
}

/// A page of so many objects, after the one that gave the token; none if it is longer than [`MAX_PAGE`].
async fn get_page<Item: DeserializeOwned>(
    client: &Client,
    from: &str,
    token: &str,
    size: u32,
) -> Result<Option<Page<Item>>, String> {
    let mut path = format!("{from}limit={size}");
    if !token.is_empty() {
        // API servers write it in the alphabet of base64 for URLs.
        path.push_str("&continue=");
        path.push_str(token);
    }
    let request = http::Request::get(path).body(Body::empty());
    let request = request.map_err(|error| error.to_string())?;
    let answer = client.send(request).await.map_err(|error| error.to_string())?;
    if !answer.status().is_success() {
        return Err(format!("the answer is {}", answer.status()));
    }
    match Limited::new(answer.into_body(), MAX_PAGE).collect().await {
        Ok(body) => serde_json::from_slice(&body.to_bytes())
            .map(Some)
            .map_err(|error| error.to_string()),
        Err(error) if is_too_long(error.as_ref()) => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether one of the objects in a list is like that. It is read until one is found.
async fn any<Item: DeserializeOwned>(client: &Client, from: &str, is: fn(&Item) -> bool) -> Result<bool, String> {
    let mut pages = Pages::new(client, from);
    while let Some(items) = pages.next().await? {
        if items.iter().any(is) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether a pod that has not ended was started by a node, and is not being deleted: such a one is not run again. One that has a node and is
/// held back has no time of its start.
fn is_started(pod: &PlacedPod) -> bool {
    pod.status.start_time.is_some() && pod.metadata.deletion_timestamp.is_none()
}

/// Whether a Job has not ended and may create pods.
fn may_create_pods(job: &Job) -> bool {
    let creates_none = job.spec.suspend == Some(true) || job.spec.parallelism == Some(0);
    let has_ended = job
        .status
        .conditions
        .iter()
        .any(|condition| ["Complete", "Failed"].contains(&condition.type_.as_str()) && condition.status == "True");
    !creates_none && !has_ended && job.metadata.deletion_timestamp.is_none()
}

/// When the next CronJob is due, or why that is not known. The outer error says why they cannot be listed.
async fn find_next_job(client: &Client, now: Timestamp) -> Result<Result<Option<Timestamp>, String>, String> {
    let mut pages = Pages::new(client, CRON_JOBS);
    let mut next: Option<Timestamp> = None;
    while let Some(jobs) = pages.next().await? {
        for job in &jobs {
            match next_run(job, now) {
                Ok(run) => next = next.into_iter().chain(run).min(),
                Err(why) => return Ok(Err(why)),
            }
        }
    }
    Ok(Ok(next))
}

/// When a CronJob is due next; none if it never is. A time that has passed is that of a run whose Job does not exist yet.
fn next_run(job: &CronJob, now: Timestamp) -> Result<Option<Timestamp>, String> {
    let CronJob { metadata, spec, status } = job;
    if spec.suspend == Some(true) || metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    // The controller records the time of a run once its Job exists.
    let known = [&status.last_schedule_time, &metadata.creation_timestamp];
    let recent = now.checked_sub(JOB_WITHIN).unwrap_or(now);
    let after = known
        .into_iter()
        .flatten()
        .map(|time| time.0)
        .fold(recent, Timestamp::max)
        .min(now);
    let next = cron_jobs::next_run(&spec.schedule, spec.time_zone.as_deref(), after);
    next.map_err(|why| {
        let Metadata { namespace, name, .. } = metadata;
        format!("CronJob {namespace}/{name}: {why}, or suspend it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::LATE;
    use berth_runtime::{answers::LimitAnswers, corrected::CorrectAnswers};
    use http::{Request, Response};
    use kube::client::ClientBuilder;
    use serde_json::{Value, json};
    use std::{
        convert::Infallible,
        sync::atomic::{AtomicUsize, Ordering},
    };

    fn run(spec: Value) -> Result<Option<String>, String> {
        let mut job = json!({"metadata": {"namespace": "team", "name": "report"}, "spec": {"jobTemplate": {}}});
        let fields = job["spec"].as_object_mut().unwrap();
        fields.extend(serde_json::from_value::<serde_json::Map<_, _>>(spec).unwrap());
        let job: CronJob = serde_json::from_value(job).unwrap();
        let now = "2026-05-05T12:00:00Z".parse().unwrap();
        next_run(&job, now).map(|next| next.map(|next| next.to_string()))
    }

    /// A client as that of a tenant, whose API server answers like this.
    fn client_of(answer: impl Fn(&Request<Body>) -> Value + Send + 'static) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = Response::new(Body::from(answer(&request).to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer) }
        });
        let builder = ClientBuilder::new(service, "default").with_layer(&LimitAnswers);
        builder.with_layer(&CorrectAnswers::All).build()
    }

    /// A client whose API server has CronJobs of these sizes, and gives the rest of a list for the number of those before it. It counts the requests.
    fn client(sizes: Vec<usize>) -> (Client, Arc<AtomicUsize>) {
        let requests = Arc::new(AtomicUsize::default());
        let counted = Arc::clone(&requests);
        let client = client_of(move |request| {
            counted.fetch_add(1, Ordering::Relaxed);
            let number = |name: &str| {
                let query = request.uri().query().unwrap_or_default();
                let value = query.split('&').find_map(|pair| pair.strip_prefix(name));
                value.map_or(0, |value| value.parse().unwrap())
            };
            let (start, limit): (usize, usize) = (number("continue="), number("limit="));
            let end = sizes.len().min(start + limit);
            let jobs = sizes[start..end].iter().map(
                |size| json!({"metadata": {"name": "a"}, "spec": {"schedule": "0 8 * * *", "x": "x".repeat(*size)}}),
            );
            let token = if end < sizes.len() {
                end.to_string()
            } else {
                String::new()
            };
            json!({"metadata": {"continue": token}, "items": jobs.collect::<Vec<_>>()})
        });
        (client, requests)
    }

    #[tokio::test]
    async fn many_jobs_are_read_in_few_requests_and_large_ones_in_small_pages() {
        const MIB: usize = 1 << 20;
        let now: Timestamp = "2026-05-05T12:00:00Z".parse().unwrap();
        for (sizes, requests) in [
            (vec![], 1),
            (vec![1000; 3000], 6),
            // 500 and 50 are too many; then five at a time.
            (vec![MIB; 60], 2 + 12),
            // Large ones after the first page: 50 are too many there.
            ([vec![10; 500], vec![3 * MIB; 6]].concat(), 1 + 2 + 2),
        ] {
            let count = sizes.len();
            let (client, counted) = client(sizes);
            let next = find_next_job(&client, now).await.unwrap().unwrap();
            let expected = (count > 0).then(|| "2026-05-06T08:00:00Z".parse().unwrap());
            assert_eq!((next, counted.load(Ordering::Relaxed)), (expected, requests), "{count}");
        }
        let (client, _) = client(vec![MAX_PAGE]);
        let error = find_next_job(&client, now).await.unwrap_err();
        assert_eq!(error, "5 objects are more than 16 MiB");
    }

    #[tokio::test]
    async fn times_that_no_type_holds_are_those_of_runs_so_far() {
        let client = client_of(|_| {
            json!({"items": [{
                "metadata": {"name": "a", "managedFields": [{"time": LATE}]}, "spec": {"schedule": "0 8 * * *"},
                "status": {"lastScheduleTime": LATE, "startTime": LATE},
            }]})
        });
        let next = find_next_job(&client, "2026-05-05T12:00:00Z".parse().unwrap()).await;
        assert_eq!(next, Ok(Ok(Some("2026-05-06T08:00:00Z".parse().unwrap()))));
        assert_eq!(any(&client, PLACED_PODS, is_started).await, Ok(true));
    }

    #[test]
    fn suspended_jobs_never_run_and_unreadable_ones_are_named() {
        let daily = json!({"schedule": "0 8 * * *", "timeZone": "Europe/Berlin"});
        assert_eq!(run(daily).unwrap().as_deref(), Some("2026-05-06T06:00:00Z"));
        let suspended = json!({"schedule": "@every 1h", "suspend": true});
        assert_eq!(run(suspended), Ok(None));
        let error = run(json!({"schedule": "@every 1h"})).unwrap_err();
        assert!(
            error.starts_with("CronJob team/report: ") && error.contains("suspend"),
            "{error}"
        );
    }

    #[test]
    fn a_run_is_due_until_its_job_exists() {
        let at = |now: &str, last: Value| {
            let job: CronJob = serde_json::from_value(json!({
                "metadata": {"namespace": "team", "name": "report", "creationTimestamp": "2026-05-05T11:59:00Z"},
                "spec": {"schedule": "0 * * * *", "timeZone": "UTC", "jobTemplate": {}}, "status": {"lastScheduleTime": last},
            }))
            .unwrap();
            next_run(&job, now.parse().unwrap()).unwrap().unwrap().to_string()
        };
        let (never, noon, one) = (json!(null), json!("2026-05-05T12:00:00Z"), "2026-05-05T13:00:00Z");
        assert_eq!(at("2026-05-05T12:00:01Z", never.clone()), "2026-05-05T12:00:00Z");
        assert_eq!(at("2026-05-05T12:00:01Z", noon), one);
        // The controller does not make up for it: its deadline has passed, for example.
        assert_eq!(at("2026-05-05T12:02:01Z", never), one);
        // Before the CronJob existed, nothing was due.
        let job: CronJob = serde_json::from_value(json!({
            "metadata": {"creationTimestamp": "2026-05-05T12:00:30Z"},
            "spec": {"schedule": "0 * * * *", "timeZone": "UTC", "jobTemplate": {}},
        }))
        .unwrap();
        let next = next_run(&job, "2026-05-05T12:01:00Z".parse().unwrap())
            .unwrap()
            .unwrap();
        assert_eq!(next.to_string(), one);
        // The clock of the tenant's controller is ahead.
        assert_eq!(
            at("2026-05-05T11:59:30Z", json!("2026-05-05T12:00:00Z")),
            "2026-05-05T12:00:00Z"
        );
    }

    #[test]
    fn pods_that_are_held_back_or_deleted_are_not_started() {
        let started = |metadata: Value, status: Value| {
            is_started(&serde_json::from_value(json!({"metadata": metadata, "status": status})).unwrap())
        };
        let running = json!({"phase": "Running", "startTime": "2026-05-05T12:00:00Z"});
        assert!(started(json!({}), running.clone()));
        assert!(!started(json!({"deletionTimestamp": "2026-05-05T12:00:00Z"}), running));
        assert!(!started(json!({}), json!({"phase": "Pending"})));
    }

    #[test]
    fn jobs_that_have_not_ended_create_pods_unless_they_are_suspended() {
        let creates = |spec: Value, status: Value| {
            let job = json!({"metadata": {}, "spec": spec, "status": status});
            may_create_pods(&serde_json::from_value(job).unwrap())
        };
        let ended = |kind: &str, status: &str| json!({"conditions": [{"type": kind, "status": status}]});
        let spec = json!({"template": {}});
        assert!(creates(spec.clone(), json!({})));
        assert!(creates(spec.clone(), json!({"succeeded": 1, "ready": 0})));
        assert!(creates(spec.clone(), ended("Failed", "False")));
        assert!(creates(spec.clone(), ended("FailureTarget", "True")), "its pods end");
        for kind in ["Complete", "Failed"] {
            assert!(!creates(spec.clone(), ended(kind, "True")), "{kind}");
        }
        assert!(!creates(json!({"template": {}, "suspend": true}), json!({})));
        assert!(!creates(json!({"template": {}, "parallelism": 0}), json!({})));
        let deleted = json!({"metadata": {"deletionTimestamp": "2026-05-05T12:00:00Z"}, "spec": spec});
        assert!(!may_create_pods(&serde_json::from_value(deleted).unwrap()));
    }
}
