//! The Jobs that scrub and validate a node between two tenants.
//!
//! A Job's pod runs on the node itself, as root, with the node's processes and files. Steps are init containers, one after
//! the other: the first that fails ends the Job, and its message is the reason of the quarantine.

use berth_api::{HostNodePoolSpec, NodeProgram, RiskPolicy, ScrubStep, labels, names, system};
use berth_node_lifecycle::{
    Assignment,
    transitions::{JobKind, JobState},
};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use serde_json::{Value, json};

/// Where the node's root is mounted in the pods.
const HOST: &str = "/host";
/// Name of the container that checks a node, and of the step that it runs.
pub const CHECK: &str = "check";
/// Seconds that a finished Job is kept.
const KEPT: u32 = 24 * 3600;
/// How often a failed pod is tried again: a second failure is not accidental.
const RETRIES: u32 = 1;
/// Exit codes of a program that SIGKILL or SIGTERM has ended, as the kubelet ends a pod that it evicts.
const ENDED_BY_SIGNAL: [i32; 2] = [137, 143];

/// Settings of the Jobs on nodes, and of placeholders.
#[derive(Clone, Debug, Default)]
pub struct NodeJobs {
    /// Image of Berth's own scrub steps.
    pub image: String,
    /// Pull policy of that image; none: the default of Kubernetes.
    pub pull_policy: Option<String>,
    /// Secrets in Berth's namespace to pull it with.
    pub pull_secrets: Vec<String>,
    /// Image of placeholders.
    pub placeholder_image: String,
}

/// The node of a Job.
#[derive(Clone, Copy, Debug)]
pub struct OnNode<'a> {
    /// Its name.
    pub node: &'a str,
    /// Its assignment.
    pub assignment: &'a Assignment,
    /// Its pool.
    pub pool: &'a HostNodePoolSpec,
    /// UIDs of the platform's pods on the node.
    pub platform_pods: &'a [String],
    /// What classes say of images.
    pub images: ImageRules,
}

/// What the classes of the host say of images, as far as it matters for risks of nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageRules {
    /// A class has a list of images.
    pub some_are_listed: bool,
    /// A class lets tenants run every image, or a tenant runs without a class.
    pub all_are_allowed: bool,
}

impl ImageRules {
    /// The rules of these classes, by their lists; none: every image.
    pub fn of<'l>(lists: impl IntoIterator<Item = Option<&'l [String]>>) -> Self {
        let mut rules = Self::default();
        for list in lists {
            match list {
                Some(list) if !list.iter().any(|entry| entry == "*") => rules.some_are_listed = true,
                _ => rules.all_are_allowed = true,
            }
        }
        rules
    }
}

/// Name of a Job. It follows from the recycling, so that control finds it after a restart.
pub fn name(kind: JobKind, node: &str, assignment: &Assignment) -> String {
    names::host_name(
        kind.name(),
        &assignment.recycling_id,
        &format!("{}-{node}", kind.name()),
    )
}

