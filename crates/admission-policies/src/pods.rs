//! Pods: only on the tenant's own nodes, with its own service accounts, without the platform's devices, volumes and names.
//! For annotations see `annotations`.
//!
//! Host paths, host networks, host ports, privileges, capabilities, sysctls and hosts of probes are not checked here: the
//! workload namespace enforces the Pod Security level `baseline`.

use super::{AdmissionPolicy, ResourceRule, Scope, Subjects, Validation, WRITES, cel, shared_nodes, validation};
use berth_api::{labels, policy_annotations};
use berth_sync_rules::translation::device_variables::{DEVICE_VARIABLES, NO_DEVICE};

pub(super) fn build_policies() -> Vec<AdmissionPolicy> {
    vec![build_pod_policy(), build_new_pod_policy(), shared_nodes::build_policy()]
}

/// What holds as long as a pod exists.
fn build_pod_policy() -> AdmissionPolicy {
    let mut variables = vec![cel::tenant_slug_variable()];
    variables.extend(cel::metadata_variables());
    variables.extend(shared_nodes::placement_variables());
    AdmissionPolicy {
        name: "berth-pods",
        description: "Pods of a tenant run only on its own nodes and on shared nodes that it may use, and get devices only from the scheduler.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods", "pods/ephemeralcontainers"],
            operations: WRITES,
        }],
        variables,
        validations: vec![
            validation(
                format!(
                    "variables.labels[?'{}'].orValue('') == {}",
                    labels::TENANT,
                    cel::TENANT_SLUG
                ),
                "pods in this namespace must carry the label berth.dev/tenant of its tenant",
            ),
            shared_nodes::validate_placement(),
            validate_tolerations(),
            validate_device_variables("containers"),
            validate_device_variables("initContainers"),
            validate_device_variables("ephemeralContainers"),
        ],
    }
}

fn validate_tolerations() -> Validation {
    let own = format!(
        "t.key == '{}' && t.?operator.orValue('Equal') == 'Equal' && t.?value.orValue('') == {}",
        labels::TENANT,
        cel::TENANT_SLUG
    );
    validation(
        format!(
            "object.spec.?tolerations.orValue([]).all(t, t.?key.orValue('') != '' && (!{} || ({own})))",
            cel::is_reserved_key("t.key")
        ),
        "spec.tolerations may not name a taint of another tenant, nor all taints (a toleration without a key)",
    )
}

fn validate_device_variables(containers: &str) -> Validation {
    validation(
        format!(
            "object.spec.?{containers}.orValue([]).all(c, c.?env.orValue([]).all(e, \
             !(e.name in {}) || (!has(e.valueFrom) && e.?value.orValue('') in {})))",
            cel::string_list(DEVICE_VARIABLES.iter().copied()),
            cel::string_list(NO_DEVICE.iter().copied())
        ),
        "environment variables may not choose devices: the scheduler assigns them",
    )
}

/// Fields that cannot change after a pod was created.
fn build_new_pod_policy() -> AdmissionPolicy {
    AdmissionPolicy {
        name: "berth-new-pods",
        description: "Pods of a tenant are created as its class allows.",
        scope: Scope::WorkloadNamespaces,
        subjects: Subjects::Everyone,
        resource_rules: vec![ResourceRule {
            group: "",
            version: "v1",
            resources: &["pods"],
            operations: &["CREATE"],
        }],
        variables: vec![
            cel::allowed_names_variable("serviceAccounts", policy_annotations::SERVICE_ACCOUNTS),
            cel::allowed_names_variable("runtimeClasses", policy_annotations::RUNTIME_CLASSES),
            cel::allowed_names_variable("schedulers", policy_annotations::SCHEDULERS),
            cel::allowed_names_variable("priorityClasses", policy_annotations::PRIORITY_CLASSES),
            cel::allowed_names_variable("inlineDrivers", policy_annotations::INLINE_DRIVERS),
            ("volumes", "object.spec.?volumes.orValue([])".into()),
            ("account", "object.spec.?serviceAccountName.orValue('')".into()),
        ],
        validations: vec![
            validation(
                "object.spec.?nodeName.orValue('') == ''",
                "spec.nodeName must be left to the scheduler",
            ),
            validation(
                "variables.account == 'default' || (variables.account != '' && variables.account in variables.serviceAccounts)",
                "spec.serviceAccountName must be default, or an account that the tenant's class maps",
            ),
            validation(
                "object.spec.?automountServiceAccountToken.orValue(true) == false",
                "spec.automountServiceAccountToken must be false: tenants get no tokens of the host",
            ),
            validation(
                "object.spec.?dnsPolicy.orValue('') in ['None', 'Default']",
                "spec.dnsPolicy must be None or Default: tenants may not use the host's cluster DNS",
            ),
            validation(
                "object.spec.?schedulerName.orValue('default-scheduler') == 'default-scheduler' || \
                 object.spec.schedulerName in variables.schedulers || '*' in variables.schedulers",
                "spec.schedulerName must be default-scheduler, or one that the tenant's class lists",
            ),
            validation(
                "object.spec.?priorityClassName.orValue('') == '' || \
                 object.spec.priorityClassName in variables.priorityClasses",
                "spec.priorityClassName must be one of the tenant's class",
            ),
            validation(
                "object.spec.?runtimeClassName.orValue('') == '' || \
                 object.spec.runtimeClassName in variables.runtimeClasses || '*' in variables.runtimeClasses",
                "spec.runtimeClassName must be one that the tenant's class lists",
            ),
            validation(
                "variables.volumes.all(v, has(v.configMap) || has(v.secret) || has(v.emptyDir) || has(v.image) || \
                 has(v.downwardAPI) || has(v.projected) || has(v.persistentVolumeClaim) || has(v.csi))",
                "spec.volumes may not reach the node or the platform's network",
            ),
            validation(
                "variables.volumes.all(v, !has(v.csi) || v.csi.driver in variables.inlineDrivers || \
                 '*' in variables.inlineDrivers)",
                "spec.volumes[].csi.driver must be one that the tenant's class lists",
            ),
            // Webhooks of cloud providers add tokens of the accounts that they know to pods, for an audience of their own.
            validation(
                "variables.volumes.all(v, !has(v.projected) || v.projected.?sources.orValue([]).all(s, \
                 has(s.configMap) || has(s.secret) || has(s.downwardAPI) || \
                 (has(s.serviceAccountToken) && variables.account != 'default' && \
                 s.serviceAccountToken.?audience.orValue('') != '')))",
                "spec.volumes[].projected may not hold tokens or certificates of the host",
            ),
        ],
    }
}
