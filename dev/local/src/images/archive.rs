//! Archives in a folder, each named after its content.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::layer::{Hashing, Layer, digest, file_header};
use super::{Image, USER};
use crate::Error;

/// How many archives of one image are kept: several checkouts on one machine share the cache.
const KEPT: usize = 4;

/// An image as a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Archive {
    /// The image's name.
    pub reference: String,
    /// An OCI image layout as a tar file.
    pub path: PathBuf,
    /// The digest that containerd shows for the image: it changes whenever anything in the image does.
    pub digest: String,
}

/// A file of the layout that is not a layer.
struct Blob {
    content: Vec<u8>,
    digest: String,
}

impl Blob {
    fn new(json: &Value) -> Self {
        let content = json.to_string().into_bytes();
        let mut hash = Context::new(&SHA256);
        hash.update(&content);
        Self {
            digest: digest(hash),
            content,
        }
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.content.len()})
    }
}

/// The archive of an image with these layers, the lowest first.
pub(super) fn write_to_folder(image: &Image, layers: &[Layer], folder: &Path) -> Result<Archive, Error> {
    let config = Blob::new(&image_configuration(image, layers));
    let manifest = Blob::new(&manifest(&config, layers));
    let name = file_name(&image.reference);
    let short = manifest
        .digest
        .trim_start_matches("sha256:")
        .get(..16)
        .unwrap_or_default();
    let path = folder.join(format!("{name}-{short}.tar"));
    if !mark_used(&path) {
        write_archive(&path, image, [&config, &manifest], layers)?;
        remove_old_archives(folder, &name);
    }
    Ok(Archive {
        reference: image.reference.clone(),
        path,
        digest: manifest.digest,
    })
}

/// Marks a file as used now. Returns whether it exists.
fn mark_used(path: &Path) -> bool {
    fs::File::options()
        .append(true)
        .open(path)
        .and_then(|file| file.set_modified(SystemTime::now()))
        .is_ok()
}

fn image_configuration(image: &Image, layers: &[Layer]) -> Value {
    let environment: Vec<_> = image
        .environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": environment,
            "Entrypoint": image.entrypoint,
            "Cmd": image.arguments,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|layer| &layer.digest).collect::<Vec<_>>()},
    })
}

fn manifest(config: &Blob, layers: &[Layer]) -> Value {
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| {
            json!({
                // Not compressed: the archive never leaves this machine, and importing it is quicker.
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": layer.digest,
                "size": layer.length,
            })
        })
        .collect();
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
        "layers": layers,
    })
}

/// The machine's architecture as images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Writes an archive to a temporary file and renames it to `path`.
fn write_archive(path: &Path, image: &Image, blobs: [&Blob; 2], layers: &[Layer]) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(path);
    let failed = |source| Error::File {
        action: "write",
        path: path.to_owned(),
        source,
    };
    fs::create_dir_all(folder).map_err(failed)?;
    let mut file = NamedTempFile::new_in(folder).map_err(failed)?;
    let mut described = blobs[1].descriptor("application/vnd.oci.image.manifest.v1+json");
    described["platform"] = json!({"architecture": architecture(), "os": "linux"});
    described["annotations"] = json!({
        "io.containerd.image.name": image.reference,
        "org.opencontainers.image.ref.name": image.reference.rsplit_once(':').map_or("latest", |(_, tag)| tag),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [described],
    });
    let layout = json!({"imageLayoutVersion": "1.0.0"});

    let named = [
        ("oci-layout".to_owned(), layout.to_string().into_bytes()),
        ("index.json".to_owned(), index.to_string().into_bytes()),
    ];
    let digested = blobs.map(|blob| (blob_path(&blob.digest), blob.content.clone()));
    let mut tar = tar::Builder::new(file.as_file_mut());
    for (name, content) in named.into_iter().chain(digested) {
        let header = file_header(name.as_ref(), 0o644, content.len() as u64)?;
        tar.append(&header, content.as_slice()).map_err(failed)?;
    }
    for layer in layers {
        let name = blob_path(&layer.digest);
        let mut header = file_header(name.as_ref(), 0o644, layer.length)?;
        // The layer writes itself into the archive, so that it is never in memory.
        let blob = tar.append_writer(&mut header, name).map_err(failed)?;
        let mut out = Hashing::new(blob);
        layer.write(&mut out).map_err(failed)?;
        let (blob, digest, _) = out.finish();
        blob.finish().map_err(failed)?;
        if digest != layer.digest {
            return Err(Error::Image {
                reference: image.reference.clone(),
                reason: "a file changed while it was archived; try again".into(),
            });
        }
    }
    tar.finish().map_err(failed)?;
    drop(tar);
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}

/// A reference as a file name.
fn file_name(reference: &str) -> String {
    reference
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() || letter == '.' {
                letter
            } else {
                '_'
            }
        })
        .collect()
}

/// Removes the least recently used archives of an image. A file that cannot be removed stays: it only takes space.
fn remove_old_archives(folder: &Path, name: &str) {
    let mut archives: Vec<_> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let digest = entry.file_name().to_str()?.strip_prefix(name)?.strip_prefix('-')?.len();
            // Sixteen digits and `.tar`: not an image whose name begins with this one's.
            (digest == 20).then_some((entry.metadata().ok()?.modified().ok()?, entry.path()))
        })
        .collect();
    archives.sort();
    for (_, path) in archives.iter().rev().skip(KEPT) {
        let _ = fs::remove_file(path);
    }
}
