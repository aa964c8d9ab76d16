//! Objects that the platform applies in the tenants of a class. Part of a [`TenantClass`](crate::TenantClass).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Objects that Berth applies in each tenant of a class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassManifest {
    /// Name of the manifest, unique within the class.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub name: String,
    /// Version, as it is shown in the status of tenants. In mode Once the objects are applied again when it changes.
    #[schemars(
        length(min = 1, max = 63),
        regex(pattern = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$")
    )]
    pub version: String,
    /// Whether Berth keeps the objects as the manifest says.
    #[serde(default)]
    pub mode: ManifestMode,
    /// The ConfigMap with the objects.
    pub config_map_ref: ManifestConfigMap,
}

/// Whether Berth keeps the objects of a manifest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum ManifestMode {
    /// Berth corrects what differs, deletes what is no longer in the manifest, and the tenant's API server lets nobody in the
    /// tenant change or delete the objects (from Kubernetes 1.37 on).
    #[default]
    Keep,
    /// Berth applies each version once. The objects belong to the team from then on.
    Once,
}

/// A ConfigMap in Berth's own namespace. It must have the label `berth.dev/manifests: "true"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ManifestConfigMap {
    /// Name of the ConfigMap. Each of its keys holds objects as YAML documents.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
}

/// A manifest as it was applied in a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManifestStatus {
    /// Name of the manifest.
    pub name: String,
    /// Version that was applied completely.
    pub version: String,
    /// Whether Berth keeps the objects.
    pub mode: ManifestMode,
    /// Number of its objects.
    pub objects: u32,
    /// When Berth last corrected an object that somebody else had changed or deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift_corrected_at: Option<Time>,
}