/// Builds the Job.
pub fn build(kind: JobKind, settings: &NodeJobs, on: &OnNode<'_>) -> Job {
    let OnNode {
        node,
        assignment,
        pool,
        platform_pods,
        images,
    } = on;
    let image = pool.scrub.image.as_ref().unwrap_or(&settings.image);
    let env = json!([
        {"name": "BERTH_HOST", "value": HOST},
        {"name": "BERTH_NODE", "value": node},
        {"name": "BERTH_TENANT", "value": assignment.slug},
        {"name": "BERTH_RECYCLING", "value": assignment.recycling_id},
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
            let steps = berth.iter().map(|step| own(step.name(), &arguments(*step, on)));
            let steps = steps.chain(pool.scrub.custom.iter().map(custom)).collect();
            (steps, pool.timeouts.scrub())
        }
        JobKind::Validate => {
            let check = [
                vec![CHECK.to_owned()],
                mps_arguments(pool),
                driver_arguments(pool),
                risk_arguments(pool, *images),
            ];
            let check = own(CHECK, &check.concat());
            let steps = std::iter::once(check)
                .chain(pool.validate.custom.iter().map(custom))
                .collect();
            (steps, pool.timeouts.validate())
        }
    };
    let all = json!({
        labels::NODE_JOB: kind.name(), "app.kubernetes.io/name": "berth-scrub", "app.kubernetes.io/part-of": "berth",
    });
    let mut job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": name(kind, node, assignment), "namespace": system::NAMESPACE, "labels": all,
            "annotations": {labels::RECYCLING_ID: assignment.recycling_id, labels::NODE: node},
        },
        "spec": {
            "backoffLimit": RETRIES, "completions": 1, "parallelism": 1, "podReplacementPolicy": "Failed",
            "activeDeadlineSeconds": limit.max(1), "ttlSecondsAfterFinished": KEPT,
            "template": {
                "metadata": {"labels": all, "annotations": pool.scrub.pod_annotations},
                "spec": {
                    // Without the scheduler: the node is cordoned, and the pod must run on this node.
                    "nodeName": node,
                    "tolerations": [{"operator": "Exists"}],
                    "priorityClassName": "system-node-critical",
                    "restartPolicy": "Never",
                    "terminationGracePeriodSeconds": 5,
                    "serviceAccountName": system::SCRUB_SERVICE_ACCOUNT,
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    // Neither DNS nor the pod network is needed, and either may be broken.
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
    if kind == JobKind::Validate {
        // A second pod finds the same. It also finds the first pod's folder: its message would be about that, after a wait of minutes.
        job["spec"]["podFailurePolicy"] = json!({"rules": [
            {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": ENDED_BY_SIGNAL}},
        ]});
    }
    serde_json::from_value(job).unwrap_or_default()
}

/// Arguments of Berth's program for a scrub step.
fn arguments(step: ScrubStep, on: &OnNode<'_>) -> Vec<String> {
    let OnNode { assignment, pool, .. } = on;
    let mut all = vec![step.name().to_owned()];
    match step {
        ScrubStep::Disks => all.extend(pool.scrub.disks.clone()),
        ScrubStep::Images => {
            all.extend(pool.scrub.keep_images.iter().map(|prefix| format!("--keep={prefix}")));
            let paused = assignment.paused_images.iter();
            all.extend(paused.map(|image| format!("--keep-image={image}")));
        }
        ScrubStep::Mps => all.extend(mps_arguments(pool)),
        ScrubStep::Mig | ScrubStep::GpuReset => all.extend(driver_arguments(pool)),
        _ => {}
    }
    all
}

/// The argument that names the folder of MPS, if the pool does.
fn mps_arguments(pool: &HostNodePoolSpec) -> Vec<String> {
    let root = pool.mps_root().map(|root| format!("--mps-root={root}"));
    root.into_iter().collect()
}

/// The argument that names the folder of NVIDIA's driver, if the pool does.
fn driver_arguments(pool: &HostNodePoolSpec) -> Vec<String> {
    let root = pool.driver_root().map(|root| format!("--driver-root={root}"));
    root.into_iter().collect()
}

/// The arguments that say which risks of a node matter, and whether it goes to no tenant if it has one.
fn risk_arguments(pool: &HostNodePoolSpec, images: ImageRules) -> Vec<String> {
    let refuses = pool.validate.risk_policy == RiskPolicy::Quarantine;
    let flags = [
        ("--refuse-risks", refuses),
        ("--images-are-listed", images.some_are_listed),
        ("--all-images-are-allowed", images.all_are_allowed),
    ];
    let flags = { flags.into_iter() }
        .filter(|(_, is_set)| *is_set)
        .map(|(flag, _)| flag.to_owned());
    let accepted = { pool.validate.accepted_risks.iter() }.map(|risk| format!("--accept-risk={}", risk.name()));
    flags.chain(accepted).collect()
}

fn container(name: &str, image: &str, env: &Value) -> Value {
    json!({
        "name": name, "image": image, "env": env,
        "securityContext": {"privileged": true, "runAsUser": 0},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "host", "mountPath": HOST, "mountPropagation": "HostToContainer"}],
    })
}

/// The state of a Job, with the reason of a failure as far as the Job has it.
pub fn state(job: Option<&Job>) -> JobState {
    let Some(job) = job else { return JobState::Missing };
    if job.metadata.deletion_timestamp.is_some() {
        // Created again once it is gone.
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
