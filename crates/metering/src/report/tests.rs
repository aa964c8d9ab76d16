use super::*;
use crate::{amounts::hours, calendar::Month, record};
use berth_api::{NodeMode, RateCard, UsageResource, UsageTenant};
use jiff::civil::date;
use serde_json::json;

/// A record of a tenant and month, with amounts by key and day.
struct Recorded<'a> {
    namespace: &'a str,
    name: &'a str,
    month: &'a str,
    through: &'a str,
    in_use: bool,
    lines: Vec<(LineKey, usize, i64)>,
}

impl Recorded<'_> {
    fn record(self) -> UsageRecord {
        let tenant = UsageTenant {
            namespace: self.namespace.into(),
            name: self.name.into(),
            uid: format!("{}-{}", self.namespace, self.name),
            slug: format!("{}-aaaaaaaaaaaaa", self.name),
        };
        let mut lines = record::Lines::default();
        for (key, position, amount) in &self.lines {
            lines.add(key, *position, *amount);
        }
        let month: Month = self.month.parse().unwrap();
        let through = record::Through {
            at: self.through.parse().unwrap(),
            is_in_use: self.in_use,
        };
        lines.record(&tenant, month, None, through)
    }
}

fn key(resource: UsageResource, project: Option<&str>) -> LineKey {
    LineKey {
        pool_name: Some("h100".into()),
        gpu_product: Some("H100".into()),
        mode: Some(NodeMode::Private),
        class_name: Some("gold".into()),
        project_name: project.map(Into::into),
        organization_name: project.map(|_| "research".into()),
        ..LineKey::new(resource)
    }
}

fn gpus(project: Option<&str>) -> LineKey {
    key(UsageResource::Gpu, project)
}

/// Two tenants: one in October and November, one in November.
fn records() -> Vec<UsageRecord> {
    let october = Recorded {
        lines: vec![(gpus(Some("vision")), 30, 8 * 3_600)],
        ..unused("ai", "train")
    };
    let november = Recorded {
        month: "2026-11",
        through: "2026-11-05T12:00:00Z",
        in_use: true,
        lines: vec![
            (gpus(Some("vision")), 0, 16 * 3_600),
            (gpus(Some("vision")), 3, 24 * 3_600),
            (key(UsageResource::Node, Some("vision")), 3, 3 * 3_600),
        ],
        ..unused("ai", "train")
    };
    let other = Recorded {
        month: "2026-11",
        through: "2026-11-05T11:50:00Z",
        in_use: true,
        lines: vec![(gpus(None), 3, 3_600), (key(UsageResource::Cpu, None), 4, 500 * 3_600)],
        ..unused("lab", "train")
    };
    [october, november, other].map(Recorded::record).into()
}

/// A record of October in which nothing was used.
fn unused<'a>(namespace: &'a str, name: &'a str) -> Recorded<'a> {
    Recorded {
        namespace,
        name,
        month: "2026-10",
        through: "2026-11-01T00:00:00Z",
        in_use: false,
        lines: Vec::new(),
    }
}

fn prices() -> PriceBook {
    let rates = json!([{"resource": "GPU", "price": "2"}, {"resource": "CPU", "price": "0.03"}]);
    let spec = json!({"currency": "EUR", "prices": [{"rates": rates}]});
    let targeted = json!({
        "currency": "EUR",
        "targets": [{"kind": "Project", "name": "vision"}],
        "prices": [{"effectiveFrom": "2026-11-04", "rates": [{"resource": "GPU", "price": "1"}]}],
    });
    let cards = [("list", spec), ("vision", targeted)]
        .map(|(name, spec)| RateCard::new(name, serde_json::from_value(spec).unwrap()));
    PriceBook::new(&cards)
}

fn query(from: Date, to: Date, group_by: &[GroupBy]) -> Query {
    Query {
        from,
        to,
        namespace: None,
        tenants: Vec::new(),
        group_by: group_by.to_vec(),
    }
}

fn november(group_by: &[GroupBy]) -> Query {
    query(date(2026, 11, 1), date(2026, 11, 30), group_by)
}

/// A row as text: its group, GPU-hours and cost.
fn describe(row: &Row) -> String {
    let group: Vec<&str> = row.group.iter().map(|value| value.as_deref().unwrap_or("-")).collect();
    let gpus = hours(UsageResource::Gpu, row.amounts.get(UsageResource::Gpu), 1);
    let cost = row.costs.get("EUR").copied().unwrap_or_default();
    format!("{} {gpus} {}", group.join(" "), cost.format(3))
}

