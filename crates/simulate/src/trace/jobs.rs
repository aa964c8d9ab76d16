//! `timestamp,duration,num_gpus,tenant`, and Microsoft's Philly trace, where the column of the tenant is called `cluster`.

use std::collections::HashMap;

use berth_planner::Seconds;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use super::{Cells, Form, Parsed, Row};

/// Rows of jobs.
pub(super) struct Jobs {
    tenant: &'static str,
}

/// The form, if the columns match it.
pub(super) fn form(columns: &HashMap<&str, usize>) -> Option<Jobs> {
    let tenant = ["tenant", "cluster"]
        .into_iter()
        .find(|name| columns.contains_key(name))?;
    ["timestamp", "duration", "num_gpus"]
        .iter()
        .all(|name| columns.contains_key(name))
        .then_some(Jobs { tenant })
}

impl Form for Jobs {
    fn parse(&self, cells: &Cells<'_>) -> Result<Parsed, String> {
        let gpus: u32 = cells.number("num_gpus")?;
        let arrival = moment(cells)?;
        let duration = cells.seconds("duration")?;
        let tenant = cells.text(self.tenant);
        if tenant.is_empty() {
            return Err(format!("{} is empty", self.tenant));
        }
        Ok(if gpus == 0 {
            Parsed::WithoutGpus
        } else if duration == 0 {
            Parsed::NeverRan
        } else {
            Parsed::Job(Row {
                tenant: tenant.to_owned(),
                arrival,
                duration,
                gpus,
            })
        })
    }
}

/// Reads `2017-10-09 07:01:55` (as UTC), RFC 3339, or a number of seconds.
fn moment(cells: &Cells<'_>) -> Result<Seconds, String> {
    let text = cells.text("timestamp");
    if text.parse::<f64>().is_ok() {
        return cells.seconds("timestamp");
    }
    if let Ok(timestamp) = text.parse::<Timestamp>() {
        return Ok(timestamp.as_second());
    }
    let civil: DateTime = text
        .parse()
        .map_err(|_| format!("timestamp {text:?} is neither a date and time nor a number of seconds"))?;
    let zoned = civil.to_zoned(TimeZone::UTC).map_err(|error| error.to_string())?;
    Ok(zoned.timestamp().as_second())
}
