//! Security contexts: what the Pod Security Standard "baseline" allows, so that the host's own check of the workload
//! namespace never denies what passed here.

use super::tables::{CAPABILITIES as CAPABILITY_LISTS, PROFILE, SE_LINUX, SYSCTL};
use crate::{
    model::json,
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use serde_json::{Map, Value};

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

/// Capabilities that a container may add.
const CAPABILITIES: &[&str] = &[
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
const SYSCTLS: &[&str] = &[
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

const SE_LINUX_TYPES: &[&str] = &[
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

/// The security context of a host container.
pub fn container(context: &Value, path: &str, issues: &mut FieldIssues) -> Map<String, Value> {
    let copied = fields::copy(context, path, CONTAINER, issues);
    shared(context, path, issues);
    if let Some(capabilities) = context.get("capabilities") {
        for added in json::items(capabilities, &["add"]).iter().filter_map(Value::as_str) {
            if !CAPABILITIES.contains(&added.strip_prefix("CAP_").unwrap_or(added)) {
                issues.deny(
                    format!("{path}.capabilities.add"),
                    format!("the capability {added} is not allowed"),
                );
            }
        }
    }
    match json::text(context, &["procMount"]) {
        None | Some("" | "Default") => {}
        Some(_) => issues.deny(format!("{path}.procMount"), "only Default is allowed"),
    }
    copied
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
            if json::text(options, &[field]).is_some_and(|text| !text.is_empty()) {
                issues.deny(format!("{path}.seLinuxOptions.{field}"), "not allowed");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn denied(f: impl FnOnce(&mut FieldIssues)) -> Vec<String> {
        let mut issues = FieldIssues::default();
        f(&mut issues);
        issues.denied.iter().map(|denied| denied.field.clone()).collect()
    }

    #[test]
    fn baseline_passes() {
        let context = json!({"runAsUser": 1000, "privileged": false, "procMount": "Default", "seccompProfile": {"type": "RuntimeDefault"},
            "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, "seLinuxOptions": {"type": "container_t"}});
        assert_eq!(denied(|issues| drop(container(&context, "c", issues))), [""; 0]);
    }

    #[test]
    fn security_settings_that_leave_the_container_are_denied() {
        let context = json!({"privileged": true, "procMount": "Unmasked", "seccompProfile": {"type": "Unconfined"},
            "appArmorProfile": {"type": "Unconfined"}, "capabilities": {"add": ["SYS_ADMIN", "CAP_NET_RAW"]},
            "seLinuxOptions": {"type": "spc_t", "user": "u"}, "windowsOptions": {"hostProcess": true}});
        assert_eq!(
            denied(|issues| drop(container(&context, "c", issues))),
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
    fn only_safe_sysctls_pass() {
        let context = json!({"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}, {"name": "kernel.msgmax", "value": "1"}]});
        assert_eq!(denied(|issues| drop(pod(&context, "p", issues))), ["p.sysctls[1]"]);
        let slashes = json!({"sysctls": [{"name": "kernel/shm_rmid_forced", "value": "1"}]});
        let translated = pod(&slashes, "p", &mut FieldIssues::default());
        assert_eq!(translated["sysctls"][0]["name"], "kernel.shm_rmid_forced");
    }
}
