//! Times as objects have them.

use jiff::Timestamp;

/// The time without fractions of a second, which times in a spec and a status do not have.
pub fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_of_a_second_are_left_out() {
        let at = |text: &str| text.parse::<Timestamp>().unwrap();
        assert_eq!(whole_seconds(at("2026-05-05T12:00:00.7Z")), at("2026-05-05T12:00:00Z"));
        assert_eq!(whole_seconds(at("2026-05-05T12:00:01Z")), at("2026-05-05T12:00:01Z"));
        assert_eq!(whole_seconds(Timestamp::MAX).subsec_nanosecond(), 0);
    }
}
