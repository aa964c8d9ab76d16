//! A report as commands print it: with what is not in it, and why.

use std::collections::{BTreeMap, BTreeSet};

use berth_api::{UsageRecord, UsageResource};
use berth_metering::{
    Amounts, GroupBy, Month, PriceBook, PriceError, Query, Report, Row, hours, hours_unit, report, unassigned_report,
};
use jiff::Timestamp;
use serde::{Serialize, Serializer};

use super::period::Period;
use crate::error::Error;
use crate::output::format_time;
use crate::tenant::TenantName;

/// Decimals of hours and of costs for programs. A second is more than a millionth of an hour.
pub(super) const HOUR_DECIMALS: u32 = 6;
pub(super) const COST_DECIMALS: u32 = 10;
/// How long control may take to write what is used, in seconds. It takes a quarter of an hour.
const WRITING_DELAY: i64 = 3600;
/// How many errors in RateCards are shown. One card can have as many as targets.
const MOST_ERRORS: usize = 10;
/// What can be the cause if there are no records.
const WHY_NO_RECORDS: &str = "no tenant used anything, they are older than metering.retentionMonths of Berth's chart keeps them, or nothing was \
                              recorded because that is 0 or this version of Berth was not installed";
/// The same of records of pools.
const WHY_NO_POOLS: &str = "there were no pools with nodes for tenants, they are older than metering.retentionMonths of Berth's chart keeps them, or \
                            nothing was recorded because that is 0 or this version of Berth was not installed";

/// Which records a report is made of.
#[derive(Debug, Default)]
pub(super) struct Selection {
    /// The namespace that was given. It selects nothing if tenants were named.
    pub(super) namespace: Option<String>,
    /// The tenants that were named.
    pub(super) tenants: Vec<TenantName>,
}

impl Selection {
    /// The records that are selected, also those of the month before the days.
    ///
    /// # Errors
    /// A tenant was named of which there is none of these days.
    pub(super) fn select(&self, records: Vec<UsageRecord>, period: Period) -> Result<Vec<UsageRecord>, Error> {
        let is_of = |record: &UsageRecord, name: &TenantName| {
            let tenant = &record.spec.tenant;
            tenant.namespace == name.namespace && tenant.name == name.name
        };
        let months: Vec<String> = period.months().iter().map(ToString::to_string).collect();
        let is_of_these_days = |record: &UsageRecord| months.contains(&record.spec.month);
        let is_missing = |name: &&TenantName| {
            !records
                .iter()
                .any(|record| is_of_these_days(record) && is_of(record, name))
        };
        if let Some(missing) = self.tenants.iter().find(is_missing) {
            let Period { from, to } = period;
            let others: Vec<TenantName> = { records.iter() }
                .filter(|&record| is_of_these_days(record))
                .map(|record| TenantName {
                    namespace: record.spec.tenant.namespace.clone(),
                    name: record.spec.tenant.name.clone(),
                })
                .collect();
            let advice = if others.is_empty() {
                format!("there are no UsageRecords of these days: {WHY_NO_RECORDS}")
            } else {
                missing.ask(&others).unwrap_or_else(|| {
                    format!("`berth usage --from {from} --to {to}` lists the tenants of which something is recorded")
                })
            };
            return Err(Error::NotFound(format!(
                "nothing is recorded of TenantCluster {missing} from {from} to {to}; {advice}"
            )));
        }
        let is_selected = |record: &UsageRecord| match &self.namespace {
            _ if !self.tenants.is_empty() => self.tenants.iter().any(|name| is_of(record, name)),
            Some(namespace) => record.spec.tenant.namespace == *namespace,
            None => true,
        };
        Ok(records.into_iter().filter(is_selected).collect())
    }
}

/// The months up to now of which there is no record of any tenant. One that has just begun has none yet.
pub(super) fn months_without(records: &[UsageRecord], period: Period, now: Timestamp) -> Vec<Month> {
    let is_due = |month: &Month| now.as_second() - month.start().as_second() > WRITING_DELAY;
    let mut months = period.months();
    months.retain(|month| {
        let name = month.to_string();
        is_due(month) && !records.iter().any(|record| record.spec.month == name)
    });
    months
}

/// A report, and what is not in it.
#[derive(Debug)]
pub(super) struct Usage {
    /// Whether it is about what no tenant had.
    pub(super) is_unassigned: bool,
    pub(super) period: Period,
    pub(super) group_by: Vec<GroupBy>,
    pub(super) currencies: Vec<String>,
    pub(super) report: Report,
    months_without_records: Vec<Month>,
    /// What is not in the report, and why. Sentences.
    pub(super) notes: Vec<String>,
}

