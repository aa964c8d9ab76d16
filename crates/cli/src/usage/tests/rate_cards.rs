//! Reports with RateCards that are wrong.

use super::*;

#[test]
fn a_report_has_the_costs_that_are_clear_and_says_what_to_correct() {
    let named = |name: &str, targets: Value| {
        let mut card = card();
        card.metadata.name = Some(name.into());
        card.spec.targets = serde_json::from_value(targets).unwrap();
        card
    };
    let vision = json!([{"kind": "Project", "name": "vision"}]);
    let cards = [named("a", vision.clone()), named("b", vision), card()];
    let usage = usage_of(&records(), &cards, "berth usage", "2026-11-03T12:10:00Z");
    assert!(usage.has_unclear_costs());
    let expected = "\
TENANT              GPU-HOURS  NODE-HOURS  CORE-HOURS  EUR
team-vision/vision  288.0      36.0        0.0         -
team-speech/speech  4.0        0.0         1.5         3.65
total               292.0      36.0        1.5         3.65

No RateCard has a price for 5.0 GiB-hours (Storage). A rate with the price 0 says that something is free.
What 288.0 GPU-hours (GPU), 36.0 node-hours (Node), 48.0 hours (ControlPlane) cost is not in the report, in EUR: it is not clear until RateCards are corrected.
RateCards a and b both have prices in EUR for Project vision; put the prices into one of them, or change its targets.";
    let text = describe(&usage);
    assert!(text.ends_with(expected), "{text}");
    let value = serde_json::to_value(&usage).unwrap();
    assert_eq!(value["rows"][1]["unclearHours"]["GPU"], "288.000000");
    assert_eq!(value["rows"][1]["costs"], json!({}));
    assert_eq!(value["rows"][1]["unclearCurrencies"], json!(["EUR"]));
    // Usage that they are not for is complete, and the error is shown all the same.
    let speech = usage_of(&records()[1..], &cards, "berth usage", "2026-11-03T12:10:00Z");
    assert!(!speech.has_unclear_costs());
    assert!(
        speech.notes.last().unwrap().starts_with("RateCards a and b"),
        "{:?}",
        speech.notes
    );
}

#[test]
fn of_many_errors_in_rate_cards_the_first_are_shown() {
    let targets: Vec<Value> = (10..30)
        .map(|number| json!({"kind": "Project", "name": format!("p{number}")}))
        .collect();
    let cards = ["a", "b"].map(|name| {
        let mut card = card();
        card.metadata.name = Some(name.into());
        card.spec.targets = serde_json::from_value(json!(targets)).unwrap();
        card
    });
    let notes = usage_of(&[], &cards, "berth usage", "2026-11-03T12:10:00Z").notes;
    let errors = notes
        .iter()
        .filter(|note| note.starts_with("RateCards a and b"))
        .count();
    assert_eq!(errors, 10);
    assert_eq!(notes.last().unwrap(), "RateCards have 10 more such errors.");
}

#[test]
fn spreadsheets_get_no_sum_of_which_a_part_is_not_clear() {
    let mut wrong = card();
    let rates = json!([
        {"resource": "GPU", "poolName": "h100", "price": "2.10"},
        {"resource": "GPU", "poolName": "h100", "price": "2.20"},
        {"resource": "GPU", "price": "0.90"},
        {"resource": "ControlPlane", "price": "0.10"},
    ]);
    wrong.spec.prices[0].rates = serde_json::from_value(rates).unwrap();
    let mut dollars = card();
    dollars.metadata.name = Some("dollars".into());
    dollars.spec.currency = "USD".into();
    let usage = usage_of(&records(), &[wrong, dollars], "berth usage", "2026-11-03T12:10:00Z");
    let note =
        "What 288.0 GPU-hours (GPU) cost is not in the report, in EUR: it is not clear until RateCards are corrected.";
    assert!(usage.notes.iter().any(|known| known == note), "{:?}", usage.notes);
    // Below the table is what it lacks.
    assert!(describe(&usage).contains("team-vision/vision  288.0      36.0        0.0         4.80  609.60"));
    let table = write_csv(&usage).unwrap();
    let costs: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').skip(7).collect()).collect();
    let expected = [
        ["cost_EUR", "cost_USD"],
        ["3.6000000000", "3.6530000000"],
        ["", "609.6000000000"],
    ];
    assert_eq!(costs, expected);
}
