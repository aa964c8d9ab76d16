use super::*;
use crate::{calendar::Month, item::testing::gpus, record};
use berth_api::{RateCard, UsageResource, UsageTenant};
use jiff::civil::date;
use serde_json::json;
use std::collections::BTreeMap;

pub(super) fn storage() -> LineKey {
    LineKey {
        storage_class_name: Some("fast".into()),
        project_name: Some("vision".into()),
        ..LineKey::new(UsageResource::Storage)
    }
}

/// A record of November that has these lines.
pub(super) fn record_of(lines: &[(LineKey, usize, i64)]) -> UsageRecord {
    let tenant = UsageTenant {
        namespace: "ai".into(),
        name: "train".into(),
        uid: "6f2c".into(),
        slug: "train-aaaaaaaaaaaaa".into(),
    };
    let month: Month = "2026-11".parse().unwrap();
    let mut made = record::Lines::default();
    for (key, position, amount) in lines {
        made.add(key, *position, *amount);
    }
    let through = record::Through {
        at: month.end(),
        is_in_use: false,
    };
    made.record(&tenant, month, None, through)
}

fn prices() -> PriceBook {
    let rates = json!([
        {"resource": "GPU", "price": "2.10"},
        {"resource": "Storage", "price": "0.0002"},
    ]);
    let spec = json!({"currency": "EUR", "prices": [{"rates": rates}]});
    PriceBook::new(&[RateCard::new("list", serde_json::from_value(spec).unwrap())])
}

pub(super) fn query() -> Query {
    Query {
        from: date(2026, 11, 1),
        to: date(2026, 11, 30),
        namespace: None,
        tenants: Vec::new(),
        group_by: Vec::new(),
    }
}

/// A row by the names of its columns.
pub(super) fn by_column(row: &FocusRow) -> BTreeMap<&str, &str> {
    COLUMNS.into_iter().zip(row.iter().map(String::as_str)).collect()
}

#[test]
fn a_row_says_who_used_what_on_a_day_and_what_it_costs() {
    let focus = focus(&[record_of(&[(gpus(), 4, 8 * 5_400)])], &prices(), &query(), "Example");
    assert!(focus.unpriced.is_empty());
    let [row] = focus.rows.as_slice() else {
        panic!("{:?}", focus.rows);
    };
    let expected = [
        ("BilledCost", "25.2"),
        ("BillingAccountId", "Organization/research"),
        ("BillingAccountName", "research"),
        ("BillingAccountType", "Organization"),
        ("BillingCurrency", "EUR"),
        ("BillingPeriodEnd", "2026-12-01T00:00:00Z"),
        ("BillingPeriodStart", "2026-11-01T00:00:00Z"),
        ("ChargeCategory", "Usage"),
        ("ChargeClass", ""),
        (
            "ChargeDescription",
            "GPU (h100, H100, Dynamic): 12 GPU-Hours at 2.1 EUR",
        ),
        ("ChargeFrequency", "Usage-Based"),
        ("ChargePeriodEnd", "2026-11-06T00:00:00Z"),
        ("ChargePeriodStart", "2026-11-05T00:00:00Z"),
        ("ConsumedQuantity", "12"),
        ("ConsumedUnit", "GPU-Hours"),
        ("ContractedCost", "25.2"),
        ("ContractedUnitPrice", "2.1"),
        ("EffectiveCost", "25.2"),
        ("HostProviderName", "Example"),
        ("InvoiceIssuerName", "Example"),
        ("ListCost", "25.2"),
        ("ListUnitPrice", "2.1"),
        ("PricingCategory", "Standard"),
        ("PricingQuantity", "12"),
        ("PricingUnit", "GPU-Hours"),
        ("ProviderName", "Example"),
        ("PublisherName", "Example"),
        ("ServiceCategory", "Compute"),
        ("ServiceName", "Nodes"),
        ("ServiceProviderName", "Example"),
        ("ServiceSubcategory", "Virtual Machines"),
        ("SkuId", "GPU/h100/H100/Dynamic"),
        ("SkuMeter", "GPU"),
        ("SkuPriceId", "GPU/h100/H100/Dynamic"),
        ("SubAccountId", "6f2c"),
        ("SubAccountName", "ai/train"),
        ("SubAccountType", "TenantCluster"),
        ("x_RateCard", "list"),
    ];
    let mut columns = by_column(row);
    let tags: Value = serde_json::from_str(columns.remove("Tags").unwrap()).unwrap();
    assert_eq!(
        tags,
        json!({
            "berth.dev/tenant-namespace": "ai",
            "berth.dev/tenant-name": "train",
            "berth.dev/tenant-class": "gold",
            "berth.dev/project": "vision",
            "berth.dev/organization": "research",
        })
    );
    let details: Value = serde_json::from_str(columns.remove("SkuPriceDetails").unwrap()).unwrap();
    assert_eq!(
        details,
        json!({"x_PoolName": "h100", "x_GpuProduct": "H100", "x_NodeMode": "Dynamic"})
    );
    assert_eq!(columns, BTreeMap::from(expected));
}

