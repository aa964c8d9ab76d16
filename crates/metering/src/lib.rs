//! What tenants used, what it costs, and reports about it. Pure: everything is computed from what is observed, from records and from the
//! clock. docs/adr/0062 says which rules were chosen, and why.
//!
//! | module | contents |
//! |---|---|
//! | [`Meter`] | counts what is observed, and says which `UsageRecord`s are to be written |
//! | [`PriceBook`] | what usage costs, by `RateCard`s |
//! | [`report()`] | usage and costs of some days, by tenant, project or other groups |
//! | [`unassigned_report()`] | the same of nodes that no tenant had |
//! | [`summarize()`] | the sums of a record, which its TenantCluster shows |
//! | [`focus`] | the same as rows of the FinOps Open Cost and Usage Specification |
//!
//! Amounts are whole numbers and costs are exact fractions. Nothing overflows: what is too large becomes the largest number.

#![warn(missing_docs)]

mod amounts;
mod calendar;
pub mod focus;
mod fraction;
mod item;
mod meter;
mod price;
mod record;
mod report;
mod summary;

pub use amounts::{Amounts, hours, hours_unit};
pub use calendar::{Month, MonthError, day_of};
pub use item::{Identity, Item, LineKey};
pub use meter::{Cut, Meter, Observed};
pub use price::{Cost, Price, PriceBook, PriceError, Priced};
pub use record::is_expired;
pub use report::{GroupBy, Query, Report, Row, report, unassigned_report};
pub use summary::{record_of_summary, summarize};
