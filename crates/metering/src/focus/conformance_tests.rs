//! What FOCUS 1.3 says of the columns of its dataset Cost and Usage, for rows of usage that are no corrections and no parts of commitments. From the
//! pages of the columns and the attributes in FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec, read on 2026-11-30.

use super::tests::{by_column, query, record_of, storage};
use super::*;
use crate::item::testing::gpus;
use berth_api::{NodeMode, RateCard, UsageResource};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};

/// What the values of a column are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Values {
    /// Text that is neither empty nor only white space.
    Text,
    /// A number without a sign.
    Number,
    /// A moment in UTC, in whole seconds.
    Time,
    /// A code of ISO 4217.
    Currency,
    /// One of these.
    One(&'static [&'static str]),
    /// A unit: of a time, or of something and a time.
    Unit,
    /// Null, or a JSON object whose values are no objects and no arrays.
    Object,
    /// Null: no row is a correction.
    Null,
}

/// The columns that version 1.3 makes mandatory, and what they have.
const MANDATORY: [(&str, Values); 23] = [
    ("BilledCost", Values::Number),
    ("BillingAccountId", Values::Text),
    ("BillingAccountName", Values::Text),
    ("BillingCurrency", Values::Currency),
    ("BillingPeriodEnd", Values::Time),
    ("BillingPeriodStart", Values::Time),
    ("ChargeCategory", Values::One(&["Usage"])),
    ("ChargeClass", Values::Null),
    ("ChargeDescription", Values::Text),
    ("ChargePeriodEnd", Values::Time),
    ("ChargePeriodStart", Values::Time),
    ("ContractedCost", Values::Number),
    ("EffectiveCost", Values::Number),
    ("HostProviderName", Values::Text),
    ("InvoiceIssuerName", Values::Text),
    ("ListCost", Values::Number),
    ("PricingQuantity", Values::Number),
    ("PricingUnit", Values::Unit),
    // Deprecated in 1.3, and still mandatory.
    ("ProviderName", Values::Text),
    ("PublisherName", Values::Text),
    ("ServiceCategory", Values::One(&["Compute", "Storage"])),
    ("ServiceName", Values::Text),
    ("ServiceProviderName", Values::Text),
];

/// Recommended columns and those that depend on how is billed: with prices of units that are negotiated, and with kinds of accounts and subaccounts.
const OTHERS: [(&str, Values); 16] = [
    ("BillingAccountType", Values::Text),
    (
        "ChargeFrequency",
        Values::One(&["One-Time", "Recurring", "Usage-Based"]),
    ),
    ("ConsumedQuantity", Values::Number),
    ("ConsumedUnit", Values::Unit),
    ("ContractedUnitPrice", Values::Number),
    ("ListUnitPrice", Values::Number),
    (
        "PricingCategory",
        Values::One(&["Standard", "Dynamic", "Committed", "Other"]),
    ),
    (
        "ServiceSubcategory",
        Values::One(&["Containers", "Virtual Machines", "Other (Storage)"]),
    ),
    ("SkuId", Values::Text),
    ("SkuMeter", Values::Text),
    ("SkuPriceDetails", Values::Object),
    ("SkuPriceId", Values::Text),
    ("SubAccountId", Values::Text),
    ("SubAccountName", Values::Text),
    ("SubAccountType", Values::Text),
    ("Tags", Values::Object),
];

/// Keys of SkuPriceDetails that FOCUS defines and Berth uses. All others begin with `x_`.
const DEFINED_PROPERTIES: [&str; 1] = ["StorageClass"];

impl Values {
    fn has(self, value: &str) -> bool {
        match self {
            Self::Text => !value.trim().is_empty(),
            Self::Number => is_number(value),
            Self::Time => is_time(value),
            Self::Currency => value.len() == 3 && value.chars().all(|letter| letter.is_ascii_uppercase()),
            Self::One(allowed) => allowed.contains(&value),
            Self::Unit => is_unit(value),
            Self::Object => value.is_empty() || is_flat_object(value),
            Self::Null => value.is_empty(),
        }
    }
}

