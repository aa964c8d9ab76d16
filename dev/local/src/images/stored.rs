//! What an archive of an image has, whichever program wrote it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;

use serde_json::Value;

use super::cannot_read;
use super::layout::Blob;
use crate::Error;

/// The most bytes of a document. Registries accept manifests up to this size (OCI distribution specification).
const MOST_BYTES: u64 = 4 << 20;
/// The most documents that are read: indexes of images have a few dozen.
const MOST_DOCUMENTS: usize = 1000;
/// Names of the image in `index.json`: that of containerd, and that of the OCI specification, which may be only a tag.
const NAMES: [&str; 2] = ["io.containerd.image.name", "org.opencontainers.image.ref.name"];

/// An image in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredImage {
    /// Its name with a tag, if the archive has one.
    pub name: Option<String>,
    /// Its digest: what a registry keeps, and what nodes show.
    pub digest: String,
    /// The platforms that the archive has, as `linux/amd64`.
    pub platforms: BTreeSet<String>,
}

/// Reads an archive, and checks that all parts of the image are in it. `None` if it has no OCI layout: older versions of docker write
/// another form.
///
/// # Errors
/// The file cannot be read, is no archive, is cut off, or has several images.
pub fn read(path: &Path) -> Result<Option<StoredImage>, Error> {
    read_layout(path).map_err(cannot_read(path))
}

fn read_layout(path: &Path) -> io::Result<Option<StoredImage>> {
    let mut parts = Parts::open(path)?;
    if !parts.entries.contains_key("index.json") {
        // What docker writes has this list of its layers; anything else is no image.
        return if parts.entries.contains_key("manifest.json") {
            Ok(None)
        } else {
            Err(invalid("this is not an archive of an image"))
        };
    }
    let index = parts.document("index.json")?;
    let [top] = items(&index, "manifests") else {
        return Err(invalid("the archive must have one image"));
    };
    let name = NAMES.iter().find_map(|name| {
        let name = top["annotations"][name].as_str()?;
        name.contains('/').then(|| name.to_owned())
    });
    let mut platforms = BTreeSet::new();
    parts.visit(top.clone(), &mut platforms)?;
    if platforms.is_empty() {
        return Err(incomplete());
    }
    Ok(Some(StoredImage {
        name,
        digest: text(&top["digest"])?.to_owned(),
        platforms,
    }))
}

/// The files of an archive: where each begins, and how long it is.
struct Parts {
    file: File,
    entries: BTreeMap<String, (u64, u64)>,
}

impl Parts {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        let mut entries = BTreeMap::new();
        for entry in tar::Archive::new(&file).entries_with_seek()? {
            let entry = entry?;
            let place = (entry.raw_file_position(), entry.size());
            if place.0.checked_add(place.1).is_none_or(|end| end > length) {
                return Err(incomplete());
            }
            let name = entry.path()?.to_string_lossy().trim_start_matches("./").to_owned();
            entries.insert(name, place);
        }
        Ok(Self { file, entries })
    }

    fn document(&mut self, name: &str) -> io::Result<Value> {
        serde_json::from_slice(&self.content(name)?).map_err(|error| invalid(format!("{name}: {error}")))
    }

    fn content(&mut self, name: &str) -> io::Result<Vec<u8>> {
        let (start, length) = *self.entries.get(name).ok_or_else(incomplete)?;
        if length > MOST_BYTES {
            return Err(invalid(format!("{name} has more than {MOST_BYTES} bytes")));
        }
        self.file.seek(SeekFrom::Start(start))?;
        let mut content = Vec::new();
        (&self.file).take(length).read_to_end(&mut content)?;
        Ok(content)
    }

    /// The document that a descriptor names, if the archive has it.
    fn described(&mut self, descriptor: &Value) -> io::Result<Option<Value>> {
        let name = blob_name(descriptor)?;
        if !self.entries.contains_key(&name) {
            return Ok(None);
        }
        let blob = Blob::new(self.content(&name)?);
        if blob.digest() != text(&descriptor["digest"])? {
            return Err(invalid(format!("{name} has another content than its name says")));
        }
        let document = blob.json().map_err(|error| invalid(format!("{name}: {error}")))?;
        Ok(Some(document))
    }

    /// Visits an image and all images of its index, and collects their platforms. Programs may leave out some platforms of an index,
    /// but no part of one that is there.
    fn visit(&mut self, top: Value, platforms: &mut BTreeSet<String>) -> io::Result<()> {
        let (mut pending, mut visited) = (vec![top], 0);
        while let Some(descriptor) = pending.pop() {
            visited += 1;
            if visited > MOST_DOCUMENTS {
                return Err(invalid("its index has too many entries"));
            }
            let Some(document) = self.described(&descriptor)? else {
                continue;
            };
            if document["manifests"].is_array() {
                pending.extend(items(&document, "manifests").iter().cloned());
                continue;
            }
            for layer in items(&document, "layers") {
                self.check_size(layer)?;
            }
            let configuration = self.described(&document["config"])?.ok_or_else(incomplete)?;
            if let Some(platform) = platform_of(&descriptor["platform"]).or_else(|| platform_of(&configuration)) {
                platforms.insert(platform);
            }
        }
        Ok(())
    }

    fn check_size(&self, descriptor: &Value) -> io::Result<()> {
        let is_foreign = descriptor["urls"].as_array().is_some_and(|urls| !urls.is_empty());
        let place = self.entries.get(&blob_name(descriptor)?);
        let fits = place.is_some_and(|(_, length)| descriptor["size"].as_u64() == Some(*length));
        // Layers of Windows may stay where they are.
        if fits || (place.is_none() && is_foreign) {
            Ok(())
        } else {
            Err(incomplete())
        }
    }
}

