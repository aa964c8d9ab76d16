//! `berth`: a local host cluster with simulated GPU nodes, its status, and the simulation of a fleet.
//!
//! Also works as a kubectl plug-in (`kubectl berth`) when the executable is found as `kubectl-berth`.

mod args;
mod down;
mod error;
mod explain;
mod idle;
mod images;
mod kubeconfigs;
mod load;
mod nodes;
mod options;
mod output;
mod probe;
mod progress;
mod quota;
mod restore;
mod simulate;
mod status;
mod supervise;
mod token;
mod up;

use std::process::ExitCode;

use args::{Arguments, Command};
use clap::{CommandFactory as _, Parser as _};
use error::Error;

fn main() -> ExitCode {
    // Fails only if a provider is installed already, and there is only one.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let Arguments { command } = arguments;
    if let Command::Completion { shell } = command {
        let mut command = Arguments::command();
        let name = command.get_name().to_owned();
        clap_complete::generate(shell, &mut command, name, &mut std::io::stdout());
        return Ok(ExitCode::SUCCESS);
    }
    if let Command::Simulate(arguments) = command {
        return simulate::run(&arguments);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Error::File {
            action: "start the runtime of",
            path: "berth".into(),
            source,
        })?;
    runtime.block_on(async {
        match command {
            Command::Up(arguments) => up::run(arguments).await,
            Command::Down { home } => down::run(home).await,
            Command::Load { home, archives } => load::run(home, &archives).await,
            Command::Status { home, output } => status::run(home, output).await,
            Command::Explain { target } => explain::run(target).await,
            Command::Idle { home, output } => idle::run(home, output).await,
            Command::Restore { home, tenant, owners } => restore::run(home, &tenant, &owners).await,
            Command::Quota { home, output } => quota::run(home, output).await,
            Command::Images { command } => images::run(command).await,
            Command::Token { credential } => token::run(credential).await,
            Command::Version { output } => output::print_version(output),
            Command::Supervise { home } => supervise::run(home).await,
            Command::Completion { .. } | Command::Simulate(_) => Ok(ExitCode::SUCCESS),
        }
    })
}
