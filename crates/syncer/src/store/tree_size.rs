//! How much memory an object takes as a tree, and how much one of the tenant may take. It can be a hundred times what the object takes in etcd, and a
//! syncer works on 42 objects at a time.

use berth_runtime::tree::Tree;
use berth_sync_rules::model::resource::Side;
use serde::Deserialize;
use serde_json::{Value, value::RawValue};

/// Most that an object of the tenant may take besides its status. A pod with as many variables as it may have takes 15 MiB.
pub(crate) const MAX_TENANT_TREE: u64 = 16 << 20;
/// Most that its status may take as well. Otherwise a pod that was just small enough would leave the host once it runs, by what the host says of it: that
/// is 5 MiB of a pod with as many containers and mounts as it may have.
const MAX_STATUS: u64 = 8 << 20;
/// Bytes of the text of a small object. As a tree it takes a hundred times as much at most.
const SMALL: usize = 8 << 10;

/// Memory that an object takes as a tree, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TreeSize {
    /// That of all of it, without `managedFields`, which are never parsed, and often are half of it.
    pub(crate) all: u64,
    status: u64,
}

/// What counts for itself, as it is in the text.
#[derive(Debug, Default, Deserialize)]
struct Apart<'a> {
    #[serde(borrow)]
    metadata: Option<ApartOfMetadata<'a>>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApartOfMetadata<'a> {
    #[serde(borrow)]
    managed_fields: Option<&'a RawValue>,
}

impl TreeSize {
    /// That of an object with this JSON text. 0 if it is small, as most objects are: to count it takes a part of the time in which it is parsed.
    pub(crate) fn of_text(text: &str) -> Self {
        if text.len() <= SMALL {
            return Self::default();
        }
        let bytes = |part: &RawValue| Tree::of(part.get().as_bytes()).bytes();
        let Apart { metadata, status } = serde_json::from_str(text).unwrap_or_default();
        let fields = metadata.and_then(|metadata| metadata.managed_fields);
        let all = Tree::of(text.as_bytes()).bytes();
        Self {
            all: all.saturating_sub(fields.map_or(0, bytes)),
            status: status.map_or(0, bytes),
        }
    }

    /// That of an object without `managedFields`.
    pub(crate) fn of_value(object: &Value) -> Self {
        Self {
            all: Tree::bytes_of(object),
            status: object.get("status").map_or(0, Tree::bytes_of),
        }
    }

    /// Whether it is more than an object may take that may take `most` besides its status.
    pub(crate) fn exceeds(self, most: u64) -> bool {
        self.all.saturating_sub(self.status.min(MAX_STATUS)) > most
    }
}

/// What an object of a side may take besides its status. The host is the platform's.
pub(crate) fn most_of_side(side: Side) -> u64 {
    match side {
        Side::Tenant => MAX_TENANT_TREE,
        Side::Host => u64::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn managed_fields_take_no_memory() {
        let memory = |metadata: &str, spec: &str| {
            let text = format!(r#"{{"metadata":{{"name":"a"{metadata}}},"spec":[{spec}]}}"#);
            TreeSize::of_text(&text).all
        };
        let maps = "{},".repeat(SMALL) + "{}";
        assert_eq!(memory("", "{}"), 0, "it is small");
        let large = memory("", &maps);
        assert!(large > 700 * SMALL as u64, "{large}");
        let fields = format!(r#","managedFields":[{maps}]"#);
        assert!(memory(&fields, "{}") < 10_000 && memory(&fields, &maps) < large + 10_000);
        // What is written twice counts twice.
        assert!(memory(&format!("{fields}{fields}"), &maps) > 2 * large);
    }

    #[test]
    fn a_status_has_room_of_its_own() {
        // 900 bytes each.
        let maps = |mib: usize| vec![json!({}); (mib << 20) / 900];
        for (spec, status, expected) in [
            (15, 0, false),
            (15, 7, false),
            (17, 0, true),
            (15, 10, true),
            (0, 26, true),
        ] {
            let object = json!({"metadata": {"name": "a"}, "spec": maps(spec), "status": maps(status)});
            for size in [TreeSize::of_value(&object), TreeSize::of_text(&object.to_string())] {
                assert_eq!(size.exceeds(most_of_side(Side::Tenant)), expected, "{spec} {status}");
                assert!(!size.exceeds(most_of_side(Side::Host)));
            }
        }
    }
}
