//! Files that hold secrets and state.

use std::fs::{self, DirBuilder};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use tempfile::Builder;

use crate::Error;

/// Writes a whole file so that readers see the old content or the new, never a part.
///
/// `mode` is the permission bits of the file (0o600 for secrets); it is in force before the first byte is written. The
/// content survives the death of this process, but is not forced to disk: a power failure may lose it.
///
/// Other users may write to the directory, as to `/tmp`: the temporary file has a name that they do not know, is always created, and no link
/// is followed.
///
/// # Errors
/// [`Error::File`] when the directory is missing or not writable.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    replace(path, bytes, mode).map_err(Error::file("write", path))
}

fn replace(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut prefix = name.to_owned();
    prefix.push(".");
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    // Nobody else can read it so far.
    let mut file = Builder::new()
        .prefix(&prefix)
        .suffix(".tmp")
        .tempfile_in(directory.unwrap_or(Path::new(".")))?;
    file.as_file().set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Creates a directory (and those above it) that only its owner can enter. One that exists gets mode 0700.
///
/// # Errors
/// [`Error::File`] when it cannot be created, or belongs to another user.
pub fn create_private_dir(path: &Path) -> Result<(), Error> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(Error::file("create", path))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(Error::file("restrict", path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn content_is_replaced_and_nothing_else_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key.pem");
        write_atomic(&path, b"old", 0o644).unwrap();
        write_atomic(&path, b"new", 0o600).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn files_that_others_left_for_it_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let (path, victim) = (dir.path().join("kubeconfig"), dir.path().join("victim"));
        fs::write(&victim, "theirs").unwrap();
        let process = std::process::id();
        let guesses = (0..1000).map(|number| dir.path().join(format!("kubeconfig.{process}-{number}.tmp")));
        for guess in guesses {
            symlink(&victim, guess).unwrap();
        }
        write_atomic(&path, b"secret", 0o600).unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"theirs");
        assert_eq!(fs::read(&path).unwrap(), b"secret");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
    }

    #[test]
    fn missing_directory_is_named() {
        let error = write_atomic(Path::new("/nowhere/at/all"), b"", 0o600).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
