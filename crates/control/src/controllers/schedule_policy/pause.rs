//! When to evaluate schedules again.

use jiff::Timestamp;
use std::time::Duration;

/// The longest pause: so late it is noticed that the machine slept or that its clock was set.
const LONGEST: Duration = Duration::from_secs(60);
/// The shortest pause.
const SHORTEST: Duration = Duration::from_millis(10);

/// The pause until a change of a schedule.
pub(in crate::controllers) fn pause_until(now: Timestamp, next: Option<Timestamp>) -> Duration {
    let Some(next) = next else { return LONGEST };
    let left = Duration::try_from(next.duration_since(now)).unwrap_or_default();
    left.clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_not_slept_through() {
        let now = Timestamp::from_second(1000).unwrap();
        let pause =
            |second: Option<i64>| pause_until(now, second.map(|second| Timestamp::from_second(second).unwrap()));
        assert_eq!(pause(Some(1030)), Duration::from_secs(30));
        assert_eq!(pause(Some(5000)), LONGEST);
        assert_eq!(pause(None), LONGEST);
        assert_eq!(pause(Some(1000)), SHORTEST);
        assert_eq!(pause(Some(900)), SHORTEST);
    }
}
