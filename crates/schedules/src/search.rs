//! The search for changes of a state: of one policy, and of all policies of a tenant.

use crate::{NextChange, Standing};
use berth_api::ScheduleState;
use jiff::Timestamp;

/// When the state changes after an instant. `next` is the next instant at which it may change, and `most` how many of them are looked at.
pub(crate) fn find_change(
    after: Timestamp,
    most: usize,
    next: impl Fn(Timestamp) -> NextChange,
    state: impl Fn(Timestamp) -> ScheduleState,
) -> NextChange {
    let before = state(after);
    let mut from = after;
    for _ in 0..most {
        match next(from) {
            NextChange::At(at) if state(at) == before => from = at,
            found => return found,
        }
    }
    NextChange::NotBefore(from)
}

/// The next changes after an instant, `count` at most, with what is allowed from each on.
pub(crate) fn list_transitions<'a>(
    after: Timestamp,
    count: usize,
    next_change: impl Fn(Timestamp) -> NextChange,
    standing: impl Fn(Timestamp) -> Standing<'a>,
) -> Vec<(Timestamp, Standing<'a>)> {
    let mut found = Vec::new();
    let mut from = after;
    while found.len() < count {
        let NextChange::At(at) = next_change(from) else { break };
        found.push((at, standing(at)));
        from = at;
    }
    found
}
