//! Control's own objects on the host: its namespace, RBAC, service account and PriorityClass.

use crate::control_plane::API_SERVER;
use berth_admission_policies::{BYPASS, MIRROR_PODS, RESOURCE, SERVE, USE, USED_RESOURCES};
use berth_api::{labels, system};
use berth_sync_rules::permissions;
use k8s_openapi::{
    api::{
        core::v1::{Namespace, ServiceAccount},
        rbac::v1::{AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject},
        scheduling::v1::PriorityClass,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use std::collections::BTreeMap;

/// Name of the ClusterRole that aggregates the rules of ClusterRoles with [`labels::AGGREGATE_TO_CONTROL`].
const KINDS_NAME: &str = "berth-control-kinds";
/// Name of the ClusterRole for kinds of upstream Kubernetes that only some installations use.
const UPSTREAM_NAME: &str = "berth-control-kinds-upstream";
/// Name of the ClusterRole for users who may name every class and pool in a TenantCluster. It is bound to nobody.
const USE_ALL_NAME: &str = "berth-use-all";
/// Name of the ClusterRole for users who may see what all tenants used, and what that costs. It is bound to nobody.
const USAGE_READER_NAME: &str = "berth-usage-reader";
/// Name of the ClusterRole for kubelets whose mirror pods Services may select, and of its binding.
const MIRROR_PODS_NAME: &str = "berth-mirror-pods";
/// Name of the ClusterRole that control needs besides where it runs control planes as processes, and of its binding.
const PROCESSES_NAME: &str = "berth-control-processes";

/// Verbs of who reads.
const READ: [&str; 3] = ["get", "list", "watch"];

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    let all = |texts: &[&str]| Some(texts.iter().map(ToString::to_string).collect());
    PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: all(resources),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        ..PolicyRule::default()
    }
}

