mod changed_tenants;
mod said;

use super::*;
use berth_api::{SnapshotSchedule, TenantSnapshotStatus};
use serde_json::{Value, json};

const NOW: &str = "2026-11-30T12:00:00Z";

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// A snapshot that was created at this time, with this status.
fn snapshot(name: &str, created: &str, status: &Value) -> TenantSnapshot {
    let mut snapshot: TenantSnapshot = serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantSnapshot",
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "creationTimestamp": created},
        "spec": {"tenantClusterName": "vision"},
    }))
    .unwrap();
    if !status.is_null() {
        snapshot.status = Some(serde_json::from_value::<TenantSnapshotStatus>(status.clone()).unwrap());
    }
    snapshot
}

fn completed(name: &str, created: &str) -> TenantSnapshot {
    let status = json!({"phase": "Completed", "tenantUID": "6f2c", "startedAt": created, "completedAt": created});
    snapshot(name, created, &status)
}

fn pending(name: &str) -> TenantSnapshot {
    snapshot(name, "2026-11-30T11:00:00Z", &Value::Null)
}

fn with_trigger(mut snapshot: TenantSnapshot, trigger: SnapshotTrigger) -> TenantSnapshot {
    let label = trigger.label().unwrap().to_owned();
    snapshot.metadata.labels = Some([(labels::SNAPSHOT_TRIGGER.to_owned(), label)].into());
    snapshot
}

fn tenant() -> TenantFacts {
    TenantFacts {
        uid: "6f2c".into(),
        created: at("2026-01-01T00:00:00Z"),
        has_run: true,
        is_deleting: false,
        rules: ClassSnapshots::default(),
        unchanged_since: None,
        restore: None,
    }
}

/// A restore to the snapshot of this name.
fn restore_to(name: &str, saved_as: Option<&str>) -> RestoreFacts {
    RestoreFacts {
        snapshot_uid: format!("uid-{name}"),
        saved_as: saved_as.map(ToOwned::to_owned),
    }
}

/// With a schedule of every night at 02:00, of which this number is kept.
fn nightly(keep: u32) -> TenantFacts {
    let mut tenant = tenant();
    tenant.rules.schedule = Some(SnapshotSchedule {
        cron: "0 2 * * *".into(),
        time_zone: "UTC".into(),
        keep,
    });
    tenant
}

struct Case {
    has_store: bool,
    running: BTreeSet<String>,
    paused: BTreeSet<String>,
    postponed: Option<Failure>,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            has_store: true,
            running: BTreeSet::new(),
            paused: BTreeSet::new(),
            postponed: None,
        }
    }
}

impl Case {
    fn decide(&self, tenant: Option<&TenantFacts>, snapshots: Vec<TenantSnapshot>) -> Decision {
        let snapshots: Vec<Arc<TenantSnapshot>> = snapshots.into_iter().map(Arc::new).collect();
        decide(&Facts {
            now: at(NOW),
            name: "vision",
            has_store: self.has_store,
            tenant,
            snapshots: &snapshots,
            running: &self.running,
            paused: &self.paused,
            postponed: self.postponed,
        })
    }
}

/// The actions as texts.
fn texts(decision: &Decision) -> Vec<String> {
    let text = |action: &Action| match action {
        Action::Fail(snapshot, reason, _) => format!("fail {} {reason}", snapshot.name_any()),
        Action::Start(snapshot) => format!("start {}", snapshot.name_any()),
        Action::Postpone(snapshot, failure) => format!("postpone {} {failure:?}", snapshot.name_any()),
        Action::Delete(snapshot) => format!("delete {}", snapshot.name_any()),
        Action::CleanUp(snapshot) => format!("clean up {}", snapshot.name_any()),
        Action::Expire(snapshot, at) => format!("expire {} {at:?}", snapshot.name_any()),
        Action::DescribeSize(snapshot) => format!("describe size {}", snapshot.name_any()),
        Action::Create(name) => format!("create {name}"),
    };
    decision.actions.iter().map(text).collect()
}

fn decided(tenant: Option<&TenantFacts>, snapshots: Vec<TenantSnapshot>) -> Vec<String> {
    texts(&Case::default().decide(tenant, snapshots))
}

