//! What usage costs, by `RateCard`s.

mod book;
mod error;
mod list;
mod money;
#[cfg(test)]
mod tests;

pub use book::{PriceBook, Priced};
pub use error::PriceError;
pub use money::{Cost, Price};
