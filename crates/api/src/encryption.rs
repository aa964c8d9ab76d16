//! Encryption of what the API servers of tenants store. Part of a [`TenantClass`](crate::TenantClass), and of the status of a
//! [`TenantCluster`](crate::TenantCluster).

use crate::{
    TenantCluster,
    conditions::{ENCRYPTED_AT_REST, INFRASTRUCTURE_READY},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The resource of Secrets, as [`ClassEncryption::resources`] names it.
const SECRETS: &str = "secrets";
/// The resource of ConfigMaps.
const CONFIG_MAPS: &str = "configmaps";
/// The end of the groups of Kubernetes itself. Control reads some of their objects in etcd, and could not if they were encrypted.
const OWN_GROUPS: &str = ".k8s.io";
/// What the reasons of [`INFRASTRUCTURE_READY`] begin with that are about keys.
const ENCRYPTION: &str = "Encryption";

/// What the API servers of tenants encrypt before they store it.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.resources.all(resource, !resource.endsWith('.k8s.io'))")
    .message("resources of groups that end with .k8s.io cannot be encrypted")
    .field_path(".resources"))]
pub struct ClassEncryption {
    /// Resources whose objects are encrypted: `secrets`, `configmaps`, and custom resources as `<plural>.<group>`, of groups that do not end
    /// with `.k8s.io`. Objects that are stored already are rewritten. Defaults to Secrets.
    #[serde(default = "secrets")]
    #[schemars(
        length(min = 1, max = 16),
        inner(
            length(max = 253),
            regex(pattern = r"^(secrets|configmaps|[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?){2,})$")
        )
    )]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub resources: Vec<String>,
}

fn secrets() -> Vec<String> {
    vec![SECRETS.into()]
}

impl Default for ClassEncryption {
    fn default() -> Self {
        Self { resources: secrets() }
    }
}

impl ClassEncryption {
    /// The first resource that cannot be encrypted. The schema rejects it as well.
    pub fn find_invalid_resource(&self) -> Option<&str> {
        let is_valid = |resource: &str| {
            let group = resource.split_once('.').map(|(_, group)| group);
            let is_custom = group.is_some_and(|group| group.contains('.') && !group.ends_with(OWN_GROUPS));
            let is_custom = is_custom && !resource.contains('*');
            is_custom || [SECRETS, CONFIG_MAPS].contains(&resource)
        };
        let mut resources = self.resources.iter().map(String::as_str);
        resources.find(|resource| !is_valid(resource))
    }
}

/// A step of a change of the encryption of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum EncryptionPhase {
    /// Every API server gets the new key. They write as before.
    Distributing,
    /// Every API server is made to write as it is to be.
    Writing,
    /// Objects that are stored otherwise are rewritten.
    Rewriting,
    /// Every object is stored as it is to be, and keys that are not needed are gone.
    Completed,
}

impl EncryptionPhase {
    /// Its name, also as the reason of the condition.
    pub fn name(self) -> &'static str {
        match self {
            Self::Distributing => "Distributing",
            Self::Writing => "Writing",
            Self::Rewriting => "Rewriting",
            Self::Completed => "Completed",
        }
    }
}

/// What is encrypted of what a tenant stores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EncryptionStatus {
    /// The step of the last change. Completed: every object of `resources` is encrypted with the key `keyName`.
    pub phase: EncryptionPhase,
    /// Since when it is at this step.
    pub since: Time,
    /// Name of the key with which objects are encrypted. It is an entry of the Secret `pki` in the control-plane namespace. Absent while encryption is turned off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_name: Option<String>,
    /// Resources of which stored objects may be encrypted. Until the phase is Completed, they may be more than those of the class.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub resources: Vec<String>,
    /// The last request for another key that was carried out: the value of the annotation `berth.dev/encryption-key-rotation-requested-at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Time>,
}

impl TenantCluster {
    /// The condition that says why it is not known that everything is encrypted that the tenant stores and that is to be; none if it is, or if nothing is
    /// to be. Without its keys a tenant does not come as far as the condition [`ENCRYPTED_AT_REST`], which stays as it was.
    pub fn encryption_obstacle(&self) -> Option<&Condition> {
        let conditions = &self.status.as_ref()?.conditions;
        let mut unmet = conditions.iter().filter(|condition| condition.status != "True");
        let is_of_keys = |condition: &&Condition| {
            condition.type_ == INFRASTRUCTURE_READY && condition.reason.starts_with(ENCRYPTION)
        };
        let of_keys = unmet.clone().find(is_of_keys);
        of_keys.or_else(|| unmet.find(|condition| condition.type_ == ENCRYPTED_AT_REST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TenantClusterSpec;
    use serde_json::{Value, json};

    #[test]
    fn the_obstacle_is_in_the_condition_or_a_missing_key() {
        let ready = ("InfrastructureReady", "True", "Applied");
        for (conditions, expected) in [
            (vec![], None),
            (vec![ready], None),
            (vec![ready, ("EncryptedAtRest", "True", "Encrypted")], None),
            (vec![ready, ("EncryptedAtRest", "False", "Writing")], Some("Writing")),
            (vec![("EncryptedAtRest", "Unknown", "NotObserved")], Some("NotObserved")),
            // It was encrypted before the key was lost.
            (
                vec![
                    ("EncryptedAtRest", "True", "Encrypted"),
                    ("InfrastructureReady", "False", "EncryptionKeyMissing"),
                ],
                Some("EncryptionKeyMissing"),
            ),
            (
                vec![
                    ("EncryptedAtRest", "False", "Sleeping"),
                    ("InfrastructureReady", "False", "EncryptionKeyMissing"),
                ],
                Some("EncryptionKeyMissing"),
            ),
            (vec![("InfrastructureReady", "False", "NamespacesFailed")], None),
        ] {
            let written = conditions.iter().map(|(type_, status, reason)| {
                json!({"type": type_, "status": status, "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z"})
            });
            let written: Vec<Value> = written.collect();
            let mut cluster = TenantCluster::new("vision", TenantClusterSpec::default());
            assert_eq!(cluster.encryption_obstacle(), None);
            cluster.status = Some(serde_json::from_value(json!({ "conditions": written })).unwrap());
            let reason = cluster.encryption_obstacle().map(|condition| condition.reason.as_str());
            assert_eq!(reason, expected, "{conditions:?}");
        }
    }

    #[test]
    fn secrets_are_encrypted_by_default() {
        let read: ClassEncryption = serde_json::from_value(json!({})).unwrap();
        assert_eq!(read, ClassEncryption::default());
        assert_eq!(read.resources, ["secrets"]);
    }

    #[test]
    fn only_secrets_config_maps_and_custom_resources_can_be_encrypted() {
        let find = |resource: &str| {
            let encryption = ClassEncryption {
                resources: vec!["secrets".into(), resource.into()],
            };
            encryption.find_invalid_resource().map(ToOwned::to_owned)
        };
        for valid in ["secrets", "configmaps", "widgets.example.com", "a.b-c.example.com"] {
            assert_eq!(find(valid), None);
        }
        // Control reads bindings and namespaces in etcd.
        for invalid in [
            "",
            "namespaces",
            "deployments.apps",
            "clusterrolebindings.rbac.authorization.k8s.io",
            "*.*",
            "*.example.com",
        ] {
            assert_eq!(find(invalid).as_deref(), Some(invalid));
        }
    }

    #[test]
    fn phases_have_the_names_of_the_api() {
        for phase in [
            EncryptionPhase::Distributing,
            EncryptionPhase::Writing,
            EncryptionPhase::Rewriting,
            EncryptionPhase::Completed,
        ] {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.name());
        }
    }
}
