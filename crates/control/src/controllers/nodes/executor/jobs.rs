//! The Jobs that recycle nodes, at the API server.

use crate::{
    apply::{is_status, optional},
    controllers::nodes::jobs::{self, NodeJobs, OnNode},
    error::{ReconcileError, api},
};
use berth_api::{labels, system, text::one_line};
use berth_node_lifecycle::{
    Assignment,
    transitions::{JobKind, JobState},
};
use berth_runtime::watched::{Watched, for_each};
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
        JobState::Failed(why) => {
            let said = find_in_pods(client, &name, node, read_failure).await.ok().flatten();
            Ok(JobState::Failed(
                said.map_or(why, |said| format!("{said} (Job {name})")),
            ))
        }
        state => Ok(state),
    }
}

/// The termination message of the container that failed.
fn read_failure(pod: &Pod) -> Option<String> {
    const MAX_LENGTH: usize = 600;
    let status = pod.status.as_ref()?;
    let first = status.init_container_statuses.iter().flatten();
    let all = first.chain(status.container_statuses.iter().flatten());
    all.filter_map(|status| Some((&status.name, status.state.as_ref()?.terminated.as_ref()?)))
        .find(|(_, ended)| ended.exit_code != 0)
        .map(|(name, ended)| {
            let message = ended.message.as_deref().unwrap_or_default().trim();
            if message.is_empty() {
                format!("{name}: exit code {}", ended.exit_code)
            } else {
                let message: String = one_line(message).chars().take(MAX_LENGTH).collect();
                format!("{name}: {message}")
            }
        })
}

/// The first of what `read` finds in the pods of a Job on its node. With the credential of another node's kubelet, a mirror pod there can have the label of
/// the Job as well.
async fn find_in_pods<T>(
    client: &Client,
    job: &str,
    node: &str,
    mut read: impl FnMut(&Pod) -> Option<T> + Send,
) -> kube::Result<Option<T>>
where
    T: Send,
{
    let pods: Api<Watched<Pod>> = Api::namespaced(client.clone(), system::NAMESPACE);
    let params = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let mut found = None;
    let is_there = |pod: &Pod| {
        pod.spec
            .as_ref()
            .is_some_and(|spec| spec.node_name.as_deref() == Some(node))
    };
    for_each(&pods, params, |pod| {
        if found.is_none() {
            found = { pod.readable() }
                .filter(|pod| is_there(pod))
                .and_then(|pod| read(&pod));
        }
    })
    .await?;
    Ok(found)
}

/// What the validation of a node has reported of its risks: none if it has reported nothing, as an earlier version of the scrub program;
/// [`labels::NODE_RISKS_NONE`] if there are none.
pub(super) async fn get_reported_risks(
    client: &Client,
    node: &str,
    assignment: &Assignment,
) -> Result<Option<String>, ReconcileError> {
    let job = jobs::name(JobKind::Validate, node, assignment);
    find_in_pods(client, &job, node, read_report)
        .await
        .map_err(api("list the pods of a node's Job"))
}

/// What the pod that has validated a node has reported of its risks.
fn read_report(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?;
    // Of a Job that has tried twice, the first pod has checked the node as well.
    if status.phase.as_deref() != Some("Succeeded") {
        return None;
    }
    let mut checks = { status.init_container_statuses.iter() }
        .flatten()
        .filter(|container| container.name == jobs::CHECK)
        .filter_map(|container| container.state.as_ref()?.terminated.as_ref());
    read_risks(checks.next()?.message.as_deref()?)
}

/// The risks in the termination message of a check, separated by `; `. Root on a node writes what it likes: no more than some text is kept.
fn read_risks(message: &str) -> Option<String> {
    const MAX_LENGTH: usize = 1_000;
    if message.trim() == "no risk" {
        return Some(labels::NODE_RISKS_NONE.to_owned());
    }
    let risks: Vec<&str> = message.lines().filter_map(|line| line.strip_prefix("risk: ")).collect();
    let joined: String = one_line(&risks.join("; ")).chars().take(MAX_LENGTH).collect();
    (!joined.is_empty()).then_some(joined)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn risks_are_the_lines_that_say_so() {
        for (message, expected) in [
            ("no risk\n", Some(labels::NODE_RISKS_NONE)),
            ("risk: A: a\nrisk: B: b", Some("A: a; B: b")),
            ("something else\nrisk: A: \u{1b}[1ma", Some("A: \u{fffd}[1ma")),
            ("clean; no NVIDIA GPU on this node", None),
            ("risk: ", None),
            ("", None),
        ] {
            assert_eq!(read_risks(message).as_deref(), expected, "{message}");
        }
        let long = format!("risk: {}", "ä".repeat(5_000));
        assert_eq!(read_risks(&long).unwrap().chars().count(), 1_000);
    }
}
