//! `berth`: creates and uses tenants, explains what the fleet does, checks an installation, and runs a local host cluster.
//!
//! Also works as a kubectl plug-in (`kubectl berth`) when the executable is found as `kubectl-berth`.

mod args;
mod completion;
mod connect;
mod create;
mod credentials;
mod debug;
mod delete;
mod dev;
mod doctor;
mod encryption;
mod error;
mod events;
mod explain;
mod get;
mod host;
mod idle;
mod images;
mod kubeconfig;
mod list;
mod log_lines;
mod logs;
mod man;
mod node;
mod nodes;
mod output;
mod quota;
mod restore;
mod rotation;
mod simulate;
mod sleep;
mod snapshot;
mod suggest;
mod tenant;
mod tenant_kubeconfig;
#[cfg(test)]
mod testing;
mod token;
mod usage;
mod user_config;
mod version;
mod wait;

use std::process::ExitCode;
use std::time::Duration;

use args::{Arguments, Command};
use clap::{CommandFactory as _, FromArgMatches as _};
use error::Error;
use host::HostArguments;
use tokio::runtime::Runtime;

/// How long what a command has begun may go on once the command is done.
const SHUTDOWN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    berth_runtime::install_crypto();
    if let Some(code) = completion::answer(Arguments::command) {
        return code;
    }
    match run(parse()) {
        Ok(code) => code,
        Err(error) => {
            output::print_text(format_args!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}

/// The arguments of this process. Wrong ones, `--help` and `--version` end it.
fn parse() -> Arguments {
    let mut command = completion::named(Arguments::command());
    let matches = command.get_matches_mut();
    Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

fn run(arguments: Arguments) -> Result<ExitCode, Error> {
    let Arguments { host, command } = arguments;
    let command = match command {
        Command::Completion { shell } => return completion::print_script(shell),
        Command::Man { dir } => return man::run(Arguments::command(), &dir),
        Command::Simulate(arguments) => return simulate::run(&arguments),
        command => command,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|source| Error::File {
            action: "start the runtime of",
            path: "berth".into(),
            source,
        })?;
    run_on(runtime, dispatch(&host, command))
}

/// Runs a command to its end. The runtime would wait for threads without limit, also for one that looks up a name that nobody answers.
fn run_on<T>(runtime: Runtime, command: impl Future<Output = T>) -> T {
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(SHUTDOWN);
    result
}

async fn dispatch(host: &HostArguments, command: Command) -> Result<ExitCode, Error> {
    match command {
        Command::Create(arguments) => create::run(host, &arguments).await,
        Command::List(arguments) => list::run(host, &arguments).await,
        Command::Get(arguments) => get::run(host, &arguments).await,
        Command::Delete(arguments) => delete::run(host, &arguments).await,
        Command::Kubeconfig(arguments) => kubeconfig::run(host, &arguments).await,
        Command::Credentials { command } => credentials::run(host, &command).await,
        Command::Encryption { command } => encryption::run(host, &command).await,
        Command::Connect(arguments) => connect::run(host, &arguments).await,
        Command::Disconnect(arguments) => connect::disconnect(host, &arguments),
        Command::Sleep(arguments) => sleep::run(host, sleep::Request::Sleep, &arguments).await,
        Command::Wake(arguments) => sleep::run(host, sleep::Request::Wake, &arguments).await,
        Command::Snapshot { command } => snapshot::run(host, &command).await,
        Command::Nodes(arguments) => nodes::run(host, &arguments).await,
        Command::Logs(arguments) => logs::run(host, &arguments).await,
        Command::Doctor(arguments) => doctor::run(host, &arguments).await,
        Command::Debug { command } => debug::run(host, &command).await,
        Command::Dev { command } => dev::run(&host.home, command).await,
        Command::Explain { target } => explain::run(host, &target).await,
        Command::Idle { namespaces, output } => idle::run(host, namespaces, output).await,
        Command::Restore { tenant, owners } => restore::run(host, &tenant, &owners).await,
        Command::Quota { namespaces, output } => quota::run(host, namespaces, output).await,
        Command::Images { command } => images::run(command).await,
        Command::Token { credential } => token::run(host, credential).await,
        Command::Usage(arguments) => usage::run(host, &arguments).await,
        Command::Version(arguments) => version::run(host, &arguments).await,
        // These need no runtime and have been run.
        Command::Completion { .. } | Command::Man { .. } | Command::Simulate(_) => Ok(ExitCode::SUCCESS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::park_timeout;
    use std::time::Instant;

    #[test]
    fn no_command_waits_for_a_thread_whose_answer_nobody_needs() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).build().unwrap();
        let begun = Instant::now();
        let is_running = run_on(runtime, async {
            let (running, is_running) = tokio::sync::oneshot::channel();
            drop(tokio::task::spawn_blocking(move || {
                let _ = running.send(());
                park_timeout(Duration::from_secs(60));
            }));
            is_running.await
        });
        assert_eq!(is_running, Ok(()));
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
