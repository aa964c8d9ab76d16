//! All RateCards together: which of them prices what.

use super::{
    error::PriceError,
    list::{Answer, PriceLists},
    money::{Cost, Price},
};
use crate::item::LineKey;
use berth_api::{RateCard, RateCardTarget, RateCardTargetKind};
use jiff::civil::Date;
use std::collections::{BTreeMap, BTreeSet};

/// The prices of all RateCards. What is wrong with some cards leaves the others as they are: what they are for has no price in their currency, also not by the
/// card that would come next.
#[derive(Clone, Debug, Default)]
pub struct PriceBook {
    /// The cards of each currency.
    currencies: BTreeMap<String, Cards>,
    errors: Vec<PriceError>,
}

/// The cards of one currency.
#[derive(Clone, Debug, Default)]
struct Cards {
    all: Vec<Card>,
    /// Position in `all` of the one that names a target; `None` is the target of a card without any.
    by_target: BTreeMap<Option<RateCardTarget>, usize>,
    /// The targets that several cards name.
    ambiguous: BTreeSet<Option<RateCardTarget>>,
}

#[derive(Clone, Debug)]
struct Card {
    name: String,
    lists: PriceLists,
}

/// What something costs in one currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priced<'a> {
    /// The currency.
    pub currency: &'a str,
    /// Name of the RateCard with the price.
    pub card: &'a str,
    /// The price.
    pub price: Price,
    /// The cost.
    pub cost: Cost,
    /// The price for everybody, of the card without targets; `price` if that has no rate for it.
    pub list_price: Price,
    /// The cost at that price.
    pub list_cost: Cost,
}

impl PriceBook {
    /// The prices of these RateCards, whatever their order.
    pub fn new<'a>(cards: impl IntoIterator<Item = &'a RateCard>) -> Self {
        let mut cards: Vec<(&str, &RateCard)> = cards
            .into_iter()
            .map(|card| (card.metadata.name.as_deref().unwrap_or_default(), card))
            .collect();
        cards.sort_by_key(|(name, _)| *name);
        let mut book = Self::default();
        for (name, card) in cards {
            book.add(name, card);
        }
        book
    }

    fn add(&mut self, name: &str, card: &RateCard) {
        let lists = PriceLists::read(name, card, &mut self.errors);
        let currency = &card.spec.currency;
        let of_currency = self.currencies.entry(currency.clone()).or_default();
        let position = of_currency.all.len();
        of_currency.all.push(Card {
            name: name.into(),
            lists,
        });
        let targets = &card.spec.targets;
        let for_all = targets.is_empty().then_some(None);
        for target in targets.iter().cloned().map(Some).chain(for_all) {
            let other = *of_currency.by_target.entry(target.clone()).or_insert(position);
            if other != position {
                self.errors.push(PriceError::SameTarget {
                    first: of_currency.all[other].name.clone(),
                    second: name.into(),
                    currency: currency.clone(),
                    target: describe_target(target.as_ref()),
                });
                of_currency.ambiguous.insert(target);
            }
        }
    }

    /// What is wrong with the cards, in the order of their names: what they are for has no price.
    pub fn errors(&self) -> &[PriceError] {
        &self.errors
    }

    /// The currencies of the prices, in the order of the alphabet.
    pub fn currencies(&self) -> impl Iterator<Item = &str> + '_ {
        self.currencies.keys().map(String::as_str)
    }

    /// Whether there are no prices at all.
    pub fn is_empty(&self) -> bool {
        self.currencies.is_empty()
    }

    /// What an amount ([`UsageLine::daily`](berth_api::UsageLine::daily)) of a day costs: in each currency that has a rate for it, by the card
    /// that names its Project, or else its Organization, or else the one for all. Where cards are wrong there is no price.
    pub fn price(&self, key: &LineKey, day: Date, amount: i64) -> Vec<Priced<'_>> {
        let priced = self.currencies.iter().filter_map(|(currency, cards)| {
            let (card, Answer::Price(price)) = cards.price(key, day)? else {
                return None;
            };
            let list_price = cards.list_price(key, day).unwrap_or(price);
            Some(Priced {
                currency,
                card,
                price,
                cost: price.cost(key.resource, amount),
                list_price,
                list_cost: list_price.cost(key.resource, amount),
            })
        });
        priced.collect()
    }

    /// The currencies in which what has this key has no price on a day because cards are wrong ([`PriceBook::errors`]).
    pub fn unclear_currencies(&self, key: &LineKey, day: Date) -> Vec<&str> {
        // Reports ask for each line and day, and most cards are right.
        if self.errors.is_empty() {
            return Vec::new();
        }
        let unclear = self
            .currencies
            .iter()
            .filter(|(_, cards)| matches!(cards.price(key, day), Some((_, Answer::Unclear))));
        unclear.map(|(currency, _)| currency.as_str()).collect()
    }

    /// Whether there is such a currency.
    pub fn is_unclear(&self, key: &LineKey, day: Date) -> bool {
        !self.unclear_currencies(key, day).is_empty()
    }
}

impl Cards {
    /// The price of what has this key, on a day, and the name of its card. None if no card has a rate for it.
    fn price(&self, key: &LineKey, day: Date) -> Option<(&str, Answer)> {
        let target = |kind, name: Option<&String>| {
            let name = name?.clone();
            Some(Some(RateCardTarget { kind, name }))
        };
        let targets = [
            target(RateCardTargetKind::Project, key.project_name.as_ref()),
            target(RateCardTargetKind::Organization, key.organization_name.as_ref()),
            Some(None),
        ];
        targets.into_iter().flatten().find_map(|target| {
            let card = self.all.get(*self.by_target.get(&target)?)?;
            if self.ambiguous.contains(&target) {
                return Some((card.name.as_str(), Answer::Unclear));
            }
            let answer = card.lists.price(key, day)?;
            Some((card.name.as_str(), answer))
        })
    }

    /// The price of what has this key, on a day, by the card without targets.
    fn list_price(&self, key: &LineKey, day: Date) -> Option<Price> {
        let for_all: Option<RateCardTarget> = None;
        let card = self.all.get(*self.by_target.get(&for_all)?)?;
        match card.lists.price(key, day)? {
            Answer::Price(price) if !self.ambiguous.contains(&for_all) => Some(price),
            Answer::Price(_) | Answer::Unclear => None,
        }
    }
}

fn describe_target(target: Option<&RateCardTarget>) -> String {
    target.map_or_else(
        || "all usage".into(),
        |target| format!("{} {}", target.kind.name(), target.name),
    )
}
