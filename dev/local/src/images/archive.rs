//! Archives in a folder, each named after its content.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};

use super::layer::Layer;
use super::layout::{self, Blob, Layout};
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

/// The archive of an image with these layers, the lowest first.
pub(super) fn write_to_folder(image: &Image, layers: Vec<Layer>, folder: &Path) -> Result<Archive, Error> {
    let (config, manifest) = describe(image, &layers);
    let name = file_name(&image.reference);
    let digest = manifest.digest().to_owned();
    let short = digest.trim_start_matches("sha256:").get(..16).unwrap_or_default();
    let path = folder.join(format!("{name}-{short}.tar"));
    if !mark_used(&path) {
        let top = manifest_descriptor(image, &manifest);
        Layout::new(&image.reference, top, vec![config, manifest])
            .with_layers(layers)
            .write(&path)?;
        remove_old_archives(folder, &name);
    }
    Ok(Archive {
        reference: image.reference.clone(),
        path,
        digest,
    })
}

/// Writes an archive to `path` with an index: one image for each architecture. The digest is that of the index.
pub(super) fn write_index(images: Vec<(&Image, Vec<Layer>)>, path: &Path) -> Result<Archive, Error> {
    let reference = images
        .first()
        .map(|(image, _)| image.reference.clone())
        .unwrap_or_default();
    let (mut blobs, mut layers, mut manifests) = (Vec::new(), Vec::new(), Vec::new());
    for (image, own) in images {
        let (config, manifest) = describe(image, &own);
        manifests.push(manifest_descriptor(image, &manifest));
        blobs.extend([manifest, config]);
        layers.extend(own);
    }
    let index = Blob::from_json(&json!({"schemaVersion": 2, "mediaType": layout::INDEX, "manifests": manifests}));
    let digest = index.digest().to_owned();
    let top = index.descriptor(layout::INDEX);
    blobs.insert(0, index);
    Layout::new(&reference, top, blobs).with_layers(layers).write(path)?;
    Ok(Archive {
        reference,
        path: path.to_owned(),
        digest,
    })
}

/// Configuration and manifest of an image.
fn describe(image: &Image, layers: &[Layer]) -> (Blob, Blob) {
    let config = Blob::from_json(&image_configuration(image, layers));
    let manifest = Blob::from_json(&manifest(&config, layers));
    (config, manifest)
}

fn manifest_descriptor(image: &Image, manifest: &Blob) -> Value {
    let mut descriptor = manifest.descriptor(layout::MANIFEST);
    descriptor["platform"] = json!({"architecture": image.architecture, "os": "linux"});
    descriptor
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
    let mut configuration = json!({
        "architecture": image.architecture,
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": environment,
            "Entrypoint": image.entrypoint,
            "Cmd": image.arguments,
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|layer| &layer.digest).collect::<Vec<_>>()},
    });
    if let Some(created) = &image.created {
        configuration["created"] = created.clone().into();
    }
    if !image.labels.is_empty() {
        configuration["config"]["Labels"] = json!(image.labels);
    }
    if !image.volumes.is_empty() {
        let volumes = image.volumes.iter().map(|path| (path.clone(), json!({})));
        configuration["config"]["Volumes"] = Value::Object(volumes.collect());
    }
    configuration
}

fn manifest(config: &Blob, layers: &[Layer]) -> Value {
    let layers: Vec<_> = layers
        .iter()
        .map(|layer| {
            json!({
                // Not compressed: importing it is quicker, and digests do not depend on a compressor.
                "mediaType": layout::LAYER,
                "digest": layer.digest,
                "size": layer.length,
            })
        })
        .collect();
    json!({
        "schemaVersion": 2,
        "mediaType": layout::MANIFEST,
        "config": config.descriptor(layout::CONFIG),
        "layers": layers,
    })
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
