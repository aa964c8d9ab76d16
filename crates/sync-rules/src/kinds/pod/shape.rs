//! Which pods ask the scheduler for the same. If one of them cannot be scheduled, the others probably cannot be either.

use super::user;
use crate::model::{json, tenant::UserRules};
use serde_json::{Value, json};

/// Fields of the spec that the scheduler reads. Not the name of the group: equal gangs are as alike as those which labels name.
const OF_SPEC: &[&str] = &[
    "affinity",
    "nodeName",
    "nodeSelector",
    "overhead",
    "preemptionPolicy",
    "priority",
    "resourceClaims",
    "resources",
    "runtimeClassName",
    "schedulerName",
    "tolerations",
    "topologySpreadConstraints",
];
/// Those of a container.
const OF_CONTAINER: &[&str] = &["ports", "resources", "restartPolicy"];
/// Volumes that are scheduled. Pods of a StatefulSet have claims of different names, and are alike.
const CLAIMS: &[&str] = &["persistentVolumeClaim", "ephemeral"];

/// The same for pods that ask the scheduler for the same. Pods of users with limits are alike only if they are of the same user, because
/// control may let one start and the other not.
pub fn of(users: UserRules, pod: &Value) -> String {
    let spec = &pod["spec"];
    let fields =
        |object: &Value, names: &[&str]| -> Vec<Value> { names.iter().map(|name| object[*name].clone()).collect() };
    let containers = |list: &str| -> Vec<Value> {
        let all = json::items(spec, &[list]).iter();
        all.map(|container| fields(container, OF_CONTAINER).into()).collect()
    };
    let volumes = json::items(spec, &["volumes"]).iter();
    let claims = volumes.filter(|volume| CLAIMS.iter().any(|kind| !volume[*kind].is_null()));
    let user = users.are_limited.then(|| user::waits_as(users, pod));
    json::hash(&json!([
        fields(spec, OF_SPEC),
        containers("initContainers"),
        containers("containers"),
        claims.count(),
        user,
    ]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::labels;

    fn pod() -> Value {
        json!({
            "metadata": {"name": "a", "labels": {"index": "0"}},
            "spec": {
                "containers": [{"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "8"}}}],
                "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-0"}}],
            },
        })
    }

    fn shape(pod: &Value) -> String {
        of(UserRules::default(), pod)
    }

    #[test]
    fn pods_of_a_job_or_a_stateful_set_are_alike() {
        let mut other = pod();
        other["metadata"] = json!({"name": "b", "labels": {"index": "1"}});
        other["spec"]["containers"][0]["image"] = "train:2".into();
        other["spec"]["containers"][0]["env"] = json!([{"name": "INDEX", "value": "1"}]);
        other["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"] = "data-1".into();
        assert_eq!(shape(&other), shape(&pod()));
    }

    #[test]
    fn pods_of_equal_gangs_are_alike_however_the_gangs_are_named() {
        let [one, other] = ["one", "other"].map(|gang| {
            let mut pod = pod();
            pod["spec"]["schedulingGroup"] = json!({ "podGroupName": gang });
            pod
        });
        assert_eq!(shape(&one), shape(&other));
        let mut labelled = pod();
        labelled["metadata"]["labels"]["kueue.x-k8s.io/pod-group-name"] = "one".into();
        assert_eq!(shape(&one), shape(&labelled));
    }

    #[test]
    fn what_the_scheduler_reads_tells_pods_apart() {
        let changes: [(&str, Value); 6] = [
            ("nodeSelector", json!({"zone": "a"})),
            ("priority", json!(1)),
            ("tolerations", json!([{"key": "a"}])),
            ("topologySpreadConstraints", json!([{"topologyKey": "zone"}])),
            ("volumes", json!([])),
            (
                "containers",
                json!([{"name": "main", "image": "train:1", "resources": {"limits": {"nvidia.com/gpu": "4"}}}]),
            ),
        ];
        let mut shapes: Vec<String> = vec![shape(&pod())];
        for (field, value) in changes {
            let mut other = pod();
            other["spec"][field] = value;
            shapes.push(shape(&other));
        }
        let number = shapes.len();
        shapes.sort();
        shapes.dedup();
        assert_eq!(shapes.len(), number);
    }

    #[test]
    fn users_with_limits_do_not_take_the_places_of_each_other() {
        let of_user = |users: UserRules, name: &str| {
            let mut pod = pod();
            pod["metadata"]["annotations"] = json!({(labels::CREATED_BY): name});
            of(users, &pod)
        };
        let stamped = UserRules {
            are_stamped: true,
            are_limited: false,
        };
        let limited = UserRules {
            are_limited: true,
            ..stamped
        };
        assert_eq!(of_user(stamped, "alice"), of_user(stamped, "bob"));
        assert_ne!(of_user(limited, "alice"), of_user(limited, "bob"));
    }
}
