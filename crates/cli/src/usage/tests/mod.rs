mod rate_cards;
mod unassigned;

use super::export::{write_csv, write_focus};
use super::text::{describe, describe_wide};
use super::*;
use berth_api::{RateCard, UsageRecord};
use berth_metering::GroupBy;
use clap::Parser as _;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::args::{Arguments, Command};

fn record(name: &str, through: &str, is_in_use: bool, lines: &Value) -> UsageRecord {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "UsageRecord", "metadata": {"name": format!("{name}-2026-11")},
        "spec": {
            "month": "2026-11",
            "tenant": {"namespace": format!("team-{name}"), "name": name, "uid": name, "slug": name},
            "meteredThrough": through, "inUse": is_in_use, "gpuHours": "0.0", "lines": lines,
        },
    }))
    .unwrap()
}

/// Two tenants: one has 8 GPUs for a day and a half, the other one 4 for an hour, and does not use anything any more.
fn records() -> Vec<UsageRecord> {
    let on_h100 = |resource: &str, daily: [i64; 2]| {
        json!({"resource": resource, "poolName": "h100", "gpuProduct": "H100", "mode": "Private",
            "className": "gold", "projectName": "vision", "organizationName": "research", "daily": daily})
    };
    let vision = json!([
        on_h100("GPU", [8 * 86_400, 4 * 86_400]),
        on_h100("Node", [86_400, 43_200]),
        {"resource": "ControlPlane", "className": "gold", "projectName": "vision", "daily": [86_400, 86_400]},
    ]);
    let speech = json!([
        {"resource": "GPU", "poolName": "l40s", "mode": "Dynamic", "daily": [0, 4 * 3600]},
        {"resource": "CPU", "poolName": "cpu", "mode": "Shared", "daily": [1500 * 3600]},
        {"resource": "Memory", "poolName": "cpu", "mode": "Shared", "daily": [2 * 1024 * 3600]},
        {"resource": "Storage", "storageClassName": "fast", "daily": [5 * 1024 * 3600]},
    ]);
    vec![
        record("vision", "2026-11-03T12:00:00Z", true, &vision),
        record("speech", "2026-11-02T07:00:00Z", false, &speech),
    ]
}

/// Prices of everything but storage.
fn card() -> RateCard {
    serde_json::from_value(json!({
        "apiVersion": "berth.dev/v1alpha1", "kind": "RateCard", "metadata": {"name": "list"},
        "spec": {"currency": "EUR", "prices": [{"rates": [
            {"resource": "GPU", "gpuProduct": "H100", "price": "2.10"},
            {"resource": "GPU", "price": "0.90"},
            {"resource": "Node", "price": "0"},
            {"resource": "CPU", "price": "0.03"},
            {"resource": "Memory", "price": "0.004"},
            {"resource": "ControlPlane", "price": "0.10"},
        ]}]},
    }))
    .unwrap()
}

fn at(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn arguments(line: &str) -> UsageArguments {
    match Arguments::try_parse_from(line.split(' ')).unwrap().command {
        Command::Usage(arguments) => arguments,
        _ => panic!("not usage"),
    }
}

/// What a command line makes of these records at a time.
fn usage_of(records: &[UsageRecord], cards: &[RateCard], line: &str, now: &str) -> Usage {
    let (arguments, now) = (arguments(line), at(now));
    let period = Period::new(arguments.month, arguments.from, arguments.to, day_of(now)).unwrap();
    let request = Request {
        period,
        group_by: arguments.group_by(),
        months_without_records: months_without(records, period, now),
        without_costs: None,
    };
    Usage::new(records, &read::read_prices(cards, None).unwrap(), request, now)
}

fn usage(line: &str) -> Usage {
    usage_of(&records(), &[card()], line, "2026-11-03T12:10:00Z")
}

#[test]
fn the_table_shows_hours_costs_and_what_has_no_price() {
    let expected = "\
Usage from 2026-11-01 to 2026-11-03 (UTC), recorded up to 2026-11-03T12:00:00Z

TENANT              GPU-HOURS  NODE-HOURS  CORE-HOURS  EUR
team-vision/vision  288.0      36.0        0.0         609.60
team-speech/speech  4.0        0.0         1.5         3.65
total               292.0      36.0        1.5         613.25

No RateCard has a price for 5.0 GiB-hours (Storage). A rate with the price 0 says that something is free.";
    assert_eq!(describe(&usage("berth usage")), expected);
}

#[test]
fn the_wide_table_shows_all_resources() {
    let text = describe_wide(&usage("berth usage --by project"));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines[2],
        "PROJECT  GPU-HOURS  NODE-HOURS  CORE-HOURS  MEMORY GIB-HOURS  STORAGE GIB-HOURS  CONTROL-PLANE HOURS  EUR"
    );
    assert_eq!(
        lines[4],
        "-        4.0        0.0         1.5         2.0               5.0                0.0                  3.65"
    );
    assert!(lines[3].starts_with("vision   288.0"), "{text}");
}

