//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

use crate::images::ImagesCommand;
use crate::nodes::NodesArgument;
use crate::output::OutputFormat;
use crate::simulate::SimulateArguments;
use crate::token::TokenCommand;

/// Kubernetes clusters for teams, on one shared GPU fleet.
#[derive(Debug, Parser)]
#[command(name = "berth", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a host cluster with GPU nodes on this machine, and install Berth on it.
    ///
    /// A real node is a kubelet with its own containers, network and network policies, in Linux namespaces on this machine. Only
    /// its GPUs do not exist. A simulated node is an object in the API and runs no containers; a machine can have thousands.
    ///
    /// You can run this command again: it starts what does not run and adds the nodes that are missing.
    #[command(
        after_help = "Examples:\n  berth up\n  berth up --nodes real:cpu=1,h100=2\n  berth up --nodes h100=40,l40s=20,cpu=1"
    )]
    Up(UpArguments),
    /// Stop the local host cluster and all its tenants, and delete their data.
    Down {
        #[command(flatten)]
        home: HomeArgument,
    },
    /// Load container images from archives onto the real nodes of the local host cluster.
    ///
    /// An archive is a file that `docker save` writes, or an OCI image layout as a tar file. Pods find the images by the names
    /// in the archive; use an image pull policy other than Always.
    #[command(after_help = "Example:\n  docker save -o app.tar example.com/app:1 && berth load app.tar")]
    Load {
        #[command(flatten)]
        home: HomeArgument,
        /// Archives of images.
        #[arg(required = true, value_name = "ARCHIVE")]
        archives: Vec<PathBuf>,
    },
    /// Show the processes, nodes and tenants of the local host cluster. Exits with status 3 if the cluster is not up.
    Status {
        #[command(flatten)]
        home: HomeArgument,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Explain which nodes a tenant has and why, or which tenant has a node and why.
    ///
    /// Reads from the local host cluster, or from the cluster in KUBECONFIG. Also available as `kubectl berth explain`.
    #[command(after_help = "Examples:\n  berth explain tenant team-vision/vision\n  berth explain node gpu-7 -o yaml")]
    Explain {
        #[command(subcommand)]
        target: ExplainTarget,
    },
    /// Show which workloads leave their GPUs idle, for how long, what that is worth, and when Berth gives the GPUs back.
    ///
    /// Reads the status of the TenantClusters from the local host cluster, or from the cluster in KUBECONFIG. Shows tenants whose
    /// class sets spec.idleReclaim. Also available as `kubectl berth idle`.
    #[command(after_help = "Examples:\n  berth idle\n  berth idle -o json | jq .totals")]
    Idle {
        #[command(flatten)]
        home: HomeArgument,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Start workloads of a tenant again that Berth scaled to zero because their GPUs were idle.
    ///
    /// Asks for it in the local host cluster, or in the cluster in KUBECONFIG. Control does it within a minute, once: what was scaled
    /// up meanwhile stays as it is. A team can do the same in its tenant. Also available as `kubectl berth restore`.
    #[command(
        after_help = "Examples:\n  berth restore team-vision/vision\n  berth restore team-vision/vision deployment/ml/web"
    )]
    Restore {
        /// Namespace and name of the TenantCluster.
        #[arg(value_name = "NAMESPACE/NAME")]
        tenant: String,
        /// Kind, namespace in the tenant and name of what to start. [default: everything that Berth stopped in the tenant]
        #[arg(value_name = "KIND/NAMESPACE/NAME")]
        owners: Vec<String>,
        #[command(flatten)]
        home: HomeArgument,
    },
    /// Show the quotas of Organizations, Projects and users, what they use, and why tenants and pods wait.
    ///
    /// Reads from the local host cluster, or from the cluster in KUBECONFIG. Also available as `kubectl berth quota`.
    #[command(after_help = "Examples:\n  berth quota\n  berth quota -o json")]
    Quota {
        #[command(flatten)]
        home: HomeArgument,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Get a credential for a tenant that expires: of a person, by signing in at an OIDC issuer, or of a ServiceAccount.
    Token {
        #[command(subcommand)]
        credential: TokenCommand,
    },
    /// Replay a trace of GPU jobs on a fleet, to compare static partitions with nodes that follow demand.
    ///
    /// The simulation uses the same planner as a cluster. docs/guides/simulate.md describes the simulation and defines each figure.
    #[command(
        after_help = "Examples:\n  berth simulate examples/traces/philly-500.csv\n  berth simulate philly.csv.gz --nodes 128 --load 0.8 -o json\n  berth simulate philly.csv.gz --chart use.svg"
    )]
    Simulate(SimulateArguments),
    /// List, save and load the images that an installation of this version needs, for hosts without access to the internet.
    Images {
        #[command(subcommand)]
        command: ImagesCommand,
    },
    /// Print a completion script for a shell.
    #[command(after_help = "Example:\n  source <(berth completion bash)")]
    Completion {
        /// Shell to print the script for.
        shell: Shell,
    },
    /// Print the versions of Berth and of the binaries that it starts.
    Version {
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Run the local host cluster in the foreground. `up` starts this in the background.
    #[command(hide = true)]
    Supervise {
        #[command(flatten)]
        home: HomeArgument,
    },
}

/// What `explain` explains.
#[derive(Debug, Subcommand)]
pub(crate) enum ExplainTarget {
    /// Explain the node groups of a tenant, what they wait for, and its nodes.
    Tenant {
        /// Namespace and name of the TenantCluster.
        #[arg(value_name = "NAMESPACE/NAME")]
        tenant: String,
        #[command(flatten)]
        home: HomeArgument,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Explain to which tenant a host node is assigned, its state and the reason.
    Node {
        /// Name of the node.
        #[arg(value_name = "NAME")]
        node: String,
        #[command(flatten)]
        home: HomeArgument,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

/// Where the cluster keeps its state.
#[derive(Clone, Debug, Args)]
pub(crate) struct HomeArgument {
    /// Directory with the state of the local cluster.
    #[arg(long, env = "BERTH_HOME", default_value = ".berth", value_name = "DIR")]
    pub(crate) home: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    #[command(flatten)]
    pub(crate) home: HomeArgument,
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
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Arguments::try_parse_from(line.split(' ')).map(|arguments| arguments.command)
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn up_takes_a_node_plan() {
        let Command::Up(up) = parse("berth up --home /tmp/b --nodes h100=4,cpu=1").unwrap() else {
            panic!("not up")
        };
        assert_eq!(up.home.home, PathBuf::from("/tmp/b"));
        assert_eq!(up.nodes.unwrap().plan.unwrap().to_string(), "h100=4,cpu=1");
        assert!(!up.without_control);
    }

    #[test]
    fn a_wrong_node_plan_is_explained() {
        let message = parse("berth up --nodes a100=4").unwrap_err().to_string();
        assert!(message.contains("h100=4,l40s=2,cpu=1"), "{message}");
    }

    #[test]
    fn status_prints_a_table_by_default() {
        let Command::Status { output, .. } = parse("berth status").unwrap() else {
            panic!("not status")
        };
        assert_eq!(output, OutputFormat::Table);
        let Command::Status { output, .. } = parse("berth status -o json").unwrap() else {
            panic!("not status")
        };
        assert_eq!(output, OutputFormat::Json);
        assert!(parse("berth status -o xml").is_err());
    }

    #[test]
    fn help_hides_internal_commands() {
        let help = Arguments::command().render_long_help().to_string();
        assert!(help.contains("completion") && !help.contains("supervise"), "{help}");
    }
}
