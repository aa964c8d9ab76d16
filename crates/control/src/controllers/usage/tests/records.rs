//! Reading, writing and deleting records.

use super::*;
use std::time::Duration;

/// Stores a record of a tenant that is gone, with a label of its own.
fn put_record(fixture: &Fixture, name: &str, month: &str, label: &str) {
    let tenant = json!({"namespace": "team", "name": "old", "uid": "u0", "slug": "old-aaaaaaaaaaaaa"});
    let record = json!({
        "metadata": {"name": name, "labels": {labels::USAGE_MONTH: label, labels::USAGE_TENANT: "old-aaaaaaaaaaaaa"}},
        "spec": {"month": month, "tenant": tenant, "meteredThrough": format!("{month}-02T00:00:00Z"), "gpuHours": "0.0"},
    });
    fixture.host.insert(&format!("{RECORDS}/{name}"), record);
}

#[tokio::test]
async fn nothing_is_recorded_if_the_platform_says_so() {
    let mut fixture = Fixture::new();
    fixture.context.retention_months = 0;
    put_record(&fixture, "old", "2020-01", "2020-01");
    fixture.pass().await.unwrap();
    fixture.stop().await;
    assert_eq!(fixture.calls(), 0);
    assert_eq!(fixture.records().len(), 1);
}

#[tokio::test]
async fn records_are_deleted_when_they_are_older_than_they_are_kept() {
    let mut fixture = Fixture::new();
    put_record(&fixture, "expired", "2025-09", "2025-09");
    put_record(&fixture, "kept", "2025-10", "2025-10");
    put_record(&fixture, "wrong-label", "2026-10", "2020-01");
    put_record(&fixture, "no-month", "2025-09", "");
    fixture.pass().await.unwrap();
    let exists = |name: &str| fixture.host.get(&format!("{RECORDS}/{name}")).is_some();
    assert!(!exists("expired") && exists("kept") && exists("wrong-label") && exists("no-month"));
    // Once a day.
    put_record(&fixture, "expired", "2025-09", "2025-09");
    fixture.advance_to(3600);
    fixture.pass().await.unwrap();
    assert!(fixture.host.get(&format!("{RECORDS}/expired")).is_some());
    fixture.advance_to(90_000);
    fixture.pass().await.unwrap();
    assert!(fixture.host.get(&format!("{RECORDS}/expired")).is_none());
}

#[tokio::test]
async fn no_record_is_deleted_by_a_time_that_is_not_confirmed() {
    let mut fixture = Fixture::new();
    put_record(&fixture, "expired", "2025-09", "2025-09");
    fixture.clock.set_unconfirmed(1);
    fixture.pass().await.unwrap();
    let exists = |fixture: &Fixture| fixture.host.get(&format!("{RECORDS}/expired")).is_some();
    assert!(exists(&fixture));
    fixture.clock.set_unconfirmed(0);
    fixture.pass().await.unwrap();
    assert!(!exists(&fixture));
}

#[tokio::test]
async fn what_another_control_has_written_meanwhile_is_not_counted_twice() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), -600);
    fixture.pass().await.unwrap();
    let path = format!("{RECORDS}/{}-2026-11", slug());
    let mut others = fixture.host.get(&path).unwrap();
    others["spec"]["meteredThrough"] = at(900).to_string().into();
    for line in others["spec"]["lines"].as_array_mut().unwrap() {
        let amount = if line["resource"] == "GPU" { 8 * 1500 } else { 1500 };
        line["daily"][9] = amount.into();
    }
    fixture.host.insert(&path, others);
    fixture
        .host
        .refuse_writes(Some(("/usagerecords/", 409, "the object was changed")));
    fixture.advance_to(1200);
    fixture.stop().await;
    fixture.host.refuse_writes(None);
    fixture.stop().await;
    assert_seconds(fixture.amount(UsageResource::Gpu), 8, 1800);
    assert_seconds(fixture.amount(UsageResource::Node), 1, 1800);
}

#[tokio::test]
async fn a_record_that_somebody_deletes_is_made_again() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), -600);
    fixture.pass().await.unwrap();
    fixture.host.remove(&format!("{RECORDS}/{}-2026-11", slug()));
    fixture.host.refuse_writes(Some(("/usagerecords/", 404, "not found")));
    fixture.advance_to(1200);
    fixture.stop().await;
    assert_seconds(fixture.amount(UsageResource::Gpu), 8, 1800);
}

#[tokio::test]
async fn a_record_that_cannot_be_written_keeps_no_other_back_and_is_reported() {
    let mut fixture = Fixture::new();
    fixture.put_tenant("speech", "u2", &json!({}));
    fixture.pass().await.unwrap();
    let refused: &'static str = format!("/usagerecords/{}-2026-11", slug()).leak();
    fixture
        .host
        .refuse_writes(Some((refused, 422, "the object is invalid")));
    fixture.advance_to(3600);
    let error = fixture.pass().await.unwrap_err();
    assert!(error.to_string().contains("cannot write what a tenant used"), "{error}");
    for record in fixture.records() {
        let is_refused = record.spec.tenant.uid == UID;
        let seconds = if is_refused { 3600 } else { 7200 };
        assert_seconds(sum(&record, UsageResource::ControlPlane), 1, seconds);
    }
    let unrecorded = fixture.context.metrics.unrecorded_seconds.get();
    assert!((3600 - SLACK..=3600 + SLACK).contains(&unrecorded), "{unrecorded}");
    fixture.host.refuse_writes(None);
    fixture.pass().await.unwrap();
    for record in fixture.records() {
        assert_seconds(sum(&record, UsageResource::ControlPlane), 1, 7200);
    }
    assert!(fixture.context.metrics.unrecorded_seconds.get() <= SLACK);
}

