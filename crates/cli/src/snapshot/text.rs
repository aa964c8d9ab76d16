//! Snapshots as people read them.

use berth_api::{
    TenantSnapshot,
    conditions::{COMPLETED, DELETING},
    quantity,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::delete::has_file;
use crate::output::{format_age_since, format_columns, format_optional, format_rows, format_time, join_lines};
use crate::tenant::TenantName;

/// The headings of a wide table. Others have the first [`USUAL`].
const HEADINGS: [&str; 12] = [
    "NAMESPACE",
    "NAME",
    "TENANT",
    "PHASE",
    "OBJECTS",
    "SIZE",
    "AGE",
    "REASON",
    "TRIGGER",
    "VERSION",
    "EXPIRES",
    "MESSAGE",
];
const USUAL: usize = 8;

/// Resource and name, as `-o name` prints them.
pub(super) fn resource_name(name: &str) -> String {
    format!("tenantsnapshot.berth.dev/{name}")
}

/// A table of snapshots.
pub(super) fn format_snapshots(snapshots: &[TenantSnapshot], is_wide: bool, now: Timestamp) -> String {
    let columns = if is_wide { HEADINGS.len() } else { USUAL };
    let rows: Vec<Vec<String>> = { snapshots.iter() }
        .map(|snapshot| row(snapshot, now).into_iter().take(columns).collect())
        .collect();
    format_columns(&HEADINGS[..columns], &rows)
}

fn row(snapshot: &TenantSnapshot, now: Timestamp) -> [String; 12] {
    let status = snapshot.status.clone().unwrap_or_default();
    let size = status.bytes.map(format_bytes);
    let objects = status.objects.map(|objects| objects.to_string());
    let created = snapshot.creation_timestamp().map(|created| created.0);
    let of_type = |type_: &str| status.conditions.iter().find(|condition| condition.type_ == type_);
    // Of one that was deleted people want to know why it is still there.
    let shown = of_type(DELETING).or_else(|| of_type(COMPLETED).filter(|condition| condition.status != "True"));
    [
        snapshot.namespace().unwrap_or_default(),
        snapshot.name_any(),
        snapshot.spec.tenant_cluster_name.clone(),
        snapshot.phase().name().to_owned(),
        format_optional(objects.as_ref()),
        format_optional(size.as_ref()),
        format_age_since(created, now),
        format_optional(shown.map(|condition| &condition.reason)),
        trigger(snapshot).to_owned(),
        format_optional(status.version.as_ref()),
        format_moment(status.expires_at.as_ref()),
        format_optional(shown.map(|condition| &condition.message)),
    ]
}

/// Why it was created: by somebody, by the schedule of the class, or by a restore.
fn trigger(snapshot: &TenantSnapshot) -> &'static str {
    snapshot.trigger().label().unwrap_or("manual")
}

fn format_moment(time: Option<&Time>) -> String {
    time.map_or_else(|| "-".into(), |time| format_time(time.0))
}

/// Everything about one snapshot.
pub(super) fn describe(snapshot: &TenantSnapshot, now: Timestamp) -> String {
    let status = snapshot.status.clone().unwrap_or_default();
    let name = TenantName {
        namespace: snapshot.namespace().unwrap_or_default(),
        name: snapshot.name_any(),
    };
    let created = snapshot.creation_timestamp().map(|created| created.0);
    let objects = status.objects.map(|objects| objects.to_string());
    let [size, stored] = [status.bytes, status.stored_bytes].map(|bytes| bytes.map(format_bytes));
    let mut lines = vec![
        format!("Name:       {name}"),
        format!("Tenant:     {}", snapshot.spec.tenant_cluster_name),
        format!("Phase:      {}", snapshot.phase().name()),
        format!("Trigger:    {}", trigger(snapshot)),
        format!("Age:        {}", format_age_since(created, now)),
        format!("Completed:  {}", format_moment(status.completed_at.as_ref())),
        format!("Expires:    {}", format_moment(status.expires_at.as_ref())),
        format!("Version:    {}", format_optional(status.version.as_ref())),
        format!("Objects:    {}", format_optional(objects.as_ref())),
        format!(
            "Size:       {}, {} in the object store",
            format_optional(size.as_ref()),
            format_optional(stored.as_ref())
        ),
        format!("Location:   {}", format_optional(status.location.as_ref())),
    ];
    if !status.encryption_keys.is_empty() {
        lines.push(format!("Keys:       {}", status.encryption_keys.join(", ")));
    }
    if snapshot.metadata.deletion_timestamp.is_some() {
        let file = if has_file(snapshot) {
            "with its file"
        } else {
            "and its file stays, if it has one"
        };
        lines.push(format!("Deleted:    it is being deleted, {file}"));
    }
    let heading = ["CONDITION", "STATUS", "REASON", "AGE", "MESSAGE"];
    let conditions = format_rows(heading, &status.conditions, |condition| {
        [
            condition.type_.clone(),
            condition.status.clone(),
            condition.reason.clone(),
            format_age_since(Some(condition.last_transition_time.0), now),
            condition.message.clone(),
        ]
    });
    let parts = [Some(join_lines(&lines)), conditions];
    parts.into_iter().flatten().collect::<Vec<_>>().join("\n\n")
}

