//! `berth-syncer`: see the library.

use clap::Parser;
use std::process::ExitCode;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    berth_runtime::install_crypto();
    let options = berth_syncer::Options::parse();
    berth_runtime::telemetry::init(options.log_format);
    match Box::pin(berth_syncer::run(options)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "the syncer ends");
            ExitCode::FAILURE
        }
    }
}
