//! What a report is made of: the UsageRecords and RateCards of the host.

use std::collections::BTreeSet;
use std::fmt::Debug;

use berth_api::{RateCard, UsageRecord};
use berth_metering::PriceBook;
use kube::api::{Api, ListParams};
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use crate::error::{Error, describe, failed, is_forbidden};

/// Objects of one answer. A record has a number for each day and line.
const PAGE: u32 = 100;

/// The UsageRecords, or why the user may not read them.
pub(super) type Records = Result<Vec<UsageRecord>, String>;
/// The RateCards, or why they cannot be read.
pub(super) type Cards = Result<Vec<RateCard>, String>;

/// The UsageRecords that a label selector selects. Those that the user may not list are no error: a team has the sums in the status of its tenants.
///
/// # Errors
/// The host does not have their kind, or it does not answer.
pub(super) async fn list_records(client: &Client, selector: &str) -> Result<Records, Error> {
    match list_pages(client, selector).await {
        Ok(records) => Ok(Ok(records)),
        Err(error) if is_forbidden(&error) => Ok(Err(describe(&error))),
        Err(error) => Err(describe_failure(error)),
    }
}

/// The records of tenants.
pub(super) fn of_tenants(mut records: Vec<UsageRecord>) -> Vec<UsageRecord> {
    records.retain(|record| !record.spec.tenant.is_pool());
    records
}

/// The RateCards. Those that the user may not list are no error: usage is shown without costs then.
///
/// # Errors
/// The host does not answer.
pub(super) async fn list_cards(client: &Client) -> Result<Cards, Error> {
    match list_pages(client, "").await {
        Ok(cards) => Ok(Ok(cards)),
        Err(error) if is_forbidden(&error) => Ok(Err(describe(&error))),
        Err(error) => Err(failed("list the RateCards")(error)),
    }
}

/// All objects of a cluster-scoped kind that a label selector selects, page by page.
async fn list_pages<K>(client: &Client, selector: &str) -> Result<Vec<K>, kube::Error>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let mut parameters = ListParams::default().labels(selector).limit(PAGE);
    let mut objects = Vec::new();
    loop {
        let page = api.list(&parameters).await?;
        let next = page.metadata.continue_.filter(|token| !token.is_empty());
        objects.extend(page.items);
        let Some(token) = next else { return Ok(objects) };
        parameters = parameters.continue_token(&token);
    }
}

fn describe_failure(error: kube::Error) -> Error {
    if matches!(&error, kube::Error::Api(status) if status.code == 404) {
        return Error::Failed(
            "the host cluster does not have the kind UsageRecord: its Berth is older than this program, or Berth is not installed there; \
             `berth doctor` shows which"
                .into(),
        );
    }
    failed("list the UsageRecords")(error)
}

/// The prices of RateCards, in all currencies or in one.
///
/// # Errors
/// There are no prices in this currency.
pub(super) fn read_prices(cards: &[RateCard], currency: Option<&str>) -> Result<PriceBook, Error> {
    let is_asked_for = |card: &&RateCard| currency.is_none_or(|currency| card.spec.currency == currency);
    // What is wrong with cards of other currencies does not matter.
    let prices = PriceBook::new(cards.iter().filter(is_asked_for));
    match currency {
        Some(currency) if prices.is_empty() => Err(Error::NotFound(describe_no_prices(cards, currency))),
        _ => Ok(prices),
    }
}

