//! Detects changes of files.

use std::fs;
use std::path::PathBuf;

use sha2::{Digest as _, Sha256};

use crate::Error;

/// A text that changes when the content of any of `paths` does. A process that reads them only at its start is replaced then.
pub(crate) fn revision_of_files(paths: &[PathBuf]) -> Result<String, Error> {
    let mut digest = Sha256::new();
    for path in paths {
        let content = fs::read(path).map_err(|source| Error::File {
            action: "read",
            path: path.clone(),
            source,
        })?;
        digest.update(Sha256::digest(content));
    }
    Ok(format!("{:x}", digest.finalize())[..16].to_owned())
}
