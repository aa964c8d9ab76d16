//! Compressed tar files that depend on nothing but their content and one time.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use berth_local::images::file_header;
use flate2::{Compression, GzBuilder};

use crate::Error;

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) content: Vec<u8>,
    pub(crate) is_executable: bool,
}

impl Entry {
    pub(crate) fn text(content: Vec<u8>) -> Self {
        Self {
            content,
            is_executable: false,
        }
    }

    pub(crate) fn program(content: Vec<u8>) -> Self {
        Self {
            content,
            is_executable: true,
        }
    }
}

/// A `.tar.gz` with these files by path, in the order of the paths, owned by root, and changed at `epoch` (seconds since 1970).
pub(crate) fn tar_gz(files: &BTreeMap<String, Entry>, epoch: u64) -> Result<Vec<u8>, Error> {
    let failed = Error::file("archive", "files");
    // The time and the name of the file would be in the header of gzip, and the operating system by default.
    let gzip = GzBuilder::new()
        .mtime(0)
        .operating_system(255)
        .write(Vec::new(), Compression::best());
    let mut tar = tar::Builder::new(gzip);
    for (path, entry) in files {
        let mode = if entry.is_executable { 0o755 } else { 0o644 };
        let mut header = file_header(Path::new(path), mode, entry.content.len() as u64)?;
        header.set_mtime(epoch);
        header.set_cksum();
        tar.append(&header, entry.content.as_slice()).map_err(&failed)?;
    }
    let mut gzip = tar.into_inner().map_err(&failed)?;
    gzip.flush().map_err(&failed)?;
    gzip.finish().map_err(&failed)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read as _;

    /// Paths of an archive, in their order, with mode, time and content.
    pub(crate) fn list(bytes: &[u8]) -> Vec<(String, u32, u64, Vec<u8>)> {
        tar::Archive::new(GzDecoder::new(bytes))
            .entries()
            .unwrap()
            .map(|entry| {
                let mut entry = entry.unwrap();
                let mut content = Vec::new();
                entry.read_to_end(&mut content).unwrap();
                let header = entry.header();
                let path = entry.path().unwrap().display().to_string();
                assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
                (path, header.mode().unwrap(), header.mtime().unwrap(), content)
            })
            .collect()
    }

    #[test]
    fn entries_are_sorted_and_have_one_time() {
        let files = BTreeMap::from([
            ("b/run".to_owned(), Entry::program(b"1".to_vec())),
            ("a".to_owned(), Entry::text(b"22".to_vec())),
        ]);
        let bytes = tar_gz(&files, 1_700_000_000).unwrap();
        let expected = vec![
            ("a".to_owned(), 0o644, 1_700_000_000, b"22".to_vec()),
            ("b/run".to_owned(), 0o755, 1_700_000_000, b"1".to_vec()),
        ];
        assert_eq!(list(&bytes), expected);
        assert_eq!(tar_gz(&files, 1_700_000_000).unwrap(), bytes);
        assert_ne!(tar_gz(&files, 1_700_000_001).unwrap(), bytes);
    }
}
