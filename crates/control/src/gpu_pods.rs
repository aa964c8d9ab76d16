//! Tenants' host pods that request devices.

use berth_api::{conditions::GPUS_IDLE, labels, pod_labels};
use berth_idle_reclaim::pod::{DevicesHeld, GpuPod, ObservedCondition};
use berth_node_lifecycle::pod_requests;
use k8s_openapi::api::core::v1::{ContainerState, Pod, PodStatus};
use kube::ResourceExt;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Host pods that request devices, by namespace and name.
#[derive(Debug, Default)]
pub struct GpuPods(Mutex<HashMap<String, Arc<GpuPod>>>);

impl GpuPods {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<GpuPod>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets a pod; none if it is gone or requests no devices.
    pub fn put(&self, name: &str, pod: Option<GpuPod>) {
        let mut all = self.lock();
        match pod {
            Some(pod) => {
                all.insert(name.to_owned(), Arc::new(pod));
            }
            None => {
                all.remove(name);
            }
        }
    }

    /// Removes all pods except these.
    pub fn retain(&self, names: &HashSet<String>) {
        self.lock().retain(|name, _| names.contains(name));
    }

    /// All pods, by the slug of their tenant.
    pub fn by_tenant(&self) -> HashMap<String, Vec<Arc<GpuPod>>> {
        let mut tenants: HashMap<String, Vec<Arc<GpuPod>>> = HashMap::new();
        for pod in self.lock().values() {
            tenants.entry(pod.tenant.clone()).or_default().push(Arc::clone(pod));
        }
        for pods in tenants.values_mut() {
            pods.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
        }
        tenants
    }
}

/// Reads a host pod that a syncer created; none if it requests no devices.
pub fn read_pod(pod: &Pod) -> Option<GpuPod> {
    let tenant = pod.labels().get(labels::TENANT)?.clone();
    let annotation = |key: &str| pod.annotations().get(key).cloned();
    let spec = pod.spec.as_ref()?;
    let has_claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let devices: BTreeMap<String, u32> = pod_requests::of_pod(pod)
        .into_iter()
        // Extended resources have a domain.
        .filter(|(resource, thousandths)| resource.contains('/') && *thousandths > 0)
        .map(|(resource, thousandths)| (resource, u32::try_from(thousandths / 1000).unwrap_or(u32::MAX)))
        .collect();
    if devices.is_empty() && !has_claims {
        return None;
    }
    let status = pod.status.as_ref();
    let phase = status.and_then(|status| status.phase.as_deref());
    let has_node = spec.node_name.as_ref().is_some_and(|node| !node.is_empty());
    Some(GpuPod {
        tenant,
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        origin_namespace: annotation(labels::ORIGIN_NAMESPACE).unwrap_or_default(),
        origin_name: annotation(labels::ORIGIN_NAME).unwrap_or_else(|| pod.name_any()),
        origin_uid: annotation(labels::ORIGIN_UID).unwrap_or_default(),
        labels: pod_labels::tenant_labels(pod.labels()),
        gang: annotation(labels::GANG).filter(|gang| !gang.is_empty()),
        devices,
        has_claims,
        devices_held: match phase {
            Some("Succeeded" | "Failed") => DevicesHeld::NoMore,
            _ if has_node => DevicesHeld::Now,
            _ => DevicesHeld::NotYet,
        },
        is_ending: pod.metadata.deletion_timestamp.is_some(),
        // What schedules say changes with time: the passes ask for it.
        is_restricted: false,
        started_at: status
            .and_then(read_start)
            .map(|started| started.max(read_creation(pod))),
        priority: spec.priority.unwrap_or_default(),
        condition: status.and_then(read_condition),
    })
}

/// When the API server created the pod. The clock of a node may be behind: metrics of an earlier pod with the same name must not count.
fn read_creation(pod: &Pod) -> i64 {
    let created = pod.metadata.creation_timestamp.as_ref();
    created.map_or(i64::MIN, |time| time.0.as_second())
}

/// When the last of its running containers started; none as long as none runs. Init containers may prepare data for hours.
fn read_start(status: &PodStatus) -> Option<i64> {
    let running = |state: &ContainerState| Some(state.running.as_ref()?.started_at.as_ref()?.0.as_second());
    let starts = status.container_statuses.iter().flatten();
    starts
        .filter_map(|container| container.state.as_ref().and_then(running))
        .max()
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
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(spec: &Value, status: &Value) -> Option<GpuPod> {
        let pod = json!({
            "metadata": {
                "name": "x-123", "namespace": "berth-w", "uid": "u", "labels": {"berth.dev/tenant": "vision-abc"},
                "annotations": {"berth.dev/origin-namespace": "ml", "berth.dev/origin-name": "train-0"},
            },
            "spec": spec, "status": status,
        });
        read_pod(&serde_json::from_value(pod).unwrap())
    }

    fn with_gpus(count: &str) -> Value {
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
        assert!(read(&claims, &json!({})).unwrap().has_claims);
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
    fn labels_have_the_keys_of_the_tenant() {
        let pod = json!({
            "metadata": {"name": "x-123", "labels": {"berth.dev/tenant": "vision-abc", "pod.berth.dev/ray.io__cluster": "train"}},
            "spec": with_gpus("1"),
        });
        let read = read_pod(&serde_json::from_value(pod).unwrap()).unwrap();
        assert_eq!(read.labels["ray.io/cluster"], "train");
    }

    #[test]
    fn pods_are_found_by_tenant() {
        let pods = GpuPods::default();
        pods.put("berth-w/x-123", read(&with_gpus("1"), &json!({})));
        assert_eq!(pods.by_tenant()["vision-abc"].len(), 1);
        pods.retain(&HashSet::new());
        assert!(pods.by_tenant().is_empty());
    }
}
