//! The kubeconfig of the user as a file.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use berth_local::Home;
use berth_process::write_atomic;
use serde_json::Value;

use super::document::{self, Server};
use crate::error::Error;
use crate::output::{print_line, print_text};

/// Mode of a new kubeconfig: it has keys.
const MODE: u32 = 0o600;
/// How often a lock of another program is looked at, and the time between: kubectl has it for milliseconds.
const LOCK_TRIES: u32 = 20;
const LOCK_INTERVAL: Duration = Duration::from_millis(50);

/// The kubeconfigs of the user in the order in which kubectl merges them: those of KUBECONFIG, or else `~/.kube/config`. Some may not exist.
pub(crate) fn user_paths() -> Vec<PathBuf> {
    let set = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let mut all: Vec<PathBuf> = std::env::split_paths(&set)
        .filter(|path| !path.as_os_str().is_empty())
        .collect();
    if all.is_empty() {
        all.extend(std::env::home_dir().map(|home| home.join(".kube/config")));
    }
    all
}

/// Prints a kubeconfig, or writes it to a file that only the user can read. `name` is that of the tenant or ServiceAccount that it is for.
///
/// # Errors
/// It cannot be written.
pub(crate) fn print_or_write(text: &str, file: Option<&Path>, name: &str) -> Result<(), Error> {
    let Some(path) = file else {
        return print_line(format_args!("{}", text.trim_end()));
    };
    write_atomic(path, text.as_bytes(), MODE)?;
    print_text(format_args!("The kubeconfig of {name} is in {}.", path.display()));
    Ok(())
}

/// The kubeconfigs of the user, as kubectl finds them.
#[derive(Debug)]
pub(crate) struct UserFiles {
    /// In the order in which they are merged. Some may not exist.
    all: Vec<PathBuf>,
    /// The one to which kubectl would write: the first that exists, else the last.
    target: PathBuf,
}

impl UserFiles {
    /// Those of KUBECONFIG, or else `~/.kube/config`.
    ///
    /// # Errors
    /// There is none that a context can be written to.
    pub(crate) fn find() -> Result<Self, Error> {
        Self::of(user_paths())
    }

    fn of(all: Vec<PathBuf>) -> Result<Self, Error> {
        let existing = all.iter().find(|path| path.exists());
        let target = existing
            .or(all.last())
            .cloned()
            .ok_or_else(|| Error::Failed("there is no home directory; name a kubeconfig in KUBECONFIG".into()))?;
        let target = check_is_the_users(target)?;
        Ok(Self { all, target })
    }

    /// The file that has new contexts.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Whether other users of this machine can read the target, which has keys.
    pub(crate) fn is_readable_by_others(&self) -> bool {
        fs::metadata(&self.target).is_ok_and(|metadata| metadata.permissions().mode() & 0o077 != 0)
    }

    /// The contexts of all files.
    pub(crate) fn read_contexts(&self) -> Result<Value, Error> {
        let documents: Result<Vec<Value>, Error> = self.all.iter().map(|path| read(path)).collect();
        Ok(document::merge_contexts(&documents?))
    }

    /// Adds the context of a tenant to the target and switches to it.
    pub(crate) fn add_context(&self, context: &str, tenant: &Value, server: Option<&Server>) -> Result<(), Error> {
        let contexts = self.read_contexts()?;
        let current = document::current_context(&contexts);
        change(&self.target, |document| {
            document::add_context(document, context, tenant, server, current).map_err(Error::Failed)
        })
    }

    /// Removes the context of a tenant from every file and goes back to the one before. Returns whether it existed.
    pub(crate) fn remove_context(&self, context: &str) -> Result<bool, Error> {
        let previous = document::known_previous(&self.read_contexts()?, context);
        let mut existed = false;
        for path in self.all.iter().filter(|path| path.exists()) {
            existed |= change(path, |document| {
                Ok(document::remove_context(document, context, previous.as_deref()))
            })?;
        }
        Ok(existed)
    }
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
fn read(path: &Path) -> Result<Value, Error> {
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

/// Changes a kubeconfig under a lock that kubectl respects too. The file changes at once or not at all and keeps its mode and owner;
/// behind a symbolic link the file that it leads to changes. Nothing is written if nothing changed.
fn change<T>(path: &Path, change: impl FnOnce(&mut Value) -> Result<T, Error>) -> Result<T, Error> {
    let real = follow_link(path);
    for folder in [path, real.as_path()].into_iter().filter_map(Path::parent) {
        fs::create_dir_all(folder).map_err(|source| Error::File {
            action: "create",
            path: folder.into(),
            source,
        })?;
    }
    let _locks = Lock::acquire_all(path, &real)?;
    let before = read(&real)?;
    let mut after = before.clone();
    let result = change(&mut after)?;
    if after != before {
        let text = document::render(&after).map_err(Error::Output)?;
        let metadata = fs::metadata(&real).ok();
        let mode = metadata
            .as_ref()
            .map_or(MODE, |metadata| metadata.permissions().mode() & 0o777);
        write_atomic(&real, text.as_bytes(), mode)?;
        if let Some(metadata) = metadata {
            // Only root can give a file away. For others the new file is theirs, as the folder is.
            let _ = give_to_owner_of(&metadata, &real);
        }
    }
    Ok(result)
}

/// Gives a file to the owner of another one. A symbolic link that somebody has put in its place meanwhile is not followed: who owns the folder would
/// get any file of this machine from root.
fn give_to_owner_of(metadata: &fs::Metadata, path: &Path) -> io::Result<()> {
    lchown(path, Some(metadata.uid()), Some(metadata.gid()))
}

/// The file behind a symbolic link, even if it does not exist yet.
fn follow_link(path: &Path) -> PathBuf {
    let behind = || {
        let target = fs::read_link(path).ok()?;
        Some(path.parent().unwrap_or(Path::new("")).join(target))
    };
    fs::canonicalize(path)
        .ok()
        .or_else(behind)
        .unwrap_or_else(|| path.to_owned())
}

/// The lock that kubectl takes on a kubeconfig: a file beside it with the ending `.lock`.
#[derive(Debug)]
struct Lock(PathBuf);

impl Lock {
    /// The lock beside the path, which kubectl takes, and the one beside the file behind a link, which programs take that use
    /// another path to it. Waits a moment for other programs.
    fn acquire_all(path: &Path, real: &Path) -> Result<Vec<Self>, Error> {
        let mut paths = [path, real].map(Self::path_for).to_vec();
        paths.dedup();
        let mut locks = Vec::new();
        for lock in paths {
            let mut tries = 0;
            while !Self::try_acquire(&lock, &mut locks)? {
                tries += 1;
                if tries == LOCK_TRIES {
                    return Err(Error::Failed(format!(
                        "another program changes {} at the moment; try again, and delete {} if none does",
                        path.display(),
                        lock.display()
                    )));
                }
                #[expect(
                    clippy::disallowed_methods,
                    reason = "it reads and writes files, which blocks as well"
                )]
                std::thread::sleep(LOCK_INTERVAL);
            }
        }
        Ok(locks)
    }

