//! What the API servers of tenants write into their audit logs: `spec.audit` of a [`TenantClass`](crate::TenantClass).
//!
//! Names and meanings of the fields of a rule are those of `PolicyRule` in the audit policy of API servers (`audit.k8s.io/v1`).

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the API servers of a class's tenants log of the requests that they serve. They write a line of JSON for each to their standard output,
/// and nothing else.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.preset) != (has(self.rules) && self.rules.size() > 0)")
    .message("set one of preset and rules"))]
pub struct ClassAudit {
    /// Rules that Berth has. None of them logs content of Secrets, ConfigMaps and tokens, and of what `spec.encryption` lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preset: Option<AuditPreset>,
    /// Rules of your own, in the order of the audit policy of API servers: the first rule that matches a request applies. A request that no rule
    /// matches is not logged. Content of Secrets and tokens, and of what `spec.encryption` lists, is not logged either, whatever the level: only that
    /// there was a request. All rules together may have 65,536 bytes as JSON, without what Berth adds for `spec.encryption`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub rules: Vec<AuditRule>,
}

/// Rules for an audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AuditPreset {
    /// Who changed what, read Secrets, or opened a shell or a port, without content.
    Writes,
    /// All requests, without content.
    Metadata,
    /// All requests, and the content of those that change something.
    Request,
}

/// Which requests are logged, and how much of them. A request matches if all fields match that are set.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.nonResourceURLs) || self.nonResourceURLs.size() == 0 || ((!has(self.resources) || self.resources.size() == 0) && (!has(self.namespaces) || self.namespaces.size() == 0))")
    .message("a rule is for nonResourceURLs, or for resources and namespaces")
    .field_path(".nonResourceURLs"))]
pub struct AuditRule {
    /// How much is logged.
    pub level: AuditLevel,
    /// Names of users. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub users: Vec<String>,
    /// Groups, of which a user is a member of at least one. Empty: all users.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(min = 1, max = 256)))]
    pub user_groups: Vec<String>,
    /// Verbs; for URLs that are no resources, HTTP methods in small letters. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(max = 32), regex(pattern = "^[a-z]+$")))]
    pub verbs: Vec<String>,
    /// Resources. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub resources: Vec<AuditResources>,
    /// Namespaces; the empty text stands for objects without one. Empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(length(max = 63), regex(pattern = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$"))
    )]
    pub namespaces: Vec<String>,
    /// Paths that are no resources, such as `/metrics`. `*` may stand at the end.
    #[serde(default, rename = "nonResourceURLs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 256), regex(pattern = r"^(\*|/[^*]*\*?)$")))]
    pub non_resource_urls: Vec<String>,
    /// Stages of a request for which no line is written. `RequestReceived` never has one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 4))]
    pub omit_stages: Vec<AuditStage>,
    /// Whether `metadata.managedFields` of objects is left out. Defaults to true.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub omit_managed_fields: Option<bool>,
}

/// How much of a request is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AuditLevel {
    /// Nothing.
    #[default]
    None,
    /// Who, when, what and whether it was allowed, without content.
    Metadata,
    /// Also the object in the request.
    Request,
    /// Also the object in the answer.
    RequestResponse,
}

/// A stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AuditStage {
    /// It came.
    RequestReceived,
    /// The answer of a request that lasts, such as a watch, began.
    ResponseStarted,
    /// The answer is complete.
    ResponseComplete,
    /// The API server failed.
    Panic,
}

/// Resources of one API group.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.resourceNames) || self.resourceNames.size() == 0 || (has(self.resources) && self.resources.size() > 0)")
    .message("resourceNames needs resources")
    .field_path(".resourceNames"))]
pub struct AuditResources {
    /// API group; empty for that of Kubernetes' core.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(
        length(max = 253),
        regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$")
    )]
    pub group: String,
    /// Resources, such as `pods`, `pods/log`, `pods/*`, `*/scale` and `*`. Empty: all of the group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 64),
        inner(
            length(max = 128),
            regex(pattern = r"^(\*|\*/[a-z0-9]+|[a-z0-9][-a-z0-9.]*(/(\*|[a-z0-9]+))?)$")
        )
    )]
    pub resources: Vec<String>,
    /// Names of objects. Empty: all. A request that creates an object has no name yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(min = 1, max = 253)))]
    pub resource_names: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd;
    use serde_json::json;

    #[test]
    fn a_team_has_no_field_for_it() {
        let fields = |kind: &str| {
            let definition = crd::all().into_iter().find(|crd| crd.spec.names.kind == kind);
            let definition = serde_json::to_value(definition).unwrap();
            definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"].clone()
        };
        assert!(fields("TenantClass")["audit"].is_object());
        let of_team = fields("TenantCluster");
        assert!(of_team["className"].is_object() && of_team["audit"].is_null());
    }

    #[test]
    fn a_rule_as_upstream_writes_it_is_read_and_written() {
        let value = json!({
            "level": "RequestResponse", "users": ["ada"], "userGroups": ["system:authenticated"], "verbs": ["create"],
            "resources": [{"group": "apps", "resources": ["deployments"], "resourceNames": ["web"]}, {"resources": ["pods"]}],
            "namespaces": ["default", ""], "omitStages": ["RequestReceived"], "omitManagedFields": false,
        });
        let read: AuditRule = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), value);
        let value = json!({"level": "None", "nonResourceURLs": ["/healthz*"]});
        let read: AuditRule = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(read.non_resource_urls, ["/healthz*"]);
        assert_eq!(serde_json::to_value(&read).unwrap(), value);
    }
}
