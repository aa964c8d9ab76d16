//! TCP ports for processes on the loopback interface.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::Error;

/// Below the range that Linux gives to outgoing connections: a port from that range could be taken by any client
/// while the process that owns it restarts. Also below the node ports of Kubernetes.
const FIRST: u16 = 16_000;
const LAST: u16 = 29_999;

/// Folder with a lock for each port that a process has handed out. It is the same for all processes of a machine, unlike that for
/// temporary files.
const LOCKS: &str = "/tmp/berth-ports";

/// Ports already handed out by this process, whose owners may not listen yet, and the locks that keep other processes from them. The
/// kernel opens the locks when the process ends.
#[derive(Default)]
struct HandedOut {
    ports: HashSet<u16>,
    locks: Vec<File>,
}

static HANDED_OUT: LazyLock<Mutex<HandedOut>> = LazyLock::new(Mutex::default);

/// A TCP port on 127.0.0.1 that no process listens on, and that neither this process nor another one of its user, as long as that
/// runs, has handed out before.
///
/// # Errors
/// [`Error::NoPort`] when all are taken.
pub fn free_port() -> Result<u16, Error> {
    let count = LAST - FIRST + 1;
    // Any start will do, as long as two processes that look at the same time begin at different places.
    let start = u16::try_from(RandomState::new().hash_one(std::process::id()) % u64::from(count)).unwrap_or(0);
    let folder = format!("{LOCKS}-{}", rustix::process::getuid().as_raw());
    let mut handed_out = HANDED_OUT.lock().unwrap_or_else(PoisonError::into_inner);
    for offset in 0..count {
        let port = FIRST + (start + offset) % count;
        if !handed_out.ports.contains(&port)
            && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
            && reserve(Path::new(&folder), port, &mut handed_out.locks)
        {
            handed_out.ports.insert(port);
            return Ok(port);
        }
    }
    Err(Error::NoPort(FIRST, LAST))
}

/// Keeps other processes from handing out a port; returns whether none of them has. Without a place for locks there is nothing to
/// keep: two processes rarely choose the same port.
fn reserve(folder: &Path, port: u16, locks: &mut Vec<File>) -> bool {
    if !is_own_folder(folder) {
        return true;
    }
    let Ok(file) = File::create(folder.join(port.to_string())) else {
        return true;
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => false,
        Ok(()) => {
            locks.push(file);
            true
        }
        Err(TryLockError::Error(_)) => true,
    }
}

/// Makes a folder unless it exists; returns whether it is one of this user, and no link to another place.
fn is_own_folder(path: &Path) -> bool {
    let _ = DirBuilder::new().mode(0o700).create(path);
    fs::symlink_metadata(path).is_ok_and(|found| found.is_dir() && found.uid() == rustix::process::getuid().as_raw())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_handed_out_twice() {
        let ports: HashSet<_> = (0..100).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 100);
        assert!(ports.iter().all(|port| (FIRST..=LAST).contains(port)));
    }

    #[test]
    fn a_port_of_another_process_is_not_handed_out() {
        let dir = tempfile::tempdir().unwrap();
        let (mut other, mut own) = (Vec::new(), Vec::new());
        assert!(reserve(dir.path(), 16_000, &mut other));
        assert!(!reserve(dir.path(), 16_000, &mut own));
        assert!(reserve(dir.path(), 16_001, &mut own));
        drop(other);
        assert!(reserve(dir.path(), 16_000, &mut own), "the other process has ended");
    }

    #[test]
    fn without_a_place_for_locks_ports_are_handed_out() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        File::create(&file).unwrap();
        let mut locks = Vec::new();
        assert!(reserve(&file.join("below"), 16_000, &mut locks));
        assert!(locks.is_empty());
    }
}
