//! Which card, list and rate applies.

use super::*;
use crate::item::LineKey;
use crate::item::testing::gpus;
use berth_api::{RateCard, UsageResource};
use jiff::civil::{Date, date};
use serde_json::{Value, json};

fn card(name: &str, spec: Value) -> RateCard {
    RateCard::new(name, serde_json::from_value(spec).unwrap())
}

/// A card in EUR with one price list from the beginning.
fn simple(name: &str, targets: &Value, rates: &Value) -> RateCard {
    card(
        name,
        json!({"currency": "EUR", "targets": targets, "prices": [{"rates": rates}]}),
    )
}

fn day() -> Date {
    date(2026, 11, 5)
}

/// What an hour costs: currency, card, price and cost.
fn hour(book: &PriceBook, key: &LineKey, day: Date) -> Vec<String> {
    let units = match key.resource {
        UsageResource::Cpu => 1000,
        UsageResource::Memory | UsageResource::Storage => 1024,
        _ => 1,
    };
    let priced = book.price(key, day, 3600 * units);
    let describe = |priced: &Priced<'_>| {
        format!(
            "{} {} {} {}",
            priced.currency,
            priced.card,
            priced.price,
            priced.cost.format(2)
        )
    };
    priced.iter().map(describe).collect()
}

fn errors(cards: &[RateCard]) -> Vec<String> {
    let book = PriceBook::new(cards);
    book.errors().iter().map(ToString::to_string).collect()
}

#[test]
fn the_most_specific_rate_applies() {
    let rates = json!([
        {"resource": "GPU", "price": "1"},
        {"resource": "GPU", "mode": "Dynamic", "price": "2"},
        {"resource": "GPU", "gpuProduct": "H100", "price": "3"},
        {"resource": "GPU", "poolName": "h100", "price": "4"},
        {"resource": "GPU", "gpuProduct": "H100", "mode": "Dynamic", "price": "5"},
        {"resource": "GPU", "poolName": "h100", "mode": "Dynamic", "price": "6"},
        {"resource": "GPU", "poolName": "h100", "gpuProduct": "H100", "mode": "Dynamic", "price": "8"},
        {"resource": "GPU", "poolName": "other", "price": "100"},
        {"resource": "GPU", "mode": "Private", "price": "100"},
        {"resource": "Node", "poolName": "h100", "gpuProduct": "H100", "mode": "Dynamic", "price": "100"},
    ]);
    // Without the most specific one, the next one applies, in whatever order they are written.
    for (left, price) in [(7, "8"), (6, "6"), (5, "5"), (4, "4"), (3, "3"), (2, "2"), (1, "1")] {
        let all = rates.as_array().unwrap();
        let mut some: Vec<Value> = all[..left].to_vec();
        some.extend_from_slice(&all[7..]);
        for _ in 0..2 {
            let book = PriceBook::new(&[simple("list", &json!([]), &json!(some))]);
            assert_eq!(hour(&book, &gpus(), day()), [format!("EUR list {price} {price}.00")]);
            some.reverse();
        }
    }
}

#[test]
fn a_rate_for_nothing_that_there_is_prices_nothing() {
    let rates = json!([{"resource": "GPU", "poolName": "h100", "price": "1"}]);
    let book = PriceBook::new(&[simple("list", &json!([]), &rates)]);
    assert_eq!(hour(&book, &LineKey::new(UsageResource::Gpu), day()), [""; 0]);
    assert_eq!(hour(&book, &LineKey::new(UsageResource::Node), day()), [""; 0]);
    assert!(!book.is_empty());
}

#[test]
fn storage_is_priced_by_its_class() {
    let rates = json!([
        {"resource": "Storage", "price": "0.1"},
        {"resource": "Storage", "storageClassName": "fast", "price": "0.5"},
    ]);
    let book = PriceBook::new(&[simple("list", &json!([]), &rates)]);
    let of_class = |class: &str| LineKey {
        storage_class_name: Some(class.into()),
        ..LineKey::new(UsageResource::Storage)
    };
    assert_eq!(hour(&book, &of_class("fast"), day()), ["EUR list 0.5 0.50"]);
    assert_eq!(hour(&book, &of_class("slow"), day()), ["EUR list 0.1 0.10"]);
}

