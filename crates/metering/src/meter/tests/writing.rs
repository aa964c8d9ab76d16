//! When records are written, and what happens if that fails or somebody else writes.

use super::*;
use berth_api::{MonthlyUsage, labels};

const START: &str = "2026-11-05T12:00:00Z";

/// A meter that has observed and recorded a tenant with 8 GPUs for a minute.
fn recorded() -> (Meter, Server, [Identity; 1], [Item; 1]) {
    let (identities, items) = ([identity("a", START)], [gpus("a", 8, START)]);
    let (mut meter, mut server) = (Meter::default(), Server::default());
    meter.observe(at(START), &identities, &items);
    meter.observe(second(60), &identities, &items);
    server.write_due(&mut meter, second(60));
    (meter, server, identities, items)
}

/// An instant by its seconds after the start.
fn second(seconds: i64) -> Timestamp {
    later(at(START), seconds)
}

#[test]
fn a_new_record_has_a_name_and_labels() {
    let (_, server, _, _) = recorded();
    let (name, record) = server.records.first_key_value().unwrap();
    assert_eq!(name, "tenant-a-aaaaaaaaaaaaa-2026-11");
    let of_record = record.metadata.labels.clone().unwrap();
    assert_eq!(of_record[labels::USAGE_MONTH], "2026-11");
    assert_eq!(of_record[labels::USAGE_TENANT], "tenant-a-aaaaaaaaaaaaa");
    assert!(!of_record.contains_key(labels::TENANT), "records outlive tenants");
    assert_eq!(record.spec.month, "2026-11");
}

#[test]
fn a_tenant_is_written_four_times_an_hour_and_each_at_its_own_time() {
    let uids: Vec<String> = (0..100).map(|number| number.to_string()).collect();
    let identities: Vec<Identity> = uids.iter().map(|uid| identity(uid, START)).collect();
    let items: Vec<Item> = uids.iter().map(|uid| gpus(uid, 8, START)).collect();
    let (mut meter, mut server) = (Meter::default(), Server::default());
    meter.observe(at(START), &identities, &items);
    let mut of_minutes = Vec::new();
    for minute in 1..=120 {
        meter.observe(second(minute * 60), &identities, &items);
        of_minutes.push(server.write_due(&mut meter, second(minute * 60)));
    }
    assert_eq!(of_minutes[0], 100, "all begin to use something");
    let afterwards: usize = of_minutes[15..].iter().sum();
    assert_eq!(afterwards, 100 * 105 / 15);
    let most = of_minutes[15..].iter().max().unwrap();
    assert!(*most < 30, "{of_minutes:?}");
    assert!(meter.unrecorded_since().unwrap() > second(105 * 60 - 1));
}

#[test]
fn summaries_are_of_what_is_stored_for_tenants_that_exist() {
    let (mut meter, mut server, identities, items) = recorded();
    let gpu_hours = |meter: &Meter, now: Timestamp| -> Vec<(String, Vec<String>)> {
        let of_tenants = meter.summaries(now).into_iter();
        let text = |summary: MonthlyUsage| format!("{} {}", summary.month, summary.hours[0].hours);
        of_tenants
            .map(|(uid, summaries)| (uid.to_owned(), summaries.into_iter().map(text).collect()))
            .collect()
    };
    let of_a = |texts: &[&str]| {
        vec![(
            "a".to_owned(),
            texts.iter().map(ToString::to_string).collect::<Vec<_>>(),
        )]
    };
    assert_eq!(gpu_hours(&meter, second(60)), of_a(&["2026-11 0.1"]));
    let hour = second(3660);
    meter.observe(hour, &identities, &items);
    assert_eq!(gpu_hours(&meter, hour), of_a(&["2026-11 0.1"]), "it is not stored");
    server.write_unsaved(&mut meter);
    assert_eq!(gpu_hours(&meter, hour), of_a(&["2026-11 8.1"]));
    let december = at("2026-12-01T01:00:00Z");
    meter.observe(december, &identities, &items);
    server.write_due(&mut meter, december);
    server.write_unsaved(&mut meter);
    let both = ["2026-12 8.0", "2026-11 4896.0"];
    assert_eq!(gpu_hours(&meter, december), of_a(&both));
    assert_eq!(gpu_hours(&meter, at("2027-01-01T00:00:00Z")), of_a(&both[..1]));
    // Nothing is said of a tenant without a record, and of one that has nothing else.
    let mut unrecorded = Meter::default();
    unrecorded.observe(december, &identities, &[]);
    assert!(unrecorded.summaries(december).is_empty());
    let mut restarted = server.load();
    assert!(gpu_hours(&restarted, december).is_empty());
    restarted.observe(december, &identities, &items);
    assert_eq!(gpu_hours(&restarted, december), of_a(&both));
}