/// Digits, and one point between digits.
fn is_number(value: &str) -> bool {
    let (whole, decimals) = value.split_once('.').unwrap_or((value, "0"));
    [whole, decimals]
        .iter()
        .all(|digits| !digits.is_empty() && digits.chars().all(|digit| digit.is_ascii_digit()))
}

/// `YYYY-MM-DDTHH:mm:ssZ`.
fn is_time(value: &str) -> bool {
    let is_shaped = value.len() == 20 && value.as_bytes()[10] == b'T' && value.ends_with('Z');
    is_shaped && value.parse::<Timestamp>().is_ok()
}

/// The names of units are listed in FOCUS for sizes and times, and begin with a capital letter elsewhere. The last one alone is in the plural.
fn is_unit(value: &str) -> bool {
    let mut parts = value.split('-').rev();
    parts.next() == Some("Hours")
        && parts.all(|part| part == "GiB" || part.chars().next().is_some_and(char::is_uppercase))
}

fn is_flat_object(value: &str) -> bool {
    let parsed: Option<Map<String, Value>> = serde_json::from_str(value).ok();
    parsed.is_some_and(|object| object.values().all(|value| !value.is_object() && !value.is_array()))
}

/// Rows of all resources, by a price list and by one for an Organization, with and without what a line may have.
fn rows() -> Vec<FocusRow> {
    let card = |name: &str, targets: Value, price: &str| {
        let rates: Vec<Value> = UsageResource::ALL
            .iter()
            .map(|resource| json!({"resource": resource.name(), "price": price}))
            .collect();
        let spec = json!({"currency": "EUR", "targets": targets, "prices": [{"rates": rates}]});
        RateCard::new(name, serde_json::from_value(spec).unwrap())
    };
    let organization = json!([{"kind": "Organization", "name": "research"}]);
    let prices = PriceBook::new(&[
        card("list", json!([]), "2.5"),
        card("research", organization, "0.000000001"),
    ]);
    let shared = |resource: UsageResource| LineKey {
        pool_name: Some("cpu".into()),
        mode: Some(NodeMode::Shared),
        ..LineKey::new(resource)
    };
    let mut lines = vec![
        (gpus(), 0, 8 * 3_600),
        (gpus(), 29, 1),
        (storage(), 1, 12_345),
        (shared(UsageResource::Cpu), 2, 777),
        (shared(UsageResource::Memory), 2, 1024 * 3_600),
    ];
    // With nothing but the resource: lines of a record that has too many.
    lines.extend(
        UsageResource::ALL
            .iter()
            .map(|resource| (LineKey::new(*resource), 3, 86_400)),
    );
    let focus = focus(&[record_of(&lines)], &prices, &query(), "Example");
    assert_eq!(focus.rows.len(), lines.len());
    focus.rows
}

#[test]
fn columns_are_those_of_the_specification_in_their_order() {
    let defined: BTreeSet<&str> = MANDATORY.iter().chain(&OTHERS).map(|(column, _)| *column).collect();
    let (own, custom): (Vec<&str>, Vec<&str>) = COLUMNS.into_iter().partition(|column| !column.starts_with("x_"));
    assert_eq!(own, defined.into_iter().collect::<Vec<_>>());
    // Those that FOCUS does not define are at the end.
    assert!(custom.is_sorted() && COLUMNS.ends_with(&custom), "{custom:?}");
}

