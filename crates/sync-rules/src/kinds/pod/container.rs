//! Containers, init containers and ephemeral containers.

use super::{
    environment::Environment,
    security,
    tables::{EXEC, GRPC, HTTP_HEADER, RESIZE_POLICY, RESTART_RULE, SLEEP},
};
use crate::{
    model::json,
    translation::fields::{self, FieldIssues, Fields, Rule},
};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// The rules of `Container` and `EphemeralContainer`.
pub const CONTAINER: Fields = &[
    ("args", Rule::Copy),
    ("command", Rule::Copy),
    ("env", Rule::Rewrite),
    ("envFrom", Rule::Rewrite),
    ("image", Rule::Copy),
    ("imagePullPolicy", Rule::Copy),
    ("lifecycle", Rule::Rewrite),
    ("livenessProbe", Rule::Rewrite),
    ("name", Rule::Copy),
    ("ports", Rule::Rewrite),
    ("readinessProbe", Rule::Rewrite),
    ("resizePolicy", Rule::Within(RESIZE_POLICY)),
    ("resources", Rule::Rewrite),
    ("restartPolicy", Rule::Copy),
    ("restartPolicyRules", Rule::Within(RESTART_RULE)),
    ("securityContext", Rule::Rewrite),
    ("startupProbe", Rule::Rewrite),
    ("stdin", Rule::Copy),
    ("stdinOnce", Rule::Copy),
    ("targetContainerName", Rule::Copy),
    ("terminationMessagePath", Rule::Copy),
    ("terminationMessagePolicy", Rule::Copy),
    ("tty", Rule::Copy),
    ("volumeDevices", Rule::Rewrite),
    ("volumeMounts", Rule::Rewrite),
    ("workingDir", Rule::Copy),
];

/// The rules of `ResourceRequirements`.
pub const RESOURCES: Fields = &[
    ("limits", Rule::Copy),
    ("requests", Rule::Copy),
    ("claims", Rule::Rewrite),
];

/// The rules of `ContainerPort`.
pub const PORT: Fields = &[
    ("containerPort", Rule::Copy),
    ("hostIP", Rule::Deny("pods cannot use host ports")),
    ("hostPort", Rule::Deny("pods cannot use host ports")),
    ("name", Rule::Copy),
    ("protocol", Rule::Copy),
];

/// The folder of mounts that NVIDIA's container runtime can be configured to read as a list of devices. Runtimes and nodes have several paths that lead to it,
/// so a path may not contain its name at all.
pub const DEVICE_MOUNTS: &str = "nvidia-container-devices";

/// The rules of `VolumeMount`.
pub const MOUNT: Fields = &[
    ("bindMountOptions", Rule::Copy),
    ("mountPath", Rule::Rewrite),
    ("mountPropagation", Rule::Rewrite),
    ("name", Rule::Copy),
    ("readOnly", Rule::Copy),
    ("recursiveReadOnly", Rule::Copy),
    ("subPath", Rule::Copy),
    ("subPathExpr", Rule::Copy),
];

/// The rules of `VolumeDevice`.
pub const DEVICE: Fields = &[("devicePath", Rule::Copy), ("name", Rule::Copy)];

/// The rules of `Probe`.
pub const PROBE: Fields = &[
    ("exec", Rule::Within(EXEC)),
    ("failureThreshold", Rule::Copy),
    ("grpc", Rule::Within(GRPC)),
    ("httpGet", Rule::Rewrite),
    ("initialDelaySeconds", Rule::Copy),
    ("periodSeconds", Rule::Copy),
    ("successThreshold", Rule::Copy),
    ("tcpSocket", Rule::Rewrite),
    ("terminationGracePeriodSeconds", Rule::Copy),
    ("timeoutSeconds", Rule::Copy),
];

/// The rules of `Lifecycle`.
pub const LIFECYCLE: Fields = &[
    ("postStart", Rule::Rewrite),
    ("preStop", Rule::Rewrite),
    ("stopSignal", Rule::Copy),
];

/// The rules of `LifecycleHandler`.
pub const HANDLER: Fields = &[
    ("exec", Rule::Within(EXEC)),
    ("httpGet", Rule::Rewrite),
    ("sleep", Rule::Within(SLEEP)),
    ("tcpSocket", Rule::Rewrite),
];

const PROBE_HOST: &str = "the node would call that host: only the pod itself may be probed";
/// The rules of `HTTPGetAction` and `TCPSocketAction`.
pub const ENDPOINT: Fields = &[
    ("host", Rule::Deny(PROBE_HOST)),
    ("httpHeaders", Rule::Within(HTTP_HEADER)),
    ("path", Rule::Copy),
    ("port", Rule::Copy),
    ("protocol", Rule::Copy),
    ("scheme", Rule::Copy),
];

