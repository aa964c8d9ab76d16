//! Files that hold secrets and state.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;

/// Makes two writers of one process use two temporary names.
static SEQUENCE: AtomicU64 = AtomicU64::new(0);

/// Writes a whole file so that readers see the old content or the new, never a part.
///
/// `mode` is the permission bits of the file (0o600 for secrets); it is in force before the first byte is written. The
/// content survives the death of this process, but is not forced to disk: a power failure may lose it.
///
/// # Errors
/// [`Error::File`] when the directory is missing or not writable.
pub fn write_atomic(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}-{sequence}.tmp", std::process::id()));
    let temporary = Path::new(&temporary);
    write_new(temporary, bytes, mode)
        .and_then(|()| fs::rename(temporary, path))
        .map_err(Error::file("write", path))
        .inspect_err(|_| drop(fs::remove_file(temporary)))
}

fn write_new(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(path)?;
    // The umask may have taken bits away.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(bytes)
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
    fn missing_directory_is_named() {
        let error = write_atomic(Path::new("/nowhere/at/all"), b"", 0o600).unwrap_err();
        assert!(error.to_string().contains("/nowhere/at/all"), "{error}");
    }
}
