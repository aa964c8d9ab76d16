//! `artifacts`: writes the artifacts of a release. `make release` builds the programs and runs it.
#![expect(clippy::print_stdout, reason = "it prints what it wrote")]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use berth_artifacts::{Error, Release};
use berth_process::binaries::{self, Binary};
use clap::Parser;

/// Write the artifacts of a release: programs, images, chart, manifests, bill of materials, checksums and signature.
#[derive(Debug, Parser)]
#[command(name = "artifacts", version)]
struct Arguments {
    /// Folder with the programs of an architecture (amd64 or arm64); can be repeated.
    #[arg(long, required = true, value_name = "ARCHITECTURE=DIR", value_parser = parse_programs)]
    programs: Vec<(String, PathBuf)>,
    /// Folder that gets a folder named after the version.
    #[arg(long, value_name = "DIR", default_value = "target/release-artifacts")]
    output: PathBuf,
    /// The checkout.
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
    /// Time of the release, in seconds since 1970.
    #[arg(long, value_name = "SECONDS", env = "SOURCE_DATE_EPOCH")]
    source_date_epoch: u64,
    /// Path of helm. [default: the one that `make kubernetes` builds]
    #[arg(long, value_name = "FILE")]
    helm: Option<PathBuf>,
    /// Private key that signs the checksums: ECDSA with P-256, in a PEM file without a password.
    #[arg(long, value_name = "FILE", env = "BERTH_SIGNING_KEY")]
    signing_key: Option<PathBuf>,
}

fn parse_programs(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((architecture @ ("amd64" | "arm64"), folder)) if !folder.is_empty() => {
            Ok((architecture.to_owned(), folder.into()))
        }
        _ => Err("use amd64=DIR or arm64=DIR".into()),
    }
}

/// Folders by architecture.
fn collect_programs(given: Vec<(String, PathBuf)>) -> Result<BTreeMap<String, PathBuf>, Error> {
    let mut programs = BTreeMap::new();
    for (architecture, folder) in given {
        if let Some(other) = programs.insert(architecture.clone(), folder) {
            return Err(Error::Program {
                path: other,
                reason: format!("there is another folder with programs for {architecture}: name one of them"),
            });
        }
    }
    Ok(programs)
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Error> {
    let helm = match arguments.helm {
        Some(helm) => helm,
        None => binaries::find_pinned(Binary::Helm)?,
    };
    let release = Release {
        root: arguments.root,
        programs: collect_programs(arguments.programs)?,
        epoch: arguments.source_date_epoch,
        helm,
        // An empty variable is as good as none.
        signing_key: arguments.signing_key.filter(|key| !key.as_os_str().is_empty()),
    };
    let folder = berth_artifacts::write(&release, &arguments.output)?;
    println!("{}", folder.display());
    if release.signing_key.is_none() {
        eprintln!("not signed: set BERTH_SIGNING_KEY to the file of a private key to sign SHA256SUMS");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_architecture_has_one_folder() {
        let pair = |text: &str| parse_programs(text).unwrap();
        let programs = collect_programs(vec![pair("amd64=/a"), pair("arm64=/b")]).unwrap();
        assert_eq!(programs.len(), 2);
        let error = collect_programs(vec![pair("amd64=/a"), pair("amd64=/b")])
            .unwrap_err()
            .to_string();
        assert!(error.starts_with("/a: ") && error.contains("another folder"), "{error}");
        for text in ["amd64", "amd64=", "riscv64=/a"] {
            assert!(parse_programs(text).is_err(), "{text}");
        }
    }
}
