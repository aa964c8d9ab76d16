//! How often the status of a pod may change, by its size: with each change, the host's etcd keeps another version of the whole pod for minutes.
//!
//! Kubelets write the status of each pod as often as it changes, up to 50 times a second for all pods of a node. A tenant decides on both: on the bytes, and on
//! probes whose result changes all the time or containers that end again and again. With the largest pods that would be 40 MB a second for each node.
//!
//! | change | how often, in an hour |
//! |---|---|
//! | a container becomes ready and unready | 7,200 divided by `periodSeconds`, and by `failureThreshold` and `successThreshold` together |
//! | a container ends and starts again, after the longest back-off of kubelets: five minutes | 3 changes each time, so 36 |
//! | the image of one that runs once cannot be pulled: the same back-off | 2 changes each time, so 24 |
//!
//! Bytes times changes are [limited](MOST_BYTES_AN_HOUR), but [small](SMALL) pods are not: many containers with the usual probes come to thousands of changes.

use super::ephemeral;
use crate::{
    model::json,
    translation::{
        fields::FieldIssues,
        sizes::{MAX_SERVICE_VARIABLE_BYTES, count_bytes},
    },
};
use serde_json::Value;

/// Most bytes that changes of one pod may cost in an hour: 32 KiB a second. A pod with one container and the probe of most charts, which is tried every ten
/// seconds and fails three times before it counts, may have half a megabyte then; one that is ready and unready each second, 32 KiB.
const MOST_BYTES_AN_HOUR: u64 = 32 * 1024 * 3600;
/// Bytes that every pod may have. With the 50 changes a second that a kubelet writes, those of all small pods of a node are 1.6 MB a second.
const SMALL: usize = 32 << 10;
/// Changes in an hour of a container that fails all the time.
const OF_RESTARTS: u64 = 36;
/// Changes in an hour of a container that never starts.
const OF_IMAGES: u64 = 24;
/// Bytes that annotations, ephemeral containers and tolerations may have in any case, as far as their own limits allow: a pod that runs needs some.
pub(super) const ALWAYS: usize = 16 << 10;
/// More than any pod has on the host, by its other limits.
const LARGEST: usize = 1 << 20;

/// The containers that run for as long as the pod: regular ones, and sidecars.
fn lasting_containers(spec: &Value) -> impl Iterator<Item = &Value> {
    let is_sidecar = |container: &&Value| json::text(container, &["restartPolicy"]) == Some("Always");
    let sidecars = json::items(spec, &["initContainers"]).iter().filter(is_sidecar);
    json::items(spec, &["containers"]).iter().chain(sidecars)
}

/// How often a container can become ready or unready in an hour.
fn readiness_changes(container: &Value) -> u64 {
    let Some(probe) = container.get("readinessProbe").filter(|probe| probe.is_object()) else {
        return 0;
    };
    // API servers set the defaults of what is not set, or 0.
    let number = |field: &str, default: u64| {
        let set = probe.get(field).and_then(Value::as_u64);
        set.filter(|number| *number > 0).unwrap_or(default)
    };
    let tries = number("failureThreshold", 3).saturating_add(number("successThreshold", 1));
    7200_u64.div_ceil(tries.saturating_mul(number("periodSeconds", 10)))
}

/// Whether a field of a container has a value.
fn has(container: &Value, field: &str) -> bool {
    container.get(field).is_some_and(|value| !json::is_unset(value))
}

/// How often the status of a pod with this spec can change in an hour, again and again.
fn changes_an_hour(spec: &Value) -> u64 {
    let is_once = json::text(spec, &["restartPolicy"]) == Some("Never");
    // One can let all of them start again.
    let has_rules = ["containers", "initContainers"].into_iter().any(|list| {
        let mut containers = json::items(spec, &[list]).iter();
        containers.any(|container| has(container, "restartPolicyRules"))
    });
    let restarts = |container: &Value| {
        let starts_again = !is_once || has_rules || has(container, "restartPolicy");
        if starts_again { OF_RESTARTS } else { OF_IMAGES }
    };
    lasting_containers(spec)
        .map(|container| readiness_changes(container) + restarts(container))
        .sum()
}

/// Most bytes of a pod with this spec.
fn most_bytes(spec: &Value) -> usize {
    let most = MOST_BYTES_AN_HOUR / changes_an_hour(spec).max(1);
    usize::try_from(most).unwrap_or(usize::MAX).max(SMALL)
}

/// Most bytes of the annotations of a tenant's pod on the host, besides their own limit: they can grow while the pod runs. Ephemeral containers take nothing
/// from them: one that is left out of the host pod stays in the tenant's.
pub(super) fn most_annotation_bytes(pod: &Value) -> usize {
    let alone = ephemeral::without(pod);
    let spec = &alone.as_ref().unwrap_or(pod)["spec"];
    most_bytes(spec).saturating_sub(count_bytes(spec)).max(ALWAYS)
}