#[test]
fn one_snapshot_of_a_tenant_is_taken_at_a_time_and_the_oldest_first() {
    let mut earlier = pending("b");
    earlier.metadata.creation_timestamp = Some(serde_json::from_value(json!("2026-11-30T10:00:00Z")).unwrap());
    let both = || vec![pending("a"), earlier.clone()];
    assert_eq!(decided(Some(&tenant()), both()), ["start b"]);
    let case = Case {
        running: BTreeSet::from(["uid-b".to_owned()]),
        ..Case::default()
    };
    assert_eq!(texts(&case.decide(Some(&tenant()), both())), [""; 0]);
    // One that failed a moment ago keeps no other one back.
    let case = Case {
        paused: BTreeSet::from(["uid-b".to_owned()]),
        ..Case::default()
    };
    assert_eq!(texts(&case.decide(Some(&tenant()), both())), ["start a"]);
}

#[test]
fn one_that_was_interrupted_begins_anew_and_not_for_ever() {
    let interrupted = |attempts: u32| {
        let status = json!({"phase": "Running", "tenantUID": "6f2c", "attempts": attempts});
        snapshot("a", "2026-11-30T11:00:00Z", &status)
    };
    assert_eq!(decided(Some(&tenant()), vec![interrupted(4)]), ["start a"]);
    assert_eq!(decided(Some(&tenant()), vec![interrupted(5)]), ["fail a Interrupted"]);
    let mut other = tenant();
    other.uid = "7a7a".into();
    assert_eq!(decided(Some(&other), vec![interrupted(1)]), ["fail a TenantNotFound"]);
}

#[test]
fn a_snapshot_that_cannot_be_taken_says_why() {
    let case = Case {
        has_store: false,
        ..Case::default()
    };
    let refused = case.decide(Some(&tenant()), vec![pending("a")]);
    assert_eq!(texts(&refused), ["fail a NoSnapshotStore"]);
    assert_eq!(decided(None, vec![pending("a")]), ["fail a TenantNotFound"]);
    let new = TenantFacts {
        has_run: false,
        ..tenant()
    };
    assert_eq!(decided(Some(&new), vec![pending("a")]), ["fail a TenantNotStarted"]);
    let deleted = TenantFacts {
        is_deleting: true,
        ..tenant()
    };
    assert_eq!(decided(Some(&deleted), vec![pending("a")]), ["fail a TenantNotFound"]);
}

#[test]
fn a_snapshot_may_be_applied_together_with_its_tenant() {
    let just_now = || snapshot("a", "2026-11-30T11:59:30Z", &Value::Null);
    let decision = Case::default().decide(None, vec![just_now()]);
    assert_eq!(texts(&decision), [""; 0]);
    assert!(decision.next.is_some());
    let new = TenantFacts {
        has_run: false,
        ..tenant()
    };
    assert_eq!(decided(Some(&new), vec![just_now()]), [""; 0]);
}

#[test]
fn a_tenant_has_no_more_snapshots_than_its_class_allows() {
    let mut tenant = tenant();
    tenant.rules.max = 2;
    let all = vec![
        completed("a", "2026-11-29T00:00:00Z"),
        pending("b"),
        pending("c"),
        pending("d"),
    ];
    assert_eq!(
        decided(Some(&tenant), all),
        ["fail c TooManySnapshots", "fail d TooManySnapshots", "start b"]
    );
    tenant.rules.max = 0;
    assert_eq!(decided(Some(&tenant), vec![pending("a")]), ["fail a TooManySnapshots"]);
    // A label does not make room without end.
    let labelled: Vec<TenantSnapshot> = ["a", "b", "c", "d", "e"]
        .into_iter()
        .map(|name| with_trigger(pending(name), SnapshotTrigger::BeforeRestore))
        .collect();
    assert_eq!(
        decided(Some(&tenant), labelled),
        ["fail d TooManySnapshots", "fail e TooManySnapshots", "start a"]
    );
    let scheduled = with_trigger(pending("a"), SnapshotTrigger::Schedule);
    assert_eq!(decided(Some(&tenant), vec![scheduled]), ["fail a TooManySnapshots"]);
}

