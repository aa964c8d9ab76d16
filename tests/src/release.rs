//! The artifacts of a release, of programs of this build.

use crate::{
    files::binary,
    helm::{VERSION as HELM, cache, existing},
};
use berth_local::images::host_architecture;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The version of the release.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The public key that [`make_key`] writes.
pub const PUBLIC_KEY: &str = "berth.pub";

/// Runs a command that must succeed in a folder; returns what it prints.
pub fn run(folder: &Path, program: &str, arguments: &[&str]) -> String {
    let outcome = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    let errors = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{program} {arguments:?}: {errors}");
    String::from_utf8(outcome.stdout).unwrap()
}

/// Makes a key that signs releases in a folder, as the page about releases says, and [`PUBLIC_KEY`] beside it. Returns its path.
pub fn make_key(folder: &Path) -> PathBuf {
    let curve = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"];
    run(folder, "openssl", &[&curve[..], &["-out", "berth.key"]].concat());
    run(
        folder,
        "openssl",
        &["pkey", "-in", "berth.key", "-pubout", "-out", PUBLIC_KEY],
    );
    folder.join("berth.key")
}

/// Writes the artifacts of the programs in a folder below `output`; returns their folder.
pub fn write(programs: &Path, output: &Path, key: Option<&Path>) -> PathBuf {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let helm = existing(cache().join("bin/helm").join(HELM).join("helm"));
    let mut command = Command::new(binary("artifacts"));
    command
        .arg(format!("--programs={}={}", host_architecture(), programs.display()))
        .arg(format!("--output={}", output.display()))
        .arg(format!("--root={}", checkout.display()))
        .arg(format!("--helm={}", helm.display()))
        .env("SOURCE_DATE_EPOCH", "1700000000")
        .env_remove("BERTH_SIGNING_KEY");
    if let Some(key) = key {
        command.env("BERTH_SIGNING_KEY", key);
    }
    let outcome = command.output().unwrap();
    let errors = String::from_utf8_lossy(&outcome.stderr);
    assert!(outcome.status.success(), "{errors}");
    assert_eq!(errors.contains("not signed"), key.is_none(), "{errors}");
    output.join(VERSION)
}
