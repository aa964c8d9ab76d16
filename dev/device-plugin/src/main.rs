//! `berth-device-plugin`: see the library.

use std::process::ExitCode;

use berth_device_plugin::{Options, run};
use clap::Parser;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let options = Options::parse();
    berth_runtime::telemetry::init(options.log_format);
    let shutdown = match berth_runtime::shutdown::signals() {
        Ok(shutdown) => shutdown,
        Err(error) => {
            tracing::error!(%error, "no signal handlers");
            return ExitCode::FAILURE;
        }
    };
    run(&options, shutdown).await;
    ExitCode::SUCCESS
}
