//! Snapshots in a directory. The directories of `object_store` create files that the umask lets others read, keep what killed writers leave,
//! and follow links.

use super::{limits::Limits, location::Location};
use crate::error::StoreError;
use bytes::Bytes;
use rustix::{
    fd::OwnedFd,
    fs::{AtFlags, Mode, OFlags, fstat, fsync, mkdirat, open, openat, renameat, statat, unlinkat},
    io::Errno,
};
use std::{
    fs::{File, TryLockError},
    io::{self, ErrorKind, Write as _},
    mem,
    ops::Range,
    os::unix::fs::FileExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::{
    runtime::Handle,
    task::{JoinHandle, spawn_blocking},
};

/// Rights of directories and files: snapshots contain Secrets.
const FOLDER_MODE: Mode = Mode::RWXU;
const FILE_MODE: Mode = Mode::RUSR.union(Mode::WUSR);
const FOLDER: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
/// What is no file is not waited for, as a pipe would be, and links are not followed.
const FILE: OFlags = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);
/// How often others may delete the folder of a location, or what is in it, while a file is created there.
const MAX_TRIES: u32 = 10;

/// A directory, which has to exist: a file system that is not mounted is noticed.
#[derive(Clone)]
pub(super) struct Directory {
    root: Arc<Path>,
    limits: Limits,
}

impl Directory {
    pub(super) fn new(root: PathBuf, limits: Limits) -> Self {
        Self {
            root: root.into(),
            limits,
        }
    }

    pub(super) async fn upload(&self, location: &Location) -> Result<FileUpload, StoreError> {
        let location = location.clone();
        let incomplete = self.run(move |root| create(root, &location)).await?;
        Ok(FileUpload {
            directory: self.clone(),
            incomplete: Some(Arc::new(incomplete)),
        })
    }

    /// None if there is no such file.
    pub(super) async fn open(&self, location: &Location) -> Result<Option<StoredFile>, StoreError> {
        let location = location.clone();
        let opened = self.run(move |root| {
            let root = open_root(root)?;
            let opened = Folders::open(root, &location, false)
                .and_then(|folders| open_file(&folders.folder, location.name(), OFlags::RDONLY));
            let Some(file) = none_if_missing(opened)? else {
                return Ok(None);
            };
            let size = file.metadata()?.len();
            Ok(Some((file, size)))
        });
        let opened = opened.await?;
        Ok(opened.map(|(file, size)| StoredFile {
            directory: self.clone(),
            file: Arc::new(file),
            size,
        }))
    }

    /// No error if there is no such file.
    pub(super) async fn delete(&self, location: &Location) -> Result<(), StoreError> {
        let location = location.clone();
        self.run(move |root| {
            let Some(folders) = none_if_missing(Folders::open(open_root(root)?, &location, false))? else {
                return Ok(());
            };
            none_if_missing(unlinkat(&folders.folder, location.name(), AtFlags::empty()).map_err(io::Error::from))?;
            // What is being written remains.
            remove_incomplete(&folders.folder, &incomplete_name(&location))?;
            fsync(&folders.folder)?;
            if let (Some(above), Some(name)) = (folders.above.last(), location.folders().last()) {
                // Not if there are other snapshots in it.
                let _ = unlinkat(above, name, AtFlags::REMOVEDIR);
            }
            Ok(())
        })
        .await
    }

    /// Runs what waits for the file system on a thread for that.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let root = self.root.clone();
        let done = spawn_blocking(move || work(&root));
        let done = async { self.classify(done.await.unwrap_or_else(|error| Err(io::Error::other(error)))) };
        self.limits.wait(done).await
    }

    fn classify<T>(&self, result: io::Result<T>) -> Result<T, StoreError> {
        result.map_err(|error| {
            let text = format!("{}: {error}", self.root.display());
            match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => StoreError::NotFound(text),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => StoreError::Denied(text),
                _ => StoreError::Unreachable(text),
            }
        })
    }
}

/// A file that is read. It stays what it is if another one is written at its location.
pub(super) struct StoredFile {
    directory: Directory,
    file: Arc<File>,
    pub(super) size: u64,
}

impl StoredFile {
    /// Nothing if the file is shorter.
    pub(super) async fn read(&self, range: Range<u64>) -> Result<Bytes, StoreError> {
        let file = self.file.clone();
        let read = move |_: &Path| -> io::Result<Bytes> {
            let length = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
            let mut bytes = vec![0; length];
            match file.read_exact_at(&mut bytes, range.start) {
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(Bytes::new()),
                read => read.map(|()| Bytes::from(bytes)),
            }
        };
        self.directory.run(read).await
    }
}

/// A file that is written.
pub(super) struct FileUpload {
    directory: Directory,
    /// None when it is given up.
    incomplete: Option<Arc<Incomplete>>,
}

impl FileUpload {
    pub(super) async fn write(&mut self, bytes: Vec<u8>) -> Result<(), StoreError> {
        self.run(move |incomplete| (&incomplete.file).write_all(&bytes)).await
    }

    /// It is on the disk afterwards.
    pub(super) async fn finish(&mut self) -> Result<(), StoreError> {
        self.run(Incomplete::finish).await
    }

