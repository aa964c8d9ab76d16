//! Whether a tenant can be set back to a snapshot: pure.

use super::super::restore::Refusal;
use crate::datastore::DatabaseState;
use berth_api::{KubernetesVersion, SnapshotPhase, TenantSnapshot};
use berth_snapshots::Written;
use std::collections::BTreeSet;

/// Share of etcd's quota that may be used after a restore. Beyond its quota etcd rejects the writes of all tenants.
const MOST_USED_PERCENT: u64 = 80;

/// What is known of a tenant that is to be set back.
pub(super) struct RestoreFacts<'f> {
    /// Name of the TenantCluster.
    pub(super) tenant: &'f str,
    pub(super) uid: &'f str,
    /// The version of the API server that will read the objects.
    pub(super) version: &'f str,
    /// Names of the keys of encryption that the tenant has.
    pub(super) keys: &'f BTreeSet<String>,
    pub(super) has_store: bool,
    /// Name of the snapshot, as the request has it.
    pub(super) name: &'f str,
    pub(super) snapshot: Option<&'f TenantSnapshot>,
    pub(super) database: &'f DatabaseState,
    /// Where the keys are, for people.
    pub(super) namespace: &'f str,
}

/// What was written of a snapshot to which a tenant can be set back.
///
/// # Errors
/// Why it cannot.
pub(super) fn check(facts: &RestoreFacts<'_>) -> Result<Written, Refusal> {
    let RestoreFacts { tenant, name, .. } = facts;
    if !facts.has_store {
        return Err(no_store());
    }
    let snapshot = facts
        .snapshot
        .filter(|snapshot| snapshot.metadata.deletion_timestamp.is_none());
    let Some(snapshot) = snapshot else {
        return refuse(
            "SnapshotNotFound",
            format!("there is no TenantSnapshot {name} in the namespace of the TenantCluster, or it is being deleted"),
        );
    };
    if snapshot.spec.tenant_cluster_name != *tenant {
        return refuse(
            "OtherTenant",
            format!(
                "the TenantSnapshot {name} is of the TenantCluster {}, and a tenant can be set back only to a snapshot of its own",
                snapshot.spec.tenant_cluster_name
            ),
        );
    }
    let written = written(snapshot);
    let (Some(written), Some(status)) = (written, snapshot.status.as_ref()) else {
        return refuse(
            "SnapshotNotCompleted",
            format!(
                "the phase of the TenantSnapshot {name} is {}; its condition Completed says why",
                snapshot.phase().name()
            ),
        );
    };
    if status.tenant_uid.as_deref() != Some(facts.uid) {
        return refuse(
            "OtherTenant",
            format!(
                "the TenantSnapshot {name} is of an earlier TenantCluster {tenant}, which was deleted; a snapshot cannot be restored into another one"
            ),
        );
    }
    check_version(facts, status.version.as_deref())?;
    check_keys(facts, &status.encryption_keys)?;
    check_room(facts.database, written.bytes)?;
    Ok(written)
}

/// That there is no object store.
pub(super) fn no_store() -> Refusal {
    Refusal {
        reason: "NoSnapshotStore",
        message: "Berth has no object store for snapshots; the platform sets snapshots.url in the values of the chart"
            .into(),
    }
}

/// An API server without a key cannot read what is encrypted with it, and could not be started again after the restore.
fn check_keys(facts: &RestoreFacts<'_>, needed: &[String]) -> Result<(), Refusal> {
    let missing: Vec<&str> = { needed.iter() }
        .filter(|key| !facts.keys.contains(*key))
        .map(String::as_str)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    refuse(
        "EncryptionKeyMissing",
        format!(
            "the TenantSnapshot {} has objects that are encrypted with keys that Secret {}/pki of the host does not have any more: {}. Add these entries from a \
             backup of the Secret while control does not run, with this request set, or use a snapshot from after the last change of the key",
            facts.name,
            facts.namespace,
            missing.join(", ")
        ),
    )
}