fn rows(query: &Query) -> Vec<String> {
    let records = records();
    report(&records, &prices(), query).rows.iter().map(describe).collect()
}

#[test]
fn usage_is_grouped() {
    for (group_by, expected) in [
        (GroupBy::Tenant, vec!["ai/train 40.0 56.000", "lab/train 1.0 2.015"]),
        (GroupBy::Namespace, vec!["ai 40.0 56.000", "lab 1.0 2.015"]),
        (GroupBy::Project, vec!["- 1.0 2.015", "vision 40.0 56.000"]),
        (GroupBy::Organization, vec!["- 1.0 2.015", "research 40.0 56.000"]),
        (GroupBy::Pool, vec!["h100 41.0 58.015"]),
        (GroupBy::Product, vec!["H100 41.0 58.015"]),
        (GroupBy::Class, vec!["gold 41.0 58.015"]),
        (GroupBy::Mode, vec!["Private 41.0 58.015"]),
        (
            GroupBy::Resource,
            vec!["CPU 0.0 0.015", "GPU 41.0 58.000", "Node 0.0 0.000"],
        ),
        (
            GroupBy::Day,
            vec![
                "2026-11-01 16.0 32.000",
                "2026-11-04 25.0 26.000",
                "2026-11-05 0.0 0.015",
            ],
        ),
        (GroupBy::Month, vec!["2026-11 41.0 58.015"]),
    ] {
        assert_eq!(rows(&november(&[group_by])), expected, "{}", group_by.name());
    }
}

#[test]
fn groups_can_be_combined_and_left_out() {
    assert_eq!(
        rows(&november(&[GroupBy::Day, GroupBy::Project])),
        [
            "2026-11-01 vision 16.0 32.000",
            "2026-11-04 - 1.0 2.000",
            "2026-11-04 vision 24.0 24.000",
            "2026-11-05 - 0.0 0.015",
        ]
    );
    assert_eq!(rows(&november(&[])), [" 41.0 58.015"]);
}

#[test]
fn the_total_is_the_sum_of_all_rows() {
    let records = records();
    let report = report(&records, &prices(), &november(&[GroupBy::Resource, GroupBy::Day]));
    assert_eq!(describe(&report.total), " 41.0 58.015");
    assert!(report.total.group.is_empty());
    let sum = report.rows.iter().fold(Cost::default(), |sum, row| {
        sum.saturating_add(row.costs.get("EUR").copied().unwrap_or_default())
    });
    assert_eq!(sum, report.total.costs["EUR"]);
    assert_eq!(report.total.amounts.get(UsageResource::Node), 3 * 3_600);
}

#[test]
fn only_the_days_of_the_query_count() {
    let days = |from, to| rows(&query(from, to, &[GroupBy::Month]));
    assert_eq!(
        days(date(2026, 10, 31), date(2026, 11, 1)),
        ["2026-10 8.0 16.000", "2026-11 16.0 32.000"]
    );
    assert_eq!(days(date(2026, 11, 4), date(2026, 11, 4)), ["2026-11 25.0 26.000"]);
    assert_eq!(days(date(2026, 11, 2), date(2026, 11, 3)), [""; 0]);
    assert_eq!(days(date(2026, 11, 5), date(2026, 11, 1)), [""; 0]);
    assert_eq!(days(date(2027, 11, 1), date(2027, 11, 30)), [""; 0]);
}

#[test]
fn tenants_are_selected_by_namespace_and_name() {
    let select = |namespace: Option<&str>, tenants: &[&str]| {
        rows(&Query {
            namespace: namespace.map(Into::into),
            tenants: tenants.iter().map(|name| (*name).to_owned()).collect(),
            ..november(&[GroupBy::Tenant])
        })
    };
    assert_eq!(select(Some("lab"), &[]), ["lab/train 1.0 2.015"]);
    assert_eq!(select(None, &["train"]).len(), 2);
    assert_eq!(select(Some("ai"), &["train", "other"]), ["ai/train 40.0 56.000"]);
    assert_eq!(select(None, &["trai"]), [""; 0]);
    assert_eq!(select(Some("l"), &[]), [""; 0]);
}

