//! Writes the parts of the Helm chart that follow from the code to `charts/berth/files`: custom resource definitions,
//! control's roles, and the admission policies; those that change requests in a file of their own, because not every host
//! has such. With `--check` says which differ.

use serde::Serialize;
use std::{error::Error, fs, path::Path, process::ExitCode};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let check = std::env::args().any(|arg| arg == "--check");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/berth/files");
    fs::create_dir_all(folder.join("crds"))?;
    let mut stale = 0;
    for (name, text) in files()? {
        let path = folder.join(name);
        if fs::read_to_string(&path).is_ok_and(|current| current == text) {
            continue;
        }
        if check {
            eprintln!("{} is out of date: run `make generate`", path.display());
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

/// Paths below the folder, and contents.
fn files() -> Result<Vec<(String, String)>, Box<dyn Error>> {
    let mut files = Vec::new();
    for crd in berth_api::crd::all() {
        let name = crd.metadata.name.clone().unwrap_or_default();
        files.push((format!("crds/{name}.yaml"), file("crates/api", &[document(&crd)?])));
    }
    let roles = berth_control::install::manifests::cluster_roles();
    let mut roles: Vec<String> = roles.iter().map(document).collect::<Result<_, _>>()?;
    roles.push(document(&berth_control::install::manifests::role())?);
    files.push((
        "cluster-roles.yaml".into(),
        file("crates/control/src/install/manifests.rs", &roles),
    ));
    let mut policies = Vec::new();
    for policy in berth_admission_policies::all_policies() {
        policies.push(document(&policy.build_policy())?);
        policies.push(document(&policy.build_binding())?);
    }
    files.push((
        "admission-policies.yaml".into(),
        file("crates/admission-policies", &policies),
    ));
    let mut mutating = Vec::new();
    for (policy, binding) in berth_admission_policies::mutating_policies() {
        mutating.push(document(&policy)?);
        mutating.push(document(&binding)?);
    }
    files.push((
        "mutating-admission-policies.yaml".into(),
        file("crates/admission-policies", &mutating),
    ));
    Ok(files)
}

fn document(object: &impl Serialize) -> Result<String, Box<dyn Error>> {
    Ok(serde_saphyr::to_string(object)?)
}

fn file(source: &str, documents: &[String]) -> String {
    format!(
        "# Generated from {source} by `make generate`.\n{}",
        documents.join("---\n")
    )
}
