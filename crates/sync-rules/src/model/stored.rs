//! One object as the syncer keeps it: what decisions need is typed, the rest is packed JSON text. A parsed JSON tree
//! takes thirty times the memory.

use super::{content::Content, extract::Extract, packed_text::Dictionary, taint::Taint};
use crate::model::json;
use berth_api::labels;
use serde_json::Value;
use std::sync::Arc;

/// The deletion of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Seconds that the object has to end; absent for kinds without grace.
    pub grace_seconds: Option<i64>,
    /// Whether finalizers keep it.
    pub held: bool,
}

impl Deletion {
    /// Whether its time is over and nothing keeps it, so that it is about to be gone. An API server writes the end of the grace
    /// and deletes the object in two steps: a request that is cut off between them leaves it like this for ever, until
    /// it is deleted again.
    pub fn is_in_last_step(self) -> bool {
        self.grace_seconds == Some(0) && !self.held
    }

    /// The same deletion with at most this grace, if there is a limit.
    #[must_use]
    pub fn with_grace_at_most(self, max_seconds: Option<u32>) -> Self {
        let max = max_seconds.map_or(i64::MAX, i64::from);
        Self {
            grace_seconds: self.grace_seconds.map(|seconds| seconds.min(max)),
            ..self
        }
    }
}

/// An object, trimmed to what its kind needs.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Stored {
    /// The object's own name (host objects have another one than in the tenant).
    pub name: Box<str>,
    /// UID.
    pub uid: Box<str>,
    /// Resource version. Kubernetes guarantees that they can be compared as numbers.
    pub version: u64,
    /// Generation of the spec; 0 if the kind has none.
    pub generation: i64,
    /// Whether and how the object is being deleted.
    pub deletion: Option<Deletion>,
    /// On host objects: UID of the tenant object it was made for.
    pub origin_uid: Option<Box<str>>,
    /// On host objects: hash of what was last applied.
    pub applied_hash: Option<Box<str>>,
    /// On host objects that were made before the tenant's object: when, in seconds since the epoch.
    pub reserved_at: Option<i64>,
    /// On nodes: whether new pods are to stay away.
    pub unschedulable: bool,
    /// On nodes: their taints.
    pub taints: Box<[Taint]>,
    /// On pods: whether they have a node.
    pub has_node: bool,
    /// On claims of volumes: whether they have one.
    pub has_volume: bool,
    /// Bytes of the whole object as JSON; 0 if that is not known.
    pub bytes: u32,
    /// Whether it has too much structure to be kept: nothing but a part of its metadata is, and of its spec what its
    /// [kind](super::watch_spec::WatchSpec::fields_if_cut) says. It must not be on the host, unless it
    /// [holds data](super::to_host::ToHost::holds_data) there.
    pub is_cut: bool,
    /// Bytes of memory that its tree takes at most; 0 if that is little.
    pub(super) tree_bytes: u64,
    content: Content,
    extract: Extract,
}

impl Stored {
    /// Keeps a copy of an object, which the caller has trimmed.
    pub fn new(object: &Value) -> Self {
        Self::from(object.clone())
    }

    /// The same object, which had this number of bytes before the caller trimmed it.
    #[must_use]
    pub fn of_bytes(self, bytes: usize) -> Self {
        Self {
            bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
            ..self
        }
    }

    /// The same object, whose tree takes this memory at most, in bytes.
    #[must_use]
    pub fn of_tree_bytes(self, tree_bytes: u64) -> Self {
        Self { tree_bytes, ..self }
    }

    /// The same object, of which the caller has left out nearly everything but a part of the metadata, because it has too much structure.
    #[must_use]
    pub fn cut(self) -> Self {
        Self { is_cut: true, ..self }
    }

    /// What `extract` makes of the object, or has made of it for the same `key`: for rules that look at many objects for each of many others.
    /// It is kept as packed text, so it must be a small part of the object.
    pub fn extract(&self, key: u64, extract: impl FnOnce(&Value) -> Value) -> Value {
        self.extract.get(key, || extract(&self.object()))
    }

    /// The trimmed object.
    pub fn object(&self) -> Arc<Value> {
        self.content.tree()
    }

    /// The trimmed object, if it need not be unpacked: objects that changed a short while ago.
    pub fn fresh_object(&self) -> Option<Arc<Value>> {
        self.content.fresh_tree()
    }

    /// Whether `text` occurs in a key or string of the object, or may occur: far cheaper than parsing it.
    pub fn mentions(&self, text: &str) -> bool {
        self.content.mentions(text)
    }

    /// Whether two states of a host object were made for the same state of the tenant's object, and differ in nothing but what the host
    /// says of it: its status and its node.
    pub fn is_for_the_same(&self, other: &Self) -> bool {
        self.applied_hash.is_some()
            && self.uid == other.uid
            && self.origin_uid == other.origin_uid
            && self.applied_hash == other.applied_hash
            && self.reserved_at == other.reserved_at
            && self.deletion == other.deletion
    }

