//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

use crate::completion;
use crate::connect::{ConnectArguments, DisconnectArguments};
use crate::create::CreateArguments;
use crate::credentials::CredentialsCommand;
use crate::debug::DebugCommand;
use crate::delete::DeleteArguments;
use crate::dev::DevCommand;
use crate::doctor::DoctorArguments;
use crate::encryption::EncryptionCommand;
use crate::explain::ExplainTarget;
use crate::get::GetArguments;
use crate::host::HostArguments;
use crate::images::ImagesCommand;
use crate::kubeconfig::KubeconfigArguments;
use crate::list::ListArguments;
use crate::logs::LogsArguments;
use crate::nodes::NodesArguments;
use crate::output::ObjectFormat;
use crate::simulate::SimulateArguments;
use crate::sleep::SleepArguments;
use crate::snapshot::SnapshotCommand;
use crate::tenant::NamespacesArgument;
use crate::token::TokenCommand;
use crate::usage::UsageArguments;
use crate::version::VersionArguments;

/// Kubernetes clusters for teams, on one shared GPU fleet.
///
/// Commands talk to the local host cluster that `berth dev up` started, unless KUBECONFIG is set or flags name another one. As
/// `kubectl-berth` in the PATH, the program is `kubectl berth` as well.
#[derive(Debug, Parser)]
#[command(
    name = "berth",
    version,
    max_term_width = 100,
    after_help = "Exit status: 0 done, 1 failed, 2 wrong arguments, 3 not found or not up, 4 timed out."
)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(crate) host: HostArguments,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create a tenant: a Kubernetes cluster with nodes of its own.
    #[command(
        after_help = "Examples:\n  berth create vision -n team-vision --nodes h100=2 --wait\n  berth create vision --class gold --nodes train:h100=1,burst:l40s=0..4 --ttl 72h\n  berth create -f tenant.yaml --dry-run=server -o yaml"
    )]
    Create(CreateArguments),
    /// List the tenants of a namespace, or of all.
    ///
    /// The columns are those of `kubectl get tenantclusters`. GPUS is what the nodes have now, if you may list nodes and HostNodePools, and else what the
    /// status says.
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  berth list -A -o wide\n  berth list -n team-vision --watch\n  berth list -A -l stage=prod -o json\n  berth list -A --field-selector status.phase=Sleeping"
    )]
    List(ListArguments),
    /// Describe a tenant: its conditions, endpoint, nodes, quota, violations, schedule and expiry. Without a name, list tenants.
    #[command(
        visible_alias = "describe",
        after_help = "Examples:\n  berth get vision -n team-vision\n  berth get team-vision/vision -o yaml\n  berth get team-vision/vision --watch\n  berth get -A"
    )]
    Get(GetArguments),
    /// Delete tenants with everything in them, and wait until nothing is left.
    #[command(
        after_help = "Examples:\n  berth delete vision -n team-vision\n  berth delete team-vision/vision team-vision/speech --wait=false\n  berth delete vision --dry-run=server\n  berth delete -f tenant.yaml"
    )]
    Delete(DeleteArguments),
    /// Print a kubeconfig of a tenant: with which people sign in, that of its administrators, or one for a machine that expires.
    ///
    /// If the tenant names an issuer for kubeconfigs (spec.authentication.kubeconfig of it or of its class), the kubeconfig holds no
    /// secret: kubectl runs `berth token oidc`, and you sign in as yourself. You need the right to get the TenantCluster and no other.
    /// If the tenant names none, it is the kubeconfig of the administrators.
    #[command(
        after_help = "Examples:\n  berth kubeconfig vision -n team-vision --output-file vision.kubeconfig\n  berth kubeconfig vision --admin\n  berth kubeconfig vision --ttl 1h --service-account ci/deploy"
    )]
    Kubeconfig(KubeconfigArguments),
    /// Replace the client certificates of a tenant.
    Credentials {
        #[command(subcommand)]
        command: CredentialsCommand,
    },
    /// Show with which keys tenants encrypt what they store, and replace such a key.
    Encryption {
        #[command(subcommand)]
        command: EncryptionCommand,
    },
    /// Use a tenant: add a context to your kubeconfig and switch to it, or run a command with it.
    ///
    /// If the address of the tenant is not reached from here, connections go through the API server of the host, for which you need
    /// the verbs get and create on pods/portforward in the namespace of the control plane. This lasts until you press Ctrl-C. With a
    /// context of a tenant, other commands of berth still use the host cluster of the context before.
    #[command(
        after_help = "Examples:\n  berth connect vision -n team-vision\n  berth connect team-vision/vision -- kubectl get nodes"
    )]
    Connect(ConnectArguments),
    /// Remove the context that `connect` added, and go back to the one before.
    #[command(after_help = "Examples:\n  berth disconnect\n  berth disconnect team-vision/vision")]
    Disconnect(DisconnectArguments),
    /// Let a tenant sleep: its control plane stops and its nodes go back to their pools.
    #[command(after_help = "Examples:\n  berth sleep vision -n team-vision\n  berth sleep team-vision/vision --wait")]
    Sleep(SleepArguments),
    /// Wake a tenant that sleeps.
    #[command(
        after_help = "Examples:\n  berth wake vision -n team-vision\n  berth wake team-vision/vision --wait --timeout 5m"
    )]
    Wake(SleepArguments),
    /// Take snapshots of what a tenant stores, and set the tenant back to one.
    Snapshot {
        #[command(subcommand)]
        command: SnapshotCommand,
    },
    /// Show the nodes of host node pools, or of one tenant.
    #[command(
        after_help = "Examples:\n  berth nodes\n  berth nodes team-vision/vision\n  berth nodes -l topology.kubernetes.io/zone=eu-1a"
    )]
    Nodes(NodesArguments),
    /// Print the logs of a tenant's control plane.
    #[command(
        after_help = "Examples:\n  berth logs team-vision/vision --component kube-apiserver --tail 100 -f\n  berth logs team-vision/vision --since 10m\n  berth logs team-vision/vision --audit --tail 20"
    )]
    Logs(LogsArguments),
    /// Check the host cluster and the installation of Berth. Exits with status 1 if there is a problem.
    ///
    /// Reads only. What you may not read is reported as a warning. The expiry of certificates is read from Secrets of Berth, and
    /// nothing of them is printed but the time.
    #[command(after_help = "Examples:\n  berth doctor\n  berth doctor --context prod -o json")]
    Doctor(DoctorArguments),
    /// Collect what is needed to find a fault.
    Debug {
        #[command(subcommand)]
        command: DebugCommand,
    },
    /// Run a host cluster on this machine, for development and to try Berth out.
    Dev {
        #[command(subcommand)]
        command: DevCommand,
    },
    /// Explain which nodes a tenant has and why, which tenant has a node and why, or why a pod of a tenant does not run.
    #[command(
        after_help = "Examples:\n  berth explain tenant team-vision/vision\n  berth explain node gpu-7 -o yaml\n  berth explain pod team-vision/vision ml/train-0"
    )]
    Explain {
        #[command(subcommand)]
        target: ExplainTarget,
    },
    /// Show which workloads leave their GPUs idle, for how long, what that is worth, and when Berth gives the GPUs back; and nodes of which no
    /// pod requests a GPU.
    ///
    /// Reads the status of the TenantClusters: those of --namespace, or of all namespaces if you may list them. Workloads are those of tenants whose
    /// class sets spec.idleReclaim; nodes are those of all tenants.
    #[command(
        after_help = "Examples:\n  berth idle\n  berth idle -n team-vision\n  berth idle -o json | jq .totals\n  berth idle -o json | jq -r '.nodes[] | .name'"
    )]
    Idle {
        #[command(flatten)]
        namespaces: NamespacesArgument,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: ObjectFormat,
    },
    /// Start workloads of a tenant again that Berth stopped because their GPUs were idle.
    ///
    /// Control does it within a minute, once: what was scaled up meanwhile stays as it is. A team can do the same in its tenant.
    #[command(
        after_help = "Examples:\n  berth restore team-vision/vision\n  berth restore team-vision/vision deployment/ml/web"
    )]
    Restore {
        /// Name of the TenantCluster, or NAMESPACE/NAME.
        #[arg(value_name = "TENANT", add = completion::tenant_names())]
        tenant: String,
        /// Kind, namespace in the tenant and name of what to start. [default: everything that Berth stopped in the tenant]
        #[arg(value_name = "KIND/NAMESPACE/NAME")]
        owners: Vec<String>,
    },
    /// Show the quotas of Organizations, Projects and users, what they use, and why tenants and pods wait.
    ///
    /// Shows the Project of --namespace, or all Projects. If you may not list these, it shows why the tenants that you may list wait.
    #[command(after_help = "Examples:\n  berth quota\n  berth quota -n team-vision\n  berth quota -o json")]
    Quota {
        #[command(flatten)]
        namespaces: NamespacesArgument,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: ObjectFormat,
    },
    /// Show what tenants used on some days, and what that costs: GPUs, nodes, CPU, memory, storage and control planes.
    ///
    /// Reads the UsageRecords, in which control writes what each tenant uses, and the RateCards with the prices, which both are of all tenants. Shows
    /// the tenants of --namespace, or all; also those that are deleted. Days and months are in UTC. If you may not list UsageRecords, it shows
    /// what the status of the tenants that you name, or of those of --namespace, says of this month and of the last one.
    ///
    /// Exits with status 1 if costs are missing because RateCards are wrong. The report is printed all the same, and says what to correct.
    #[command(
        after_help = "Examples:\n  berth usage\n  berth usage -n team-vision --by tenant,pool,mode\n  berth usage --month 2026-10 --by organization,project --currency EUR\n  berth usage team-vision/vision --from 2026-11-01 --by day -o wide\n  berth usage --month 2026-10 -o focus > 2026-10.csv"
    )]
    Usage(UsageArguments),
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
    /// Print the versions of this program and of the binaries that it starts, and those of Kubernetes and Berth on the host cluster.
    ///
    /// If no host cluster answers within five seconds, a line on standard error says so, and the command succeeds. The version of Berth there is that of
    /// the Deployment berth-system/berth-control, and is left out if you may not read it.
    #[command(after_help = "Examples:\n  berth version\n  berth version --client -o json")]
    Version(VersionArguments),
    /// Write a manual page for each command into a directory.
    #[command(after_help = "Example:\n  berth man ~/.local/share/man/man1")]
    Man {
        /// The directory; it is created if it does not exist.
        #[arg(value_name = "DIR")]
        dir: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn global_flags_are_taken_before_and_after_a_command() {
        for line in [
            "berth --home /tmp/b --context prod -n team list",
            "berth list -n team --context prod --home /tmp/b",
        ] {
            let host = parse(line).unwrap().host;
            assert_eq!(host.home, PathBuf::from("/tmp/b"), "{line}");
            assert_eq!(host.context.as_deref(), Some("prod"), "{line}");
            assert_eq!(host.namespace.as_deref(), Some("team"), "{line}");
        }
        let dev = parse("berth dev status --home /tmp/b").unwrap();
        assert_eq!(dev.host.home, PathBuf::from("/tmp/b"));
    }

    #[test]
    fn up_takes_a_node_plan() {
        let arguments = parse("berth dev up --nodes h100=4,cpu=1").unwrap();
        let Command::Dev {
            command: DevCommand::Up(up),
        } = arguments.command
        else {
            panic!("not up")
        };
        assert_eq!(up.nodes.unwrap().plan.unwrap().to_string(), "h100=4,cpu=1");
        assert!(!up.without_control);
        let message = parse("berth dev up --nodes a100=4").unwrap_err().to_string();
        assert!(message.contains("h100=4,l40s=2,cpu=1"), "{message}");
    }

    #[test]
    fn a_table_is_printed_by_default() {
        let output = |line: &str| match parse(line).map(|arguments| arguments.command) {
            Ok(Command::Dev {
                command: DevCommand::Status { output },
            }) => Some(output),
            _ => None,
        };
        assert_eq!(output("berth dev status"), Some(ObjectFormat::Table));
        assert_eq!(output("berth dev status -o json"), Some(ObjectFormat::Json));
        assert_eq!(output("berth dev status -o xml"), None);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for line in [
            "berth up",
            "berth status",
            "berth create",
            "berth create a -f b",
            "berth create a --nodes h100",
            "berth create a --wait --timeout soon",
            "berth create a --timeout 1m",
            "berth wake a --timeout 1m",
            "berth credentials rotate a --timeout 1m",
            "berth encryption rotate a --timeout 1m",
            "berth snapshot create a --timeout 1m",
            "berth snapshot restore a b --timeout 1m",
            "berth create a --wait=soon",
            "berth sleep a -o json",
            "berth logs a --component nginx",
            "berth logs a --tail -2",
            "berth logs a --since-time yesterday",
            "berth logs a --since 5m --since-time 2026-11-30T14:00:00Z",
            "berth delete a --ignore-not-found=maybe",
            "berth logs a -f --previous",
            "berth logs a --audit=all",
            "berth create a --ttl 5",
            "berth create a --ttl=-1h",
            "berth create a --label team",
            "berth create a --label =x",
            "berth create a -l team=vision",
            "berth encryption rotate",
            "berth encryption status a -o wide",
            "berth doctor -o name",
            "berth get a -A",
            "berth nodes a -A",
            "berth encryption status a -A",
            "berth delete",
            "berth delete a --dry-run=all",
            "berth delete a -f b",
            "berth get a --field-selector status.phase=Ready",
            "berth explain tenant a -o wide",
            "berth kubeconfig a --ttl 1h",
            "berth kubeconfig a --service-account ci/deploy",
            "berth kubeconfig a --ttl 5m --service-account ci/deploy",
            "berth token service-account ci/deploy --ttl soon",
            "berth kubeconfig a --admin --ttl 1h --service-account ci/deploy",
            "berth token oidc --issuer https://a --client-id b --ca-file c --ca-data ZA==",
            "berth usage --month 2026-13",
            "berth usage --month 2026-11 --from 2026-11-01",
            "berth usage --month 2026-11 --to 2026-11-01",
            "berth usage --from yesterday",
            "berth usage --by team",
            "berth usage --by=",
            "berth usage -o name",
            "berth usage a -A",
            "berth snapshot",
            "berth snapshot create",
            "berth snapshot create a --ttl 5",
            "berth snapshot restore a",
            "berth snapshot get",
            "berth snapshot get a -o wide",
            "berth snapshot list a -A",
            "berth snapshot delete",
            "berth version -o name",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn right_arguments_are_taken() {
        for line in [
            "berth ls -A -l team=vision,stage!=prod -o wide",
            "berth list -w",
            "berth get",
            "berth get -A -w",
            "berth get a -w",
            "berth list -A --field-selector status.phase!=Ready",
            "berth list --request-timeout 0 --namespace team",
            "berth list --request-timeout 30",
            "berth get a -o wide",
            "berth get a --ignore-not-found",
            "berth get a --ignore-not-found=true -o name",
            "berth list -A --no-headers -w",
            "berth describe a",
            "berth create a --nodes h100=1,burst:h100=0..2 --dry-run=client -o name",
            "berth create -f -",
            "berth delete a --wait=false --ignore-not-found",
            "berth delete a --wait",
            "berth delete a --ignore-not-found=true --timeout=0",
            "berth snapshot delete a --ignore-not-found=false",
            "berth delete a team/b -i --dry-run=server -o name",
            "berth delete -f -",
            "berth connect a -- kubectl get ns -o name",
            "berth connect a --admin",
            "berth kubeconfig a --admin",
            "berth disconnect",
            "berth create a --wait=false",
            "berth sleep a --wait --timeout 1m",
            "berth wake --wait a -o name",
            "berth sleep a --wait=true",
            "berth credentials rotate team/a --wait -o name",
            "berth encryption rotate team/a --wait --timeout 1h -o name",
            "berth encryption status",
            "berth encryption status team/a -o name",
            "berth kubeconfig a --ttl 1h --service-account ci/deploy",
            "berth logs a --audit --tail 20 --timestamps",
            "berth logs a --since 1h30m -f -c syncer",
            "berth debug bundle a --output-file b.tar.gz",
            "berth explain pod team/a ml/b",
            "berth explain tenant team/a -o name",
            "berth quota -o name",
            "berth idle -A -o name",
            "berth nodes -A",
            "berth encryption status -A",
            "berth quota --all-namespaces",
            "berth nodes -l berth.dev/pool=h100 -o name",
            "berth dev status -o name",
            "berth delete a -i --timeout 1m",
            "berth create a --label team=vision,stage=prod --annotation note=a=b --ttl 1h30m",
            "berth usage",
            "berth usage team/a b --month 2026-11 --by tenant,day --currency EUR -o csv",
            "berth usage --from 2026-11-01 --to 2026-11-02 --by project --by pool -o focus",
            "berth usage --to 2026-11-02 -o wide",
            "berth usage -A",
            "berth snapshot create team/a --name b --ttl 72h --wait --timeout 1m",
            "berth snapshot create a --wait=false",
            "berth snapshot restore a b -y --wait=true --timeout 1m",
            "berth snapshot ls",
            "berth snapshot list team/a -o name",
            "berth snapshot restore team/a b -y --without-saving --wait",
            "berth snapshot delete a b -n team",
            "berth snapshot delete team/a --wait=false --ignore-not-found -o name",
            "berth snapshot list -A -l a=b -o wide --no-headers",
            "berth snapshot create a -o name",
            "berth snapshot describe team/a -o yaml",
            "berth version --client -o json",
            "berth version --context prod -o yaml",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
    }

    #[test]
    fn help_hides_internal_commands() {
        let mut command = Arguments::command();
        let help = command.render_long_help().to_string();
        assert!(help.contains("completion") && help.contains("Exit status"), "{help}");
        let dev = command
            .find_subcommand_mut("dev")
            .unwrap()
            .render_long_help()
            .to_string();
        assert!(dev.contains("status") && !dev.contains("supervise"), "{dev}");
    }
}
