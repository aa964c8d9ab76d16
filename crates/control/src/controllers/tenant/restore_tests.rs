use super::{super::restore_finding::published, *};
use berth_api::{RestoreStatus, TenantCluster, TenantClusterStatus, conditions};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn record(phase: RestorePhase) -> RestoreRecord {
    let written = Written {
        objects: 3,
        bytes: 30,
        stored_bytes: 20,
        checksum: "ab".into(),
    };
    let names = ("nightly", "77aa", "team/vision/77aa".to_owned());
    RestoreRecord {
        phase,
        ..new_record(
            names,
            written,
            Vec::new(),
            Some("saved".into()),
            at("2026-11-30T12:00:00.5Z"),
        )
    }
}

fn cluster(status: &serde_json::Value) -> TenantCluster {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "TenantCluster", "metadata": {"name": "vision", "namespace": "team"},
        "spec": {}, "status": status,
    }))
    .unwrap()
}

#[test]
fn the_condition_says_how_far_the_restore_is() {
    let refusal = Refusal {
        reason: "OtherTenant",
        message: "it is of another".into(),
    };
    let done = RestoreStatus {
        completed_at: Some(Time(at("2026-11-30T12:01:00Z"))),
        ..published(&record(RestorePhase::Replaced))
    };
    for (finding, status, reason) in [
        (Finding::Waiting("nightly".into()), false, "Waiting"),
        (Finding::Checking("nightly".into()), false, "Checking"),
        (Finding::Refused(refusal), false, "OtherTenant"),
        (Finding::Stopping("a pod".into()), false, "Stopping"),
        (Finding::UnderWay(record(RestorePhase::Saving)), false, "Saving"),
        (Finding::UnderWay(record(RestorePhase::Replacing)), false, "Replacing"),
        (Finding::UnderWay(record(RestorePhase::Replaced)), false, "Replacing"),
        (
            Finding::Failing(record(RestorePhase::Replacing), "no answer".into()),
            false,
            "RestoreFailing",
        ),
        (
            Finding::OtherRefused {
                record: record(RestorePhase::Replacing),
                why: "no answer".into(),
                refused: "weekly cannot be used".into(),
            },
            false,
            "OtherSnapshotRefused",
        ),
        (Finding::Done(done.clone()), true, "Restored"),
        (Finding::Lost(done), false, "RestoreLost"),
    ] {
        let condition = finding.condition();
        assert_eq!((condition.is_true(), condition.reason), (status, reason), "{finding:?}");
    }
    let unsaved = RestoreRecord {
        saved_as: None,
        ..record(RestorePhase::Saving)
    };
    assert_eq!(Finding::UnderWay(unsaved).condition().reason, "Replacing");
    let failing = Finding::Failing(record(RestorePhase::Replacing), "no answer".into());
    let message = failing.condition().message;
    assert!(message.contains("TenantSnapshot saved has what"), "{message}");
    let failing = Finding::Failing(record(RestorePhase::Saving), "no answer".into());
    let message = failing.condition().message;
    assert!(!message.contains("has what"), "{message}");
}

#[test]
fn the_status_shows_a_restore_from_the_moment_on_at_which_something_is_replaced() {
    let mut status = TenantClusterStatus::default();
    Finding::UnderWay(record(RestorePhase::Saving)).write_to(&mut status);
    assert_eq!(status.restore, None);
    Finding::UnderWay(record(RestorePhase::Replacing)).write_to(&mut status);
    let restore = status.restore.clone().unwrap();
    assert_eq!(
        (restore.started_at.0, restore.completed_at),
        (at("2026-11-30T12:00:00Z"), None)
    );
    // What was said of an earlier one stays.
    Finding::Checking("other".into()).write_to(&mut status);
    assert_eq!(status.restore.clone().unwrap().snapshot_name, "nightly");
    // One that is lost is not taken later for one that has ended.
    Finding::Lost(status.restore.clone().unwrap()).write_to(&mut status);
    assert_eq!(status.restore, None);
}

#[test]
fn how_a_restore_ended_is_known_until_the_next_one_replaces_something() {
    let restores = Restores::default();
    let done = Finding::Done(published(&record(RestorePhase::Replaced)));
    restores.note("uid", done.clone());
    for finding in [
        Finding::Waiting("weekly".into()),
        Finding::Checking("weekly".into()),
        Finding::withdrawn(),
    ] {
        restores.note("uid", finding);
        assert_eq!(restores.over("uid").as_ref(), Some(&done));
    }
    restores.note_record("uid", record(RestorePhase::Saving));
    assert_eq!(restores.over("uid"), Some(done));
    restores.note_record("uid", record(RestorePhase::Replacing));
    assert_eq!(restores.over("uid"), None);
}

