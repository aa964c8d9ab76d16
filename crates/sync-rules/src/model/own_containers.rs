//! Which containers of a host pod are the tenant's: the platform may have added others there.

use crate::model::json;
use serde_json::{Map, Value};

/// Lists of containers in the spec of a pod, and those of their statuses.
const LISTS: [(&str, &str); 3] = [
    ("containers", "containerStatuses"),
    ("initContainers", "initContainerStatuses"),
    (EPHEMERAL, "ephemeralContainerStatuses"),
];
/// The list to which containers can be added later, so that the host may refuse one that the tenant's pod has.
const EPHEMERAL: &str = "ephemeralContainers";
/// Field of an ephemeral container of a host pod, as the store keeps it: the platform has added it, as with `kubectl debug` on the host.
pub const FOREIGN: &str = "foreign";
/// Variable that each container of the tenant has on the host, with those of its API server. Nobody else gives it to a container: kubelets add it by themselves,
/// and webhooks of providers that set `KUBERNETES_SERVICE_HOST` leave it out.
pub const OF_TENANT: &str = "KUBERNETES_PORT_443_TCP_PROTO";

/// What the container of a host pod is that has a name in the tenant's pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedContainer {
    /// The tenant's own.
    Own,
    /// The tenant's own if there is one: the host has not reported it yet, or has refused it.
    Unreported,
    /// None, or one that the platform added to the host pod.
    Foreign,
}

/// Finds out what the container of a host pod with this name is, from both pods.
///
/// A container that a pod has from the beginning is the tenant's also before it has a status: the host accepts no pod in which another container has
/// the name. An ephemeral one comes later, and the host refuses it if the platform added a container of that name, while the tenant's pod keeps it. So
/// it is the tenant's only if the host reports it as an ephemeral container, and the platform has not [added](FOREIGN) it in the same way.
pub fn find(tenant: &Value, host: &Value, name: &str) -> NamedContainer {
    let Some((list, statuses)) = LISTS.into_iter().find(|(list, _)| has(tenant, "spec", list, name)) else {
        return NamedContainer::Foreign;
    };
    if has_foreign(host, name) {
        return NamedContainer::Foreign;
    }
    if has(host, "status", statuses, name) {
        return NamedContainer::Own;
    }
    if LISTS.into_iter().any(|(_, other)| has(host, "status", other, name)) {
        return NamedContainer::Foreign;
    }
    if list == EPHEMERAL {
        NamedContainer::Unreported
    } else {
        NamedContainer::Own
    }
}

/// Trims an ephemeral container of a host pod, as the host's API server has it, to its name, and to whether the platform has added it. What is trimmed does
/// not have the variables any more, so a second call would take every container for the platform's.
pub fn trim_ephemeral(container: &mut Map<String, Value>) {
    let mut variables = container.get("env").and_then(Value::as_array).into_iter().flatten();
    let is_own = variables.any(|variable| variable["name"] == OF_TENANT);
    container.retain(|field, _| field == "name");
    if !is_own {
        container.insert(FOREIGN.into(), true.into());
    }
}

/// Whether the platform has added an ephemeral container of this name to a host pod, as the store keeps it.
pub fn has_foreign(host: &Value, name: &str) -> bool {
    let mut containers = json::items(host, &["spec", EPHEMERAL]).iter();
    containers.any(|container| container["name"] == name && container.get(FOREIGN).is_some())
}

/// Whether a list in a part of a pod has an entry of this name.
fn has(pod: &Value, part: &str, list: &str, name: &str) -> bool {
    json::items(pod, &[part, list])
        .iter()
        .any(|container| container["name"] == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Value {
        json!({"spec": {
            "containers": [{"name": "main"}], "initContainers": [{"name": "prepare"}], "ephemeralContainers": [{"name": "debug"}]}})
    }

    #[test]
    fn containers_are_own_before_the_host_reports_them() {
        for host in [json!({}), json!({"status": {"phase": "Pending"}})] {
            for (name, expected) in [
                ("main", NamedContainer::Own),
                ("prepare", NamedContainer::Own),
                ("debug", NamedContainer::Unreported),
                ("injected", NamedContainer::Foreign),
            ] {
                assert_eq!(find(&pod(), &host, name), expected, "{name}");
            }
        }
    }

    #[test]
    fn containers_are_own_in_every_state() {
        let states = [
            json!({"waiting": {"reason": "CrashLoopBackOff"}}),
            json!({"running": {}}),
            json!({"terminated": {"exitCode": 1}}),
        ];
        for state in states {
            let host = json!({"status": {
                "containerStatuses": [{"name": "main", "restartCount": 3, "state": state}, {"name": "injected", "state": state}],
                "initContainerStatuses": [{"name": "prepare", "state": state}],
                "ephemeralContainerStatuses": [{"name": "debug", "state": state}]}});
            for name in ["main", "prepare", "debug"] {
                assert_eq!(find(&pod(), &host, name), NamedContainer::Own, "{name} {state}");
            }
            assert_eq!(find(&pod(), &host, "injected"), NamedContainer::Foreign);
        }
    }

    #[test]
    fn an_ephemeral_container_that_the_platform_has_added_is_foreign() {
        let trimmed = |mut container: Value| {
            trim_ephemeral(container.as_object_mut().unwrap());
            container
        };
        let variables = json!([{"name": "A", "value": "1"}, {"name": OF_TENANT, "value": "tcp"}]);
        let own = trimmed(json!({"name": "debug", "image": "a", "env": variables}));
        assert_eq!(own, json!({"name": "debug"}));
        let of_platform = trimmed(json!({"name": "debug", "image": "a", "securityContext": {"privileged": true}}));
        let by_webhook = json!([{"name": "KUBERNETES_SERVICE_HOST", "value": "host.example.com"}]);
        let changed = trimmed(json!({"name": "debug", "image": "a", "env": by_webhook}));
        for (container, expected) in [
            (own, NamedContainer::Own),
            (of_platform, NamedContainer::Foreign),
            (changed, NamedContainer::Foreign),
        ] {
            let host = json!({"spec": {"ephemeralContainers": [container]},
                "status": {"ephemeralContainerStatuses": [{"name": "debug", "state": {"running": {}}}]}});
            assert_eq!(find(&pod(), &host, "debug"), expected);
        }
    }

    #[test]
    fn an_ephemeral_container_with_the_name_of_another_one_is_foreign() {
        for list in ["containerStatuses", "initContainerStatuses"] {
            let host = json!({"status": {list: [{"name": "debug", "state": {"running": {}}}]}});
            assert_eq!(find(&pod(), &host, "debug"), NamedContainer::Foreign, "{list}");
        }
    }
}
