//! `berth usage` as CSV: for spreadsheets, and for tools that import costs.

use std::fmt::Display;

use berth_api::{UsageRecord, UsageResource};
use berth_metering::focus::{COLUMNS, focus};
use berth_metering::{PriceBook, Query, Row, hours};

use super::view::{COST_DECIMALS, HOUR_DECIMALS, Usage};
use crate::error::Error;

/// The rows of a report, without their total, which spreadsheets make themselves. Columns of amounts and costs do not depend on what was used, but on
/// the currencies of RateCards.
pub(super) fn write_csv(usage: &Usage) -> Result<String, Error> {
    let groups = usage.group_by.iter().map(|group| group.name().to_owned());
    let amounts = UsageResource::ALL
        .into_iter()
        .map(|resource| column_of(resource).to_owned());
    let costs = usage.currencies.iter().map(|currency| format!("cost_{currency}"));
    let heading: Vec<String> = groups.chain(amounts).chain(costs).collect();
    let row_of = |row: &Row| -> Vec<String> {
        let group = row.group.iter().map(|name| name.clone().unwrap_or_default());
        let amounts = UsageResource::ALL
            .into_iter()
            .map(|resource| hours(resource, row.amounts.get(resource), HOUR_DECIMALS));
        // A sum without what is not clear would be taken for the whole.
        let cost = |currency: &String| {
            let cost = row.costs.get(currency);
            cost.filter(|_| !row.unclear_currencies.contains(currency))
                .map(|cost| cost.format(COST_DECIMALS))
        };
        let costs = usage
            .currencies
            .iter()
            .map(|currency| cost(currency).unwrap_or_default());
        group.chain(amounts).chain(costs).collect()
    };
    write(&heading, usage.report.rows.iter().map(row_of))
}

fn column_of(resource: UsageResource) -> &'static str {
    match resource {
        UsageResource::Gpu => "gpu_hours",
        UsageResource::Node => "node_hours",
        UsageResource::Cpu => "core_hours",
        UsageResource::Memory => "memory_gib_hours",
        UsageResource::Storage => "storage_gib_hours",
        UsageResource::ControlPlane => "control_plane_hours",
    }
}

/// The usage and costs of records in the form of FOCUS. `provider` is who charges for it.
pub(super) fn write_focus(
    records: &[UsageRecord],
    prices: &PriceBook,
    query: &Query,
    provider: &str,
) -> Result<String, Error> {
    let focus = focus(records, prices, query, provider);
    write(&COLUMNS, focus.rows.into_iter())
}

/// A heading, and rows with as many cells.
fn write<Cell, Cells>(heading: &[Cell], rows: impl Iterator<Item = Cells>) -> Result<String, Error>
where
    Cell: AsRef<[u8]>,
    Cells: AsRef<[String]>,
{
    let failed = |error: &dyn Display| Error::Output(error.to_string());
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(heading).map_err(|error| failed(&error))?;
    for row in rows {
        writer.write_record(row.as_ref()).map_err(|error| failed(&error))?;
    }
    let bytes = writer.into_inner().map_err(|error| failed(&error))?;
    String::from_utf8(bytes).map_err(|error| failed(&error))
}
