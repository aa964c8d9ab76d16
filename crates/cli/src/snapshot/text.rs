//! Snapshots as people read them.

use berth_api::{TenantSnapshot, conditions::COMPLETED};
use jiff::Timestamp;
use kube::ResourceExt as _;

use crate::output::{format_age_since, format_optional, format_table};

/// Resource and name, as `-o name` prints them.
pub(super) fn resource_name(name: &str) -> String {
    format!("tenantsnapshot.berth.dev/{name}")
}

/// A table of snapshots.
pub(super) fn format_snapshots(snapshots: &[TenantSnapshot], now: Timestamp) -> String {
    if snapshots.is_empty() {
        return "There are no snapshots.".into();
    }
    let rows: Vec<[String; 7]> = snapshots.iter().map(|snapshot| row(snapshot, now)).collect();
    format_table(["NAME", "TENANT", "PHASE", "OBJECTS", "SIZE", "AGE", "REASON"], &rows)
}

fn row(snapshot: &TenantSnapshot, now: Timestamp) -> [String; 7] {
    let status = snapshot.status.as_ref();
    let objects = status
        .and_then(|status| status.objects)
        .map(|objects| objects.to_string());
    let size = status.and_then(|status| status.bytes).map(format_bytes);
    let created = snapshot.creation_timestamp().map(|created| created.0);
    let mut conditions = status.into_iter().flat_map(|status| &status.conditions);
    let unmet = conditions.find(|condition| condition.type_ == COMPLETED && condition.status != "True");
    [
        snapshot.name_any(),
        snapshot.spec.tenant_cluster_name.clone(),
        snapshot.phase().name().to_owned(),
        format_optional(objects.as_ref()),
        format_optional(size.as_ref()),
        format_age_since(created, now),
        format_optional(unmet.map(|condition| &condition.reason)),
    ]
}

/// A number of bytes in the largest unit of which there is one, rounded up.
fn format_bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes}B"),
        1024..1_048_576 => format!("{}Ki", bytes.div_ceil(1024)),
        _ => format!("{}Mi", bytes.div_ceil(1_048_576)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sizes_have_units() {
        for (bytes, text) in [
            (0, "0B"),
            (1023, "1023B"),
            (1024, "1Ki"),
            (1025, "2Ki"),
            (1_048_576, "1Mi"),
            (5 << 20, "5Mi"),
        ] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    #[test]
    fn a_table_says_what_is_known_of_each_snapshot() {
        let snapshot = |name: &str, status: serde_json::Value| -> TenantSnapshot {
            serde_json::from_value(json!({
                "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
                "metadata": {"name": name, "namespace": "team", "creationTimestamp": "2026-11-30T00:00:00Z"},
                "spec": {"tenantClusterName": "vision"}, "status": status,
            }))
            .unwrap()
        };
        let failed = json!({"phase": "Failed", "conditions": [{"type": "Completed", "status": "False", "reason": "StoreError", "message": "",
            "lastTransitionTime": "2026-11-30T00:00:00Z"}]});
        let all = [
            snapshot("a", json!({"phase": "Completed", "objects": 7, "bytes": 2048})),
            snapshot("b", failed),
            snapshot("c", json!({})),
        ];
        let now = "2026-11-30T00:01:00Z".parse().unwrap();
        let table = format_snapshots(&all, now);
        let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["a", "vision", "Completed", "7", "2Ki", "60s", "-"]);
        assert_eq!(words[2], ["b", "vision", "Failed", "-", "-", "60s", "StoreError"]);
        assert_eq!(words[3], ["c", "vision", "Pending", "-", "-", "60s", "-"]);
        assert_eq!(format_snapshots(&[], now), "There are no snapshots.");
    }
}