#[test]
fn failed_snapshots_take_no_room() {
    let mut tenant = tenant();
    tenant.rules.max = 1;
    let failed = snapshot("a", "2026-11-29T00:00:00Z", &json!({"phase": "Failed"}));
    assert_eq!(decided(Some(&tenant), vec![failed, pending("b")]), ["start b"]);
}

#[test]
fn the_schedule_creates_one_snapshot_for_each_time_and_makes_up_for_one_that_was_missed() {
    // Control was down for a week.
    let old = || with_trigger(completed("old", "2026-11-20T02:00:05Z"), SnapshotTrigger::Schedule);
    assert_eq!(decided(Some(&nightly(7)), vec![old()]), ["create vision-20261130-0200"]);
    assert_eq!(decided(Some(&nightly(7)), Vec::new()), ["create vision-20261130-0200"]);
    let done = || with_trigger(completed("new", "2026-11-30T02:00:05Z"), SnapshotTrigger::Schedule);
    let decision = Case::default().decide(Some(&nightly(7)), vec![old(), done()]);
    assert_eq!(texts(&decision), [""; 0]);
    assert_eq!(decision.next, Some(at("2026-12-01T02:00:00Z")));
    // Also if it has failed: the next one is at the next time.
    let mut failed = done();
    failed.status = Some(serde_json::from_value(json!({"phase": "Failed"})).unwrap());
    assert_eq!(decided(Some(&nightly(7)), vec![old(), failed]), [""; 0]);
    // One that somebody has created by hand is another matter.
    let by_hand = completed("by-hand", "2026-11-30T11:00:00Z");
    assert_eq!(
        decided(Some(&nightly(7)), vec![by_hand]),
        ["create vision-20261130-0200"]
    );
}

#[test]
fn the_schedule_waits_for_the_tenant_the_store_and_restores() {
    let young = TenantFacts {
        created: at("2026-11-30T03:00:00Z"),
        ..nightly(7)
    };
    assert_eq!(decided(Some(&young), Vec::new()), [""; 0]);
    let new = TenantFacts {
        has_run: false,
        ..nightly(7)
    };
    assert_eq!(decided(Some(&new), Vec::new()), [""; 0]);
    let restoring = TenantFacts {
        restore: Some(restore_to("other", None)),
        ..nightly(7)
    };
    assert_eq!(decided(Some(&restoring), Vec::new()), [""; 0]);
    let case = Case {
        has_store: false,
        ..Case::default()
    };
    assert_eq!(texts(&case.decide(Some(&nightly(7)), Vec::new())), [""; 0]);
}

#[test]
fn a_tenant_that_sleeps_gets_one_snapshot_of_what_it_stores() {
    let asleep = |since: &str| TenantFacts {
        unchanged_since: Some(at(since)),
        ..nightly(7)
    };
    let last = || with_trigger(completed("a", "2026-11-28T02:00:00Z"), SnapshotTrigger::Schedule);
    assert_eq!(decided(Some(&asleep("2026-11-27T00:00:00Z")), vec![last()]), [""; 0]);
    let since_then = decided(Some(&asleep("2026-11-28T03:00:00Z")), vec![last()]);
    assert_eq!(since_then, ["create vision-20261130-0200"]);
    let decision = Case::default().decide(Some(&asleep("2026-11-27T00:00:00Z")), vec![last()]);
    assert_eq!(decision.schedule.map(|state| state.is_overdue), Some(false));
}

#[test]
fn a_schedule_is_overdue_after_two_periods_without_a_snapshot() {
    let state = |created: Option<&str>| {
        let last = created.map(|created| with_trigger(completed("a", created), SnapshotTrigger::Schedule));
        let decision = Case::default().decide(Some(&nightly(7)), last.into_iter().collect());
        decision.schedule.unwrap()
    };
    assert!(!state(Some("2026-11-30T02:00:00Z")).is_overdue);
    assert!(!state(Some("2026-11-29T02:00:00Z")).is_overdue);
    assert!(state(Some("2026-11-29T01:59:59Z")).is_overdue);
    assert!(state(None).is_overdue);
    assert_eq!(state(None).completed_at, None);
    assert_eq!(Case::default().decide(Some(&tenant()), Vec::new()).schedule, None);
}

