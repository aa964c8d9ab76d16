//! Whether a component runs, from the status of its Deployment and its pods: pure.

use crate::runtime::ComponentState;
use berth_api::text::printable_start;
use berth_node_lifecycle::pod_phase::has_ended;
use k8s_openapi::api::{
    apps::v1::{Deployment, DeploymentCondition, ReplicaSet},
    core::v1::{ContainerStatus, Pod},
};
use kube::ResourceExt;
use std::collections::BTreeSet;

/// Label of a pod: which version of its Deployment it comes from.
const TEMPLATE_HASH: &str = "pod-template-hash";
/// Annotation with the number of a version of a Deployment, by the host's controller manager.
const REVISION: &str = "deployment.kubernetes.io/revision";
/// Most bytes of what a program said last that are in a condition.
const MOST_LAST_WORDS: usize = 500;
/// Reasons of containers that are starting normally.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Whether at least one pod serves and no rollout is stuck; if not, why.
pub(super) fn state(deployment: &Deployment, pods: &[Pod]) -> ComponentState {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let available = is_available(deployment);
    let stuck =
        condition(deployment, "Progressing").is_some_and(|condition| condition.status.as_deref() == Some("False"));
    match (available, stuck) {
        (true, false) => ComponentState::Running,
        (true, true) => ComponentState::Down(format!(
            "the new {name} does not start; the previous one keeps running: {}",
            why(deployment, pods)
        )),
        (false, _) => ComponentState::Down(format!("{name} does not run yet: {}", why(deployment, pods))),
    }
}

/// Whether every pod is as the Deployment says, and no earlier one is left.
pub(super) fn is_rolled_out(deployment: &Deployment) -> bool {
    let wanted = deployment.spec.replicas;
    let status = deployment.status.as_ref();
    status.and_then(|status| status.observed_generation) == deployment.metadata.generation
        && status.is_some_and(|status| {
            status.updated_replicas == wanted && status.replicas == wanted && status.available_replicas == wanted
        })
}

/// Whether a Deployment has no replicas, and the host's controllers have stopped those that it had: they create no pod of it any more.
pub(super) fn is_stopped(deployment: &Deployment) -> bool {
    let status = deployment.status.as_ref();
    deployment.spec.replicas == Some(0)
        && status.and_then(|status| status.observed_generation) == deployment.metadata.generation
        && status.is_some_and(|status| status.replicas.unwrap_or_default() == 0)
}

/// Whether all pods that have not ended have the files in the Secret `files`, and come from one version of the Deployment: another
/// image or other flags need no other files.
pub(super) fn are_of_one_template(pods: &[Pod], files: &str) -> bool {
    let mut templates = BTreeSet::new();
    for pod in pods.iter().filter(|pod| !has_ended(pod)) {
        if !has_files(pod, files) {
            return false;
        }
        templates.insert(pod.labels().get(TEMPLATE_HASH));
    }
    templates.len() <= 1
}

/// Whether the files of a pod are those in the Secret `files`.
fn has_files(pod: &Pod, files: &str) -> bool {
    files_of(pod).any(|name| name == files)
}

/// Names of the Secrets with the files of a pod.
pub(super) fn files_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let sources = volumes
        .filter_map(|volume| volume.projected.as_ref())
        .flat_map(|projected| projected.sources.iter().flatten());
    let secrets = sources.filter_map(|source| source.secret.as_ref());
    secrets.map(|secret| secret.name.as_str())
}

/// Whether a pod of it is ready, as its kubelet says.
pub(super) fn is_available(deployment: &Deployment) -> bool {
    let status = deployment.status.as_ref();
    let available = status.and_then(|status| status.available_replicas);
    available.is_some_and(|available| available > 0)
}

/// ReplicaSets that have no pods and are to have none, except the newest one: the host may be about to use that.
pub(super) fn unused_replica_sets<'a>(sets: &'a [ReplicaSet], pods: &[Pod]) -> Vec<&'a ReplicaSet> {
    let used: BTreeSet<&String> = { pods.iter() }
        .filter_map(|pod| pod.labels().get(TEMPLATE_HASH))
        .collect();
    let newest = sets.iter().max_by_key(|set| revision(set)).map(ResourceExt::name_any);
    let is_unused = |set: &&ReplicaSet| {
        let replicas = set.status.as_ref().map_or(0, |status| status.replicas);
        let wanted = set.spec.replicas;
        let has_pods = set.labels().get(TEMPLATE_HASH).is_none_or(|hash| used.contains(hash));
        wanted == Some(0) && replicas == 0 && !has_pods && newest.as_ref() != Some(&set.name_any())
    };
    sets.iter().filter(is_unused).collect()
}

/// Which of the versions of its Deployment a ReplicaSet is: the newest has the greatest number.
fn revision(set: &ReplicaSet) -> u64 {
    let text = set.annotations().get(REVISION);
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn condition<'a>(deployment: &'a Deployment, kind: &str) -> Option<&'a DeploymentCondition> {
    let conditions = deployment.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_.as_deref() == Some(kind))
}

