//! Fractions of whole numbers as decimal text.

/// `numerator / denominator` with this many decimals, rounded half up (half away from zero for a negative one). At most 18 decimals; the
/// denominator is positive and at most 10^20.
pub(crate) fn format_fraction(numerator: i128, denominator: i128, decimals: u32) -> String {
    let decimals = decimals.min(18);
    let scale = 10_u128.pow(decimals);
    let denominator = denominator.unsigned_abs().max(1);
    let (numerator, is_negative) = (numerator.unsigned_abs(), numerator < 0);
    let (mut whole, rest) = (numerator / denominator, numerator % denominator);
    // The rest is below 10^20, so that this is below 2 * 10^38 and fits.
    let mut part = (rest * scale + denominator / 2) / denominator;
    if part >= scale {
        whole += 1;
        part -= scale;
    }
    let sign = if is_negative && (whole, part) != (0, 0) {
        "-"
    } else {
        ""
    };
    if decimals == 0 {
        return format!("{sign}{whole}");
    }
    format!("{sign}{whole}.{part:0width$}", width = decimals as usize)
}

#[cfg(test)]
mod tests {
    use super::format_fraction;
    use proptest::prelude::*;

    #[test]
    fn halves_are_rounded_up() {
        for (numerator, denominator, decimals, text) in [
            (0, 7, 2, "0.00"),
            (1, 3, 2, "0.33"),
            (2, 3, 2, "0.67"),
            (1, 2, 0, "1"),
            (1, 8, 2, "0.13"),
            (999, 1000, 2, "1.00"),
            (1999, 2000, 3, "1.000"),
            (10, 1, 3, "10.000"),
            (-1, 8, 2, "-0.13"),
            (-1, 1000, 2, "0.00"),
            (7, 2, 0, "4"),
        ] {
            assert_eq!(
                format_fraction(numerator, denominator, decimals),
                text,
                "{numerator}/{denominator}"
            );
        }
    }

    #[test]
    fn the_largest_numbers_fit() {
        assert_eq!(format_fraction(i128::MAX, 1, 0), i128::MAX.to_string());
        assert_eq!(format_fraction(i128::MIN, 1, 0), i128::MIN.to_string());
        let large = 10_i128.pow(20);
        assert_eq!(format_fraction(large - 1, large, 18), "1.000000000000000000");
        assert_eq!(format_fraction(large / 2, large, 30), "0.500000000000000000");
    }

    proptest! {
        #[test]
        fn the_text_is_as_near_as_its_decimals_allow(
            numerator in 0_i128..1_000_000_000_000,
            denominator in 1_i128..1_000_000,
            decimals in 0_u32..10,
        ) {
            let text = format_fraction(numerator, denominator, decimals);
            let read: i128 = text.replace('.', "").parse().unwrap();
            let scale = 10_i128.pow(decimals);
            // |read / scale - numerator / denominator| <= 1 / (2 * scale)
            let distance = (read * denominator - numerator * scale).abs() * 2;
            prop_assert!(distance <= denominator, "{text}");
        }
    }
}