    /// Whether two states of a tenant's object differ in nothing but its status, its node and what the API server counts. False as well if
    /// one of them had to be unpacked to know that.
    pub fn requests_the_same(&self, other: &Self) -> bool {
        const COUNTERS: &[&str] = &["generation", "resourceVersion"];
        if self.uid != other.uid || self.deletion != other.deletion {
            return false;
        }
        let (Some(one), Some(other)) = (self.fresh_object(), other.fresh_object()) else {
            return false;
        };
        json::is_same_except(&one, &other, &["metadata", "spec", "status"])
            && json::is_same_except(&one["metadata"], &other["metadata"], COUNTERS)
            && json::is_same_except(&one["spec"], &other["spec"], &["nodeName"])
    }

    /// Packs the object.
    pub(super) fn pack(&self, dictionary: &Dictionary) {
        self.content.pack(dictionary);
    }

    #[cfg(test)]
    pub(super) fn is_packed(&self) -> bool {
        self.content.packed_bytes() > 0
    }
}

impl From<Value> for Stored {
    /// Keeps an object, which the caller has trimmed.
    fn from(object: Value) -> Self {
        let object = Arc::new(object);
        let annotation = |key| json::text(&object, &["metadata", "annotations", key]).map(Into::into);
        let meta = |key| json::text(&object, &["metadata", key]);
        Self {
            name: meta("name").unwrap_or_default().into(),
            uid: meta("uid").unwrap_or_default().into(),
            version: meta("resourceVersion")
                .and_then(|version| version.parse().ok())
                .unwrap_or_default(),
            generation: json::at(&object, &["metadata", "generation"])
                .and_then(Value::as_i64)
                .unwrap_or_default(),
            deletion: meta("deletionTimestamp").map(|_| Deletion {
                grace_seconds: json::at(&object, &["metadata", "deletionGracePeriodSeconds"]).and_then(Value::as_i64),
                held: !json::items(&object, &["metadata", "finalizers"]).is_empty(),
            }),
            origin_uid: annotation(labels::ORIGIN_UID),
            applied_hash: annotation(labels::APPLIED_HASH),
            // A time that cannot be parsed counts as long ago.
            reserved_at: json::text(&object, &["metadata", "annotations", labels::RESERVED_AT])
                .map(|time| time.parse().unwrap_or_default()),
            unschedulable: json::at(&object, &["spec", "unschedulable"]) == Some(&Value::Bool(true)),
            taints: Taint::all_of(&object),
            has_node: json::filled(&object, &["spec", "nodeName"]).is_some(),
            has_volume: json::filled(&object, &["spec", "volumeName"]).is_some(),
            bytes: 0,
            is_cut: false,
            tree_bytes: 0,
            content: Content::new(object),
            extract: Extract::default(),
        }
    }
}

/// Whether a host object was made for this very tenant object.
pub fn is_origin(tenant: &Stored, host: &Stored) -> bool {
    host.origin_uid.as_deref() == Some(&*tenant.uid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_binding_and_a_status_change_nothing_that_is_requested() {
        let pod = || {
            json!({
                "metadata": {"name": "a", "uid": "u", "resourceVersion": "1", "generation": 1, "labels": {"app": "a"}},
                "spec": {"containers": [{"image": "a:1"}]},
                "status": {"phase": "Pending"},
            })
        };
        let requests_the_same = |path: &[&str], value: &str| {
            let mut other = pod();
            json::set(&mut other, path, value);
            Stored::from(pod()).requests_the_same(&Stored::from(other))
        };
        for path in [
            &["metadata", "resourceVersion"][..],
            &["metadata", "generation"],
            &["spec", "nodeName"],
            &["status", "phase"],
        ] {
            assert!(requests_the_same(path, "2"), "{path:?}");
        }
        for path in [
            &["metadata", "uid"][..],
            &["metadata", "labels", "app"],
            &["metadata", "annotations", "note"],
            &["metadata", "deletionTimestamp"],
            &["spec", "containers"],
            &["spec", "tolerations"],
            &["data"],
        ] {
            assert!(!requests_the_same(path, "2"), "{path:?}");
        }
        let packed = Stored::from(pod());
        packed.pack(&Dictionary::default());
        assert!(!packed.requests_the_same(&Stored::from(pod())), "it is not unpacked");
    }

    #[test]
    fn a_limit_lowers_only_a_longer_grace() {
        let limited = |grace_seconds, max| {
            let deletion = Deletion {
                grace_seconds,
                held: true,
            };
            deletion.with_grace_at_most(max)
        };
        for (wanted, max, expected) in [
            (Some(86_400), Some(600), Some(600)),
            (Some(i64::MAX), Some(600), Some(600)),
            (Some(30), Some(600), Some(30)),
            (Some(0), Some(600), Some(0)),
            (None, Some(600), None),
            (Some(86_400), None, Some(86_400)),
        ] {
            assert_eq!(
                limited(wanted, max).grace_seconds,
                expected,
                "{wanted:?}, at most {max:?}"
            );
            assert!(limited(wanted, max).held);
        }
    }
}
