//! VolumeSnapshots, as far as they are metered. The host may not serve them.
//!
//! A snapshot names its claim, and does not say which of several claims of this name that was, nor how large its volume was: some drivers report no
//! size. So control writes both into an annotation of the snapshot while it knows them, for the controls that start later.

use super::{ClaimUse, MEBIBYTE, Using, created, whole};
use berth_api::{labels, names, quantity};
use jiff::Timestamp;
use kube::{
    ResourceExt,
    core::{ApiResource, GroupVersionKind, Object},
};
use serde::Deserialize;
use serde_json::Value;
use std::fmt;

/// A `VolumeSnapshot`. The `spec` may be missing: of a deleted object that cannot be read nothing but its name is known.
pub(crate) type VolumeSnapshot = Object<Option<SnapshotSpec>, SnapshotStatus>;

/// The `spec` of a `VolumeSnapshot`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SnapshotSpec {
    source: Source,
    volume_snapshot_class_name: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Source {
    persistent_volume_claim_name: Option<String>,
}

/// The `status` of a `VolumeSnapshot`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct SnapshotStatus {
    /// A quantity, as text or as a number.
    restore_size: Value,
    ready_to_use: Option<bool>,
    /// When it was taken.
    creation_time: Option<String>,
}

/// The claim that a snapshot is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SourceClaim {
    /// When it was created.
    pub(super) created: Timestamp,
    /// What it used, in MiB.
    pub(super) mebibytes: i64,
}

/// As [`labels::SNAPSHOT_SOURCE`] has it.
impl fmt::Display for SourceClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}Mi", self.created, self.mebibytes)
    }
}

impl SourceClaim {
    fn parse(text: &str) -> Option<Self> {
        let (created, size) = text.split_once(' ')?;
        let mebibytes = size.strip_suffix("Mi")?.parse().ok()?;
        Some(Self {
            created: created.parse().ok()?,
            mebibytes,
        })
    }
}

/// A snapshot of a tenant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SnapshotUse {
    /// Namespace and name of the claim that it is of.
    pub(super) claim: String,
    /// What it has, from its creation on; 0: its size is not known.
    pub(super) using: Using<ClaimUse>,
    /// Whether the driver has taken it.
    pub(super) is_taken: bool,
    /// The claim, if control has written that into the snapshot.
    pub(super) source: Option<SourceClaim>,
    pub(super) uid: String,
}

/// A snapshot into which the claim that it is of is to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnrecordedSource {
    /// Namespace and name of the snapshot.
    pub(crate) snapshot: String,
    pub(crate) uid: String,
    pub(crate) source: SourceClaim,
}

/// The kind `VolumeSnapshot`.
pub(crate) fn snapshot_resource() -> ApiResource {
    let kind = GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot");
    ApiResource::from_gvk_with_plural(&kind, "volumesnapshots")
}

/// What a snapshot of a tenant has. None if it is of no claim. Others can write the labels of a tenant in namespaces of their own.
pub(super) fn read_snapshot(snapshot: &VolumeSnapshot, now: Timestamp) -> Option<SnapshotUse> {
    let tenant = snapshot.labels().get(labels::TENANT)?;
    let namespace = snapshot.namespace()?;
    if !names::is_workload_namespace(&namespace, tenant) {
        return None;
    }
    let spec = snapshot.spec.as_ref()?;
    let claim = spec.source.persistent_volume_claim_name.as_ref()?;
    let status = snapshot.status.as_ref();
    let size = status.and_then(|status| match &status.restore_size {
        Value::String(text) => quantity::parse(text),
        number => quantity::parse(&number.to_string()),
    });
    let using = Using {
        tenant: tenant.clone(),
        since: created(snapshot, now),
        amount: ClaimUse {
            class: spec
                .volume_snapshot_class_name
                .clone()
                .filter(|class| !class.is_empty()),
            mebibytes: whole(size.unwrap_or_default(), MEBIBYTE),
        },
    };
    let source = snapshot.annotations().get(labels::SNAPSHOT_SOURCE);
    Some(SnapshotUse {
        claim: format!("{namespace}/{claim}"),
        using,
        is_taken: status.is_some_and(|status| status.ready_to_use == Some(true) || status.creation_time.is_some()),
        source: source.and_then(|text| SourceClaim::parse(text)),
        uid: snapshot.uid().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::names::TenantId;
    use serde_json::json;

    fn read(namespace: &str, source: &Value, restore_size: &Value) -> Option<SnapshotUse> {
        let id = TenantId::new("vision", "6f2c");
        let snapshot = json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s", "namespace": namespace, "labels": {labels::TENANT: id.slug()},
                "creationTimestamp": "1970-01-01T00:01:40Z"},
            "spec": {"source": source, "volumeSnapshotClassName": "daily"},
            "status": {"readyToUse": true, "restoreSize": restore_size},
        });
        let now = Timestamp::from_second(500).unwrap();
        read_snapshot(&serde_json::from_value(snapshot).unwrap(), now)
    }

    #[test]
    fn a_snapshot_has_the_size_of_the_volume_that_it_is_restored_to() {
        let own = TenantId::new("vision", "6f2c").workload_namespace();
        let of_claim = json!({"persistentVolumeClaimName": "c"});
        let SnapshotUse {
            claim, using, source, ..
        } = read(&own, &of_claim, &json!("10Gi")).unwrap();
        assert_eq!((claim, source), (format!("{own}/c"), None));
        assert_eq!(
            (using.amount.class.as_deref(), using.amount.mebibytes),
            (Some("daily"), 10 * 1024)
        );
        assert_eq!(using.since.as_second(), 100);
        let of_bytes = read(&own, &of_claim, &json!(1_048_577)).unwrap();
        assert_eq!(of_bytes.using.amount.mebibytes, 2);
        for size in [json!(null), json!("0"), json!("lots")] {
            let unknown = read(&own, &of_claim, &size).unwrap();
            assert_eq!(unknown.using.amount.mebibytes, 0, "{size}");
        }
        for (namespace, source, size) in [
            (own.as_str(), &json!({"volumeSnapshotContentName": "v"}), json!("10Gi")),
            ("team", &of_claim, json!("10Gi")),
        ] {
            assert_eq!(read(namespace, source, &size), None, "{namespace} {source} {size}");
        }
    }

    #[test]
    fn the_claim_that_control_has_written_into_a_snapshot_is_read() {
        let source = SourceClaim {
            created: Timestamp::from_second(90).unwrap(),
            mebibytes: 7,
        };
        assert_eq!(source.to_string(), "1970-01-01T00:01:30Z 7Mi");
        assert_eq!(SourceClaim::parse(&source.to_string()), Some(source));
        for text in ["", "1970-01-01T00:01:30Z", "1970-01-01T00:01:30Z 7", "yesterday 7Mi"] {
            assert_eq!(SourceClaim::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_snapshot_that_is_not_ready_or_of_which_only_the_name_is_known_is_read() {
        let namespace = TenantId::new("vision", "6f2c").workload_namespace();
        for more in [json!({}), json!({"spec": {"source": {}}}), json!({"status": {}})] {
            let mut snapshot = json!({"metadata": {"name": "s", "namespace": namespace}});
            snapshot
                .as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let snapshot: VolumeSnapshot = serde_json::from_value(snapshot).unwrap();
            assert_eq!(read_snapshot(&snapshot, Timestamp::UNIX_EPOCH), None);
        }
    }
}
