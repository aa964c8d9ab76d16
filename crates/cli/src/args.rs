//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::nodes::NodesArgument;
use crate::simulate::SimulateArguments;

/// Kubernetes clusters for teams, on one shared GPU fleet.
#[derive(Debug, Parser)]
#[command(name = "berth", version, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a host cluster with GPU nodes on this machine, and Berth on it.
    ///
    /// Real nodes are kubelets with containers, networks and policies of their own, in namespaces of this machine; only their
    /// GPUs are make-believe. Simulated nodes are entries in the API, of which one machine has thousands.
    ///
    /// Can be repeated: what runs is left alone, what is missing is started, nodes that are missing are added.
    #[command(
        after_help = "Examples:\n  berth up\n  berth up --nodes real:cpu=1,h100=2\n  berth up --nodes h100=40,l40s=20,cpu=1"
    )]
    Up(UpArguments),
    /// Stop the local host cluster with all its tenants, and remove every trace of it.
    Down {
        #[command(flatten)]
        home: HomeArgument,
    },
    /// Show processes, nodes and tenants of the local host cluster. The exit code is 3 when it is not up.
    Status {
        #[command(flatten)]
        home: HomeArgument,
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// Say why a tenant has the nodes that it has, or why a node is where it is.
    ///
    /// Asks the local host cluster, or the one that KUBECONFIG leads to. Works as `kubectl berth explain` too.
    #[command(after_help = "Examples:\n  berth explain tenant team-vision/vision\n  berth explain node gpu-7 -o yaml")]
    Explain {
        /// What to explain.
        #[command(subcommand)]
        target: ExplainTarget,
    },
    /// Replay a trace of GPU jobs on a fleet: static partitions against nodes that follow demand.
    ///
    /// The planner that decides is the very one that runs in clusters. docs/guides/simulate.md says what is simulated and how each
    /// figure is defined.
    #[command(
        after_help = "Examples:\n  berth simulate examples/traces/philly-500.csv\n  berth simulate philly.csv.gz --nodes 128 --load 0.8 -o json\n  berth simulate philly.csv.gz --chart use.svg"
    )]
    Simulate(SimulateArguments),
    /// Print a script that completes berth's commands in a shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
    /// Print the versions of Berth and of the binaries it starts.
    Version,
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
    /// A tenant: its node groups, what they wait for, and its nodes.
    Tenant {
        /// The `TenantCluster`.
        #[arg(value_name = "NAMESPACE/NAME")]
        tenant: String,
        #[command(flatten)]
        home: HomeArgument,
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
    /// A host node: whose it is, its state and why.
    Node {
        /// Its name.
        #[arg(value_name = "NAME")]
        node: String,
        #[command(flatten)]
        home: HomeArgument,
        /// How to print it.
        #[arg(short, long, value_enum, default_value_t)]
        output: OutputFormat,
    },
}

/// Where the cluster keeps its state.
#[derive(Clone, Debug, Args)]
pub(crate) struct HomeArgument {
    /// Directory of the cluster's state.
    #[arg(long, env = "BERTH_HOME", default_value = ".berth", value_name = "DIR")]
    pub(crate) home: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct UpArguments {
    #[command(flatten)]
    pub(crate) home: HomeArgument,
    /// The sort of nodes, how many of each shape, or both. Sorts: real (Linux, root), simulated. Shapes: h100 (8 × H100
    /// 80GB), l40s (4 × L40S), cpu. Shapes alone are of simulated nodes. [default: real where that works, else simulated]
    #[arg(long, value_name = "real|simulated[:SHAPE=COUNT,...]")]
    pub(crate) nodes: Option<NodesArgument>,
    /// Kubernetes version of the host cluster. [default: v1.37.1]
    #[arg(long, value_name = "VERSION")]
    pub(crate) kubernetes_version: Option<String>,
    /// Start the host cluster alone, without Berth's operator.
    #[arg(long)]
    pub(crate) without_control: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For programs and people.
    Yaml,
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
    fn status_prints_a_table_unless_told_otherwise() {
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
    fn help_does_not_show_what_is_internal() {
        let help = Arguments::command().render_long_help().to_string();
        assert!(help.contains("completion") && !help.contains("supervise"), "{help}");
    }
}