#[test]
fn a_schedule_that_cannot_be_read_does_nothing() {
    let mut tenant = nightly(7);
    if let Some(schedule) = &mut tenant.rules.schedule {
        schedule.time_zone = "Mars".into();
    }
    assert_eq!(decided(Some(&tenant), Vec::new()), [""; 0]);
}

#[test]
fn the_oldest_of_a_schedule_and_of_restores_go_and_no_others() {
    let day = |number: u32| format!("2026-11-{number:02}T02:00:00Z");
    let of = |trigger: SnapshotTrigger| {
        (25..=30).map(move |number| with_trigger(completed(&format!("{trigger:?}-{number}"), &day(number)), trigger))
    };
    let by_hand = (25..=30).map(|number| completed(&format!("by-hand-{number}"), &day(number)));
    let all = of(SnapshotTrigger::Schedule)
        .chain(of(SnapshotTrigger::BeforeRestore))
        .chain(by_hand);
    assert_eq!(
        decided(Some(&nightly(4)), all.collect()),
        [
            "delete BeforeRestore-25",
            "delete Schedule-25",
            "delete BeforeRestore-26",
            "delete Schedule-26",
            "delete BeforeRestore-27",
            "delete BeforeRestore-28",
        ]
    );
    // A class without a schedule says nothing about those of an earlier one.
    assert_eq!(
        decided(Some(&tenant()), of(SnapshotTrigger::Schedule).collect()),
        [""; 0]
    );
}

/// The policies may be off, and then teams set labels as they like.
#[test]
fn labels_of_teams_neither_keep_a_restore_from_saving_nor_delete_what_it_saved() {
    let of_restore = |snapshot: TenantSnapshot| with_trigger(snapshot, SnapshotTrigger::BeforeRestore);
    let restoring = TenantFacts {
        restore: Some(restore_to("other", Some("saved"))),
        ..tenant()
    };
    let day = |number: u32| format!("2026-11-{number:02}T02:00:00Z");
    let mut waiting = Vec::from(["x", "y", "z"].map(pending));
    // It is the last of them.
    waiting.push(snapshot("saved", "2026-11-30T11:30:00Z", &Value::Null));
    let waiting = waiting.into_iter().map(of_restore).collect();
    assert_eq!(decided(Some(&restoring), waiting), ["start saved"]);
    let newer = (27..=28).map(|number| completed(&format!("n{number}"), &day(number)));
    let all = || {
        newer
            .clone()
            .chain([completed("saved", &day(26))])
            .map(of_restore)
            .collect()
    };
    assert_eq!(decided(Some(&restoring), all()), [""; 0]);
    assert_eq!(decided(Some(&tenant()), all()), ["delete saved"]);
}

#[test]
fn few_of_those_that_the_schedule_could_not_take_are_kept() {
    let failed = (1..=9).map(|hour| {
        let status = json!({"phase": "Failed"});
        let created = format!("2026-11-30T0{hour}:00:00Z");
        with_trigger(
            snapshot(&format!("n{hour}"), &created, &status),
            SnapshotTrigger::Schedule,
        )
    });
    let deleted = decided(Some(&nightly(7)), failed.collect());
    assert_eq!(deleted.len(), 6);
    assert_eq!(deleted.last().map(String::as_str), Some("delete n6"));
}

#[test]
fn a_snapshot_ends_after_its_ttl() {
    let with_ttl = |ttl: &str| {
        let mut snapshot = completed("a", "2026-11-30T11:00:00Z");
        snapshot.spec.ttl = Some(ttl.into());
        snapshot
    };
    assert_eq!(decided(Some(&tenant()), vec![with_ttl("1h")]), ["delete a"]);
    let decision = Case::default().decide(Some(&tenant()), vec![with_ttl("2h")]);
    assert_eq!(texts(&decision), ["expire a Some(2026-11-30T13:00:00Z)"]);
    assert_eq!(decision.next, Some(at("2026-11-30T13:00:00Z")));
    // One that is being taken is not deleted meanwhile.
    let case = Case {
        running: BTreeSet::from(["uid-a".to_owned()]),
        ..Case::default()
    };
    let mut running = with_ttl("1h");
    running.status = Some(serde_json::from_value(json!({"phase": "Running"})).unwrap());
    assert_eq!(texts(&case.decide(Some(&tenant()), vec![running])), [""; 0]);
}