#[test]
fn what_has_no_price_is_reported() {
    let mut records = records();
    let storage = LineKey::new(UsageResource::Storage).line(vec![7_200]);
    records[2].spec.lines.push(storage);
    let by_resource = november(&[GroupBy::Resource]);
    let report_with = |prices: &PriceBook| report(&records, prices, &by_resource);
    let with_prices = report_with(&prices());
    let unpriced: Vec<(UsageResource, i128)> = with_prices.total.unpriced.iter().collect();
    assert_eq!(unpriced, [(UsageResource::Storage, 7_200)]);
    assert!(with_prices.rows[0].unpriced.is_empty());
    assert_eq!(with_prices.rows[3].unpriced, with_prices.total.unpriced);
    let without_prices = report_with(&PriceBook::default());
    assert!(without_prices.total.unpriced.is_empty());
    assert!(without_prices.total.costs.is_empty());
    assert_eq!(without_prices.total.amounts, with_prices.total.amounts);
}

#[test]
fn what_wrong_cards_are_for_is_reported_and_the_rest_has_its_costs() {
    let card = |name: &str, targets: serde_json::Value| {
        let rates = json!([{"resource": "GPU", "price": "2"}]);
        let spec = json!({"currency": "EUR", "targets": targets, "prices": [{"rates": rates}]});
        RateCard::new(name, serde_json::from_value(spec).unwrap())
    };
    let vision = json!([{"kind": "Project", "name": "vision"}]);
    let dollars = json!({"currency": "USD", "prices": [{"rates": [{"resource": "GPU", "price": "3"}]}]});
    let cards = [
        card("a", vision.clone()),
        card("b", vision),
        card("list", json!([])),
        RateCard::new("dollars", serde_json::from_value(dollars).unwrap()),
    ];
    let records = records();
    let report = report(&records, &PriceBook::new(&cards), &november(&[GroupBy::Project]));
    let amounts = |amounts: &Amounts| amounts.iter().collect::<Vec<_>>();
    let of_vision = [(UsageResource::Gpu, 40 * 3_600), (UsageResource::Node, 3 * 3_600)];
    let (others, total) = (&report.rows[0], &report.total);
    assert_eq!(report.rows[1].group, [Some("vision".to_owned())]);
    assert_eq!(amounts(&report.rows[1].unclear), of_vision);
    assert!(report.rows[1].unpriced.is_empty());
    assert_eq!(report.rows[1].costs.keys().collect::<Vec<_>>(), ["USD"]);
    assert_eq!(report.rows[1].unclear_currencies, BTreeSet::from(["EUR".to_owned()]));
    assert_eq!(amounts(&total.unclear), of_vision);
    assert_eq!(amounts(&total.unpriced), [(UsageResource::Cpu, 500 * 3_600)]);
    assert_eq!(total.unclear_currencies, report.rows[1].unclear_currencies);
    assert!(others.unclear.is_empty() && others.unclear_currencies.is_empty());
    assert_eq!(total.costs["EUR"].format(2), "2.00");
    assert_eq!(others.costs["EUR"], total.costs["EUR"]);
    assert_eq!(total.costs["USD"].format(2), "123.00");
}

#[test]
fn nodes_have_a_price_if_their_gpus_have_one_and_the_other_way_round() {
    let node = |pool: &str| LineKey {
        pool_name: Some(pool.into()),
        ..key(UsageResource::Node, None)
    };
    let gpus = LineKey {
        resource: UsageResource::Gpu,
        ..node("h100")
    };
    let recorded = Recorded {
        // A pool without GPUs, and a day on which no GPU is recorded.
        lines: vec![
            (gpus, 0, 8 * 3_600),
            (node("h100"), 0, 3_600),
            (node("h100"), 1, 1_800),
            (node("cpu"), 0, 7_200),
        ],
        ..unused("ai", "train")
    };
    let records = [recorded.record()];
    let unpriced = |rates: serde_json::Value| {
        let spec = json!({"currency": "EUR", "prices": [{"rates": rates}]});
        let card = RateCard::new("list", serde_json::from_value(spec).unwrap());
        let october = query(date(2026, 10, 1), date(2026, 10, 31), &[]);
        let report = report(&records, &PriceBook::new(&[card]), &october);
        report.total.unpriced.iter().collect::<Vec<_>>()
    };
    assert_eq!(
        unpriced(json!([{"resource": "GPU", "price": "2"}])),
        [(UsageResource::Node, 1_800 + 7_200)]
    );
    assert!(unpriced(json!([{"resource": "Node", "price": "2"}])).is_empty());
    assert_eq!(
        unpriced(json!([{"resource": "CPU", "price": "2"}])),
        [
            (UsageResource::Gpu, 8 * 3_600),
            (UsageResource::Node, 3_600 + 1_800 + 7_200)
        ]
    );
}