#[test]
fn who_pays_is_the_outermost_that_there_is() {
    let without_project = LineKey {
        project_name: None,
        ..storage()
    };
    let record = record_of(&[(storage(), 0, 1024 * 3_600), (without_project, 1, 1024 * 3_600)]);
    let focus = focus(&[record], &prices(), &query(), "Example");
    let accounts: Vec<&str> = focus
        .rows
        .iter()
        .map(|row| by_column(row)["BillingAccountId"])
        .collect();
    assert_eq!(accounts, ["Namespace/ai", "Project/vision"]);
    let first = by_column(&focus.rows[0]);
    assert_eq!(first["ServiceCategory"], "Storage");
    assert_eq!(first["BilledCost"], "0.0002");
    assert_eq!(first["ChargeDescription"], "Storage (fast): 1 GiB-Hours at 0.0002 EUR");
    assert_eq!(first["SkuPriceDetails"], r#"{"StorageClass":"fast"}"#);
}

#[test]
fn prices_for_some_are_shown_beside_those_for_everybody() {
    let card = |name: &str, targets: Value, price: &str| {
        let prices =
            json!([{"rates": [{"resource": "GPU", "price": price}, {"resource": "ControlPlane", "price": price}]}]);
        let spec = json!({"currency": "EUR", "targets": targets, "prices": prices});
        RateCard::new(name, serde_json::from_value(spec).unwrap())
    };
    let organization = json!([{"kind": "Organization", "name": "research"}]);
    let prices = PriceBook::new(&[card("list", json!([]), "2"), card("research", organization, "1.50")]);
    let control_plane = LineKey::new(UsageResource::ControlPlane);
    let record = record_of(&[(gpus(), 0, 2 * 3_600), (control_plane, 0, 3_600)]);
    let focus = focus(&[record], &prices, &query(), "Example");
    let values = |row: &FocusRow| {
        let row = by_column(row);
        let columns = [
            "x_RateCard",
            "BilledCost",
            "ContractedUnitPrice",
            "ListCost",
            "ListUnitPrice",
            "SkuPriceDetails",
        ];
        columns.map(|column| row[column].to_owned())
    };
    let details = r#"{"x_GpuProduct":"H100","x_NodeMode":"Dynamic","x_PoolName":"h100"}"#;
    assert_eq!(values(&focus.rows[0]), ["research", "3", "1.5", "4", "2", details]);
    assert_eq!(values(&focus.rows[1]), ["list", "2", "2", "2", "2", ""]);
}

#[test]
fn what_two_cards_are_for_has_no_row() {
    let card = |name: &str| {
        let spec = json!({"currency": "EUR", "targets": [{"kind": "Project", "name": "vision"}],
            "prices": [{"rates": [{"resource": "GPU", "price": "2"}]}]});
        RateCard::new(name, serde_json::from_value(spec).unwrap())
    };
    let record = record_of(&[
        (gpus(), 0, 3_600),
        (LineKey::new(UsageResource::ControlPlane), 0, 7_200),
    ]);
    let focus = focus(&[record], &PriceBook::new(&[card("a"), card("b")]), &query(), "Example");
    assert!(focus.rows.is_empty());
    assert_eq!(focus.unclear.get(UsageResource::Gpu), 3_600);
    assert_eq!(
        focus.unpriced.iter().collect::<Vec<_>>(),
        [(UsageResource::ControlPlane, 7_200)]
    );
}

#[test]
fn small_amounts_keep_ten_decimals() {
    let focus = focus(&[record_of(&[(gpus(), 0, 1)])], &prices(), &query(), "Example");
    let row = by_column(&focus.rows[0]);
    assert_eq!(row["PricingQuantity"], "0.0002777778");
    // 2.10 / 3600, and not the rounded quantity multiplied.
    assert_eq!(row["BilledCost"], "0.0005833333");
}

#[test]
fn there_is_a_row_for_each_day_of_the_query_that_is_priced() {
    let node = LineKey {
        resource: UsageResource::Node,
        ..gpus()
    };
    let pods = LineKey::new(UsageResource::Cpu);
    let record = record_of(&[
        (gpus(), 3, 3_600),
        (gpus(), 4, 3_600),
        (gpus(), 5, 3_600),
        // Its GPUs have a price.
        (node, 4, 3_600),
        (pods, 4, 7_200),
    ]);
    let query = Query {
        from: date(2026, 11, 5),
        to: date(2026, 11, 6),
        ..query()
    };
    let focus = focus(&[record], &prices(), &query, "Example");
    let days: Vec<&str> = focus
        .rows
        .iter()
        .map(|row| by_column(row)["ChargePeriodStart"])
        .collect();
    assert_eq!(days, ["2026-11-05T00:00:00Z", "2026-11-06T00:00:00Z"]);
    let unpriced: Vec<(UsageResource, i128)> = focus.unpriced.iter().collect();
    assert_eq!(unpriced, [(UsageResource::Cpu, 7_200)]);
}