/// Control's permissions on the host. It can grant to syncers only what it has itself, so their rules are part of its own.
fn control_rules() -> Vec<PolicyRule> {
    const WRITE: [&str; 7] = ["get", "list", "watch", "create", "update", "patch", "delete"];
    const RECORD: [&str; 5] = ["get", "list", "create", "update", "delete"];
    let mut rules = vec![
        rule(
            "berth.dev",
            &[
                "tenantclusters",
                "hostnodepools",
                "organizations",
                "projects",
                "tenantclasses",
                "tenantsnapshots",
                "schedulepolicies",
            ],
            &READ,
        ),
        // Tenants that have expired are deleted.
        rule("berth.dev", &["tenantclusters"], &["patch", "delete"]),
        // Those of schedules and before restores. They have a finalizer.
        rule("berth.dev", &["tenantsnapshots"], &["create", "patch", "delete"]),
        // Their finalizer.
        rule("berth.dev", &["organizations", "projects"], &["patch"]),
        rule(
            "berth.dev",
            &[
                "tenantclusters/status",
                "hostnodepools/status",
                "organizations/status",
                "projects/status",
                "tenantclasses/status",
                "tenantsnapshots/status",
                "schedulepolicies/status",
                "tenantclusters/finalizers",
                "tenantsnapshots/finalizers",
                "organizations/finalizers",
                "projects/finalizers",
            ],
            &["patch", "update"],
        ),
        rule("berth.dev", &["tenantnodes", "tenantschedules"], &WRITE),
        // What tenants used. They outlast the tenants.
        rule("berth.dev", &["usagerecords"], &RECORD),
        rule("berth.dev", &["tenantnodes/status"], &["patch"]),
        rule("berth.dev", &[RESOURCE], &[BYPASS]),
        // For kubelets of the host's control plane.
        rule("berth.dev", &[MIRROR_PODS], &[SERVE]),
        rule("", &["namespaces", "secrets", "serviceaccounts", "services"], &WRITE),
        // What a tenant may have of each kind on the host.
        rule("", &["resourcequotas", "limitranges"], &["get", "create", "patch"]),
        // What tenants use of it.
        rule("", &["resourcequotas"], &["list"]),
        rule("", &["nodes"], &["get", "list", "watch", "patch"]),
        // Placeholder pods are created and deleted with the permissions of syncers, and pods deleted that have to leave a node.
        rule("", &["pods"], &["get", "list", "watch", "deletecollection"]),
        rule("", &["pods/eviction"], &["create"]),
        // For syncers: each may read the usage of its tenant's nodes.
        rule("metrics.k8s.io", &["nodes"], &["get"]),
        // Control planes as pods. The pods are deleted with the permissions of syncers.
        rule(
            "apps",
            &["deployments"],
            &["get", "list", "watch", "create", "patch", "delete"],
        ),
        // Those of changes that are never rolled out.
        rule("apps", &["replicasets"], &["list", "delete"]),
        rule(
            "policy",
            &["poddisruptionbudgets"],
            &["get", "create", "patch", "delete"],
        ),
        rule("", &["events"], &["create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "get", "patch"]),
        rule(
            "rbac.authorization.k8s.io",
            &["roles", "rolebindings", "clusterroles", "clusterrolebindings"],
            &WRITE,
        ),
        rule("networking.k8s.io", &["servicecidrs"], &READ),
        rule("networking.k8s.io", &["networkpolicies"], &WRITE),
        rule(
            "policy.networking.k8s.io",
            &["clusternetworkpolicies", "adminnetworkpolicies"],
            &["get", "create", "patch", "delete"],
        ),
        rule("discovery.k8s.io", &["endpointslices"], &["get", "list"]),
        // Claims that keep a node are deleted with the permissions of syncers.
        rule(
            "resource.k8s.io",
            &[
                "deviceclasses",
                "resourceclaims",
                "resourceclaimtemplates",
                "resourceslices",
            ],
            &READ,
        ),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["get"]),
        rule(
            "scheduling.k8s.io",
            &["priorityclasses"],
            &["get", "list", "watch", "create", "delete"],
        ),
    ];
    rules.extend(permissions::host_workload_rules(&berth_api::SyncPolicy::default()));
    rules.extend(permissions::host_control_plane_rules());
    rules.extend(permissions::host_cluster_rules());
    rules
}

/// Control's permissions in its own namespace.
fn own_namespace_rules() -> Vec<PolicyRule> {
    vec![
        // Scrubbing and validating nodes between two tenants.
        rule("batch", &["jobs"], &["get", "list", "create", "delete"]),
        // RBAC knows no name of an object that is created.
        rule("coordination.k8s.io", &["leases"], &["create"]),
        PolicyRule {
            resource_names: Some(vec![system::CONTROL.into()]),
            ..rule("coordination.k8s.io", &["leases"], &["get", "update", "patch"])
        },
    ]
}

fn named(name: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        ..ObjectMeta::default()
    }
}

/// Control's ClusterRoles: its own, one that aggregates those that the platform adds, and a first one of these. And two that
/// the platform may bind to users, and one that control binds to kubelets.
pub fn cluster_roles() -> [ClusterRole; 6] {
    const SYNCED: [&str; 6] = ["get", "list", "watch", "create", "patch", "delete"];
    let own = ClusterRole {
        metadata: named(system::CONTROL),
        rules: Some(control_rules()),
        aggregation_rule: None,
    };
    let label = BTreeMap::from([(labels::AGGREGATE_TO_CONTROL.to_owned(), "true".to_owned())]);
    let aggregated = ClusterRole {
        metadata: named(KINDS_NAME),
        // Filled in by the host's controller manager.
        rules: None,
        aggregation_rule: Some(AggregationRule {
            cluster_role_selectors: Some(vec![LabelSelector {
                match_labels: Some(label.clone()),
                match_expressions: None,
            }]),
        }),
    };
    let upstream = ClusterRole {
        metadata: ObjectMeta {
            labels: Some(label),
            ..named(UPSTREAM_NAME)
        },
        rules: Some(vec![rule("scheduling.k8s.io", &["podgroups", "workloads"], &SYNCED)]),
        aggregation_rule: None,
    };
    let use_all = ClusterRole {
        metadata: named(USE_ALL_NAME),
        rules: Some(vec![rule(berth_api::GROUP, &USED_RESOURCES, &[USE])]),
        aggregation_rule: None,
    };
    let usage_reader = ClusterRole {
        metadata: named(USAGE_READER_NAME),
        rules: Some(vec![rule(berth_api::GROUP, &["usagerecords", "ratecards"], &READ)]),
        aggregation_rule: None,
    };
    let mirror_pods = ClusterRole {
        metadata: named(MIRROR_PODS_NAME),
        rules: Some(vec![rule(berth_api::GROUP, &[MIRROR_PODS], &[SERVE])]),
        aggregation_rule: None,
    };
    [own, aggregated, upstream, use_all, usage_reader, mirror_pods]
}

