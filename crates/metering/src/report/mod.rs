//! Usage and costs of some days, in groups.

mod group;
mod scope;
#[cfg(test)]
mod tests;
mod unassigned;

pub use group::GroupBy;
pub use scope::Query;
use scope::{Latest, RecordLines};
pub(crate) use scope::{RecordInScope, in_scope};
pub use unassigned::unassigned_report;

use crate::{
    amounts::Amounts,
    item::LineKey,
    price::{Cost, PriceBook},
};
use berth_api::{UsageRecord, UsageTenant};
use jiff::{Timestamp, civil::Date};
use std::collections::{BTreeMap, BTreeSet};

/// Usage and costs of some days.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The groups in which something was used, sorted by what they have in common.
    pub rows: Vec<Row>,
    /// All groups together. Its `group` is empty.
    pub total: Row,
    /// Everything that was used before this time is in the report, as far as its days reach. None if there are no records of these days, and none of
    /// tenants that use something after an earlier one.
    pub metered_through: Option<Timestamp>,
    /// Whether nothing was used on these days after that time, as far as the records say: tenants that use something now, and are counted up to an
    /// earlier time, are not complete.
    pub is_complete: bool,
    /// Tenants of which a record has too many lines, as `namespace/name`: some of what they used is in lines with nothing but a resource, so that it has
    /// neither the group nor the price that it should have.
    pub merged: BTreeSet<String>,
}

/// Usage and costs of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// What the usage of the group has in common, for each of [`Query::group_by`]. None: it has no Project, no pool and so on.
    pub group: Vec<Option<String>>,
    /// What was used.
    pub amounts: Amounts,
    /// What that costs, by currency.
    pub costs: BTreeMap<String, Cost>,
    /// Of what was used, that for which no RateCard has a price, in any currency. Nodes are left out if their GPUs have a price, and GPUs if their
    /// nodes have one. Empty if there are no RateCards.
    pub unpriced: Amounts,
    /// Of what was used, that which has no price in some currency because RateCards are wrong ([`PriceBook::errors`]). It is not in `unpriced`.
    pub unclear: Amounts,
    /// The currencies in which that has no price: `costs` in these are not those of the whole row.
    pub unclear_currencies: BTreeSet<String>,
}

/// Usage and costs of tenants as the records and the prices say. Records of the month before the query say which tenants use something of which there is no
/// record of its days, so that the report is not complete; without them, it looks complete.
pub fn report<'a>(records: impl IntoIterator<Item = &'a UsageRecord>, prices: &PriceBook, query: &Query) -> Report {
    let of_tenants = records.into_iter().filter(|record| !record.spec.tenant.is_pool());
    compile(of_tenants, prices, query)
}

fn compile<'a>(records: impl IntoIterator<Item = &'a UsageRecord>, prices: &PriceBook, query: &Query) -> Report {
    let mut rows: BTreeMap<Vec<Option<String>>, Row> = BTreeMap::new();
    let mut total = Row::default();
    let mut through = Through::default();
    let mut latest = Latest::default();
    let mut merged = BTreeSet::new();
    let is_by_day = query.group_by.contains(&GroupBy::Day);
    for record in records {
        latest.add(record, query);
        let Some(record) = in_scope(record, query) else {
            continue;
        };
        through.add(&record);
        let lines = record.lines();
        for (key, days) in lines.iter() {
            if record.is_merged(key) && !days.is_empty() {
                merged.insert(name_of(record.tenant()));
            }
            // The days of a line are in one group, or each in one of its own.
            for days in days.chunk_by(|_, _| !is_by_day) {
                let values = query.group_by.iter().map(|by| by.value(&record, key, days[0].0));
                let row = rows.entry(values.collect()).or_default();
                for (day, amount) in days {
                    let priced = PricedUsage::new(&lines, key, (*day, *amount), prices);
                    priced.add_to(row);
                    priced.add_to(&mut total);
                }
            }
        }
    }
    if let Some(behind) = latest.behind(query) {
        through.is_behind(behind);
    }
    let rows = rows.into_iter().map(|(group, row)| Row { group, ..row }).collect();
    Report {
        rows,
        total,
        metered_through: through.time(),
        is_complete: through.earliest.is_none(),
        merged,
    }
}

/// A tenant, as `namespace/name`.
fn name_of(tenant: &UsageTenant) -> String {
    format!("{}/{}", tenant.namespace, tenant.name)
}

/// An amount of a day and what it costs.
struct PricedUsage<'a> {
    key: &'a LineKey,
    amount: i64,
    costs: Vec<(&'a str, Cost)>,
    is_unpriced: bool,
    unclear_currencies: Vec<&'a str>,
}

impl<'a> PricedUsage<'a> {
    fn new(lines: &RecordLines, key: &'a LineKey, (day, amount): (Date, i64), prices: &'a PriceBook) -> Self {
        let priced = prices.price(key, day, amount);
        let costs: Vec<(&str, Cost)> = priced.iter().map(|priced| (priced.currency, priced.cost)).collect();
        let unclear_currencies = prices.unclear_currencies(key, day);
        let has_no_price = costs.is_empty() && !prices.is_empty() && unclear_currencies.is_empty();
        Self {
            key,
            amount,
            is_unpriced: has_no_price && !lines.is_priced_otherwise(key, day, prices),
            unclear_currencies,
            costs,
        }
    }

    fn add_to(&self, row: &mut Row) {
        let amount = i128::from(self.amount);
        row.amounts.add(self.key.resource, amount);
        if self.is_unpriced {
            row.unpriced.add(self.key.resource, amount);
        }
        if !self.unclear_currencies.is_empty() {
            row.unclear.add(self.key.resource, amount);
        }
        for currency in &self.unclear_currencies {
            if !row.unclear_currencies.contains(*currency) {
                row.unclear_currencies.insert((*currency).to_owned());
            }
        }
        for (currency, cost) in &self.costs {
            match row.costs.get_mut(*currency) {
                Some(sum) => *sum = sum.saturating_add(*cost),
                None => {
                    row.costs.insert((*currency).to_owned(), *cost);
                }
            }
        }
    }
}

/// Up to when records are metered.
#[derive(Default)]
struct Through {
    /// The earliest end of those that are behind.
    earliest: Option<Timestamp>,
    /// The latest end of all.
    latest: Option<Timestamp>,
}

impl Through {
    fn add(&mut self, record: &RecordInScope<'_>) {
        let through = record.metered_through();
        self.latest = self.latest.max(Some(through));
        if !record.is_complete() {
            self.is_behind(through);
        }
    }

    fn is_behind(&mut self, through: Timestamp) {
        self.earliest = Some(self.earliest.map_or(through, |earliest| earliest.min(through)));
    }

    fn time(&self) -> Option<Timestamp> {
        self.earliest.or(self.latest)
    }
}
