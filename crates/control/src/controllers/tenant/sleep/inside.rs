//! What only the tenant's API server knows before the tenant falls asleep: its pods and its CronJobs, and whether it was used just now.

use super::super::{datastore_usage, target::Tenant};
use crate::apply::Applier;
use berth_schedules::cron_jobs;
use berth_sleep::Inside;
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams, client::Body};
use serde::Deserialize;
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// Time for all that is read.
const LIMIT: Duration = Duration::from_secs(10);
/// Where all CronJobs are.
const CRON_JOBS: &str = "/apis/batch/v1/cronjobs";
/// CronJobs that are listed at a time: few, as the tenant decides on their size. One has up to 1.5 MiB in etcd, and as text several times that.
const PAGE: u32 = 10;
/// Bytes of such a page that are read. Control serves all tenants with little memory.
const MAX_PAGE: usize = 16 << 20;
/// Pods that have not ended.
const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Reads pods and CronJobs. The error says why that is not possible.
pub(super) async fn read(tenant: &Tenant, now: Timestamp) -> Result<Inside, String> {
    let api_server = connect(tenant)?;
    let client = api_server.client().clone();
    let reading = async {
        Ok::<_, String>(Inside {
            has_pods: has_pods(&client).await.map_err(|error| error.to_string())?,
            next_job: find_next_job(&client, now).await?,
        })
    };
    match tenant.slot.lend(LIMIT, reading).await {
        Some(read) => read.map_err(|error| format!("its pods and CronJobs cannot be listed: {error}")),
        None => Err(format!(
            "its API server does not list its pods and CronJobs within {} s",
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

/// What is read of a list of CronJobs.
#[derive(Deserialize)]
struct Jobs {
    #[serde(default)]
    metadata: JobsMetadata,
    items: Vec<Job>,
}

#[derive(Default, Deserialize)]
struct JobsMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

/// What is read of a CronJob.
#[derive(Deserialize)]
struct Job {
    metadata: JobMetadata,
    spec: JobSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobMetadata {
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
    deletion_timestamp: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JobSpec {
    schedule: String,
    time_zone: Option<String>,
    suspend: Option<bool>,
}

/// When the next CronJob is due, or why that is not known. The outer error says why they cannot be listed.
async fn find_next_job(client: &Client, now: Timestamp) -> Result<Result<Option<Timestamp>, String>, String> {
    let mut token = String::new();
    let mut next: Option<Timestamp> = None;
    loop {
        let page = list_jobs(client, &token).await?;
        for job in &page.items {
            match next_run(job, now) {
                Ok(run) => next = next.into_iter().chain(run).min(),
                Err(why) => return Ok(Err(why)),
            }
        }
        match page.metadata.next.filter(|token| !token.is_empty()) {
            Some(following) => token = following,
            None => return Ok(Ok(next)),
        }
    }
}

/// A page of CronJobs, after the one that gave the token. It is not read beyond [`MAX_PAGE`].
async fn list_jobs(client: &Client, token: &str) -> Result<Jobs, String> {
    let mut path = format!("{CRON_JOBS}?limit={PAGE}");
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
    let body = Limited::new(answer.into_body(), MAX_PAGE).collect().await;
    let body = body.map_err(|error| format!("{PAGE} of its CronJobs, at most {} MiB: {error}", MAX_PAGE >> 20))?;
    serde_json::from_slice(&body.to_bytes()).map_err(|error| error.to_string())
}

/// When a CronJob is due next; none if it never is.
fn next_run(job: &Job, now: Timestamp) -> Result<Option<Timestamp>, String> {
    let Job { metadata, spec } = job;
    if spec.suspend == Some(true) || metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let next = cron_jobs::next_run(&spec.schedule, spec.time_zone.as_deref(), now);
    next.map_err(|why| {
        let JobMetadata { namespace, name, .. } = metadata;
        format!("CronJob {namespace}/{name}: {why}, or suspend it")
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
        let job: Job = serde_json::from_value(job).unwrap();
        let now = "2026-05-05T12:00:00Z".parse().unwrap();
        next_run(&job, now).map(|next| next.map(|next| next.to_string()))
    }

    /// A client whose API server answers with this.
    fn client(answer: Vec<u8>) -> Client {
        let service = tower::service_fn(move |_: http::Request<Body>| {
            let answer = answer.clone();
            async move { Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(answer))) }
        });
        Client::new(service, "default")
    }

    #[tokio::test]
    async fn large_jobs_are_not_read() {
        let now: Timestamp = "2026-05-05T12:00:00Z".parse().unwrap();
        let page = |padding: usize| {
            let job = json!({"metadata": {"name": "a"}, "spec": {"schedule": "0 8 * * *", "x": "x".repeat(padding)}});
            json!({"metadata": {}, "items": [job]}).to_string().into_bytes()
        };
        let next = find_next_job(&client(page(1000)), now).await.unwrap().unwrap();
        assert_eq!(
            next.map(|next| next.to_string()).as_deref(),
            Some("2026-05-06T08:00:00Z")
        );
        let error = find_next_job(&client(page(MAX_PAGE)), now).await.unwrap_err();
        assert!(error.contains("at most 16 MiB"), "{error}");
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
}
