//! `berth images`: the images that an installation of this version needs, for hosts without access to the internet.

mod digests;
mod plan;
mod transfer;

use std::path::PathBuf;
use std::process::ExitCode;

use berth_kubernetes_versions::KUBERNETES_DEFAULT;
use berth_local::images::catalog::{RequiredImage, archive_name, for_installation};
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::error::Error;
use crate::output::{self, OutputFormat, format_table, print_line};
use digests::{Digests, chart_values};
use plan::{ListedImage, Tool, in_registry};
use transfer::Destination;

#[derive(Debug, Subcommand)]
pub(crate) enum ImagesCommand {
    /// List all images that an installation of this version needs.
    #[command(
        after_help = "Examples:\n  berth images list\n  berth images list -o name --kubernetes-version v1.36.4\n  berth images list --digests images/images.txt -o values > digests.yaml"
    )]
    List {
        #[command(flatten)]
        versions: VersionsArgument,
        /// Show the names that the images have in this registry.
        #[arg(long, value_name = "REGISTRY", value_parser = parse_registry)]
        registry: Option<String>,
        #[command(flatten)]
        digests: DigestsArgument,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t)]
        output: ListFormat,
    },
    /// Save all images into a folder, as archives.
    ///
    /// Images of Berth are copied from the artifacts of a release, if you name their folder. Other images are pulled by skopeo or by
    /// docker. You can run this command again: archives that are there are not pulled again, unless `--digests` names another image
    /// than they were pulled by.
    #[command(after_help = "Example:\n  berth images save ./images --artifacts ./release")]
    Save {
        /// Folder for the archives.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Folder with the artifacts of a release.
        #[arg(long, value_name = "DIR")]
        artifacts: Option<PathBuf>,
        /// Only this platform of images that are pulled, for example linux/amd64. [default: all with skopeo, this machine's with
        /// docker]
        #[arg(long, value_name = "OS/ARCHITECTURE", value_parser = parse_platform)]
        platform: Option<String>,
        #[command(flatten)]
        digests: DigestsArgument,
        #[command(flatten)]
        versions: VersionsArgument,
        #[command(flatten)]
        tool: ToolArgument,
    },
    /// Load the images that `berth images save` has saved into a registry, or into the containerd of this node.
    #[command(
        after_help = "Examples:\n  berth images load ./images --registry harbor.example.com/mirror\n  berth images load ./images --containerd"
    )]
    Load {
        /// Folder with the archives.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Registry to push the images to, with a path if it has one: the value of global.imageRegistry of the chart.
        #[arg(long, value_name = "REGISTRY", required_unless_present = "containerd", value_parser = parse_registry)]
        registry: Option<String>,
        /// Import the images on this node with ctr, for the kubelet. Needs root.
        #[arg(long, conflicts_with = "registry")]
        containerd: bool,
        #[command(flatten)]
        tool: ToolArgument,
    },
}

#[derive(Debug, Args)]
pub(crate) struct VersionsArgument {
    /// Kubernetes version that tenants may have; can be repeated.
    #[arg(long = "kubernetes-version", value_name = "VERSION", default_value = KUBERNETES_DEFAULT, value_parser = parse_version)]
    versions: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DigestsArgument {
    /// File with the digests of images, a NAME:TAG@DIGEST on each line. Images that are not in it have no digest.
    #[arg(long = "digests", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl DigestsArgument {
    fn read(&self) -> Result<Digests, Error> {
        self.file.as_deref().map_or(Ok(Digests::default()), Digests::read)
    }
}

#[derive(Debug, Args)]
pub(crate) struct ToolArgument {
    /// Program that talks to registries. [default: the first that is installed]
    #[arg(long, value_enum, value_name = "PROGRAM")]
    tool: Option<Tool>,
}

/// The form in which the list is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// Table for people.
    #[default]
    Table,
    /// JSON for programs.
    Json,
    /// YAML for programs and people.
    Yaml,
    /// Names of the images, one a line.
    Name,
    /// Values of the chart with the digests of `--digests` and the registry of `--registry`, as YAML.
    Values,
}

/// What `berth images list` prints. Programs read it: fields are only ever added.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ListView {
    images: Vec<ImageView>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ImageView {
    /// Name with a tag.
    image: String,
    /// `sha256:…`, if it was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    /// Name with a tag, as upstream has it.
    #[serde(skip)]
    reference: String,
    /// What runs from it.
    purpose: &'static str,
    /// Name of the file in which it is saved.
    archive: String,
}

fn parse_version(text: &str) -> Result<String, String> {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = text.strip_prefix('v').map(|rest| rest.split('.').collect::<Vec<_>>());
    match parts {
        Some(parts) if parts.len() == 3 && parts.iter().all(|part| number(part)) => Ok(text.to_owned()),
        _ => Err(format!("use a version such as {KUBERNETES_DEFAULT}")),
    }
}

fn parse_registry(text: &str) -> Result<String, String> {
    let name = text.trim_end_matches('/');
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "._-:/".contains(letter);
    if name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
        && name.chars().all(is_allowed)
        && !name.contains("//")
    {
        return Ok(name.to_owned());
    }
    Err("use a registry without https://, such as harbor.example.com/mirror".into())
}

