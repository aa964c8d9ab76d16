//! Durations as Kubernetes writes them: `90s`, `10m`, `1h30m`.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A span of time: whole hours, minutes and seconds, such as `90s`, `10m` or `1h30m`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KubeDuration(String);

impl KubeDuration {
    /// A duration of `seconds`.
    pub fn of_seconds(seconds: u32) -> Self {
        Self(format!("{seconds}s"))
    }

    /// Its length. The schema rejects invalid texts; one that exists nevertheless counts as zero.
    pub fn seconds(&self) -> i64 {
        let mut sum: i64 = 0;
        let mut number: i64 = 0;
        for letter in self.0.chars() {
            let unit = match letter {
                'h' => 3600,
                'm' => 60,
                's' => 1,
                digit => {
                    let Some(digit) = digit.to_digit(10) else { return 0 };
                    number = number.saturating_mul(10).saturating_add(i64::from(digit));
                    continue;
                }
            };
            sum = sum.saturating_add(number.saturating_mul(unit));
            number = 0;
        }
        sum
    }
}

impl From<&str> for KubeDuration {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl JsonSchema for KubeDuration {
    fn schema_name() -> Cow<'static, str> {
        "KubeDuration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": 16,
            "pattern": "^([0-9]{1,5}h)?([0-9]{1,5}m)?([0-9]{1,6}s)?$",
            "minLength": 2,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::KubeDuration;

    #[test]
    fn hours_minutes_and_seconds_add_up() {
        for (text, seconds) in [
            ("90s", 90),
            ("10m", 600),
            ("1h30m", 5400),
            ("2h0m5s", 7205),
            ("0s", 0),
            ("x", 0),
        ] {
            assert_eq!(KubeDuration::from(text).seconds(), seconds, "{text}");
        }
        assert_eq!(KubeDuration::of_seconds(5).seconds(), 5);
    }
}
