//! Berth's chart, which is a part of this program.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// The files by their paths in the chart. `build.rs` lists them.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/chart.rs"));

/// Writes the chart into a folder, in place of what is there. Returns the folder.
pub(super) fn write(folder: PathBuf) -> Result<PathBuf, Error> {
    let failed = |action: &'static str, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { action, path, source }
    };
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed("remove", &folder)(error)),
        _ => {}
    }
    for (name, content) in FILES {
        let path = folder.join(name);
        let parent = path.parent().unwrap_or(&folder);
        fs::create_dir_all(parent).map_err(failed("create", parent))?;
        fs::write(&path, content).map_err(failed("write", &path))?;
    }
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use tempfile::TempDir;

    fn files(folder: &Path, below: &str) -> BTreeMap<String, Vec<u8>> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(folder.join(below)).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().display());
            if entry.path().is_dir() {
                found.extend(files(folder, &format!("{name}/")));
            } else {
                found.insert(name, fs::read(entry.path()).unwrap());
            }
        }
        found
    }

    #[test]
    fn the_chart_is_written_as_it_is_in_the_checkout() {
        let dir = TempDir::new().unwrap();
        let folder = dir.path().join("chart");
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("left-over.yaml"), "").unwrap();
        let written = write(folder).unwrap();
        let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/berth");
        assert_eq!(files(&written, ""), files(&checkout, ""));
    }
}