fn parse_platform(text: &str) -> Result<String, String> {
    match text.split_once('/') {
        Some((system, architecture)) if !system.is_empty() && !architecture.is_empty() => Ok(text.to_owned()),
        _ => Err("use a platform such as linux/amd64".into()),
    }
}

pub(crate) async fn run(command: ImagesCommand) -> Result<ExitCode, Error> {
    match command {
        ImagesCommand::List {
            versions,
            registry,
            digests,
            output,
        } => {
            let list = build_view(&versions, registry.as_deref(), &digests.read()?);
            print_list(&list, registry.as_deref(), output)?;
        }
        ImagesCommand::Save {
            folder,
            artifacts,
            platform,
            digests,
            versions,
            tool,
        } => {
            let digests = digests.read()?;
            let images = required(&versions).into_iter().map(|image| ListedImage {
                digest: digests.find(&[&image.reference]),
                reference: image.reference,
            });
            let (artifacts, platform) = (artifacts.as_deref(), platform.as_deref());
            transfer::save(images.collect(), &folder, artifacts, tool.tool, platform).await?;
        }
        ImagesCommand::Load {
            folder,
            registry,
            containerd: _,
            tool,
        } => {
            let destination = registry.map_or(Destination::Containerd, Destination::Registry);
            transfer::load(&folder, &destination, tool.tool).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn required(versions: &VersionsArgument) -> Vec<RequiredImage> {
    let versions: Vec<&str> = versions.versions.iter().map(String::as_str).collect();
    for_installation(&versions)
}

fn build_view(versions: &VersionsArgument, registry: Option<&str>, digests: &Digests) -> ListView {
    let images = required(versions).into_iter();
    let images = images.map(|RequiredImage { reference, purpose }| {
        let image = registry.map_or(reference.clone(), |registry| in_registry(&reference, registry));
        ImageView {
            archive: archive_name(&reference),
            digest: digests.find(&[&image, &reference]),
            image,
            purpose,
            reference,
        }
    });
    ListView {
        images: images.collect(),
    }
}

impl ImageView {
    /// The name, with the digest if there is one.
    fn name(&self) -> String {
        let (reference, digest) = (self.image.clone(), self.digest.clone());
        ListedImage { reference, digest }.line()
    }
}

fn print_list(list: &ListView, registry: Option<&str>, format: ListFormat) -> Result<(), Error> {
    match format {
        ListFormat::Table => output::print(list, describe, OutputFormat::Table),
        ListFormat::Json => output::print(list, describe, OutputFormat::Json),
        ListFormat::Yaml => output::print(list, describe, OutputFormat::Yaml),
        ListFormat::Name => {
            let names: Vec<String> = list.images.iter().map(ImageView::name).collect();
            print_line(format_args!("{}", names.join("\n")))
        }
        ListFormat::Values => {
            let images = list.images.iter();
            let images = images.map(|image| (image.reference.as_str(), image.digest.as_deref()));
            output::print(&chart_values(images, registry), |_| String::new(), OutputFormat::Yaml)
        }
    }
}

fn describe(list: &ListView) -> String {
    let rows: Vec<[String; 2]> = list
        .images
        .iter()
        .map(|image| [image.name(), image.purpose.to_owned()])
        .collect();
    format_table(["IMAGE", "USED FOR"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(versions: &[&str]) -> VersionsArgument {
        VersionsArgument {
            versions: versions.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn images_of_each_version_are_listed() {
        let list = build_view(&versions(&["v1.37.1", "v1.36.4"]), None, &Digests::default()).images;
        let has = |name: &str| list.iter().any(|image| image.image == name);
        for name in [
            "registry.k8s.io/kube-scheduler:v1.36.4",
            "registry.k8s.io/kube-apiserver:v1.37.1",
        ] {
            assert!(has(name), "{name}: {list:?}");
        }
        let berth = list
            .iter()
            .filter(|image| image.image.starts_with("ghcr.io/berth-dev/"));
        assert_eq!(berth.count(), 4);
    }

    #[test]
    fn names_are_those_of_the_registry() {
        let list = build_view(
            &versions(&["v1.37.1"]),
            Some("harbor.example.com/m"),
            &Digests::default(),
        );
        assert!(
            list.images
                .iter()
                .all(|image| image.image.starts_with("harbor.example.com/m/")),
            "{list:?}"
        );
        let text = describe(&list);
        assert!(text.contains("harbor.example.com/m/coredns/coredns:v1.14.7"), "{text}");
    }

    #[test]
    fn versions_and_platforms_are_checked() {
        assert!(parse_version("v1.36.4").is_ok() && parse_platform("linux/arm64").is_ok());
        for version in ["1.36.4", "v1.36", "v1.36.x", "latest"] {
            assert!(parse_version(version).is_err(), "{version}");
        }
        assert!(parse_platform("linux").is_err() && parse_platform("/arm64").is_err());
        assert_eq!(parse_registry("localhost:5000/a/").as_deref(), Ok("localhost:5000/a"));
        for registry in ["", "/", "https://harbor.example.com", "-v", "a b", "a//b"] {
            assert!(parse_registry(registry).is_err(), "{registry}");
        }
    }
}
