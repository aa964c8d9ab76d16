//! Where a host cluster keeps its files.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use berth_process::{create_private_dir, write_atomic};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::process::geteuid;
use serde::de::DeserializeOwned;

use crate::{Error, Ports};

/// A file that marks a home, so that no other directory is ever removed.
const MARKER: &str = ".berth-home";

/// The state directory of a host cluster (`BERTH_HOME`). Everything that exists because of the cluster lies in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    root: PathBuf,
}

impl Home {
    /// The home at `root`, absolute or relative to the working directory. Touches nothing.
    pub fn new(root: impl AsRef<Path>) -> Self {
        let root = root.as_ref();
        let absolute = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
        // Processes carry the path: it must be the same through every link to the home.
        Self {
            root: absolute.canonicalize().unwrap_or(absolute),
        }
    }

    /// Creates the directories, all of them for the owner only.
    ///
    /// # Errors
    /// [`Error::NotAHome`] when the directory holds something else already, [`Error::Process`] when one cannot be created, those of
    /// [`Home::check_private`] when it is a home already.
    pub fn create(&self) -> Result<(), Error> {
        if !self.is_empty_or_home()? {
            return Err(Error::NotAHome(self.root.clone()));
        }
        if self.exists() {
            self.check_private()?;
        }
        create_private_dir(&self.root)?;
        // Root can close an empty directory of another user, who could enter it all the same.
        self.check_owner()?;
        write_atomic(&self.root.join(MARKER), self.marker_text()?.as_bytes(), 0o600)?;
        let data = [self.data("etcd"), self.data("datastore")];
        for dir in [self.logs(), self.run(), self.pki(), self.tenants(), self.kubeconfigs()]
            .iter()
            .chain(&data)
        {
            create_private_dir(dir)?;
        }
        Ok(())
    }

    /// Removes the directory with everything in it. A missing one counts as removed.
    ///
    /// # Errors
    /// [`Error::NotAHome`] when [`Home::create`] did not make the directory, [`Error::File`] when a file cannot be removed.
    pub fn remove(&self) -> Result<(), Error> {
        if !self.is_empty_or_home()? {
            return Err(Error::NotAHome(self.root.clone()));
        }
        // The marker goes last: a removal that was cut short can be repeated.
        for path in entries(&self.root)?.into_iter().filter(|path| !path.ends_with(MARKER)) {
            let removed = if path.is_dir() {
                fs::remove_dir_all(&path)
            } else {
                fs::remove_file(&path)
            };
            ignore_missing(removed).map_err(|source| Error::File {
                action: "remove",
                path,
                source,
            })?;
        }
        ignore_missing(fs::remove_dir_all(&self.root)).map_err(|source| Error::File {
            action: "remove",
            path: self.root.clone(),
            source,
        })
    }

    /// The ports of the cluster; none when it has never been started.
    pub fn ports(&self) -> Option<Ports> {
        Ports::load(self).ok().flatten()
    }

    /// Whether [`Home::create`] has made this directory.
    pub fn exists(&self) -> bool {
        self.root.join(MARKER).is_file()
    }

    /// Checks that this user made the directory with [`Home::create`], here, and that nobody else can enter it. Commands take the home in the directory
    /// in which they run, and that can be one into which others write, such as `/tmp`, or the copy of a repository that brings a home.
    ///
    /// # Errors
    /// [`Error::NotPrivate`] and [`Error::CopiedHome`] when somebody else may have written what is in it, [`Error::File`] when it cannot be looked at.
    pub fn check_private(&self) -> Result<(), Error> {
        self.check_owner()?;
        let path = self.root.join(MARKER);
        let found = fs::read(&path).map_err(|source| Error::File {
            action: "read",
            path,
            source,
        })?;
        if found == self.marker_text()?.as_bytes() {
            Ok(())
        } else {
            Err(Error::CopiedHome(self.root.clone()))
        }
    }

