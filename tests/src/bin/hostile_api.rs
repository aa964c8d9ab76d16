//! [`berth_tests::hostile_api`] in a pod: serves at the address that is its only argument, until it is killed.

use berth_tests::hostile_api::HostileApi;
use std::{net::SocketAddr, process::ExitCode};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    berth_runtime::install_crypto();
    let Some(Ok(address)) = std::env::args().nth(1).map(|text| text.parse::<SocketAddr>()) else {
        eprintln!("usage: hostile_api <address>:<port>");
        return ExitCode::FAILURE;
    };
    HostileApi::serve(address).await.run().await;
    ExitCode::FAILURE
}