    /// Where the lock of a file is. Its folder is resolved: the same lock must have the same path.
    fn path_for(path: &Path) -> PathBuf {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        fs::canonicalize(folder)
            .unwrap_or_else(|_| folder.to_owned())
            .join(name)
    }

    fn try_acquire(path: &Path, locks: &mut Vec<Self>) -> Result<bool, Error> {
        match fs::File::create_new(path) {
            Ok(_) => {
                locks.push(Self(path.to_owned()));
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(source) => Err(Error::File {
                action: "lock",
                path: path.into(),
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
    fn a_kubeconfig_that_is_written_is_private_also_in_place_of_one_that_others_read() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("deploy.yaml");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        print_or_write("token: t\n", Some(&file), "ci/deploy").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "token: t\n");
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, MODE);
    }

    #[test]
    fn a_link_that_takes_the_place_of_the_file_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("config"), folder.path().join("link"));
        fs::write(&file, "").unwrap();
        // Nothing is there, so that following it would fail.
        std::os::unix::fs::symlink("missing", &link).unwrap();
        give_to_owner_of(&fs::metadata(&file).unwrap(), &link).unwrap();
    }

    #[test]
    fn a_lock_that_is_soon_released_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let (file, lock) = (folder.path().join("config"), folder.path().join("config.lock"));
        fs::write(&lock, "").unwrap();
        let other = std::thread::spawn(move || {
            #[expect(clippy::disallowed_methods, reason = "on a thread that may block")]
            std::thread::sleep(LOCK_INTERVAL);
            fs::remove_file(lock).unwrap();
        });
        change(&file, |document| {
            document["x"] = json!(1);
            Ok(())
        })
        .unwrap();
        other.join().unwrap();
        assert_eq!(read(&file).unwrap()["x"], 1);
    }

    #[test]
    fn both_paths_of_a_linked_file_are_locked() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("real"), folder.path().join("link"));
        // The file does not exist yet.
        std::os::unix::fs::symlink("real", &link).unwrap();
        change(&link, |document| {
            assert!(folder.path().join("link.lock").exists() && folder.path().join("real.lock").exists());
            document["x"] = json!(1);
            Ok(())
        })
        .unwrap();
        assert_eq!(read(&file).unwrap()["x"], 1);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        // The same folder by two paths has one lock.
        let other = folder.path().join("folder");
        std::os::unix::fs::symlink(folder.path(), &other).unwrap();
        change(&other.join("real"), |_| Ok(())).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3);
    }

    #[test]
    fn a_context_of_another_file_is_gone_back_to() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["missing", "one", "two"].map(|name| folder.path().join(name));
        fs::write(&paths[1], "users: [{name: mine, user: {token: t}}]\n").unwrap();
        fs::write(
            &paths[2],
            "current-context: prod\ncontexts: [{name: prod, context: {user: mine}}]\n",
        )
        .unwrap();
        let files = UserFiles::of(paths.to_vec()).unwrap();
        assert_eq!(files.target(), paths[1]);
        let tenant = json!({
            "current-context": "v", "contexts": [{"name": "v", "context": {"cluster": "v", "user": "v"}}],
            "clusters": [{"name": "v", "cluster": {"server": "https://v"}}], "users": [{"name": "v", "user": {}}],
        });
        files.add_context("berth/team/v", &tenant, None).unwrap();
        for (mode, expected) in [(0o600, false), (0o640, true), (0o604, true)] {
            fs::set_permissions(&paths[1], fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(files.is_readable_by_others(), expected, "{mode:o}");
        }
        let contexts = files.read_contexts().unwrap();
        assert_eq!(document::current_context(&contexts), Some("berth/team/v"));
        assert_eq!(document::host_context(&contexts), Ok(Some("prod")));
        assert_eq!(read(&paths[1]).unwrap()["users"][0]["user"]["token"], "t");

        assert!(files.remove_context("berth/team/v").unwrap());
        assert_eq!(document::current_context(&files.read_contexts().unwrap()), Some("prod"));
        assert_eq!(read(&paths[2]).unwrap()["contexts"][0]["name"], "prod");
        assert!(!files.remove_context("berth/team/v").unwrap());
        assert!(!paths[0].exists());
        // None exists: kubectl creates the last one.
        let none = ["a", "b"].map(|name| folder.path().join(name));
        assert_eq!(UserFiles::of(none.to_vec()).unwrap().target(), none[1]);
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
