//! The price lists of one card, and which rate of them applies.

use super::{error::PriceError, money::Price};
use crate::item::LineKey;
use berth_api::{NodeMode, PriceList, Rate, RateCard, UsageResource};
use jiff::civil::Date;
use std::{
    cmp::Reverse,
    collections::{BTreeMap, btree_map::Entry},
    fmt,
};

/// What a card says about the price of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// This price.
    Price(Price),
    /// It is wrong in itself, so that it is not clear which price.
    Unclear,
}

/// The price lists of a card.
#[derive(Clone, Debug)]
pub(super) struct PriceLists {
    /// The earliest first, one for each day.
    lists: Vec<List>,
    /// Whether the first day of some list is not known, so that it may be effective on any day.
    has_unknown_days: bool,
}

#[derive(Clone, Debug)]
struct List {
    /// The first day. None: from the beginning.
    from: Option<Date>,
    /// The rates of each resource, the most specific first.
    rates: BTreeMap<UsageResource, Vec<(Selector, Answer)>>,
    /// Whether there is another list from the same day on.
    is_ambiguous: bool,
}

/// What a rate is for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Selector {
    resource: UsageResource,
    pool_name: Option<String>,
    gpu_product: Option<String>,
    mode: Option<NodeMode>,
    storage_class_name: Option<String>,
}

impl PriceLists {
    /// Reads the price lists of a card, and appends what is wrong with them.
    pub(super) fn read(card: &str, spec: &RateCard, errors: &mut Vec<PriceError>) -> Self {
        let mut lists: Vec<List> = Vec::new();
        let mut has_unknown_days = false;
        for list in &spec.spec.prices {
            let Some(list) = List::read(card, list, errors) else {
                has_unknown_days = true;
                continue;
            };
            if let Some(other) = lists.iter_mut().find(|other| other.from == list.from) {
                let (card, day) = (card.to_owned(), describe_day(list.from));
                errors.push(PriceError::SameDay { card, day });
                other.is_ambiguous = true;
            } else {
                lists.push(list);
            }
        }
        lists.sort_by_key(|list| list.from);
        Self {
            lists,
            has_unknown_days,
        }
    }

    /// The price of what has this key, on a day. None if no rate of the list that is effective on that day matches.
    pub(super) fn price(&self, key: &LineKey, day: Date) -> Option<Answer> {
        if self.has_unknown_days {
            return Some(Answer::Unclear);
        }
        // What has no first day is before all days.
        let later = self.lists.partition_point(|list| list.from <= Some(day));
        let list = self.lists.get(later.checked_sub(1)?)?;
        if list.is_ambiguous {
            return Some(Answer::Unclear);
        }
        let rates = list.rates.get(&key.resource)?;
        let matching = rates.iter().find(|(selector, _)| selector.matches(key));
        matching.map(|(_, answer)| *answer)
    }
}

impl List {
    fn read(card: &str, list: &PriceList, errors: &mut Vec<PriceError>) -> Option<Self> {
        let from = match list.effective_from.as_deref().map(str::parse::<Date>) {
            None => None,
            Some(Ok(day)) => Some(day),
            Some(Err(_)) => {
                let (card, day) = (card.to_owned(), list.effective_from.clone().unwrap_or_default());
                errors.push(PriceError::InvalidDay { card, day });
                return None;
            }
        };
        let mut answers: BTreeMap<Selector, Answer> = BTreeMap::new();
        for rate in &list.rates {
            let selector = Selector::of(rate);
            let price = Price::parse(&rate.price);
            if price.is_none() {
                let (card, price) = (card.to_owned(), rate.price.clone());
                errors.push(PriceError::InvalidPrice { card, price });
            }
            match answers.entry(selector) {
                Entry::Vacant(entry) => {
                    entry.insert(price.map_or(Answer::Unclear, Answer::Price));
                }
                Entry::Occupied(mut entry) => {
                    let (card, from, rate) = (card.to_owned(), describe_day(from), entry.key().to_string());
                    errors.push(PriceError::SameRate { card, from, rate });
                    entry.insert(Answer::Unclear);
                }
            }
        }
        let mut rates: BTreeMap<UsageResource, Vec<(Selector, Answer)>> = BTreeMap::new();
        for (selector, answer) in answers {
            rates.entry(selector.resource).or_default().push((selector, answer));
        }
        for rates in rates.values_mut() {
            rates.sort_by_key(|(selector, _)| Reverse(selector.specificity()));
        }
        Some(Self {
            from,
            rates,
            is_ambiguous: false,
        })
    }
}

impl Selector {
    fn of(rate: &Rate) -> Self {
        let Rate {
            resource,
            pool_name,
            gpu_product,
            mode,
            storage_class_name,
            price: _,
        } = rate;
        Self {
            resource: *resource,
            pool_name: pool_name.clone(),
            gpu_product: gpu_product.clone(),
            mode: *mode,
            storage_class_name: storage_class_name.clone(),
        }
    }

    /// Whether it selects what has this key.
    fn matches(&self, key: &LineKey) -> bool {
        let Self {
            resource,
            pool_name,
            gpu_product,
            mode,
            storage_class_name,
        } = self;
        *resource == key.resource
            && (pool_name.is_none() || *pool_name == key.pool_name)
            && (gpu_product.is_none() || *gpu_product == key.gpu_product)
            && (mode.is_none() || *mode == key.mode)
            && (storage_class_name.is_none() || *storage_class_name == key.storage_class_name)
    }

    /// The greater, the more specific: number of its fields, then which they are. Two that match the same and are as specific are the same.
    fn specificity(&self) -> (usize, bool, bool, bool, bool) {
        let fields = [
            self.pool_name.is_some(),
            self.gpu_product.is_some(),
            self.mode.is_some(),
            self.storage_class_name.is_some(),
        ];
        let [pool, product, mode, storage_class] = fields;
        let count = fields.into_iter().filter(|is_set| *is_set).count();
        (count, pool, product, mode, storage_class)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.resource.name())?;
        let mode = self.mode.map(|mode| format!("{mode:?}"));
        for (field, value) in [
            ("poolName", &self.pool_name),
            ("gpuProduct", &self.gpu_product),
            ("mode", &mode),
            ("storageClassName", &self.storage_class_name),
        ] {
            if let Some(value) = value {
                write!(formatter, ", {field} {value}")?;
            }
        }
        Ok(())
    }
}

/// The first day of a list, as text.
fn describe_day(from: Option<Date>) -> String {
    from.map_or_else(|| "the beginning".into(), |day| day.to_string())
}
