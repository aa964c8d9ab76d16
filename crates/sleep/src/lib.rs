//! When a tenant falls asleep, and when it wakes: pure. docs/adr/0024 says which rules were chosen, and why.
//!
//! | part | contents |
//! |---|---|
//! | [`activity`] | when a tenant was used, from the counts of requests of its API server |
//! | [`decide`] | what follows from all that is known of a tenant |

#![warn(missing_docs)]

pub mod activity;
mod decision;

pub use decision::{Activity, Decision, Enforcement, Facts, Inside, Stay, Turn, WakeCause, decide};

/// Seconds for which budgets may keep pods of a tenant that falls asleep.
pub const EVICTION_TIMEOUT_SECONDS: u32 = 300;
