//! What is counted, and for which days.

use super::*;
use crate::meter::Observed;

const START: &str = "2026-11-05T12:00:00Z";

/// A meter that has observed a tenant with 8 GPUs from their beginning on.
fn with_gpus() -> (Meter, Server, [Identity; 1], [Item; 1]) {
    let (identities, items) = ([identity("a", START)], [gpus("a", 8, START)]);
    let mut meter = Meter::default();
    meter.observe(at(START), &identities, &items);
    (meter, Server::default(), identities, items)
}

#[test]
fn gpus_are_counted_from_when_the_node_was_assigned() {
    let mut meter = Meter::default();
    let identities = [identity("a", "2026-11-05T11:00:00Z")];
    let mut server = Server::default();
    let now = at("2026-11-05T12:00:30.7Z");
    let observed = meter.observe(
        now,
        &identities,
        &[gpus("a", 8, START), gpus("a", 4, "2026-11-05T12:00:20Z")],
    );
    assert_eq!(observed, Observed::default());
    server.write_due(&mut meter, now);
    assert_eq!(
        server.daily("a", "2026-11", UsageResource::Gpu),
        [0, 0, 0, 0, 8 * 30 + 4 * 10]
    );
    let record = server.records.values().next().unwrap();
    assert_eq!(record.spec.metered_through.0, at("2026-11-05T12:00:30Z"));
    assert!(record.spec.in_use);
    assert_eq!(record.spec.gpu_hours, "0.1");
    assert_eq!(record.spec.tenant, tenant("a"));
}

#[test]
fn days_and_months_are_split_at_midnight_in_utc() {
    let (mut meter, mut server, identities, items) = with_gpus();
    let now = at("2026-12-02T06:00:00Z");
    meter.observe(now, &identities, &items);
    server.write_due(&mut meter, now);
    let november = server.daily("a", "2026-11", UsageResource::Gpu);
    assert_eq!(november.len(), 30);
    assert_eq!(november[4], 8 * 43_200);
    assert!(november[5..].iter().all(|amount| *amount == 8 * 86_400));
    assert_eq!(
        server.daily("a", "2026-12", UsageResource::Gpu),
        [8 * 86_400, 8 * 21_600]
    );
    assert_eq!(
        server.total(UsageResource::Gpu),
        8 * now.duration_since(at(START)).as_secs()
    );
}

#[test]
fn months_have_31_days_and_leap_days() {
    for (first, last, days) in [
        ("2027-01-01", "2027-02-01", 31),
        ("2028-02-01", "2028-03-01", 29),
        ("2027-02-01", "2027-03-01", 28),
    ] {
        let (start, end) = (format!("{first}T00:00:00Z"), format!("{last}T00:00:00Z"));
        let (identities, items) = ([identity("a", &start)], [gpus("a", 1, &start)]);
        let mut meter = Meter::default();
        let mut server = Server::default();
        let observed = meter.observe(at(&end), &identities, &items);
        assert!(observed.cut.is_empty(), "{observed:?}");
        server.write_due(&mut meter, at(&end));
        assert_eq!(server.daily("a", &first[..7], UsageResource::Gpu), vec![86_400; days]);
        assert_eq!(server.records.len(), 1, "nothing of the next month was used");
    }
}

#[test]
fn what_has_no_beginning_is_counted_between_observations_only() {
    let identities = [identity("a", "2026-11-01T00:00:00Z")];
    let mut meter = Meter::default();
    let mut server = Server::default();
    let start = at(START);
    meter.observe(start, &identities, &[cpu("a", 500)]);
    server.write_due(&mut meter, start);
    assert_eq!(server.total(UsageResource::Cpu), 0);
    meter.observe(later(start, 60), &identities, &[cpu("a", 700)]);
    server.write_due(&mut meter, later(start, 60));
    assert_eq!(server.total(UsageResource::Cpu), 700 * 60);
    // A restart after an hour: what runs now need not have run then.
    let mut meter = server.load();
    meter.observe(later(start, 3_600), &identities, &[cpu("a", 900)]);
    meter.observe(later(start, 3_610), &identities, &[cpu("a", 900)]);
    server.write_unsaved(&mut meter);
    assert_eq!(server.total(UsageResource::Cpu), 700 * 60 + 900 * 10);
}

#[test]
fn what_was_held_while_control_was_down_is_counted_once() {
    let (mut meter, mut server, identities, items) = with_gpus();
    let start = at(START);
    meter.observe(later(start, 60), &identities, &items);
    server.write_due(&mut meter, later(start, 60));
    // It is killed ten minutes later with what it has not written.
    meter.observe(later(start, 600), &identities, &items);
    let mut meter = server.load();
    let mut node_that_left = gpus("a", 8, "2026-11-05T13:00:00Z");
    node_that_left.until = Some(at("2026-11-05T13:30:00Z"));
    let items = [items[0].clone(), node_that_left];
    for minute in 0..3 {
        let now = later(start, 7_200 + minute * 60);
        meter.observe(now, &identities, &items);
        server.write_due(&mut meter, now);
    }
    server.write_unsaved(&mut meter);
    assert_eq!(server.total(UsageResource::Gpu), 8 * (7_320 + 1_800));
}