#[test]
fn cards_of_projects_come_before_those_of_organizations_and_of_all() {
    let rate = |price: &str| json!([{"resource": "GPU", "price": price}]);
    let project = json!([{"kind": "Project", "name": "vision"}, {"kind": "Project", "name": "speech"}]);
    let organization = json!([{"kind": "Organization", "name": "research"}]);
    let cards = [
        simple("all", &json!([]), &rate("3")),
        simple("organization", &organization, &rate("2")),
        simple("project", &project, &rate("1")),
    ];
    let book = PriceBook::new(&cards);
    let mut key = gpus();
    assert_eq!(hour(&book, &key, day()), ["EUR project 1 1.00"]);
    key.project_name = Some("other".into());
    assert_eq!(hour(&book, &key, day()), ["EUR organization 2 2.00"]);
    // A Project of the name of an Organization is not that.
    key.organization_name = Some("vision".into());
    assert_eq!(hour(&book, &key, day()), ["EUR all 3 3.00"]);
    key.organization_name = None;
    key.project_name = None;
    assert_eq!(hour(&book, &key, day()), ["EUR all 3 3.00"]);
}

#[test]
fn what_a_card_has_no_rate_for_is_priced_by_the_next_one() {
    let project = json!([{"kind": "Project", "name": "vision"}]);
    let cards = [
        simple("project", &project, &json!([{"resource": "GPU", "price": "0"}])),
        simple(
            "all",
            &json!([]),
            &json!([{"resource": "GPU", "price": "3"}, {"resource": "Node", "price": "1"}]),
        ),
    ];
    let book = PriceBook::new(&cards);
    assert_eq!(hour(&book, &gpus(), day()), ["EUR project 0 0.00"]);
    let node = LineKey {
        resource: UsageResource::Node,
        ..gpus()
    };
    assert_eq!(hour(&book, &node, day()), ["EUR all 1 1.00"]);
    let pods = LineKey {
        resource: UsageResource::Cpu,
        ..gpus()
    };
    assert_eq!(hour(&book, &pods, day()), [""; 0]);
}

#[test]
fn the_list_price_is_that_of_the_card_without_targets() {
    let project = json!([{"kind": "Project", "name": "vision"}]);
    let rate = |resource: &str, price: &str| json!({"resource": resource, "price": price});
    let cards = [
        simple("all", &json!([]), &json!([rate("GPU", "3")])),
        simple("project", &project, &json!([rate("GPU", "2"), rate("Node", "1")])),
    ];
    let book = PriceBook::new(&cards);
    let prices = |key: &LineKey| {
        let priced = book.price(key, day(), 7200)[0];
        [
            priced.price.to_string(),
            priced.cost.format(0),
            priced.list_price.to_string(),
            priced.list_cost.format(0),
        ]
    };
    assert_eq!(prices(&gpus()), ["2", "4", "3", "6"]);
    let node = LineKey {
        resource: UsageResource::Node,
        ..gpus()
    };
    assert_eq!(prices(&node), ["1", "2", "1", "2"], "there is no other price");
    let of_others = LineKey {
        project_name: None,
        ..gpus()
    };
    assert_eq!(prices(&of_others), ["3", "6", "3", "6"]);
}

#[test]
fn the_list_that_is_effective_on_the_day_applies() {
    let list = |from: Value, price: &str| match from {
        Value::Null => json!({"rates": [{"resource": "GPU", "price": price}]}),
        from => json!({"effectiveFrom": from, "rates": [{"resource": "GPU", "price": price}]}),
    };
    let prices = json!([
        list(json!("2026-11-05"), "3"),
        list(Value::Null, "1"),
        list(json!("2026-01-01"), "2"),
        {"effectiveFrom": "2026-12-01", "rates": [{"resource": "Node", "price": "9"}]},
    ]);
    let book = PriceBook::new(&[card("list", json!({"currency": "EUR", "prices": prices}))]);
    for (day, price) in [
        (date(1970, 1, 1), "1"),
        (date(2025, 12, 31), "1"),
        (date(2026, 1, 1), "2"),
        (date(2026, 11, 4), "2"),
        (date(2026, 11, 5), "3"),
        (date(2026, 11, 30), "3"),
    ] {
        let expected = format!("EUR list {price} {price}.00");
        assert_eq!(hour(&book, &gpus(), day), [expected], "{day}");
    }
    // A later list replaces the whole of the earlier ones.
    assert_eq!(hour(&book, &gpus(), date(2026, 12, 1)), [""; 0]);
    // Before the first list there are no prices.
    let first = json!([{"effectiveFrom": "2026-11-05", "rates": [{"resource": "GPU", "price": "1"}]}]);
    let book = PriceBook::new(&[card("list", json!({"currency": "EUR", "prices": first}))]);
    assert_eq!(hour(&book, &gpus(), date(2026, 11, 4)), [""; 0]);
}

