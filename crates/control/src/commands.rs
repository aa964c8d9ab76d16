//! Subcommands of `berth-control` for the chart's Jobs.

use crate::AnyError;
use berth_api::system;
use berth_control::install::{
    certificates::{self, Datastore},
    check,
    uninstall::{self, Keep},
};
use berth_runtime::{client, telemetry::LogFormat};
use clap::{Args, CommandFactory, Parser, Subcommand};
use jiff::Timestamp;
use kube::Client;
use std::{path::PathBuf, time::Duration};

/// Installation tasks.
#[derive(Debug, Parser)]
#[command(name = "berth-control", version)]
struct Commands {
    #[command(subcommand)]
    command: Command,
    /// Kubeconfig of the host cluster [default: the service account of this pod].
    #[arg(long, env = "KUBECONFIG", global = true)]
    kubeconfig: Option<PathBuf>,
    /// Format of log lines: text or json.
    #[arg(long, default_value = "text", global = true)]
    log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create or renew the datastore's certificates.
    Certificates(CertificatesArgs),
    /// Check that the host serves Berth's API, and that the replica of control that holds the lease is ready.
    CheckInstallation {
        /// Seconds to wait for both.
        #[arg(long, default_value_t = 60)]
        timeout: u64,
    },
    /// Check that no objects of tenants remain.
    CheckUninstall,
    /// Delete objects that Berth created and the chart does not list.
    CleanUp {
        /// Keep the PriorityClasses of TenantClasses, and what nodes say of the pools in which tenants share them.
        #[arg(long)]
        keep_classes: bool,
        /// Keep the datastore's certificates.
        #[arg(long)]
        keep_keys: bool,
    },
}

#[derive(Debug, Args)]
struct CertificatesArgs {
    /// Namespace of the datastore.
    #[arg(long, default_value = system::NAMESPACE)]
    namespace: String,
    /// Service that clients of the datastore connect to.
    #[arg(long)]
    service: String,
    /// Headless Service of the datastore's members.
    #[arg(long)]
    peers: String,
    /// Secret of the certificate authority of clients.
    #[arg(long)]
    authority_secret: String,
    /// Secret of the members' certificate for clients.
    #[arg(long)]
    server_secret: String,
    /// Secret of the certificate authority of members among themselves.
    #[arg(long)]
    peer_authority_secret: String,
    /// Secret of the certificate that members show each other.
    #[arg(long)]
    peer_secret: String,
}

/// A subcommand of the command line.
#[derive(Debug)]
pub(crate) struct Job(Commands);

impl Job {
    /// The job, if the first argument is one.
    pub(crate) fn from_command_line() -> Option<Self> {
        let first = std::env::args().nth(1)?;
        let is_known = Commands::command()
            .get_subcommands()
            .any(|known| known.get_name() == first);
        is_known.then(|| Self(Commands::parse()))
    }

    pub(crate) fn log_format(&self) -> LogFormat {
        self.0.log_format
    }

    pub(crate) async fn run(self) -> Result<(), AnyError> {
        let client = match &self.0.kubeconfig {
            Some(file) => client::from_file(file).await?,
            None => client::in_cluster()?,
        };
        match self.0.command {
            Command::Certificates(args) => {
                Ok(certificates::apply_certificates(&client, &args.into(), Timestamp::now()).await?)
            }
            Command::CheckInstallation { timeout } => {
                check::check_installation(&client, Duration::from_secs(timeout)).await?;
                tracing::info!("Berth is installed and works");
                Ok(())
            }
            Command::CheckUninstall => check_uninstall(&client).await,
            Command::CleanUp {
                keep_classes: classes,
                keep_keys: keys,
            } => Ok(uninstall::delete_unlisted_objects(&client, Keep { classes, keys }).await?),
        }
    }
}

async fn check_uninstall(client: &Client) -> Result<(), AnyError> {
    let Some(message) = uninstall::find_remaining_objects(client).await?.error_message() else {
        uninstall::remove_quota_finalizers(client).await?;
        uninstall::remove_node_risks(client).await?;
        uninstall::restore_nvidia_labels(client).await?;
        tracing::info!("no objects of tenants remain");
        return Ok(());
    };
    Err(message.into())
}

impl From<CertificatesArgs> for Datastore {
    fn from(args: CertificatesArgs) -> Self {
        Self {
            namespace: args.namespace,
            service: args.service,
            peers: args.peers,
            authority: args.authority_secret,
            server: args.server_secret,
            peer_authority: args.peer_authority_secret,
            peer: args.peer_secret,
        }
    }
}
