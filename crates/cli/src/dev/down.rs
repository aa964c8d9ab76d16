//! `berth dev down`.

use std::path::Path;
use std::process::ExitCode;

use berth_local::{Home, destroy};

use crate::error::Error;
use crate::output::print_line;

/// Removes the cluster in any state. Running it again changes nothing.
pub(crate) async fn run(home: &Path) -> Result<ExitCode, Error> {
    let home = Home::new(home);
    let existed = home.root().exists();
    let root = home.root().to_owned();
    // The supervisor, control and all tenants carry the marker of this home, so they end with it.
    tokio::task::spawn_blocking(move || destroy(&root))
        .await
        .map_err(berth_local::Error::from)??;
    let what = if existed {
        "is down; all its data has been removed"
    } else {
        "was not up"
    };
    print_line(format_args!("The host cluster in {} {what}.", home.root().display()))?;
    Ok(ExitCode::SUCCESS)
}
