//! What is read of host pods that request devices, and of the claims of such pods.

use berth_api::{conditions::GPUS_IDLE, labels, pod_labels};
use berth_idle_reclaim::pod::{ClaimedGpus, DevicesHeld, GpuPod, ObservedCondition};
use berth_node_lifecycle::{
    demand::{Claim, read_claims, shorten},
    devices::{ClaimSpec, ClaimStatus},
    pod_requests::{self, MOST_RESOURCES, is_sidecar},
};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodSpec, PodStatus};
use kube::ResourceExt;
use std::collections::{BTreeMap, BTreeSet};

/// The driver of NVIDIA for GPUs and MIG instances. The metrics are NVIDIA's as well.
const GPU_DRIVER: &str = "gpu.nvidia.com";

/// Labels that are kept of a pod, the first by name. A tenant may have thousands of pods with 250 labels each.
const MOST_LABELS: usize = 64;

/// The number of GPUs that a claim has; none as long as it has no devices, and requests some.
pub fn count_gpus_of_claim(spec: Option<&ClaimSpec>, status: Option<&ClaimStatus>) -> Option<u32> {
    let Some(gpus) = status.and_then(|status| status.count_allocated(GPU_DRIVER)) else {
        return spec.is_none_or(ClaimSpec::is_empty).then_some(0);
    };
    Some(u32::try_from(gpus).unwrap_or(u32::MAX))
}

/// Reads a host pod that a syncer created; none if it requests no devices.
pub fn read_pod(pod: &Pod) -> Option<GpuPod> {
    let tenant = pod.labels().get(labels::TENANT)?.clone();
    let annotation = |key: &str| pod.annotations().get(key).cloned();
    let spec = pod.spec.as_ref()?;
    let mut claims: Vec<String> = read_claims(pod).into_iter().map(name_on_host).collect();
    let mut devices: BTreeMap<String, u32> = pod_requests::of_pod(pod)
        .into_iter()
        // Extended resources have a domain.
        .filter(|(resource, thousandths)| resource.contains('/') && *thousandths > 0)
        .take(MOST_RESOURCES)
        .map(|(resource, thousandths)| (resource, u32::try_from(thousandths / 1000).unwrap_or(u32::MAX)))
        .collect();
    let status = pod.status.as_ref();
    // The scheduler made a claim for extended resources that are devices of a driver: they are not counted twice.
    if let Some(extended) = status.and_then(|status| status.extended_resource_claim_status.as_ref()) {
        for mapping in &extended.request_mappings {
            devices.remove(&mapping.resource_name);
        }
        claims.push(extended.resource_claim_name.clone());
    }
    if devices.is_empty() && claims.is_empty() {
        return None;
    }
    let unused = read_unused(pod, spec, &devices);
    let phase = status.and_then(|status| status.phase.as_deref());
    let created = read_creation(pod);
    let has_node = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
    Some(GpuPod {
        tenant,
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        origin_namespace: annotation(labels::ORIGIN_NAMESPACE).unwrap_or_default(),
        origin_name: annotation(labels::ORIGIN_NAME).unwrap_or_else(|| pod.name_any()),
        origin_uid: annotation(labels::ORIGIN_UID).unwrap_or_default(),
        labels: pod_labels::tenant_labels(pod.labels())
            .into_iter()
            .take(MOST_LABELS)
            .collect(),
        gang: annotation(labels::GANG)
            .filter(|gang| !gang.is_empty())
            .map(|gang| shorten(&gang)),
        devices,
        claims,
        // What claims have changes with them: by_tenant adds it.
        claimed_gpus: ClaimedGpus::default(),
        unused_devices: unused.devices,
        unused_claims: unused.claims,
        unused_claimed_gpus: 0,
        devices_held: match phase {
            Some("Succeeded" | "Failed") => DevicesHeld::NoMore,
            _ if has_node => DevicesHeld::Now,
            _ => DevicesHeld::NotYet,
        },
        is_ending: pod.metadata.deletion_timestamp.is_some(),
        // What schedules say changes with time: the passes ask for it.
        is_restricted: false,
        awaits_others: false,
        scheduled_at: status
            .and_then(|status| read_transition(status, "PodScheduled"))
            .max(created)
            .filter(|_| has_node),
        started_at: status
            .and_then(read_start)
            .and_then(|started| Some(started).max(created)),
        priority: spec.priority.unwrap_or_default(),
        condition: status.and_then(read_condition),
    })
}

