//! The ValidatingAdmissionPolicies of Berth: requests that the host's API server rejects, from any client.
//!
//! A syncer follows the rules of its tenant's class. If its credential is stolen, these policies enforce the same rules. They
//! are plain data: [`all_policies`] lists them, `berth_control::install` applies them to local clusters, the Helm chart
//! carries the same objects in `charts/berth/files/admission-policies.yaml`.
//!
//! Policies read what a class allows from annotations of the workload namespace ([`berth_api::policy_annotations`]). Policies on
//! objects of the platform (nodes, namespaces) ask the host's RBAC instead of listing users: who has the verb `bypass` on
//! `admissionpolicies.berth.dev` may change them. That is control, and cluster-admins, who could delete the policies as well.
//! Which classes and pools a user may name in a TenantCluster is asked of RBAC as well: the verb [`USE`]. Which namespaces they may be
//! named in is read from all classes and pools, which are the parameters of two policies.
//!
//! [`mutating_policies`] change requests before these policies see them, on hosts that can do that. Nothing depends on them.

mod allowed_namespaces;
mod annotations;
mod cel;
mod device_variables;
mod devices;
mod endpoints;
mod events;
mod field_checks;
mod gateway;
mod ingresses_and_routes;
mod kubelets;
mod metadata;
mod namespaces;
mod network_policies;
mod nodes;
mod pod_status;
mod pods;
mod room;
mod secrets;
mod services;
mod shared_nodes;
mod sizes;
mod storage;
mod team_pods;
mod tenant_clusters;
mod tenant_nodes;
mod user_quotas;

pub use tenant_clusters::{USE, USED_RESOURCES};

use berth_api::{GROUP, VERSION, labels};
use k8s_openapi::{
    api::admissionregistration::v1::{
        self, MatchCondition, MatchResources, MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding,
        NamedRuleWithOperations, ParamKind, ParamRef, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
        ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec, Variable,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
};
use std::{borrow::Cow, collections::BTreeMap};

/// Resource of the API group `berth.dev` that exists only for the right to [`BYPASS`] the policies.
pub const RESOURCE: &str = "admissionpolicies";
/// Verb of the right to make requests that the policies would reject.
pub const BYPASS: &str = "bypass";
/// Resource of the API group `berth.dev` that exists only for the right to [`SERVE`].
pub const MIRROR_PODS: &str = "mirrorpods";
/// Verb of the right of a kubelet to create mirror pods that Services and NetworkPolicies select.
pub const SERVE: &str = "serve";

/// Whose requests a policy validates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subjects {
    /// All users but those that RBAC lets bypass the policies.
    Everyone,
    /// The same. Validations ask RBAC last, because such requests are frequent and nearly all of them valid.
    EveryoneAskedLast,
    /// The tenant's own identities: the service accounts of its control-plane namespace. Controllers of the host work on the
    /// same objects and are trusted.
    TenantIdentities,
    /// The gateway, which is open to the outside.
    Gateway,
    /// Kubelets, whose credentials somebody has who is root on a node.
    Kubelets,
    /// Pods whose token says on which node they run, agents of nodes among them.
    PodsOfHost,
    /// All users but kubelets and the tenant's own identities, for which there are other policies. Validations ask RBAC last, because such
    /// requests are frequent and nearly all of them valid.
    OthersOnHost,
}

/// Where the objects are that a policy validates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// In the workload namespaces of all tenants.
    WorkloadNamespaces,
    /// In the control-plane namespaces of all tenants.
    ControlPlaneNamespaces,
    /// In the workload and control-plane namespaces of all tenants.
    TenantNamespaces,
    /// In every namespace that is not of a tenant: those of teams and of the platform.
    OtherNamespaces,
    /// In every namespace.
    AllNamespaces,
    /// Cluster-scoped objects.
    Cluster,
    /// Everywhere, cluster-scoped objects included.
    Everywhere,
}

impl Scope {
    /// The selector of namespaces. It does not apply to cluster-scoped objects: all of them would match.
    fn namespace_selector(self) -> LabelSelector {
        let of_role = |role: &str| LabelSelector {
            match_labels: Some(BTreeMap::from([(labels::ROLE.to_owned(), role.to_owned())])),
            match_expressions: None,
        };
        let with_role = |operator: &str| LabelSelector {
            match_labels: None,
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: labels::ROLE.into(),
                operator: operator.into(),
                values: None,
            }]),
        };
        match self {
            Self::WorkloadNamespaces => of_role(labels::ROLE_WORKLOADS),
            Self::ControlPlaneNamespaces => of_role(labels::ROLE_CONTROL_PLANE),
            Self::TenantNamespaces => with_role("Exists"),
            Self::OtherNamespaces => with_role("DoesNotExist"),
            Self::AllNamespaces | Self::Cluster | Self::Everywhere => LabelSelector::default(),
        }
    }

    /// The scope of rules.
    fn of_rules(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::Everywhere => "*",
            Self::WorkloadNamespaces
            | Self::ControlPlaneNamespaces
            | Self::TenantNamespaces
            | Self::OtherNamespaces
            | Self::AllNamespaces => "Namespaced",
        }
    }
}

