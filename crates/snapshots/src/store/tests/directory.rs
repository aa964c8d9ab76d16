use super::{LOCATION, entries, source};
use crate::{
    entry::{Entry, Written, hex},
    error::{ReadError, StoreError, WriteError},
    store::Store,
};
use futures::{StreamExt as _, TryStreamExt as _, future, stream};
use rustix::{
    fs::{CWD, FileType, Mode, mknodat},
    process::umask,
};
use sha2::{Digest as _, Sha256};
use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tokio::time::timeout;

struct Folder {
    folder: TempDir,
    store: Store,
}

impl Folder {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let store = Store::from_url(&format!("file://{}", folder.path().display()), []).unwrap();
        Self { folder, store }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join(LOCATION)
    }

    /// All files in it.
    fn files(&self) -> Vec<PathBuf> {
        files_in(self.folder.path())
    }

    /// Whether nothing was written into any of them.
    fn has_nothing(&self) -> bool {
        self.files().iter().all(|file| fs::metadata(file).unwrap().len() == 0)
    }

    async fn write(&self, entries: &[Entry]) -> Written {
        self.store.write(LOCATION, source(entries)).await.unwrap()
    }

    async fn read(&self, written: &Written) -> Result<Vec<Entry>, ReadError> {
        self.store.read(LOCATION, written).try_collect().await
    }
}

/// Where a file is while it is written.
fn incomplete(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap().to_str().unwrap();
    path.with_file_name(format!(".{name}.part"))
}