/// An API server reads what one of the same minor version has stored, and what one of the version before has.
fn check_version(facts: &RestoreFacts<'_>, stored: Option<&str>) -> Result<(), Refusal> {
    let minor = |text: &str| Some(text.parse::<KubernetesVersion>().ok()?.minor);
    let of_snapshot = stored.and_then(minor);
    let of_tenant = minor(facts.version);
    let is_readable = of_snapshot
        .zip(of_tenant)
        .is_some_and(|(stored, runs)| stored == runs || stored + 1 == runs);
    if is_readable {
        return Ok(());
    }
    refuse(
        "VersionNotReadable",
        format!(
            "an API server of Kubernetes {} has stored the objects of the TenantSnapshot {}, and the tenant has {}: an API server reads what one of the same \
             minor version has stored, or of the one before. Use a newer snapshot, or read this one with an API server of its version and apply its objects",
            stored.unwrap_or("of an unknown version"),
            facts.name,
            facts.version
        ),
    )
}

/// Whether so many bytes of a snapshot can be written. What is replaced stays in etcd for some minutes, as its history.
///
/// # Errors
/// There is no room for them.
pub(super) fn check_room(database: &DatabaseState, bytes: u64) -> Result<(), Refusal> {
    let Some(quota) = database.quota else { return Ok(()) };
    let needed = database.bytes_in_use.saturating_add(bytes);
    let most = quota / 100 * MOST_USED_PERCENT;
    if needed <= most {
        return Ok(());
    }
    refuse(
        "DatastoreFull",
        format!(
            "the datastore of all tenants uses {} bytes and accepts {quota}; with {} more of the snapshot it could reject the writes of all tenants. Ask the \
             platform to make room",
            database.bytes_in_use, bytes
        ),
    )
}

/// What was written of a completed snapshot; none if its status does not say all of it.
fn written(snapshot: &TenantSnapshot) -> Option<Written> {
    let status = snapshot.status.as_ref()?;
    if snapshot.phase() != SnapshotPhase::Completed {
        return None;
    }
    Some(Written {
        objects: status.objects?,
        bytes: status.bytes?,
        stored_bytes: status.stored_bytes?,
        checksum: status.checksum.clone()?,
    })
}

