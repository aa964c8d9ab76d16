//! An archive in memory. Pure.

use std::collections::BTreeMap;
use std::io;

use flate2::Compression;
use flate2::write::GzEncoder;

/// Folder in the archive in which everything is.
const FOLDER: &str = "berth-debug";

/// Files by path.
#[derive(Debug, Default)]
pub(super) struct Archive(BTreeMap<String, String>);

impl Archive {
    /// Adds a file, or replaces it.
    pub(super) fn add(&mut self, path: &str, text: String) {
        self.0.insert(path.to_owned(), text);
    }

    /// The archive as `tar` packed by gzip. `now` is in seconds since the epoch.
    ///
    /// # Errors
    /// A path is too long.
    pub(super) fn finish(self, now: i64) -> io::Result<Vec<u8>> {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (path, text) in self.0 {
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
        let mut archive = Archive::default();
        archive.add("b.txt", "two".into());
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
}
