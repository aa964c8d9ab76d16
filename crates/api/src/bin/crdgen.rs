//! Writes the custom resource definitions to `charts/berth/crds`, or with `--check` says which differ.

use std::{error::Error, fs, path::Path, process::ExitCode};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let check = std::env::args().any(|arg| arg == "--check");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/berth/crds");
    fs::create_dir_all(&folder)?;
    let mut stale = 0;
    for crd in berth_api::crd::all() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        let path = folder.join(format!("{name}.yaml"));
        let text = format!(
            "# Generated from crates/api by `make generate`.\n{}",
            serde_saphyr::to_string(&crd)?
        );
        if fs::read_to_string(&path).is_ok_and(|current| current == text) {
            continue;
        }
        if check {
            eprintln!("{} is not what crates/api says: run `make generate`", path.display());
            stale += 1;
        } else {
            fs::write(&path, text)?;
            eprintln!("wrote {}", path.display());
        }
    }
    Ok(if stale == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
