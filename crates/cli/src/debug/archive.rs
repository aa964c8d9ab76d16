//! An archive in memory. Pure.

use std::collections::BTreeMap;
use std::io;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Folder in the archive in which everything is.
const FOLDER: &str = "berth-debug";

/// Files by path.
#[derive(Debug)]
pub(super) struct Archive {
    files: BTreeMap<String, String>,
    /// How many bytes more may be added.
    left: usize,
}

impl Archive {
    /// An archive whose files have at most so many bytes together.
    pub(super) fn new(most_bytes: usize) -> Self {
        Self {
            files: BTreeMap::new(),
            left: most_bytes,
        }
    }

    /// Adds a file, if there is room for it. Returns whether there was.
    pub(super) fn add(&mut self, path: &str, text: String) -> bool {
        let Some(left) = self.left.checked_sub(text.len()) else {
            return false;
        };
        self.left = left;
        self.files.insert(path.to_owned(), text);
        true
    }

    /// Adds a file that must not be missing, whatever its size is.
    pub(super) fn add_beyond(&mut self, path: &str, text: String) {
        self.files.insert(path.to_owned(), text);
    }

    /// The archive as `tar` packed by gzip. `now` is in seconds since the epoch.
    ///
    /// # Errors
    /// A path is too long.
    pub(super) fn finish(self, now: i64) -> io::Result<Vec<u8>> {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (path, text) in self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(u64::try_from(now).unwrap_or_default());
            builder.append_data(&mut header, format!("{FOLDER}/{path}"), text.as_bytes())?;
        }
        builder.into_inner()?.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;

    #[test]
    fn files_are_read_back() {
        let mut archive = Archive::new(1000);
        assert!(archive.add("b.txt", "two".into()));
        archive.add(&format!("{}/a.txt", "long/".repeat(40)), "one".into());
        let bytes = archive.finish(1_700_000_000).unwrap();
        let mut read = tar::Archive::new(flate2::read::GzDecoder::new(bytes.as_slice()));
        let texts: Vec<String> = read
            .entries()
            .unwrap()
            .map(|entry| {
                let mut text = String::new();
                entry.unwrap().read_to_string(&mut text).unwrap();
                text
            })
            .collect();
        assert_eq!(texts, ["two", "one"]);
    }

    #[test]
    fn what_has_no_room_is_left_out() {
        let mut archive = Archive::new(5);
        assert!(archive.add("a", "1234".into()));
        assert!(!archive.add("b", "12".into()));
        assert!(archive.add("c", "1".into()));
        assert_eq!(archive.files.len(), 2);
    }
}
