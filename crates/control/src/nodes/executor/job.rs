//! The Jobs on nodes, at the API server.

use crate::{
    apply::{is_status, optional},
    context::Context,
    error::{ReconcileError, api},
    nodes::{
        jobs::{self, OnNode},
        record::NodeRecord,
        step::{JobKind, JobState},
    },
};
use berth_api::system;
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
};

fn all(context: &Context) -> Api<Job> {
    Api::namespaced(context.client.clone(), system::NAMESPACE)
}

/// How far the Job of a hand-over is.
pub(super) async fn state(
    context: &Context,
    kind: JobKind,
    node: &str,
    record: &NodeRecord,
) -> Result<JobState, ReconcileError> {
    if record.handover.is_empty() {
        return Ok(JobState::Missing);
    }
    let name = jobs::name(kind, node, record);
    let job = all(context).get_opt(&name).await.map_err(api("look at a node's Job"))?;
    match jobs::state(job.as_ref()) {
        JobState::Failed(why) => Ok(JobState::Failed(words(context, &name).await.unwrap_or(why))),
        state => Ok(state),
    }
}

/// What the container said that failed.
async fn words(context: &Context, job: &str) -> Option<String> {
    const LONGEST: usize = 600;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), system::NAMESPACE);
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
            let said = if message.is_empty() {
                format!("exit code {}", ended.exit_code)
            } else {
                message.chars().take(LONGEST).collect()
            };
            format!("{name}: {said} (Job {job})")
        })
}

/// Starts a Job, unless it is there.
pub(super) async fn start(context: &Context, kind: JobKind, on: &OnNode<'_>) -> Result<(), ReconcileError> {
    let job = jobs::build(kind, &context.node_jobs, on);
    match all(context).create(&PostParams::default(), &job).await {
        Ok(_) => Ok(()),
        Err(error) if is_status(&error, 409) => Ok(()),
        Err(error) => Err(api("start a node's Job")(error)),
    }
}

/// Removes the Jobs of a hand-over that is over.
pub(super) async fn remove(context: &Context, node: &str, record: &NodeRecord) -> Result<(), ReconcileError> {
    if record.handover.is_empty() {
        return Ok(());
    }
    for kind in [JobKind::Scrub, JobKind::Validate] {
        let name = jobs::name(kind, node, record);
        let deleted = all(context).delete(&name, &DeleteParams::background()).await;
        optional(deleted).map_err(api("remove a node's Job"))?;
    }
    Ok(())
}