#[test]
fn rows_of_resources_have_a_unit() {
    let text = describe(&usage("berth usage --by resource"));
    let table = "\
RESOURCE      USED   UNIT        EUR
GPU           292.0  GPU-hours   608.40
Node          36.0   node-hours  0.00
CPU           1.5    core-hours  0.05
Memory        2.0    GiB-hours   0.01
Storage       5.0    GiB-hours   -
ControlPlane  48.0   hours       4.80
total         -      -           613.25";
    assert!(text.contains(table), "{text}");
}

#[test]
fn without_rate_cards_there_are_no_costs_and_one_row_has_no_total() {
    let records = records();
    let text = describe(&usage_of(
        &records[..1],
        &[],
        "berth usage --by pool,day --to 2026-11-01",
        "2026-11-03T12:10:00Z",
    ));
    let expected = "\
Usage from 2026-11-01 to 2026-11-01 (UTC)

POOL   DAY         GPU-HOURS  NODE-HOURS
h100   2026-11-01  192.0      24.0
-      2026-11-01  0.0        0.0
total              192.0      24.0";
    assert_eq!(text, expected);
    let text = describe(&usage_of(
        &records[..1],
        &[],
        "berth usage --by tenant",
        "2026-11-03T12:10:00Z",
    ));
    assert!(!text.contains("total"), "{text}");
}

#[test]
fn usage_that_should_be_recorded_by_now_is_missing() {
    let notes = |line: &str, now: &str| usage_of(&records(), &[], line, now).notes;
    let late = "What was used after 2026-11-03T12:00:00Z is not recorded yet, at least of one tenant.";
    assert!(notes("berth usage", "2026-11-03T13:00:00Z").is_empty());
    let [note]: [String; 1] = notes("berth usage", "2026-11-03T13:00:01Z").try_into().unwrap();
    assert!(
        note.starts_with(late) && note.contains("BerthUsageNotRecorded"),
        "{note}"
    );
    // The day is over, and half of it is not there.
    let [note]: [String; 1] = notes("berth usage --to 2026-11-03", "2026-11-04T00:05:00Z")
        .try_into()
        .unwrap();
    assert!(note.starts_with(late), "{note}");
    assert!(notes("berth usage --to 2026-11-02", "2026-11-04T00:05:00Z").is_empty());
}

#[test]
fn tenants_that_use_nothing_any_more_are_not_missing() {
    let speech = &records()[1..];
    let usage = usage_of(speech, &[], "berth usage", "2026-11-29T12:00:00Z");
    assert!(usage.notes.is_empty(), "{:?}", usage.notes);
    assert!(describe(&usage).starts_with("Usage from 2026-11-01 to 2026-11-29 (UTC)\n"));
}

