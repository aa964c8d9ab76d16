//! `berth dev load`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use berth_local::{Home, HostCluster, HostClusterConfig};

use super::options::Options;
use crate::error::Error;
use crate::output::print_line;

/// Imports the images of archives on every real node of the cluster.
pub(crate) async fn run(home: &Path, archives: &[PathBuf]) -> Result<ExitCode, Error> {
    let home = Home::new(home);
    let Some(options) = Options::load(&home)? else {
        return Err(Error::NoCluster(home.root().to_owned()));
    };
    let paths: Result<Vec<PathBuf>, Error> = archives
        .iter()
        .map(|archive| {
            archive.canonicalize().map_err(|source| Error::File {
                action: "read",
                path: archive.clone(),
                source,
            })
        })
        .collect();
    let mut config = HostClusterConfig::new(home.root());
    config.nodes = options.nodes;
    config.real_nodes = options.real_nodes;
    config.kubernetes_version = options.kubernetes_version;
    HostCluster::attach(&config)?.load_archives(&paths?).await?;
    for archive in archives {
        print_line(format_args!("The images of {} are on all nodes.", archive.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
