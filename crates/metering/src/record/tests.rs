use super::*;
use crate::item::testing::gpus;
use berth_api::NodeMode;

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn tenant() -> UsageTenant {
    UsageTenant {
        namespace: "ai".into(),
        name: "vision".into(),
        uid: "6f2c".into(),
        slug: "vision-aaaaaaaaaaaaa".into(),
    }
}

fn month() -> Month {
    "2026-11".parse().unwrap()
}

fn pool(number: usize) -> LineKey {
    LineKey {
        pool_name: Some(format!("pool-{number:04}")),
        mode: Some(NodeMode::Dynamic),
        ..LineKey::new(UsageResource::Gpu)
    }
}

fn record(lines: Lines, stored: Option<&UsageRecord>) -> UsageRecord {
    let through = Through {
        at: at("2026-11-05T12:00:00Z"),
        is_in_use: true,
    };
    lines.record(&tenant(), month(), stored, through)
}

fn sum(record: &UsageRecord) -> i64 {
    record.spec.lines.iter().flat_map(|line| &line.daily).sum()
}

#[test]
fn amounts_are_added_to_their_days() {
    let mut lines = Lines::default();
    lines.add(&pool(1), 4, 3_600);
    lines.add(&pool(1), 0, 1_800);
    lines.add(&pool(1), 4, 3_600);
    lines.add(&LineKey::new(UsageResource::Node), 1, 60);
    lines.add(&pool(2), 3, 0);
    lines.add(&pool(2), 3, -5);
    let first = record(lines, None);
    let daily: Vec<&[i64]> = first.spec.lines.iter().map(|line| line.daily.as_slice()).collect();
    assert_eq!(daily, [&[1_800, 0, 0, 0, 7_200][..], &[0, 60]]);
    assert_eq!(first.spec.gpu_hours, "2.5");
    // What is stored is read again, and is the same.
    assert_eq!(record(Lines::of(&first), Some(&first)), first);
}

#[test]
fn a_record_has_at_most_as_many_lines_as_its_schema_allows() {
    let mut stored: Option<UsageRecord> = None;
    for round in 0..10 {
        let mut lines = stored.as_ref().map(Lines::of).unwrap_or_default();
        for number in 0..200 {
            lines.add(&pool(round * 200 + number), 0, 1);
            let node = LineKey {
                resource: UsageResource::Node,
                ..pool(round * 200 + number)
            };
            lines.add(&node, 0, 1);
        }
        stored = Some(record(lines, stored.as_ref()));
    }
    let stored = stored.unwrap();
    assert!(stored.spec.lines.len() <= MAX_USAGE_LINES);
    assert_eq!(sum(&stored), 10 * 200 * 2, "nothing is lost");
    let others: Vec<&UsageLine> = stored
        .spec
        .lines
        .iter()
        .filter(|line| line.pool_name.is_none())
        .collect();
    let resources: Vec<UsageResource> = others.iter().map(|line| line.resource).collect();
    assert_eq!(resources, [UsageResource::Gpu, UsageResource::Node]);
    // Lines that it has are used further.
    let mut lines = Lines::of(&stored);
    lines.add(&pool(0), 0, 1);
    let next = record(lines, Some(&stored));
    let first = next
        .spec
        .lines
        .iter()
        .find(|line| LineKey::of(line) == pool(0))
        .unwrap();
    assert_eq!(first.daily, [2]);
}

/// GPUs of the pool h100 of the Project vision, with a class and a mode.
fn with_class(number: usize, mode: NodeMode) -> LineKey {
    LineKey {
        class_name: Some(format!("class-{number:04}")),
        mode: Some(mode),
        ..gpus()
    }
}

/// The lines of GPUs with this product, as they were added, and what they have.
fn of_product(record: &UsageRecord, product: &str) -> Vec<(LineKey, i64)> {
    let of_product = { record.spec.lines.iter() }.filter(|line| line.gpu_product.as_deref() == Some(product));
    of_product
        .map(|line| (LineKey::of(line), line.daily.iter().sum()))
        .collect()
}

#[test]
fn a_record_with_many_lines_keeps_what_prices_depend_on() {
    let mut lines = Lines::default();
    for number in 0..MAX_USAGE_LINES {
        lines.add(&with_class(number, NodeMode::Dynamic), 0, 1);
    }
    let of_other_pool = |mode| LineKey {
        pool_name: Some("b200".into()),
        gpu_product: Some("B200".into()),
        ..with_class(9000, mode)
    };
    lines.add(&of_other_pool(NodeMode::Private), 0, 1);
    lines.add(&of_other_pool(NodeMode::Dynamic), 0, 2);
    let record = record(lines, None);
    assert_eq!(sum(&record), 512 + 1 + 2, "nothing is lost");
    let expected = [(NodeMode::Private, 1), (NodeMode::Dynamic, 2)].map(|(mode, amount)| {
        let key = LineKey {
            class_name: None,
            ..of_other_pool(mode)
        };
        (key, amount)
    });
    let mut found = of_product(&record, "B200");
    found.sort_by_key(|(_, amount)| *amount);
    assert_eq!(found, expected);
    // Those of the first pool are in one line from some number on, with everything but their class.
    let without_class: Vec<(LineKey, i64)> = { of_product(&record, "H100").into_iter() }
        .filter(|(key, _)| key.class_name.is_none())
        .collect();
    let key = LineKey {
        class_name: None,
        ..gpus()
    };
    assert_eq!(without_class, [(key, 512 - 384)]);
    let has_merged = record
        .spec
        .lines
        .iter()
        .any(|line| is_merged(&record, &LineKey::of(line)));
    assert!(!has_merged);
}