    /// Checks that the directory may be removed: it is a home of this user, or one of this user in which nothing is. A missing one may be.
    ///
    /// # Errors
    /// [`Error::NotPrivate`] and [`Error::NotAHome`] when it may not be removed, [`Error::File`] when it cannot be looked at.
    pub(crate) fn check_removable(&self) -> Result<(), Error> {
        if self.exists() {
            return self.check_owner();
        }
        if !entries(&self.root)?.is_empty() {
            return Err(Error::NotAHome(self.root.clone()));
        }
        // Root can remove an empty directory of another user.
        if self.root.exists() && self.metadata()?.uid() != geteuid().as_raw() {
            return Err(Error::NotPrivate(self.root.clone()));
        }
        Ok(())
    }

    /// Checks that the directory belongs to this user, and that nobody else can enter it.
    fn check_owner(&self) -> Result<(), Error> {
        let metadata = self.metadata()?;
        let is_own = metadata.uid() == geteuid().as_raw();
        let is_open = metadata.permissions().mode() & 0o077 != 0;
        if is_own && !is_open {
            Ok(())
        } else {
            Err(Error::NotPrivate(self.root.clone()))
        }
    }

    fn metadata(&self) -> Result<fs::Metadata, Error> {
        fs::metadata(&self.root).map_err(|source| Error::File {
            action: "read",
            path: self.root.clone(),
            source,
        })
    }

    /// What the marker says. It names the directory in which it was written by what no program can choose: a copy, such as one that comes out of an
    /// archive, has another number and another time of birth. One that is renamed keeps both.
    fn marker_text(&self) -> Result<String, Error> {
        let inode = self.metadata()?.ino();
        // Not all file systems know the time; then the number has to do. The standard library does not have it with musl.
        let birth = statx(CWD, self.root.as_path(), AtFlags::empty(), StatxFlags::BTIME)
            .ok()
            .filter(|stat| stat.stx_mask & StatxFlags::BTIME.bits() != 0)
            .map(|stat| format!(" {}.{:09}", stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec));
        Ok(format!(
            "State of a local Berth host cluster. Remove it with `berth dev down`.\nDirectory: {inode}{}\n",
            birth.unwrap_or_default()
        ))
    }

    fn is_empty_or_home(&self) -> Result<bool, Error> {
        Ok(self.exists() || entries(&self.root)?.is_empty())
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Kubeconfig of the host cluster's admin.
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.root.join("host.kubeconfig")
    }

    /// Kubeconfig of control.
    pub fn control_kubeconfig(&self) -> PathBuf {
        self.root.join("control.kubeconfig")
    }

    /// Kubeconfig of the gateway.
    pub fn gateway_kubeconfig(&self) -> PathBuf {
        self.root.join("gateway.kubeconfig")
    }

    /// Kubeconfigs of tenants.
    pub fn kubeconfigs(&self) -> PathBuf {
        self.root.join("kubeconfigs")
    }

    /// Output of all processes, one file each.
    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    /// The log of one process.
    pub fn log(&self, process: &str) -> PathBuf {
        self.logs().join(format!("{process}.log"))
    }

    /// Process records and the supervisor's lock.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }

    /// Authorities, certificates and keys.
    pub fn pki(&self) -> PathBuf {
        self.root.join("pki")
    }

    /// Tenants' files, kept by control.
    pub fn tenants(&self) -> PathBuf {
        self.root.join("tenants")
    }

    /// Snapshots of what tenants store.
    pub fn snapshots(&self) -> PathBuf {
        self.root.join("snapshots")
    }

    /// The data of an etcd.
    pub fn data(&self, name: &str) -> PathBuf {
        self.root.join("data").join(name)
    }

    /// A configuration file of a host component.
    pub(crate) fn config(&self, file: &str) -> PathBuf {
        self.root.join("run").join(file)
    }

