//! Amounts of resources, and how they are written: as hours.

use crate::fraction::format_fraction;
use berth_api::UsageResource;
use std::collections::BTreeMap;

/// Seconds of an hour.
pub(crate) const HOUR: i128 = 3600;

/// How many of the units in which a resource is counted are one of those in which it is shown and priced.
pub(crate) fn units(resource: UsageResource) -> i128 {
    match resource {
        UsageResource::Gpu | UsageResource::Node | UsageResource::ControlPlane => 1,
        UsageResource::Cpu => 1000,
        UsageResource::Memory | UsageResource::Storage => 1024,
    }
}

/// An amount of a resource in hours ([`hours_unit`]), with this many decimals, rounded half up.
pub fn hours(resource: UsageResource, amount: i128, decimals: u32) -> String {
    format_fraction(amount, HOUR * units(resource), decimals)
}

/// The amount of a resource of which these are the [`hours`], as near as their decimals say it: at most nine. None if it is no such number, or too large.
pub(crate) fn amount_of_hours(resource: UsageResource, hours: &str) -> Option<i64> {
    let (whole, decimals) = hours.split_once('.').unwrap_or((hours, "0"));
    let are_digits = |digits: &str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    if !are_digits(whole) || !are_digits(decimals) || whole.len() > 18 || decimals.len() > 9 {
        return None;
    }
    let scale = 10_i128.pow(u32::try_from(decimals.len()).ok()?);
    let parts = whole.parse::<i128>().ok()? * scale + decimals.parse::<i128>().ok()?;
    let amount = (parts * HOUR * units(resource) + scale / 2) / scale;
    i64::try_from(amount).ok()
}

/// What the hours of a resource are called.
pub fn hours_unit(resource: UsageResource) -> &'static str {
    match resource {
        UsageResource::Gpu => "GPU-hours",
        UsageResource::Node => "node-hours",
        UsageResource::Cpu => "core-hours",
        UsageResource::Memory | UsageResource::Storage => "GiB-hours",
        UsageResource::ControlPlane => "hours",
    }
}

/// Amounts by resource, in the units of [`UsageLine::daily`](berth_api::UsageLine::daily). Sums do not overflow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Amounts(BTreeMap<UsageResource, i128>);

impl Amounts {
    /// The amount of a resource.
    pub fn get(&self, resource: UsageResource) -> i128 {
        self.0.get(&resource).copied().unwrap_or_default()
    }

    /// Whether there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The resources of which there is something, in the order of [`UsageResource::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (UsageResource, i128)> + '_ {
        self.0.iter().map(|(resource, amount)| (*resource, *amount))
    }

    /// Adds an amount.
    pub(crate) fn add(&mut self, resource: UsageResource, amount: i128) {
        if amount != 0 {
            let sum = self.0.entry(resource).or_default();
            *sum = sum.saturating_add(amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_exact_until_they_are_rounded() {
        assert_eq!(hours(UsageResource::Gpu, 8 * 86_400, 1), "192.0");
        assert_eq!(hours(UsageResource::Gpu, 179, 1), "0.0");
        assert_eq!(hours(UsageResource::Gpu, 180, 1), "0.1");
        assert_eq!(hours(UsageResource::Cpu, 500 * 3600, 2), "0.50");
        assert_eq!(hours(UsageResource::Memory, 1536 * 3600, 3), "1.500");
        assert_eq!(hours(UsageResource::Storage, 1024 * 1800, 0), "1");
        assert_eq!(hours(UsageResource::ControlPlane, 1, 10), "0.0002777778");
        assert_eq!(hours(UsageResource::Node, 0, 1), "0.0");
    }

    #[test]
    fn hours_are_read_as_they_are_written() {
        for (resource, text, amount) in [
            (UsageResource::Gpu, "192.0", 8 * 86_400),
            (UsageResource::Gpu, "0.1", 360),
            (UsageResource::Node, "7", 7 * 3600),
            (UsageResource::Cpu, "0.50", 500 * 3600),
            (UsageResource::Storage, "1.5", 1536 * 3600),
            (UsageResource::ControlPlane, "0.000277778", 1),
        ] {
            assert_eq!(amount_of_hours(resource, text), Some(amount), "{text}");
        }
        for text in [
            "",
            ".",
            "1.",
            ".5",
            "-1",
            "+1",
            "1e3",
            "1.0000000000",
            "1.0.0",
            "2562047788015216",
        ] {
            assert_eq!(amount_of_hours(UsageResource::Gpu, text), None, "{text}");
        }
    }

    #[test]
    fn sums_do_not_overflow_and_have_only_what_is_there() {
        let mut amounts = Amounts::default();
        amounts.add(UsageResource::Gpu, 0);
        assert!(amounts.is_empty());
        amounts.add(UsageResource::Gpu, i128::MAX);
        amounts.add(UsageResource::Gpu, 1);
        amounts.add(UsageResource::ControlPlane, 1);
        amounts.add(UsageResource::Node, 2);
        assert_eq!(amounts.get(UsageResource::Gpu), i128::MAX);
        assert_eq!(amounts.get(UsageResource::Cpu), 0);
        let resources: Vec<UsageResource> = amounts.iter().map(|(resource, _)| resource).collect();
        assert_eq!(
            resources,
            [UsageResource::Gpu, UsageResource::Node, UsageResource::ControlPlane]
        );
    }
}
