//! Prices and costs, exactly.

use crate::amounts::{HOUR, units};
use crate::fraction::format_fraction;
use berth_api::UsageResource;
use std::fmt;

/// Decimals of a price.
const PRICE_DECIMALS: u32 = 9;
/// A unit of money in the smallest part that a price can have.
const PRICE_SCALE: i128 = 1_000_000_000;
/// A number that [`units`] of every resource divides.
const COMMON_UNITS: i128 = 128_000;
/// A unit of money in parts in which the cost of any amount is a whole number.
const COST_SCALE: i128 = PRICE_SCALE * HOUR * COMMON_UNITS;

/// Price of one hour of one unit of a resource, with at most nine decimals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price(i128);

impl Price {
    /// Reads a price as RateCards have it: digits, and at most nine decimals. None if it is something else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (whole, decimals) = match text.split_once('.') {
            Some((whole, decimals)) => (whole, Some(decimals)),
            None => (text, None),
        };
        let are_digits = |digits: &str| {
            (1..=PRICE_DECIMALS as usize).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_price = are_digits(whole) && decimals.is_none_or(are_digits);
        let decimals = decimals.unwrap_or_default();
        let nanos = format!("{whole}{decimals:0<width$}", width = PRICE_DECIMALS as usize);
        is_price.then(|| nanos.parse().ok().map(Self))?
    }

    /// What an amount of a resource costs at this price. A cost that is too large to be written is the largest one.
    pub(crate) fn cost(self, resource: UsageResource, amount: i64) -> Cost {
        let parts = self.0.saturating_mul(i128::from(amount.max(0)));
        Cost(parts.saturating_mul(COMMON_UNITS / units(resource)))
    }
}

impl fmt::Display for Price {
    /// The price without zeros at its end.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format_fraction(self.0, PRICE_SCALE, PRICE_DECIMALS);
        formatter.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// An amount of money, exactly. Sums are exact as well: only text is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost(i128);

impl Cost {
    /// Whether it is nothing.
    pub fn is_zero(self) -> bool {
        self.0 == 0
    }

    /// The sum, or the largest cost.
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// With this many decimals, rounded half up; at most 18.
    pub fn format(self, decimals: u32) -> String {
        format_fraction(self.0, COST_SCALE, decimals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(text: &str) -> Price {
        Price::parse(text).unwrap()
    }

    #[test]
    fn prices_are_read_and_written() {
        for (text, written) in [
            ("2.10", "2.1"),
            ("0", "0"),
            ("0.0", "0"),
            ("100", "100"),
            ("007", "7"),
            ("0.000000001", "0.000000001"),
            ("999999999.999999999", "999999999.999999999"),
        ] {
            assert_eq!(price(text).to_string(), written);
        }
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            "1.0000000001",
            "1234567890",
            "1.2.3",
            "١",
        ] {
            assert_eq!(Price::parse(text), None, "{text}");
        }
        assert!(price("2.1") > price("2.09"));
    }

    #[test]
    fn every_resource_has_whole_parts() {
        for resource in UsageResource::ALL {
            assert_eq!(COMMON_UNITS % units(resource), 0, "{resource:?}");
        }
    }

    #[test]
    fn costs_are_of_hours() {
        assert_eq!(price("2.10").cost(UsageResource::Gpu, 8 * 3600).format(2), "16.80");
        assert_eq!(price("0.03").cost(UsageResource::Cpu, 1500 * 3600).format(3), "0.045");
        assert_eq!(
            price("0.004").cost(UsageResource::Memory, 2048 * 3600).format(3),
            "0.008"
        );
        assert_eq!(
            price("0.0002").cost(UsageResource::Storage, 1024 * 3600).format(4),
            "0.0002"
        );
        assert_eq!(
            price("0.10").cost(UsageResource::ControlPlane, 86_400).format(2),
            "2.40"
        );
        assert!(price("5").cost(UsageResource::Node, 0).is_zero());
        assert!(price("5").cost(UsageResource::Node, -1).is_zero());
    }

    #[test]
    fn many_small_costs_are_as_much_as_one_large_one() {
        let price = price("0.01");
        let mut sum = Cost::default();
        for _ in 0..3600 {
            sum = sum.saturating_add(price.cost(UsageResource::Cpu, 333));
        }
        assert_eq!(sum, price.cost(UsageResource::Cpu, 333 * 3600));
        assert_eq!(sum.format(5), "0.00333");
    }

    #[test]
    fn huge_costs_are_the_largest() {
        let largest = price("999999999.999999999").cost(UsageResource::Gpu, i64::MAX);
        assert_eq!(largest, Cost(i128::MAX));
        assert_eq!(largest.saturating_add(largest), largest);
        // A million GPUs for a year at a thousand are exact.
        let exact = price("1000").cost(UsageResource::Gpu, 1_000_000 * 365 * 86_400);
        assert_eq!(exact.format(2), "8760000000000.00");
    }
}