#[test]
fn a_restore_that_is_lost_names_what_was_saved() {
    let message = |saved_as: Option<&str>| {
        let lost = RestoreStatus {
            saved_as: saved_as.map(ToOwned::to_owned),
            ..published(&record(RestorePhase::Replacing))
        };
        Finding::Lost(lost).condition().message
    };
    let saved = message(Some("saved"));
    assert!(
        saved.contains("TenantSnapshot nightly") && saved.contains("TenantSnapshot saved has what"),
        "{saved}"
    );
    let unsaved = message(None);
    assert!(!unsaved.contains("has what"), "{unsaved}");
}

#[test]
fn how_a_restore_ended_is_known_also_after_a_restart() {
    let now = at("2026-11-30T13:00:00Z");
    let completed = |finding: Option<Finding>| match finding {
        Some(Finding::Done(status)) => status.completed_at.map(|at| at.0),
        _ => None,
    };
    let none = cluster(&json!({}));
    assert_eq!(
        completed(ended(Some(&record(RestorePhase::Replaced)), &none, now)),
        Some(now)
    );
    assert_eq!(ended(Some(&record(RestorePhase::Saving)), &none, now), None);
    // Its record is gone before everything was replaced.
    let replacing = record(RestorePhase::Replacing);
    assert_eq!(
        ended(Some(&replacing), &none, now),
        Some(Finding::Lost(published(&replacing)))
    );
    assert_eq!(ended(None, &none, now), None);
    let restore = json!({"snapshotName": "nightly", "startedAt": "2026-11-30T12:00:00Z"});
    let begun = cluster(&json!({"restore": restore}));
    assert_eq!(completed(ended(None, &begun, now)), Some(now));
    // That is of an earlier one.
    assert_eq!(ended(Some(&record(RestorePhase::Saving)), &begun, now), None);
    let mut over = restore.clone();
    over["completedAt"] = "2026-11-30T12:01:00Z".into();
    assert_eq!(ended(None, &cluster(&json!({"restore": over})), now), None);
    // It said that it saves, and the record is gone.
    let saving = conditions::merge(
        &[],
        &[Finding::UnderWay(record(RestorePhase::Saving)).condition()],
        None,
        now,
    );
    let given_up = ended(None, &cluster(&json!({"conditions": saving})), now);
    assert_eq!(given_up.unwrap().condition().reason, "Interrupted");
    let refused = conditions::merge(&[], &[Finding::withdrawn().condition()], None, now);
    assert_eq!(ended(None, &cluster(&json!({"conditions": refused})), now), None);
}

#[tokio::test]
async fn a_comparison_is_of_one_snapshot_and_is_taken_once() {
    let restores = Restores::default();
    assert!(matches!(restores.checked("uid", "77aa").await, Checked::No));
    let waits = AbortOnDropHandle::new(tokio::spawn(std::future::pending()));
    restores.keep_check("uid", "77aa", waits);
    assert!(matches!(restores.checked("uid", "77aa").await, Checked::Running));
    assert!(matches!(restores.checked("uid", "other").await, Checked::No));
    assert!(!restores.forget_check("uid"), "the other request has ended it");
    restores.keep_check("uid", "77aa", AbortOnDropHandle::new(tokio::spawn(async { Ok(()) })));
    loop {
        match restores.checked("uid", "77aa").await {
            Checked::Running => tokio::task::yield_now().await,
            Checked::Ended(result) => break assert_eq!(result, Ok(())),
            Checked::No => panic!("it was kept"),
        }
    }
    assert!(matches!(restores.checked("uid", "77aa").await, Checked::No));
}

#[tokio::test]
async fn other_controllers_learn_which_snapshot_a_restore_waits_for() {
    let restores = Restores::default();
    assert_eq!(restores.under_way("uid"), None);
    assert!(restores.note_record("uid", record(RestorePhase::Saving)));
    assert!(!restores.note_record("uid", record(RestorePhase::Saving)));
    let with = |saved_as: Option<&str>| RestoreUnderWay {
        snapshot_uid: "77aa".into(),
        saved_as: saved_as.map(ToOwned::to_owned),
    };
    assert_eq!(restores.under_way("uid"), Some(with(Some("saved"))));
    // Somebody else has a snapshot of this name.
    let other = RestoreRecord {
        saved_as: Some("other".into()),
        ..record(RestorePhase::Saving)
    };
    assert!(restores.note_record("uid", other));
    assert_eq!(restores.under_way("uid"), Some(with(Some("other"))));
    assert!(!restores.note_record("uid", record(RestorePhase::Replacing)));
    assert_eq!(restores.under_way("uid"), Some(with(None)));
    assert!(!restores.knows_none("uid"));
    assert_eq!(
        restores.note_none("uid"),
        Gone::Ended(Box::new(record(RestorePhase::Replacing)))
    );
    assert_eq!((restores.under_way("uid"), restores.knows_none("uid")), (None, true));
    assert_eq!(restores.note_none("uid"), Gone::Unknown);
}