/// Control's Role in its own namespace: for its lease, and for the Jobs that scrub and validate nodes.
pub fn role() -> Role {
    Role {
        metadata: in_own_namespace(system::CONTROL),
        rules: Some(own_namespace_rules()),
    }
}

/// The Role of the Jobs for the certificates of the chart's etcd, as the chart has it.
pub fn certificates_role() -> Role {
    let of_objects = |resource: &str, names: &[&str], verbs: &[&str]| PolicyRule {
        resource_names: Some(names.iter().map(ToString::to_string).collect()),
        ..rule("", &[resource], verbs)
    };
    let secrets = [
        "berth-etcd-ca",
        "berth-etcd-server",
        "berth-etcd-peer-ca",
        "berth-etcd-peer",
    ];
    Role {
        metadata: in_own_namespace(system::CERTIFICATES),
        rules: Some(vec![
            // RBAC knows no name of an object that is created.
            rule("", &["secrets"], &["create"]),
            of_objects("secrets", &secrets, &["get", "patch"]),
            of_objects("services", &["berth-etcd"], &["get"]),
        ]),
    }
}

/// Binds control's Role to a user.
pub fn role_binding(user: &str) -> RoleBinding {
    let ClusterRoleBinding { role_ref, subjects, .. } = binding(system::CONTROL, [user]);
    RoleBinding {
        metadata: in_own_namespace(system::CONTROL),
        role_ref: RoleRef {
            kind: "Role".into(),
            ..role_ref
        },
        subjects,
    }
}

/// What a control that runs control planes as processes needs besides, bound to a user: tokens of syncers, which pods get from their kubelet.
pub fn process_runtime_role(user: &str) -> (ClusterRole, ClusterRoleBinding) {
    let role = ClusterRole {
        metadata: named(PROCESSES_NAME),
        rules: Some(vec![rule("", &["serviceaccounts/token"], &["create"])]),
        aggregation_rule: None,
    };
    (role, binding(PROCESSES_NAME, [user]))
}

fn in_own_namespace(name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(system::NAMESPACE.into()),
        ..named(name)
    }
}

/// Binds control's ClusterRoles to a user.
pub fn cluster_role_bindings(user: &str) -> [ClusterRoleBinding; 2] {
    [system::CONTROL, KINDS_NAME].map(|name| binding(name, [user]))
}

/// Lets the kubelets of these nodes create mirror pods that Services select.
pub fn mirror_pod_binding<'n>(nodes: impl IntoIterator<Item = &'n str>) -> ClusterRoleBinding {
    let users: Vec<String> = nodes.into_iter().map(|node| format!("system:node:{node}")).collect();
    binding(MIRROR_PODS_NAME, users.iter().map(String::as_str))
}

/// Binds the ClusterRole with this name to users.
fn binding<'u>(name: &str, users: impl IntoIterator<Item = &'u str>) -> ClusterRoleBinding {
    let subjects = users.into_iter().map(|user| Subject {
        api_group: Some("rbac.authorization.k8s.io".into()),
        kind: "User".into(),
        name: user.into(),
        namespace: None,
    });
    ClusterRoleBinding {
        metadata: named(name),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".into()),
            kind: "ClusterRole".into(),
            name: name.into(),
        },
        subjects: Some(subjects.collect()),
    }
}

