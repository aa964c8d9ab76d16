//! `berth-syncer`: see the library.

use clap::Parser;
use std::process::ExitCode;

/// Objects are trees of small pieces, and tasks are aligned to cache lines: of both glibc makes more work.
#[cfg(target_arch = "x86_64")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