/// Denies a new pod of the tenant that would become too large on the host, as `host`, for how often its status can change. What Berth adds to its spec does not
/// count, up to the bytes that variables of Services may have: a Service of somebody else must not keep a pod from the host.
pub(super) fn check_new(pod: &Value, host: &Value, issues: &mut FieldIssues) {
    let most = most_bytes(&host["spec"]);
    if most >= LARGEST {
        return;
    }
    let added = count_bytes(&host["spec"]).saturating_sub(count_bytes(&pod["spec"]));
    let bytes = count_bytes(host).saturating_sub(added.min(MAX_SERVICE_VARIABLE_BYTES));
    if bytes > most {
        let why = format!(
            "the pod has {bytes} bytes on the host, without variables of Services, and may have at most {most}: its status can change {} times an hour, by \
             readiness probes and by containers that start again, and each time the host stores the whole pod. Let readinessProbe be tried less often \
             (periodSeconds, failureThreshold), use fewer containers, or put data into ConfigMaps and Secrets",
            changes_an_hour(&host["spec"])
        );
        issues.deny("spec", why);
    }
}

/// Denies the tolerations of a pod that runs if they are too large for how often its status can change: tolerations can be added to it. `spec` is that of the host
/// pod.
pub(super) fn check_tolerations(spec: &Value, issues: &mut FieldIssues) {
    let bytes_of = |field: &str| spec.get(field).map_or(0, count_bytes);
    let bytes = bytes_of("tolerations");
    // As of most pods.
    if bytes <= ALWAYS {
        return;
    }
    let others = count_bytes(spec).saturating_sub(bytes + bytes_of(ephemeral::LIST));
    let most = most_bytes(spec).saturating_sub(others).max(ALWAYS);
    if bytes > most {
        let why = format!(
            "they have {bytes} bytes on the host, and may have at most {most} there: the status of the pod can change often, and each time the host \
             stores the whole pod. What was added is left out"
        );
        issues.deny("spec.tolerations", why);
    }
}

