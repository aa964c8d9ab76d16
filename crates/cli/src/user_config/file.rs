//! The kubeconfig of the user as a file.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use berth_local::Home;
use berth_process::write_atomic;
use serde_json::Value;

use super::document;
use crate::error::Error;

/// Mode of a new kubeconfig: it has keys.
const MODE: u32 = 0o600;

/// The file that kubectl would write to: the first one of KUBECONFIG that exists, else the first one, else `~/.kube/config`.
pub(crate) fn find() -> Result<PathBuf, Error> {
    let set = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let all: Vec<PathBuf> = std::env::split_paths(&set)
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    let existing = all.iter().find(|path| path.exists()).or(all.first()).cloned();
    let default = || Some(std::env::home_dir()?.join(".kube/config"));
    let path = existing
        .or_else(default)
        .ok_or_else(|| Error::Failed("there is no home directory; name a kubeconfig in KUBECONFIG".into()))?;
    check_is_the_users(path)
}

/// The kubeconfig of a local host cluster belongs to `berth dev`: with the context of a tenant in it, `berth dev status` would ask the
/// tenant.
fn check_is_the_users(path: PathBuf) -> Result<PathBuf, Error> {
    let is_local = path.parent().is_some_and(|folder| Home::new(folder).exists());
    if is_local {
        return Err(Error::Failed(format!(
            "{} belongs to the local host cluster; unset KUBECONFIG, or let it name another file, for example \
             KUBECONFIG=~/.kube/config; `berth connect NAME -- COMMAND` changes no file",
            path.display()
        )));
    }
    Ok(path)
}

/// Reads a kubeconfig; a missing file is an empty one.
pub(crate) fn read(path: &Path) -> Result<Value, Error> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(source) => {
            return Err(Error::File {
                action: "read",
                path: path.into(),
                source,
            });
        }
    };
    document::parse(&text).map_err(|error| Error::Failed(format!("{} is not a kubeconfig: {error}", path.display())))
}

/// Changes a kubeconfig under a lock that kubectl respects too. The file changes at once or not at all and keeps its mode; behind a
/// symbolic link the file that it leads to changes. Nothing is written if nothing changed.
pub(crate) fn change<T>(path: &Path, change: impl FnOnce(&mut Value) -> Result<T, Error>) -> Result<T, Error> {
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(|source| Error::File {
            action: "create",
            path: folder.into(),
            source,
        })?;
    }
    let _lock = Lock::acquire(&path)?;
    let before = read(&path)?;
    let mut after = before.clone();
    let result = change(&mut after)?;
    if after != before {
        let text = document::render(&after).map_err(Error::Output)?;
        let mode = fs::metadata(&path).map_or(MODE, |metadata| metadata.permissions().mode() & 0o777);
        write_atomic(&path, text.as_bytes(), mode)?;
    }
    Ok(result)
}

/// The lock that kubectl takes on a kubeconfig: a file beside it with the ending `.lock`.
struct Lock(PathBuf);

impl Lock {
    fn acquire(path: &Path) -> Result<Self, Error> {
        let mut lock = path.as_os_str().to_owned();
        lock.push(".lock");
        let lock = PathBuf::from(lock);
        match fs::File::create_new(&lock) {
            Ok(_) => Ok(Self(lock)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Error::Failed(format!(
                "another program changes {} at the moment; try again, and delete {} if none does",
                path.display(),
                lock.display()
            ))),
            Err(source) => Err(Error::File {
                action: "lock",
                path: lock,
                source,
            }),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_change_keeps_mode_and_links_and_leaves_no_lock() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("real"), folder.path().join("link"));
        fs::write(&file, "a: 1\n").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        change(&link, |document| {
            document["b"] = json!(2);
            Ok(())
        })
        .unwrap();
        assert_eq!(read(&file).unwrap(), json!({"a": 1, "b": 2}));
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn a_new_file_is_private_and_a_locked_one_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("new/config");
        let set = |document: &mut Value| {
            document["x"] = json!(1);
            Ok(())
        };
        change(&file, set).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, MODE);
        fs::write(folder.path().join("new/config.lock"), "").unwrap();
        assert!(change(&file, set).unwrap_err().to_string().contains("config.lock"));
    }

    #[test]
    fn the_kubeconfig_of_a_local_host_cluster_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let home = Home::new(folder.path());
        home.create().unwrap();
        assert!(check_is_the_users(home.admin_kubeconfig()).is_err());
        assert!(check_is_the_users(folder.path().join("logs/config")).is_ok());
    }
}