#[test]
fn a_report_says_up_to_when_it_is_complete() {
    let records = records();
    let through = |records: &[UsageRecord], from, to| {
        let report = report(records, &PriceBook::default(), &query(from, to, &[]));
        let through = report.metered_through.map_or_else(String::new, |time| time.to_string());
        (through, report.is_complete)
    };
    let ends = |time: &str, is_complete: bool| (time.to_owned(), is_complete);
    let (first, last) = (date(2026, 10, 1), date(2026, 11, 30));
    assert_eq!(through(&records, first, last), ends("2026-11-05T11:50:00Z", false));
    // One that uses nothing is not behind.
    let mut idle = records.clone();
    idle[2].spec.in_use = false;
    assert_eq!(through(&idle, first, last), ends("2026-11-05T12:00:00Z", false));
    idle[1].spec.in_use = false;
    assert_eq!(through(&idle, first, last), ends("2026-11-05T12:00:00Z", true));
    // Days that are over are complete.
    let over = through(&records, first, date(2026, 11, 4));
    assert_eq!(over, ends("2026-11-05T00:00:00Z", true));
    assert_eq!(through(&records, date(2025, 1, 1), date(2025, 1, 31)), ends("", true));
    assert_eq!(through(&[], first, last), ends("", true));
}

#[test]
fn a_tenant_without_a_record_of_the_days_is_missing_if_it_used_something_before_them() {
    let record = |namespace, month, through, in_use| {
        let recorded = Recorded {
            month,
            through,
            in_use,
            ..unused(namespace, "train")
        };
        recorded.record()
    };
    let through = |records: &[UsageRecord], query: &Query| {
        let report = report(records, &PriceBook::default(), query);
        (report.metered_through.map(|time| time.to_string()), report.is_complete)
    };
    let (october_ends, november_ends) = ("2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z");
    let of = |namespace: &str| Query {
        namespace: Some(namespace.into()),
        ..november(&[])
    };
    let records = [
        record("lab", "2026-11", november_ends, true),
        record("lab", "2026-10", october_ends, true),
        record("ai", "2026-10", october_ends, true),
        record("ended", "2026-10", october_ends, false),
        record("later", "2026-12", "2026-12-05T00:00:00Z", true),
    ];
    let incomplete = (Some(october_ends.to_owned()), false);
    assert_eq!(through(&records, &november(&[])), incomplete);
    assert_eq!(through(&records, &of("ai")), incomplete);
    assert_eq!(through(&records, &of("lab")), (Some(november_ends.to_owned()), true));
    for namespace in ["ended", "later", "other"] {
        assert_eq!(through(&records, &of(namespace)), (None, true), "{namespace}");
    }
    // October is over, whatever happened later.
    let october_query = query(date(2026, 10, 1), date(2026, 10, 31), &[]);
    assert_eq!(through(&records, &october_query), (Some(october_ends.to_owned()), true));
}

#[test]
fn records_without_a_month_are_left_out() {
    let mut records = records();
    for record in &mut records {
        record.spec.month = "soon".into();
    }
    assert!(report(&records, &prices(), &november(&[])).rows.is_empty());
}

#[test]
fn tenants_whose_records_have_too_many_lines_are_named() {
    let of_pools = |pools: usize| {
        let lines = (0..pools).map(|number| {
            let key = LineKey {
                pool_name: Some(format!("pool-{number}")),
                ..gpus(None)
            };
            (key, 30, 3_600)
        });
        Recorded {
            lines: lines.collect(),
            ..unused("ai", "train")
        }
    };
    let merged = |pools: usize, first: i8, last: i8| {
        let days = query(date(2026, 10, first), date(2026, 10, last), &[]);
        report(&[of_pools(pools).record()], &PriceBook::default(), &days).merged
    };
    assert!(merged(506, 1, 31).is_empty());
    assert_eq!(merged(507, 1, 31), BTreeSet::from(["ai/train".to_owned()]));
    assert!(merged(507, 1, 30).is_empty(), "nothing was used on these days");
}

#[test]
fn more_days_than_a_month_has_are_left_out() {
    let mut record = records().remove(1);
    record.spec.lines.truncate(1);
    record.spec.lines[0].daily = vec![3_600; 40];
    let everything = query(date(2026, 1, 1), date(2026, 12, 31), &[GroupBy::Month]);
    let report = report(&[record], &PriceBook::default(), &everything);
    assert_eq!(report.rows.len(), 1);
    assert_eq!(report.total.amounts.get(UsageResource::Gpu), 30 * 3_600);
}