/// The ClusterRole of the gateway, as the chart has it for hosts with the admission policies, and its binding to the gateway's user.
pub fn gateway_role() -> (ClusterRole, ClusterRoleBinding) {
    let mut services = rule("", &["services"], &["list", "watch"]);
    services.resource_names = Some(vec![API_SERVER.into()]);
    let role = ClusterRole {
        metadata: named(system::GATEWAY),
        // The admission policy berth-gateway leaves one annotation of the right to patch.
        rules: Some(vec![
            rule(berth_api::GROUP, &["tenantclusters"], &["list", "watch", "patch"]),
            services,
        ]),
        aggregation_rule: None,
    };
    (role, binding(system::GATEWAY, [system::GATEWAY_USER]))
}

/// The service account of the Jobs that scrub and validate nodes. It has no permissions.
pub fn scrub_service_account() -> ServiceAccount {
    ServiceAccount {
        metadata: in_own_namespace(system::SCRUB_SERVICE_ACCOUNT),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

/// The PriorityClass of placeholder pods: every workload preempts them, and they preempt nothing.
pub fn placeholder_priority() -> PriorityClass {
    PriorityClass {
        metadata: named(system::PLACEHOLDER_PRIORITY_CLASS),
        value: Some(system::PLACEHOLDER_PRIORITY),
        preemption_policy: Some("Never".into()),
        description: Some("For placeholder pods, which show the demand of tenants of Berth to autoscalers.".into()),
        global_default: None,
    }
}

/// Control's namespace.
pub fn namespace() -> Namespace {
    Namespace {
        metadata: named(system::NAMESPACE),
        ..Namespace::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_kubernetes_versions::{KUBERNETES_DEFAULT, KUBERNETES_PREVIOUS};

    /// Which fields are null in what a policy sees depends on the version of the API server.
    #[test]
    fn policies_know_the_null_fields_of_the_versions_that_are_tested() {
        let known = berth_admission_policies::NULL_FIELDS_OF;
        assert_eq!(known, [KUBERNETES_DEFAULT, KUBERNETES_PREVIOUS]);
    }

    /// The rules of these that are for this resource.
    fn rules_for<'a>(rules: &'a [PolicyRule], resource: &str) -> Vec<&'a PolicyRule> {
        let is_for = |rule: &&PolicyRule| rule.resources.iter().flatten().any(|named| named == resource);
        rules.iter().filter(is_for).collect()
    }

    #[test]
    fn control_may_read_and_delete_claims_of_devices() {
        let [own, ..] = cluster_roles();
        let rules = own.rules.unwrap_or_default();
        let of_claims = rules_for(&rules, "resourceclaims");
        for verb in ["get", "delete"] {
            let mut verbs = of_claims.iter().flat_map(|rule| &rule.verbs);
            assert!(verbs.any(|allowed| allowed == verb), "{verb}");
        }
    }

    #[test]
    fn what_control_needs_in_its_own_namespace_it_has_nowhere_else() {
        for role in cluster_roles() {
            let rules = role.rules.unwrap_or_default();
            for resource in ["serviceaccounts/token", "jobs", "leases"] {
                let found = rules_for(&rules, resource);
                assert!(found.is_empty(), "{:?}: {found:?}", role.metadata.name);
            }
        }
        let (role, binding) = (role(), role_binding("control"));
        for metadata in [&role.metadata, &binding.metadata] {
            assert_eq!(metadata.namespace.as_deref(), Some(system::NAMESPACE));
        }
        assert_eq!(
            (binding.role_ref.kind.as_str(), Some(&binding.role_ref.name)),
            ("Role", role.metadata.name.as_ref())
        );
        let rules = role.rules.unwrap();
        for resource in ["jobs", "leases"] {
            assert!(!rules_for(&rules, resource).is_empty(), "{resource}");
        }
        for lease in rules_for(&rules, "leases") {
            assert_eq!(lease.resource_names.is_none(), lease.verbs == ["create"], "{lease:?}");
        }
    }

    #[test]
    fn tokens_are_for_control_planes_that_are_processes() {
        let (role, binding) = process_runtime_role("control");
        assert_eq!(rules_for(&role.rules.unwrap(), "serviceaccounts/token").len(), 1);
        assert_eq!(Some(binding.role_ref.name), role.metadata.name);
    }
}