/// Objects that are the parameters of a policy. A request must be valid with each of them; without any, it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// All TenantClasses.
    TenantClass,
    /// All HostNodePools.
    HostNodePool,
    /// The TenantClusters in the namespace of the request. A policy can have them only to be for such namespaces.
    TenantClusterOfNamespace,
    /// The Services in the namespace of the request.
    ServiceOfNamespace,
}

impl ParameterKind {
    fn build(self) -> ParamKind {
        let ours = format!("{GROUP}/{VERSION}");
        let (api_version, kind) = match self {
            Self::TenantClass => (ours, "TenantClass"),
            Self::HostNodePool => (ours, "HostNodePool"),
            Self::TenantClusterOfNamespace => (ours, "TenantCluster"),
            Self::ServiceOfNamespace => ("v1".into(), "Service"),
        };
        ParamKind {
            api_version: Some(api_version),
            kind: Some(kind.into()),
        }
    }
}

/// Requests that a policy validates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRule {
    /// API group.
    pub group: &'static str,
    /// API version in which the expressions see objects; `*` for the version of the request.
    pub version: &'static str,
    /// Resources, and subresources as `resource/subresource`.
    pub resources: &'static [&'static str],
    /// CREATE, UPDATE; DELETE only of what isolates a tenant's identities, by the gateway, and of slices by agents of nodes: it must be
    /// possible to delete a wrong object.
    pub operations: &'static [&'static str],
}

impl ResourceRule {
    /// Writes of objects of every kind.
    const fn writes_of_every_kind() -> Self {
        Self {
            group: "*",
            version: "*",
            resources: &["*"],
            operations: WRITES,
        }
    }

    fn build(&self, scope: Scope) -> NamedRuleWithOperations {
        let texts = |list: &[&str]| Some(list.iter().map(ToString::to_string).collect::<Vec<_>>());
        NamedRuleWithOperations {
            api_groups: texts(&[self.group]),
            api_versions: texts(&[self.version]),
            operations: texts(self.operations),
            resources: texts(self.resources),
            resource_names: None,
            scope: Some(scope.of_rules().into()),
        }
    }
}

/// A CEL expression that must be true, and the message if it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Validation {
    /// The expression.
    pub expression: String,
    /// Shown to the client whose request is rejected.
    pub message: Cow<'static, str>,
}

/// One ValidatingAdmissionPolicy and its binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionPolicy {
    /// Name of both objects.
    pub name: &'static str,
    /// One sentence for the annotation `kubernetes.io/description`.
    pub description: &'static str,
    /// Where the validated objects are.
    pub scope: Scope,
    /// Whose requests are validated.
    pub subjects: Subjects,
    /// Objects that the expressions read as `params`, if they read some.
    pub parameters: Option<ParameterKind>,
    /// What must hold besides, by name, for a request to be validated: an API server evaluates nothing else for other requests. Conditions
    /// read neither variables nor the namespace.
    pub conditions: Vec<(&'static str, String)>,
    /// Which requests are validated.
    pub resource_rules: Vec<ResourceRule>,
    /// Expressions that validations share, by name.
    pub variables: Vec<(&'static str, String)>,
    /// What must hold.
    pub validations: Vec<Validation>,
}

const WRITES: &[&str] = &["CREATE", "UPDATE"];

/// Every policy of Berth.
pub fn all_policies() -> Vec<AdmissionPolicy> {
    let mut policies = pods::build_policies();
    policies.extend([
        annotations::build_policy(),
        secrets::build_policy(),
        device_variables::build_policy(),
        services::build_policy(),
        endpoints::build_policy(),
        events::build_policy(),
        user_quotas::build_policy(),
    ]);
    policies.extend(metadata::build_policies());
    policies.extend(pod_status::build_policies());
    policies.extend(storage::build_policies());
    policies.extend(devices::build_policies());
    policies.extend(ingresses_and_routes::build_policies());
    policies.extend(sizes::build_policies());
    policies.extend(room::build_policies());
    policies.extend(allowed_namespaces::build_policies());
    policies.extend(kubelets::build_policies());
    policies.extend([
        namespaces::build_policy(),
        network_policies::build_policy(),
        nodes::build_policy(),
        team_pods::build_policy(),
        tenant_nodes::build_policy(),
        tenant_clusters::build_policy(),
        tenant_clusters::build_status_policy(),
        gateway::build_policy(),
    ]);
    policies
}

/// Policies that change requests, with their bindings. Hosts have the kinds from Kubernetes 1.36 on.
pub fn mutating_policies() -> [(MutatingAdmissionPolicy, MutatingAdmissionPolicyBinding); 1] {
    [events::build_mutating_policy()]
}

fn validation(expression: impl Into<String>, message: impl Into<Cow<'static, str>>) -> Validation {
    Validation {
        expression: expression.into(),
        message: message.into(),
    }
}

fn match_condition(name: &str, expression: String) -> MatchCondition {
    MatchCondition {
        name: name.into(),
        expression,
    }
}

fn build_metadata(name: &str, description: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        labels: Some(BTreeMap::from([(
            "app.kubernetes.io/part-of".to_owned(),
            "berth".to_owned(),
        )])),
        annotations: Some(BTreeMap::from([(
            "kubernetes.io/description".to_owned(),
            description.to_owned(),
        )])),
        ..ObjectMeta::default()
    }
}