#[tokio::test]
async fn a_snapshot_that_cannot_be_used_instead_is_named_also_after_a_restart() {
    let restores = Restores::default();
    restores.note_record("uid", record(RestorePhase::Replacing));
    restores.note_refused("uid", &record(RestorePhase::Replacing), "not this one".into());
    let condition = restores.finding("uid").unwrap().condition();
    assert_eq!(condition.reason, "OtherSnapshotRefused");
    // It is of this restore.
    restores.note_none("uid");
    restores.note_record("uid", record(RestorePhase::Saving));
    restores.note(
        "uid",
        Finding::Failing(record(RestorePhase::Saving), "no answer".into()),
    );
    assert_eq!(restores.finding("uid").unwrap().condition().reason, "RestoreFailing");
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_not_tried_again_at_once() {
    let restores = Restores::default();
    let progress = Progress::new(Finding::UnderWay(record(RestorePhase::Replacing)));
    let task = AbortOnDropHandle::new(tokio::spawn(async {}));
    restores.keep_task("uid", task, Arc::clone(&progress));
    let now = Instant::now();
    assert_eq!(restores.pause("uid", now), None);
    let pause = Duration::from_secs(10);
    let failing = Finding::Failing(record(RestorePhase::Replacing), "no answer".into());
    progress.fail(failing.clone(), now + pause);
    assert_eq!(restores.pause("uid", now), Some(pause));
    assert_eq!(restores.pause("uid", now + pause), None);
    assert_eq!(restores.finding("uid"), Some(failing));
    // Why another snapshot cannot be taken changes nothing of the pause.
    restores.note_refused("uid", &record(RestorePhase::Replacing), "not this one".into());
    assert_eq!(restores.pause("uid", now), Some(pause));
    let condition = restores.finding("uid").unwrap().condition();
    assert_eq!(condition.reason, "OtherSnapshotRefused");
    assert!(condition.message.starts_with("not this one"), "{}", condition.message);
    assert!(condition.message.contains("no answer"), "{}", condition.message);
    restores.forget_refused("uid");
    assert_eq!(restores.finding("uid").unwrap().condition().reason, "RestoreFailing");
    restores.note_refused("uid", &record(RestorePhase::Replacing), "not this one".into());
    // A task that has given up says why.
    progress.set(Finding::interrupted());
    assert_eq!(restores.note_none("uid"), Gone::GivenUp);
    assert_eq!(restores.finding("uid"), Some(Finding::interrupted()));
}

#[tokio::test]
async fn one_that_is_given_up_without_a_task_says_why() {
    let restores = Restores::default();
    let refused = Finding::Refused(Refusal {
        reason: "NoSnapshotStore",
        message: "no store".into(),
    });
    // What was found of an earlier restore is not why this one ends.
    restores.note("uid", refused.clone());
    restores.note_record("uid", record(RestorePhase::Saving));
    assert_eq!(restores.finding("uid"), None);
    restores.note("uid", refused.clone());
    restores.note_record("uid", record(RestorePhase::Saving));
    assert_eq!(restores.note_none("uid"), Gone::GivenUp);
    assert_eq!(restores.finding("uid"), Some(refused));
    assert_eq!(restores.note_none("uid"), Gone::Unknown);
}

#[tokio::test]
async fn what_a_task_could_not_record_counts_once_it_was_read() {
    let restores = Restores::default();
    let failing = Finding::Failing(record(RestorePhase::Replacing), "no answer".into());
    let task = AbortOnDropHandle::new(tokio::spawn(async {}));
    restores.keep_task("uid", task, Progress::new(failing));
    // etcd has carried out the write that it did not answer.
    restores.note_record("uid", record(RestorePhase::Replaced));
    let ended = Gone::Ended(Box::new(record(RestorePhase::Replaced)));
    assert_eq!(restores.note_none("uid"), ended);
}

#[tokio::test]
async fn a_restore_stops_no_longer_once_nothing_runs() {
    let restores = Restores::default();
    let replaced = record(RestorePhase::Replaced);
    let reason = || restores.finding("uid").unwrap().condition().reason;
    restores.note("uid", Finding::Stopping("a pod".into()));
    assert_eq!(reason(), "Stopping");
    restores.note_stopped("uid", &replaced);
    assert_eq!(reason(), "Replacing");
    // What is known otherwise stays.
    restores.note("uid", Finding::Failing(replaced.clone(), "no answer".into()));
    restores.note_stopped("uid", &replaced);
    assert_eq!(reason(), "RestoreFailing");
}

#[test]
fn a_request_that_is_gone_was_asked_for_as_long_as_the_status_says_so() {
    let restores = Restores::default();
    assert!(!restores.forget_check("uid"));
    for finding in [Finding::Waiting("nightly".into()), Finding::Checking("nightly".into())] {
        restores.note("uid", finding);
        assert!(restores.forget_check("uid"));
    }
    restores.note("uid", Finding::withdrawn());
    assert!(!restores.forget_check("uid"));
}

#[test]
fn the_next_restore_waits_for_the_syncer_and_for_the_history_in_etcd_but_not_for_ever() {
    let (restores, ended_at) = (Restores::default(), Instant::now());
    let seconds = |has_compared: bool, after: u64| {
        let rest = restores.rest("uid", has_compared, ended_at + Duration::from_secs(after));
        rest.map(|rest| rest.as_secs())
    };
    assert_eq!(seconds(false, 0), None, "there was none");
    for (bytes, has_compared, after, expected) in [
        (0, true, 0, None),
        (0, false, 0, Some(300)),
        (0, false, 299, Some(1)),
        (0, false, 300, None),
        (BYTES_PER_SECOND - 1, true, 0, None),
        (100 * BYTES_PER_SECOND, true, 0, Some(100)),
        (100 * BYTES_PER_SECOND, true, 100, None),
        (100 * BYTES_PER_SECOND, false, 100, Some(200)),
        (u64::MAX, true, 0, Some(300)),
    ] {
        restores.note_ended("uid", bytes, ended_at);
        assert_eq!(seconds(has_compared, after), expected, "{bytes} {has_compared} {after}");
    }
    restores.forget("uid");
    assert_eq!(seconds(false, 0), None);
}

#[tokio::test(start_paused = true)]
async fn a_control_that_has_just_started_waits_for_the_rest_of_the_pause() {
    tokio::time::advance(Duration::from_hours(1)).await;
    let (started_at, now) = (Instant::now(), at("2026-11-30T12:00:00Z"));
    let rest_after = |end: Option<RestoreEnd>, has_compared: bool| {
        let restores = Restores::default();
        assert!(!restores.knows_end("uid"));
        restores.learn_end("uid", end.as_ref(), now, started_at);
        assert!(restores.knows_end("uid"));
        let rest = restores.rest("uid", has_compared, started_at);
        rest.map(|rest| rest.as_secs())
    };
    let end = |time: &str, bytes: u64| Some(RestoreEnd::new(at(time), bytes));
    assert_eq!(rest_after(None, false), None);
    assert_eq!(rest_after(end("2026-11-30T11:59:00Z", 0), false), Some(240));
    assert_eq!(rest_after(end("2026-11-30T11:59:00Z", 0), true), None);
    let bytes = 100 * BYTES_PER_SECOND;
    assert_eq!(rest_after(end("2026-11-30T11:59:00Z", bytes), true), Some(40));
    assert_eq!(rest_after(end("2026-11-30T11:55:00Z", bytes), false), None);
    // The clock of the host was set back by a year.
    assert_eq!(rest_after(end("2027-11-30T12:00:00Z", 0), false), Some(300));
}

#[test]
fn a_restore_is_published_once_the_status_says_which_one_it_is() {
    let replaced = record(RestorePhase::Replaced);
    let published = |status: &serde_json::Value| is_published(&cluster(status), &replaced);
    let restore = json!({"snapshotName": "nightly", "savedAs": "saved", "startedAt": "2026-11-30T12:00:00Z"});
    assert!(published(&json!({"restore": restore})));
    assert!(!published(&json!({})));
    // An earlier one of the same snapshot, or what another name was chosen for.
    for (field, value) in [
        ("startedAt", "2026-11-29T12:00:00Z"),
        ("savedAs", "other"),
        ("snapshotName", "weekly"),
        ("completedAt", "2026-11-30T12:01:00Z"),
    ] {
        let mut other = restore.clone();
        other[field] = value.into();
        assert!(!published(&json!({"restore": other})), "{field}");
    }
}
