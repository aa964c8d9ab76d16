//! Watches that fill the stores of both sides.

mod bounds;
mod content;
mod object;
mod watch;

pub use bounds::Bounds;
pub(crate) use content::{Content, Parts};
pub(crate) use object::Object;
pub use watch::{Hooks, run as watch};
