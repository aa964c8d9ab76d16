//! What only the tenant's API server knows before the tenant falls asleep: its pods, Jobs and CronJobs, and whether it was used just now.

use super::super::{datastore_usage, target::Tenant};
use crate::apply::Applier;
use berth_schedules::cron_jobs;
use berth_sleep::Inside;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        batch::v1::{CronJob, Job},
        core::v1::Pod,
    },
    apimachinery::pkg::apis::meta::v1::{ListMeta, Time},
};
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// Time for all that is read.
const LIMIT: Duration = Duration::from_secs(10);
/// Objects that are listed at a time.
const PAGE: u32 = 500;
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
        let has_jobs = has_jobs(&client).await?;
        Ok::<_, kube::Error>(Inside {
            has_pods: has_pods(&client).await?,
            has_started_pods: has_started_pods(&client).await?,
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

/// Whether a pod has been started, has not ended as far as the tenant knows, and is not being deleted: such a one is not run again.
async fn has_started_pods(client: &Client) -> kube::Result<bool> {
    let pods: Api<Pod> = Api::all(client.clone());
    let mut params = ListParams::default().fields(PLACED).limit(PAGE);
    loop {
        let page = pods.list(&params).await?;
        if page.items.iter().any(is_started) {
            return Ok(true);
        }
        match next_page(&page.metadata) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(false),
        }
    }
}

/// Whether a pod that has not ended was started by a node. One that has a node and is held back has no time of its start.
fn is_started(pod: &Pod) -> bool {
    let start = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    start.is_some() && pod.metadata.deletion_timestamp.is_none()
}

/// Whether a Job has not ended and may create pods.
async fn has_jobs(client: &Client) -> kube::Result<bool> {
    let jobs: Api<Job> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = jobs.list(&params).await?;
        if page.items.iter().any(may_create_pods) {
            return Ok(true);
        }
        match next_page(&page.metadata) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(false),
        }
    }
}

fn may_create_pods(job: &Job) -> bool {
    let spec = job.spec.as_ref();
    let creates_none = spec.is_some_and(|spec| spec.suspend == Some(true) || spec.parallelism == Some(0));
    let mut conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let has_ended = conditions
        .any(|condition| ["Complete", "Failed"].contains(&condition.type_.as_str()) && condition.status == "True");
    !creates_none && !has_ended && job.metadata.deletion_timestamp.is_none()
}

fn next_page(metadata: &ListMeta) -> Option<String> {
    metadata.continue_.clone().filter(|token| !token.is_empty())
}

/// When the next CronJob is due, or why that is not known.
async fn find_next_job(client: &Client, now: Timestamp) -> kube::Result<Result<Option<Timestamp>, String>> {
    let jobs: Api<CronJob> = Api::all(client.clone());
    let mut params = ListParams::default().limit(PAGE);
    let mut next: Option<Timestamp> = None;
    loop {
        let page = jobs.list(&params).await?;
        for job in &page.items {
            match next_run(job, now) {
                Ok(run) => next = next.into_iter().chain(run).min(),
                Err(why) => return Ok(Err(why)),
            }
        }
        match next_page(&page.metadata) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(Ok(next)),
        }
    }
}

/// When a CronJob is due next; none if it never is. A time that has passed is that of a run whose Job does not exist yet.
fn next_run(job: &CronJob, now: Timestamp) -> Result<Option<Timestamp>, String> {
    let spec = &job.spec;
    if spec.suspend == Some(true) || job.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let time = |time: Option<&Time>| time.map(|time| time.0);
    // The controller records the time of a run once its Job exists.
    let last = time(
        job.status
            .as_ref()
            .and_then(|status| status.last_schedule_time.as_ref()),
    );
    let created = time(job.metadata.creation_timestamp.as_ref());
    let recent = now.checked_sub(JOB_WITHIN).unwrap_or(now);
    let after = [last, created]
        .into_iter()
        .flatten()
        .fold(recent, Timestamp::max)
        .min(now);
    let next = cron_jobs::next_run(&spec.schedule, spec.time_zone.as_deref(), after);
    next.map_err(|why| {
        let namespace = job.namespace().unwrap_or_default();
        format!("CronJob {namespace}/{}: {why}, or suspend it", job.name_any())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(spec: Value) -> Result<Option<String>, String> {
        let mut job = json!({"metadata": {"namespace": "team", "name": "report"}, "spec": {"jobTemplate": {}}});
        let fields = job["spec"].as_object_mut().unwrap();
        fields.extend(serde_json::from_value::<serde_json::Map<_, _>>(spec).unwrap());
        let job: CronJob = serde_json::from_value(job).unwrap();
        let now = "2026-05-05T12:00:00Z".parse().unwrap();
        next_run(&job, now).map(|next| next.map(|next| next.to_string()))
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
