//! Files of the node. A missing file is no error; a file that cannot be read is one.

use crate::Unclean;
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Adds the path to an error.
pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Unclean + use<> {
    let path = path.to_owned();
    move |source| Unclean::File { path, source }
}

/// What is in a folder; nothing if there is no such folder.
pub(crate) fn entries(folder: &Path) -> Result<Vec<PathBuf>, Unclean> {
    let listed = match fs::read_dir(folder) {
        Ok(listed) => listed,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(folder)(error)),
    };
    let mut all = Vec::new();
    for entry in listed {
        all.push(entry.map_err(at(folder))?.path());
    }
    all.sort();
    Ok(all)
}

/// A file's text; nothing if there is no such file.
pub(crate) fn text(path: &Path) -> Result<Option<String>, Unclean> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(at(path)(error)),
    }
}

/// The last part of a path.
pub(crate) fn name(path: &Path) -> String {
    path.file_name()
        .map(|name| name.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// Removes a file or a whole folder. Links are removed, not followed.
pub(crate) fn remove(path: &Path) -> Result<(), Unclean> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(at(path)(error)),
    };
    let removed = if metadata.is_dir() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}