#[test]
fn snapshots_of_a_tenant_that_is_gone_end_once() {
    let orphan = || completed("a", "2026-11-30T11:00:00Z");
    assert_eq!(decided(None, vec![orphan()]), ["expire a Some(2026-12-30T12:00:00Z)"]);
    let mut known = orphan();
    known.status.as_mut().unwrap().expires_at = Some(serde_json::from_value(json!("2026-12-05T00:00:00Z")).unwrap());
    assert_eq!(decided(None, vec![known.clone()]), [""; 0], "the time does not go on");
    // Another tenant of the name is not the same.
    let other = TenantFacts {
        uid: "7a7a".into(),
        ..tenant()
    };
    assert_eq!(decided(Some(&other), vec![known.clone()]), [""; 0]);
    assert_eq!(decided(Some(&tenant()), vec![known]), ["expire a None"]);
    // An earlier end stays.
    let mut short = orphan();
    short.spec.ttl = Some("2h".into());
    short.status.as_mut().unwrap().expires_at = Some(serde_json::from_value(json!("2026-11-30T13:00:00Z")).unwrap());
    assert_eq!(decided(None, vec![short]), [""; 0]);
}

#[test]
fn what_is_in_the_store_goes_with_the_object() {
    let deleted = |finalizers: &Value| {
        let mut snapshot = completed("a", "2026-11-30T11:00:00Z");
        snapshot.metadata.deletion_timestamp = Some(serde_json::from_value(json!(NOW)).unwrap());
        snapshot.metadata.finalizers = serde_json::from_value(finalizers.clone()).unwrap();
        snapshot
    };
    let ours = json!([labels::SNAPSHOT_FINALIZER]);
    assert_eq!(decided(Some(&tenant()), vec![deleted(&ours)]), ["clean up a"]);
    assert_eq!(decided(None, vec![deleted(&ours)]), ["clean up a"]);
    assert_eq!(decided(Some(&tenant()), vec![deleted(&json!(["other"]))]), [""; 0]);
}

#[test]
fn during_a_restore_only_what_it_waits_for_is_taken() {
    let restoring = |saved_as: Option<&str>| TenantFacts {
        restore: Some(restore_to("other", saved_as)),
        ..tenant()
    };
    let all = || {
        let saved = with_trigger(pending("saved"), SnapshotTrigger::BeforeRestore);
        vec![pending("a"), saved]
    };
    assert_eq!(decided(Some(&restoring(Some("saved"))), all()), ["start saved"]);
    assert_eq!(decided(Some(&restoring(None)), all()), [""; 0]);
}

#[test]
fn a_snapshot_is_not_deleted_while_its_tenant_is_set_back_to_it() {
    let all = || {
        let of_restores = ["a", "b", "c"].map(|name| {
            let snapshot = completed(name, "2026-11-21T00:00:00Z");
            with_trigger(snapshot, SnapshotTrigger::BeforeRestore)
        });
        let mut expired = completed("d", "2026-11-20T00:00:00Z");
        expired.spec.ttl = Some("1h".into());
        let mut all = of_restores.to_vec();
        all.push(expired);
        all
    };
    let deleted = |tenant: &TenantFacts| -> Vec<String> {
        let decided = decided(Some(tenant), all());
        decided.into_iter().filter(|text| text.starts_with("delete ")).collect()
    };
    assert_eq!(deleted(&tenant()), ["delete d", "delete a"]);
    for (name, rest) in [("a", "delete d"), ("d", "delete a")] {
        let restoring = TenantFacts {
            restore: Some(restore_to(name, None)),
            ..tenant()
        };
        assert_eq!(deleted(&restoring), [rest], "{name}");
    }
}