#[test]
fn a_tenant_without_a_record_used_nothing_before_its_creation() {
    let mut meter = Meter::default();
    let mut server = Server::default();
    let now = at("2026-11-05T13:00:00Z");
    meter.observe(now, &[identity("a", START)], &[gpus("a", 8, "2026-11-05T10:00:00Z")]);
    server.write_due(&mut meter, now);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 3_600);
}

#[test]
fn a_clock_that_goes_back_adds_nothing_until_it_has_caught_up() {
    let (mut meter, mut server, identities, items) = with_gpus();
    let start = at(START);
    meter.observe(later(start, 600), &identities, &items);
    let observed = meter.observe(later(start, 300), &identities, &items);
    assert_eq!(observed.clock_behind, 300);
    assert!(observed.cut.is_empty(), "{observed:?}");
    let observed = meter.observe(later(start, 600), &identities, &items);
    assert_eq!(observed.clock_behind, 0);
    server.write_unsaved(&mut meter);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 600);
    meter.observe(later(start, 610), &identities, &items);
    server.write_unsaved(&mut meter);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 610);
}

#[test]
fn a_gap_of_more_than_31_days_is_cut_and_reported() {
    let identities = [
        identity("a", "2026-01-01T00:00:00Z"),
        identity("b", "2026-01-01T00:00:00Z"),
    ];
    let items = [
        gpus("a", 8, "2026-03-01T00:00:00Z"),
        gpus("a", 8, "2026-02-01T00:00:00Z"),
        gpus("b", 8, "2026-11-04T12:00:00Z"),
    ];
    let mut meter = Meter::default();
    let mut server = Server::default();
    let now = at(START);
    let observed = meter.observe(now, &identities, &items);
    let [cut] = observed.cut.as_slice() else {
        panic!("{observed:?}");
    };
    assert_eq!(cut.tenant, tenant("a"));
    assert_eq!(cut.from, at("2026-02-01T00:00:00Z"));
    assert_eq!(cut.counted_from, at("2026-10-05T12:00:00Z"));
    server.write_due(&mut meter, now);
    assert_eq!(server.total(UsageResource::Gpu), 8 * (2 * 31 + 1) * 86_400);
    // It is not cut again.
    assert_eq!(meter.observe(later(now, 60), &identities, &items), Observed::default());
}

#[test]
fn an_idle_tenant_is_not_cut() {
    let (mut meter, mut server, identities, items) = with_gpus();
    let start = at(START);
    meter.observe(later(start, 60), &identities, &items);
    meter.observe(later(start, 120), &identities, &[]);
    server.write_due(&mut meter, later(start, 120));
    let mut meter = server.load();
    let now = at("2027-03-01T00:00:00Z");
    let observed = meter.observe(now, &identities, &[gpus("a", 8, "2027-02-28T00:00:00Z")]);
    assert!(observed.cut.is_empty(), "{observed:?}");
    server.write_due(&mut meter, now);
    assert_eq!(server.total(UsageResource::Gpu), 8 * (60 + 86_400));
}

#[test]
fn items_of_unknown_tenants_are_reported() {
    let (mut meter, mut server, _, items) = with_gpus();
    let now = later(at(START), 60);
    // The tenant is gone, and its node is still drained.
    let observed = meter.observe(now, &[], &[items[0].clone(), gpus("x", 1, START)]);
    assert_eq!(observed.unknown.into_iter().collect::<Vec<_>>(), ["x"]);
    server.write_due(&mut meter, now);
    assert_eq!(server.total(UsageResource::Gpu), 8 * 60);
}

#[test]
fn strange_amounts_and_times_are_harmless() {
    let (mut meter, mut server, identities, _) = with_gpus();
    let now = later(at(START), 100);
    let mut backwards = gpus("a", 8, "2026-11-05T12:01:00Z");
    backwards.until = Some(at("2026-11-05T12:00:30Z"));
    let future = gpus("a", 8, "2026-11-06T00:00:00Z");
    let items = [
        backwards,
        future,
        gpus("a", -8, START),
        gpus("a", 0, START),
        gpus("a", i64::MAX, START),
        gpus("a", i64::MAX, START),
    ];
    meter.observe(now, &identities, &items);
    server.write_due(&mut meter, now);
    assert_eq!(server.daily("a", "2026-11", UsageResource::Gpu)[4], i64::MAX);
    meter.observe(Timestamp::MAX, &identities, &items);
    meter.observe(Timestamp::MIN, &identities, &items);
    assert!(!meter.unsaved().is_empty());
}