    /// Deletes it, unless it is finished.
    pub(super) fn give_up(&mut self, runtime: &Handle) -> Option<JoinHandle<()>> {
        let incomplete = self.incomplete.take()?;
        Some(runtime.spawn_blocking(move || drop(incomplete)))
    }

    async fn run(&self, work: impl FnOnce(&Incomplete) -> io::Result<()> + Send + 'static) -> Result<(), StoreError> {
        let Some(incomplete) = self.incomplete.clone() else {
            return Ok(());
        };
        self.directory.run(move |_| work(&incomplete)).await
    }
}

/// A file that is not complete, with a name that no location has. It is locked, so that others can see that its writer lives, and it is
/// deleted when this is dropped.
struct Incomplete {
    folders: Folders,
    location: Location,
    file: File,
    is_finished: AtomicBool,
}

impl Incomplete {
    fn finish(&self) -> io::Result<()> {
        self.file.sync_all()?;
        let folder = &self.folders.folder;
        renameat(folder, incomplete_name(&self.location), folder, self.location.name())?;
        self.is_finished.store(true, Ordering::Release);
        self.folders.sync()
    }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        if !self.is_finished.load(Ordering::Acquire) {
            // What cannot be deleted now is deleted with the location.
            let _ = unlinkat(&self.folders.folder, incomplete_name(&self.location), AtFlags::empty());
        }
    }
}

/// The folder of a location. Each was opened in the one above and is no link, so that who can write the store cannot lead out of it.
struct Folders {
    /// The root is the first.
    above: Vec<OwnedFd>,
    folder: OwnedFd,
}

impl Folders {
    fn open(root: OwnedFd, location: &Location, creates: bool) -> io::Result<Self> {
        let (mut above, mut folder) = (Vec::new(), root);
        for name in location.folders() {
            if creates {
                match mkdirat(&folder, name, FOLDER_MODE) {
                    Err(Errno::EXIST) => {}
                    created => created?,
                }
            }
            let next = openat(&folder, name, FOLDER.union(OFlags::NOFOLLOW), Mode::empty())?;
            above.push(mem::replace(&mut folder, next));
        }
        Ok(Self { above, folder })
    }

    fn sync(&self) -> io::Result<()> {
        fsync(&self.folder)?;
        for folder in self.above.iter().rev() {
            fsync(folder)?;
        }
        Ok(())
    }
}

fn open_root(root: &Path) -> io::Result<OwnedFd> {
    Ok(open(root, FOLDER, Mode::empty())?)
}

fn open_file(folder: &OwnedFd, name: &str, access: OFlags) -> io::Result<File> {
    let file = File::from(openat(folder, name, access.union(FILE), FILE_MODE)?);
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(io::Error::other("what is there is not a file"))
    }
}

fn incomplete_name(location: &Location) -> String {
    // No name of a location begins with a dot.
    format!(".{}.part", location.name())
}

/// Creates a file for what will be at a location, and the folders above it.
fn create(root: &Path, location: &Location) -> io::Result<Incomplete> {
    let mut tries = 1;
    loop {
        match try_create(open_root(root)?, location) {
            Err(error) if tries < MAX_TRIES && is_of_others(&error) => tries += 1,
            created => return created,
        }
    }
}

/// Others have deleted the last snapshot in the folder and the folder with it, or have created a file.
fn is_of_others(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::AlreadyExists)
}

fn try_create(root: OwnedFd, location: &Location) -> io::Result<Incomplete> {
    let folders = Folders::open(root, location, true)?;
    let name = incomplete_name(location);
    if !remove_incomplete(&folders.folder, &name)? {
        return Err(io::Error::other("another one writes this snapshot"));
    }
    // Always a new one: nobody else has it open.
    let new = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::EXCL);
    let file = open_file(&folders.folder, &name, new)?;
    // Another one may look at it before it is locked, and delete it.
    if !lock(&file)? || !is_at(&folders.folder, &name, &file)? {
        return Err(ErrorKind::NotFound.into());
    }
    Ok(Incomplete {
        folders,
        location: location.clone(),
        file,
        is_finished: AtomicBool::new(false),
    })
}

/// Deletes what a killed writer left. Returns false if it lives.
fn remove_incomplete(folder: &OwnedFd, name: &str) -> io::Result<bool> {
    // Some network file systems lock only files that can be written.
    let Some(file) = none_if_missing(open_file(folder, name, OFlags::RDWR))? else {
        return Ok(true);
    };
    if !lock(&file)? {
        return Ok(false);
    }
    // Its writer may have finished before it was locked: then another one's file can have the name.
    if is_at(folder, name, &file)? {
        unlinkat(folder, name, AtFlags::empty())?;
    }
    Ok(true)
}

/// False if another one has locked it. It is locked until it is closed, also if the process is killed.
fn lock(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether the file has this name.
fn is_at(folder: &OwnedFd, name: &str, file: &File) -> io::Result<bool> {
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).map_err(io::Error::from);
    let of_file = fstat(file)?;
    Ok(none_if_missing(found)?.is_some_and(|found| (found.st_dev, found.st_ino) == (of_file.st_dev, of_file.st_ino)))
}

fn none_if_missing<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}
