//! What a policy is, and the two objects of Kubernetes that are built from it.

use super::cel;
use berth_api::{GROUP, VERSION, labels};
use k8s_openapi::{
    api::admissionregistration::v1::{
        self, MatchCondition, MatchResources, NamedRuleWithOperations, ParamKind, ParamRef, ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
        Variable,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement, ObjectMeta},
};
use std::{borrow::Cow, collections::BTreeMap};

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
    pub(super) fn namespace_selector(self) -> LabelSelector {
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
    /// CREATE, UPDATE; DELETE only of objects of the platform by a tenant's identities, by the gateway, of slices by agents of nodes, and of pods of
    /// teams at once: it must be possible to delete a wrong object.
    pub operations: &'static [&'static str],
}

impl ResourceRule {
    /// Writes of objects of every kind.
    pub(super) const fn writes_of_every_kind() -> Self {
        Self {
            group: "*",
            version: "*",
            resources: &["*"],
            operations: WRITES,
        }
    }

    /// Deletions of objects of every kind.
    pub(super) const fn deletions_of_every_kind() -> Self {
        Self {
            operations: &["DELETE"],
            ..Self::writes_of_every_kind()
        }
    }

    pub(super) fn build(&self, scope: Scope) -> NamedRuleWithOperations {
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

/// Operations that write an object.
pub(super) const WRITES: &[&str] = &["CREATE", "UPDATE"];

/// What must hold, and the message if it does not.
pub(super) fn validation(expression: impl Into<String>, message: impl Into<Cow<'static, str>>) -> Validation {
    Validation {
        expression: expression.into(),
        message: message.into(),
    }
}

/// What must hold for a request to be validated.
pub(super) fn match_condition(name: &str, expression: String) -> MatchCondition {
    MatchCondition {
        name: name.into(),
        expression,
    }
}

/// The metadata of a policy, and of its binding.
pub(super) fn build_metadata(name: &str, description: &str) -> ObjectMeta {
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
    /// The expression of the only validation with `part` in its message.
    #[cfg(test)]
    pub(super) fn expression_of(&self, part: &str) -> &str {
        let found = { self.validations.iter() }.filter(|validation| validation.message.contains(part));
        let expressions: Vec<&str> = found.map(|validation| validation.expression.as_str()).collect();
        let [expression] = expressions[..] else {
            panic!("{part}: {expressions:?}")
        };
        expression
    }

    /// The condition on the user. Policies without one check the user in their validations.
    pub(super) fn subject_condition(&self) -> Option<MatchCondition> {
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