#[test]
fn values_are_those_that_the_specification_allows() {
    for row in rows() {
        let row = by_column(&row);
        for (column, values) in MANDATORY.iter().chain(&OTHERS) {
            assert!(values.has(row[column]), "{column}: {:?} is no {values:?}", row[column]);
        }
        let details = match row["SkuPriceDetails"] {
            "" => Map::new(),
            details => serde_json::from_str(details).unwrap(),
        };
        for key in details.keys() {
            assert!(
                key.starts_with("x_") || DEFINED_PROPERTIES.contains(&key.as_str()),
                "{key}"
            );
        }
        // Keys of tags that the provider defines have its prefix.
        let tags: Map<String, Value> = serde_json::from_str(row["Tags"]).unwrap();
        assert!(
            tags.keys().all(|key| key.starts_with(labels::RESERVED_PREFIX)),
            "{tags:?}"
        );
    }
}

#[test]
fn times_are_a_day_within_the_month() {
    for row in rows() {
        let row = by_column(&row);
        let time = |column: &str| row[column].parse::<Timestamp>().unwrap().as_second();
        let (start, end) = (time("ChargePeriodStart"), time("ChargePeriodEnd"));
        assert_eq!(end - start, 86_400);
        assert!(time("BillingPeriodStart") <= start && end <= time("BillingPeriodEnd"));
    }
}

/// A number as a whole number of parts, 19 decimals: those of a price and those of a quantity.
fn parts(number: &str, decimals: usize) -> i128 {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    format!("{whole}{fraction:0<decimals$}").parse().unwrap()
}

/// Berth has no commitments, prepayments or discounts but negotiated prices. A cost is the exact product, rounded to ten decimals: it differs from
/// the product of the numbers that are printed by no more than the rounding of the quantity and its own.
#[test]
fn costs_are_prices_multiplied_by_quantities() {
    let half = parts("0.00000000005", 19);
    let mut negotiated = 0;
    for row in rows() {
        let row = by_column(&row);
        assert_eq!(row["BilledCost"], row["EffectiveCost"]);
        assert_eq!(row["BilledCost"], row["ContractedCost"]);
        assert_eq!(row["PricingQuantity"], row["ConsumedQuantity"]);
        assert_eq!(row["PricingUnit"], row["ConsumedUnit"]);
        for (cost, price) in [("ContractedCost", "ContractedUnitPrice"), ("ListCost", "ListUnitPrice")] {
            let product = parts(row[price], 9) * parts(row["PricingQuantity"], 10);
            let most = half + half * parts(row[price], 9) / 1_000_000_000 + 1;
            let difference = (parts(row[cost], 19) - product).abs();
            assert!(difference <= most, "{cost} {}: {difference} > {most}", row[cost]);
        }
        if row["x_RateCard"] == "research" {
            negotiated += 1;
            assert_ne!(row["ContractedUnitPrice"], row["ListUnitPrice"]);
        } else {
            assert_eq!(row["ContractedUnitPrice"], row["ListUnitPrice"]);
            assert_eq!(row["ContractedCost"], row["ListCost"]);
        }
    }
    assert_eq!(negotiated, 2);
}

/// A service has one category, a subcategory one parent, and a price one meaning.
#[test]
fn names_mean_the_same_in_all_rows() {
    let rows = rows();
    for (name, meaning) in [
        ("ServiceName", "ServiceCategory"),
        ("ServiceName", "ServiceSubcategory"),
        ("ServiceSubcategory", "ServiceCategory"),
        ("SkuPriceId", "SkuId"),
        ("SkuPriceId", "SkuPriceDetails"),
        ("SkuId", "SkuMeter"),
        ("SkuPriceId", "PricingUnit"),
        ("SkuPriceId", "ListUnitPrice"),
        ("BillingAccountId", "BillingAccountName"),
        ("BillingAccountId", "BillingCurrency"),
        ("SubAccountId", "SubAccountName"),
    ] {
        let mut known: BTreeMap<&str, &str> = BTreeMap::new();
        for row in &rows {
            let row = by_column(row);
            let first = *known.entry(row[name]).or_insert(row[meaning]);
            assert_eq!(first, row[meaning], "{meaning} of {}", row[name]);
        }
    }
}
