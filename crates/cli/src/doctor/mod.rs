//! `berth doctor`: checks a host cluster and the installation of Berth on it.

mod checks;
mod cluster;
mod facts;
mod gather;
mod latency;
mod network;
mod permissions;
mod retained;
mod tolerations;

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::error::Error;
use crate::host::HostArguments;
use crate::output::{self, OutputFormat};

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: OutputFormat,
}

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Level {
    Ok,
    /// It may be as intended, or could not be checked.
    Warning,
    /// Berth does not work as it should.
    Problem,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct CheckResult {
    /// Name of the check; several results may have the same.
    check: &'static str,
    level: Level,
    message: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl CheckResult {
    fn ok(check: &'static str, message: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Ok,
            message: message.into(),
            fix: None,
        }
    }

    fn warning(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Warning,
            message: message.into(),
            fix: Some(fix.into()),
        }
    }

    fn problem(check: &'static str, message: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            check,
            level: Level::Problem,
            message: message.into(),
            fix: Some(fix.into()),
        }
    }

    /// A check for which something could not be read.
    fn unknown(check: &'static str, error: &str) -> Self {
        let fix = if error.contains("forbidden") {
            "run it with more permissions on the host"
        } else {
            "see the log of the host's API server, and run it again"
        };
        Self::warning(check, format!("could not be checked: {error}"), fix)
    }
}

/// What `doctor` prints. Programs read it: fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    warnings: usize,
    problems: usize,
    checks: Vec<CheckResult>,
}

impl Report {
    fn new(checks: Vec<CheckResult>) -> Self {
        let count = |level: Level| checks.iter().filter(|result| result.level == level).count();
        Self {
            warnings: count(Level::Warning),
            problems: count(Level::Problem),
            checks,
        }
    }
}

pub(crate) async fn run(host: &HostArguments, arguments: &DoctorArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let facts = gather::gather(&host.client).await;
    if let Err(error) = &facts.version {
        return Err(unanswered(error));
    }
    let report = Report::new(checks::check(&facts));
    output::print(&report, describe, arguments.output)?;
    Ok(if report.problems == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What is wrong if the host does not say its version.
fn unanswered(error: &str) -> Error {
    Error::Failed(format!(
        "the host cluster does not answer: {error}; does it run, and is it the one that you mean? --context or --kubeconfig names another"
    ))
}

fn describe(report: &Report) -> String {
    let mut lines = Vec::new();
    for CheckResult {
        check,
        level,
        message,
        fix,
    } in &report.checks
    {
        let level = match level {
            Level::Ok => "ok     ",
            Level::Warning => "warning",
            Level::Problem => "PROBLEM",
        };
        lines.push(format!("{level}  {check}: {message}"));
        lines.extend(fix.iter().map(|fix| format!("         fix: {fix}")));
    }
    let count = |number: usize, noun: &str| match number {
        1 => format!("1 {noun}"),
        number => format!("{number} {noun}s"),
    };
    let (problems, warnings) = (count(report.problems, "problem"), count(report.warnings, "warning"));
    lines.extend([String::new(), format!("{problems}, {warnings}")]);
    output::join_lines(&lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_named_adds_no_line() {
        let message = "vision\nok       etcd: it answers";
        let text = describe(&Report::new(vec![CheckResult::problem("tenants", message, "a\tb")]));
        assert_eq!(text.lines().count(), 4, "{text}");
        assert!(text.starts_with("PROBLEM  tenants: vision\u{fffd}ok "), "{text}");
    }

    #[test]
    fn a_host_that_does_not_answer_may_be_another_one() {
        let error = unanswered("connection refused");
        assert_eq!(error.exit_code(), 1);
        let text = error.to_string();
        assert!(
            text.contains("connection refused") && text.contains("--context or --kubeconfig"),
            "{text}"
        );
    }

    #[test]
    fn a_report_has_a_line_for_each_check_and_the_fix() {
        let report = Report::new(vec![
            CheckResult::ok("version", "v1.37.1"),
            CheckResult::problem("control", "no control runs", "start it"),
            CheckResult::unknown("certificates", "secrets is forbidden"),
            CheckResult::unknown("etcd", "no answer within 20 s"),
        ]);
        let expected = "\
ok       version: v1.37.1
PROBLEM  control: no control runs
         fix: start it
warning  certificates: could not be checked: secrets is forbidden
         fix: run it with more permissions on the host
warning  etcd: could not be checked: no answer within 20 s
         fix: see the log of the host's API server, and run it again

1 problem, 2 warnings";
        assert_eq!(describe(&report), expected);
    }
}