/// What a report depends on, besides records and prices.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) period: Period,
    pub(super) group_by: Vec<GroupBy>,
    pub(super) months_without_records: Vec<Month>,
    /// Why costs are not shown, if they cannot be.
    pub(super) without_costs: Option<String>,
}

impl Request {
    /// What a report is about.
    pub(super) fn query(&self) -> Query {
        Query {
            from: self.period.from,
            to: self.period.to,
            namespace: None,
            tenants: Vec::new(),
            group_by: self.group_by.clone(),
        }
    }
}

impl Usage {
    /// The usage in these records, and what it costs. `now` is the time of the host.
    pub(super) fn new(records: &[UsageRecord], prices: &PriceBook, request: Request, now: Timestamp) -> Self {
        let report = report(records, prices, &request.query());
        let notes = [
            note_months(&request.months_without_records, request.period, WHY_NO_RECORDS),
            note_nothing(&report, &request),
            note_late(&report, request.period, now),
            note_merged(&report),
        ];
        Self::with_notes(report, notes, prices, request, false)
    }

    /// What no tenant had, by these records of tenants and pools, and what it costs.
    pub(super) fn of_unassigned(records: &[UsageRecord], prices: &PriceBook, request: Request) -> Self {
        let report = unassigned_report(records, prices, &request.query());
        let notes = [
            note_months(&request.months_without_records, request.period, WHY_NO_POOLS),
            note_days(&report),
            note_without_pool(&report),
        ];
        Self::with_notes(report, notes, prices, request, true)
    }

    fn with_notes(
        report: Report,
        notes: impl IntoIterator<Item = Option<String>>,
        prices: &PriceBook,
        request: Request,
        is_unassigned: bool,
    ) -> Self {
        let of_costs = [note_unpriced(&report.total.unpriced), note_unclear(&report.total)];
        let errors = note_errors(prices.errors());
        let notes = { notes.into_iter().chain(of_costs).flatten() }
            .chain(errors)
            .chain(request.without_costs);
        Self {
            is_unassigned,
            period: request.period,
            group_by: request.group_by,
            currencies: prices.currencies().map(ToOwned::to_owned).collect(),
            report,
            months_without_records: request.months_without_records,
            notes: notes.collect(),
        }
    }

    /// Whether costs are missing because RateCards are wrong.
    pub(super) fn has_unclear_costs(&self) -> bool {
        !self.report.total.unclear.is_empty()
    }
}

fn note_months(months: &[Month], period: Period, why: &str) -> Option<String> {
    let names: Vec<String> = months.iter().map(ToString::to_string).collect();
    if names.is_empty() {
        return None;
    }
    Some(if names.len() == period.months().len() {
        format!("There are no UsageRecords of these days: {why}.")
    } else {
        format!("There are no UsageRecords of {}: {why}.", names.join(", "))
    })
}

fn note_nothing(report: &Report, request: &Request) -> Option<String> {
    let has_records = request.months_without_records.len() < request.period.months().len();
    let is_unused = report.rows.is_empty() && has_records;
    is_unused.then(|| "No usage is recorded of these days for what you asked for.".to_owned())
}

/// What is missing at the end of the days.
fn note_late(report: &Report, period: Period, now: Timestamp) -> Option<String> {
    let through = report.metered_through.filter(|_| !report.is_complete)?;
    let end = period.end();
    // Of days that are over, everything is to be there.
    let delay = if end > now { WRITING_DELAY } else { 0 };
    let is_late = end.min(now).as_second() - through.as_second() > delay;
    is_late.then(|| {
        let through = format_time(through);
        format!(
            "What was used after {through} is not recorded yet, at least of one tenant. Control does it within 15 minutes; if it does not, the alert \
             BerthUsageNotRecorded says what to do."
        )
    })
}

/// Up to which day it is known what no tenant had.
fn note_days(report: &Report) -> Option<String> {
    let through = report.metered_through.filter(|_| !report.is_complete)?;
    Some(format!(
        "Only days before {} are in the report: on later ones, not everything that tenants used is recorded yet.",
        format_time(through)
    ))
}

/// What has lost its pool and its Project.
fn note_merged(report: &Report) -> Option<String> {
    let names: Vec<&str> = report.merged.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| {
        let names = names.join(", ");
        format!(
            "A record has too many lines, of {names}: some of what was used is recorded without pool, product, mode, class, Project and Organization, and has \
             the price of a rate for all."
        )
    })
}

/// Of what tenants had, that which has lost its pool and could not be subtracted.
fn note_without_pool(report: &Report) -> Option<String> {
    let names: Vec<&str> = report.merged.iter().map(String::as_str).collect();
    (!names.is_empty()).then(|| {
        format!(
            "A record has too many lines, of {}: some of what was used is recorded without its pool, and looks here as if no tenant had it.",
            names.join(", ")
        )
    })
}