impl AdmissionPolicy {
    /// The condition on the user. Policies without one check the user in their validations.
    fn subject_condition(&self) -> Option<MatchCondition> {
        let (name, is_subject) = match self.subjects {
            Subjects::EveryoneAskedLast => return None,
            // Only if something reserved changes.
            Subjects::Everyone if self.scope == Scope::Cluster => return None,
            // Most requests in these namespaces are a syncer's: RBAC, which compares the user with every ClusterRoleBinding, is not asked
            // about it.
            Subjects::Everyone if self.scope == Scope::WorkloadNamespaces => (
                "may-not-bypass",
                format!("{} || !{}", cel::is_tenant_identity(), cel::may_bypass_policies()),
            ),
            Subjects::Everyone => ("may-not-bypass", format!("!{}", cel::may_bypass_policies())),
            Subjects::TenantIdentities => ("is-tenant-identity", cel::is_tenant_identity()),
            Subjects::Gateway => ("is-gateway", cel::is_gateway()),
            Subjects::Kubelets => ("is-kubelet", cel::is_kubelet()),
            Subjects::PodsOfHost => ("is-pod", format!("{}.size() > 0", cel::NODES_OF_USER)),
            Subjects::OthersOnHost => (
                "is-neither-kubelet-nor-tenant",
                format!("!{} && !{}", cel::is_kubelet(), cel::is_tenant_identity()),
            ),
        };
        Some(match_condition(name, is_subject))
    }

