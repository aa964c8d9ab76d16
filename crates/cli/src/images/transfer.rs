//! `berth images save` and `berth images load`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use berth_local::images::catalog::{BERTH_PROGRAMS, archive_name, berth_reference};
use berth_local::images::{StoredImage, file_digest, host_architecture, read_archive};
use berth_process::write_atomic;
use tokio::process::Command;

use super::plan::{ListedImage, Tool, find_mismatch, import_commands, in_registry, pull_commands, push_commands};
use crate::error::Error;
use crate::output::{print_line, print_text};

/// The list beside the archives.
const LIST: &str = "images.txt";
/// The checksums beside the files of a release.
const CHECKSUMS: &str = "SHA256SUMS";
/// containerd's client.
const CTR: &str = "ctr";

/// Where the images of a folder go.
#[derive(Clone, Debug)]
pub(super) enum Destination {
    /// A registry, with a path if it has one.
    Registry(String),
    /// The containerd of this machine.
    Containerd,
}

/// Puts archives of `images` into `folder`: Berth's images are copied from a folder with the artifacts of a release, others are
/// pulled. An archive that is there already stays, so that the command can be run again after it failed, unless it may be of another image than
/// that with the digest that is wanted.
pub(super) async fn save(
    images: Vec<ListedImage>,
    folder: &Path,
    artifacts: Option<&Path>,
    tool: Option<Tool>,
    platform: Option<&str>,
) -> Result<(), Error> {
    check_folder(folder)?;
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    let release = artifacts
        .map(|artifacts| Release::read(artifacts, folder))
        .transpose()?;
    let mut list = String::new();
    for image in images {
        let reference = &image.reference;
        let name = archive_name(reference);
        let file = folder.join(&name);
        let partial = folder.join(format!("{name}.part"));
        let source_record = folder.join(format!("{name}.source"));
        if let Some(release) = release.as_ref().filter(|_| is_own(reference)) {
            // Also in place of one that is there: it may be of another build.
            let source = release.check_archive(reference)?;
            fs::copy(&source, &partial).map_err(failed("copy", &source))?;
            replace_archive(&partial, &file, &source_record, None)?;
        } else if !file.is_file() || !is_of_digest(&image, &file, &source_record) {
            if let Some(digest) = image.digest.as_ref().filter(|_| file.is_file()) {
                let file = file.display();
                print_text(format_args!(
                    "{file} may be of another image than {digest}: it is pulled again."
                ));
            }
            let tool = find_tool(tool).await?;
            // skopeo adds to an archive that is there.
            remove_file(&partial)?;
            run_all(&pull_commands(tool, &image, &partial, platform)).await?;
            replace_archive(&partial, &file, &source_record, image.digest.as_deref())?;
        }
        let stored = read_stored(&file, reference)?;
        print_line(format_args!("{}", file.display()))?;
        // That of the archive, as it will be where the image goes: many images of upstream are converted when they are saved.
        let saved = ListedImage {
            reference: reference.clone(),
            digest: stored.map(|stored| stored.digest),
        };
        list.push_str(&saved.line());
        list.push('\n');
    }
    Ok(write_atomic(&folder.join(LIST), list.as_bytes(), 0o644)?)
}

/// Whether an archive was pulled by the digest that is wanted, if one is. The archive itself may have another: many images of upstream are
/// converted when they are saved.
fn is_of_digest(image: &ListedImage, file: &Path, source_record: &Path) -> bool {
    let Some(digest) = &image.digest else { return true };
    let is_recorded = fs::read_to_string(source_record).is_ok_and(|recorded| recorded.trim() == digest);
    let has_digest = |stored: StoredImage| stored.digest == *digest;
    is_recorded || read_archive(file).ok().flatten().is_some_and(has_digest)
}

/// Puts a complete archive in its place, and the digest by which it was pulled beside it. Without the record an archive is pulled again, so
/// none is ever there that is not of the archive beside it, wherever this ends.
fn replace_archive(partial: &Path, file: &Path, source_record: &Path, digest: Option<&str>) -> Result<(), Error> {
    remove_file(source_record)?;
    fs::rename(partial, file).map_err(failed("write", file))?;
    if let Some(digest) = digest {
        write_atomic(source_record, format!("{digest}\n").as_bytes(), 0o644)?;
    }
    Ok(())
}

