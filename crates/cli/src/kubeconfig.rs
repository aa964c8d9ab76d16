//! `berth kubeconfig`: the kubeconfig of a tenant.

use std::path::PathBuf;
use std::process::ExitCode;

use berth_process::write_atomic;
use clap::Args;

use crate::completion;
use crate::error::Error;
use crate::host::HostArguments;
use crate::output::print_line;
use crate::tenant;

#[derive(Debug, Args)]
pub(crate) struct KubeconfigArguments {
    /// Name of the TenantCluster, or NAMESPACE/NAME.
    #[arg(add = completion::tenant_names())]
    name: String,
    /// Write it to this file, which only you can read, in place of stdout.
    #[arg(long, value_name = "FILE")]
    output_file: Option<PathBuf>,
}

pub(crate) async fn run(host: &HostArguments, arguments: &KubeconfigArguments) -> Result<ExitCode, Error> {
    let host = host.connect().await?;
    let (name, tenant) = tenant::find(&host, &arguments.name).await?;
    let text = tenant::read_kubeconfig(&host, &name, &tenant).await?;
    match &arguments.output_file {
        None => print_line(format_args!("{}", text.trim_end()))?,
        Some(path) => {
            write_atomic(path, text.as_bytes(), 0o600)?;
            eprintln!("The kubeconfig of {name} is in {}.", path.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}
