//! Watches that fill the stores of both sides.

mod bounds;
mod content;
#[cfg(test)]
pub(crate) mod fake_server;
mod object;
mod tree_size;
mod watch;

pub use bounds::Bounds;
pub(crate) use content::{Content, Parts};
pub(crate) use object::Object;
pub(crate) use tree_size::{MAX_TENANT_TREE, TreeSize, most_of_side};
pub use watch::{Hooks, run as watch};