/// Whether this is one of Berth's own images.
fn is_own(reference: &str) -> bool {
    BERTH_PROGRAMS
        .iter()
        .any(|program| berth_reference(program) == reference)
}

/// A folder with the artifacts of a release.
struct Release {
    folder: PathBuf,
    /// Digests by reference.
    digests: BTreeMap<String, String>,
    /// Checksums by file name; none if the release has no list of them.
    checksums: Option<BTreeMap<String, String>>,
}

impl Release {
    /// Reads the lists of a release whose images go into another folder, `destination`.
    fn read(folder: &Path, destination: &Path) -> Result<Self, Error> {
        let real = |path: &Path| path.canonicalize().map_err(failed("read", path));
        if real(folder)? == real(destination)? {
            return Err(Error::Usage(format!(
                "{} has the release: save the images into another folder, such as {}",
                folder.display(),
                folder.join("images").display()
            )));
        }
        let images = read_list(folder)?.into_iter();
        let sums = folder.join(CHECKSUMS);
        let checksums: Option<BTreeMap<String, String>> = if sums.is_file() {
            let text = fs::read_to_string(&sums).map_err(failed("read", &sums))?;
            let lines = text.lines().filter_map(|line| line.split_once("  "));
            Some(
                lines
                    .map(|(sum, name)| (name.to_owned(), format!("sha256:{sum}")))
                    .collect(),
            )
        } else {
            None
        };
        Ok(Self {
            folder: folder.to_owned(),
            digests: images
                .filter_map(|image| Some((image.reference, image.digest?)))
                .collect(),
            checksums,
        })
    }

    /// The archive of one of Berth's images, if it is that of the release and complete.
    fn check_archive(&self, reference: &str) -> Result<PathBuf, Error> {
        let name = archive_name(reference);
        let file = self.folder.join(&name);
        let folder = self.folder.display();
        if !file.is_file() {
            return Err(Error::Images(format!(
                "{folder} has no {name}: use the artifacts of version {}, which this program has",
                env!("CARGO_PKG_VERSION")
            )));
        }
        let damaged = |reason: String| Error::Images(format!("{}: {reason}; copy the release again", file.display()));
        if let Some(checksums) = &self.checksums
            && checksums.get(&name) != Some(&file_digest(&file)?)
        {
            return Err(damaged(format!("its checksum is not that in {CHECKSUMS}")));
        }
        let image = ListedImage {
            reference: reference.to_owned(),
            digest: self.digests.get(reference).cloned(),
        };
        let stored = read_archive(&file).map_err(|error| damaged(error.to_string()))?;
        match stored.and_then(|stored| find_mismatch(&image, &stored, None)) {
            Some(mismatch) => Err(damaged(mismatch)),
            None => Ok(file),
        }
    }
}

/// Reads an archive that must have this image.
fn read_stored(file: &Path, reference: &str) -> Result<Option<StoredImage>, Error> {
    let again = |reason: String| {
        Error::Images(format!(
            "{reason}\nremove {} and run `berth images save` again",
            file.display()
        ))
    };
    let stored = read_archive(file).map_err(|error| again(error.to_string()))?;
    let image = ListedImage {
        reference: reference.to_owned(),
        digest: None,
    };
    match stored.as_ref().and_then(|stored| find_mismatch(&image, stored, None)) {
        Some(mismatch) => Err(again(format!("{}: {mismatch}", file.display()))),
        None => Ok(stored),
    }
}

/// Brings the images of a folder that [`save`] wrote to where they go.
pub(super) async fn load(folder: &Path, destination: &Destination, tool: Option<Tool>) -> Result<(), Error> {
    check_folder(folder)?;
    let images = read_list(folder)?;
    let node = match destination {
        Destination::Registry(_) => None,
        Destination::Containerd => Some(format!("linux/{}", host_architecture())),
    };
    check_archives(&images, folder, node.as_deref())?;
    let tool = match destination {
        Destination::Registry(_) => Some(find_tool(tool).await?),
        Destination::Containerd => {
            check_ctr().await?;
            None
        }
    };
    for image in images {
        let file = folder.join(archive_name(&image.reference));
        if let (Destination::Registry(registry), Some(tool)) = (destination, tool) {
            let target = in_registry(&image.reference, registry);
            run_all(&push_commands(tool, &image.reference, &target, &file)).await?;
            print_line(format_args!("{target}"))?;
        } else {
            run_all(&import_commands(&image, &file)).await?;
            print_line(format_args!("{}", image.reference))?;
        }
    }
    Ok(())
}