fn files_in(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            found.extend(files_in(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[tokio::test]
async fn a_check_leaves_no_file_and_says_what_does_not_work() {
    let folder = Folder::new();
    folder.store.check().await.unwrap();
    assert!(folder.files().is_empty(), "{:?}", folder.files());
    fs::remove_dir_all(folder.folder.path()).unwrap();
    let error = folder.store.check().await.unwrap_err();
    assert!(matches!(error, ReadError::Store(StoreError::NotFound(_))), "{error}");
}

#[tokio::test]
async fn what_is_written_is_read() {
    let folder = Folder::new();
    for entries in [vec![], entries(3, 10, 1), entries(5, 900_000, 2)] {
        let written = folder.write(&entries).await;
        assert_eq!(written.objects, entries.len() as u64);
        let stored = fs::read(folder.path()).unwrap();
        assert_eq!(written.stored_bytes, stored.len() as u64);
        assert_eq!(written.checksum, hex(&Sha256::digest(&stored)));
        folder.store.verify(LOCATION, &written).await.unwrap();
        assert_eq!(folder.read(&written).await.unwrap(), entries);
        assert_eq!(folder.files(), [folder.path()]);
    }
    folder.store.delete(LOCATION).await.unwrap();
    folder.store.delete(LOCATION).await.unwrap();
    assert!(
        fs::read_dir(folder.folder.path()).unwrap().next().is_none(),
        "the directory of the tenant is gone"
    );
}

#[tokio::test]
async fn what_is_read_stays_what_it_is() {
    let folder = Folder::new();
    let (before, after) = (entries(5, 900_000, 1), entries(5, 900_000, 2));
    let written = folder.write(&before).await;
    let mut reading = folder.store.read(LOCATION, &written);
    let mut found = vec![reading.next().await.unwrap().unwrap()];
    folder.write(&after).await;
    found.extend(reading.try_collect::<Vec<_>>().await.unwrap());
    assert_eq!(found, before);
    let error = folder.store.verify(LOCATION, &written).await.unwrap_err();
    assert!(matches!(error, ReadError::Damaged(_)), "{error}");
}

#[tokio::test]
async fn every_changed_byte_is_damage() {
    let folder = Folder::new();
    let written = folder.write(&entries(3, 20, 1)).await;
    let stored = fs::read(folder.path()).unwrap();
    let mut versions: Vec<_> = (0..stored.len())
        .map(|at| {
            let mut changed = stored.clone();
            changed[at] ^= 1;
            changed
        })
        .collect();
    versions.extend((0..stored.len()).map(|length| stored[..length].to_vec()));
    versions.push([&stored[..], &b"\0"[..]].concat());
    for (number, changed) in versions.iter().enumerate() {
        fs::write(folder.path(), changed).unwrap();
        let error = folder.store.verify(LOCATION, &written).await.unwrap_err();
        assert!(matches!(error, ReadError::Damaged(_)), "{number}: {error}");
        let items: Vec<_> = folder.store.read(LOCATION, &written).collect().await;
        let (last, others) = items.split_last().unwrap();
        assert!(matches!(last, Err(ReadError::Damaged(_))), "{number}");
        assert!(others.iter().all(Result::is_ok), "{number}");
    }
}

#[tokio::test]
async fn a_newer_snapshot_is_not_damaged_unless_it_is() {
    let folder = Folder::new();
    let mut written = folder.write(&entries(3, 20, 1)).await;
    let mut stored = fs::read(folder.path()).unwrap();
    stored[11] = 3;
    fs::write(folder.path(), &stored).unwrap();
    let error = folder.store.verify(LOCATION, &written).await.unwrap_err();
    assert!(matches!(error, ReadError::Damaged(_)), "{error}");
    written.checksum = hex(&Sha256::digest(&stored));
    assert_eq!(
        folder.store.verify(LOCATION, &written).await,
        Err(ReadError::NewerFormat(3))
    );
    assert_eq!(folder.read(&written).await, Err(ReadError::NewerFormat(3)));
}

#[tokio::test]
async fn what_is_missing_is_said() {
    let folder = Folder::new();
    let written = folder.write(&entries(3, 20, 1)).await;
    let elsewhere = folder.store.verify("5f0c/other", &written).await;
    assert_eq!(elsewhere, Err(ReadError::NotFound));
    let missing = Store::from_url(&format!("file://{}/missing", folder.folder.path().display()), []).unwrap();
    let read = missing.verify(LOCATION, &written).await;
    assert!(
        matches!(read, Err(ReadError::Store(StoreError::NotFound(_)))),
        "{read:?}"
    );
    assert!(matches!(missing.delete(LOCATION).await, Err(StoreError::NotFound(_))));
    let written = missing.write(LOCATION, source(&[])).await;
    assert!(
        matches!(written, Err(WriteError::Store(StoreError::NotFound(_)))),
        "{written:?}"
    );
    assert!(!folder.folder.path().join("missing").exists());
    for location in ["", "../other", "a/../b"] {
        assert!(matches!(
            folder.store.delete(location).await,
            Err(StoreError::Denied(_))
        ));
    }
}

#[tokio::test]
async fn a_try_that_fails_changes_nothing() {
    let folder = Folder::new();
    let before = entries(3, 20, 1);
    let many = entries(5, 900_000, 2);
    for is_there in [false, true] {
        let written = if is_there {
            Some(folder.write(&before).await)
        } else {
            None
        };
        let failing = stream::iter(many.clone())
            .map(Ok)
            .chain(stream::iter([Err(io::Error::other("etcd is gone"))]));
        let failed = folder.store.write(LOCATION, failing).await;
        assert!(
            matches!(&failed, Err(WriteError::Source(error)) if error.to_string() == "etcd is gone"),
            "{failed:?}"
        );
        let mut reversed = many.clone();
        reversed.reverse();
        let failed = folder.store.write(LOCATION, source(&reversed)).await;
        assert!(matches!(failed, Err(WriteError::Damaged(_))), "{failed:?}");
        match written {
            None => assert!(folder.files().is_empty()),
            Some(written) => {
                assert_eq!(folder.files(), [folder.path()]);
                assert_eq!(folder.read(&written).await.unwrap(), before);
            }
        }
    }
}

#[tokio::test]
async fn a_writer_that_is_dropped_leaves_nothing() {
    let folder = Folder::new();
    let endless = source(&entries(5, 900_000, 1)).chain(stream::pending());
    let mut writing = Box::pin(folder.store.write(LOCATION, endless));
    while folder.has_nothing() {
        let turn = tokio::time::sleep(Duration::from_millis(5));
        let ended = future::select(writing.as_mut(), Box::pin(turn)).await;
        assert!(matches!(ended, future::Either::Right(_)), "the source has no end");
    }
    assert!(!folder.path().exists());
    drop(writing);
    let deleted = async {
        while !folder.files().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(20), deleted).await.unwrap();
    folder.write(&entries(3, 20, 1)).await;
}

#[tokio::test]
async fn what_killed_writers_leave_is_replaced_and_deleted() {
    let folder = Folder::new();
    let left = incomplete(&folder.path());
    let of_other = left.with_file_name(".91abc.part");
    fs::create_dir(left.parent().unwrap()).unwrap();
    fs::write(&of_other, "incomplete").unwrap();
    for is_written in [true, false] {
        fs::write(&left, "incomplete").unwrap();
        // Who has the old file open cannot read what is written.
        let old = fs::File::open(&left).unwrap();
        if is_written {
            let written = folder.write(&entries(3, 20, 1)).await;
            folder.store.verify(LOCATION, &written).await.unwrap();
        } else {
            folder.store.delete(LOCATION).await.unwrap();
        }
        assert!(!left.exists());
        assert_eq!(folder.path().exists(), is_written);
        assert_eq!(io::read_to_string(old).unwrap(), "incomplete");
    }
    assert_eq!(folder.files(), [of_other]);
}

#[tokio::test]
async fn what_others_write_remains() {
    let folder = Folder::new();
    let before = folder.write(&entries(3, 20, 1)).await;
    let left = incomplete(&folder.path());
    let living = fs::File::create(&left).unwrap();
    living.try_lock().unwrap();
    let failed = folder.store.write(LOCATION, source(&[])).await;
    assert!(
        matches!(&failed, Err(WriteError::Store(StoreError::Unreachable(text))) if text.contains("another one writes")),
        "{failed:?}"
    );
    folder.store.verify(LOCATION, &before).await.unwrap();
    folder.store.delete(LOCATION).await.unwrap();
    assert_eq!(folder.files(), [left]);
    drop(living);
    let written = folder.write(&entries(3, 20, 2)).await;
    folder.store.verify(LOCATION, &written).await.unwrap();
    assert_eq!(folder.files(), [folder.path()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_writers_one_remains() {
    let folder = Folder::new();
    for seed in 0..10 {
        let writers = (0..4).map(|writer| {
            let entries = entries(2, 200_000, 4 * seed + writer);
            folder.store.write(LOCATION, source(&entries))
        });
        let written = future::join_all(writers).await;
        let whole = future::join_all(
            written
                .iter()
                .flatten()
                .map(|written| folder.store.verify(LOCATION, written)),
        )
        .await;
        assert_eq!(
            whole.iter().filter(|whole| whole.is_ok()).count(),
            1,
            "{written:?} {whole:?}"
        );
        assert_eq!(folder.files(), [folder.path()]);
    }
}

#[tokio::test]
async fn what_is_not_a_file_is_not_waited_for() {
    for name in ["91ab", ".91ab.part"] {
        let folder = Folder::new();
        let written = folder.write(&entries(3, 20, 1)).await;
        let path = folder.path().with_file_name(name);
        let _ = fs::remove_file(&path);
        mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let failed = async {
            if name == "91ab" {
                folder.store.verify(LOCATION, &written).await.unwrap_err().to_string()
            } else {
                folder.store.write(LOCATION, source(&[])).await.unwrap_err().to_string()
            }
        };
        let error = timeout(Duration::from_secs(20), failed).await.unwrap();
        assert!(error.contains("is not a file"), "{error}");
    }
}

#[tokio::test]
async fn links_do_not_lead_out_of_the_directory() {
    let (folder, other) = (Folder::new(), Folder::new());
    let written = other.write(&entries(3, 20, 1)).await;
    let inside = other.path();
    symlink(inside.parent().unwrap(), folder.path().parent().unwrap()).unwrap();
    assert_unusable(&folder, &written).await;
    assert_eq!(other.files(), [inside.as_path()]);

    fs::remove_file(folder.path().parent().unwrap()).unwrap();
    fs::create_dir(folder.path().parent().unwrap()).unwrap();
    symlink(&inside, folder.path()).unwrap();
    let read = folder.store.verify(LOCATION, &written).await;
    assert!(matches!(read, Err(ReadError::Store(_))), "{read:?}");
    symlink(&inside, incomplete(&folder.path())).unwrap();
    let failed = folder.store.write(LOCATION, source(&[])).await;
    assert!(matches!(failed, Err(WriteError::Store(_))), "{failed:?}");
    other.store.verify(LOCATION, &written).await.unwrap();
}

async fn assert_unusable(folder: &Folder, written: &Written) {
    let read = folder.store.verify(LOCATION, written).await;
    assert!(matches!(read, Err(ReadError::Store(_))), "{read:?}");
    let failed = folder.store.write(LOCATION, source(&[])).await;
    assert!(matches!(failed, Err(WriteError::Store(_))), "{failed:?}");
    assert!(folder.store.delete(LOCATION).await.is_err());
}

#[tokio::test]
async fn only_the_owner_can_read_files() {
    umask(Mode::empty());
    let folder = Folder::new();
    let endless = source(&entries(2, 900_000, 1)).chain(stream::pending());
    let mut writing = Box::pin(folder.store.write("5f0c/incomplete", endless));
    while folder.has_nothing() {
        let turn = tokio::time::sleep(Duration::from_millis(5));
        future::select(writing.as_mut(), Box::pin(turn)).await;
    }
    folder.write(&entries(3, 20, 1)).await;
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let files = folder.files();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    assert_eq!(mode(folder.path().parent().unwrap()), 0o700);
}