#[test]
fn each_currency_has_its_own_cards() {
    let in_currency = |name: &str, currency: &str, price: &str| {
        let rates = json!([{"resource": "GPU", "price": price}]);
        card(name, json!({"currency": currency, "prices": [{"rates": rates}]}))
    };
    let cards = [in_currency("dollars", "USD", "2"), in_currency("euros", "EUR", "1.50")];
    let book = PriceBook::new(&cards);
    assert_eq!(book.currencies().collect::<Vec<_>>(), ["EUR", "USD"]);
    assert_eq!(
        hour(&book, &gpus(), day()),
        ["EUR euros 1.5 1.50", "USD dollars 2 2.00"]
    );
}

#[test]
fn there_need_not_be_any_card() {
    let book = PriceBook::new(&[]);
    assert!(book.is_empty());
    assert_eq!(hour(&book, &gpus(), day()), [""; 0]);
}

#[test]
fn two_cards_for_the_same_are_an_error_that_names_both() {
    let rates = || json!([{"resource": "GPU", "price": "1"}]);
    let vision = || json!([{"kind": "Project", "name": "vision"}]);
    let both = json!([{"kind": "Organization", "name": "research"}, {"kind": "Project", "name": "vision"}]);
    assert_eq!(
        errors(&[simple("b", &vision(), &rates()), simple("a", &both, &rates())]),
        [
            "RateCards a and b both have prices in EUR for Project vision; put the prices into one of them, or change its targets"
        ]
    );
    let all = [
        simple("z", &json!([]), &rates()),
        simple("y", &json!([]), &rates()),
        simple("x", &json!([]), &rates()),
    ];
    assert_eq!(
        errors(&all),
        [
            "RateCards x and y both have prices in EUR for all usage; put the prices into one of them, or change its targets",
            "RateCards x and z both have prices in EUR for all usage; put the prices into one of them, or change its targets",
        ]
    );
    // In another currency, and at another level, they are not for the same.
    let dollars = card("d", json!({"currency": "USD", "prices": [{"rates": rates()}]}));
    let fine = [
        simple("x", &json!([]), &rates()),
        simple("y", &vision(), &rates()),
        dollars,
    ];
    assert!(PriceBook::new(&fine).errors().is_empty());
}

#[test]
fn what_two_cards_are_for_has_no_price_and_everything_else_keeps_its_own() {
    let vision = json!([{"kind": "Project", "name": "vision"}]);
    let rates = |price: &str| json!([{"resource": "GPU", "price": price}]);
    let dollars = card("d", json!({"currency": "USD", "prices": [{"rates": rates("9")}]}));
    let cards = [
        simple("a", &vision, &rates("1")),
        simple("b", &vision, &json!([{"resource": "Node", "price": "1"}])),
        simple("list", &json!([]), &rates("3")),
        dollars,
    ];
    let book = PriceBook::new(&cards);
    // Not the price for all either, also of what one of the two has no rate for.
    assert_eq!(hour(&book, &gpus(), day()), ["USD d 9 9.00"]);
    assert!(book.is_unclear(&gpus(), day()));
    let of_others = LineKey {
        project_name: Some("speech".into()),
        ..gpus()
    };
    assert_eq!(hour(&book, &of_others, day()), ["EUR list 3 3.00", "USD d 9 9.00"]);
    assert!(!book.is_unclear(&of_others, day()));
    // Two cards for all: what the card of the Project has a rate for keeps its price, and the list price is not known.
    let cards = [
        simple("a", &vision, &rates("1")),
        simple("x", &json!([]), &rates("3")),
        simple("y", &json!([]), &rates("4")),
    ];
    let book = PriceBook::new(&cards);
    assert_eq!(hour(&book, &gpus(), day()), ["EUR a 1 1.00"]);
    assert_eq!(book.price(&gpus(), day(), 3600)[0].list_price.to_string(), "1");
    assert!(!book.is_unclear(&gpus(), day()));
    assert_eq!(hour(&book, &of_others, day()), [""; 0]);
    assert!(book.is_unclear(&of_others, day()));
    assert!(
        book.is_unclear(&LineKey::new(UsageResource::Node), day()),
        "one of them may have a rate"
    );
}

