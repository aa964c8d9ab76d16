//! Errors of `berth`, and what to do about them.

use std::io;
use std::path::PathBuf;

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
    #[error("there is no host cluster in {}; start one with `berth up`", .0.display())]
    NoCluster(PathBuf),
    #[error("the host cluster has Kubernetes {is} and cannot become {wanted}; remove it with `berth down` first")]
    OtherVersion { is: String, wanted: String },
    #[error("the nodes of the host cluster are {} and cannot change; remove it with `berth down` first", if *real { "real" } else { "simulated" })]
    OtherNodes { real: bool },
    #[error("another `berth supervise` runs for {}", .0.display())]
    AlreadySupervised(PathBuf),
    #[error("control is not ready after {seconds} s; see {}", log.display())]
    ControlNotReady { seconds: u64, log: PathBuf },
    #[error("{0}")]
    Explain(String),
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