    /// What an API server does that cannot evaluate the policy: it rejects the request. A policy with parameters is ignored: after its
    /// installation and after each restart, an API server needs up to 30 seconds to find the kind of the parameters, and would reject the
    /// requests of everybody, control among them.
    fn failure_policy(&self) -> &'static str {
        if self.parameters.is_some() { "Ignore" } else { "Fail" }
    }

    /// The ValidatingAdmissionPolicy.
    pub fn build_policy(&self) -> ValidatingAdmissionPolicy {
        let further = self.conditions.iter();
        let further = further.map(|(name, expression)| match_condition(name, expression.clone()));
        let conditions: Vec<MatchCondition> = self.subject_condition().into_iter().chain(further).collect();
        let resource_rules = self.resource_rules.iter().map(|rule| rule.build(self.scope));
        let validations = self.validations.iter().map(|validation| v1::Validation {
            expression: validation.expression.clone(),
            message: Some(validation.message.to_string()),
            message_expression: None,
            reason: Some("Forbidden".into()),
        });
        let variables = self.variables.iter().map(|(name, expression)| Variable {
            name: (*name).into(),
            expression: expression.clone(),
        });
        ValidatingAdmissionPolicy {
            metadata: build_metadata(self.name, self.description),
            spec: Some(ValidatingAdmissionPolicySpec {
                failure_policy: Some(self.failure_policy().into()),
                param_kind: self.parameters.map(ParameterKind::build),
                match_constraints: Some(MatchResources {
                    match_policy: Some("Equivalent".into()),
                    namespace_selector: Some(self.scope.namespace_selector()),
                    object_selector: Some(LabelSelector::default()),
                    resource_rules: Some(resource_rules.collect()),
                    exclude_resource_rules: None,
                }),
                match_conditions: (!conditions.is_empty()).then_some(conditions),
                variables: Some(variables.collect()),
                validations: Some(validations.collect()),
                ..ValidatingAdmissionPolicySpec::default()
            }),
            status: None,
        }
    }

    /// The ValidatingAdmissionPolicyBinding.
    pub fn build_binding(&self) -> ValidatingAdmissionPolicyBinding {
        ValidatingAdmissionPolicyBinding {
            metadata: build_metadata(self.name, self.description),
            spec: ValidatingAdmissionPolicyBindingSpec {
                policy_name: self.name.into(),
                // The audit log shows whose requests were rejected: an intact syncer's never are.
                validation_actions: vec!["Deny".into(), "Audit".into()],
                match_resources: None,
                param_ref: self.parameters.map(|_| ParamRef {
                    // All that there are: everywhere for cluster-scoped kinds, and in the namespace of the request for others. What a
                    // request names and does not exist is reported by control, as without this policy.
                    selector: Some(LabelSelector::default()),
                    parameter_not_found_action: Some("Allow".into()),
                    ..ParamRef::default()
                }),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn policies_have_unique_names_and_a_message_for_every_rejection() {
        let all = all_policies();
        let mut names: BTreeSet<String> = all.iter().map(|policy| policy.name.to_owned()).collect();
        let changing = mutating_policies();
        names.extend(changing.iter().filter_map(|(policy, _)| policy.metadata.name.clone()));
        assert_eq!(names.len(), all.len() + changing.len());
        for policy in &all {
            let name = policy.name;
            assert!(name.starts_with("berth-"), "{name}");
            assert!(
                !policy.validations.is_empty() && !policy.resource_rules.is_empty(),
                "{name}"
            );
            for Validation { message, .. } in &policy.validations {
                // One line, no longer than the API server accepts. The API server puts it into a sentence.
                assert!(
                    (20..200).contains(&message.len()) && !message.ends_with('.'),
                    "{message}"
                );
            }
        }
    }

    #[test]
    fn parameters_are_read_by_the_policies_that_have_them_and_by_no_other() {
        for policy in all_policies() {
            let variables = policy.variables.iter().map(|(_, expression)| expression);
            let mut expressions = variables.chain(policy.validations.iter().map(|validation| &validation.expression));
            let reads = expressions.any(|expression| expression.contains("params."));
            let has_some = policy.parameters.is_some();
            // That there is a TenantCluster may be all that a policy needs to know.
            let may_be_unread = policy.parameters == Some(ParameterKind::TenantClusterOfNamespace);
            assert!(reads == has_some || may_be_unread, "{}", policy.name);
            let kind = policy.build_policy().spec.and_then(|spec| spec.param_kind);
            let reference = policy.build_binding().spec.param_ref;
            assert_eq!(
                (kind.is_some(), reference.is_some()),
                (has_some, has_some),
                "{}",
                policy.name
            );
        }
    }

    #[test]
    fn conditions_are_evaluated_for_every_policy_that_has_some() {
        for policy in all_policies() {
            let conditions = policy.build_policy().spec.and_then(|spec| spec.match_conditions);
            let subjects = usize::from(policy.subject_condition().is_some());
            let count = conditions.as_ref().map_or(0, Vec::len);
            assert_eq!(count, subjects + policy.conditions.len(), "{}", policy.name);
            for (_, expression) in &policy.conditions {
                for unknown in ["variables.", "namespaceObject"] {
                    assert!(!expression.contains(unknown), "{}", policy.name);
                }
            }
        }
    }

    #[test]
    fn rbac_is_asked_about_everyone_but_the_tenants_own_identities() {
        for policy in all_policies() {
            let conditions = policy.build_policy().spec.and_then(|spec| spec.match_conditions);
            let Some(first) = conditions.and_then(|all| all.into_iter().next()) else {
                continue;
            };
            let asks = first.expression.ends_with(&format!("!{}", cel::may_bypass_policies()));
            assert_eq!(asks, policy.subjects == Subjects::Everyone, "{}", policy.name);
            let is_exempt = first.expression.starts_with(&cel::is_tenant_identity());
            assert_eq!(
                asks && is_exempt,
                policy.subjects == Subjects::Everyone && policy.scope == Scope::WorkloadNamespaces,
                "{}",
                policy.name
            );
        }
    }

    /// They have no condition that asks RBAC.
    #[test]
    fn policies_on_cluster_scoped_objects_on_events_and_for_others_on_the_host_ask_rbac_last() {
        let late = [Subjects::EveryoneAskedLast, Subjects::OthersOnHost];
        let asks_last = |policy: &AdmissionPolicy| policy.scope == Scope::Cluster || late.contains(&policy.subjects);
        for policy in all_policies().into_iter().filter(asks_last) {
            for Validation { expression, message } in &policy.validations {
                let asks = expression.ends_with(&format!("|| {}", cel::may_bypass_policies()));
                assert!(asks, "{}: {message}", policy.name);
            }
        }
    }

    #[test]
    fn no_policy_keeps_the_platform_from_deleting_objects() {
        let policies = all_policies().into_iter();
        let everyone = [Subjects::Everyone, Subjects::EveryoneAskedLast];
        for policy in policies.filter(|policy| everyone.contains(&policy.subjects)) {
            for rule in &policy.resource_rules {
                assert!(!rule.operations.contains(&"DELETE"), "{}", policy.name);
            }
        }
    }
}