/// The name of a claim on the host; empty for one that the host has not made yet of its template.
fn name_on_host(claim: Claim) -> String {
    if claim.is_template {
        claim.generated.unwrap_or_default()
    } else {
        claim.name
    }
}

/// What a pod has and none of its containers can use.
#[derive(Default)]
struct Unused {
    devices: BTreeMap<String, u32>,
    claims: Vec<String>,
}

/// What only init containers of a pod request, or no container at all. Nothing of it counts as unused before the last of these has ended, and while one
/// runs again because the node was restarted.
fn read_unused(pod: &Pod, spec: &PodSpec, devices: &BTreeMap<String, u32>) -> Unused {
    let init_containers = || spec.init_containers.iter().flatten();
    let ended = pod
        .status
        .iter()
        .flat_map(|status| status.init_container_statuses.iter().flatten());
    let ended: BTreeSet<&str> = ended
        .filter(|container| has_succeeded(container))
        .map(|container| container.name.as_str())
        .collect();
    let may_run = |container: &Container| !is_sidecar(container) && !ended.contains(container.name.as_str());
    if init_containers().any(may_run) {
        return Unused::default();
    }
    let requested = pod_requests::of_lasting_containers(pod);
    let unused_of = |(resource, count): (&String, &u32)| {
        let requested = requested.get(resource).copied().unwrap_or_default() / 1000;
        let unused = count.saturating_sub(u32::try_from(requested).unwrap_or(u32::MAX));
        (unused > 0).then(|| (resource.clone(), unused))
    };
    let lasting = spec
        .containers
        .iter()
        .chain(init_containers().filter(|container| is_sidecar(container)));
    let named = lasting.flat_map(|container| container.resources.iter());
    let named: BTreeSet<&str> = named
        .flat_map(|resources| resources.claims.iter().flatten())
        .map(|claim| claim.name.as_str())
        .collect();
    // Those that `read_claims` reads.
    let of_pod = spec.resource_claims.iter().flatten();
    let of_pod =
        of_pod.filter(|claim| claim.resource_claim_name.is_some() || claim.resource_claim_template_name.is_some());
    let claims = of_pod.zip(read_claims(pod));
    let claims = claims.filter(|(of_pod, _)| !named.contains(of_pod.name.as_str()));
    // The claim of extended resources that are devices of a driver.
    let extended = pod
        .status
        .iter()
        .flat_map(|status| &status.extended_resource_claim_status);
    let is_lasting = |name: &str| !init_containers().any(|container| container.name == name && !is_sidecar(container));
    let extended = extended.filter(|extended| {
        let mut mappings = extended.request_mappings.iter();
        !mappings.any(|mapping| is_lasting(&mapping.container_name))
    });
    let extended = extended.map(|extended| extended.resource_claim_name.clone());
    Unused {
        devices: devices.iter().filter_map(unused_of).collect(),
        claims: claims.map(|(_, claim)| name_on_host(claim)).chain(extended).collect(),
    }
}

/// Whether a container has ended, and without an error.
fn has_succeeded(container: &ContainerStatus) -> bool {
    let ended = container.state.as_ref().and_then(|state| state.terminated.as_ref());
    ended.is_some_and(|ended| ended.exit_code == 0)
}

/// When the API server created the pod. The clock of a node may be behind: metrics of an earlier pod with the same name must not count.
fn read_creation(pod: &Pod) -> Option<i64> {
    let created = pod.metadata.creation_timestamp.as_ref()?;
    Some(created.0.as_second())
}

/// Since when a condition is True. The API server sets the time of `PodScheduled` when it binds the pod.
fn read_transition(status: &PodStatus, type_: &str) -> Option<i64> {
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|condition| condition.type_ == type_ && condition.status == "True")?;
    Some(condition.last_transition_time.as_ref()?.0.as_second())
}

/// When the last of its containers that have run started for the first time; none as long as none has. Init containers may prepare data for
/// hours. A container that has ended was started first when these had: one that ends every hour would keep its pod young for ever. It counts
/// whether it runs or not: else nothing would be known of a pod that crashes in some passes, and it would never take the next step.
fn read_start(status: &PodStatus) -> Option<i64> {
    // Kubelets before 1.36 take the condition back while init containers run again, on a node that was restarted.
    let earliest = read_transition(status, "Initialized").or_else(|| read_transition(status, "PodScheduled"));
    let containers = status.container_statuses.iter().flatten();
    let starts = containers.filter_map(|container| {
        let running = container.state.as_ref().and_then(|state| state.running.as_ref());
        let started = running.and_then(|running| Some(running.started_at.as_ref()?.0.as_second()));
        let first = earliest.filter(|_| has_ended(container));
        first.into_iter().chain(started).min()
    });
    starts.max()
}

