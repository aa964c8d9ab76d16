//! Container images without a registry: archives made of programs on this machine, which containerd imports.
//!
//! An image is a program with the shared libraries it needs on top of a few files that every image has. Archives are OCI
//! image layouts for `ctr --namespace k8s.io images import`. The same files give the same bytes, and an archive that is in
//! the cache already is not written again. [`catalog`] names the images of real nodes.

mod archive;
pub mod catalog;
mod layer;
pub mod layout;
mod libraries;
mod stored;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use berth_process::binaries;

use crate::Error;
use layer::{Content, Entry, Hashing, Layer};

pub use archive::Archive;
pub use layer::file_header;
pub use stored::{StoredImage, read as read_archive};

/// The user and group of images, which every security policy accepts as non-root.
pub const USER: u32 = 65532;

/// Certificate authorities that this machine trusts, at the same place in an image.
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";

/// An image to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// Its full name with a tag, as pods write it.
    pub reference: String,
    /// Programs: their absolute paths in the image, and what they are copies of.
    pub programs: BTreeMap<PathBuf, PathBuf>,
    /// The command of a container whose pod names none.
    pub entrypoint: Vec<String>,
    /// What is appended to it when the pod has no arguments.
    pub arguments: Vec<String>,
    /// Environment variables.
    pub environment: BTreeMap<String, String>,
    /// Further files: their absolute paths in the image, and what is in them.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
    /// Symbolic links: their absolute paths in the image, and their targets.
    pub links: BTreeMap<PathBuf, PathBuf>,
    /// Architecture of the programs, as images name it. Default: that of this machine.
    pub architecture: String,
    /// Labels of the image.
    pub labels: BTreeMap<String, String>,
    /// Absolute paths in the image that are volumes (`VOLUME`): a container runtime has a folder of the node there, for each container another one.
    pub volumes: BTreeSet<String>,
    /// When the image was made, in RFC 3339. Without it nothing in the image says so.
    pub created: Option<String>,
}

/// The machine's architecture as images name it.
pub fn host_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes one archive to `path` with the same image for several architectures. The images have one reference and differ in
/// [`Image::architecture`]. The digest of the archive is that of the image's index, which registries keep.
///
/// # Errors
/// A program or one of its libraries is missing, or the folder cannot be written.
pub fn write_index(images: &[Image], path: &Path) -> Result<Archive, Error> {
    let layers = images
        .iter()
        .map(|image| Ok((image, vec![base_layer()?, image.program_layer()?])))
        .collect::<Result<Vec<_>, Error>>()?;
    archive::write_index(layers, path)
}

impl Image {
    /// An image whose entrypoint is a copy of `program` at the absolute path `path`.
    pub fn new(reference: impl Into<String>, program: &Path, path: &str) -> Self {
        let search = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
        Self {
            reference: reference.into(),
            programs: BTreeMap::from([(path.into(), program.to_owned())]),
            entrypoint: vec![path.to_owned()],
            arguments: Vec::new(),
            environment: BTreeMap::from([("PATH".to_owned(), search.to_owned())]),
            files: BTreeMap::new(),
            links: BTreeMap::new(),
            architecture: host_architecture().to_owned(),
            labels: BTreeMap::new(),
            volumes: BTreeSet::new(),
            created: None,
        }
    }

    /// The same image with arguments that a pod may replace.
    #[must_use]
    pub fn with_arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(ToString::to_string).collect();
        self
    }

    /// The archive of this image in Berth's cache, written if it is not there.
    ///
    /// # Errors
    /// When a program or one of its libraries is missing, or the cache cannot be written.
    pub fn archive(&self) -> Result<Archive, Error> {
        let cache = binaries::cache().ok_or_else(|| Error::Image {
            reference: self.reference.clone(),
            reason: "there is no folder for the cache: set HOME or BERTH_CACHE".into(),
        })?;
        self.archive_in(&cache.join("images"))
    }

    /// The archive of this image in `folder`, written if it is not there.
    ///
    /// # Errors
    /// When a program or one of its libraries is missing, or `folder` cannot be written.
    pub fn archive_in(&self, folder: &Path) -> Result<Archive, Error> {
        archive::write_to_folder(self, vec![base_layer()?, self.program_layer()?], folder)
    }

    /// The layer that is this image's own.
    fn program_layer(&self) -> Result<Layer, Error> {
        let mut entries = BTreeMap::new();
        for (path, source) in &self.programs {
            let source = source.canonicalize().map_err(cannot_read(source))?;
            entries.insert(path.clone(), Entry::new(0o755, open_file(&source)?));
            let libraries = libraries::find_libraries(&source).map_err(|reason| Error::Image {
                reference: self.reference.clone(),
                reason,
            })?;
            for library in libraries {
                let content = open_file(&library)?;
                entries.insert(library, Entry::new(0o755, content));
            }
        }
        for (path, content) in &self.files {
            entries.insert(path.clone(), Entry::new(0o644, Content::Bytes(content.clone())));
        }
        for (path, target) in &self.links {
            entries.insert(path.clone(), Entry::new(0o777, Content::Link(target.clone())));
        }
        Layer::new(entries)
    }
}

/// The layer that all images share.
fn base_layer() -> Result<Layer, Error> {
    let text = |text: String| Entry::new(0o644, Content::Bytes(text.into_bytes()));
    let mut entries = BTreeMap::from([
        (
            PathBuf::from("etc/passwd"),
            text(format!(
                "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:{USER}:{USER}:nonroot:/home/nonroot:/sbin/nologin\n"
            )),
        ),
        ("etc/group".into(), text(format!("root:x:0:\nnonroot:x:{USER}:\n"))),
        ("etc/nsswitch.conf".into(), text("hosts: files dns\n".to_owned())),
        (
            "home/nonroot".into(),
            Entry::new(0o700, Content::Directory).owned_by(USER),
        ),
        ("tmp".into(), Entry::new(0o1777, Content::Directory)),
    ]);
    let authorities = Path::new("/").join(AUTHORITIES);
    if authorities.is_file() {
        entries.insert(AUTHORITIES.into(), Entry::new(0o644, open_file(&authorities)?));
    }
    Layer::new(entries)
}

/// `sha256:` and the digest of a file.
///
/// # Errors
/// The file cannot be read.
pub fn file_digest(path: &Path) -> Result<String, Error> {
    let mut file = File::open(path).map_err(cannot_read(path))?;
    let mut out = Hashing::new(io::sink());
    io::copy(&mut file, &mut out).map_err(cannot_read(path))?;
    Ok(out.finish().1)
}

fn open_file(path: &Path) -> Result<Content, Error> {
    let file = File::open(path).map_err(cannot_read(path))?;
    let length = file.metadata().map_err(cannot_read(path))?.len();
    Ok(Content::File {
        path: path.to_owned(),
        file,
        length,
    })
}

fn cannot_read(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    |source| Error::File {
        action: "read",
        path,
        source,
    }
}

#[cfg(test)]
mod tests;
