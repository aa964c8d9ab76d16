//! Decides which node serves which tenant. Pure: the result depends on nothing but the [`Fleet`] that goes in, time included,
//! so that control, `berth simulate` and `berth explain` all run the very same code.

mod model;

pub use model::*;
