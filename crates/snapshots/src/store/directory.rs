//! Snapshots in a directory. The directories of `object_store` create files that the umask lets others read, and keep what killed writers
//! leave.

use super::{limits::Limits, location::Location};
use crate::error::StoreError;
use bytes::Bytes;
use std::{
    ffi::OsStr,
    fs::{self, DirBuilder, File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    ops::Range,
    os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::{io::AsyncWriteExt as _, task::spawn_blocking};

/// Rights of directories and files: snapshots contain Secrets.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Writers of one location at the same time, at most.
const MAX_WRITERS: u32 = 100;
/// How often the directory of a location may be deleted by others while a file in it is created.
const MAX_TRIES: u32 = 10;
/// Ends the names of files that are not complete. These begin with a dot, as no name of a location does.
const INCOMPLETE: &str = ".part";

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
        let path = self.root.join(location.as_str());
        let (incomplete, file) = self.run(move |root| create(root, &path)).await?;
        Ok(FileUpload {
            directory: self.clone(),
            incomplete: Some(Arc::new(incomplete)),
            file: tokio::fs::File::from_std(file),
            path: self.root.join(location.as_str()),
        })
    }

    /// None if there is no such file.
    pub(super) async fn open(&self, location: &Location) -> Result<Option<StoredFile>, StoreError> {
        let path = self.root.join(location.as_str());
        let opened = self.run(move |root| {
            check_root(root)?;
            let file = match File::open(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
                file => file?,
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
        let path = self.root.join(location.as_str());
        self.run(move |root| {
            check_root(root)?;
            match fs::remove_file(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                deleted => deleted?,
            }
            let (parent, name) = parts(&path);
            remove_incomplete(parent, name);
            if parent != root {
                // Not if there are other snapshots in it.
                let _ = fs::remove_dir(parent);
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

/// A file that is written, under another name until it is finished. It is locked, so that others can see that its writer lives.
pub(super) struct FileUpload {
    directory: Directory,
    /// None when it has its name. It is dropped before the file is, so that nobody else has the name before it is deleted.
    incomplete: Option<Arc<Incomplete>>,
    file: tokio::fs::File,
    path: PathBuf,
}

impl FileUpload {
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        let (directory, file) = (&self.directory, &mut self.file);
        let written = async { directory.classify(file.write_all(bytes).await) };
        directory.limits.wait(written).await
    }

    /// It is on the disk afterwards.
    pub(super) async fn finish(&mut self) -> Result<(), StoreError> {
        let (directory, file) = (&self.directory, &mut self.file);
        let flushed = async {
            directory.classify(file.flush().await)?;
            directory.classify(file.sync_all().await)
        };
        directory.limits.wait(flushed).await?;
        let Some(incomplete) = self.incomplete.clone() else {
            return Ok(());
        };
        let path = self.path.clone();
        let renamed = move |root: &Path| -> io::Result<()> {
            incomplete.rename(&path)?;
            let mut directories = path
                .ancestors()
                .skip(1)
                .take_while(|directory| directory.starts_with(root));
            directories.try_for_each(|directory| File::open(directory)?.sync_all())
        };
        self.directory.run(renamed).await?;
        self.incomplete = None;
        Ok(())
    }

    pub(super) async fn abort(&mut self) {
        if let Some(incomplete) = self.incomplete.take() {
            let deleted = self.directory.run(move |_| {
                drop(incomplete);
                Ok(())
            });
            // What cannot be deleted now is deleted with the location.
            let _ = deleted.await;
        }
    }
}

/// A file that is not complete. It is deleted when this is dropped.
struct Incomplete {
    path: PathBuf,
    /// Then another one may have the path.
    is_renamed: AtomicBool,
}

impl Incomplete {
    fn rename(&self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.is_renamed.store(true, Ordering::Release);
        Ok(())
    }
}

impl Drop for Incomplete {
    fn drop(&mut self) {
        if !self.is_renamed.load(Ordering::Acquire) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn check_root(root: &Path) -> io::Result<()> {
    if fs::metadata(root)?.is_dir() {
        Ok(())
    } else {
        Err(ErrorKind::NotADirectory.into())
    }
}

/// Creates a file for what will be at `path`, and the directories above it.
fn create(root: &Path, path: &Path) -> io::Result<(Incomplete, File)> {
    check_root(root)?;
    let (parent, name) = parts(path);
    let mut tries = 0;
    loop {
        tries += 1;
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(parent)?;
        remove_incomplete(parent, name);
        match create_incomplete(parent, name) {
            // Another one has deleted the last snapshot in this directory.
            Err(error) if error.kind() == ErrorKind::NotFound && tries < MAX_TRIES => {}
            created => return created,
        }
    }
}

fn create_incomplete(parent: &Path, name: &str) -> io::Result<(Incomplete, File)> {
    for number in 0..MAX_WRITERS {
        let path = parent.join(format!(".{name}.{number}{INCOMPLETE}"));
        let opened = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(FILE_MODE)
            .open(&path);
        let file = match opened {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
            file => file?,
        };
        // Another one may look at it before it is locked, and delete it.
        let is_taken = matches!(file.try_lock(), Err(TryLockError::WouldBlock));
        if !is_taken && file.metadata()?.nlink() > 0 {
            let incomplete = Incomplete {
                path,
                is_renamed: AtomicBool::new(false),
            };
            return Ok((incomplete, file));
        }
    }
    Err(io::Error::other("too many write at the same location"))
}

/// Deletes what killed writers of a location left: files that nobody has locked.
fn remove_incomplete(parent: &Path, name: &str) {
    let Ok(files) = fs::read_dir(parent) else {
        return;
    };
    let prefix = format!(".{name}.");
    for file in files.flatten() {
        let file_name = file.file_name();
        let number = file_name
            .to_str()
            .and_then(|file_name| file_name.strip_prefix(&prefix)?.strip_suffix(INCOMPLETE));
        if number.is_none_or(|number| number.parse::<u32>().is_err()) {
            continue;
        }
        // It stays locked until it is deleted, so that nobody begins to write it.
        if let Ok(opened) = File::open(file.path())
            && opened.try_lock().is_ok()
        {
            let _ = fs::remove_file(file.path());
        }
    }
}

/// The directory of a location, and its name there.
fn parts(path: &Path) -> (&Path, &str) {
    let name = path.file_name().and_then(OsStr::to_str);
    (path.parent().unwrap_or(path), name.unwrap_or_default())
}