/// Whether a container has run and ended, once at least. It may run again.
fn has_ended(container: &ContainerStatus) -> bool {
    let states = [&container.state, &container.last_state];
    let has_run = states.into_iter().flatten().any(|state| state.terminated.is_some());
    has_run || container.restart_count > 0
}

fn read_condition(status: &PodStatus) -> Option<ObservedCondition> {
    let conditions = status.conditions.as_ref()?;
    let condition = conditions.iter().find(|condition| condition.type_ == GPUS_IDLE)?;
    Some(ObservedCondition {
        is_true: condition.status == "True",
        reason: condition.reason.clone().unwrap_or_default(),
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Reads a pod of the tenant `vision-abc` with this spec and status.
    pub(in crate::gpu_pods) fn read(spec: &Value, status: &Value) -> Option<GpuPod> {
        let pod = json!({
            "metadata": {
                "name": "x-123", "namespace": "berth-w", "uid": "u", "labels": {"berth.dev/tenant": "vision-abc"},
                "annotations": {"berth.dev/origin-namespace": "ml", "berth.dev/origin-name": "train-0"},
            },
            "spec": spec, "status": status,
        });
        read_pod(&serde_json::from_value(pod).unwrap())
    }

    pub(in crate::gpu_pods) fn with_gpus(count: &str) -> Value {
        json!({"nodeName": "n1", "containers": [
            {"name": "c", "resources": {"requests": {"cpu": "4", "nvidia.com/gpu": count, "rdma/hca": "1"}}},
        ]})
    }

    #[test]
    fn only_pods_with_devices_are_kept() {
        let pod = read(&with_gpus("8"), &json!({"phase": "Running"})).unwrap();
        assert_eq!((pod.devices["nvidia.com/gpu"], pod.devices["rdma/hca"]), (8, 1));
        assert_eq!(
            (pod.origin_namespace.as_str(), pod.origin_name.as_str()),
            ("ml", "train-0")
        );
        assert!(pod.holds_devices() && !pod.is_ending);
        let without = json!({"nodeName": "n1", "containers": [{"name": "c"}]});
        assert_eq!(read(&without, &json!({})), None);
        let claims =
            json!({"containers": [{"name": "c"}], "resourceClaims": [{"name": "a", "resourceClaimName": "x"}]});
        assert_eq!(read(&claims, &json!({})).unwrap().claims, ["x"]);
    }

    #[test]
    fn devices_that_only_init_containers_request_are_unused_once_these_have_ended() {
        let gpus = |count: &str| json!({"requests": {"nvidia.com/gpu": count}});
        let spec = |count: &str| {
            json!({"nodeName": "n1", "initContainers": [
                {"name": "load", "resources": gpus("8")},
                {"name": "proxy", "restartPolicy": "Always", "resources": gpus("1")},
            ], "containers": [{"name": "main", "resources": gpus(count)}]})
        };
        let ended = |state: Value| {
            let container =
                json!({"name": "load", "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state});
            json!({"phase": "Running", "initContainerStatuses": [container]})
        };
        let read = |count: &str, status: &Value| {
            let pod = read(&spec(count), status).unwrap();
            (
                pod.devices["nvidia.com/gpu"],
                pod.unused_devices.get("nvidia.com/gpu").copied(),
            )
        };
        let succeeded = ended(json!({"terminated": {"exitCode": 0}}));
        assert_eq!(read("2", &succeeded), (8, Some(5)));
        assert_eq!(read("7", &succeeded), (8, None));
        for status in [
            json!({}),
            ended(json!({"running": {}})),
            ended(json!({"waiting": {}})),
            ended(json!({"terminated": {"exitCode": 1}})),
        ] {
            assert_eq!(read("2", &status), (8, None), "{status}");
        }
    }

    #[test]
    fn devices_of_the_driver_of_gpus_are_gpus_of_a_claim() {
        let count = |spec: &Value, status: &Value| {
            let spec: Option<ClaimSpec> = serde_json::from_value(spec.clone()).unwrap();
            let status: Option<ClaimStatus> = serde_json::from_value(status.clone()).unwrap();
            count_gpus_of_claim(spec.as_ref(), status.as_ref())
        };
        let spec = json!({"devices": {"requests": [{"name": "r"}]}});
        let devices = |drivers: &[&str]| {
            let results: Vec<Value> = drivers
                .iter()
                .map(|driver| json!({"driver": driver, "device": "d"}))
                .collect();
            count(&spec, &json!({"allocation": {"devices": {"results": results}}}))
        };
        assert_eq!(count(&spec, &json!({})), None);
        assert_eq!(count(&json!({}), &Value::Null), Some(0), "it requests nothing");
        assert_eq!(devices(&[]), Some(0), "a claim of nothing");
        assert_eq!(devices(&["dra.net", "gpu.nvidia.com", "gpu.nvidia.com"]), Some(2));
    }

    #[test]
    fn pods_that_ended_or_wait_hold_no_devices() {
        assert!(
            !read(&with_gpus("1"), &json!({"phase": "Succeeded"}))
                .unwrap()
                .holds_devices()
        );
        let mut waiting = with_gpus("1");
        waiting["nodeName"] = Value::Null;
        assert!(!read(&waiting, &json!({"phase": "Pending"})).unwrap().holds_devices());
    }

    #[test]
    fn a_pod_starts_with_the_last_of_its_running_containers() {
        let container = |name: &str, state: Value| json!({"name": name, "image": "i", "imageID": "", "ready": true, "restartCount": 0, "state": state});
        let at = |second: &str| json!({"running": {"startedAt": format!("1970-01-01T00:00:{second}Z")}});
        let waiting = json!({"waiting": {"reason": "ContainerCreating"}});
        let start = |statuses: Value| {
            let status =
                json!({"phase": "Running", "startTime": "1970-01-01T00:00:01Z", "containerStatuses": statuses});
            read(&with_gpus("1"), &status).unwrap().started_at
        };
        assert_eq!(start(json!([container("a", waiting)])), None);
        assert_eq!(
            start(json!([container("a", at("10")), container("b", at("20"))])),
            Some(20)
        );
    }

    #[test]
    fn a_container_that_starts_again_keeps_no_pod_young() {
        let container = |name: &str, second: &str, restarts: u32| {
            json!({"name": name, "image": "i", "imageID": "", "ready": true,
            "restartCount": restarts, "state": {"running": {"startedAt": format!("1970-01-01T00:00:{second}Z")}}})
        };
        let start = |statuses: Value, conditions: Value| {
            let status = json!({"phase": "Running", "conditions": conditions, "containerStatuses": statuses});
            read(&with_gpus("1"), &status).unwrap().started_at
        };
        let initialized =
            json!([{"type": "Initialized", "status": "True", "lastTransitionTime": "1970-01-01T00:00:05Z"}]);
        let restarted = || json!([container("main", "10", 0), container("sidecar", "50", 7)]);
        assert_eq!(start(restarted(), initialized.clone()), Some(10));
        assert_eq!(start(json!([container("main", "50", 7)]), initialized), Some(5));
        assert_eq!(
            start(restarted(), json!([])),
            Some(50),
            "it is not known when it started first"
        );
    }

    /// The status of a pod with a node since second 1, one container of which does not run, and the init containers of which ended in second 5.
    fn waiting(restarts: u32, last_state: &Value, initialized: &str) -> Value {
        let condition = |type_: &str, status: &str, second: u32| json!({"type": type_, "status": status, "lastTransitionTime": format!("1970-01-01T00:00:0{second}Z")});
        json!({
            "phase": "Running",
            "conditions": [condition("PodScheduled", "True", 1), condition("Initialized", initialized, 5)],
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": restarts,
                "state": {"waiting": {"reason": "ImagePullBackOff"}}, "lastState": last_state}],
        })
    }

    #[test]
    fn a_pod_that_has_run_has_started_also_while_none_of_its_containers_runs() {
        let start = |status: &Value| read(&with_gpus("1"), status).unwrap().started_at;
        let ended = json!({"terminated": {"exitCode": 1, "finishedAt": "1970-01-01T00:00:40Z"}});
        let lost = json!({"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}});
        for (restarts, last_state) in [(0, &ended), (9, &ended), (1, &lost), (1, &json!({}))] {
            assert_eq!(start(&waiting(restarts, last_state, "True")), Some(5), "{last_state}");
        }
        assert_eq!(start(&waiting(0, &json!({}), "True")), None, "it has never run");
        // A container that crashes: the same start while it runs, has ended and waits.
        for state in [
            json!({"running": {"startedAt": "1970-01-01T00:00:50Z"}}),
            json!({"terminated": {"exitCode": 1, "finishedAt": "1970-01-01T00:00:55Z"}}),
            json!({"waiting": {"reason": "CrashLoopBackOff"}}),
        ] {
            let mut status = waiting(7, &ended, "True");
            status["containerStatuses"][0]["state"] = state.clone();
            assert_eq!(start(&status), Some(5), "{state}");
        }
    }

    #[test]
    fn a_pod_whose_init_containers_run_again_has_run_since_it_has_its_node() {
        let start = |status: &Value| read(&with_gpus("1"), status).unwrap().started_at;
        let ended = json!({"terminated": {"exitCode": 255, "finishedAt": "1970-01-01T00:00:40Z"}});
        assert_eq!(start(&waiting(1, &ended, "False")), Some(1));
        assert_eq!(
            start(&waiting(0, &json!({}), "False")),
            None,
            "they run for the first time"
        );
    }

    #[test]
    fn no_pod_started_before_it_was_created() {
        let pod = json!({
            "metadata": {"name": "x-123", "labels": {"berth.dev/tenant": "vision-abc"}, "creationTimestamp": "1970-01-01T01:00:00Z"},
            "spec": with_gpus("1"),
            "status": {"phase": "Running", "containerStatuses": [{"name": "c", "image": "i", "imageID": "", "ready": true,
                "restartCount": 0, "state": {"running": {"startedAt": "1970-01-01T00:00:10Z"}}}]},
        });
        let read = read_pod(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(read.started_at, Some(3600));
    }

    #[test]
    fn a_pod_has_its_node_since_it_was_scheduled() {
        let scheduled = |status: &str, hour: u32| {
            let time = format!("1970-01-01T0{hour}:00:00Z");
            json!([{"type": "PodScheduled", "status": status, "lastTransitionTime": time}])
        };
        let read = |spec: &Value, conditions: Value| {
            let pod = json!({
                "metadata": {"name": "x-123", "labels": {"berth.dev/tenant": "vision-abc"}, "creationTimestamp": "1970-01-01T02:00:00Z"},
                "spec": spec, "status": {"phase": "Pending", "conditions": conditions},
            });
            let pod = read_pod(&serde_json::from_value(pod).unwrap()).unwrap();
            (pod.scheduled_at, pod.started_at)
        };
        let hours = |hours: i64| (Some(hours * 3600), None::<i64>);
        assert_eq!(read(&with_gpus("1"), scheduled("True", 3)), hours(3));
        assert_eq!(read(&with_gpus("1"), json!([])), hours(2), "it was created with a node");
        assert_eq!(
            read(&with_gpus("1"), scheduled("True", 1)),
            hours(2),
            "a clock that is behind"
        );
        let mut waiting = with_gpus("1");
        waiting["nodeName"] = Value::Null;
        assert_eq!(read(&waiting, scheduled("False", 3)), (None, None));
    }

    #[test]
    fn labels_have_the_keys_of_the_tenant() {
        let pod = json!({
            "metadata": {"name": "x-123", "labels": {"berth.dev/tenant": "vision-abc", "pod.berth.dev/ray.io__cluster": "train"}},
            "spec": with_gpus("1"),
        });
        let read = read_pod(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(read.labels["ray.io/cluster"], "train");
    }

    #[test]
    fn little_is_kept_of_a_pod_with_many_labels() {
        let many: serde_json::Map<String, Value> = (0..250)
            .map(|number| (format!("pod.berth.dev/l{number}"), Value::from("x")))
            .collect();
        let mut pod = json!({
            "metadata": {"name": "x-123", "labels": many, "annotations": {"berth.dev/gang": "g".repeat(100_000)}},
            "spec": with_gpus("1"),
        });
        pod["metadata"]["labels"]["berth.dev/tenant"] = "vision-abc".into();
        let read = read_pod(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(read.labels.len(), MOST_LABELS);
        assert!(read.gang.unwrap().len() < 300);
    }
}
