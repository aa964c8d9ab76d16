//! Security contexts: what the Pod Security Standard "baseline" allows, so that the host's own check of the workload
//! namespace never denies what passed here. Pods that name no seccomp profile get the container runtime's.

use super::tables::{CAPABILITIES as CAPABILITY_LISTS, PROFILE, SE_LINUX, SYSCTL};
use crate::{
    model::json,
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use serde_json::{Map, Value, json};

const WINDOWS: &str = "there are no Windows nodes";

/// The rules of `PodSecurityContext`.
pub const POD: Fields = &[
    ("appArmorProfile", Rule::Within(PROFILE)),
    ("fsGroup", Rule::Copy),
    ("fsGroupChangePolicy", Rule::Copy),
    ("runAsGroup", Rule::Copy),
    ("runAsNonRoot", Rule::Copy),
    ("runAsUser", Rule::Copy),
    ("seLinuxChangePolicy", Rule::Copy),
    ("seLinuxOptions", Rule::Within(SE_LINUX)),
    ("seccompProfile", Rule::Within(PROFILE)),
    ("supplementalGroups", Rule::Copy),
    ("supplementalGroupsPolicy", Rule::Copy),
    ("sysctls", Rule::Within(SYSCTL)),
    ("windowsOptions", Rule::Deny(WINDOWS)),
];

/// The rules of `SecurityContext`.
pub const CONTAINER: Fields = &[
    ("allowPrivilegeEscalation", Rule::Copy),
    ("appArmorProfile", Rule::Within(PROFILE)),
    ("capabilities", Rule::Within(CAPABILITY_LISTS)),
    (
        "privileged",
        Rule::Deny("privileged containers reach the node, which belongs to the platform"),
    ),
    ("procMount", Rule::Ignore("only the default is allowed")),
    ("readOnlyRootFilesystem", Rule::Copy),
    ("runAsGroup", Rule::Copy),
    ("runAsNonRoot", Rule::Copy),
    ("runAsUser", Rule::Copy),
    ("seLinuxOptions", Rule::Within(SE_LINUX)),
    ("seccompProfile", Rule::Within(PROFILE)),
    ("windowsOptions", Rule::Deny(WINDOWS)),
];

/// Capabilities that a container may add whatever its class says: those of the level `baseline`.
pub const BASELINE_CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Sysctls that act inside the pod only: those that Pod Security's level `baseline` allows in every supported version.
pub const SYSCTLS: &[&str] = &[
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// Types of SELinux that are those of containers.
pub const SE_LINUX_TYPES: &[&str] = &[
    "",
    "container_t",
    "container_init_t",
    "container_kvm_t",
    "container_engine_t",
];

/// The host pod's security context.
pub fn pod(context: &Value, path: &str, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = fields::copy(context, path, POD, issues);
    shared(context, path, issues);
    let mut sysctls = json::items(context, &["sysctls"]).to_vec();
    for (index, sysctl) in sysctls.iter_mut().enumerate() {
        let name = json::text(sysctl, &["name"]).unwrap_or_default().replace('/', ".");
        // Pod Security on the host knows them by this spelling only.
        sysctl["name"] = name.as_str().into();
        if !SYSCTLS.contains(&name.as_str()) {
            issues.deny(
                format!("{path}.sysctls[{index}]"),
                format!("{name} is not among the safe sysctls"),
            );
        }
    }
    if !sysctls.is_empty() {
        copied.insert("sysctls".into(), sysctls.into());
    }
    copied
}

/// The security context of a host container, which may add `capabilities` besides those of the level `baseline`.
pub fn container(context: &Value, capabilities: &[String], path: &str, issues: &mut FieldIssues) -> Map<String, Value> {
    let copied = fields::copy(context, path, CONTAINER, issues);
    shared(context, path, issues);
    for added in more_than_baseline(context) {
        if let Some(name) = added.strip_prefix("CAP_") {
            issues.deny(
                format!("{path}.capabilities.add"),
                format!(
                    "{added} is not a name of Kubernetes: capabilities have no CAP_ before their names; write {name}"
                ),
            );
        } else if !capabilities.iter().any(|given| given == added) {
            issues.deny(
                format!("{path}.capabilities.add"),
                format!(
                    "the capability {added} is not allowed: containers may add those that the Pod Security level baseline lists, and containers \
                     that are not ephemeral also those in sync.pods.capabilities of the class"
                ),
            );
        }
    }
    match json::text(context, &["procMount"]) {
        None | Some("" | "Default") => {}
        Some(_) => issues.deny(format!("{path}.procMount"), "only Default is allowed"),
    }
    copied
}

/// The capabilities beyond the level `baseline` that a security context adds. Names are as Kubernetes has them, without `CAP_`: the host's check knows no others,
/// and container runtimes put it before them.
fn more_than_baseline(context: &Value) -> impl Iterator<Item = &str> {
    let added = json::items(context, &["capabilities", "add"]).iter();
    let names = added.filter_map(Value::as_str);
    names.filter(|name| !BASELINE_CAPABILITIES.contains(name))
}

/// Whether a container adds capabilities beyond the level `baseline`, with which it stays on nodes of its tenant.
pub fn adds_more_than_baseline(container: &Value) -> bool {
    let context = container.get("securityContext");
    context.is_some_and(|context| more_than_baseline(context).next().is_some())
}

/// Gives a host pod without a seccomp profile the profile of the container runtime, as kubelets with `seccompDefault` do.
/// Containers that name a profile keep theirs.
pub fn default_seccomp_profile(spec: &mut Map<String, Value>) {
    // API servers reject the field in Windows pods.
    if is_windows(spec) {
        return;
    }
    let context = spec.entry("securityContext").or_insert_with(|| json!({}));
    if context.get("seccompProfile").is_none_or(json::is_unset) {
        json::set(context, &["seccompProfile"], json!({"type": "RuntimeDefault"}));
    }
}

/// Whether a pod, by its spec, is for Windows nodes.
pub fn is_windows(spec: &Map<String, Value>) -> bool {
    spec.get("os").and_then(|os| json::text(os, &["name"])) == Some("windows")
}

/// Takes from a container the capability to send packets under another address, which container runtimes give by default.
pub fn drop_raw_sockets(container: &mut Value) {
    const DROP: [&str; 3] = ["securityContext", "capabilities", "drop"];
    let mut dropped = json::items(container, &DROP).to_vec();
    // Container runtimes know capabilities by these names only, not as `CAP_NET_RAW`.
    if !dropped
        .iter()
        .any(|name| matches!(name.as_str(), Some("ALL" | "NET_RAW")))
    {
        dropped.push("NET_RAW".into());
        json::set(container, &DROP, dropped);
    }
}

/// Profiles that pods and containers both have.
fn shared(context: &Value, path: &str, issues: &mut FieldIssues) {
    for field in ["seccompProfile", "appArmorProfile"] {
        if json::text(context, &[field, "type"]) == Some("Unconfined") {
            issues.deny(format!("{path}.{field}.type"), "Unconfined is not allowed");
        }
    }
    if let Some(options) = context.get("seLinuxOptions") {
        if !SE_LINUX_TYPES.contains(&json::text(options, &["type"]).unwrap_or_default()) {
            issues.deny(
                format!("{path}.seLinuxOptions.type"),
                "only types of containers are allowed",
            );
        }
        for field in ["user", "role"] {
            if json::filled(options, &[field]).is_some() {
                issues.deny(format!("{path}.seLinuxOptions.{field}"), "not allowed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(f: impl FnOnce(&mut FieldIssues)) -> Vec<String> {
        let mut issues = FieldIssues::default();
        f(&mut issues);
        issues.denied.iter().map(|denied| denied.field.clone()).collect()
    }

    #[test]
    fn baseline_passes() {
        let context = json!({"runAsUser": 1000, "privileged": false, "procMount": "Default", "seccompProfile": {"type": "RuntimeDefault"},
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, "seLinuxOptions": {"type": "container_t"}});
        assert_eq!(denied(|issues| drop(container(&context, &[], "c", issues))), [""; 0]);
    }

    #[test]
    fn a_class_gives_capabilities_by_name() {
        let given = ["IPC_LOCK".to_owned()];
        let add = |names: Value| json!({"capabilities": {"add": names}});
        let denials =
            |names: Value, given: &[String]| denied(|issues| drop(container(&add(names), given, "c", issues))).len();
        assert_eq!(denials(json!(["IPC_LOCK", "CHOWN"]), &given), 0);
        assert_eq!(denials(json!(["IPC_LOCK"]), &[]), 1);
        assert_eq!(denials(json!(["CAP_IPC_LOCK", "SYS_ADMIN"]), &given), 2);
        let stays = |names: Value| adds_more_than_baseline(&json!({"securityContext": add(names)}));
        assert!(stays(json!(["CHOWN", "IPC_LOCK"])) && !stays(json!(["CHOWN"])));
        assert!(!adds_more_than_baseline(&json!({"name": "c"})));
    }

    /// The host would reject the pod, with a message that names host objects.
    #[test]
    fn capabilities_are_named_without_a_prefix() {
        let context = json!({"capabilities": {"add": ["CHOWN", "CAP_CHOWN"]}});
        let mut issues = FieldIssues::default();
        container(&context, &[], "c", &mut issues);
        let denied: Vec<_> = issues
            .denied
            .iter()
            .map(|denied| (denied.field.as_str(), denied.why.as_str()))
            .collect();
        assert_eq!(denied.len(), 1, "{denied:?}");
        assert!(
            denied[0].0 == "c.capabilities.add" && denied[0].1.ends_with("write CHOWN"),
            "{denied:?}"
        );
    }

    #[test]
    fn security_settings_that_leave_the_container_are_denied() {
        let context = json!({"privileged": true, "procMount": "Unmasked", "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"}, "capabilities": {"add": ["SYS_ADMIN", "CAP_NET_RAW"]},
            "seLinuxOptions": {"type": "spc_t", "user": "u"}, "windowsOptions": {"hostProcess": true}});
        assert_eq!(
            denied(|issues| drop(container(&context, &[], "c", issues))),
            [
                "c.privileged",
                "c.windowsOptions",
                "c.seccompProfile.type",
                "c.appArmorProfile.type",
                "c.seLinuxOptions.type",
                "c.seLinuxOptions.user",
                "c.capabilities.add",
                "c.capabilities.add",
                "c.procMount"
            ]
        );
    }

    #[test]
    fn pods_without_a_seccomp_profile_get_that_of_the_runtime() {
        let with_default = |spec: Value| {
            let mut spec = spec.as_object().unwrap().clone();
            default_seccomp_profile(&mut spec);
            Value::Object(spec)
        };
        let runtime_default = json!({"type": "RuntimeDefault"});
        for unset in [
            json!({}),
            json!({"securityContext": {}}),
            json!({"os": {"name": "linux"}, "securityContext": {"seccompProfile": null, "runAsUser": 7}}),
        ] {
            let host = with_default(unset.clone());
            assert_eq!(host["securityContext"]["seccompProfile"], runtime_default, "{unset}");
            assert_eq!(
                host["securityContext"].get("runAsUser"),
                unset["securityContext"].get("runAsUser")
            );
        }
        for set in [
            json!({"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "a.json"}}}),
            json!({"os": {"name": "windows"}}),
        ] {
            assert_eq!(with_default(set.clone()), set);
        }
    }

    #[test]
    fn raw_sockets_are_dropped_once_and_by_the_name_that_runtimes_know() {
        let dropped = |context: Value| {
            let mut container = json!({"name": "c", "securityContext": context});
            drop_raw_sockets(&mut container);
            container["securityContext"]["capabilities"]["drop"].clone()
        };
        assert_eq!(dropped(Value::Null), json!(["NET_RAW"]));
        assert_eq!(
            dropped(json!({"capabilities": {"drop": ["KILL"]}})),
            json!(["KILL", "NET_RAW"])
        );
        assert_eq!(
            dropped(json!({"capabilities": {"drop": ["CAP_NET_RAW"]}})),
            json!(["CAP_NET_RAW", "NET_RAW"])
        );
        for enough in ["ALL", "NET_RAW"] {
            let context = json!({"capabilities": {"drop": [enough], "add": ["KILL"]}});
            assert_eq!(dropped(context), json!([enough]));
        }
    }

    #[test]
    fn only_safe_sysctls_pass() {
        let context = json!({"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}, {"name": "kernel.msgmax", "value": "1"}]});
        assert_eq!(denied(|issues| drop(pod(&context, "p", issues))), ["p.sysctls[1]"]);
        let slashes = json!({"sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}]});
        let translated = pod(&slashes, "p", &mut FieldIssues::default());
        assert_eq!(translated["sysctls"][0]["name"], "kernel.shm_rmid_forced");
    }
}
