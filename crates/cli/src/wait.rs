//! Waiting for a tenant, with a line for each change.

use std::collections::BTreeMap;
use std::time::Duration;

use berth_api::text::one_line;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::output::print_note;

/// Time between two reads of the object.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time that a read has in any case, even if hardly anything is left of `--timeout`.
const SHORTEST_READ: Duration = Duration::from_secs(5);

/// Reads again and again until `check` has a result. `message` says what was waited for when `timeout` is over. A host that does not
/// answer for a while, for example because its API server starts again, is asked again.
///
/// # Errors
/// [`Error::Timeout`], or what `check` fails with, except [`Error::Unanswered`].
pub(crate) async fn wait_for<T>(
    timeout: Duration,
    mut check: impl AsyncFnMut() -> Result<Option<T>, Error>,
    message: impl FnOnce() -> String,
) -> Result<T, Error> {
    let deadline = Instant::now() + timeout;
    let mut obstacle = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left.max(SHORTEST_READ), check()).await {
            Ok(Ok(Some(result))) => return Ok(result),
            Ok(Ok(None)) => obstacle = None,
            Ok(Err(Error::Unanswered(text))) => {
                if obstacle.is_none() {
                    print_note(format_args!("{text}; trying again"));
                }
                obstacle = Some(text);
            }
            Ok(Err(error)) => return Err(error),
            Err(_) => obstacle = Some("the host cluster does not answer".into()),
        }
        if Instant::now() + INTERVAL > deadline {
            let end = obstacle.map(|obstacle| format!("; {obstacle}")).unwrap_or_default();
            return Err(Error::Timeout(message() + &end));
        }
        sleep(INTERVAL).await;
    }
}

/// `90s`, `10m`, `1h30m`: a flag `--timeout`. As with kubectl, 0 needs no unit.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let duration: jiff::SignedDuration = text
        .parse()
        .map_err(|_| "expected a duration such as 90s, 10m or 1h30m".to_owned())?;
    duration
        .try_into()
        .map_err(|_| "expected a duration of 0s or more".to_owned())
}

/// What was shown of an object's conditions.
#[derive(Debug, Default)]
pub(crate) struct ConditionProgress {
    shown: BTreeMap<String, (String, String, String)>,
}

impl ConditionProgress {
    /// A line for each condition that is new or has changed.
    pub(crate) fn changes(&mut self, conditions: &[Condition]) -> Vec<String> {
        let mut lines = Vec::new();
        for condition in conditions {
            let state = (
                condition.status.clone(),
                condition.reason.clone(),
                condition.message.clone(),
            );
            if self.shown.get(&condition.type_) != Some(&state) {
                lines.push(format_condition(condition));
                self.shown.insert(condition.type_.clone(), state);
            }
        }
        lines
    }

    /// Prints the changes to stderr.
    pub(crate) fn print(&mut self, conditions: &[Condition]) {
        for line in self.changes(conditions) {
            print_note(format_args!("{line}"));
        }
    }
}

/// A condition in [one line](one_line).
pub(crate) fn format_condition(condition: &Condition) -> String {
    let Condition {
        type_,
        status,
        reason,
        message,
        ..
    } = condition;
    let message = if message.is_empty() {
        String::new()
    } else {
        format!(": {message}")
    };
    one_line(&format!("{type_} is {status} ({reason}){message}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn condition(kind: &str, status: &str, message: &str) -> Condition {
        serde_json::from_value(json!({
            "type": kind, "status": status, "reason": "Why", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }))
        .unwrap()
    }

    #[test]
    fn only_changes_are_shown() {
        let mut progress = ConditionProgress::default();
        let accepted = condition("Accepted", "True", "");
        assert_eq!(
            progress.changes(std::slice::from_ref(&accepted)),
            ["Accepted is True (Why)"]
        );
        assert!(progress.changes(std::slice::from_ref(&accepted)).is_empty());
        let nodes = condition("NodesReady", "False", "1 of 2\n· Ready");
        assert_eq!(
            progress.changes(&[accepted, nodes]),
            ["NodesReady is False (Why): 1 of 2\u{fffd}· Ready"]
        );
    }

    #[tokio::test]
    async fn what_is_there_already_is_not_waited_for() {
        let there = wait_for(Duration::ZERO, async || Ok(Some(1)), String::new).await;
        assert_eq!(there.unwrap(), 1);
        let never = wait_for(Duration::ZERO, async || Ok(None::<()>), || "it".into()).await;
        assert!(matches!(never, Err(Error::Timeout(_))));
    }

    #[tokio::test]
    async fn a_host_that_does_not_answer_for_a_while_is_asked_again() {
        let mut asked = 0;
        let check = async || {
            asked += 1;
            if asked == 1 {
                return Err(Error::Unanswered("refused".into()));
            }
            Ok(Some(asked))
        };
        assert_eq!(wait_for(Duration::from_mins(1), check, String::new).await.unwrap(), 2);
        let refused = async || Err::<Option<()>, _>(Error::Unanswered("refused".into()));
        let error = wait_for(Duration::ZERO, refused, || "not ready".into())
            .await
            .unwrap_err();
        assert!(
            matches!(&error, Error::Timeout(text) if text == "not ready; refused"),
            "{error}"
        );
        let denied = async || Err::<Option<()>, _>(Error::Failed("denied".into()));
        let error = wait_for(Duration::from_mins(1), denied, String::new).await;
        assert!(matches!(error, Err(Error::Failed(_))));
    }

    #[test]
    fn timeouts_are_durations() {
        assert_eq!(parse_timeout("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_timeout("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_timeout("0"), Ok(Duration::ZERO));
        assert!(parse_timeout("5").is_err() && parse_timeout("-5s").is_err());
    }
}
