//! Layers: tar files that are made anew whenever they are read, without a copy in memory or on disk.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::path::{Path, PathBuf};

use aws_lc_rs::digest::{Context, SHA256};

use super::cannot_read;
use crate::Error;

/// The unit in which tar files are written.
const BLOCK: usize = 512;

/// What lies at a path.
#[derive(Debug)]
pub(super) enum Content {
    Directory,
    Bytes(Vec<u8>),
    /// A symbolic link to a path in the image.
    Link(PathBuf),
    /// A file of this machine, opened once: who replaces it while it is read does not change the image.
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

/// A layer, and what it is known by.
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
        let mut hash = Context::new(&SHA256);
        layer.length = layer.copy(|bytes| {
            hash.update(bytes);
            Ok(())
        })?;
        layer.digest = digest(hash);
        Ok(layer)
    }

    /// Hands all bytes to `sink`, and says how many there were.
    pub(super) fn copy(&self, mut sink: impl FnMut(&[u8]) -> Result<(), Error>) -> Result<u64, Error> {
        let mut buffer = vec![0; 256 * 1024];
        let mut total = 0;
        let mut put = |bytes: &[u8]| {
            total += bytes.len() as u64;
            sink(bytes)
        };
        for (header, content) in &self.entries {
            put(header.as_bytes())?;
            match content {
                Content::Directory | Content::Link(_) => {}
                Content::Bytes(bytes) => {
                    put(bytes)?;
                    put(padding(bytes.len() as u64))?;
                }
                Content::File { path, file, length } => {
                    let mut file = file;
                    file.rewind().map_err(cannot_read(path))?;
                    let mut rest = file.take(*length);
                    loop {
                        let read = rest.read(&mut buffer).map_err(cannot_read(path))?;
                        if read == 0 {
                            break;
                        }
                        put(&buffer[..read])?;
                    }
                    if rest.limit() > 0 {
                        return Err(cannot_read(path)(io::ErrorKind::UnexpectedEof.into()));
                    }
                    put(padding(*length))?;
                }
            }
        }
        // Two empty blocks end a tar file.
        put(&[0; 2 * BLOCK])?;
        Ok(total)
    }
}

/// The zeros that fill a file's last block.
pub(super) fn padding(length: u64) -> &'static [u8] {
    const ZEROS: [u8; BLOCK] = [0; BLOCK];
    let rest = usize::try_from(length % BLOCK as u64).unwrap_or_default();
    if rest == 0 { &[] } else { &ZEROS[rest..] }
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

/// The header of a file in an archive: nothing in it depends on when and by whom it is made.
pub(super) fn file_header(path: &Path, mode: u32, length: u64) -> Result<tar::Header, Error> {
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
