//! What only the tenant's API server knows before the tenant falls asleep: its pods and its CronJobs, and whether it was used just now.

use super::super::{datastore_usage, target::Tenant};
use crate::apply::Applier;
use berth_schedules::cron_jobs;
use berth_sleep::Inside;
use jiff::Timestamp;
use k8s_openapi::api::{batch::v1::CronJob, core::v1::Pod};
use kube::{Api, Client, ResourceExt, api::ListParams};
use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

/// Time for all that is read.
const LIMIT: Duration = Duration::from_secs(10);
/// CronJobs that are listed at a time.
const PAGE: u32 = 500;
/// Pods that have not ended.
const UNFINISHED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// Reads pods and CronJobs. The error says why that is not possible.
pub(super) async fn read(tenant: &Tenant, now: Timestamp) -> Result<Inside, String> {
    let api_server = connect(tenant)?;
    let client = api_server.client().clone();
    let reading = async {
        Ok::<_, kube::Error>(Inside {
            has_pods: has_pods(&client).await?,
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
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params = params.continue_token(&token),
            None => return Ok(Ok(next)),
        }
    }
}

/// When a CronJob is due next; none if it never is.
fn next_run(job: &CronJob, now: Timestamp) -> Result<Option<Timestamp>, String> {
    let spec = &job.spec;
    if spec.suspend == Some(true) || job.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let next = cron_jobs::next_run(&spec.schedule, spec.time_zone.as_deref(), now);
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
}