#[test]
fn usage_that_has_lost_its_pool_is_noted() {
    let of_pool = |pool: Option<usize>| {
        let pool = pool.map(|number| format!("pool-{number}"));
        json!({"resource": "GPU", "poolName": pool, "daily": [3600]})
    };
    let notes = |pools: usize| {
        let lines: Vec<Value> = (0..pools).map(Some).chain([None]).map(of_pool).collect();
        let record = record("vision", "2026-11-02T00:00:00Z", false, &json!(lines));
        usage_of(&[record], &[], "berth usage", "2026-11-03T12:10:00Z").notes
    };
    assert!(notes(505).is_empty());
    let [note]: [String; 1] = notes(506).try_into().unwrap();
    let expected =
        "A record has too many lines, of team-vision/vision: some of what was used is recorded without pool,";
    assert!(note.starts_with(expected), "{note}");
}

#[test]
fn months_of_which_nothing_is_recorded_are_named() {
    let notes = |line: &str| usage_of(&records(), &[], line, "2026-11-03T12:10:00Z").notes;
    let [note]: [String; 1] = notes("berth usage --from 2026-09-30").try_into().unwrap();
    assert!(
        note.starts_with("There are no UsageRecords of 2026-09, 2026-10: "),
        "{note}"
    );
    assert!(note.contains("metering.retentionMonths"), "{note}");
    // Those that have not begun are not missing.
    assert!(notes("berth usage --from 2026-11-01 --to 2027-01-01").is_empty());
    let usage = usage_of(&[], &[], "berth usage --month 2025-01", "2026-11-03T12:10:00Z");
    let text = describe(&usage);
    assert!(
        text.starts_with("Usage from 2025-01-01 to 2025-01-31 (UTC)\n\nThere are no UsageRecords of these days: "),
        "{text}"
    );
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn a_month_that_has_just_begun_has_no_records_yet() {
    let october = |through: &str| {
        let mut record = record("vision", through, true, &json!([]));
        record.spec.month = "2026-10".into();
        record
    };
    let usage_at = |through: &str, now: &str| usage_of(&[october(through)], &[], "berth usage", now);
    let usage = usage_at("2026-11-01T00:00:00Z", "2026-11-01T00:20:00Z");
    assert!(
        describe(&usage).starts_with("Usage from 2026-11-01 to 2026-11-01 (UTC), recorded up to 2026-11-01T00:00:00Z")
    );
    assert_eq!(
        usage.notes,
        ["No usage is recorded of these days for what you asked for."]
    );
    // Later it has to be there.
    for through in ["2026-11-01T00:00:00Z", "2026-10-20T00:00:00Z"] {
        let usage = usage_at(through, "2026-11-05T00:00:00Z");
        let [without, late]: [String; 2] = usage.notes.try_into().unwrap();
        assert!(
            without.starts_with("There are no UsageRecords of these days"),
            "{without}"
        );
        assert!(
            late.starts_with(&format!("What was used after {through} is not recorded yet")),
            "{late}"
        );
    }
}

#[test]
fn a_report_without_rows_says_so() {
    let usage = usage_of(&records(), &[], "berth usage --from 2026-11-03", "2026-11-03T12:10:00Z");
    assert!(usage.report.rows.is_empty());
    assert_eq!(
        usage.notes,
        ["No usage is recorded of these days for what you asked for."]
    );
}

#[test]
fn programs_get_all_digits_as_text() {
    let value = serde_json::to_value(usage("berth usage --by tenant,project")).unwrap();
    assert_eq!(
        (
            &value["from"],
            &value["to"],
            &value["meteredThrough"],
            &value["isComplete"]
        ),
        (
            &json!("2026-11-01"),
            &json!("2026-11-03"),
            &json!("2026-11-03T12:00:00Z"),
            &json!(false)
        )
    );
    assert_eq!(value["groupBy"], json!(["tenant", "project"]));
    assert_eq!(value["currencies"], json!(["EUR"]));
    let speech = json!({
        "group": {"tenant": "team-speech/speech", "project": null},
        "hours": {"GPU": "4.000000", "CPU": "1.500000", "Memory": "2.000000", "Storage": "5.000000"},
        "costs": {"EUR": "3.6530000000"},
        "unpricedHours": {"Storage": "5.000000"},
        "unclearHours": {}, "unclearCurrencies": [],
    });
    assert_eq!(value["rows"][0], speech);
    assert_eq!(value["total"]["costs"], json!({"EUR": "613.2530000000"}));
    assert_eq!(value["total"]["group"], json!({}));
    assert_eq!(value["monthsWithoutRecords"], json!([]));
    assert_eq!(value["notes"].as_array().unwrap().len(), 1);
}

#[test]
fn spreadsheets_get_a_heading_and_no_total() {
    let table = write_csv(&usage("berth usage --by tenant,class")).unwrap();
    let expected = "\
tenant,class,gpu_hours,node_hours,core_hours,memory_gib_hours,storage_gib_hours,control_plane_hours,cost_EUR
team-speech/speech,,4.000000,0.000000,1.500000,2.000000,5.000000,0.000000,3.6530000000
team-vision/vision,gold,288.000000,36.000000,0.000000,0.000000,0.000000,48.000000,609.6000000000
";
    assert_eq!(table, expected);
    let nothing = usage_of(&[], &[], "berth usage --month 2025-01", "2026-11-03T12:10:00Z");
    assert_eq!(write_csv(&nothing).unwrap().lines().count(), 1);
}

#[test]
fn tools_get_the_columns_of_focus() {
    let records = records();
    let prices = read::read_prices(&[card()], None).unwrap();
    let request = Request {
        period: Period::new(None, None, None, day_of(at("2026-11-03T12:10:00Z"))).unwrap(),
        group_by: Vec::new(),
        months_without_records: Vec::new(),
        without_costs: None,
    };
    let table = write_focus(&records, &prices, &request.query(), "Example").unwrap();
    let mut reader = csv::Reader::from_reader(table.as_bytes());
    let heading = reader.headers().unwrap().clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(Result::unwrap).collect();
    let column = |name: &str| heading.iter().position(|heading| heading == name).unwrap();
    // Two days of three resources, and a day of three others. Storage has no price.
    assert_eq!(rows.len(), 9);
    assert!(
        rows.iter()
            .all(|row| &row[column("BillingCurrency")] == "EUR" && &row[column("ProviderName")] == "Example")
    );
    let tags: Value = serde_json::from_str(&rows[0][column("Tags")]).unwrap();
    assert!(tags.is_object(), "{tags}");
}

#[test]
fn names_forge_no_rows() {
    let mut forged = records();
    forged[0].spec.tenant.name = "a\ntotal  0.0,\"".into();
    let usage = usage_of(&forged, &[], "berth usage", "2026-11-03T12:10:00Z");
    let rows: Vec<String> = describe(&usage).lines().skip(3).map(ToOwned::to_owned).collect();
    assert_eq!(rows.len(), 3);
    assert!(rows[0].starts_with("team-vision/a\u{fffd}total  0.0,\""), "{rows:?}");
    let table = write_csv(&usage).unwrap();
    assert!(table.contains("\"team-vision/a\ntotal  0.0,\"\"\""), "{table}");
}

#[test]
fn records_are_selected_by_tenant_or_namespace() {
    let period = Period::new(None, None, None, day_of(at("2026-11-03T12:10:00Z"))).unwrap();
    let select = |namespace: Option<&str>, tenants: &[&str]| {
        let tenants = tenants
            .iter()
            .map(|text| TenantName::parse(text, "team-speech").unwrap());
        let selection = Selection {
            namespace: namespace.map(ToOwned::to_owned),
            tenants: tenants.collect(),
        };
        let selected = selection.select(records(), period);
        selected.map(|records| {
            records
                .into_iter()
                .map(|record| record.spec.tenant.name)
                .collect::<Vec<_>>()
        })
    };
    assert_eq!(select(None, &[]).unwrap(), ["vision", "speech"]);
    assert_eq!(select(Some("team-speech"), &[]).unwrap(), ["speech"]);
    assert!(select(Some("team-other"), &[]).unwrap().is_empty());
    assert_eq!(select(None, &["speech"]).unwrap(), ["speech"]);
    assert_eq!(
        select(None, &["speech", "team-vision/vision"]).unwrap(),
        ["vision", "speech"]
    );
    // The namespace of the command is that of names without one.
    assert_eq!(
        select(Some("team-speech"), &["team-vision/vision"]).unwrap(),
        ["vision"]
    );
    match select(None, &["speech", "vision"]) {
        Err(Error::NotFound(message)) => assert!(
            message
                .starts_with("nothing is recorded of TenantCluster team-speech/vision from 2026-11-01 to 2026-11-03")
                && message.ends_with("; did you mean team-vision/vision?"),
            "{message}"
        ),
        other => panic!("{other:?}"),
    }
    // Those of the month before say what is late. They are no usage of these days.
    let mut before = records();
    for record in &mut before {
        record.spec.month = "2026-10".into();
    }
    let selection = |name: &str| Selection {
        namespace: None,
        tenants: vec![TenantName::parse(name, "").unwrap()],
    };
    let all = Selection::default().select(before.clone(), period).unwrap();
    assert_eq!(all.len(), 2);
    let error = selection("team-vision/vision").select(before, period).unwrap_err();
    assert!(
        error.to_string().contains("there are no UsageRecords of these days"),
        "{error}"
    );
    let error = selection("team/a").select(Vec::new(), period).unwrap_err().to_string();
    assert!(
        error.contains("there are no UsageRecords of these days") && error.contains("metering.retentionMonths"),
        "{error}"
    );
}

#[test]
fn each_group_of_reports_can_be_named_once() {
    let groups = |line: &str| arguments(line).group_by();
    assert_eq!(groups("berth usage"), [GroupBy::Tenant]);
    assert_eq!(
        groups("berth usage --by tenant,day,tenant --by pool,day"),
        [GroupBy::Tenant, GroupBy::Day, GroupBy::Pool]
    );
    let names = GroupBy::ALL.map(GroupBy::name);
    assert_eq!(groups(&format!("berth usage --by {}", names.join(","))), GroupBy::ALL);
}

#[test]
fn costs_that_were_asked_for_must_be_there() {
    let forbidden = || Err("ratecards.berth.dev is forbidden".to_owned());
    let prices = |cards: Cards, line: &str| prices_of(cards, &arguments(line));
    let (book, note) = prices(forbidden(), "berth usage").unwrap();
    assert!(book.is_empty());
    let note = note.unwrap();
    assert!(
        note.starts_with("Costs are not shown: ratecards.berth.dev is forbidden")
            && note.contains("kubectl auth can-i"),
        "{note}"
    );
    for line in ["berth usage --currency eur", "berth usage -o focus"] {
        let error = prices(forbidden(), line).unwrap_err().to_string();
        assert!(error.starts_with("cannot list the RateCards"), "{line}: {error}");
    }
    let error = prices(Ok(Vec::new()), "berth usage -o focus").unwrap_err().to_string();
    assert!(error.contains("there is no RateCard"), "{error}");
    let mut dollars = card();
    dollars.spec.currency = "USD".into();
    let cards = || Ok(vec![card(), dollars.clone()]);
    match prices(cards(), "berth usage -o focus") {
        Err(Error::Usage(message)) => assert!(message.starts_with("RateCards have prices in EUR, USD"), "{message}"),
        other => panic!("{other:?}"),
    }
    assert!(prices(cards(), "berth usage -o focus --currency USD").is_ok());
    assert_eq!(prices(cards(), "berth usage").unwrap().0.currencies().count(), 2);
    let (book, note) = prices(Ok(Vec::new()), "berth usage -o csv").unwrap();
    assert!(book.is_empty() && note.is_none());
    let (book, _) = prices(Ok(vec![card()]), "berth usage --currency eur").unwrap();
    assert_eq!(book.currencies().collect::<Vec<_>>(), ["EUR"]);
}
