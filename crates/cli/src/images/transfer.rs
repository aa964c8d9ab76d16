//! `berth images save` and `berth images load`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use berth_local::images::catalog::archive_name;
use tokio::process::Command;

use super::plan::{ListedImage, Tool, import_commands, in_registry, pull_commands, push_commands};
use crate::error::Error;
use crate::output::print_line;

/// The list beside the archives.
const LIST: &str = "images.txt";

/// Where the images of a folder go.
#[derive(Clone, Debug)]
pub(super) enum Destination {
    /// A registry, with a path if it has one.
    Registry(String),
    /// The containerd of this machine.
    Containerd,
}

/// Puts archives of `references` into `folder`: those that a folder with the artifacts of a release has are copied, others are
/// pulled. An archive that is there already stays, so that the command can be run again after it failed.
pub(super) async fn save(
    references: Vec<String>,
    folder: &Path,
    artifacts: Option<&Path>,
    tool: Option<Tool>,
    platform: Option<&str>,
) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(failed("create", folder))?;
    let released = artifacts.map(read_digests).transpose()?.unwrap_or_default();
    let saved = if folder.join(LIST).is_file() {
        read_digests(folder)?
    } else {
        BTreeMap::new()
    };
    let mut list = String::new();
    for reference in references {
        let name = archive_name(&reference);
        let file = folder.join(&name);
        let partial = folder.join(format!("{name}.part"));
        let source = artifacts.map(|artifacts| artifacts.join(&name));
        let digest = if let Some(source) = source.filter(|source| source.is_file()) {
            // Also in place of one that is there: it may be of another build.
            fs::copy(&source, &partial).map_err(failed("copy", &source))?;
            fs::rename(&partial, &file).map_err(failed("write", &file))?;
            released.get(&reference).cloned()
        } else if file.is_file() {
            saved.get(&reference).cloned()
        } else {
            let tool = find_tool(tool).await?;
            // skopeo adds to an archive that is there.
            remove_file(&partial)?;
            run_all(&pull_commands(tool, &reference, &partial, platform)).await?;
            fs::rename(&partial, &file).map_err(failed("write", &file))?;
            None
        };
        print_line(format_args!("{}", file.display()))?;
        list.push_str(&ListedImage { reference, digest }.line());
        list.push('\n');
    }
    let file = folder.join(LIST);
    fs::write(&file, list).map_err(failed("write", &file))
}

/// Brings the images of a folder that [`save`] wrote to where they go.
pub(super) async fn load(folder: &Path, destination: &Destination, tool: Option<Tool>) -> Result<(), Error> {
    let images = read_list(folder)?;
    let missing = find_missing(&images, folder);
    if !missing.is_empty() {
        return Err(Error::Images(format!(
            "{} lacks archives of {}; run `berth images save {}` where there is a registry",
            folder.display(),
            missing.join(", "),
            folder.display()
        )));
    }
    for image in images {
        let file = folder.join(archive_name(&image.reference));
        match destination {
            Destination::Registry(registry) => {
                let target = in_registry(&image.reference, registry);
                run_all(&push_commands(find_tool(tool).await?, &image.reference, &target, &file)).await?;
                print_line(format_args!("{target}"))?;
            }
            Destination::Containerd => {
                run_all(&import_commands(&image, &file)).await?;
                print_line(format_args!("{}", image.reference))?;
            }
        }
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
    let text = fs::read_to_string(&file).map_err(failed("read", &file))?;
    Ok(ListedImage::parse_list(&text))
}

/// Digests by reference in the artifacts of a release.
fn read_digests(artifacts: &Path) -> Result<BTreeMap<String, String>, Error> {
    let images = read_list(artifacts)?.into_iter();
    Ok(images
        .filter_map(|image| Some((image.reference, image.digest?)))
        .collect())
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
mod tests {
    use super::*;
    use tempfile::TempDir;

    const CONTROL: &str = "ghcr.io/berth-dev/berth-control:0.1.0";

    #[tokio::test]
    async fn archives_of_a_release_are_copied_with_their_digests() {
        let dir = TempDir::new().unwrap();
        let (artifacts, folder) = (dir.path().join("artifacts"), dir.path().join("images"));
        fs::create_dir(&artifacts).unwrap();
        fs::write(
            artifacts.join(LIST),
            format!("{CONTROL}@sha256:1\nregistry.k8s.io/etcd:3.6.16-0\n"),
        )
        .unwrap();
        fs::write(artifacts.join("berth-control-0.1.0.oci.tar"), "archive").unwrap();
        // A run without the artifacts finds what the first has written.
        for artifacts in [Some(artifacts.as_path()), None] {
            save(vec![CONTROL.into()], &folder, artifacts, None, None)
                .await
                .unwrap();
        }
        let copied = fs::read_to_string(folder.join("berth-control-0.1.0.oci.tar")).unwrap();
        assert_eq!(copied, "archive");
        let list = read_list(&folder).unwrap();
        assert_eq!(list, ListedImage::parse_list(&format!("{CONTROL}@sha256:1")));
        assert_eq!(find_missing(&list, &folder), Vec::<String>::new());
    }

    #[tokio::test]
    async fn an_archive_that_is_there_is_not_pulled_again() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join("etcd-3.6.16-0.oci.tar"), "archive").unwrap();
        save(
            vec!["registry.k8s.io/etcd:3.6.16-0".into()],
            dir.path(),
            None,
            None,
            None,
        )
        .await
        .unwrap();
        assert_eq!(read_list(dir.path()).unwrap()[0].digest, None);
    }

    #[tokio::test]
    async fn nothing_is_loaded_while_an_archive_is_missing() {
        let dir = TempDir::new().unwrap();
        fs::write(dir.path().join(LIST), CONTROL).unwrap();
        let error = load(dir.path(), &Destination::Containerd, None)
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(CONTROL) && error.contains("berth images save"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn a_command_that_fails_or_is_missing_is_named() {
        for (command, message) in [
            ("false now", "`false now` failed"),
            ("berth-no-such-program", "cannot run"),
        ] {
            let words = command.split(' ').map(ToOwned::to_owned).collect();
            let error = run_all(&[words]).await.unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