fn describe_no_prices(cards: &[RateCard], currency: &str) -> String {
    let currencies: BTreeSet<&str> = cards.iter().map(|card| card.spec.currency.as_str()).collect();
    if currencies.is_empty() {
        return format!(
            "there are no prices in {currency}: there is no RateCard; docs/guides/metering.md describes them"
        );
    }
    let others: Vec<&str> = currencies.into_iter().collect();
    format!(
        "no RateCard has prices in {currency}; there are prices in {}",
        others.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{self, refusal};
    use serde_json::{Value, json};

    /// A client whose API server answers each request with what `answer` makes of its path and query.
    fn client(answer: impl Fn(&str) -> (u16, Value) + Send + 'static) -> Client {
        testing::client(move |request| {
            let uri = request.uri().path_and_query();
            answer(&uri.map(ToString::to_string).unwrap_or_default())
        })
    }

    fn record(name: &str) -> Value {
        json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "UsageRecord", "metadata": {"name": name},
            "spec": {"month": "2026-11", "tenant": {"namespace": "team", "name": name, "uid": name, "slug": name},
                "meteredThrough": "2026-11-29T12:00:00Z", "gpuHours": "0.0"},
        })
    }

    fn card(name: &str, currency: &str) -> RateCard {
        serde_json::from_value(json!({
            "apiVersion": "berth.dev/v1alpha1", "kind": "RateCard", "metadata": {"name": name},
            "spec": {"currency": currency, "prices": [{"rates": [{"resource": "GPU", "price": "2.10"}]}]},
        }))
        .unwrap()
    }

    #[tokio::test]
    async fn records_are_read_page_by_page() {
        let client = client(|uri| {
            assert!(
                uri.contains("labelSelector=berth.dev%2Fusage-month+in+%282026-11%29"),
                "{uri}"
            );
            let (name, next) = if uri.contains("continue=second") {
                ("b", "")
            } else {
                ("a", "second")
            };
            (
                200,
                json!({"kind": "UsageRecordList", "apiVersion": "berth.dev/v1alpha1", "metadata": {"continue": next}, "items": [record(name)]}),
            )
        });
        let records = list_records(&client, "berth.dev/usage-month in (2026-11)")
            .await
            .unwrap()
            .unwrap();
        let names: Vec<&str> = records.iter().map(|record| record.spec.tenant.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }

    #[tokio::test]
    async fn records_that_the_user_may_not_read_are_no_error_and_an_older_berth_is_named() {
        let list = async |code, message: &'static str| {
            let client = client(move |_| refusal(code, message));
            list_records(&client, "").await
        };
        let forbidden = list(403, "usagerecords.berth.dev is forbidden").await.unwrap();
        assert_eq!(forbidden, Err("usagerecords.berth.dev is forbidden".to_owned()));
        let error = async |code, message| list(code, message).await.unwrap_err().to_string();
        assert!(
            error(404, "page not found")
                .await
                .starts_with("the host cluster does not have the kind UsageRecord")
        );
        assert_eq!(error(500, "no").await, "cannot list the UsageRecords: no");
    }

    #[tokio::test]
    async fn rate_cards_that_the_user_may_not_read_are_no_error() {
        let cards = list_cards(&client(|_| refusal(403, "ratecards.berth.dev is forbidden"))).await;
        assert_eq!(cards.unwrap(), Err("ratecards.berth.dev is forbidden".to_owned()));
        let cards = list_cards(&client(|_| refusal(503, "later"))).await;
        assert!(matches!(cards, Err(Error::Unanswered(_))));
    }

    #[test]
    fn two_rate_cards_for_the_same_are_named() {
        let cards = [card("a", "EUR"), card("b", "EUR"), card("c", "USD")];
        for currency in [None, Some("EUR")] {
            let prices = read_prices(&cards, currency).unwrap();
            let [error] = prices.errors() else {
                panic!("{:?}", prices.errors())
            };
            let text = error.to_string();
            assert!(text.starts_with("RateCards a and b both have prices in EUR"), "{text}");
        }
        let prices = read_prices(&cards, Some("USD")).unwrap();
        assert_eq!(prices.currencies().collect::<Vec<_>>(), ["USD"]);
        assert!(
            prices.errors().is_empty(),
            "what is wrong in other currencies does not matter"
        );
    }

    #[test]
    fn a_currency_without_prices_is_named_with_those_that_there_are() {
        let cards = [card("a", "USD"), card("b", "EUR")];
        let error = |cards: &[RateCard]| match read_prices(cards, Some("GBP")) {
            Err(Error::NotFound(message)) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            error(&cards),
            "no RateCard has prices in GBP; there are prices in EUR, USD"
        );
        assert!(error(&[]).starts_with("there are no prices in GBP: there is no RateCard"));
        assert!(read_prices(&[], None).unwrap().is_empty());
    }
}