fn why(deployment: &Deployment, pods: &[Pod]) -> String {
    // The status of a pod is nearer to the cause than the status of the Deployment.
    let of_pods = pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
    if let Some(why) = { of_pods }.find_map(of_pod) {
        return why;
    }
    let failed =
        condition(deployment, "ReplicaFailure").filter(|condition| condition.status.as_deref() == Some("True"));
    if let Some(message) = failed.and_then(|condition| condition.message.clone()) {
        return message;
    }
    if pods.is_empty() {
        "no pod of it exists yet".into()
    } else {
        "its pods are starting".into()
    }
}

/// What keeps a pod from running.
fn of_pod(pod: &Pod) -> Option<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let status = pod.status.as_ref()?;
    let unscheduled = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    if let Some(condition) = unscheduled {
        let reason = condition.reason.as_deref().unwrap_or("Unschedulable");
        let message = condition.message.as_deref().unwrap_or_default();
        return Some(format!("pod {name}: {reason}: {message}"));
    }
    if status.phase.as_deref() == Some("Failed") {
        let reason = status.reason.as_deref().unwrap_or("Failed");
        let message = status.message.as_deref().unwrap_or_default();
        return Some(format!("pod {name}: {reason}: {message}"));
    }
    let why = status.container_statuses.iter().flatten().find_map(of_container)?;
    Some(format!("pod {name}: {why}"))
}

fn of_container(status: &ContainerStatus) -> Option<String> {
    let ended = status.last_state.as_ref().and_then(|state| state.terminated.as_ref());
    let ended = ended.map(|ended| {
        let reason = ended.reason.as_deref().unwrap_or("ended");
        let said = ended.message.as_deref().and_then(last_words);
        let said = said.map_or_else(String::new, |words| format!(": {words}"));
        format!("; it ended with exit code {} ({reason}){said}", ended.exit_code)
    });
    let state = status.state.as_ref()?;
    if let Some(waiting) = &state.waiting {
        let reason = waiting.reason.as_deref().unwrap_or_default();
        let message = waiting.message.as_deref().unwrap_or_default();
        return (!STARTING.contains(&reason)).then(|| {
            format!("{reason}: {message}{}", ended.unwrap_or_default())
                .trim_end_matches([':', ' '])
                .to_owned()
        });
    }
    (!status.ready && state.running.is_some()).then(|| format!("runs but is not ready{}", ended.unwrap_or_default()))
}