#[test]
fn what_is_wrong_in_a_card_leaves_the_rest_of_it() {
    let gpu = |price: &str| json!({"resource": "GPU", "price": price});
    let of_pool = |price: &str| json!({"resource": "GPU", "poolName": "h100", "price": price});
    let book_of = |prices: Value| PriceBook::new(&[card("list", json!({"currency": "EUR", "prices": prices}))]);
    let elsewhere = LineKey {
        pool_name: Some("l40s".into()),
        ..gpus()
    };
    // A rate that is there twice, or has no price, prices nothing. A less specific one does not apply instead.
    for rates in [
        json!([gpu("1"), of_pool("2"), of_pool("3")]),
        json!([gpu("1"), of_pool("1e3")]),
    ] {
        let book = book_of(json!([{ "rates": rates }]));
        assert_eq!(book.errors().len(), 1);
        assert_eq!(hour(&book, &gpus(), day()), [""; 0], "{rates}");
        assert!(book.is_unclear(&gpus(), day()));
        assert_eq!(hour(&book, &elsewhere, day()), ["EUR list 1 1.00"], "{rates}");
        assert!(!book.is_unclear(&elsewhere, day()));
    }
    // Two lists of a day are not effective, and others are on other days.
    let list = |from: &str, price: &str| json!({"effectiveFrom": from, "rates": [gpu(price)]});
    let book = book_of(json!([
        list("2026-11-05", "2"),
        list("2026-01-01", "1"),
        list("2026-11-05", "3"),
        list("2026-12-01", "4"),
    ]));
    for (day, price) in [
        (date(2026, 11, 4), Some("1")),
        (date(2026, 11, 5), None),
        (date(2026, 11, 30), None),
        (date(2026, 12, 1), Some("4")),
    ] {
        let expected: Vec<String> = price
            .iter()
            .map(|price| format!("EUR list {price} {price}.00"))
            .collect();
        assert_eq!(hour(&book, &gpus(), day), expected, "{day}");
        assert_eq!(book.is_unclear(&gpus(), day), price.is_none(), "{day}");
    }
    // A list whose day nobody knows may be effective on each.
    let book = book_of(json!([list("2026-01-01", "1"), list("2026-02-30", "2")]));
    assert_eq!(hour(&book, &gpus(), day()), [""; 0]);
    assert!(book.is_unclear(&gpus(), date(2020, 1, 1)));
}

#[test]
fn what_the_schema_cannot_check_is_an_error() {
    let prices = json!([
        {"effectiveFrom": "2026-01-01", "rates": [
            {"resource": "GPU", "poolName": "h100", "mode": "Dynamic", "price": "1"},
            {"resource": "GPU", "mode": "Dynamic", "poolName": "h100", "price": "2"},
            {"resource": "Storage", "storageClassName": "fast", "price": "1"},
            {"resource": "Storage", "storageClassName": "fast", "price": "1"},
            {"resource": "CPU", "price": "1e3"},
        ]},
        {"effectiveFrom": "2026-01-01", "rates": [{"resource": "GPU", "price": "1"}]},
        {"effectiveFrom": "2027-02-29", "rates": [{"resource": "GPU", "price": "1"}]},
        {"rates": [{"resource": "GPU", "price": "1"}, {"resource": "GPU", "gpuProduct": "H100", "price": "1"}]},
        {"rates": [{"resource": "GPU", "price": "1"}, {"resource": "GPU", "price": "1"}]},
    ]);
    assert_eq!(
        errors(&[card("list", json!({"currency": "EUR", "prices": prices}))]),
        [
            "RateCard list: spec.prices: the price list from 2026-01-01 has two rates for GPU, poolName h100, mode Dynamic; remove one of them",
            "RateCard list: spec.prices: the price list from 2026-01-01 has two rates for Storage, storageClassName fast; remove one of them",
            "RateCard list: spec.prices: \"1e3\" is not a price; write it as in 2.10",
            "RateCard list: spec.prices: 2026-01-01 is the effectiveFrom of two price lists; remove one of them",
            "RateCard list: spec.prices: effectiveFrom \"2027-02-29\" is not a day; write it as in 2026-01-31",
            "RateCard list: spec.prices: the price list from the beginning has two rates for GPU; remove one of them",
            "RateCard list: spec.prices: the beginning is the effectiveFrom of two price lists; remove one of them",
        ]
    );
}