fn note_unpriced(unpriced: &Amounts) -> Option<String> {
    let amounts = describe_amounts(unpriced)?;
    Some(format!(
        "No RateCard has a price for {amounts}. A rate with the price 0 says that something is free."
    ))
}

fn note_unclear(total: &Row) -> Option<String> {
    let amounts = describe_amounts(&total.unclear)?;
    let currencies: Vec<&str> = total.unclear_currencies.iter().map(String::as_str).collect();
    Some(format!(
        "What {amounts} cost is not in the report, in {}: it is not clear until RateCards are corrected.",
        currencies.join(", ")
    ))
}

/// What is wrong with RateCards.
fn note_errors(errors: &[PriceError]) -> Vec<String> {
    let mut notes: Vec<String> = errors
        .iter()
        .take(MOST_ERRORS)
        .map(|error| format!("{error}."))
        .collect();
    let further = errors.len().saturating_sub(MOST_ERRORS);
    if further > 0 {
        notes.push(format!("RateCards have {further} more such errors."));
    }
    notes
}

/// Amounts with their units and resources. None if there are none.
fn describe_amounts(amounts: &Amounts) -> Option<String> {
    let texts: Vec<String> = amounts
        .iter()
        .map(|(resource, amount)| {
            format!(
                "{} {} ({})",
                hours(resource, amount, 1),
                hours_unit(resource),
                resource.name()
            )
        })
        .collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// What `usage` prints for programs, which read it: fields are only ever added. Numbers are decimal text, so that no digit is lost.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct UsageView {
    /// Whether it is about what no tenant had.
    unassigned: bool,
    /// The first and the last day, in UTC.
    from: String,
    to: String,
    /// Everything that was used before this time is in the report.
    metered_through: Option<String>,
    /// Whether nothing was used after it on these days, as far as the records say.
    is_complete: bool,
    /// What has a row of its own.
    group_by: Vec<&'static str>,
    currencies: Vec<String>,
    rows: Vec<RowView>,
    /// All rows together.
    total: RowView,
    months_without_records: Vec<String>,
    notes: Vec<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RowView {
    /// What the row is about, by name in `groupBy`; null if the usage has no such thing.
    group: BTreeMap<&'static str, Option<String>>,
    /// Hours by resource: of GPUs, nodes, cores, GiB and control planes.
    hours: BTreeMap<&'static str, String>,
    /// Costs by currency.
    costs: BTreeMap<String, String>,
    /// Those of the hours that have no price in any currency.
    unpriced_hours: BTreeMap<&'static str, String>,
    /// Those that have no price in some currency because RateCards are wrong; `notes` says what to correct.
    unclear_hours: BTreeMap<&'static str, String>,
    /// The currencies in which these have no price: `costs` in these are not those of the whole row.
    unclear_currencies: BTreeSet<String>,
}

impl Serialize for Usage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            is_unassigned,
            period,
            group_by,
            currencies,
            report,
            months_without_records,
            notes,
        } = self;
        let view = UsageView {
            unassigned: *is_unassigned,
            from: period.from.to_string(),
            to: period.to.to_string(),
            metered_through: report.metered_through.map(format_time),
            is_complete: report.is_complete,
            group_by: group_by.iter().map(|group| group.name()).collect(),
            currencies: currencies.clone(),
            rows: report.rows.iter().map(|row| row_view(row, group_by)).collect(),
            total: row_view(&report.total, &[]),
            months_without_records: months_without_records.iter().map(ToString::to_string).collect(),
            notes: notes.clone(),
        };
        view.serialize(serializer)
    }
}

fn row_view(row: &Row, group_by: &[GroupBy]) -> RowView {
    let names = group_by.iter().map(|group| group.name());
    RowView {
        group: names.zip(row.group.iter().cloned()).collect(),
        hours: hours_by_resource(&row.amounts),
        costs: row
            .costs
            .iter()
            .map(|(currency, cost)| (currency.clone(), cost.format(COST_DECIMALS)))
            .collect(),
        unpriced_hours: hours_by_resource(&row.unpriced),
        unclear_hours: hours_by_resource(&row.unclear),
        unclear_currencies: row.unclear_currencies.clone(),
    }
}

fn hours_by_resource(amounts: &Amounts) -> BTreeMap<&'static str, String> {
    let hours = |(resource, amount): (UsageResource, i128)| (resource.name(), hours(resource, amount, HOUR_DECIMALS));
    amounts.iter().map(hours).collect()
}
