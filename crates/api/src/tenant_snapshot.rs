//! `TenantSnapshot`: a backup of what one tenant stores, and the request to set the tenant back to it.

use crate::{KubeDuration, TenantCluster, labels};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{CustomResource, KubeSchema, ResourceExt};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// [`ClassSnapshots::max`] of a class that does not set it.
const DEFAULT_MAX: u32 = 10;
/// [`SnapshotSchedule::keep`] of a class that does not set it.
const DEFAULT_KEEP: u32 = 7;
/// [`SnapshotSchedule::time_zone`] of a class that does not set it.
const DEFAULT_TIME_ZONE: &str = "UTC";

/// How often a snapshot is begun. One that does not come to an end is given up then: it may be what ends control.
pub const MOST_SNAPSHOT_ATTEMPTS: u32 = 5;

/// A backup of what one tenant stores, in the platform's object store. The tenant can be set back to it.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "berth.dev",
    version = "v1alpha1",
    kind = "TenantSnapshot",
    namespaced,
    status = "TenantSnapshotStatus",
    derive = "PartialEq",
    shortname = "tsnap",
    category = "berth",
    selectable = ".spec.tenantClusterName",
    selectable = ".status.phase",
    doc = "A backup of what one tenant stores, in the platform's object store. The tenant can be set back to it.",
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenantClusterName"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Objects", type_ = "integer", json_path = ".status.objects"),
    printcolumn(
        name = "Size",
        type_ = "string",
        json_path = ".status.size",
        description = "Size of the objects, before they are compressed"
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Version",
        type_ = "string",
        json_path = ".status.version",
        priority = 1,
        description = "Kubernetes version of the tenant"
    ),
    printcolumn(name = "Expires", type_ = "string", json_path = ".status.expiresAt", priority = 1),
    printcolumn(
        name = "Reason",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Completed\")].reason",
        priority = 1
    ),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Completed\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.tenantClusterName == oldSelf.tenantClusterName")
    .message("the tenant of a TenantSnapshot is immutable")
    .field_path(".tenantClusterName"))]
#[x_kube(validation = Rule::new("!has(self.ttl) || duration(self.ttl) >= duration('1m')")
    .message("ttl must be at least 1m")
    .field_path(".ttl"))]
pub struct TenantSnapshotSpec {
    /// Name of the TenantCluster, which is in the same namespace.
    #[schemars(length(min = 1, max = 40), regex(pattern = "^[a-z]([-a-z0-9]*[a-z0-9])?$"))]
    pub tenant_cluster_name: String,
    /// How long the snapshot is kept, counted from its creation, for example 720h. Then Berth deletes it, with what is in the object store. Without it,
    /// it is kept until somebody deletes it. That of a tenant that was deleted is kept for 30 days at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl: Option<KubeDuration>,
}

/// Observed state of a TenantSnapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenantSnapshotStatus {
    /// How far the snapshot is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<SnapshotPhase>,
    /// When Berth began to read what the tenant stores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When everything was in the object store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// When Berth deletes the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// How often Berth began to take the snapshot. One that is interrupted begins anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// UID of the TenantCluster. Only this one can be set back to the snapshot.
    #[serde(rename = "tenantUID", default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    pub tenant_uid: Option<String>,
    /// Kubernetes version of the tenant's API server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub version: Option<String>,
    /// Revision of etcd at which the tenant's objects were read: the snapshot has what the tenant stored at one moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Number of objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objects: Option<u64>,
    /// Bytes of the objects and their keys in etcd.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The same for people, as a quantity in Ki or Mi, rounded up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub size: Option<String>,
    /// Bytes in the object store, compressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_bytes: Option<u64>,
    /// SHA-256 of what is in the object store. A restore compares it before it begins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub checksum: Option<String>,
    /// Where the snapshot is in the object store, below the URL of the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub location: Option<String>,
    /// Names of the keys with which objects of the snapshot are encrypted. They are entries of the Secret `pki` in the control-plane namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), extend("x-kubernetes-list-type" = "set"))]
    pub encryption_keys: Vec<String>,
    /// Completed: everything is in the object store; if not, the reason and the message say why. Deleting: the snapshot is being deleted, and its file is
    /// still there; they say why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// How far a snapshot is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SnapshotPhase {
    /// It waits for its turn.
    #[default]
    Pending,
    /// Berth reads what the tenant stores, and writes it into the object store.
    Running,
    /// Everything is in the object store. The tenant can be set back to it.
    Completed,
    /// There is no snapshot. Create another one.
    Failed,
}

impl SnapshotPhase {
    /// All phases, in their order.
    pub const ALL: [Self; 4] = [Self::Pending, Self::Running, Self::Completed, Self::Failed];

    /// Its name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Running => "Running",
            Self::Completed => "Completed",
            Self::Failed => "Failed",
        }
    }
}

