//! Kubernetes quantities (`500m`, `16Gi`, `1e3`) as numbers: thousandths, rounded up as Kubernetes does.

/// Most digits that are read. API servers write up to 28: amounts of 19 digits and more, since they keep nine decimal places (`1073741824000000001n`).
const MAX_DIGITS: usize = 36;

/// The value of a quantity in thousandths; none if the text is not a quantity, or too large.
pub fn parse(text: &str) -> Option<i128> {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '+' | '-')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (power_of_ten, power_of_two) = match suffix {
        "n" => (-9, 0),
        "u" => (-6, 0),
        "m" => (-3, 0),
        "" => (0, 0),
        "k" => (3, 0),
        "M" => (6, 0),
        "G" => (9, 0),
        "T" => (12, 0),
        "P" => (15, 0),
        "E" => (18, 0),
        "Ki" => (0, 10),
        "Mi" => (0, 20),
        "Gi" => (0, 30),
        "Ti" => (0, 40),
        "Pi" => (0, 50),
        "Ei" => (0, 60),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            (digits.parse::<i32>().ok().filter(|power| power.abs() <= 18)?, 0)
        }
    };
    let negative = number.starts_with('-');
    let digits = number.trim_start_matches(['-', '+']);
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if (whole.is_empty() && fraction.is_empty()) || whole.len() + fraction.len() > MAX_DIGITS {
        return None;
    }
    // Digits without the decimal point, and how far the point was moved.
    let mut value: i128 = format!("0{whole}{fraction}").parse().ok()?;
    value = value.checked_mul(1 << power_of_two)?;
    let power = power_of_ten + 3 - i32::try_from(fraction.len()).ok()?;
    let factor = 10_i128.checked_pow(power.unsigned_abs())?;
    value = if power >= 0 {
        value.checked_mul(factor)?
    } else {
        value.checked_add(factor - 1)? / factor
    };
    Some(if negative { -value } else { value })
}

/// Writes thousandths as a quantity, with the binary suffix of `like` where that is exact.
pub fn format(thousandths: i128, like: &str) -> String {
    if thousandths % 1000 != 0 {
        return format!("{thousandths}m");
    }
    let units = thousandths / 1000;
    for (suffix, shift) in [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40)] {
        let size = 1_i128 << shift;
        if like.ends_with(suffix) && units != 0 && units % size == 0 {
            return format!("{}{suffix}", units / size);
        }
    }
    units.to_string()
}

/// Writes a number of bytes as a quantity for people: in Ki or Mi, if there is at least one, rounded up.
pub fn format_size(bytes: u64) -> String {
    match bytes {
        0..1024 => bytes.to_string(),
        1024..1_048_576 => format!("{}Ki", bytes.div_ceil(1024)),
        _ => format!("{}Mi", bytes.div_ceil(1_048_576)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_are_quantities() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (1025, "2Ki"),
            (1_048_575, "1024Ki"),
            (1_048_576, "1Mi"),
            (5 << 20, "5Mi"),
            ((5 << 30) + 1, "5121Mi"),
        ] {
            assert_eq!(format_size(bytes), text);
            // Never less than there is.
            assert!(parse(text).unwrap() >= i128::from(bytes) * 1000, "{text}");
        }
    }

    #[test]
    fn quantities_are_read() {
        for (text, thousandths) in [
            ("0", 0),
            ("8", 8000),
            ("500m", 500),
            ("1.5", 1500),
            (".5", 500),
            ("1Ki", 1_024_000),
            ("1.5Gi", 1_610_612_736_000),
            ("1e3", 1_000_000),
            ("1E", 1_000_000_000_000_000_000_000),
            ("100n", 1),
            ("-2", -2000),
            ("2k", 2_000_000),
            // A GiB and a part of a byte, 16 of them, and the largest quantity: as API servers write them.
            ("1073741824000000001n", 1_073_741_824_001),
            ("17179869184000000001n", 17_179_869_184_001),
            ("9223372036854775807", 9_223_372_036_854_775_807_000),
        ] {
            assert_eq!(parse(text), Some(thousandths), "{text}");
        }
        for text in [
            "",
            "m",
            "1x",
            "abc",
            "1e",
            "1e99",
            "--",
            &"9".repeat(37),
            &format!("{}E", "9".repeat(36)),
            // The largest number that is read, and a factor by which it is rounded up.
            "0.00000000000000147573952589676412927Ei",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn quantities_keep_their_binary_suffix() {
        assert_eq!(format(6500, "8"), "6500m");
        assert_eq!(format(8000, "8000m"), "8");
        assert_eq!(format(1_024_000, "5Ki"), "1Ki");
        assert_eq!(format(1_025_000, "5Ki"), "1025");
        assert_eq!(format(0, "5Ki"), "0");
    }
}