#[tokio::test]
async fn a_pass_that_is_given_up_knows_what_it_has_written() {
    let mut fixture = Fixture::new();
    fixture.put_tenant("speech", "u2", &json!({}));
    fixture.pass().await.unwrap();
    let silent: &'static str = format!("/usagerecords/{}-2026-11", slug()).leak();
    fixture.host.never_answer_writes(Some(silent));
    fixture.advance_to(3600);
    let given_up = tokio::time::timeout(Duration::from_secs(2), fixture.pass()).await;
    assert!(given_up.is_err());
    fixture.host.never_answer_writes(None);
    let calls = fixture.calls();
    fixture.pass().await.unwrap();
    let writes: Vec<String> = { fixture.script.calls().into_iter().skip(calls) }
        .map(|call| call.text)
        .filter(|text| text.contains("/usagerecords"))
        .collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
    assert!(writes[0].ends_with(silent), "{writes:?}");
    for record in fixture.records() {
        assert_seconds(sum(&record, UsageResource::ControlPlane), 1, 7200);
    }
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_left_as_it_is_and_reported() {
    let mut fixture = Fixture::new();
    fixture.put_tenant("speech", "u2", &json!({}));
    fixture.pass().await.unwrap();
    let path = format!("{RECORDS}/{}-2026-11", slug());
    let mut newer = fixture.host.get(&path).unwrap();
    newer["spec"]["lines"][0]["resource"] = "Network".into();
    fixture.host.insert(&path, newer);
    let newer = fixture.host.get(&path);
    fixture.restart();
    fixture.advance_to(3600);
    let error = fixture.pass().await.unwrap_err();
    assert!(error.to_string().contains("cannot write what a tenant used"), "{error}");
    fixture.stop().await;
    assert_eq!(fixture.host.get(&path), newer);
    let others = TenantId::new("speech", "u2").slug().to_owned();
    let others: UsageRecord =
        serde_json::from_value(fixture.host.get(&format!("{RECORDS}/{others}-2026-11")).unwrap()).unwrap();
    assert_seconds(sum(&others, UsageResource::ControlPlane), 1, 7200);
    assert!(fixture.context.metrics.unrecorded_seconds.get() >= 3600);
}

#[tokio::test]
async fn a_clock_that_was_ahead_is_reported() {
    let mut fixture = Fixture::new();
    fixture.advance_to(7200);
    fixture.pass().await.unwrap();
    assert!(fixture.context.metrics.unrecorded_seconds.get() <= SLACK);
    fixture.advance_to(0);
    fixture.pass().await.unwrap();
    let unrecorded = fixture.context.metrics.unrecorded_seconds.get();
    assert!((7200 - SLACK..=7200).contains(&unrecorded), "{unrecorded}");
    fixture.advance_to(7200 + SLACK);
    fixture.pass().await.unwrap();
    assert!(fixture.context.metrics.unrecorded_seconds.get() <= 2 * SLACK);
}

#[tokio::test]
async fn nothing_is_counted_before_the_records_are_known_and_that_is_reported() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), -600);
    for seconds in [0, 1200] {
        fixture.advance_to(seconds);
        fixture.script.fail_call(fixture.calls());
        fixture.pass().await.unwrap_err();
        assert!(fixture.records().is_empty());
        let unrecorded = fixture.context.metrics.unrecorded_seconds.get();
        assert!((seconds..=seconds + SLACK).contains(&unrecorded), "{unrecorded}");
    }
    fixture.stop().await;
    assert!(
        fixture.records().is_empty(),
        "it is not known what others have recorded"
    );
    fixture.pass().await.unwrap();
    assert_seconds(fixture.amount(UsageResource::Gpu), 8, 1800);
}

#[tokio::test]
async fn each_month_has_a_record_and_counting_goes_on_after_a_restart() {
    let mut fixture = Fixture::new();
    fixture.assign("gpu-1", ("vision", UID), -600);
    fixture.pass().await.unwrap();
    // 2026-12-01T01:00:00Z.
    let end = 20 * 86_400 + 13 * 3600;
    fixture.restart();
    fixture.advance_to(end);
    fixture.pass().await.unwrap();
    fixture.stop().await;
    let of_month = |month: &str| {
        let records = fixture.records();
        let found = records.iter().find(|record| record.spec.month == month).unwrap();
        (sum(found, UsageResource::Node), found.spec.in_use)
    };
    assert_eq!(of_month("2026-11"), (end - 3600 + 600, false));
    assert_seconds(of_month("2026-12").0, 1, 3600);
    assert!(of_month("2026-12").1);
}
