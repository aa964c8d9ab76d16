//! `berth-gateway`: see the library.

use clap::Parser;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    berth_runtime::install_crypto();
    let options = berth_gateway::Options::parse();
    berth_runtime::telemetry::init(options.log_format);
    match berth_gateway::run(options).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the gateway ends");
            ExitCode::FAILURE
        }
    }
}
