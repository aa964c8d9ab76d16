//! The Jobs that recycle nodes, at the API server.

use crate::{
    apply::{is_status, optional},
    controllers::nodes::jobs::{self, NodeJobs, OnNode},
    error::{ReconcileError, api},
};
use berth_api::system;
use berth_node_lifecycle::{
    Assignment,
    transitions::{JobKind, JobState},
};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, PostParams},
};

fn job_api(client: &Client) -> Api<Job> {
    Api::namespaced(client.clone(), system::NAMESPACE)
}

/// The state of a Job of a recycling.
pub(super) async fn get_job_state(
    client: &Client,
    kind: JobKind,
    node: &str,
    assignment: &Assignment,
) -> Result<JobState, ReconcileError> {
    if assignment.recycling_id.is_empty() {
        return Ok(JobState::Missing);
    }
    let name = jobs::name(kind, node, assignment);
    let job = job_api(client).get_opt(&name).await.map_err(api("get a node's Job"))?;
    match jobs::state(job.as_ref()) {
        JobState::Failed(why) => Ok(JobState::Failed(failure_message(client, &name).await.unwrap_or(why))),
        state => Ok(state),
    }
}

/// The termination message of the container that failed.
async fn failure_message(client: &Client, job: &str) -> Option<String> {
    const MAX_LENGTH: usize = 600;
    let pods: Api<Pod> = Api::namespaced(client.clone(), system::NAMESPACE);
    let params = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let pods = pods.list(&params).await.ok()?.items;
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()).flat_map(|status| {
        let first = status.init_container_statuses.iter().flatten();
        first.chain(status.container_statuses.iter().flatten())
    });
    statuses
        .filter_map(|status| Some((&status.name, status.state.as_ref()?.terminated.as_ref()?)))
        .find(|(_, ended)| ended.exit_code != 0)
        .map(|(name, ended)| {
            let message = ended.message.as_deref().unwrap_or_default().trim();
            let message = if message.is_empty() {
                format!("exit code {}", ended.exit_code)
            } else {
                message.chars().take(MAX_LENGTH).collect()
            };
            format!("{name}: {message} (Job {job})")
        })
}

/// Starts a Job, unless it exists.
pub(super) async fn start_job(
    client: &Client,
    kind: JobKind,
    settings: &NodeJobs,
    on: &OnNode<'_>,
) -> Result<(), ReconcileError> {
    let job = jobs::build(kind, settings, on);
    match job_api(client).create(&PostParams::default(), &job).await {
        Ok(_) => Ok(()),
        Err(error) if is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("start a node's Job")(error)),
    }
}

/// Deletes the Jobs of a recycling that is over.
pub(super) async fn delete_jobs(client: &Client, node: &str, assignment: &Assignment) -> Result<(), ReconcileError> {
    if assignment.recycling_id.is_empty() {
        return Ok(());
    }
    for kind in [JobKind::Scrub, JobKind::Validate] {
        let name = jobs::name(kind, node, assignment);
        let deleted = job_api(client).delete(&name, &DeleteParams::background()).await;
        optional(deleted).map_err(api("delete a node's Job"))?;
    }
    Ok(())
}
