//! `berth dev`: a host cluster on this machine, for development and to try Berth out.

mod chart;
mod down;
mod gateway;
mod kubeconfigs;
mod load;
mod nodes_argument;
mod options;
mod probe;
mod progress;
mod status;
mod supervise;
mod up;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::error::Error;
use crate::output::ObjectFormat;
use nodes_argument::NodesArgument;

#[derive(Debug, Subcommand)]
pub(crate) enum DevCommand {
    /// Start a host cluster with GPU nodes on this machine, and install Berth on it.
    ///
    /// A real node is a kubelet with its own containers, network and network policies, in Linux namespaces on this machine. Only
    /// its GPUs do not exist. A simulated node is an object in the API and runs no containers; a machine can have thousands.
    ///
    /// You can run this command again: it starts what does not run and adds the nodes that are missing.
    #[command(
        after_help = "Examples:\n  berth dev up\n  berth dev up --nodes real:cpu=1,h100=2\n  berth dev up --nodes h100=40,l40s=20,cpu=1\n  berth dev up --gateway"
    )]
    Up(UpArguments),
    /// Stop the local host cluster and all its tenants, and delete their data.
    Down,
    /// Load container images from archives onto the real nodes of the local host cluster.
    ///
    /// An archive is a file that `docker save` writes, or an OCI image layout as a tar file. Pods find the images by the names
    /// in the archive; use an image pull policy other than Always.
    #[command(after_help = "Example:\n  docker save -o app.tar example.com/app:1 && berth dev load app.tar")]
    Load {
        /// Archives of images.
        #[arg(required = true, value_name = "ARCHIVE")]
        archives: Vec<PathBuf>,
    },
    /// Show the processes, nodes and tenants of the local host cluster. Exits with status 3 if the cluster is not up.
    Status {
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: ObjectFormat,
    },
    /// Run the local host cluster in the foreground. `up` starts this in the background.
    #[command(hide = true)]
    Supervise,
}

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    /// Type of the nodes, number of nodes of each shape, or both. Types: real (needs Linux and root), simulated. Shapes: h100
    /// (8 × H100 80GB), l40s (4 × L40S), cpu. Without a type, nodes are simulated. [default: real if possible, else simulated]
    #[arg(long, value_name = "real|simulated[:SHAPE=COUNT,...]")]
    pub(crate) nodes: Option<NodesArgument>,
    /// Kubernetes version of the host cluster. [default: v1.37.1]
    #[arg(long, value_name = "VERSION")]
    pub(crate) kubernetes_version: Option<String>,
    /// Start the host cluster without berth-control.
    #[arg(long)]
    pub(crate) without_control: bool,
    /// Serve the API servers of all tenants at one port of this machine, as `<tenant>.<namespace>.localhost`. Kubeconfigs lead there
    /// without DNS. `--gateway=false` ends it. [default: as before, at first without]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true",
        conflicts_with = "without_control")]
    pub(crate) gateway: Option<bool>,
}

/// Runs a command on the local host cluster whose state is in `home`.
pub(crate) async fn run(home: &Path, command: DevCommand) -> Result<ExitCode, Error> {
    match command {
        DevCommand::Up(arguments) => up::run(home, &arguments).await,
        DevCommand::Down => down::run(home).await,
        DevCommand::Load { archives } => load::run(home, &archives).await,
        DevCommand::Status { output } => status::run(home, output).await,
        DevCommand::Supervise => supervise::run(home).await,
    }
}
