//! What the record of a restore says: pure.

use berth_snapshots::Written;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// How far a restore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestorePhase {
    /// The tenant's control plane is stopped, and a snapshot is taken of what it stores. Nothing is replaced yet.
    Saving,
    /// What the tenant stores is replaced. There is no way back but to go on.
    Replacing,
    /// All is replaced but the namespace `kube-system`, which comes last.
    Replaced,
}

/// A restore under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreRecord {
    /// Name of the TenantSnapshot.
    pub snapshot_name: String,
    /// Its UID: its file is not deleted meanwhile.
    #[serde(rename = "snapshotUID")]
    pub snapshot_uid: String,
    /// Where it is in the object store.
    pub location: String,
    /// Number of its objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes in the object store.
    pub stored_bytes: u64,
    /// SHA-256 of what is there.
    pub checksum: String,
    /// Names of the keys with which objects of it are encrypted.
    #[serde(default)]
    pub encryption_keys: Vec<String>,
    /// Name of the TenantSnapshot of what the tenant stores before; none: it is not saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_as: Option<String>,
    /// A revision of etcd at which nothing of the tenant ran any more: only a snapshot of it or of a later one has all that the tenant stored before. Once that
    /// is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_after: Option<i64>,
    /// When the restore began.
    pub started_at: Timestamp,
    /// How far it is.
    pub phase: RestorePhase,
    /// How often it was begun or gone on with.
    pub attempts: u32,
    /// The namespace `kube-system` of the snapshot, as etcd had it, in base64. Once all else is replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
}

impl RestoreRecord {
    /// Reads a record.
    ///
    /// # Errors
    /// It cannot be read: another version of Berth has written it, or somebody else.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// The record as it is stored.
    ///
    /// # Panics
    /// Never: there are only texts and numbers.
    #[expect(clippy::expect_used, reason = "texts and numbers are JSON")]
    pub fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a record is JSON")
    }

    /// What was written into the object store.
    pub fn written(&self) -> Written {
        Written {
            objects: self.objects,
            bytes: self.bytes,
            stored_bytes: self.stored_bytes,
            checksum: self.checksum.clone(),
        }
    }
}

/// How the last restore of a tenant ended. It is written with the end of the record, so that a control that starts later knows it as well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RestoreEnd {
    /// When it ended, by the clock of the host.
    pub ended_at: Timestamp,
    /// Bytes that it has written; 0 for one that was given up.
    pub bytes: u64,
}

impl RestoreEnd {
    /// Of a restore that ended then, and that has written so many bytes.
    pub fn new(ended_at: Timestamp, bytes: u64) -> Self {
        Self { ended_at, bytes }
    }

    /// Reads what is stored.
    ///
    /// # Errors
    /// It cannot be read: another version of Berth has written it, or somebody else.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// As it is stored.
    ///
    /// # Panics
    /// Never: there are only texts and numbers.
    #[expect(clippy::expect_used, reason = "texts and numbers are JSON")]
    pub fn to_text(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("the end of a restore is JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_restore_is_read_as_it_was_written() {
        let end = RestoreEnd::new("2026-11-30T01:00:00Z".parse().unwrap(), 30);
        assert_eq!(RestoreEnd::parse(&end.to_text()).unwrap(), end);
        assert!(RestoreEnd::parse(b"{}").is_err());
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = RestoreRecord {
            snapshot_name: "nightly".into(),
            snapshot_uid: "77aa".into(),
            location: "team/vision/77aa".into(),
            objects: 3,
            bytes: 30,
            stored_bytes: 20,
            checksum: "ab".into(),
            encryption_keys: vec!["encryption-key-a".into()],
            saved_as: None,
            saved_after: None,
            started_at: "2026-11-30T01:00:00Z".parse().unwrap(),
            phase: RestorePhase::Saving,
            attempts: 1,
            identity: None,
        };
        assert_eq!(RestoreRecord::parse(&record.to_text()).unwrap(), record);
        assert_eq!(record.written().objects, 3);
        // Nothing is guessed of one that cannot be read.
        assert!(RestoreRecord::parse(b"{\"snapshotName\": \"nightly\"}").is_err());
    }
}
