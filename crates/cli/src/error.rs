//! Errors of `berth`, and what to do about them.

use std::io;
use std::path::PathBuf;

use berth_api::text::{one_line, printable_start};

/// Exit status: the arguments are wrong. clap uses the same.
const USAGE: u8 = 2;
/// Exit status: what was named does not exist, or the local host cluster is not up.
pub(crate) const NOT_FOUND: u8 = 3;
/// Exit status: `--timeout` is over.
const TIMEOUT: u8 = 4;
/// Most bytes of an error of a request.
const MAX_MESSAGE: usize = 16 << 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Local(#[from] berth_local::Error),
    #[error(transparent)]
    Process(#[from] berth_process::Error),
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{} is missing: build it with `make build`, or start with --without-control", .0.display())]
    ProgramMissing(PathBuf),
    #[error(transparent)]
    Install(#[from] berth_control::install::InstallError),
    #[error("the host cluster did not come up: {message}\nthe log is {}", log.display())]
    NotUp { message: String, log: PathBuf },
    #[error("there is no host cluster in {}; start one with `berth dev up`", .0.display())]
    NoCluster(PathBuf),
    #[error("the host cluster has Kubernetes {is} and cannot become {wanted}; remove it with `berth dev down` first")]
    OtherVersion { is: String, wanted: String },
    #[error("the nodes of the host cluster are {} and cannot change; remove it with `berth dev down` first", if *real { "real" } else { "simulated" })]
    OtherNodes { real: bool },
    #[error("another `berth dev supervise` runs for {}", .0.display())]
    AlreadySupervised(PathBuf),
    #[error("{process} is not ready after {seconds} s; see {}", log.display())]
    ProcessNotReady {
        process: &'static str,
        seconds: u64,
        log: PathBuf,
    },
    /// The host cluster, a tenant or this machine does not do what was asked for.
    #[error("{0}")]
    Failed(String),
    /// The host cluster does not answer, or not now. Commands that wait try again.
    #[error("{0}")]
    Unanswered(String),
    /// The arguments do not fit together; what clap itself refuses does not come here.
    #[error("{0}")]
    Usage(String),
    /// The object that was named does not exist.
    #[error("{0}")]
    NotFound(String),
    /// What was waited for did not happen in time.
    #[error("{0}")]
    Timeout(String),
    #[error("{}: {source}", path.display())]
    Simulation {
        path: PathBuf,
        source: berth_simulate::Error,
    },
    #[error(transparent)]
    Chart(#[from] berth_simulate::ChartError),
    #[error("{0}")]
    Images(String),
    #[error("{0}")]
    SignIn(String),
    #[error("cannot write the output: {0}")]
    Output(String),
}

impl Error {
    /// The exit status of a command that ends with this error. docs/guides/cli.md lists them.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => USAGE,
            Self::NotFound(_) | Self::NoCluster(_) => NOT_FOUND,
            Self::Timeout(_) => TIMEOUT,
            _ => 1,
        }
    }
}

/// Puts what was tried before an error of the API server, and what to do behind it.
pub(crate) fn failed(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |error| {
        let text = format!("cannot {what}: {}{}", describe(&error), advise(&error));
        if is_unanswered(&error) {
            Error::Unanswered(text)
        } else {
            Error::Failed(text)
        }
    }
}

/// Whether the same request may succeed a moment later: there was no answer, or the API server is overloaded or starts.
fn is_unanswered(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::Service(_) | kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        _ => false,
    }
}

/// Whether the user lacks the permission for a request.
pub(crate) fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// What the user can do about an error of a request.
fn advise(error: &kube::Error) -> &'static str {
    match error {
        kube::Error::Api(status) => match status.code {
            401 => "; sign in to the host cluster again, or name another context with --context",
            403 => "; ask the platform for this permission",
            // Objects that do not exist are reported before: this is a kind that the API server does not know.
            // A team's kubeconfig leads to its tenant, which does not know it either.
            404 => {
                "; `berth doctor` shows whether Berth is installed there. If it is the API server of a \
                 tenant, name the kubeconfig of the host cluster with --kubeconfig"
            }
            _ => "",
        },
        _ if is_unanswered(error) => {
            "; does the host cluster run, and is it the one that you mean? --context names another"
        }
        _ => "",
    }
}

/// An error of a request: what the API server says, or else the error with all its causes. It is one line, and cut: a webhook of a tenant may have
/// written it, or a server that sends something else than errors, and the error of an answer that cannot be read repeats a part of it.
pub(crate) fn describe(error: &kube::Error) -> String {
    let text = match error {
        kube::Error::Api(status) => status.message.clone(),
        other => with_causes(other),
    };
    one_line(&printable_start(&text, MAX_MESSAGE))
}

/// An error with all its causes.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        // Some errors repeat their cause.
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_its_exit_status() {
        let text = String::new;
        assert_eq!(Error::Failed(text()).exit_code(), 1);
        assert_eq!(Error::Usage(text()).exit_code(), 2);
        assert_eq!(Error::NotFound(text()).exit_code(), 3);
        assert_eq!(Error::NoCluster("x".into()).exit_code(), 3);
        assert_eq!(Error::Timeout(text()).exit_code(), 4);
        assert_eq!(Error::Unanswered(text()).exit_code(), 1);
    }

    #[test]
    fn what_an_api_server_says_forges_no_line_and_fills_no_screen() {
        let text = |message: String| {
            let status = kube::core::Status {
                message,
                ..Default::default()
            };
            describe(&kube::Error::Api(Box::new(status)))
        };
        assert_eq!(
            text("denied\nerror: run sh\u{202e}\x1b[2J".into()),
            "denied\u{fffd}error: run sh\u{fffd}\u{fffd}[2J"
        );
        assert_eq!(text("x".repeat(MAX_MESSAGE + 1)).len(), MAX_MESSAGE);
        // An answer that is something else repeats it as well.
        let answer = format!("\"\\n{}\"", "x".repeat(MAX_MESSAGE));
        let unreadable = serde_json::from_str::<u8>(&answer).unwrap_err();
        let shown = describe(&kube::Error::SerdeError(unreadable));
        assert!(
            shown.contains("xxx") && shown.len() <= MAX_MESSAGE,
            "{} bytes",
            shown.len()
        );
    }

    #[test]
    fn errors_of_requests_say_what_to_do_and_whether_to_try_again() {
        let error = |code: u16| {
            let status = kube::core::Status {
                code,
                message: "no".into(),
                ..Default::default()
            };
            failed("list the nodes")(kube::Error::Api(Box::new(status)))
        };
        let text = error(403).to_string();
        assert_eq!(text, "cannot list the nodes: no; ask the platform for this permission");
        assert!(matches!(error(403), Error::Failed(_)));
        assert!(error(401).to_string().contains("--context"));
        assert!(error(404).to_string().contains("berth doctor"));
        assert!(matches!(error(503), Error::Unanswered(_)) && matches!(error(429), Error::Unanswered(_)));
        assert_eq!(error(409).to_string(), "cannot list the nodes: no");
    }
}