/// The host's container for a tenant's container, which may add `capabilities` besides the usual ones.
pub fn translate(
    environment: &Environment<'_>,
    capabilities: &[String],
    container: &Value,
    path: &str,
    ephemeral: bool,
    issues: &mut FieldIssues,
) -> Value {
    let mut copied = fields::copy(container, path, CONTAINER, issues);
    let env = environment.variables(container, path, issues);
    if !env.is_empty() {
        copied.insert("env".into(), env.into());
    }
    let env_from = environment.sources(container, path, issues);
    if !env_from.is_empty() {
        copied.insert("envFrom".into(), env_from.into());
    }
    if let Some(context) = container.get("securityContext") {
        let context = security::container(context, capabilities, &format!("{path}.securityContext"), issues);
        copied.insert("securityContext".into(), context.into());
    }
    let mounts: Vec<Value> = json::items(container, &["volumeMounts"])
        .iter()
        .enumerate()
        .map(|(index, mount)| mount_of(mount, &format!("{path}.volumeMounts[{index}]"), issues).into())
        .collect();
    if !mounts.is_empty() {
        copied.insert("volumeMounts".into(), mounts.into());
    }
    let devices: Vec<Value> = json::items(container, &["volumeDevices"])
        .iter()
        .enumerate()
        .map(|(index, device)| fields::copy(device, &format!("{path}.volumeDevices[{index}]"), DEVICE, issues).into())
        .collect();
    if !devices.is_empty() {
        copied.insert("volumeDevices".into(), devices.into());
    }
    if !ephemeral {
        regular(container, path, &mut copied, issues);
    }
    copied.into()
}

/// What only regular and init containers have.
fn regular(container: &Value, path: &str, copied: &mut Map<String, Value>, issues: &mut FieldIssues) {
    if let Some(resources) = container.get("resources") {
        let resources = self::resources(resources, &format!("{path}.resources"), issues);
        copied.insert("resources".into(), resources.into());
    }
    // Server-side apply wants each port once; a container may list it several times.
    let mut seen = HashSet::new();
    let mut ports = Vec::new();
    for (index, port) in json::items(container, &["ports"]).iter().enumerate() {
        let copy = fields::copy(port, &format!("{path}.ports[{index}]"), PORT, issues);
        let id = (
            port.get("containerPort").cloned().map(|port| port.to_string()),
            json::text(port, &["protocol"]).unwrap_or("TCP"),
        );
        if seen.insert(id) {
            ports.push(Value::Object(copy));
        }
    }
    if !ports.is_empty() {
        copied.insert("ports".into(), ports.into());
    }
    for field in ["livenessProbe", "readinessProbe", "startupProbe"] {
        if let Some(probe) = container.get(field) {
            let path = format!("{path}.{field}");
            let mut copy = fields::copy(probe, &path, PROBE, issues);
            endpoints(probe, &path, &mut copy, issues);
            copied.insert(field.into(), copy.into());
        }
    }
    if let Some(lifecycle) = container.get("lifecycle") {
        let path = format!("{path}.lifecycle");
        let mut copy = fields::copy(lifecycle, &path, LIFECYCLE, issues);
        for field in ["postStart", "preStop"] {
            if let Some(handler) = lifecycle.get(field) {
                let path = format!("{path}.{field}");
                let mut handler_copy = fields::copy(handler, &path, HANDLER, issues);
                endpoints(handler, &path, &mut handler_copy, issues);
                copy.insert(field.into(), handler_copy.into());
            }
        }
        copied.insert("lifecycle".into(), copy.into());
    }
}

fn endpoints(object: &Value, path: &str, copied: &mut Map<String, Value>, issues: &mut FieldIssues) {
    for field in ["httpGet", "tcpSocket"] {
        if let Some(endpoint) = object.get(field) {
            let endpoint = fields::copy(endpoint, &format!("{path}.{field}"), ENDPOINT, issues);
            copied.insert(field.into(), endpoint.into());
        }
    }
}

/// Resource requirements of a container or a pod.
pub fn resources(resources: &Value, path: &str, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = fields::copy(resources, path, RESOURCES, issues);
    let claims = super::claims::of_container(resources, path, issues);
    if !claims.is_empty() {
        copied.insert("claims".into(), claims.into());
    }
    copied
}

fn mount_of(mount: &Value, path: &str, issues: &mut FieldIssues) -> Map<String, Value> {
    let mut copied = fields::copy(mount, path, MOUNT, issues);
    match json::text(mount, &["mountPropagation"]) {
        None => {}
        Some("Bidirectional") => {
            issues.deny(
                format!("{path}.mountPropagation"),
                "mounts of a pod must not reach its node",
            );
        }
        Some(other) => {
            copied.insert("mountPropagation".into(), other.into());
        }
    }
    if let Some(target) = json::text(mount, &["mountPath"]) {
        if target.contains(DEVICE_MOUNTS) {
            issues.deny(
                format!("{path}.mountPath"),
                format!("paths that contain {DEVICE_MOUNTS} choose devices without the scheduler: request these as resources"),
            );
        }
        copied.insert("mountPath".into(), target.into());
    }
    copied
}