    /// What was written as JSON to a configuration file; none if the file does not exist.
    pub(crate) fn read_config<T: DeserializeOwned>(&self, file: &str) -> Result<Option<T>, Error> {
        let path = self.config(file);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| Error::File {
                action: "parse",
                path,
                source: error.into(),
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File {
                action: "read",
                path,
                source,
            }),
        }
    }
}

/// The paths in a directory; none when it does not exist.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |source| Error::File {
        action: "list",
        path: dir.to_owned(),
        source,
    };
    match fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry.map_err(failed)?.path())).collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed(error)),
    }
}

fn ignore_missing(result: io::Result<()>) -> io::Result<()> {
    result.or_else(|error| {
        if error.kind() == io::ErrorKind::NotFound {
            Ok(())
        } else {
            Err(error)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    #[test]
    fn a_home_is_created_and_removed() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().join("home"));
        home.create().unwrap();
        home.create().unwrap();
        fs::write(home.log("etcd"), "text").unwrap();
        home.remove().unwrap();
        home.remove().unwrap();
        assert!(!home.root().exists());
    }

    #[test]
    fn a_home_that_others_can_enter_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().join("home"));
        home.create().unwrap();
        home.check_private().unwrap();
        // As in the copy of a repository.
        fs::set_permissions(home.root(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(matches!(home.check_private(), Err(Error::NotPrivate(_))));
        assert!(matches!(home.create(), Err(Error::NotPrivate(_))));
        assert!(matches!(crate::destroy(home.root()), Err(Error::NotPrivate(_))));
        assert!(home.exists());
        fs::set_permissions(home.root(), fs::Permissions::from_mode(0o700)).unwrap();
        home.create().unwrap();
    }

    #[test]
    fn a_copy_of_a_home_is_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path().join("home"));
        home.create().unwrap();
        let copy = Home::new(dir.path().join("copy"));
        create_private_dir(copy.root()).unwrap();
        fs::copy(home.root().join(MARKER), copy.root().join(MARKER)).unwrap();
        assert!(matches!(copy.check_private(), Err(Error::CopiedHome(_))));
        assert!(matches!(copy.create(), Err(Error::CopiedHome(_))));
        // A file of it says which networks are removed. Without that file nothing outside of the directory is.
        create_private_dir(&copy.run()).unwrap();
        fs::write(copy.config("network.config"), r#"{"id": "fffff", "range": 1}"#).unwrap();
        assert!(matches!(crate::destroy(copy.root()), Err(Error::CopiedHome(_))));
        fs::remove_file(copy.config("network.config")).unwrap();
        crate::destroy(copy.root()).unwrap();
        assert!(!copy.root().exists());

        let moved = dir.path().join("moved");
        fs::rename(home.root(), &moved).unwrap();
        Home::new(moved).create().unwrap();
    }

    #[test]
    fn an_empty_directory_of_another_user_becomes_no_home_and_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        // Only root could go on in it, and only root can make one.
        if chown(dir.path(), Some(12_345), None).is_err() {
            return;
        }
        let home = Home::new(dir.path());
        assert!(matches!(home.create(), Err(Error::NotPrivate(_))));
        assert!(!home.exists());
        assert!(matches!(crate::destroy(home.root()), Err(Error::NotPrivate(_))));
        assert!(home.root().exists());
        chown(dir.path(), Some(geteuid().as_raw()), None).unwrap();
        home.create().unwrap();
    }

    #[test]
    fn a_directory_that_is_not_a_home_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("thesis.txt");
        fs::write(&precious, "text").unwrap();
        let home = Home::new(dir.path());
        assert!(matches!(home.create(), Err(Error::NotAHome(_))));
        assert!(matches!(home.remove(), Err(Error::NotAHome(_))));
        // Also if it has files as a home has them.
        fs::create_dir(home.run()).unwrap();
        fs::write(home.config("network.config"), "no network").unwrap();
        assert!(matches!(crate::destroy(home.root()), Err(Error::NotAHome(_))));
        assert!(precious.exists());
    }
}