/// Whether all archives of a list are there, complete, of these images, and for the node that they are loaded on. Nothing is loaded
/// before.
fn check_archives(images: &[ListedImage], folder: &Path, node: Option<&str>) -> Result<(), Error> {
    let save = format!("run `berth images save {}` where there is a registry", folder.display());
    if images.is_empty() {
        return Err(Error::Images(format!(
            "{} lists no image; {save}",
            folder.join(LIST).display()
        )));
    }
    let missing = find_missing(images, folder);
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Err(Error::Images(format!(
            "{} lacks archives of {missing}; {save}",
            folder.display()
        )));
    }
    for image in images {
        let file = folder.join(archive_name(&image.reference));
        let stored = read_archive(&file)?;
        if let Some(mismatch) = stored.and_then(|stored| find_mismatch(image, &stored, node)) {
            return Err(Error::Images(format!("{}: {mismatch}; {save}", file.display())));
        }
    }
    Ok(())
}

/// Whether containerd's client can be run.
async fn check_ctr() -> Result<(), Error> {
    let probe = Command::new(CTR).arg("--version").stdin(Stdio::null()).output().await;
    match probe {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Error::Images(format!(
            "{CTR}, the client of containerd, is not in PATH: run this command on a node that runs containerd"
        ))),
        _ => Ok(()),
    }
}

/// A colon in a path separates parts of the arguments of skopeo.
fn check_folder(folder: &Path) -> Result<(), Error> {
    if folder.to_string_lossy().contains(':') {
        let folder = folder.display();
        return Err(Error::Usage(format!(
            "{folder}: use a folder without a colon in its path"
        )));
    }
    Ok(())
}

/// Images of a list whose archives are not in the folder.
fn find_missing(images: &[ListedImage], folder: &Path) -> Vec<String> {
    let references = images.iter().map(|image| image.reference.clone());
    references
        .filter(|reference| !folder.join(archive_name(reference)).is_file())
        .collect()
}

fn read_list(folder: &Path) -> Result<Vec<ListedImage>, Error> {
    let file = folder.join(LIST);
    let text = match fs::read_to_string(&file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::Images(format!(
                "{} is missing: this is neither a release nor a folder that `berth images save` has completed",
                file.display()
            )));
        }
        other => other.map_err(failed("read", &file))?,
    };
    ListedImage::parse_list(&text).map_err(|error| Error::Images(format!("{}: {error}", file.display())))
}

/// The tool that was asked for, or the first that is installed.
async fn find_tool(wanted: Option<Tool>) -> Result<Tool, Error> {
    for tool in wanted.map_or(Tool::ALL.to_vec(), |tool| vec![tool]) {
        let mut probe = Command::new(tool.name());
        probe.arg("--version").stdin(Stdio::null());
        if probe.output().await.is_ok_and(|output| output.status.success()) {
            return Ok(tool);
        }
    }
    let names = Tool::ALL.map(Tool::name).join(" or ");
    Err(Error::Images(match wanted {
        Some(tool) => format!("{} is not installed", tool.name()),
        None => format!("berth has no client of registries of its own: install {names}"),
    }))
}

/// Runs commands one after the other, until one fails. What they print goes to stderr.
async fn run_all(commands: &[Vec<String>]) -> Result<(), Error> {
    for command in commands {
        let [program, arguments @ ..] = command.as_slice() else {
            continue;
        };
        let line = command.join(" ");
        let run = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(io::stderr())
            .kill_on_drop(true)
            .status()
            .await;
        match run {
            Ok(status) if status.success() => {}
            Ok(status) => return Err(Error::Images(format!("`{line}` failed ({status})"))),
            Err(error) => return Err(Error::Images(format!("cannot run `{line}`: {error}"))),
        }
    }
    Ok(())
}

fn remove_file(file: &Path) -> Result<(), Error> {
    match fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", file)(error)),
        _ => Ok(()),
    }
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path: PathBuf = path.to_owned();
    move |source| Error::File { action, path, source }
}

#[cfg(test)]
#[path = "transfer_tests.rs"]
mod tests;
