//! RateCards and UsageRecords on a real API server: what their schemas reject.

use berth_api::{RateCard, UsageRecord};
use berth_metering::PriceBook;
use berth_tests::{
    files::example,
    objects::{apply, expect_rejected},
    test_cluster::TestCluster,
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::sync::Arc;

fn card(spec: &Value) -> Value {
    json!({"apiVersion": "berth.dev/v1alpha1", "kind": "RateCard", "metadata": {"name": "rejected"}, "spec": spec})
}

/// A card with one rate.
fn with_rate(rate: &Value) -> Value {
    json!({"currency": "EUR", "prices": [{"rates": [rate]}]})
}

/// A card with price lists from these days on; null: from the beginning.
fn with_days(days: &[Value]) -> Value {
    let rates = json!([{"resource": "GPU", "price": "1"}]);
    let list = |day: &Value| match day {
        Value::Null => json!({"rates": rates}),
        day => json!({"effectiveFrom": day, "rates": rates}),
    };
    let prices: Vec<Value> = days.iter().map(list).collect();
    json!({"currency": "EUR", "prices": prices})
}

pub(crate) async fn schemas_reject_invalid_prices(host: Arc<TestCluster>) {
    let rates = json!([{"resource": "GPU", "price": "1"}]);
    let target = json!({"kind": "Project", "name": "vision"});
    for (spec, expected) in [
        (
            json!({"currency": "Euro", "prices": [{"rates": rates}]}),
            "spec.currency",
        ),
        (json!({"currency": "EUR", "prices": []}), "spec.prices"),
        (json!({"currency": "EUR", "prices": [{"rates": []}]}), "rates"),
        (
            json!({"currency": "EUR", "targets": [target, target], "prices": [{"rates": rates}]}),
            "uplicate",
        ),
        (
            json!({"currency": "EUR", "targets": [{"kind": "TenantClass", "name": "a"}], "prices": [{"rates": rates}]}),
            "Unsupported value",
        ),
        (with_days(&[json!("2026-01-01"), json!("2026-01-01")]), "must be unique"),
        (with_days(&[Value::Null, Value::Null]), "must be unique"),
        (with_days(&[json!("2026-02-30")]), "effectiveFrom"),
        (with_days(&[json!("2026-04-31")]), "effectiveFrom"),
        (with_days(&[json!("2026-1-1")]), "effectiveFrom"),
        (
            with_rate(&json!({"resource": "Energy", "price": "1"})),
            "Unsupported value",
        ),
        (with_rate(&json!({"resource": "GPU", "price": "-1"})), "price"),
        (with_rate(&json!({"resource": "GPU", "price": "1,50"})), "price"),
        (with_rate(&json!({"resource": "GPU", "price": "1.0123456789"})), "price"),
        (with_rate(&json!({"resource": "GPU", "price": 1})), "price"),
        (
            with_rate(&json!({"resource": "Storage", "poolName": "h100", "price": "1"})),
            "have no poolName and no mode",
        ),
        (
            with_rate(&json!({"resource": "ControlPlane", "mode": "Private", "price": "1"})),
            "have no poolName and no mode",
        ),
        (
            with_rate(&json!({"resource": "CPU", "gpuProduct": "H100", "price": "1"})),
            "have a gpuProduct",
        ),
        (
            with_rate(&json!({"resource": "GPU", "storageClassName": "fast", "price": "1"})),
            "has a storageClassName",
        ),
    ] {
        expect_rejected(&host.client, "", &card(&spec), expected).await;
    }
}

pub(crate) async fn the_examples_of_prices_are_valid(host: Arc<TestCluster>) {
    let api: Api<RateCard> = Api::all(host.client.clone());
    let cards = example::<RateCard>("metering/rate-cards.yaml");
    assert!(!cards.is_empty());
    let prices = PriceBook::new(&cards);
    assert!(prices.errors().is_empty(), "{:?}", prices.errors());
    for card in &cards {
        let name = card.name_any();
        let applied = api
            .patch(&name, &PatchParams::apply("berth-tests"), &Patch::Apply(card))
            .await;
        let stored = applied.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(stored.spec, card.spec, "nothing was pruned or defaulted");
        api.delete(&name, &DeleteParams::default()).await.unwrap();
    }
}

pub(crate) async fn records_keep_their_tenant_and_month_and_never_go_back(host: Arc<TestCluster>) {
    const NAME: &str = "rejected-aaaaaaaaaaaaa-2999-01";
    // Of a month for which control deletes no record.
    let record = |month: &str, uid: &str, through: &str, amount: i64| {
        json!({
            "apiVersion": "berth.dev/v1alpha1",
            "kind": "UsageRecord",
            "metadata": {"name": NAME},
            "spec": {
                "month": month,
                "tenant": {"namespace": "a", "name": "b", "uid": uid, "slug": "rejected-aaaaaaaaaaaaa"},
                "meteredThrough": through,
                "inUse": false,
                "gpuHours": "1.0",
                "lines": [{"resource": "GPU", "daily": [amount]}],
            },
        })
    };
    let through = "2999-01-02T00:00:00Z";
    apply(&host.client, "", &record("2999-01", "1", through, 3_600))
        .await
        .unwrap();
    for (changed, expected) in [
        (
            record("2999-02", "1", through, 3_600),
            "month of a UsageRecord is immutable",
        ),
        (
            record("2999-01", "2", through, 3_600),
            "tenant of a UsageRecord is immutable",
        ),
        (
            record("2999-01", "1", "2999-01-01T23:59:59Z", 3_600),
            "must not be earlier",
        ),
        (record("2999-13", "1", through, 3_600), "spec.month"),
        (record("2999-01", "1", through, -1), "daily"),
    ] {
        expect_rejected(&host.client, "", &changed, expected).await;
    }
    // Amounts can be corrected.
    apply(&host.client, "", &record("2999-01", "1", through, 1_800))
        .await
        .unwrap();
    let api: Api<UsageRecord> = Api::all(host.client.clone());
    assert_eq!(api.get(NAME).await.unwrap().spec.lines[0].daily, [1_800]);
    api.delete(NAME, &DeleteParams::default()).await.unwrap();
}
