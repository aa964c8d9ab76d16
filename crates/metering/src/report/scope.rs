//! Which records and days a report is about.

use super::GroupBy;
use crate::{
    calendar::{Month, start_of},
    item::LineKey,
    price::PriceBook,
    record::is_merged,
};
use berth_api::{UsageRecord, UsageResource, UsageTenant};
use jiff::{Span, Timestamp, civil::Date};
use std::collections::BTreeMap;

/// Which usage a report is about, and in which groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// The first day, in UTC.
    pub from: Date,
    /// The last day, in UTC. If it is before the first one, there is nothing.
    pub to: Date,
    /// Only tenants of this namespace.
    pub namespace: Option<String>,
    /// Only tenants of these names. Empty: all.
    pub tenants: Vec<String>,
    /// What the usage of a group has in common. Empty: all usage is one group.
    pub group_by: Vec<GroupBy>,
}

impl Query {
    /// When the last day ends.
    fn end(&self) -> Timestamp {
        end_of(self.to)
    }

    fn has_tenant(&self, tenant: &UsageTenant) -> bool {
        let is_named = self.tenants.is_empty() || self.tenants.contains(&tenant.name);
        is_named
            && self
                .namespace
                .as_ref()
                .is_none_or(|namespace| *namespace == tenant.namespace)
    }
}

/// A record with days and a tenant of a query.
pub(crate) struct RecordInScope<'a> {
    record: &'a UsageRecord,
    month: Month,
    /// The days of the query that are in the month.
    from: Date,
    to: Date,
}

/// A record with its part in a query; none if it has none.
pub(crate) fn in_scope<'a>(record: &'a UsageRecord, query: &Query) -> Option<RecordInScope<'a>> {
    let month: Month = record.spec.month.parse().ok()?;
    let (from, to) = (query.from.max(month.first_day()), query.to.min(month.last_day()));
    let is_in_scope = from <= to && query.has_tenant(&record.spec.tenant);
    is_in_scope.then_some(RecordInScope {
        record,
        month,
        from,
        to,
    })
}

impl<'a> RecordInScope<'a> {
    /// The tenant.
    pub(crate) fn tenant(&self) -> &'a UsageTenant {
        &self.record.spec.tenant
    }

    /// The month of the record.
    pub(crate) fn month(&self) -> Month {
        self.month
    }

    /// The lines of the record with the amounts of its days that are not zero.
    pub(crate) fn lines(&self) -> RecordLines {
        let mut lines: BTreeMap<LineKey, Vec<(Date, i64)>> = BTreeMap::new();
        for line in &self.record.spec.lines {
            let days = self
                .month
                .first_day()
                .series(Span::new().days(1))
                .take(self.month.days());
            let amounts = days.zip(line.daily.iter().copied());
            let used = amounts.filter(|(day, amount)| (self.from..=self.to).contains(day) && *amount > 0);
            lines.entry(LineKey::of(line)).or_default().extend(used);
        }
        RecordLines(lines)
    }

    /// Up to when its days are metered.
    pub(crate) fn metered_through(&self) -> Timestamp {
        self.record.spec.metered_through.0.min(self.end())
    }

    /// Whether everything that was used on its days is in the record.
    pub(crate) fn is_complete(&self) -> bool {
        !self.record.spec.in_use || self.metered_through() >= self.end()
    }

    /// Whether a line has what belongs to other keys, because the record has too many lines.
    pub(crate) fn is_merged(&self, key: &LineKey) -> bool {
        is_merged(self.record, key)
    }

    /// When its last day ends.
    fn end(&self) -> Timestamp {
        end_of(self.to)
    }
}

/// When a day ends.
pub(super) fn end_of(day: Date) -> Timestamp {
    day.tomorrow().map_or(Timestamp::MAX, start_of)
}

/// The latest record of each tenant of a query, up to its last day. What a tenant uses after its latest record is in none.
#[derive(Default)]
pub(crate) struct Latest<'a>(BTreeMap<&'a str, (Month, &'a UsageRecord)>);

impl<'a> Latest<'a> {
    /// Takes a record into account, also one of a month before the query.
    pub(crate) fn add(&mut self, record: &'a UsageRecord, query: &Query) {
        let Ok(month) = record.spec.month.parse::<Month>() else {
            return;
        };
        let tenant = &record.spec.tenant;
        if month > Month::of(query.to) || !query.has_tenant(tenant) {
            return;
        }
        let latest = self.0.entry(&tenant.uid).or_insert((month, record));
        if month > latest.0 {
            *latest = (month, record);
        }
    }

    /// From when on nothing is recorded of tenants that use something then, before the query ends: the earliest time of all.
    pub(crate) fn behind(&self, query: &Query) -> Option<Timestamp> {
        let in_use = self.0.values().filter(|(_, record)| record.spec.in_use);
        let through = in_use.map(|(_, record)| record.spec.metered_through.0);
        through.filter(|through| *through < query.end()).min()
    }
}

/// What was used of the lines of a record, by day.
pub(crate) struct RecordLines(BTreeMap<LineKey, Vec<(Date, i64)>>);

impl RecordLines {
    /// The lines, with what was used on each day.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&LineKey, &[(Date, i64)])> + '_ {
        self.0.iter().map(|(key, days)| (key, days.as_slice()))
    }

    /// Whether something has a price, or an unclear one, by what it is a part of, or what is a part of it: nodes and their GPUs are two counts of the same,
    /// and most price lists have rates for one of them.
    pub(crate) fn is_priced_otherwise(&self, key: &LineKey, day: Date, prices: &PriceBook) -> bool {
        let resource = match key.resource {
            UsageResource::Gpu => UsageResource::Node,
            UsageResource::Node => UsageResource::Gpu,
            UsageResource::Cpu | UsageResource::Memory | UsageResource::Storage | UsageResource::ControlPlane => {
                return false;
            }
        };
        let other = LineKey {
            resource,
            ..key.clone()
        };
        let days = self.0.get(&other).map(Vec::as_slice).unwrap_or_default();
        let has_price = || !prices.price(&other, day, 0).is_empty() || prices.is_unclear(&other, day);
        days.iter().any(|(of_other, _)| *of_other == day) && has_price()
    }
}
