//! Amounts of a [`TreeResource`] as text.

use crate::{TreeResource, host_resource};

/// Binary units of bytes, the largest first, and how many bits each is above a byte.
const UNITS: [(&str, u32); 5] = [("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
/// Most characters of a number of bytes that is shown as it is where people compare amounts, with its unit.
const SHORT: usize = 6;

impl TreeResource {
    /// An amount as people write it: bytes with the largest binary unit that keeps the number whole.
    pub fn format_amount(&self, amount: u64) -> String {
        match self.whole_unit(amount) {
            Some((unit, shift)) => format!("{}{unit}", amount >> shift),
            None => amount.to_string(),
        }
    }

    /// An amount for people who compare it with others, such as one that was measured: as [`TreeResource::format_amount`] if that is short, else bytes
    /// with the largest unit of which there is one, and one decimal, rounded down.
    pub fn format_rounded(&self, amount: u64) -> String {
        let exact = self.format_amount(amount);
        if self.whole_unit(amount).is_some() && exact.len() <= SHORT {
            return exact;
        }
        let mut units = UNITS.into_iter();
        match units.find(|(_, shift)| self.is_in_bytes() && amount >= 1_u64 << shift) {
            Some((unit, shift)) => {
                let tenths = (u128::from(amount) * 10) >> shift;
                format!("{}.{}{unit}", tenths / 10, tenths % 10)
            }
            None => exact,
        }
    }

    /// The largest unit of which an amount of bytes is a whole number; none if it is no number of bytes, or of no unit.
    fn whole_unit(&self, amount: u64) -> Option<(&'static str, u32)> {
        let mut units = UNITS.into_iter();
        units.find(|(_, shift)| self.is_in_bytes() && amount > 0 && amount.is_multiple_of(1_u64 << shift))
    }

    /// Whether amounts are bytes.
    fn is_in_bytes(&self) -> bool {
        match self {
            Self::DatastoreBytes | Self::RequestsStorage => true,
            Self::Host(name) => host_resource::is_in_bytes(name),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> TreeResource {
        TreeResource::Host("requests.memory".into())
    }

    #[test]
    fn amounts_have_their_unit() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (1 << 10, "1Ki"),
            (3 << 29, "1536Mi"),
            (2 << 50, "2Pi"),
            (u64::MAX, "18446744073709551615"),
        ] {
            assert_eq!(memory().format_amount(bytes), text);
        }
        assert_eq!(TreeResource::Pods.format_amount(1024), "1024");
        assert_eq!(TreeResource::Host("requests.cpu".into()).format_amount(1024), "1024");
    }

    #[test]
    fn amounts_that_were_measured_can_be_read() {
        for (bytes, text) in [
            (0, "0"),
            (1000, "1000"),
            (3 << 29, "1536Mi"),
            (734_003_217, "700.0Mi"),
            ((1 << 30) + 1, "1.0Gi"),
            // Exact, and too long to be compared.
            ((1 << 40) + (1 << 10), "1.0Ti"),
            (1_600_000_000_000, "1.4Ti"),
            (u64::MAX, "16383.9Pi"),
        ] {
            assert_eq!(memory().format_rounded(bytes), text);
        }
        for (resource, amount) in [(TreeResource::Pods, 1_234_567), (TreeResource::Gpus, 1024)] {
            assert_eq!(resource.format_rounded(amount), amount.to_string());
        }
    }
}
