//! Which records and days a report is about.

use super::GroupBy;
use crate::{
    calendar::{Month, start_of},
    item::LineKey,
};
use berth_api::{UsageRecord, UsageTenant};
use jiff::{Span, Timestamp, civil::Date};

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
    pub(crate) fn lines(&self) -> impl Iterator<Item = (LineKey, Vec<(Date, i64)>)> + use<'a> {
        let (month, from, to) = (self.month, self.from, self.to);
        self.record.spec.lines.iter().map(move |line| {
            let days = month.first_day().series(Span::new().days(1)).take(month.days());
            let amounts = days.zip(line.daily.iter().copied());
            let used = amounts.filter(|(day, amount)| (from..=to).contains(day) && *amount > 0);
            (LineKey::of(line), used.collect())
        })
    }

    /// Up to when its days are metered.
    pub(crate) fn metered_through(&self) -> Timestamp {
        self.record.spec.metered_through.0.min(self.end())
    }

    /// Whether everything that was used on its days is in the record.
    pub(crate) fn is_complete(&self) -> bool {
        !self.record.spec.in_use || self.metered_through() >= self.end()
    }

    /// When its last day ends.
    fn end(&self) -> Timestamp {
        self.to.tomorrow().map_or(Timestamp::MAX, start_of)
    }
}
