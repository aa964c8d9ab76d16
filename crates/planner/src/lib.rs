//! Decides which node serves which tenant. Pure: the result depends on nothing but the [`Fleet`] that goes in, time included,
//! so that control, `berth simulate` and `berth explain` all run the very same code.

mod model;
mod selection;

pub use model::*;
pub use selection::pool_of;

/// Decides what to change. Applying the plan and planning again gives no action.
pub fn plan(_fleet: &Fleet) -> Plan {
    Plan::default()
}
