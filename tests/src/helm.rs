//! helm, as `make kubernetes` builds it.

use std::path::{Path, PathBuf};
use tokio::process::Command;

/// The version of helm.
pub const VERSION: &str = "v4.3.1";

/// Berth's cache of binaries and charts.
pub fn cache() -> PathBuf {
    match std::env::var_os("BERTH_CACHE") {
        Some(cache) => cache.into(),
        None => PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/berth"),
    }
}

/// A file that `make kubernetes` puts there.
///
/// # Panics
/// It is not there.
pub fn existing(path: PathBuf) -> PathBuf {
    assert!(path.exists(), "{} is missing; run `make kubernetes`", path.display());
    path
}

/// Berth's own chart.
pub fn chart() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/berth")
}

/// A helm that keeps everything in one folder, and uses the `kubeconfig` there if there is one.
pub struct Helm<'a> {
    /// The folder.
    pub home: &'a Path,
}

impl Helm<'_> {
    /// Runs helm and returns its output.
    ///
    /// # Errors
    /// What helm prints, if it fails.
    pub async fn run(&self, args: &[&str]) -> Result<String, String> {
        let program = existing(cache().join("bin/helm").join(VERSION).join("helm"));
        let output = Command::new(program)
            .args(args)
            .env("KUBECONFIG", self.home.join("kubeconfig"))
            .env("HELM_CACHE_HOME", self.home.join("cache"))
            .env("HELM_CONFIG_HOME", self.home.join("config"))
            .env("HELM_DATA_HOME", self.home.join("data"))
            .output()
            .await
            .map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!("{}{}", text(&output.stdout), text(&output.stderr)))
        }
    }
}
