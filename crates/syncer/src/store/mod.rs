//! Watches that fill the stores of both sides.

mod object;
mod watch;

pub(crate) use object::Object;
pub use watch::{Hooks, run as watch};