#[test]
fn a_record_with_more_lines_keeps_the_pool_the_product_and_the_project() {
    let mut lines = Lines::default();
    for number in 0..MOST_WITH_MODE {
        lines.add(&pool(number), 0, 1);
    }
    for mode in [NodeMode::Private, NodeMode::Dynamic] {
        lines.add(&with_class(1, mode), 0, 3);
    }
    let record = record(lines, None);
    let key = LineKey {
        class_name: None,
        mode: None,
        ..gpus()
    };
    assert_eq!(of_product(&record, "H100"), [(key, 6)]);
}

#[test]
fn a_full_record_stays_as_it_is() {
    let mut lines = Lines::default();
    for number in 0..MOST_KEYS {
        lines.add(&pool(number), 0, 1);
    }
    for resource in UsageResource::ALL {
        lines.add(
            &LineKey {
                pool_name: Some("new".into()),
                ..LineKey::new(resource)
            },
            0,
            1,
        );
    }
    let full = record(lines, None);
    assert_eq!(full.spec.lines.len(), MAX_USAGE_LINES);
    let merged = { full.spec.lines.iter() }.filter(|line| is_merged(&full, &LineKey::of(line)));
    assert_eq!(merged.count(), UsageResource::ALL.len());
    assert_eq!(record(Lines::of(&full), Some(&full)), full);
}

#[test]
fn lines_with_the_same_key_are_one() {
    let line = pool(1).line(vec![1, 2]);
    let mut twice = record(Lines::default(), None);
    twice.spec.lines = vec![line.clone(), line];
    let read = record(Lines::of(&twice), Some(&twice));
    assert_eq!(read.spec.lines.len(), 1);
    assert_eq!(read.spec.lines[0].daily, [2, 4]);
}

#[test]
fn sums_do_not_overflow() {
    let mut lines = Lines::default();
    for number in 0..3 {
        lines.add(&pool(number), 0, i64::MAX);
        lines.add(&pool(number), 0, i64::MAX);
    }
    let record = record(lines, None);
    assert_eq!(record.spec.lines[0].daily, [i64::MAX]);
    // Three times 9223372036854775807 / 3600.
    assert_eq!(record.spec.gpu_hours, "7686143364045646.5");
}

#[test]
fn metadata_of_a_stored_record_stays() {
    let mut stored = record(Lines::default(), None);
    stored.metadata.resource_version = Some("7".into());
    stored.metadata.managed_fields = Some(Vec::new());
    stored.metadata.labels = Some([("team".to_owned(), "vision".to_owned())].into());
    let next = record(Lines::of(&stored), Some(&stored));
    assert_eq!(next.metadata.resource_version.as_deref(), Some("7"));
    assert_eq!(next.metadata.managed_fields, None);
    let labels_now = next.metadata.labels.unwrap();
    assert_eq!(labels_now["team"], "vision");
    assert_eq!(labels_now[labels::USAGE_MONTH], "2026-11");
}

#[test]
fn names_of_records_are_valid() {
    let id = berth_api::names::TenantId::new(&"a".repeat(40), "6f2c");
    let long = UsageTenant {
        slug: id.slug().into(),
        ..tenant()
    };
    let name = name(&long, month());
    assert!(name.len() <= berth_api::names::MAX_NAME, "{name}");
    assert!(name.ends_with("-2026-11"));
    let other = berth_api::names::TenantId::new(&"a".repeat(40), "7a01");
    assert_ne!(
        id.slug(),
        other.slug(),
        "a tenant that is created again has another name"
    );
}

#[test]
fn a_record_is_metered_within_its_month() {
    let mut record = record(Lines::default(), None);
    let second = |text: &str| second_of(at(text));
    assert_eq!(metered(&record), Some((month(), second("2026-11-05T12:00:00Z"))));
    record.spec.metered_through = Time(at("2027-03-01T00:00:00Z"));
    assert_eq!(metered(&record), Some((month(), second("2026-12-01T00:00:00Z"))));
    record.spec.metered_through = Time(at("2020-03-01T00:00:00Z"));
    assert_eq!(metered(&record), Some((month(), second("2026-11-01T00:00:00Z"))));
    record.spec.month = "2026-13".into();
    assert_eq!(metered(&record), None);
}

#[test]
fn records_expire_after_whole_months() {
    let record = record(Lines::default(), None);
    let expired = |now: &str, months: u32| is_expired(&record, at(now), months);
    assert!(!expired("2026-11-30T00:00:00Z", 1));
    assert!(!expired("2026-12-31T23:59:59Z", 1));
    assert!(expired("2027-01-01T00:00:00Z", 1));
    assert!(!expired("2027-12-31T23:59:59Z", 13));
    assert!(expired("2028-01-01T00:00:00Z", 13));
    assert!(!expired("2028-01-01T00:00:00Z", u32::MAX));
    // Usage is not recorded: what there is stays.
    assert!(!expired("2099-01-01T00:00:00Z", 0));
    // A clock that is wrong deletes nothing of its future.
    assert!(!expired("1970-01-01T00:00:00Z", 1));
    let mut without_month = record.clone();
    without_month.spec.month = "soon".into();
    assert!(!is_expired(&without_month, at("2099-01-01T00:00:00Z"), 1));
}
