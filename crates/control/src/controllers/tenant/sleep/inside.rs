//! What only the tenant's API server knows before the tenant falls asleep: its pods, Jobs and CronJobs, and whether it was used just now.

use super::super::{datastore_usage, target::Tenant};
use crate::{apply::Applier, clock::Clock, tenant_lists::Pages};
use berth_runtime::locks::lock;
use berth_schedules::cron_jobs;
use berth_sleep::Inside;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::core::v1::Pod, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Api, Client, api::ListParams};
use serde::{Deserialize, de::DeserializeOwned};
use std::{sync::Arc, time::Duration};

/// Time for all that is read.
const LIMIT: Duration = Duration::from_secs(10);
/// Where all CronJobs are.
const CRON_JOBS: &str = "/apis/batch/v1/cronjobs";
/// Where all Jobs are.
const JOBS: &str = "/apis/batch/v1/jobs";
/// Where all pods are.
const PODS: &str = "/api/v1/pods";
/// Pods that have not ended.
const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";
/// Pods that have not ended and have a node.
const PLACED: &str = "status.phase!=Succeeded,status.phase!=Failed,spec.nodeName!=";
/// How long a run of a CronJob that is due may wait for its Job. The controller creates it within seconds, if it does at all: one whose
/// deadline has passed, or that must not run beside the one before, gets none.
const JOB_WITHIN: SignedDuration = SignedDuration::from_mins(2);

/// Reads CronJobs, Jobs and pods, in the order in which one creates the next. The error says why that is not possible.
pub(super) async fn read(tenant: &Tenant, now: Timestamp) -> Result<Inside, String> {
    let api_server = connect(tenant)?;
    let client = api_server.client().clone();
    let reading = async {
        let next_job = find_next_job(&client, now).await?;
        let has_jobs = any(Pages::new(&client, JOBS), may_create_pods).await?;
        Ok::<_, String>(Inside {
            has_pods: has_pods(&client).await.map_err(|error| error.to_string())?,
            has_started_pods: any(Pages::new(&client, PODS).fields(PLACED), is_started).await?,
            has_jobs,
            next_job,
        })
    };
    match tenant.slot.lend(LIMIT, reading).await {
        Some(read) => read.map_err(|error| format!("its pods, Jobs and CronJobs cannot be listed: {error}")),
        None => Err("its API server does not list its pods, Jobs and CronJobs in time".into()),
    }
}

/// Reads again how often the tenant was used. The error says why that is not possible.
pub(super) async fn count_use(tenant: &Tenant, clock: &Clock) -> Result<(), String> {
    let api_server = connect(tenant)?;
    let count = datastore_usage::count_use(&api_server, &tenant.slot).await?;
    let mut log = lock(&tenant.memory.activity);
    log.record(count, clock.now());
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

/// Whether one of the objects in a list is like that. It is read until one is found.
async fn any<Item: DeserializeOwned>(mut pages: Pages<'_>, is: fn(&Item) -> bool) -> Result<bool, String> {
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
    use crate::testing::{LATE, client_of};
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use std::convert::Infallible;

    fn run(spec: Value) -> Result<Option<String>, String> {
        let mut job = json!({"metadata": {"namespace": "team", "name": "report"}, "spec": {"jobTemplate": {}}});
        let fields = job["spec"].as_object_mut().unwrap();
        fields.extend(serde_json::from_value::<serde_json::Map<_, _>>(spec).unwrap());
        let job: CronJob = serde_json::from_value(job).unwrap();
        let now = "2026-05-05T12:00:00Z".parse().unwrap();
        next_run(&job, now).map(|next| next.map(|next| next.to_string()))
    }

    #[tokio::test]
    async fn times_that_no_type_holds_are_those_of_runs_so_far() {
        let list = json!({"items": [{
            "metadata": {"name": "a", "managedFields": [{"time": LATE}]}, "spec": {"schedule": "0 8 * * *"},
            "status": {"lastScheduleTime": LATE, "startTime": LATE},
        }]});
        let client = client_of(tower::service_fn(move |_: Request<Body>| {
            let answer = Response::new(Body::from(list.to_string().into_bytes()));
            async move { Ok::<_, Infallible>(answer) }
        }));
        let next = find_next_job(&client, "2026-05-05T12:00:00Z".parse().unwrap()).await;
        assert_eq!(next, Ok(Ok(Some("2026-05-06T08:00:00Z".parse().unwrap()))));
        assert_eq!(any(Pages::new(&client, PODS), is_started).await, Ok(true));
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