/// A number of bytes as the status of a snapshot has it, with a unit also if there are few.
fn format_bytes(bytes: u64) -> String {
    let unit = if bytes < 1024 { "B" } else { "" };
    format!("{}{unit}", quantity::format_size(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use berth_api::labels::{SNAPSHOT_FINALIZER, SNAPSHOT_TRIGGER};
    use serde_json::{Value, json};

    #[test]
    fn sizes_have_units() {
        for (bytes, text) in [(0, "0B"), (1023, "1023B"), (1024, "1Ki"), (5 << 20, "5Mi")] {
            assert_eq!(format_bytes(bytes), text);
        }
    }

    fn snapshot(name: &str, status: &Value) -> TenantSnapshot {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
            "metadata": {"name": name, "namespace": "team", "creationTimestamp": "2026-11-30T00:00:00Z"},
            "spec": {"tenantClusterName": "vision"}, "status": status,
        }))
        .unwrap()
    }

    fn failed() -> TenantSnapshot {
        let condition = json!({"type": "Completed", "status": "False", "reason": "StoreError", "message": "no answer",
            "lastTransitionTime": "2026-11-30T00:00:00Z"});
        snapshot("b", &json!({"phase": "Failed", "conditions": [condition]}))
    }

    #[test]
    fn a_table_says_what_is_known_of_each_snapshot() {
        let completed = json!({"phase": "Completed", "objects": 7, "bytes": 2048, "version": "v1.37.1", "expiresAt": "2026-12-30T00:00:00Z"});
        let mut scheduled = snapshot("a", &completed);
        scheduled.metadata.labels = Some([(SNAPSHOT_TRIGGER.to_owned(), "schedule".to_owned())].into());
        let all = [scheduled, failed(), snapshot("c", &json!({}))];
        let now = "2026-11-30T00:01:00Z".parse().unwrap();
        let expected = "\
NAMESPACE  NAME  TENANT  PHASE      OBJECTS  SIZE  AGE  REASON
team       a     vision  Completed  7        2Ki   60s  -
team       b     vision  Failed     -        -     60s  StoreError
team       c     vision  Pending    -        -     60s  -";
        assert_eq!(format_snapshots(&all, false, now), expected);
        let wide = format_snapshots(&all, true, now);
        let ends: Vec<Vec<&str>> = wide
            .lines()
            .map(|line| line.split_whitespace().skip(7).collect())
            .collect();
        assert_eq!(ends[0], ["REASON", "TRIGGER", "VERSION", "EXPIRES", "MESSAGE"]);
        assert_eq!(ends[1], ["-", "schedule", "v1.37.1", "2026-12-30T00:00:00Z", "-"]);
        assert_eq!(ends[2], ["StoreError", "manual", "-", "-", "no", "answer"]);
    }

    #[test]
    fn a_table_says_why_a_deleted_snapshot_is_still_there() {
        let conditions = json!([
            {"type": "Completed", "status": "True", "reason": "Completed", "message": "7 objects", "lastTransitionTime": "2026-11-30T00:00:00Z"},
            {"type": "Deleting", "status": "True", "reason": "StoreError", "message": "no answer", "lastTransitionTime": "2026-11-30T00:00:00Z"},
        ]);
        let kept = snapshot("a", &json!({"phase": "Completed", "conditions": conditions}));
        let now = "2026-11-30T00:01:00Z".parse().unwrap();
        let wide = format_snapshots(&[kept], true, now);
        let row = wide.lines().nth(1).unwrap();
        assert!(row.contains("StoreError") && row.ends_with("no answer"), "{wide}");
    }

    #[test]
    fn a_file_that_stays_is_not_said_to_be_deleted() {
        let now = "2026-11-30T00:01:00Z".parse().unwrap();
        let mut deleted = snapshot("a", &json!({"phase": "Completed"}));
        assert!(!describe(&deleted, now).contains("Deleted:"));
        deleted.metadata.deletion_timestamp = deleted.metadata.creation_timestamp.clone();
        let text = describe(&deleted, now);
        assert!(
            text.contains("Deleted:    it is being deleted, and its file stays, if it has one"),
            "{text}"
        );
        deleted.metadata.finalizers = Some(vec![SNAPSHOT_FINALIZER.into()]);
        let text = describe(&deleted, now);
        assert!(
            text.contains("Deleted:    it is being deleted, with its file"),
            "{text}"
        );
    }

    #[test]
    fn a_snapshot_is_described_with_its_conditions() {
        let now = "2026-11-30T00:01:00Z".parse().unwrap();
        let text = describe(&failed(), now);
        assert!(
            text.starts_with("Name:       team/b\nTenant:     vision\nPhase:      Failed\nTrigger:    manual\n"),
            "{text}"
        );
        assert!(
            text.ends_with(
                "\n\nCONDITION  STATUS  REASON      AGE  MESSAGE\nCompleted  False   StoreError  60s  no answer"
            ),
            "{text}"
        );
        let status =
            json!({"phase": "Completed", "bytes": 2048, "storedBytes": 10, "encryptionKeys": ["key-a", "key-b"]});
        let text = describe(&snapshot("a", &status), now);
        assert!(text.contains("Size:       2Ki, 10B in the object store\n"), "{text}");
        assert!(text.ends_with("\nKeys:       key-a, key-b"), "{text}");
    }
}
