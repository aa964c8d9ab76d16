//! `berth kubeconfig`: a kubeconfig with which people sign in, that of a tenant's administrators, or one with a token that expires.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::completion;
use crate::error::Error;
use crate::host::HostArguments;
use crate::output::print_text;
use crate::tenant;
use crate::tenant_kubeconfig::{self, TenantKubeconfig};
use crate::token::service_account::{expiring_kubeconfig, parse_ttl, read_account};
use crate::user_config::file::print_or_write;
use crate::user_config::read::read_text;

#[derive(Debug, Args)]
pub(crate) struct KubeconfigArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Write it to this file, which only you can read, in place of stdout.
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
    /// Print the kubeconfig of the administrators, a client certificate with its key, also if people can sign in. You need the right to
    /// read its Secret.
    #[arg(long)]
    admin: bool,
    /// Print a kubeconfig for a machine: with a token of this ServiceAccount in the tenant, which must exist. Delete it to revoke its
    /// tokens. Berth requests the token with the kubeconfig of the administrators.
    #[arg(long, value_name = "NAMESPACE/NAME", requires = "ttl", conflicts_with = "admin")]
    service_account: Option<String>,
    /// How long the token of the ServiceAccount is valid: at least 10m.
    #[arg(long, value_name = "DURATION", requires = "service_account", value_parser = parse_ttl)]
    ttl: Option<i64>,
}

pub(crate) async fn run(host: &HostArguments, arguments: &KubeconfigArguments) -> Result<ExitCode, Error> {
    let account = arguments.service_account.as_deref().map(read_account).transpose()?;
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    let is_admin = arguments.admin || account.is_some();
    let TenantKubeconfig { mut text, issuer } = tenant_kubeconfig::load(&host, &name, &tenant, is_admin).await?;
    if let (Some(account), Some(ttl)) = (account, arguments.ttl) {
        let administrators = read_text(&text);
        let administrators = administrators
            .map_err(|error| Error::Failed(format!("the kubeconfig of {name} cannot be read: {error}")))?;
        text = expiring_kubeconfig(administrators, account, ttl).await?;
    }
    print_or_write(&text, arguments.output_file.as_deref(), &name.to_string())?;
    if let Some(issuer) = issuer {
        print_text(format_args!("· it holds no secret: kubectl signs you in at {issuer}"));
    }
    Ok(ExitCode::SUCCESS)
}
