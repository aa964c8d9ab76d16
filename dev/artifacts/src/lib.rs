//! The artifacts of a release, of programs that are built already: command-line programs, images, chart, manifests, bill of
//! materials, checksums and signature. The same programs and the same checkout give the same bytes, without a registry.

mod bill;
mod chart;
mod checksums;
mod elf;
mod error;
mod package;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use berth_kubernetes_versions::KUBERNETES_DEFAULT;
use berth_local::images::{self, Image, catalog, host_architecture};
use jiff::Timestamp;

use package::Entry;

pub use error::Error;

/// The version of the release: that of the workspace.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The command line.
const CLI: &str = "berth";
/// Name of the chart in registries.
const CHART: &str = "ghcr.io/berth-dev/charts/berth";
/// Where the sources are, in labels of images.
const SOURCE: &str = env!("CARGO_PKG_REPOSITORY");

/// What the artifacts are made of.
#[derive(Clone, Debug)]
pub struct Release {
    /// The checkout: its chart, its licence and its lock file.
    pub root: PathBuf,
    /// Folders with the programs by architecture (`amd64`, `arm64`).
    pub programs: BTreeMap<String, PathBuf>,
    /// Time of the release, in seconds since 1970: that of the commit.
    pub epoch: u64,
    /// helm.
    pub helm: PathBuf,
    /// File with the key that signs, if it is to be signed.
    pub signing_key: Option<PathBuf>,
}

/// Writes all artifacts to `<output>/<version>` in place of what is there. Returns that folder.
///
/// # Errors
/// A program is missing or does not fit, the chart does not fit, or a file cannot be written.
pub fn write(release: &Release, output: &Path) -> Result<PathBuf, Error> {
    let metadata = bill::ask_cargo(&release.root)?;
    write_with(release, &metadata, output)
}

fn write_with(release: &Release, metadata: &bill::Metadata, output: &Path) -> Result<PathBuf, Error> {
    let created = format_time(release.epoch)?;
    fs::create_dir_all(output).map_err(Error::file("create", output))?;
    // Renamed at the end: a folder of that name is complete.
    let folder = tempfile::Builder::new()
        .prefix(".artifacts-")
        .tempdir_in(output)
        .map_err(Error::file("create a folder in", output))?;
    let at = |name: String| folder.path().join(name);
    let write = |name: String, content: &[u8]| {
        let path = at(name);
        fs::write(&path, content).map_err(Error::file("write", &path))
    };

    check_programs(release)?;
    for (architecture, programs) in &release.programs {
        let package = package_cli(&programs.join(CLI), &release.root.join("LICENSE"), release.epoch)?;
        write(format!("{CLI}-{VERSION}-linux-{architecture}.tar.gz"), &package)?;
    }
    let digests = write_images(release, &created, folder.path())?;
    write("images.txt".into(), list_images(&digests).as_bytes())?;

    let files = chart::read(&release.root.join("charts/berth"), &repositories(&digests))?;
    // As `helm package` writes it.
    let package = package::tar_gz(&files, release.epoch)?;
    let packaged = format!("berth-{VERSION}.tgz");
    write(packaged.clone(), &package)?;
    let reference = format!("{CHART}:{VERSION}");
    let oci = at(format!("chart-{}", catalog::archive_name(&reference)));
    chart::write_oci(&files, &package, &created, &reference, &oci)?;
    write(
        "install.yaml".into(),
        chart::render(&release.helm, &at(packaged))?.as_bytes(),
    )?;

    let lock = release.root.join("Cargo.lock");
    let lock = fs::read_to_string(&lock).map_err(Error::file("read", &lock))?;
    let bill = bill::build(metadata, &lock, &created)?;
    write(format!("berth-{VERSION}.cdx.json"), format!("{bill:#}\n").as_bytes())?;

    let sums = checksums::sums(folder.path())?;
    write("SHA256SUMS".into(), sums.as_bytes())?;
    if let Some(key) = &release.signing_key {
        write(
            "SHA256SUMS.sig".into(),
            checksums::sign(sums.as_bytes(), key)?.as_bytes(),
        )?;
    }
    replace(folder, &output.join(VERSION))
}

