//! The Jobs that clean and check a node between two tenants: pure.
//!
//! A Job's pod runs on the node itself, as root, with the node's processes and files. Steps are init containers, one after
//! the other: the first that fails ends the Job, and its words are the reason of the quarantine.

use super::{record::NodeRecord, step::JobKind};
use berth_api::{HostNodePoolSpec, NodeProgram, ScrubStep, labels, names, system};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use serde_json::{Value, json};

/// Where the node's files are in the pods.
const HOST: &str = "/host";
/// How long an ended Job stays for people to look at.
const KEPT: u32 = 24 * 3600;
/// How often a failed pod is tried again: whoever fails twice has a reason.
const RETRIES: u32 = 1;

/// How Jobs on nodes are run.
#[derive(Clone, Debug, Default)]
pub struct NodeJobs {
    /// Image of Berth's own steps.
    pub image: String,
    /// When it is pulled; nothing: as Kubernetes decides.
    pub pull_policy: Option<String>,
    /// Secrets in Berth's namespace to pull it with.
    pub pull_secrets: Vec<String>,
    /// Image of what shows to autoscalers that nodes are missing.
    pub placeholder_image: String,
}

/// What a Job must be told of its node.
#[derive(Clone, Copy, Debug)]
pub struct OnNode<'a> {
    /// The node's name.
    pub node: &'a str,
    /// Its record.
    pub record: &'a NodeRecord,
    /// Its pool.
    pub pool: &'a HostNodePoolSpec,
    /// UIDs of pods on the node that are no tenant's.
    pub platform_pods: &'a [String],
}

/// Name of a hand-over's Job: whoever looks for it after a restart finds it, and no other hand-over has the same.
pub fn name(kind: JobKind, node: &str, record: &NodeRecord) -> String {
    names::host_name(kind.name(), &record.handover, &format!("{}-{node}", kind.name()))
}

/// The Job.
pub fn build(kind: JobKind, settings: &NodeJobs, on: &OnNode<'_>) -> Job {
    let OnNode {
        node,
        record,
        pool,
        platform_pods,
    } = on;
    let image = pool.scrub.image.as_ref().unwrap_or(&settings.image);
    let env = json!([
        {"name": "BERTH_HOST", "value": HOST},
        {"name": "BERTH_NODE", "value": node},
        {"name": "BERTH_TENANT", "value": record.slug},
        {"name": "BERTH_PLATFORM_PODS", "value": platform_pods.join(",")},
        {"name": "BERTH_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]);
    let own = |name: &str, args: &[String]| {
        let mut container = container(name, image, &env);
        container["args"] = json!(args);
        if let Some(policy) = &settings.pull_policy {
            container["imagePullPolicy"] = policy.clone().into();
        }
        container
    };
    let custom = |program: &NodeProgram| {
        let mut container = container(&format!("custom-{}", program.name), &program.image, &env);
        if !program.command.is_empty() {
            container["command"] = json!(program.command);
        }
        if !program.args.is_empty() {
            container["args"] = json!(program.args);
        }
        container
    };
    let (steps, limit): (Vec<Value>, i64) = match kind {
        JobKind::Scrub => {
            let berth = pool.scrub_steps();
            let steps = berth.iter().map(|step| own(step.name(), &arguments(*step, pool)));
            let steps = steps.chain(pool.scrub.custom.iter().map(custom)).collect();
            (steps, pool.timeouts.scrub())
        }
        JobKind::Validate => {
            let check = own("check", &["check".to_owned()]);
            let steps = std::iter::once(check)
                .chain(pool.validate.custom.iter().map(custom))
                .collect();
            (steps, pool.timeouts.validate())
        }
    };
    let all = json!({
        labels::NODE_JOB: kind.name(), "app.kubernetes.io/name": "berth-scrub", "app.kubernetes.io/part-of": "berth",
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name(kind, node, record), "namespace": system::NAMESPACE, "labels": all,
            "annotations": {labels::RECYCLING_ID: record.handover, "berth.dev/node": node},
        },
        "spec": {
            "backoffLimit": RETRIES, "completions": 1, "parallelism": 1, "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": limit.max(1), "ttlSecondsAfterFinished": KEPT,
            "template": {
                "metadata": {"labels": all, "annotations": pool.scrub.pod_annotations},
                "spec": {
                    // Past the scheduler: the node is cordoned, and no other will do.
                    "nodeName": node,
                    "tolerations": [{"operator": "Exists"}],
                    "priorityClassName": "system-node-critical",
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 5,
                    "serviceAccountName": system::SCRUB_SERVICE_ACCOUNT,
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    // Neither DNS nor a network of pods is needed, and both may be what is broken.
                    "hostNetwork": true, "dnsPolicy": "Default",
                    "hostPID": true,
                    "imagePullSecrets": settings.pull_secrets.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
                    "initContainers": steps,
                    "containers": [own("done", &["done".to_owned()])],
                    "volumes": [{"name": "host", "hostPath": {"path": "/", "type": "Directory"}}],
                },
            },
        },
    });
    serde_json::from_value(job).unwrap_or_default()
}

/// What Berth's program is told for a step.
fn arguments(step: ScrubStep, pool: &HostNodePoolSpec) -> Vec<String> {
    let mut all = vec![step.name().to_owned()];
    match step {
        ScrubStep::Disks => all.extend(pool.scrub.disks.clone()),
        ScrubStep::Images => all.extend(pool.scrub.keep_images.iter().map(|prefix| format!("--keep={prefix}"))),
        _ => {}
    }
    all
}

fn container(name: &str, image: &str, env: &Value) -> Value {
    json!({
        "name": name, "image": image, "env": env,
        "securityContext": {"privileged": true, "runAsUser": 0},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "host", "mountPath": HOST, "mountPropagation": "HostToContainer"}],
    })
}

/// How far a Job is, and why it failed if the Job itself knows.
pub fn state(job: Option<&Job>) -> super::step::JobState {
    use super::step::JobState;
    let Some(job) = job else { return JobState::Missing };
    if job.metadata.deletion_timestamp.is_some() {
        // Made again once it is gone.
        return JobState::Running;
    }
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_deref());
    let is_true = |kind: &str| {
        conditions
            .unwrap_or_default()
            .iter()
            .find(|condition| condition.type_ == kind && condition.status == "True")
    };
    if is_true("Complete").is_some() {
        return JobState::Succeeded;
    }
    match is_true("Failed") {
        Some(failed) => {
            let reason = failed.reason.as_deref().unwrap_or("Failed");
            let message = failed.message.as_deref().unwrap_or_default();
            JobState::Failed(format!("{reason}: {message} (Job {})", job.name_any()))
        }
        None => JobState::Running,
    }
}

#[cfg(test)]
#[path = "jobs_tests.rs"]
mod tests;
