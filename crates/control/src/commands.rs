//! What `berth-control` does besides running: the chart's jobs call it by these subcommands.

use crate::AnyError;
use berth_api::system;
use berth_control::install::{
    certificates::{self, Datastore},
    uninstall::{self, Kept},
};
use berth_runtime::{client, telemetry::LogFormat};
use clap::{Args, CommandFactory, Parser, Subcommand};
use jiff::Timestamp;
use kube::Client;
use std::path::PathBuf;

/// Jobs of an installation.
#[derive(Debug, Parser)]
#[command(name = "berth-control", version)]
struct Commands {
    #[command(subcommand)]
    command: Command,
    /// Kubeconfig of the host cluster [default: the service account of this pod].
    #[arg(long, env = "KUBECONFIG", global = true)]
    kubeconfig: Option<PathBuf>,
    /// How log lines look: text or json.
    #[arg(long, default_value = "text", global = true)]
    log_format: LogFormat,
}

/// What to do.
#[derive(Debug, Subcommand)]
enum Command {
    /// Make the datastore's certificates, or renew them.
    Certificates(CertificatesArgs),
    /// Say whether Berth may be removed: with tenants it may not.
    CheckUninstall {
        /// Say what remains and allow it.
        #[arg(long)]
        force: bool,
    },
    /// Remove what Berth made besides the chart.
    CleanUp {
        /// TenantClasses stay, and so do the PriorityClasses that were made for them.
        #[arg(long)]
        classes_stay: bool,
        /// The datastore's volumes stay, and so do its keys.
        #[arg(long)]
        keys_stay: bool,
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
    /// Secret of the certificate authority.
    #[arg(long)]
    authority_secret: String,
    /// Secret of the members' certificate.
    #[arg(long)]
    server_secret: String,
}

/// A job that the command line asks for.
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

    /// Does it.
    pub(crate) async fn run(self) -> Result<(), AnyError> {
        let client = match &self.0.kubeconfig {
            Some(file) => client::from_file(file).await?,
            None => client::in_cluster()?,
        };
        match self.0.command {
            Command::Certificates(args) => Ok(certificates::ensure(&client, &args.into(), Timestamp::now()).await?),
            Command::CheckUninstall { force } => check_uninstall(&client, force).await,
            Command::CleanUp {
                classes_stay: classes,
                keys_stay: keys,
            } => Ok(uninstall::clean_up(&client, Kept { classes, keys }).await?),
        }
    }
}

async fn check_uninstall(client: &Client, force: bool) -> Result<(), AnyError> {
    let Some(refusal) = uninstall::remains(client).await?.refusal() else {
        tracing::info!("nothing of tenants is left");
        return Ok(());
    };
    if force {
        tracing::warn!("{refusal}. It is uninstalled all the same, by force");
        return Ok(());
    }
    Err(refusal.into())
}

impl From<CertificatesArgs> for Datastore {
    fn from(args: CertificatesArgs) -> Self {
        Self {
            namespace: args.namespace,
            service: args.service,
            peers: args.peers,
            authority: args.authority_secret,
            server: args.server_secret,
        }
    }
}