#[test]
fn nothing_is_due_that_is_stored() {
    let (mut meter, _, identities, items) = recorded();
    assert!(meter.unsaved().is_empty());
    assert_eq!(meter.unrecorded_since(), None);
    meter.observe(second(120), &identities, &items);
    assert_eq!(meter.unrecorded_since(), Some(second(60)));
    assert_eq!(meter.unsaved().len(), 1);
}

#[test]
fn a_node_that_leaves_is_written_at_once() {
    let (mut meter, mut server, identities, items) = recorded();
    let mut items = vec![items[0].clone(), gpus("a", 8, "2026-11-05T12:01:00Z")];
    meter.observe(second(61), &identities, &items);
    server.write_unsaved(&mut meter);
    meter.observe(second(62), &identities, &items);
    assert!(meter.due(second(62)).is_empty());
    // One leaves, and another one comes at the same time.
    items[1].until = Some(second(63));
    items.push(gpus("a", 8, "2026-11-05T12:01:03Z"));
    meter.observe(second(64), &identities, &items);
    assert_eq!(server.write_due(&mut meter, second(64)), 1);
    assert_eq!(server.total(UsageResource::Gpu), 8 * (64 + 3 + 1));
    meter.observe(second(65), &identities, &items);
    assert!(meter.due(second(65)).is_empty(), "what left is in the record");
}

#[test]
fn a_node_that_left_before_anything_was_observed_is_written_at_once() {
    let (_, mut server, identities, items) = recorded();
    let mut meter = server.load();
    let mut left = gpus("a", 4, "2026-11-05T12:01:00Z");
    left.until = Some(second(100));
    let items = [items[0].clone(), left];
    meter.observe(second(120), &identities, &items);
    assert_eq!(server.write_due(&mut meter, second(120)), 1);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 120 + 4 * 40);
    // It says so for a while.
    meter.observe(second(130), &identities, &items);
    assert!(meter.due(second(130)).is_empty(), "what left is in the record");
}

#[test]
fn the_end_of_all_use_is_written_at_once() {
    let (mut meter, mut server, identities, _) = recorded();
    meter.observe(second(70), &identities, &[]);
    assert_eq!(server.write_due(&mut meter, second(70)), 1);
    let record = server.records.values().next().unwrap();
    assert!(!record.spec.in_use);
    assert_eq!(record.spec.metered_through.0, second(70));
    // Then nothing is written for as long as it uses nothing.
    for hour in 1..100 {
        let now = second(hour * 3_600);
        meter.observe(now, &identities, &[]);
        assert!(meter.unsaved().is_empty());
    }
    // It begins again.
    let items = [gpus("a", 8, "2026-11-09T16:00:00Z")];
    let now = at("2026-11-09T16:00:10Z");
    meter.observe(now, &identities, &items);
    assert_eq!(server.write_due(&mut meter, now), 1);
    assert_eq!(server.daily("a", "2026-11", UsageResource::Gpu)[8], 80);
}

#[test]
fn a_month_that_is_over_is_written_at_once_and_first() {
    let (mut meter, mut server, identities, items) = recorded();
    meter.observe(at("2026-11-30T23:59:00Z"), &identities, &items);
    server.write_unsaved(&mut meter);
    let now = at("2026-12-01T00:00:20Z");
    meter.observe(now, &identities, &items);
    let due = meter.due(now);
    assert_eq!(due.len(), 1);
    assert_eq!(due[0].spec.month, "2026-11");
    assert_eq!(due[0].spec.metered_through.0, at("2026-12-01T00:00:00Z"));
    assert!(!due[0].spec.in_use);
    // Killed before the other one is written, it begins where the first one ends.
    server.write_all(&mut meter, &due);
    let mut meter = server.load();
    meter.observe(now, &identities, &items);
    server.write_due(&mut meter, now);
    assert_eq!(server.daily("a", "2026-12", UsageResource::Gpu), [8 * 20]);
    assert_eq!(server.daily("a", "2026-11", UsageResource::Gpu)[29], 8 * 86_400);
}

#[test]
fn the_record_of_a_month_in_which_control_was_down_is_closed() {
    let (mut meter, mut server, identities, _) = recorded();
    meter.observe(second(120), &identities, &[cpu("a", 500)]);
    server.write_unsaved(&mut meter);
    assert!(server.records.values().next().unwrap().spec.in_use);
    let mut meter = server.load();
    assert!(meter.unsaved().is_empty(), "nothing is known before it is observed");
    let now = at("2026-12-03T00:00:00Z");
    meter.observe(now, &identities, &[cpu("a", 500)]);
    assert_eq!(server.write_due(&mut meter, now), 1);
    let record = server.records.values().next().unwrap();
    assert!(!record.spec.in_use);
    assert_eq!(record.spec.metered_through.0, at("2026-12-01T00:00:00Z"));
}

