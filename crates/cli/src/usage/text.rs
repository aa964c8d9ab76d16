//! The table of `berth usage`.

use berth_api::UsageResource;
use berth_metering::{GroupBy, Row, hours, hours_unit};

use super::order::most_used_first;
use super::view::Usage;
use crate::output::{format_columns, format_time, join_lines};

/// Decimals of hours and of costs for people.
const HOUR_DECIMALS: u32 = 1;
const COST_DECIMALS: u32 = 2;
/// The cell of what a row does not have.
const NONE: &str = "-";

/// The report with the resources that are usually charged.
pub(super) fn describe(usage: &Usage) -> String {
    let total = &usage.report.total.amounts;
    let is_shown = |resource: &UsageResource| match resource {
        UsageResource::Gpu => true,
        UsageResource::Node | UsageResource::Cpu => total.get(*resource) != 0,
        UsageResource::Memory | UsageResource::Storage | UsageResource::ControlPlane => false,
    };
    describe_resources(usage, UsageResource::ALL.into_iter().filter(is_shown).collect())
}

/// The report with all resources.
pub(super) fn describe_wide(usage: &Usage) -> String {
    describe_resources(usage, UsageResource::ALL.to_vec())
}

fn describe_resources(usage: &Usage, resources: Vec<UsageResource>) -> String {
    let mut parts = vec![summarize(usage)];
    if !usage.report.rows.is_empty() {
        parts.push(describe_rows(usage, resources));
    }
    if !usage.notes.is_empty() {
        parts.push(join_lines(&usage.notes));
    }
    parts.join("\n\n")
}

fn summarize(usage: &Usage) -> String {
    let (from, to) = (usage.period.from, usage.period.to);
    let through = usage.report.metered_through.filter(|_| !usage.report.is_complete);
    let through = through.map_or_else(String::new, |through| {
        format!(", recorded up to {}", format_time(through))
    });
    let subject = if usage.is_unassigned {
        "Without a tenant"
    } else {
        "Usage"
    };
    format!("{subject} from {from} to {to} (UTC){through}")
}

/// How the amounts of a row are shown.
enum Cells {
    /// A column for each of these resources.
    Resources(Vec<UsageResource>),
    /// The hours of the one resource that a row has, and their unit.
    HoursAndUnit,
}

impl Cells {
    fn headings(&self) -> Vec<&'static str> {
        match self {
            Self::Resources(resources) => resources.iter().copied().map(heading_of).collect(),
            Self::HoursAndUnit => vec!["USED", "UNIT"],
        }
    }

    fn of(&self, row: &Row) -> Vec<String> {
        match self {
            Self::Resources(resources) => resources
                .iter()
                .map(|resource| hours(*resource, row.amounts.get(*resource), HOUR_DECIMALS))
                .collect(),
            Self::HoursAndUnit => {
                let mut amounts = row.amounts.iter();
                match (amounts.next(), amounts.next()) {
                    (Some((resource, amount)), None) => {
                        vec![hours(resource, amount, HOUR_DECIMALS), hours_unit(resource).to_owned()]
                    }
                    _ => vec![NONE.to_owned(), NONE.to_owned()],
                }
            }
        }
    }
}

fn heading_of(resource: UsageResource) -> &'static str {
    match resource {
        UsageResource::Gpu => "GPU-HOURS",
        UsageResource::Node => "NODE-HOURS",
        UsageResource::Cpu => "CORE-HOURS",
        UsageResource::Memory => "MEMORY GIB-HOURS",
        UsageResource::Storage => "STORAGE GIB-HOURS",
        UsageResource::ControlPlane => "CONTROL-PLANE HOURS",
    }
}

fn describe_rows(usage: &Usage, resources: Vec<UsageResource>) -> String {
    let cells = if usage.group_by.contains(&GroupBy::Resource) {
        Cells::HoursAndUnit
    } else {
        Cells::Resources(resources)
    };
    let groups: Vec<String> = usage.group_by.iter().map(|group| group.name().to_uppercase()).collect();
    let mut heading: Vec<&str> = groups.iter().map(String::as_str).collect();
    heading.extend(cells.headings());
    heading.extend(usage.currencies.iter().map(String::as_str));
    let costs = |row: &Row| -> Vec<String> {
        let cost = |currency: &String| row.costs.get(currency).map(|cost| cost.format(COST_DECIMALS));
        let costs = usage.currencies.iter().map(cost);
        costs.map(|cost| cost.unwrap_or_else(|| NONE.to_owned())).collect()
    };
    let row_of = |group: Vec<String>, row: &Row| [group, cells.of(row), costs(row)].concat();
    let mut rows: Vec<Vec<String>> = most_used_first(&usage.report.rows, &usage.group_by)
        .into_iter()
        .map(|row| {
            let group = row
                .group
                .iter()
                .map(|name| name.clone().unwrap_or_else(|| NONE.to_owned()));
            row_of(group.collect(), row)
        })
        .collect();
    if rows.len() > 1 {
        let mut group = vec![String::new(); groups.len()];
        if let Some(first) = group.first_mut() {
            "total".clone_into(first);
        }
        rows.push(row_of(group, &usage.report.total));
    }
    format_columns(&heading, &rows)
}
