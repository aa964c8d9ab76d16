//! Walls: what the host's own API server refuses, whoever asks with a tenant's credential.
//!
//! A syncer follows the rules of its tenant's class. Should its credential be stolen, these ValidatingAdmissionPolicies hold
//! the thief to the same rules. They are plain data: [`all`] lists them, `berth_control::install` applies them to local
//! clusters, the Helm chart carries the same objects in `charts/berth/files/admission-policies.yaml`.
//!
//! What a class allows is read from annotations of the workload namespace ([`berth_api::policy_annotations`]). Walls on what belongs
//! to the platform (nodes, namespaces) ask the host's RBAC instead of knowing names: whoever may `bypass` `walls.berth.dev`
//! passes. That is control, and cluster-admins, who could delete the walls as well.

mod cel;
mod devices;
mod edge;
mod endpoints;
mod metadata;
mod namespaces;
mod network_policies;
mod nodes;
mod pod_status;
mod pods;
mod secrets;
mod services;
mod shared;
mod storage;
mod tenant_nodes;

use berth_api::labels;
use k8s_openapi::{
    api::admissionregistration::v1::{
        MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
        ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
        Validation, Variable,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use std::collections::BTreeMap;

/// Resource of the API group `berth.dev` that exists only for the right to [`BYPASS`] walls.
pub const RESOURCE: &str = "walls";
/// Verb of the right not to be held by walls.
pub const BYPASS: &str = "bypass";

/// Whose requests a wall holds up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// Everybody's but those of who may bypass walls.
    Anybody,
    /// Those of the tenant's own identities: the service accounts of its control-plane namespace. Controllers of the host
    /// work on the same objects and are trusted.
    Tenant,
}

/// Where a wall stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the workload namespaces of all tenants.
    Workloads,
    /// In the control-plane namespaces of all tenants.
    ControlPlanes,
    /// Around objects of no namespace.
    Cluster,
}

/// Requests that a wall looks at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requests {
    /// API group.
    pub group: &'static str,
    /// API version in whose form the rules see objects.
    pub version: &'static str,
    /// Resources, and subresources as `resource/subresource`.
    pub resources: &'static [&'static str],
    /// CREATE, UPDATE; DELETE only of what keeps a tenant's identities in: what is wrong must be possible to remove.
    pub operations: &'static [&'static str],
}

/// An expression (CEL) that must be true, and what is said if it is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The expression.
    pub expression: String,
    /// The words.
    pub message: &'static str,
}

/// One ValidatingAdmissionPolicy and its binding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wall {
    /// Name of both objects.
    pub name: &'static str,
    /// One sentence for people.
    pub about: &'static str,
    /// Where it stands.
    pub place: Place,
    /// Whom it holds up.
    pub who: Who,
    /// Which requests.
    pub requests: Vec<Requests>,
    /// Expressions that rules share.
    pub variables: Vec<(&'static str, String)>,
    /// What must hold.
    pub rules: Vec<Rule>,
}

/// Creations and changes.
const WRITES: &[&str] = &["CREATE", "UPDATE"];

/// Every wall.
pub fn all() -> Vec<Wall> {
    let mut walls = pods::walls();
    walls.extend([
        pod_status::wall(),
        metadata::wall(),
        secrets::wall(),
        services::wall(),
        endpoints::wall(),
    ]);
    walls.extend(storage::walls());
    walls.extend(devices::walls());
    walls.extend(edge::walls());
    walls.extend(network_policies::walls());
    walls.extend([namespaces::wall(), nodes::wall(), tenant_nodes::wall()]);
    walls
}

fn rule(expression: impl Into<String>, message: &'static str) -> Rule {
    Rule {
        expression: expression.into(),
        message,
    }
}

fn condition(name: &str, expression: String) -> MatchCondition {
    MatchCondition {
        name: name.into(),
        expression,
    }
}