#[test]
fn a_tenant_that_is_gone_is_written_and_forgotten() {
    let (mut meter, mut server, identities, items) = recorded();
    meter.observe(second(120), &identities, &items);
    meter.observe(second(130), &[], &[]);
    assert_eq!(server.write_due(&mut meter, second(130)), 1);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 120);
    assert!(!server.records.values().next().unwrap().spec.in_use);
    meter.observe(second(140), &[], &[]);
    assert!(meter.tenants.is_empty());
    // Its record stays, and a control that starts later leaves it alone.
    let mut meter = server.load();
    meter.observe(second(200), &[], &[]);
    assert!(meter.unsaved().is_empty());
    assert!(meter.tenants.is_empty());
}

#[test]
fn a_tenant_that_is_created_again_has_a_record_of_its_own() {
    let (mut meter, mut server, _, _) = recorded();
    let again = identity("b", "2026-11-05T12:10:00Z");
    meter.observe(second(900), &[again], &[gpus("b", 8, "2026-11-05T12:10:00Z")]);
    server.write_due(&mut meter, second(900));
    assert_eq!(server.daily("a", "2026-11", UsageResource::Gpu)[4], 8 * 60);
    assert_eq!(server.daily("b", "2026-11", UsageResource::Gpu)[4], 8 * 300);
}

#[test]
fn what_another_control_has_recorded_is_not_counted_twice() {
    let (mut first, mut server, identities, items) = recorded();
    let mut second_control = server.load();
    first.observe(second(300), &identities, &items);
    second_control.observe(second(200), &identities, &items);
    server.write_unsaved(&mut second_control);
    // The first one is refused, takes what is stored, and writes what follows.
    server.write_unsaved(&mut first);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 200);
    server.write_unsaved(&mut first);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 300);
    // The other one is behind then, and adds only what follows.
    second_control.observe(second(250), &identities, &items);
    server.write_unsaved(&mut second_control);
    second_control.observe(second(310), &identities, &items);
    server.write_unsaved(&mut second_control);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 310);
}

#[test]
fn a_record_that_exists_already_is_taken_over() {
    let (_, mut server, identities, items) = recorded();
    // It did not load the record.
    let mut meter = Meter::default();
    meter.observe(second(100), &identities, &items);
    server.write_unsaved(&mut meter);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 60);
    server.write_unsaved(&mut meter);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 100);
}

#[test]
fn a_record_that_was_deleted_is_made_again() {
    let (mut meter, mut server, identities, items) = recorded();
    server.records.clear();
    meter.observe(second(120), &identities, &items);
    server.write_unsaved(&mut meter);
    server.write_unsaved(&mut meter);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 120);
    assert!(meter.unsaved().is_empty());
}

#[test]
fn an_older_record_that_was_restored_from_a_backup_gets_what_it_lacks() {
    let (mut meter, mut server, identities, items) = recorded();
    let backup = server.records.clone();
    meter.observe(second(600), &identities, &items);
    server.write_unsaved(&mut meter);
    server.records = backup;
    // Nothing proves any more what it had, but what this meter knows.
    let mut left = items[0].clone();
    left.until = Some(second(650));
    meter.observe(second(700), &identities, &[left]);
    server.write_unsaved(&mut meter);
    server.write_unsaved(&mut meter);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 650);
    assert!(meter.unsaved().is_empty());
}

#[test]
fn writes_that_fail_lose_nothing() {
    let (mut meter, mut server, identities, _) = recorded();
    let mut expected = 8 * 60;
    for minute in 1..=2_000 {
        let items = [gpus("a", minute % 7, START)];
        meter.observe(second(60 + minute * 60), &identities, &items);
        expected += 60 * (minute % 7);
    }
    assert_eq!(meter.unrecorded_since(), Some(second(60)));
    server.write_due(&mut meter, second(60 + 2_000 * 60));
    assert_eq!(server.total(UsageResource::Gpu), expected);
}

#[test]
fn what_people_added_to_a_record_stays() {
    let (mut meter, mut server, identities, items) = recorded();
    let record = server.records.values_mut().next().unwrap();
    record
        .metadata
        .labels
        .get_or_insert_default()
        .insert("team".into(), "vision".into());
    record.metadata.resource_version = Some("edited".into());
    record.spec.lines[0].daily[4] = 1_000;
    meter.observe(second(120), &identities, &items);
    server.write_unsaved(&mut meter);
    server.write_unsaved(&mut meter);
    let record = server.records.values().next().unwrap();
    assert_eq!(record.metadata.labels.as_ref().unwrap()["team"], "vision");
    assert_eq!(server.total(UsageResource::Gpu), 1_000 + 8 * 60);
}

#[test]
fn a_record_without_a_month_is_left_alone() {
    let (_, server, _, _) = recorded();
    let mut record = server.records.values().next().unwrap().clone();
    record.spec.month = "soon".into();
    let mut meter = Meter::default();
    meter.load(record.clone());
    assert!(meter.tenants.is_empty());
    let (mut meter, _, _, _) = recorded();
    meter.stored(record.clone());
    meter.missing(&record);
    assert!(meter.unsaved().is_empty());
}