/// Moves a complete folder to its place.
fn replace(folder: tempfile::TempDir, place: &Path) -> Result<PathBuf, Error> {
    if place.exists() {
        fs::remove_dir_all(place).map_err(Error::file("remove", place))?;
    }
    // The folder of a release is for all users to read.
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(folder.path(), readable).map_err(Error::file("write", folder.path()))?;
    fs::rename(folder.keep(), place).map_err(Error::file("write", place))?;
    Ok(place.to_owned())
}

/// A time in RFC 3339.
fn format_time(epoch: u64) -> Result<String, Error> {
    let time = i64::try_from(epoch)
        .ok()
        .and_then(|epoch| Timestamp::from_second(epoch).ok());
    time.map(|time| time.to_string()).ok_or_else(|| Error::Program {
        path: "SOURCE_DATE_EPOCH".into(),
        reason: format!("{epoch} is no time"),
    })
}

/// Whether all programs exist, are for the architecture that they are said to be for, and can be in an image.
fn check_programs(release: &Release) -> Result<(), Error> {
    for (architecture, folder) in &release.programs {
        for name in catalog::BERTH_PROGRAMS.iter().chain([&CLI]) {
            let path = folder.join(name);
            let content = fs::read(&path).map_err(Error::file("read", &path))?;
            let failed = |reason: String| Error::Program {
                path: path.clone(),
                reason,
            };
            let program = elf::read(&content).ok_or_else(|| failed("this is no program for Linux".into()))?;
            if program.architecture != architecture {
                let is = program.architecture;
                return Err(failed(format!("this program is for {is}, not for {architecture}")));
            }
            if !program.is_static && architecture != host_architecture() {
                let target = berth_target(architecture);
                return Err(failed(format!(
                    "its shared libraries for {architecture} are not on this machine: build it with `--target {target}`"
                )));
            }
        }
    }
    Ok(())
}

/// Rust's name of the target whose programs are static.
fn berth_target(architecture: &str) -> String {
    let machine = match architecture {
        "amd64" => "x86_64",
        "arm64" => "aarch64",
        other => other,
    };
    format!("{machine}-unknown-linux-musl")
}

fn package_cli(program: &Path, licence: &Path, epoch: u64) -> Result<Vec<u8>, Error> {
    let read = |path: &Path| fs::read(path).map_err(Error::file("read", path));
    let files = BTreeMap::from([
        (CLI.to_owned(), Entry::program(read(program)?)),
        ("LICENSE".to_owned(), Entry::text(read(licence)?)),
    ]);
    package::tar_gz(&files, epoch)
}

/// Writes an archive for each of Berth's images, with all architectures. Returns the digests by reference.
fn write_images(release: &Release, created: &str, folder: &Path) -> Result<BTreeMap<String, String>, Error> {
    let mut digests = BTreeMap::new();
    for name in catalog::BERTH_PROGRAMS {
        let images: Vec<Image> = release
            .programs
            .iter()
            .map(|(architecture, programs)| {
                let mut image = catalog::for_program(name, &programs.join(name));
                image.architecture.clone_from(architecture);
                image.created = Some(created.to_owned());
                image.labels = labels(name);
                image
            })
            .collect();
        let path = folder.join(catalog::archive_name(&catalog::berth_reference(name)));
        let archive = images::write_index(&images, &path)?;
        digests.insert(archive.reference, archive.digest);
    }
    Ok(digests)
}

/// Labels that tools for images show.
fn labels(program: &str) -> BTreeMap<String, String> {
    [
        ("title", program),
        ("version", VERSION),
        ("source", SOURCE),
        ("licenses", env!("CARGO_PKG_LICENSE")),
    ]
    .into_iter()
    .map(|(name, value)| (format!("org.opencontainers.image.{name}"), value.to_owned()))
    .collect()
}

/// Digests by repository.
fn repositories(digests: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let without_tag = |reference: &str| {
        reference
            .rsplit_once(':')
            .map_or(reference, |(name, _)| name)
            .to_owned()
    };
    digests
        .iter()
        .map(|(reference, digest)| (without_tag(reference), digest.clone()))
        .collect()
}

/// All images of an installation, one a line: those of this release with digests, others as upstream names them.
fn list_images(digests: &BTreeMap<String, String>) -> String {
    let images = catalog::for_installation(&[KUBERNETES_DEFAULT]);
    let lines = images.into_iter().map(|image| match digests.get(&image.reference) {
        Some(digest) => format!("{}@{digest}\n", image.reference),
        None => format!("{}\n", image.reference),
    });
    lines.collect()
}

#[cfg(test)]
mod tests;