/// The error of which a program ended, from the end of its log: the last one in the format of Kubernetes' programs, with the lines that belong to it, or else
/// the last line. No more of it than a condition needs.
fn last_words(log: &str) -> Option<String> {
    let lines: Vec<&str> = log.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // "E0102 15:04:05.000000", or F for what is fatal (k8s.io/klog).
    let is_error = |line: &&str| {
        line.strip_prefix(['E', 'F'])
            .and_then(|rest| rest.get(..4))
            .is_some_and(|date| date.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let from = { lines.iter() }.rposition(is_error).or(lines.len().checked_sub(1))?;
    Some(printable_start(&lines[from..].join(" "), MOST_LAST_WORDS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(available: i32, progressing: &str) -> Deployment {
        serde_json::from_value(json!({
            "metadata": {"name": "kube-apiserver", "generation": 2},
            "spec": {"replicas": 1, "selector": {}, "template": {}},
            "status": {
                "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": available,
                "conditions": [{"type": "Progressing", "status": progressing}],
            },
        }))
        .unwrap()
    }

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "p"}, "status": status})).unwrap()
    }

    fn describe(available: i32, progressing: &str, status: &serde_json::Value) -> String {
        match state(&deployment(available, progressing), &[pod(status)]) {
            ComponentState::Running => "running".into(),
            ComponentState::Down(why) => why,
        }
    }

    #[test]
    fn one_pod_that_serves_is_enough() {
        assert_eq!(describe(1, "True", &json!({})), "running");
        assert!(is_available(&deployment(1, "False")) && !is_available(&deployment(0, "True")));
        assert!(!is_available(&Deployment::default()));
        assert!(is_rolled_out(&deployment(1, "True")));
        assert!(!is_rolled_out(&deployment(0, "True")));
    }

    #[test]
    fn what_the_host_has_not_scaled_down_is_not_stopped() {
        let scaled = |replicas: i32, observed: i64, left: Option<i32>| {
            let mut deployment = deployment(0, "True");
            deployment.spec.replicas = Some(replicas);
            let status = deployment.status.as_mut().unwrap();
            (status.observed_generation, status.replicas) = (Some(observed), left);
            is_stopped(&deployment)
        };
        assert!(scaled(0, 2, None) && scaled(0, 2, Some(0)));
        assert!(!scaled(0, 2, Some(1)), "a pod is left");
        assert!(!scaled(0, 1, None), "it is not known that it has no replicas");
        assert!(!scaled(1, 2, None));
        assert!(!is_stopped(&Deployment::default()));
    }

    #[test]
    fn pods_of_an_earlier_version_are_known_also_while_they_end() {
        let pod_of = |template: &str, files: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {
                    "name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z", "labels": {"pod-template-hash": template},
                },
                "spec": {"containers": [], "volumes": [
                    {"name": "cache", "emptyDir": {}},
                    {"name": "files", "projected": {"sources": [{"secret": {"name": files}}, {"serviceAccountToken": {"path": "token"}}]}},
                ]},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let pod = |files: &str, phase: &str| pod_of("1", files, phase);
        let are_new = |other: Pod| are_of_one_template(&[pod("new", "Running"), other], "new");
        assert!(are_new(pod("new", "Running")));
        assert!(!are_new(pod("old", "Running")) && !are_new(Pod::default()));
        assert!(are_new(pod("old", "Failed")) && are_new(pod("old", "Succeeded")));
        // With another image and the same files.
        assert!(!are_new(pod_of("2", "new", "Running")));
        assert!(are_new(pod_of("2", "new", "Succeeded")));
    }

    #[test]
    fn reasons_why_pods_do_not_run_are_described() {
        let waiting = json!({"containerStatuses": [{
            "name": "c", "ready": false, "image": "", "imageID": "", "restartCount": 0,
            "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image \"x\""}},
        }]});
        assert_eq!(
            describe(0, "True", &waiting),
            "kube-apiserver does not run yet: pod p: ImagePullBackOff: Back-off pulling image \"x\""
        );
        assert!(describe(1, "False", &waiting).starts_with("the new kube-apiserver does not start"));
        let crashed = json!({"containerStatuses": [{
            "name": "c", "ready": false, "image": "", "imageID": "", "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
        }]});
        assert!(
            describe(0, "True", &crashed)
                .ends_with("CrashLoopBackOff: back-off; it ended with exit code 137 (OOMKilled)")
        );
        let refused = json!({"containerStatuses": [{
            "name": "c", "ready": false, "image": "", "imageID": "", "restartCount": 3,
            "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message":
                "I1201 09:00:00.000000 1 options.go:249] external host was not specified\n\
                 E1201 09:00:01.000000 1 run.go:72] \"command failed\" err=<\n\tjwt[0].claimMappings.username.expression: Invalid value\n\t | ^\n >\n"}},
        }]});
        assert!(describe(1, "False", &refused).ends_with(
            "(Error): E1201 09:00:01.000000 1 run.go:72] \"command failed\" err=< \
                 jwt[0].claimMappings.username.expression: Invalid value | ^ >"
        ));
        let unscheduled = json!({"phase": "Pending", "conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available",
        }]});
        assert!(describe(0, "True", &unscheduled).ends_with("pod p: Unschedulable: 0/3 nodes are available"));
        let creating = json!({"containerStatuses": [{
            "name": "c", "ready": false, "image": "", "imageID": "", "restartCount": 0,
            "state": {"waiting": {"reason": "ContainerCreating"}},
        }]});
        assert!(describe(0, "True", &creating).ends_with("its pods are starting"));
    }

    #[test]
    fn replica_sets_without_pods_are_unused_except_the_newest() {
        let set = |revision: u32, wanted: i32, replicas: i32| -> ReplicaSet {
            serde_json::from_value(json!({
                "metadata": {
                    "name": format!("s{revision}"), "labels": {"pod-template-hash": revision.to_string()},
                    "annotations": {"deployment.kubernetes.io/revision": revision.to_string()},
                },
                "spec": {"replicas": wanted, "selector": {}}, "status": {"replicas": replicas},
            }))
            .unwrap()
        };
        let mut without_hash = set(2, 0, 0);
        without_hash.metadata.labels = None;
        let numbers = [(10, 0, 0), (9, 0, 0), (8, 1, 0), (7, 0, 1), (6, 0, 0), (5, 0, 0)];
        let mut sets: Vec<ReplicaSet> = { numbers.into_iter() }
            .map(|(revision, wanted, replicas)| set(revision, wanted, replicas))
            .collect();
        sets.push(without_hash);
        let pod: Pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "labels": {"pod-template-hash": "6"}}})).unwrap();
        let unused: Vec<String> = { unused_replica_sets(&sets, &[pod]).into_iter() }
            .map(ResourceExt::name_any)
            .collect();
        assert_eq!(unused, ["s9", "s5"]);
    }

    #[test]
    fn a_program_is_quoted_from_its_last_error_on_and_not_at_length() {
        assert_eq!(last_words("\n \n"), None);
        assert_eq!(last_words("a\nEvery b\n").as_deref(), Some("Every b"));
        assert_eq!(last_words("F0102 x\nE01").as_deref(), Some("F0102 x E01"));
        assert_eq!(last_words(&"é".repeat(1000)).unwrap().len(), 500);
    }

    #[test]
    fn without_pods_the_deployment_says_why() {
        let mut refused = deployment(0, "True");
        let conditions = refused.status.as_mut().unwrap().conditions.get_or_insert_default();
        conditions.push(
            serde_json::from_value(json!({
                "type": "ReplicaFailure", "status": "True", "message": "pods \"p\" is forbidden: violates PodSecurity",
            }))
            .unwrap(),
        );
        let ComponentState::Down(why) = state(&refused, &[]) else {
            panic!("it does not run");
        };
        assert!(why.ends_with("violates PodSecurity"), "{why}");
    }
}
