//! Layers: tar files that are made anew whenever they are read, without a copy in memory or on disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek as _, Write};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};

use crate::Error;

/// What lies at a path.
#[derive(Debug)]
pub(super) enum Content {
    Directory,
    Bytes(Vec<u8>),
    /// A symbolic link to a path in the image.
    Link(PathBuf),
    /// A file of this machine, opened once: replacing it during a read does not change the image.
    File {
        path: PathBuf,
        file: File,
        length: u64,
    },
}

/// One path of a layer.
#[derive(Debug)]
pub(super) struct Entry {
    mode: u32,
    owner: u32,
    content: Content,
}

impl Entry {
    pub(super) fn new(mode: u32, content: Content) -> Self {
        Self {
            mode,
            owner: 0,
            content,
        }
    }

    pub(super) fn owned_by(self, owner: u32) -> Self {
        Self { owner, ..self }
    }
}

/// A layer with its digest and length.
#[derive(Debug)]
pub(super) struct Layer {
    entries: Vec<(tar::Header, Content)>,
    /// `sha256:` and the digest of its bytes.
    pub(super) digest: String,
    /// How many bytes it has.
    pub(super) length: u64,
}

impl Layer {
    /// A layer with these paths and the directories above them. Reads all of it once.
    pub(super) fn new(entries: BTreeMap<PathBuf, Entry>) -> Result<Self, Error> {
        let mut entries: BTreeMap<_, _> = entries
            .into_iter()
            .map(|(path, entry)| (path.strip_prefix("/").map(Path::to_owned).unwrap_or(path), entry))
            .collect();
        for path in entries.keys().cloned().collect::<Vec<_>>() {
            for above in path.ancestors().skip(1).filter(|above| above.file_name().is_some()) {
                entries
                    .entry(above.to_owned())
                    .or_insert_with(|| Entry::new(0o755, Content::Directory));
            }
        }
        // In the order of the paths, so that directories come before what is in them.
        let entries = entries
            .into_iter()
            .map(|(path, entry)| Ok((header(&path, &entry)?, entry.content)))
            .collect::<Result<Vec<_>, Error>>()?;
        let mut layer = Self {
            entries,
            digest: String::new(),
            length: 0,
        };
        let mut out = Hashing::new(io::sink());
        layer.write(&mut out).map_err(|source| Error::File {
            action: "archive",
            path: PathBuf::from("layer"),
            source,
        })?;
        (_, layer.digest, layer.length) = out.finish();
        Ok(layer)
    }

    /// Writes all bytes to `out`.
    pub(super) fn write(&self, out: impl Write) -> io::Result<()> {
        let mut tar = tar::Builder::new(out);
        for (header, content) in &self.entries {
            match content {
                Content::Directory | Content::Link(_) => tar.append(header, io::empty())?,
                Content::Bytes(bytes) => tar.append(header, bytes.as_slice())?,
                Content::File { path, file, length } => {
                    let mut file = NamedFile { path, file };
                    file.file.rewind().map_err(|error| file.name(&error))?;
                    let mut content = file.take(*length);
                    tar.append(header, &mut content)?;
                    if content.limit() > 0 {
                        return Err(content.into_inner().name(&io::ErrorKind::UnexpectedEof.into()));
                    }
                }
            }
        }
        tar.finish()
    }
}

/// A file whose read errors name its path: the same call also writes the archive.
struct NamedFile<'a> {
    path: &'a Path,
    file: &'a File,
}

impl NamedFile<'_> {
    fn name(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("cannot read {}: {error}", self.path.display()))
    }
}

impl Read for NamedFile<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.file.read(buffer).map_err(|error| self.name(&error))
    }
}

/// Hashes and counts what is written, and passes it on.
pub(super) struct Hashing<W> {
    out: W,
    hash: Context,
    length: u64,
}

impl<W: Write> Hashing<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            hash: Context::new(&SHA256),
            length: 0,
        }
    }

    /// What it wrote to, the digest as OCI writes it, and the number of bytes.
    pub(super) fn finish(self) -> (W, String, u64) {
        (self.out, digest(self.hash), self.length)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.length += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A digest as OCI writes it.
pub(super) fn digest(hash: Context) -> String {
    let hex: String = hash
        .finish()
        .as_ref()
        .iter()
        .flat_map(|byte| [byte >> 4, byte & 15])
        .filter_map(|digit| char::from_digit(digit.into(), 16))
        .collect();
    format!("sha256:{hex}")
}

/// The header of a file in a tar file: nothing in it depends on the time or the user.
///
/// # Errors
/// The path is too long for a header.
pub fn file_header(path: &Path, mode: u32, length: u64) -> Result<tar::Header, Error> {
    let mut header = tar::Header::new_ustar();
    header.set_entry_type(tar::EntryType::Regular);
    header.set_size(length);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_path(path).map_err(|source| Error::File {
        action: "archive",
        path: path.to_owned(),
        source,
    })?;
    header.set_cksum();
    Ok(header)
}

fn header(path: &Path, entry: &Entry) -> Result<tar::Header, Error> {
    let length = match &entry.content {
        Content::Directory | Content::Link(_) => 0,
        Content::Bytes(bytes) => bytes.len() as u64,
        Content::File { length, .. } => *length,
    };
    let mut header = file_header(path, entry.mode, length)?;
    header.set_uid(entry.owner.into());
    header.set_gid(entry.owner.into());
    match &entry.content {
        Content::Directory => header.set_entry_type(tar::EntryType::Directory),
        Content::Link(target) => {
            header.set_entry_type(tar::EntryType::Symlink);
            header.set_link_name(target).map_err(|source| Error::File {
                action: "archive",
                path: path.to_owned(),
                source,
            })?;
        }
        Content::Bytes(_) | Content::File { .. } => {}
    }
    header.set_cksum();
    Ok(header)
}