/// Why Berth has created a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotTrigger {
    /// Somebody has created it.
    Manual,
    /// The schedule of the class.
    Schedule,
    /// A restore, of what the tenant stored before.
    BeforeRestore,
}

impl SnapshotTrigger {
    /// The value of the label [`labels::SNAPSHOT_TRIGGER`]; none for what somebody has created.
    pub fn label(self) -> Option<&'static str> {
        match self {
            Self::Manual => None,
            Self::Schedule => Some("schedule"),
            Self::BeforeRestore => Some("before-restore"),
        }
    }
}

impl TenantSnapshot {
    /// A snapshot that Berth creates, of the tenant with this namespace and name.
    pub fn of_berth(name: &str, (namespace, tenant): (&str, &str), trigger: SnapshotTrigger) -> Self {
        let spec = TenantSnapshotSpec {
            tenant_cluster_name: tenant.to_owned(),
            ttl: None,
        };
        let trigger = trigger.label().map(|label| (labels::SNAPSHOT_TRIGGER, label));
        let of_tenant = (labels::SNAPSHOT_TENANT, tenant);
        let labels = trigger.into_iter().chain([of_tenant]);
        let mut snapshot = Self::new(name, spec);
        snapshot.metadata.namespace = Some(namespace.to_owned());
        snapshot.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
        snapshot
    }

    /// How far it is.
    pub fn phase(&self) -> SnapshotPhase {
        self.status.as_ref().and_then(|status| status.phase).unwrap_or_default()
    }

    /// Why it was created, as its label says.
    pub fn trigger(&self) -> SnapshotTrigger {
        let label = self.labels().get(labels::SNAPSHOT_TRIGGER).map(String::as_str);
        [SnapshotTrigger::Schedule, SnapshotTrigger::BeforeRestore]
            .into_iter()
            .find(|trigger| label.is_some() && trigger.label() == label)
            .unwrap_or(SnapshotTrigger::Manual)
    }

    /// Where the attempt that began last writes it in the object store, or has written it.
    pub fn location(&self) -> String {
        let attempts = self.status.as_ref().and_then(|status| status.attempts);
        self.location_of(attempts.unwrap_or(1))
    }

    /// Where the attempt with this number, counted from 1, writes it in the object store. Each has a place of its own: what a killed control has sent may
    /// arrive after another one has completed the snapshot.
    pub fn location_of(&self, attempt: u32) -> String {
        format!(
            "{}/{}/{}-{attempt}",
            self.namespace().unwrap_or_default(),
            self.spec.tenant_cluster_name,
            self.uid().unwrap_or_default()
        )
    }

    /// Everywhere in the object store where something of it may be. It follows from what nobody can change, so that it is found whatever the status says.
    pub fn all_locations(&self) -> impl Iterator<Item = String> {
        (1..=MOST_SNAPSHOT_ATTEMPTS).map(move |attempt| self.location_of(attempt))
    }
}

/// Which snapshots tenants of a class may have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassSnapshots {
    /// Number of snapshots that each tenant may have, besides those of the schedule and those that a restore makes. 0: none. Defaults to 10.
    #[serde(default = "default_max")]
    #[schemars(range(min = 0, max = 1000))]
    pub max: u32,
    /// When Berth takes a snapshot of each tenant by itself. Without it, never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<SnapshotSchedule>,
}

impl Default for ClassSnapshots {
    fn default() -> Self {
        Self {
            max: DEFAULT_MAX,
            schedule: None,
        }
    }
}

/// When Berth takes a snapshot of each tenant of a class, and how many it keeps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSchedule {
    /// Five fields of cron: minute, hour, day of the month, month, day of the week. For example `0 2 * * *`. If control was down at that time, it takes one
    /// snapshot as soon as it runs.
    #[schemars(
        length(min = 9, max = 128),
        regex(pattern = r"^[-*,/0-9A-Za-z]+( [-*,/0-9A-Za-z]+){4}$")
    )]
    pub cron: String,
    /// Time zone of `cron`, a name of the IANA time zone database, for example Europe/Berlin. Defaults to UTC.
    #[serde(default = "default_time_zone")]
    #[schemars(
        length(min = 1, max = 64),
        regex(pattern = "^[A-Za-z][-+_A-Za-z0-9]*(/[-+_A-Za-z0-9]+)*$")
    )]
    pub time_zone: String,
    /// Number of snapshots of the schedule that are kept for each tenant. Older ones are deleted. Defaults to 7.
    #[serde(default = "default_keep")]
    #[schemars(range(min = 1, max = 1000))]
    pub keep: u32,
}

fn default_max() -> u32 {
    DEFAULT_MAX
}

fn default_keep() -> u32 {
    DEFAULT_KEEP
}

fn default_time_zone() -> String {
    DEFAULT_TIME_ZONE.into()
}

