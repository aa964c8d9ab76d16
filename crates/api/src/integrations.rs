//! Programs of the platform that work in tenants: what a [`TenantCluster`](crate::TenantCluster) asks for, and what its
//! [`TenantClass`](crate::TenantClass) allows.

use crate::{
    hostnames::NAMESPACE,
    labels::is_reserved,
    qualified_name::{is_label_value, is_qualified_name},
    sync_policy::lists_key,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Domain of the labels by which Argo CD recognizes its own objects. No tenant sets one.
pub const ARGO_CD_DOMAIN: &str = "argocd.argoproj.io";

/// Programs of the platform that work in the tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantIntegrations {
    /// Registers the tenant as a cluster in the platform's Argo CD, which is then cluster-admin in the tenant. Set it to {} to register
    /// the tenant with the defaults of its class. The class must allow it.
    #[serde(default, rename = "argoCD", skip_serializing_if = "Option::is_none")]
    pub argo_cd: Option<ArgoCdRegistration>,
}

/// How a tenant is registered in Argo CD.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ArgoCdRegistration {
    /// Name of the AppProject that the cluster belongs to, one that the class allows. Defaults to the first that the class lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub project: Option<String>,
    /// Labels of the cluster in Argo CD, by which ApplicationSets select it. The class must allow their keys.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::allowed_namespaces::labels")]
    pub labels: BTreeMap<String, String>,
}

/// Programs of the platform that work in tenants of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClassIntegrations {
    /// Which tenants are registered as clusters in the platform's Argo CD.
    #[serde(rename = "argoCD")]
    pub argo_cd: ArgoCdPolicy,
}

/// Which tenants of a class are registered in Argo CD, and what they may set for that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ArgoCdPolicy {
    /// Never: none. OnRequest: those that set spec.integrations.argoCD. Always: all.
    pub registration: RegistrationPolicy,
    /// AppProjects that a tenant may name. The first is that of tenants that name none. `{namespace}` stands for the namespace of the
    /// TenantCluster. Empty: the clusters belong to no AppProject.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(
            length(min = 1, max = 253),
            regex(pattern = r"^(\{namespace\}|[a-z0-9]([-a-z0-9.]*[a-z0-9])?)$")
        )
    )]
    pub projects: Vec<String>,
    /// Keys of labels that tenants may set: a key, or `domain/*` for all keys of a domain.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 317)))]
    pub labels: Vec<String>,
    /// Address at which Argo CD reaches the tenants. Service: that of the Service kube-apiserver, for an Argo CD on the host. Gateway: the
    /// name of the tenant at the gateway, for one elsewhere that gets a copy of the Secret; the platform needs a gateway. Argo CD tells
    /// clusters apart by their address, so Applications that name it must be changed with it.
    pub server: ArgoCdServer,
}

/// The address at which Argo CD reaches tenants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ArgoCdServer {
    /// That of the Service kube-apiserver on the host.
    #[default]
    Service,
    /// The name at the gateway.
    Gateway,
}

/// Which tenants of a class are registered with a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum RegistrationPolicy {
    /// None.
    #[default]
    Never,
    /// Those that ask for it.
    OnRequest,
    /// All.
    Always,
}

impl ArgoCdPolicy {
    /// How a tenant in `namespace` of the class `class` is registered that asks for `requested`. None: it is not registered.
    ///
    /// # Errors
    /// What the class does not allow, and what to do.
    pub fn resolve(
        &self,
        class: &str,
        namespace: &str,
        requested: Option<&ArgoCdRegistration>,
    ) -> Result<Option<ArgoCdRegistration>, String> {
        let registered = match (requested, self.registration) {
            (None, RegistrationPolicy::Never | RegistrationPolicy::OnRequest) => return Ok(None),
            (Some(requested), _) => requested.clone(),
            (None, RegistrationPolicy::Always) => ArgoCdRegistration::default(),
        };
        let first = || self.projects.first().map(|project| expand(project, namespace));
        let registered = ArgoCdRegistration {
            project: registered.project.or_else(first),
            labels: registered.labels,
        };
        match self.find_error(class, namespace, &registered) {
            Some(error) => Err(error),
            None => Ok(Some(registered)),
        }
    }

    /// What the class does not allow of a registration with a project, and what to do.
    pub fn find_error(&self, class: &str, namespace: &str, registered: &ArgoCdRegistration) -> Option<String> {
        if self.registration == RegistrationPolicy::Never {
            return Some(format!(
                "TenantClass {class} does not allow tenants in Argo CD; remove spec.integrations.argoCD, or ask the platform team to set \
                 the class's spec.integrations.argoCD.registration to OnRequest"
            ));
        }
        let allowed: Vec<String> = self.projects.iter().map(|project| expand(project, namespace)).collect();
        match &registered.project {
            Some(project) if !allowed.contains(project) => {
                return Some(format!(
                    "TenantClass {class} does not allow the AppProject {project}; {}",
                    if allowed.is_empty() {
                        "remove spec.integrations.argoCD.project".to_owned()
                    } else {
                        format!("set spec.integrations.argoCD.project to one of {}", allowed.join(", "))
                    }
                ));
            }
            None if !allowed.is_empty() => {
                return Some(format!(
                    "TenantClass {class} allows clusters in AppProjects only; set spec.integrations.argoCD.project to one of {}",
                    allowed.join(", ")
                ));
            }
            Some(_) | None => {}
        }
        self.find_label_error(class, &registered.labels)
    }

