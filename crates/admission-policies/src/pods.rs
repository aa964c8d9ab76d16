//! Pods: on the tenant's own nodes, under its own accounts, without the platform's devices, volumes and names.
//!
//! What would leave a container (host paths, networks, ports, privileges, capabilities, sysctls, hosts of probes) Pod
//! Security refuses already: the workload namespace enforces `baseline`.

use super::{Place, Requests, Rule, WRITES, Wall, Who, cel, rule, shared};
use berth_api::{labels, policy_annotations};
use berth_sync_rules::kinds::{
    metadata::REFUSED_ANNOTATIONS,
    pod::{DEVICE_VARIABLES, NO_DEVICE},
};

/// The pods of a workload namespace.
pub(super) fn walls() -> Vec<Wall> {
    vec![existing(), new(), shared::wall()]
}

/// What holds as long as a pod exists.
fn existing() -> Wall {
    let mut variables = vec![cel::slug()];
    variables.extend(cel::maps());
    variables.extend(shared::variables());
    Wall {
        name: "berth-pods",
        about: "Pods of a tenant stay on its own nodes and those it may share, and get devices from the scheduler only.",
        place: Place::Workloads,
        who: Who::Anybody,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["pods", "pods/ephemeralcontainers"],
            operations: WRITES,
        }],
        variables,
        rules: vec![
            rule(
                format!("variables.labels[?'{}'].orValue('') == {}", labels::TENANT, cel::SLUG),
                "pods in this namespace carry the label berth.dev/tenant of its tenant",
            ),
            shared::where_pods_run(),
            tolerations(),
            annotations(),
            devices("containers"),
            devices("initContainers"),
            devices("ephemeralContainers"),
        ],
    }
}

fn tolerations() -> Rule {
    let own = format!(
        "t.key == '{}' && t.?operator.orValue('Equal') == 'Equal' && t.?value.orValue('') == {}",
        labels::TENANT,
        cel::SLUG
    );
    rule(
        format!(
            "object.spec.?tolerations.orValue([]).all(t, t.?key.orValue('') != '' && (!{} || ({own})))",
            cel::reserved("t.key")
        ),
        "spec.tolerations may name no taint of another tenant, and not every taint at once",
    )
}

/// Calico, Multus and container runtimes write such annotations themselves, so only what is new counts.
fn annotations() -> Rule {
    let refused = cel::in_domains(REFUSED_ANNOTATIONS.iter().map(|(domain, _)| *domain));
    rule(
        format!(
            "!{} || variables.annotations.all(k, !k.matches('{refused}') || \
             (k in variables.oldAnnotations && variables.oldAnnotations[k] == variables.annotations[k]))",
            cel::is_tenants()
        ),
        "metadata.annotations may not steer the node's container runtime, devices or network",
    )
}

fn devices(containers: &str) -> Rule {
    rule(
        format!(
            "object.spec.?{containers}.orValue([]).all(c, c.?env.orValue([]).all(e, \
             !(e.name in {}) || (!has(e.valueFrom) && e.?value.orValue('') in {})))",
            cel::list(DEVICE_VARIABLES.iter().copied()),
            cel::list(NO_DEVICE.iter().copied())
        ),
        "environment variables may not choose devices past the scheduler",
    )
}

/// What is decided when a pod is made, and cannot change after that.
fn new() -> Wall {
    Wall {
        name: "berth-new-pods",
        about: "Pods of a tenant are made as its class allows.",
        place: Place::Workloads,
        who: Who::Anybody,
        requests: vec![Requests {
            group: "",
            version: "v1",
            resources: &["pods"],
            operations: &["CREATE"],
        }],
        variables: vec![
            cel::allowed("serviceAccounts", policy_annotations::SERVICE_ACCOUNTS),
            cel::allowed("runtimeClasses", policy_annotations::RUNTIME_CLASSES),
            cel::allowed("schedulers", policy_annotations::SCHEDULERS),
            cel::allowed("priorityClasses", policy_annotations::PRIORITY_CLASSES),
            cel::allowed("inlineDrivers", policy_annotations::INLINE_DRIVERS),
            ("volumes", "object.spec.?volumes.orValue([])".into()),
            ("account", "object.spec.?serviceAccountName.orValue('')".into()),
        ],
        rules: vec![
            rule(
                "object.spec.?nodeName.orValue('') == ''",
                "spec.nodeName must be left to the scheduler",
            ),
            rule(
                "variables.account == 'default' || (variables.account != '' && variables.account in variables.serviceAccounts)",
                "spec.serviceAccountName must be default, or an account that the tenant's class maps",
            ),
            rule(
                "object.spec.?automountServiceAccountToken.orValue(true) == false",
                "spec.automountServiceAccountToken must be false: tokens of the host are not for tenants",
            ),
            rule(
                "object.spec.?dnsPolicy.orValue('') in ['None', 'Default']",
                "spec.dnsPolicy must be None or Default: the host's cluster DNS is not for tenants",
            ),
            rule(
                "object.spec.?schedulerName.orValue('default-scheduler') == 'default-scheduler' || \
                 object.spec.schedulerName in variables.schedulers || '*' in variables.schedulers",
                "spec.schedulerName must be default-scheduler, or one that the tenant's class lists",
            ),
            rule(
                "object.spec.?priorityClassName.orValue('') == '' || \
                 object.spec.priorityClassName in variables.priorityClasses",
                "spec.priorityClassName must be one of the tenant's class",
            ),
            rule(
                "object.spec.?runtimeClassName.orValue('') == '' || \
                 object.spec.runtimeClassName in variables.runtimeClasses || '*' in variables.runtimeClasses",
                "spec.runtimeClassName must be one that the tenant's class lists",
            ),
            rule(
                "variables.volumes.all(v, has(v.configMap) || has(v.secret) || has(v.emptyDir) || has(v.image) || \
                 has(v.downwardAPI) || has(v.projected) || has(v.persistentVolumeClaim) || has(v.csi))",
                "spec.volumes may not reach the node or the platform's network",
            ),
            rule(
                "variables.volumes.all(v, !has(v.csi) || v.csi.driver in variables.inlineDrivers || \
                 '*' in variables.inlineDrivers)",
                "spec.volumes[].csi.driver must be one that the tenant's class lists",
            ),
            // Clouds bring tokens of the accounts that they know into pods, for an audience of their own.
            rule(
                "variables.volumes.all(v, !has(v.projected) || v.projected.?sources.orValue([]).all(s, \
                 has(s.configMap) || has(s.secret) || has(s.downwardAPI) || \
                 (has(s.serviceAccountToken) && variables.account != 'default' && \
                 s.serviceAccountToken.?audience.orValue('') != '')))",
                "spec.volumes[].projected may not hold tokens or certificates of the host",
            ),
        ],
    }
}
