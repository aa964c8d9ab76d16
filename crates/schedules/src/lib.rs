//! What a schedule lets tenants do at an instant, and when that changes. Pure: everything is computed from the clock and the
//! spec, so that a control that was down for a week has missed nothing. docs/adr/0019 says which rules were chosen, and why.
//!
//! | part | contents |
//! |---|---|
//! | [`Schedule`] | one `SchedulePolicy`: its state at an instant, and the next change |
//! | [`Stack`] | all policies that a tenant has, the outermost first |
//! | [`groups`] | what a state makes of the node groups of a tenant |
//! | [`cron_jobs`] | when a CronJob is due next |
//! | [`Recurrence`] | when something that Berth does again and again is due |
//! | [`periods`] | what is published to the tenant's syncer: the state now and its next changes |

#![warn(missing_docs)]

mod cron;
pub mod cron_jobs;
mod error;
pub mod groups;
pub mod periods;
mod recurrence;
mod schedule;
mod search;
mod stack;
mod window;
mod zone;

pub use error::ScheduleError;
pub use recurrence::Recurrence;
pub use schedule::{NextChange, Schedule, Standing};
pub use stack::{Place, PolicyIndex, Stack, WorkloadRule};