    fn find_label_error(&self, class: &str, labels: &BTreeMap<String, String>) -> Option<String> {
        for (key, value) in labels {
            if is_of_platform(key) || !lists_key(&self.labels, key) {
                return Some(format!(
                    "TenantClass {class} does not allow the label {key}; remove it from spec.integrations.argoCD.labels, or ask the \
                     platform team to list it in the class's spec.integrations.argoCD.labels"
                ));
            }
            if !is_qualified_name(key) || !is_label_value(value) {
                return Some(format!(
                    "spec.integrations.argoCD.labels: {key}: {value} is not a label of Kubernetes, such as example.com/stage: prod"
                ));
            }
        }
        None
    }
}

/// An AppProject of a class, for a tenant in `namespace`. The placeholder is a whole name: within one, `a-{namespace}` of one team could
/// be the namespace of another.
fn expand(project: &str, namespace: &str) -> String {
    if project == NAMESPACE { namespace } else { project }.to_owned()
}

/// Whether only the platform and its programs set a label, whatever a class lists.
fn is_of_platform(key: &str) -> bool {
    let domain = key.split_once('/').map(|(domain, _)| domain);
    let of = |owner: &str| domain.is_some_and(|domain| domain == owner || domain.ends_with(&format!(".{owner}")));
    is_reserved(key) || of(ARGO_CD_DOMAIN) || of("kubernetes.io") || of("k8s.io")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy(policy: Value) -> ArgoCdPolicy {
        serde_json::from_value(policy).unwrap()
    }

    fn registration(registration: Value) -> ArgoCdRegistration {
        serde_json::from_value(registration).unwrap()
    }

    /// How a tenant in `team-a` is registered: none if it is not, or the error.
    fn resolve(rules: Value, requested: Option<Value>) -> Result<Option<ArgoCdRegistration>, String> {
        let requested = requested.map(registration);
        policy(rules).resolve("gold", "team-a", requested.as_ref())
    }

    #[test]
    fn the_class_decides_which_tenants_are_registered() {
        for (rules, requested, registered) in [
            (json!({}), None, Ok(None)),
            (json!({"registration": "OnRequest"}), None, Ok(None)),
            (
                json!({"registration": "OnRequest"}),
                Some(json!({})),
                Ok(Some(ArgoCdRegistration::default())),
            ),
            (
                json!({"registration": "Always"}),
                None,
                Ok(Some(ArgoCdRegistration::default())),
            ),
        ] {
            assert_eq!(resolve(rules, requested), registered);
        }
        let error = resolve(json!({}), Some(json!({}))).unwrap_err();
        assert!(
            error.starts_with("TenantClass gold does not allow tenants in Argo CD"),
            "{error}"
        );
    }

    #[test]
    fn a_team_gets_no_project_but_those_of_its_class() {
        let rules = || json!({"registration": "OnRequest", "projects": ["{namespace}", "shared"]});
        let of =
            |requested| Ok::<_, String>(resolve(rules(), Some(requested))?.and_then(|registered| registered.project));
        assert_eq!(of(json!({})), Ok(Some("team-a".into())));
        assert_eq!(of(json!({"project": "shared"})), Ok(Some("shared".into())));
        for foreign in ["team-b", "default", "{namespace}"] {
            let error = of(json!({"project": foreign})).unwrap_err();
            assert!(error.ends_with("to one of team-a, shared"), "{error}");
        }
        let none = json!({"registration": "OnRequest"});
        let error = resolve(none, Some(json!({"project": "team-a"}))).unwrap_err();
        assert!(error.ends_with("remove spec.integrations.argoCD.project"), "{error}");
    }

    #[test]
    fn a_registration_without_a_project_is_not_allowed_once_the_class_lists_some() {
        let later = policy(json!({"registration": "OnRequest", "projects": ["shared"]}));
        let error = later.find_error("gold", "team-a", &ArgoCdRegistration::default());
        assert!(error.unwrap().ends_with("to one of shared"));
    }

    #[test]
    fn teams_set_only_the_labels_that_the_class_lists() {
        let every = [
            "example.com/*",
            "stage",
            "berth.dev/*",
            "argocd.argoproj.io/*",
            "app.kubernetes.io/*",
        ];
        let rules = policy(json!({"registration": "OnRequest", "labels": every}));
        let allows = |key: &str, value: &str| {
            let requested = registration(json!({"labels": {key: value}}));
            rules.resolve("gold", "team-a", Some(&requested)).is_ok()
        };
        for (key, value) in [
            ("example.com/stage", "prod"),
            ("stage", ""),
            ("example.com/A.b_c-1", "A.b_c-1"),
        ] {
            assert!(allows(key, value), "{key}={value}");
        }
        let long = "a".repeat(64);
        for (key, value) in [
            ("other.com/stage", "prod"),
            ("tier", "prod"),
            ("berth.dev/tenant", "other"),
            ("argocd.argoproj.io/secret-type", "repository"),
            ("app.kubernetes.io/managed-by", "me"),
            ("example.com/", "prod"),
            ("example.com/-a", "prod"),
            ("example.com/a/b", "prod"),
            (&format!("example.com/{long}"), "prod"),
            ("stage", "-prod"),
            ("stage", "pr od"),
            ("stage", &long),
        ] {
            assert!(!allows(key, value), "{key}={value}");
        }
    }
}
