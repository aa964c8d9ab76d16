//! Removal of a folder with everything in it, however deep it is. A tenant can nest folders until a recursion has no more descriptors or no
//! more stack, and until paths are longer than the kernel takes.
//!
//! What is mounted in the folder is never entered, also if it is mounted meanwhile: it can be a volume, with data that outlives the node.

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, fstat, open, openat, openat2, unlinkat},
    io::Errno,
};
use std::{
    ffi::{CStr, CString},
    fs::File,
    io::{self, Seek, SeekFrom},
    mem::MaybeUninit,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

/// Bytes of entries that are read at a time.
const BUFFER: usize = 32 * 1024;
/// A folder is opened, and not what a link leads to.
const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Device and inode of a folder.
type FolderId = (u64, u64);

/// A folder above the one that is emptied.
struct Above {
    id: FolderId,
    /// The folder in it that is emptied.
    child: CString,
    /// Where the entries after that one begin.
    next: u64,
}

/// Removes a folder. Links in it are removed, not followed. Three descriptors are open at most, and there is no recursion; the memory grows
/// with the depth.
///
/// # Errors
/// Something cannot be removed, such as an immutable file, or is mounted on the folder or in it. What was found before it is gone.
pub(crate) fn remove_folder(path: &Path) -> io::Result<()> {
    let (Some(outer), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let (outer, name) = (File::open(outer)?, CString::new(name.as_bytes())?);
    remove_all_in(open_below(&outer, &name).map_err(explain)?)?;
    if_there(unlinkat(&outer, &name, AtFlags::REMOVEDIR))
}

/// Removes everything in a folder in the same way. The folder stays, and can be one on which something is mounted.
///
/// # Errors
/// The path is no folder, but a link for example; or as for [`remove_folder`].
pub(crate) fn empty_folder(path: &Path) -> io::Result<()> {
    remove_all_in(File::from(open(path, FOLDER, Mode::empty())?))
}

fn remove_all_in(mut folder: File) -> io::Result<()> {
    let mut buffer = vec![MaybeUninit::<u8>::uninit(); BUFFER];
    let mut above: Vec<Above> = Vec::new();
    loop {
        if let Some((child, next)) = remove_files(&mut folder, &mut buffer)? {
            match open_below(&folder, &child) {
                Ok(below) => {
                    let id = id_of(&folder)?;
                    above.push(Above { id, child, next });
                    folder = below;
                }
                // Somebody else has removed it.
                Err(Errno::NOENT) => {
                    folder.seek(SeekFrom::Start(next))?;
                }
                Err(error) => return Err(explain(error)),
            }
            continue;
        }
        let Some(parent) = above.pop() else {
            return Ok(());
        };
        folder = open_parent(&folder, parent.id)?;
        if_there(unlinkat(&folder, &parent.child, AtFlags::REMOVEDIR))?;
        folder.seek(SeekFrom::Start(parent.next))?;
    }
}

/// Opens a folder in a folder, unless something is mounted on it (`XDEV`).
fn open_below(folder: &File, name: &CStr) -> Result<File, Errno> {
    match openat2(folder, name, FOLDER, Mode::empty(), ResolveFlags::NO_XDEV) {
        // A kernel before 5.6.
        Err(Errno::NOSYS) => open_on_same_device(folder, name),
        opened => opened.map(File::from),
    }
}

/// The same without help of the kernel: a part of the same file system that is mounted there is not noticed.
fn open_on_same_device(folder: &File, name: &CStr) -> Result<File, Errno> {
    let below = openat(folder, name, FOLDER, Mode::empty())?;
    if fstat(&below)?.st_dev == fstat(folder)?.st_dev {
        Ok(File::from(below))
    } else {
        Err(Errno::XDEV)
    }
}

/// The error as text for people.
fn explain(error: Errno) -> io::Error {
    if error == Errno::XDEV {
        io::Error::other("something is mounted on it or in it")
    } else {
        error.into()
    }
}

/// Removes what is not a folder, from the position on at which the descriptor is. At the first folder it stops, and gives its name and the
/// position after it. Nothing: the folder is empty.
fn remove_files(folder: &mut File, buffer: &mut [MaybeUninit<u8>]) -> io::Result<Option<(CString, u64)>> {
    loop {
        let is_from_start = folder.stream_position()? == 0;
        let mut is_empty = true;
        let mut entries = RawDir::new(&*folder, buffer);
        while let Some(entry) = entries.next() {
            let entry = match entry {
                // The folder was removed meanwhile.
                Err(Errno::NOENT) => return Ok(None),
                entry => entry?,
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            is_empty = false;
            if entry.file_type() == FileType::Directory || is_folder_left(folder, name)? {
                return Ok(Some((name.to_owned(), entry.next_entry_cookie())));
            }
        }
        if is_from_start && is_empty {
            return Ok(None);
        }
        // A file system may skip entries while others are removed: only a whole reading without any shows that there are none.
        folder.rewind()?;
    }
}

/// Removes a file. Whether it is a folder, and is left: not all file systems say it in their entries.
fn is_folder_left(folder: &File, name: &CStr) -> io::Result<bool> {
    match unlinkat(folder, name, AtFlags::empty()) {
        Err(Errno::ISDIR) => Ok(true),
        removed => if_there(removed).map(|()| false),
    }
}

/// Opens the folder above, if it is still the one from which this one was opened: this one may have been moved.
fn open_parent(folder: &File, expected: FolderId) -> io::Result<File> {
    let parent = File::from(openat(folder, c"..", FOLDER, Mode::empty())?);
    if id_of(&parent)? == expected {
        Ok(parent)
    } else {
        Err(io::Error::other("a folder was moved while it was removed"))
    }
}

fn id_of(folder: &File) -> io::Result<FolderId> {
    let metadata = folder.metadata()?;
    Ok((metadata.dev(), metadata.ino()))
}

/// The outcome of a removal: what is gone already is no error.
fn if_there(removed: Result<(), Errno>) -> io::Result<()> {
    match removed {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::{
        fs::mkdirat,
        process::{Resource, Rlimit, getrlimit, setrlimit},
    };
    use std::{fs, os::unix::fs::symlink};

    /// Makes a folder in a folder, and opens it.
    fn make(folder: &File, name: &str) -> File {
        mkdirat(folder, name, Mode::RWXU).unwrap();
        File::from(openat(folder, name, FOLDER, Mode::empty()).unwrap())
    }

    #[test]
    fn folders_deeper_than_descriptors_and_paths_are_removed() {
        let temporary = tempfile::tempdir().unwrap();
        let top = temporary.path().join("top");
        fs::create_dir(&top).unwrap();
        let mut folder = File::open(&top).unwrap();
        for level in 0..10_000 {
            folder = make(&folder, "deeper");
            if level % 1000 == 0 {
                make(&folder, "aside");
                make(&folder, "zz-aside");
            }
        }
        drop(folder);
        let before = getrlimit(Resource::Nofile);
        let few = Rlimit {
            current: Some(256),
            ..before
        };
        setrlimit(Resource::Nofile, few).unwrap();
        let removed = crate::files::remove(&top);
        setrlimit(Resource::Nofile, before).unwrap();
        removed.unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn many_folders_are_removed_and_links_are_not_followed() {
        let temporary = tempfile::tempdir().unwrap();
        let (top, outside) = (temporary.path().join("top"), temporary.path().join("outside"));
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "x").unwrap();
        // More entries than are read at a time.
        let long = "n".repeat(200);
        for number in 0..400 {
            let folder = top.join(format!("{long}{number}"));
            fs::create_dir_all(folder.join("a/b")).unwrap();
            fs::create_dir_all(folder.join("c")).unwrap();
            fs::write(folder.join("a/file"), "x").unwrap();
            symlink(&outside, folder.join("a/link")).unwrap();
            symlink(&outside, top.join(format!("link-{number}"))).unwrap();
        }
        empty_folder(&top).unwrap();
        assert_eq!(fs::read_dir(&top).unwrap().count(), 0);
        fs::create_dir_all(top.join("a/b")).unwrap();
        remove_folder(&top).unwrap();
        assert!(!top.exists());
        assert!(outside.join("file").exists());
        symlink(&outside, &top).unwrap();
        assert!(remove_folder(&top).is_err(), "a link is no folder");
        assert!(empty_folder(&top).is_err());
        assert!(outside.join("file").exists());
    }

    #[test]
    fn what_is_mounted_is_not_entered() {
        // Every machine and every container has this mount.
        let root = File::open("/").unwrap();
        assert_eq!(open_below(&root, c"proc").unwrap_err(), Errno::XDEV);
        assert_eq!(open_on_same_device(&root, c"proc").unwrap_err(), Errno::XDEV);
        let temporary = tempfile::tempdir().unwrap();
        fs::create_dir(temporary.path().join("inner")).unwrap();
        let folder = File::open(temporary.path()).unwrap();
        assert!(open_below(&folder, c"inner").is_ok());
        assert!(open_on_same_device(&folder, c"inner").is_ok());
    }

    #[test]
    fn a_folder_that_was_moved_is_not_left_upwards() {
        let temporary = tempfile::tempdir().unwrap();
        let (from, to) = (temporary.path().join("from"), temporary.path().join("to"));
        fs::create_dir_all(from.join("inner")).unwrap();
        fs::create_dir(&to).unwrap();
        let inner = File::open(from.join("inner")).unwrap();
        let expected = id_of(&File::open(&from).unwrap()).unwrap();
        assert!(open_parent(&inner, expected).is_ok());
        fs::rename(from.join("inner"), to.join("inner")).unwrap();
        assert!(open_parent(&inner, expected).is_err());
    }
}