/// Most bytes of the ephemeral containers of a tenant's pod, which is `alone` without them.
pub(super) fn most_ephemeral_bytes(alone: &Value) -> usize {
    let spec = &alone["spec"];
    most_bytes(spec).saturating_sub(count_bytes(spec)).max(ALWAYS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        kinds::pod::build,
        model::{KindId, resource::Name, store::Stored, tenant::test_tenant},
        registry,
    };
    use serde_json::json;

    /// A container with a readiness probe.
    fn probed(probe: &Value) -> Value {
        json!({"name": "main", "readinessProbe": probe})
    }

    #[test]
    fn changes_follow_from_probes_and_restarts() {
        let every_second = json!({"periodSeconds": 1, "failureThreshold": 1, "exec": {}});
        let plain = json!({"name": "plain"});
        for (spec, expected) in [
            (json!({}), 0),
            (json!({"containers": [plain]}), 36),
            (json!({"restartPolicy": "Never", "containers": [plain, plain]}), 48),
            (json!({"restartPolicy": "OnFailure", "containers": [plain, plain]}), 72),
            // What API servers set.
            (
                json!({"restartPolicy": "Never", "containers": [probed(&json!({"tcpSocket": {}}))]}),
                204,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [probed(&json!({"periodSeconds": 0}))]}),
                204,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [probed(&every_second)]}),
                3624,
            ),
            (
                json!({"containers": [probed(&every_second), probed(&every_second)]}),
                7272,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [probed(&json!({"periodSeconds": 86_400}))]}),
                25,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [{"name": "a", "restartPolicy": "Always"}]}),
                36,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [{"name": "a", "restartPolicyRules": [{"action": "Restart"}]}]}),
                36,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [plain, plain],
                    "initContainers": [{"name": "i", "restartPolicyRules": [{"action": "RestartAllContainers"}]}]}),
                72,
            ),
            // A sidecar has probes as well; what runs before the others does not run again.
            (
                json!({"restartPolicy": "Never", "initContainers": [plain, {"name": "s", "restartPolicy": "Always", "readinessProbe": every_second}]}),
                3636,
            ),
        ] {
            assert_eq!(changes_an_hour(&spec), expected, "{spec}");
        }
    }

    #[test]
    fn ephemeral_containers_take_nothing_from_annotations() {
        let pod = json!({"spec": {"containers": [probed(&json!({"exec": {}}))]}});
        let mut debugged = pod.clone();
        debugged["spec"][ephemeral::LIST] = json!([{"name": "debug", "args": ["a".repeat(400 << 10)]}]);
        let most = most_annotation_bytes(&pod);
        assert!(most > ALWAYS);
        assert_eq!(most_annotation_bytes(&debugged), most);
    }

    #[test]
    fn tolerations_that_are_added_make_no_pod_too_large() {
        let name = Name::new("shop", "p");
        let translate = |probe: &Value, tolerations: usize| {
            let tolerations: Vec<Value> = (0..tolerations)
                .map(|number| json!({"key": format!("{}/{number}", "a".repeat(200)), "operator": "Exists"}))
                .collect();
            let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"nodeName": "n", "containers": [probed(probe)], "tolerations": tolerations},
                "status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}});
            let cache = registry::new_cache(test_tenant());
            let host = json!({"metadata": {"name": "h", "resourceVersion": "1"}, "spec": {"nodeName": "n"}});
            cache.stores.host(KindId::Pod).written(name.clone(), Stored::new(&host));
            let mut issues = FieldIssues::default();
            let host = build::host_pod(&cache, &name, &pod, &mut issues);
            assert!(issues.denied.is_empty(), "{:?}", issues.denied);
            (
                json::items(&host, &["spec", "tolerations"]).len() > 1,
                issues.parts.left_out.len(),
            )
        };
        let (seldom, often) = (
            json!({"exec": {}}),
            json!({"periodSeconds": 1, "failureThreshold": 1, "exec": {}}),
        );
        assert_eq!(translate(&often, 20), (true, 0));
        assert_eq!(translate(&often, 400), (false, 1));
        assert_eq!(translate(&seldom, 400), (true, 0));
    }

    /// The fields that are denied of a new pod with one container, which has so many bytes of arguments.
    fn denied(probe: Option<&Value>, restarts: &str, bytes: usize) -> Vec<String> {
        let mut container = json!({"name": "main", "image": "i", "args": ["a".repeat(bytes)]});
        if let Some(probe) = probe {
            container["readinessProbe"] = probe.clone();
        }
        denied_with(restarts, &[container])
    }

    /// The fields that are denied of a new pod with these containers.
    fn denied_with(restarts: &str, containers: &[Value]) -> Vec<String> {
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"restartPolicy": restarts, "containers": containers}});
        let mut issues = FieldIssues::default();
        let cache = registry::new_cache(test_tenant());
        build::host_pod(&cache, &Name::new("shop", "p"), &pod, &mut issues);
        issues.denied.into_iter().map(|denied| denied.field).collect()
    }

    #[test]
    fn large_pods_are_probed_seldom() {
        let usual = json!({"tcpSocket": {"port": 80}});
        let fast = json!({"tcpSocket": {"port": 80}, "periodSeconds": 1, "failureThreshold": 1});
        assert!(denied(Some(&usual), "Always", 480 << 10).is_empty(), "what charts have");
        assert!(denied(None, "Always", 500 << 10).is_empty(), "it has no probe");
        assert!(denied(Some(&fast), "Always", 20 << 10).is_empty());
        assert_eq!(denied(Some(&fast), "Always", 40 << 10), ["spec"]);
        assert_eq!(
            denied(Some(&fast), "Never", 40 << 10),
            ["spec"],
            "it can be ready and unready even so"
        );
    }

    #[test]
    fn small_pods_are_probed_as_often_as_they_like() {
        let probe = json!({"tcpSocket": {"port": 80}, "periodSeconds": 1});
        let container = |number: usize| json!({"name": format!("c{number}"), "image": "i", "readinessProbe": probe});
        let containers: Vec<Value> = (0..20).map(container).collect();
        assert!(changes_an_hour(&json!({ "containers": containers })) > 36_000);
        assert_eq!(denied_with("Always", &containers), [""; 0]);
    }

    #[test]
    fn what_berth_adds_for_services_does_not_count() {
        let pod = |bytes: usize| {
            let container = json!({"name": "main", "args": ["a".repeat(bytes)], "readinessProbe": {"periodSeconds": 1, "failureThreshold": 1}});
            json!({"spec": {"containers": [container]}})
        };
        let denied = |host: &Value| {
            let mut issues = FieldIssues::default();
            check_new(&pod(20 << 10), host, &mut issues);
            !issues.denied.is_empty()
        };
        assert!(!denied(&pod(80 << 10)), "64 KiB are variables of Services");
        assert!(denied(&pod(100 << 10)));
    }

    #[test]
    fn a_pod_that_runs_does_not_grow_beyond_that() {
        let pod = |probe: &Value, bytes: usize| {
            let mut container = probed(probe);
            container["args"] = json!(["a".repeat(bytes)]);
            json!({"spec": {"containers": [container]}})
        };
        let fast = json!({"periodSeconds": 1, "failureThreshold": 1});
        for most in [most_ephemeral_bytes, most_annotation_bytes] {
            let left = most(&pod(&fast, 0));
            assert!(left > 30 << 10 && left < 32 << 10, "{left}");
            assert_eq!(most(&pod(&fast, 100 << 10)), ALWAYS, "some in any case");
            assert!(most(&pod(&json!(null), 0)) > 400 << 10);
        }
    }

    #[test]
    fn the_reference_page_has_the_limit() {
        let page = include_str!("../../../../../docs/reference/object-sizes.md");
        assert_eq!((MOST_BYTES_AN_HOUR, SMALL, ALWAYS), (117_964_800, 32_768, 16_384));
        assert_eq!((OF_RESTARTS, OF_IMAGES), (36, 24));
        for text in [
            " 117,964,800 bytes an hour",
            " 32,768 bytes",
            " 16,384 bytes",
            " | 36 |",
            " | 24 |",
        ] {
            assert!(page.contains(text), "{text}");
        }
    }
}