/// `linux/amd64`, of a platform or a configuration. None for what is no program, such as a signature.
fn platform_of(value: &Value) -> Option<String> {
    let field = |name: &str| {
        value[name]
            .as_str()
            .filter(|text| !text.is_empty() && *text != "unknown")
    };
    Some(format!("{}/{}", field("os")?, field("architecture")?))
}

fn items<'a>(document: &'a Value, field: &str) -> &'a [Value] {
    document[field].as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> io::Result<&str> {
    value.as_str().ok_or_else(|| invalid("a descriptor has no digest"))
}

fn blob_name(descriptor: &Value) -> io::Result<String> {
    Ok(format!("blobs/{}", text(&descriptor["digest"])?.replace(':', "/")))
}

fn incomplete() -> io::Error {
    invalid("the archive is not complete")
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::{Image, write_index};
    use std::fs;
    use std::path::PathBuf;
    use tempfile::TempDir;

    const NAME: &str = "example.com/tools/program:v1";

    /// An archive with these architectures, and its digest.
    fn archive(dir: &TempDir, architectures: &[&str]) -> (PathBuf, String) {
        let program = dir.path().join("program");
        fs::write(&program, "text").unwrap();
        let images: Vec<Image> = architectures
            .iter()
            .map(|architecture| {
                let mut image = Image::new(NAME, &program, "/program");
                (*architecture).clone_into(&mut image.architecture);
                image
            })
            .collect();
        let path = dir.path().join("program.oci.tar");
        let digest = write_index(&images, &path).unwrap().digest;
        (path, digest)
    }

    /// Writes a tar file with these files.
    fn tar_of(dir: &TempDir, files: &[(&str, &[u8])]) -> PathBuf {
        let path = dir.path().join("other.tar");
        let mut tar = tar::Builder::new(File::create(&path).unwrap());
        for (name, content) in files {
            let header = crate::images::file_header(name.as_ref(), 0o644, content.len() as u64).unwrap();
            tar.append(&header, *content).unwrap();
        }
        tar.finish().unwrap();
        path
    }

    #[test]
    fn name_digest_and_platforms_are_read() {
        let dir = TempDir::new().unwrap();
        let (path, digest) = archive(&dir, &["amd64", "arm64"]);
        let expected = StoredImage {
            name: Some(NAME.into()),
            digest,
            platforms: ["linux/amd64", "linux/arm64"].map(str::to_owned).into(),
        };
        assert_eq!(read(&path).unwrap(), Some(expected));
        // An image of one architecture, without an index.
        let program = dir.path().join("program");
        let single = Image::new(NAME, &program, "/program").archive_in(dir.path()).unwrap();
        let read = read(&single.path).unwrap().unwrap();
        assert_eq!((read.digest, read.platforms.len()), (single.digest, 1));
    }

    #[test]
    fn an_archive_that_is_cut_off_is_an_error_at_any_length() {
        let dir = TempDir::new().unwrap();
        let (path, _) = archive(&dir, &["amd64"]);
        let content = fs::read(&path).unwrap();
        // The last kilobyte is the end mark of the archive.
        for length in (0..content.len() - 1024).step_by(512) {
            fs::write(&path, &content[..length]).unwrap();
            assert!(read(&path).is_err(), "{length} of {} bytes", content.len());
        }
    }

    #[test]
    fn other_files_are_errors_that_name_the_file() {
        let dir = TempDir::new().unwrap();
        let two = br#"{"manifests": [{"digest": "sha256:1"}, {"digest": "sha256:2"}]}"#;
        let missing = br#"{"manifests": [{"digest": "sha256:1"}]}"#;
        for (files, message) in [
            (&[("a", &b"text"[..])][..], "not an archive of an image"),
            (&[("index.json", &two[..])], "must have one image"),
            (&[("index.json", &missing[..])], "not complete"),
            (&[("index.json", &b"{"[..])], "index.json: "),
        ] {
            let path = tar_of(&dir, files);
            let error = read(&path).unwrap_err().to_string();
            assert!(error.contains(message) && error.contains("other.tar"), "{error}");
        }
        assert!(read(&dir.path().join("none")).is_err());
        fs::write(dir.path().join("text"), "text").unwrap();
        assert!(read(&dir.path().join("text")).is_err());
        // The form of older versions of docker.
        assert_eq!(read(&tar_of(&dir, &[("manifest.json", &b"[]"[..])])).unwrap(), None);
    }

    #[test]
    fn changed_documents_are_errors() {
        let dir = TempDir::new().unwrap();
        let (path, digest) = archive(&dir, &["amd64"]);
        let mut content = fs::read(&path).unwrap();
        let index = br#""mediaType":"application/vnd.oci.image.index.v1+json""#;
        // The first is in index.json, the second in the index of the image.
        let places: Vec<usize> = (0..content.len() - index.len())
            .filter(|start| content[*start..].starts_with(index))
            .collect();
        content[places[places.len() - 1] + 3] = b'X';
        fs::write(&path, content).unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("another content") && error.contains(&digest[7..20]),
            "{error}"
        );
    }
}