impl Wall {
    fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.name.into()),
            labels: Some(BTreeMap::from([(
                "app.kubernetes.io/part-of".to_owned(),
                "berth".to_owned(),
            )])),
            annotations: Some(BTreeMap::from([(
                "kubernetes.io/description".to_owned(),
                self.about.to_owned(),
            )])),
            ..ObjectMeta::default()
        }
    }

    /// The policy.
    pub fn policy(&self) -> ValidatingAdmissionPolicy {
        let texts = |list: &[&str]| Some(list.iter().map(ToString::to_string).collect::<Vec<_>>());
        let role = match self.place {
            Place::Workloads => Some(labels::ROLE_WORKLOADS),
            Place::ControlPlanes => Some(labels::ROLE_CONTROL_PLANE),
            Place::Cluster => None,
        };
        let resource_rules = self.requests.iter().map(|requests| NamedRuleWithOperations {
            api_groups: texts(&[requests.group]),
            api_versions: texts(&[requests.version]),
            operations: texts(requests.operations),
            resources: texts(requests.resources),
            resource_names: None,
            // A selector of namespaces says nothing about objects of none: they would all be held up.
            scope: Some(
                match self.place {
                    Place::Cluster => "Cluster",
                    Place::Workloads | Place::ControlPlanes => "Namespaced",
                }
                .into(),
            ),
        });
        let conditions = match self.who {
            Who::Anybody => vec![condition("is-held", format!("!{}", cel::may_bypass()))],
            Who::Tenant => vec![condition("is-the-tenants", cel::is_tenants())],
        };
        let validations = self.rules.iter().map(|rule| Validation {
            expression: rule.expression.clone(),
            message: Some(rule.message.into()),
            message_expression: None,
            reason: Some("Forbidden".into()),
        });
        let variables = self.variables.iter().map(|(name, expression)| Variable {
            name: (*name).into(),
            expression: expression.clone(),
        });
        ValidatingAdmissionPolicy {
            metadata: self.metadata(),
            spec: Some(ValidatingAdmissionPolicySpec {
                // A rule that cannot be evaluated refuses.
                failure_policy: Some("Fail".into()),
                match_constraints: Some(MatchResources {
                    match_policy: Some("Equivalent".into()),
                    namespace_selector: Some(LabelSelector {
                        match_labels: role.map(|role| BTreeMap::from([(labels::ROLE.to_owned(), role.to_owned())])),
                        match_expressions: None,
                    }),
                    object_selector: Some(LabelSelector::default()),
                    resource_rules: Some(resource_rules.collect()),
                    exclude_resource_rules: None,
                }),
                // Around the platform's own objects the rules themselves ask who it is, only if something changes.
                match_conditions: (self.place != Place::Cluster).then_some(conditions),
                variables: Some(variables.collect()),
                validations: Some(validations.collect()),
                ..ValidatingAdmissionPolicySpec::default()
            }),
            status: None,
        }
    }

    /// The policy's binding.
    pub fn binding(&self) -> ValidatingAdmissionPolicyBinding {
        ValidatingAdmissionPolicyBinding {
            metadata: self.metadata(),
            spec: ValidatingAdmissionPolicyBindingSpec {
                policy_name: self.name.into(),
                // The audit log says who ran into a wall: an honest syncer never does.
                validation_actions: vec!["Deny".into(), "Audit".into()],
                match_resources: None,
                param_ref: None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn walls_have_names_of_their_own_and_words_for_every_refusal() {
        let all = all();
        let names: BTreeSet<&str> = all.iter().map(|wall| wall.name).collect();
        assert_eq!(names.len(), all.len());
        for wall in &all {
            assert!(wall.name.starts_with("berth-"), "{}", wall.name);
            assert!(!wall.rules.is_empty() && !wall.requests.is_empty(), "{}", wall.name);
            for rule in &wall.rules {
                // One line, at most what the API server takes, and no sentence of its own.
                let length = rule.message.len();
                assert!(
                    (20..200).contains(&length) && !rule.message.ends_with('.'),
                    "{}",
                    rule.message
                );
            }
        }
    }

    #[test]
    fn no_wall_keeps_the_platform_from_deleting_anything() {
        for wall in all().into_iter().filter(|wall| wall.who == Who::Anybody) {
            for requests in &wall.requests {
                assert!(!requests.operations.contains(&"DELETE"), "{}", wall.name);
            }
        }
    }
}
