//! Resource requests of pods, and the part of a node that the platform's own pods leave for its tenant.

use berth_api::quantity;
use k8s_openapi::{
    api::core::v1::{Container, Pod, ResourceRequirements},
    apimachinery::pkg::api::resource::Quantity,
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Resources that are kept of what a tenant's pod requests. No node has so many, so a pod that requests more never runs; and a tenant may
/// have thousands of pods that each request thousands.
pub const MOST_RESOURCES: usize = 64;

/// Amounts by resource, in thousandths.
pub type Requests = BTreeMap<String, i128>;

/// The requests of a pod, as the scheduler counts them: the sum of its containers, or the peak of its init containers if that is
/// more; requests of the pod as a whole take precedence; then overhead, and one pod. While a container or the pod is resized, the larger amounts
/// count.
pub fn of_pod(pod: &Pod) -> Requests {
    let Some(spec) = &pod.spec else { return Requests::new() };
    let requests_of_container = |container: &Container| requests_of_container(pod, container);
    let mut running = Requests::new();
    for container in &spec.containers {
        add(&mut running, &requests_of_container(container));
    }
    // Sidecars run beside all containers after them.
    let mut sidecars = Requests::new();
    let mut peak = Requests::new();
    for container in spec.init_containers.iter().flatten() {
        let own = requests_of_container(container);
        if is_sidecar(container) {
            add(&mut sidecars, &own);
            raise_to(&mut peak, &sidecars);
        } else {
            let mut at_its_time = sidecars.clone();
            add(&mut at_its_time, &own);
            raise_to(&mut peak, &at_its_time);
        }
    }
    add(&mut running, &sidecars);
    raise_to(&mut running, &peak);
    running.extend(requests_of_whole(pod, spec.resources.as_ref()));
    add(&mut running, &amounts(spec.overhead.as_ref()));
    running.insert("pods".into(), 1000);
    running
}

/// The requests of the containers of a pod and of its sidecars: what is in use once all other init containers have ended. Without overhead.
pub fn of_lasting_containers(pod: &Pod) -> Requests {
    let mut requests = Requests::new();
    let spec = pod.spec.iter();
    let containers = spec.clone().flat_map(|spec| &spec.containers);
    let init_containers = spec.flat_map(|spec| spec.init_containers.iter().flatten());
    for container in containers.chain(init_containers.filter(|container| is_sidecar(container))) {
        add(&mut requests, &requests_of_container(pod, container));
    }
    requests
}

/// Whether an init container runs beside all containers after it.
pub fn is_sidecar(container: &Container) -> bool {
    container.restart_policy.as_deref() == Some("Always")
}

fn requests_of_container(pod: &Pod, container: &Container) -> Requests {
    let status = pod.status.as_ref();
    let all = status.map(|status| status.init_container_statuses.iter().chain(&status.container_statuses));
    let own = all
        .into_iter()
        .flatten()
        .flatten()
        .find(|status| status.name == container.name && status.resources.is_some());
    let Some(own) = own else {
        return requested(container.resources.as_ref());
    };
    let mut requests = requested(container.resources.as_ref());
    if is_resize_infeasible(pod) {
        requests.retain(|resource, _| !is_resizable(resource));
    }
    raise_to(&mut requests, &requested(own.resources.as_ref()));
    raise_to(&mut requests, &amounts(own.allocated_resources.as_ref()));
    requests
}

/// What a pod requests as a whole; nothing if only its containers do.
fn requests_of_whole(pod: &Pod, resources: Option<&ResourceRequirements>) -> Requests {
    let in_spec = requested(resources);
    let status = pod.status.as_ref();
    let Some((status, actual)) = status.and_then(|status| Some((status, status.resources.as_ref()?))) else {
        return in_spec;
    };
    let mut requests = in_spec.clone();
    if is_resize_infeasible(pod) {
        requests.retain(|resource, _| !is_resizable(resource));
    }
    raise_to(&mut requests, &requested(Some(actual)));
    raise_to(&mut requests, &amounts(status.allocated_resources.as_ref()));
    // A kubelet may report sums of containers for what the pod as a whole does not request.
    requests.retain(|resource, _| in_spec.contains_key(resource));
    requests
}

fn requested(resources: Option<&ResourceRequirements>) -> Requests {
    amounts(resources.and_then(|resources| resources.requests.as_ref()))
}

/// Whether a resource can be changed while a pod runs.
fn is_resizable(resource: &str) -> bool {
    matches!(resource, "cpu" | "memory")
}

/// Whether the node can never give what the spec of a running pod asks for.
fn is_resize_infeasible(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let mut pending = conditions.filter(|condition| condition.type_ == "PodResizePending");
    pending.any(|condition| condition.reason.as_deref() == Some("Infeasible"))
}

/// Quantities as amounts.
pub fn amounts(quantities: Option<&BTreeMap<String, Quantity>>) -> Requests {
    let all = quantities.into_iter().flatten();
    all.filter_map(|(resource, amount)| Some((resource.clone(), quantity::parse(&amount.0)?)))
        .collect()
}

/// Adds `more` to `sum`.
pub fn add(sum: &mut Requests, more: &Requests) {
    for (resource, amount) in more {
        let of_resource = sum.entry(resource.clone()).or_default();
        *of_resource = of_resource.saturating_add(*amount);
    }
}

fn raise_to(to: &mut Requests, least: &Requests) {
    for (resource, amount) in least {
        let have = to.entry(resource.clone()).or_default();
        *have = (*have).max(*amount);
    }
}

/// Subtracts used resources from `allocatable` in a node's status, so that it shows what the tenant can use. Resources that the
/// node does not have are not added.
pub fn subtract(status: &mut Value, used: &Requests) {
    let Some(allocatable) = status.get_mut("allocatable").and_then(Value::as_object_mut) else {
        return;
    };
    for (resource, used) in used.iter().filter(|(_, used)| **used > 0) {
        let Some(text) = allocatable.get(resource).and_then(Value::as_str) else {
            continue;
        };
        if let Some(all) = quantity::parse(text) {
            let left = quantity::format((all - used).max(0), text);
            allocatable.insert(resource.clone(), left.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn requests(spec: &Value) -> BTreeMap<String, i128> {
        let pod = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
        of_pod(&pod)
    }

    fn container(cpu: &str) -> Value {
        json!({"name": "c", "resources": {"requests": {"cpu": cpu}}})
    }

    #[test]
    fn containers_add_up_and_init_containers_only_count_where_they_need_more() {
        let pod = json!({"containers": [container("1"), container("500m")], "initContainers": [container("200m")]});
        assert_eq!(requests(&pod)["cpu"], 1500);
        assert_eq!(requests(&pod)["pods"], 1000);
        let pod = json!({"containers": [container("1")], "initContainers": [container("3")]});
        assert_eq!(requests(&pod)["cpu"], 3000);
    }

    #[test]
    fn sidecars_count_beside_what_follows() {
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = "Always".into();
        let pod = json!({"containers": [container("1")], "initContainers": [container("2"), sidecar, container("4")]});
        assert_eq!(requests(&pod)["cpu"], 5000);
        let mut sidecar = container("1");
        sidecar["restartPolicy"] = "Always".into();
        let pod = json!({"containers": [container("1")], "initContainers": [sidecar]});
        assert_eq!(requests(&pod)["cpu"], 2000);
    }

    #[test]
    fn the_pod_as_a_whole_and_overhead() {
        let pod = json!({
            "containers": [container("1")], "overhead": {"cpu": "250m", "memory": "1Ki"},
            "resources": {"requests": {"cpu": "2"}},
        });
        assert_eq!(requests(&pod)["cpu"], 2250);
        assert_eq!(requests(&pod)["memory"], 1_024_000);
        assert!(!requests(&json!({"containers": [{"name": "c"}]})).contains_key("cpu"));
    }

    #[test]
    fn the_larger_amounts_count_while_a_container_is_resized() {
        let cpu = |spec: &str, actual: &str, reason: &str| {
            let status = json!({
                "name": "c", "ready": true, "restartCount": 0, "image": "", "imageID": "",
                "allocatedResources": {"cpu": actual}, "resources": {"requests": {"cpu": actual}},
            });
            let conditions = json!([{"type": "PodResizePending", "status": "True", "reason": reason}]);
            let pod = json!({
                "metadata": {"name": "a"}, "spec": {"containers": [container(spec)]},
                "status": {"containerStatuses": [status], "conditions": conditions},
            });
            of_pod(&serde_json::from_value(pod).unwrap())["cpu"]
        };
        assert_eq!(cpu("1", "4", "Deferred"), 4000, "the container still has it");
        assert_eq!(cpu("4", "1", "Deferred"), 4000, "it gets it as soon as there is room");
        assert_eq!(cpu("1000", "1", "Infeasible"), 1000);
        assert_eq!(cpu("1", "1", ""), 1000);
    }

    /// A node that can never give what the spec asks for leaves the pod as it is: it must not count for less than it has.
    #[test]
    fn the_larger_amounts_count_while_a_pod_is_resized_as_a_whole() {
        let requests = |spec: &Value, reason: &str| {
            let actual = json!({"cpu": "8", "memory": "1Ki", "hugepages-2Mi": "2Mi"});
            let status = json!({
                "allocatedResources": actual, "resources": {"requests": actual},
                "conditions": [{"type": "PodResizePending", "status": "True", "reason": reason}],
            });
            let spec = json!({"containers": [container("1")], "resources": {"requests": spec}});
            let pod = json!({"metadata": {"name": "a"}, "spec": spec, "status": status});
            of_pod(&serde_json::from_value(pod).unwrap())
        };
        for (cpu, reason, expected) in [
            ("100m", "Deferred", 8000),
            ("100m", "Infeasible", 8000),
            ("100", "Infeasible", 8000),
            ("9", "Deferred", 9000),
            ("8", "", 8000),
        ] {
            let found = requests(&json!({"cpu": cpu}), reason);
            assert_eq!(found["cpu"], expected, "{cpu} {reason}");
            assert!(!found.contains_key("memory"), "the pod as a whole does not request it");
        }
        assert_eq!(requests(&json!({}), "")["cpu"], 1000, "only its container does");
        let larger = requests(&json!({"cpu": "100m", "memory": "1Ti"}), "Infeasible");
        assert_eq!((larger["cpu"], larger["memory"]), (8000, 1_024_000));
    }

    /// API servers warn of parts of a byte, accept them, and then write the amount in billionths.
    #[test]
    fn parts_of_a_byte_do_not_hide_a_request() {
        let container = json!({"name": "c", "resources": {"requests": {"memory": "68719476736000000001n"}}});
        assert_eq!(
            requests(&json!({"containers": [container]}))["memory"],
            68_719_476_736_001
        );
    }

    #[test]
    fn allocatable_is_what_is_left() {
        let mut status = json!({
            "capacity": {"cpu": "8"},
            "allocatable": {"cpu": "8", "memory": "1000Ki", "pods": "110", "nvidia.com/gpu": "8"},
        });
        let used = [
            ("cpu", 1500),
            ("memory", 24 * 1024 * 1000),
            ("pods", 3000),
            ("example.com/other", 1000),
        ];
        let used = used.map(|(resource, amount)| (resource.to_owned(), amount)).into();
        subtract(&mut status, &used);
        let left = json!({"cpu": "6500m", "memory": "976Ki", "pods": "107", "nvidia.com/gpu": "8"});
        assert_eq!(status, json!({"capacity": {"cpu": "8"}, "allocatable": left}));
        subtract(&mut status, &[("cpu".to_owned(), 99_000)].into());
        assert_eq!(status["allocatable"]["cpu"], "0");
    }
}