fn refuse<T>(reason: &'static str, message: String) -> Result<T, Refusal> {
    Err(Refusal { reason, message })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const KEY: &str = "encryption-key-a";

    fn snapshot(change: impl FnOnce(&mut Value)) -> TenantSnapshot {
        let mut snapshot = json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": "nightly", "namespace": "team", "uid": "77aa"},
            "spec": {"tenantClusterName": "vision"},
            "status": {"phase": "Completed", "tenantUID": "6f2c", "version": "v1.37.1", "objects": 5, "bytes": 100, "storedBytes": 50,
                "checksum": "ab", "encryptionKeys": [KEY]},
        });
        change(&mut snapshot);
        serde_json::from_value(snapshot).unwrap()
    }

    /// The number of objects, or the reason of the refusal.
    fn checked(
        snapshot: Option<&TenantSnapshot>,
        change: impl FnOnce(&mut RestoreFacts<'_>),
    ) -> Result<u64, &'static str> {
        look_at(snapshot, change).map_err(|refusal| refusal.reason)
    }

    fn look_at(snapshot: Option<&TenantSnapshot>, change: impl FnOnce(&mut RestoreFacts<'_>)) -> Result<u64, Refusal> {
        let keys = BTreeSet::from([KEY.to_owned()]);
        let database = DatabaseState {
            quota: Some(1000),
            bytes_in_use: 700,
            revision: 1,
        };
        let mut facts = RestoreFacts {
            tenant: "vision",
            uid: "6f2c",
            version: "v1.37.1",
            keys: &keys,
            has_store: true,
            name: "nightly",
            snapshot,
            database: &database,
            namespace: "berth-vision-cp",
        };
        change(&mut facts);
        check(&facts).map(|written| written.objects)
    }

    #[test]
    fn a_tenant_can_be_set_back_to_a_completed_snapshot_of_its_own() {
        assert_eq!(checked(Some(&snapshot(|_| ())), |_| ()), Ok(5));
    }

    #[test]
    fn what_is_not_a_snapshot_of_this_very_tenant_is_refused() {
        let refused = |change: fn(&mut Value)| checked(Some(&snapshot(change)), |_| ());
        assert_eq!(checked(None, |_| ()), Err("SnapshotNotFound"));
        let deleted = refused(|object| object["metadata"]["deletionTimestamp"] = "2026-11-30T00:00:00Z".into());
        assert_eq!(deleted, Err("SnapshotNotFound"));
        let other = refused(|object| object["spec"]["tenantClusterName"] = "speech".into());
        assert_eq!(other, Err("OtherTenant"));
        let earlier = refused(|object| object["status"]["tenantUID"] = "0000".into());
        assert_eq!(earlier, Err("OtherTenant"));
        for phase in ["Pending", "Running", "Failed"] {
            let mut object = snapshot(|_| ());
            object.status.as_mut().unwrap().phase = Some(serde_json::from_value(json!(phase)).unwrap());
            assert_eq!(checked(Some(&object), |_| ()), Err("SnapshotNotCompleted"), "{phase}");
        }
        for field in ["objects", "bytes", "storedBytes", "checksum"] {
            let object = snapshot(|object| {
                object["status"].as_object_mut().unwrap().remove(field);
            });
            assert_eq!(checked(Some(&object), |_| ()), Err("SnapshotNotCompleted"), "{field}");
        }
        let without_store = checked(Some(&snapshot(|_| ())), |facts| facts.has_store = false);
        assert_eq!(without_store, Err("NoSnapshotStore"));
    }

    #[test]
    fn an_api_server_reads_what_its_own_minor_version_and_the_one_before_have_stored() {
        let with_version = |stored: &str, runs: &'static str| {
            let object = snapshot(|object| object["status"]["version"] = stored.into());
            checked(Some(&object), |facts| facts.version = runs)
        };
        for (stored, runs, expected) in [
            ("v1.37.0", "v1.37.1", Ok(5)),
            ("v1.37.9", "v1.37.1", Ok(5)),
            ("v1.36.4", "v1.37.1", Ok(5)),
            ("v1.35.0", "v1.37.1", Err("VersionNotReadable")),
            ("v1.38.0", "v1.37.1", Err("VersionNotReadable")),
            ("", "v1.37.1", Err("VersionNotReadable")),
        ] {
            assert_eq!(with_version(stored, runs), expected, "{stored} {runs}");
        }
    }

    #[test]
    fn objects_whose_key_is_gone_are_not_restored() {
        let keys: &BTreeSet<String> = Box::leak(Box::new(BTreeSet::from(["encryption-key-b".to_owned()])));
        let refused = |object: &TenantSnapshot| look_at(Some(object), |facts| facts.keys = keys).unwrap_err();
        assert_eq!(refused(&snapshot(|_| ())).reason, "EncryptionKeyMissing");
        // All that are missing are named, and no other.
        let both = snapshot(|object| {
            object["status"]["encryptionKeys"] = json!([KEY, "encryption-key-b", "encryption-key-c"]);
        });
        let message = refused(&both).message;
        assert!(
            message.contains(&format!("any more: {KEY}, encryption-key-c. ")),
            "{message}"
        );
        let plain = snapshot(|object| object["status"]["encryptionKeys"] = json!([]));
        assert_eq!(checked(Some(&plain), |_| ()), Ok(5));
    }

    #[test]
    fn a_restore_does_not_fill_the_datastore_of_all_tenants() {
        let with_bytes = |bytes: u64| {
            let object = snapshot(|object| object["status"]["bytes"] = bytes.into());
            checked(Some(&object), |_| ())
        };
        assert_eq!(with_bytes(100), Ok(5));
        assert_eq!(with_bytes(101), Err("DatastoreFull"));
        assert_eq!(with_bytes(u64::MAX >> 1), Err("DatastoreFull"));
    }
}