/// The last time that a tenant was set back to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestoreStatus {
    /// Name of the TenantSnapshot.
    pub snapshot_name: String,
    /// Name of the TenantSnapshot of what the tenant stored before. Absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_as: Option<String>,
    /// When Berth began to stop the tenant's control plane.
    pub started_at: Time,
    /// When everything was as in the snapshot. Absent while the restore is under way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
}

impl TenantCluster {
    /// The TenantSnapshot that somebody wants the tenant to be set back to: [`labels::RESTORE_SNAPSHOT`].
    pub fn requested_restore(&self) -> Option<&str> {
        let name = self.annotations().get(labels::RESTORE_SNAPSHOT)?;
        Some(name.trim())
    }

    /// Whether what the tenant stores is to be lost by that restore: [`labels::RESTORE_WITHOUT_SAVING`].
    pub fn restores_without_saving(&self) -> bool {
        let value = self.annotations().get(labels::RESTORE_WITHOUT_SAVING);
        value.is_some_and(|value| value == labels::RESTORE_WITHOUT_SAVING_WANTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn snapshot(labels: &serde_json::Value) -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": "before-upgrade", "namespace": "team", "uid": "77aa", "labels": labels},
            "spec": {"tenantClusterName": "vision"},
        }))
        .unwrap()
    }

    #[test]
    fn a_snapshot_without_a_status_is_pending() {
        assert_eq!(snapshot(&json!({})).phase(), SnapshotPhase::Pending);
    }

    #[test]
    fn each_attempt_has_a_location_that_follows_from_what_nobody_can_change() {
        let mut snapshot = snapshot(&json!({}));
        let all: Vec<String> = snapshot.all_locations().collect();
        assert_eq!(all.len(), 5);
        for attempt in 1..=MOST_SNAPSHOT_ATTEMPTS {
            snapshot.status = Some(TenantSnapshotStatus {
                location: Some("elsewhere".into()),
                attempts: Some(attempt),
                ..TenantSnapshotStatus::default()
            });
            assert_eq!(snapshot.location(), format!("team/vision/77aa-{attempt}"));
            assert!(all.contains(&snapshot.location()));
        }
    }

    #[test]
    fn labels_say_why_a_snapshot_was_created() {
        for (label, expected) in [
            (json!({}), SnapshotTrigger::Manual),
            (json!({labels::SNAPSHOT_TRIGGER: "schedule"}), SnapshotTrigger::Schedule),
            (
                json!({labels::SNAPSHOT_TRIGGER: "before-restore"}),
                SnapshotTrigger::BeforeRestore,
            ),
            (json!({labels::SNAPSHOT_TRIGGER: "other"}), SnapshotTrigger::Manual),
        ] {
            assert_eq!(snapshot(&label).trigger(), expected, "{label}");
        }
        let created = TenantSnapshot::of_berth("a", ("team", "vision"), SnapshotTrigger::Schedule);
        assert_eq!(created.trigger(), SnapshotTrigger::Schedule);
        assert_eq!(created.labels()[labels::SNAPSHOT_TENANT], "vision");
    }

    #[test]
    fn a_class_allows_ten_snapshots_and_schedules_none_by_default() {
        let read: ClassSnapshots = serde_json::from_value(json!({})).unwrap();
        assert_eq!(read, ClassSnapshots::default());
        assert_eq!((read.max, read.schedule), (10, None));
        let schedule: SnapshotSchedule = serde_json::from_value(json!({"cron": "0 2 * * *"})).unwrap();
        assert_eq!((schedule.time_zone.as_str(), schedule.keep), ("UTC", 7));
    }

    #[test]
    fn phases_have_the_names_of_the_api() {
        for phase in SnapshotPhase::ALL {
            assert_eq!(serde_json::to_value(phase).unwrap(), phase.name());
        }
    }

    #[test]
    fn a_restore_saves_what_is_there_unless_the_annotation_says_exactly_otherwise() {
        let mut cluster = TenantCluster::new("vision", crate::TenantClusterSpec::default());
        assert_eq!(cluster.requested_restore(), None);
        for (value, without) in [("true", true), ("True", false), ("", false), ("false", false)] {
            let annotations = [
                (labels::RESTORE_SNAPSHOT, " nightly "),
                (labels::RESTORE_WITHOUT_SAVING, value),
            ];
            let annotations = annotations.map(|(key, value)| (key.to_owned(), value.to_owned()));
            cluster.metadata.annotations = Some(annotations.into());
            assert_eq!(cluster.requested_restore(), Some("nightly"));
            assert_eq!(cluster.restores_without_saving(), without, "{value:?}");
        }
    }

    #[test]
    fn the_uid_of_the_tenant_is_written_as_kubernetes_writes_it() {
        let status = TenantSnapshotStatus {
            tenant_uid: Some("6f2c".into()),
            ..TenantSnapshotStatus::default()
        };
        assert_eq!(serde_json::to_value(&status).unwrap(), json!({"tenantUID": "6f2c"}));
    }
}
