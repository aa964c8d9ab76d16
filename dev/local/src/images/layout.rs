//! OCI image layouts as tar files. Nothing in one depends on the time, the user or the order in which files were made.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use aws_lc_rs::digest::{Context, SHA256};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::layer::{Hashing, Layer, digest, file_header};
use crate::Error;

/// Media types of the OCI image specification.
pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// A manifest: one image, or what else is distributed as one.
pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
/// The configuration of an image.
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
/// A layer that is not compressed.
pub(super) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A file of the layout that is held in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    content: Vec<u8>,
    digest: String,
}

impl Blob {
    /// A blob with these bytes.
    pub fn new(content: Vec<u8>) -> Self {
        let mut hash = Context::new(&SHA256);
        hash.update(&content);
        Self {
            digest: digest(hash),
            content,
        }
    }

    /// A blob with a JSON document, without spaces. Objects have their keys in order.
    pub fn from_json(json: &Value) -> Self {
        Self::new(json.to_string().into_bytes())
    }

    /// The JSON document that the bytes are.
    pub(super) fn json(&self) -> serde_json::Result<Value> {
        serde_json::from_slice(&self.content)
    }

    /// `sha256:` and the digest of the bytes.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// How other documents of the layout refer to it.
    pub fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.content.len()})
    }
}

/// What becomes an archive.
#[derive(Debug)]
pub struct Layout {
    /// The name of what is in it, with a tag.
    reference: String,
    /// The descriptor of the only entry of `index.json`.
    top: Value,
    blobs: Vec<Blob>,
    layers: Vec<Layer>,
}

impl Layout {
    /// A layout whose index names `top`, a descriptor, as `reference`. `top` refers to blobs, and these to further blobs.
    pub fn new(reference: &str, mut top: Value, blobs: Vec<Blob>) -> Self {
        let tag = reference.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        top["annotations"] = json!({
            // containerd's name for the image; other programs read the tag.
            "io.containerd.image.name": reference,
            "org.opencontainers.image.ref.name": tag,
        });
        Self {
            reference: reference.to_owned(),
            top,
            blobs,
            layers: Vec::new(),
        }
    }

    pub(super) fn with_layers(mut self, layers: Vec<Layer>) -> Self {
        self.layers = layers;
        self
    }

    /// Writes the archive to a temporary file beside `path`, and renames it.
    ///
    /// # Errors
    /// The folder cannot be written, or a file changed while it was archived.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let folder = path.parent().unwrap_or(path);
        let failed = |source| Error::File {
            action: "write",
            path: path.to_owned(),
            source,
        };
        fs::create_dir_all(folder).map_err(failed)?;
        let mut file = NamedTempFile::new_in(folder).map_err(failed)?;
        let mut tar = tar::Builder::new(file.as_file_mut());
        let layout = json!({"imageLayoutVersion": "1.0.0"}).to_string();
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [self.top]}).to_string();
        let mut append = |name: &str, content: &[u8]| -> Result<(), Error> {
            let header = file_header(name.as_ref(), 0o644, content.len() as u64)?;
            tar.append(&header, content).map_err(failed)
        };
        append("oci-layout", layout.as_bytes())?;
        append("index.json", index.as_bytes())?;
        // Images of several architectures share a layer; the archive has it once.
        let mut written = BTreeSet::new();
        for blob in &self.blobs {
            if written.insert(&blob.digest) {
                append(&blob_path(&blob.digest), &blob.content)?;
            }
        }
        for layer in &self.layers {
            if written.insert(&layer.digest) {
                self.append_layer(&mut tar, layer, path)?;
            }
        }
        tar.finish().map_err(failed)?;
        drop(tar);
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// The layer writes itself into the archive, so that it is never in memory.
    fn append_layer(&self, tar: &mut tar::Builder<&mut fs::File>, layer: &Layer, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::File {
            action: "write",
            path: path.to_owned(),
            source,
        };
        let name = blob_path(&layer.digest);
        let mut header = file_header(name.as_ref(), 0o644, layer.length)?;
        let blob = tar.append_writer(&mut header, name).map_err(failed)?;
        let mut out = Hashing::new(blob);
        layer.write(&mut out).map_err(failed)?;
        let (blob, digest, _) = out.finish();
        blob.finish().map_err(failed)?;
        if digest == layer.digest {
            return Ok(());
        }
        Err(Error::Image {
            reference: self.reference.clone(),
            reason: "a file changed while it was archived; try again".into(),
        })
    }
}

fn blob_path(digest: &str) -> String {
    format!("blobs/{}", digest.replace(':', "/"))
}
