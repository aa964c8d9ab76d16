//! How often the status of a pod may change, by its size: with each change, the host's etcd keeps another version of the whole pod for minutes.
//!
//! Kubelets write the status of each pod as often as it changes, up to 50 times a second for all pods of a node. A tenant decides on both: on the bytes, and on
//! probes whose result changes all the time or containers that end again and again. With the largest pods that would be 40 MB a second for each node.
//!
//! | change | how often, in an hour |
//! |---|---|
//! | a container becomes ready and unready | 7,200 divided by `periodSeconds`, and by `failureThreshold` and `successThreshold` together |
//! | a container ends and starts again, after the longest back-off of kubelets: five minutes | 3 changes each time, so 36 |
//!
//! Bytes times changes are [limited](MOST_BYTES_AN_HOUR). Containers of a pod that run once do not start again, so those pods may have any size.

use crate::{
    model::json,
    translation::{fields::FieldIssues, sizes::count_bytes},
};
use serde_json::Value;

/// Most bytes that changes of one pod may cost in an hour: 32 KiB a second. A pod with one container and the probe of most charts, which is tried every ten
/// seconds and fails three times before it counts, may have half a megabyte then; one that is ready and unready each second, 32 KiB.
const MOST_BYTES_AN_HOUR: u64 = 32 * 1024 * 3600;
/// Changes in an hour of a container that fails all the time.
const OF_RESTARTS: u64 = 36;
/// Bytes that annotations and ephemeral containers may have in any case, as far as their own limits allow: a pod that runs needs some.
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
        if starts_again { OF_RESTARTS } else { 0 }
    };
    lasting_containers(spec)
        .map(|container| readiness_changes(container) + restarts(container))
        .sum()
}

/// Most bytes of a pod with this spec.
fn most_bytes(spec: &Value) -> usize {
    let most = MOST_BYTES_AN_HOUR / changes_an_hour(spec).max(1);
    usize::try_from(most).unwrap_or(usize::MAX)
}

/// Most bytes of the annotations of a tenant's pod on the host, besides their own limit: they can grow while the pod runs.
pub(super) fn most_annotation_bytes(pod: &Value) -> usize {
    let spec = &pod["spec"];
    most_bytes(spec).saturating_sub(count_bytes(spec)).max(ALWAYS)
}

/// Denies a new pod that would become too large on the host, as `host`, for how often its status can change.
pub(super) fn check_new(host: &Value, issues: &mut FieldIssues) {
    let most = most_bytes(&host["spec"]);
    if most >= LARGEST {
        return;
    }
    let bytes = count_bytes(host);
    if bytes > most {
        let why = format!(
            "the pod has {bytes} bytes on the host, and may have at most {most}: its readiness can change, and its containers can start again, {} times an \
             hour, and each time the host stores the whole pod. Let readinessProbe be tried less often (periodSeconds, failureThreshold), use fewer \
             containers, or put data into ConfigMaps and Secrets",
            changes_an_hour(&host["spec"])
        );
        issues.deny("spec", why);
    }
}

/// Denies ephemeral containers of a tenant's pod that runs, if they make it too large for how often its status can change.
pub(super) fn check_running(pod: &Value, issues: &mut FieldIssues) {
    let spec = &pod["spec"];
    let Some(added) = spec.get("ephemeralContainers").map(count_bytes) else {
        return;
    };
    let room = most_bytes(spec).saturating_sub(count_bytes(spec).saturating_sub(added));
    if added > room.max(ALWAYS) {
        let why = format!(
            "they have {added} bytes, and may have at most {}: the status of this pod can change {} times an hour, and each time the host stores the whole pod",
            room.max(ALWAYS),
            changes_an_hour(spec)
        );
        issues.deny("spec.ephemeralContainers", why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kinds::pod::build, model::resource::Name, model::tenant::test_tenant, registry};
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
            (json!({"restartPolicy": "Never", "containers": [plain, plain]}), 0),
            (json!({"restartPolicy": "OnFailure", "containers": [plain, plain]}), 72),
            // What API servers set.
            (
                json!({"restartPolicy": "Never", "containers": [probed(&json!({"tcpSocket": {}}))]}),
                180,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [probed(&json!({"periodSeconds": 0}))]}),
                180,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [probed(&every_second)]}),
                3600,
            ),
            (
                json!({"containers": [probed(&every_second), probed(&every_second)]}),
                7272,
            ),
            (
                json!({"restartPolicy": "Never", "containers": [probed(&json!({"periodSeconds": 86_400}))]}),
                1,
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

    /// The fields that are denied of a new pod with one container, which has so many bytes of arguments.
    fn denied(probe: Option<&Value>, restarts: &str, bytes: usize) -> Vec<String> {
        let mut container = json!({"name": "main", "image": "i", "args": ["a".repeat(bytes)]});
        if let Some(probe) = probe {
            container["readinessProbe"] = probe.clone();
        }
        let pod = json!({"metadata": {"name": "p", "uid": "u"}, "spec": {"restartPolicy": restarts, "containers": [container]}});
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
    fn a_pod_that_runs_does_not_grow_beyond_that() {
        let fast = json!({"periodSeconds": 1, "failureThreshold": 1});
        let pod = |probe: &Value, debug: usize| {
            let ephemeral = json!([{"name": "debug", "args": ["a".repeat(debug)]}]);
            json!({"spec": {"containers": [probed(probe)], "ephemeralContainers": ephemeral}})
        };
        let denied = |probe: &Value, debug: usize| {
            let mut issues = FieldIssues::default();
            check_running(&pod(probe, debug), &mut issues);
            !issues.denied.is_empty()
        };
        assert!(!denied(&fast, 30 << 10) && denied(&fast, 40 << 10));
        assert!(!denied(&json!(null), 400 << 10));
        assert_eq!(
            most_annotation_bytes(&pod(&fast, 100 << 10)),
            ALWAYS,
            "some in any case"
        );
        let left = most_annotation_bytes(&pod(&fast, 0));
        assert!(left > 30 << 10 && left < 32 << 10, "{left}");
    }

    #[test]
    fn the_reference_page_has_the_limit() {
        let page = include_str!("../../../../../docs/reference/object-sizes.md");
        assert_eq!((MOST_BYTES_AN_HOUR, OF_RESTARTS, ALWAYS), (117_964_800, 36, 16_384));
        assert!(page.contains(" 117,964,800 bytes an hour") && page.contains(" 16,384 bytes"));
    }
}
