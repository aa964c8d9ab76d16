use super::{Limits, Store};
use crate::{
    entry::{Entry, Written, hex},
    error::{ReadError, StoreError, WriteError},
};
use futures::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use rustix::{fs::Mode, process::umask};
use sha2::{Digest as _, Sha256};
use std::{
    convert::Infallible,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    time::timeout,
};

const LOCATION: &str = "5f0c/91ab";
const KEY_ID: &str = "AKIDEXAMPLE";
const SECRET: &str = "wJalrXUtnFEMI";
/// What S3 answers to a wrong signature: it repeats the request with its credentials.
const DENIAL: &str = "<?xml version=\"1.0\"?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>The signature\nof AKIDEXAMPLE is wrong\
    </Message><AWSAccessKeyId>AKIDEXAMPLE</AWSAccessKeyId></Error>";

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

/// Entries of so many bytes, which cannot be compressed, and differ with the seed.
fn entries(count: u32, size: usize, seed: u32) -> Vec<Entry> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..count)
        .map(|number| Entry {
            key: format!("secrets/{number:06}").into_bytes(),
            value: (0..size).map(|_| next()).collect(),
        })
        .collect()
}

fn source(entries: &[Entry]) -> impl Stream<Item = Result<Entry, Infallible>> + Send + use<> {
    stream::iter(entries.to_vec()).map(Ok)
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
    let error = missing.check().await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NotFound(text) if text.starts_with("writing: ")),
        "{error}"
    );
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
    assert!(folder.files().is_empty());
}

#[tokio::test]
async fn what_killed_writers_leave_is_deleted() {
    let folder = Folder::new();
    let left = |number: u32| folder.path().with_file_name(format!(".91ab.{number}.part"));
    fs::create_dir(left(0).parent().unwrap()).unwrap();
    let other = left(0).with_file_name(".91abc.0.part");
    for path in [left(0), left(7), other.clone()] {
        fs::write(path, "incomplete").unwrap();
    }
    let living = fs::File::create(left(1)).unwrap();
    living.try_lock().unwrap();
    let written = folder.write(&entries(3, 20, 1)).await;
    folder.store.verify(LOCATION, &written).await.unwrap();
    let mut expected = vec![left(1), other.clone(), folder.path()];
    let mut found = folder.files();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
    drop(living);
    folder.store.delete(LOCATION).await.unwrap();
    assert_eq!(folder.files(), [other]);
}

#[tokio::test]
async fn of_two_writers_one_remains() {
    let folder = Folder::new();
    let (one, two) = (entries(5, 900_000, 1), entries(4, 900_000, 2));
    let (one, two) = tokio::join!(folder.write(&one), folder.write(&two));
    let (is_one, is_two) = (
        folder.store.verify(LOCATION, &one).await.is_ok(),
        folder.store.verify(LOCATION, &two).await.is_ok(),
    );
    assert!(is_one != is_two);
    assert_eq!(folder.files(), [folder.path()]);
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

#[tokio::test]
async fn a_check_leaves_nothing() {
    let folder = Folder::new();
    let (one, two) = tokio::join!(folder.store.check(), folder.store.check());
    assert_eq!((one, two), (Ok(()), Ok(())));
    assert!(fs::read_dir(folder.folder.path()).unwrap().next().is_none());
}

/// A bucket at an endpoint.
fn bucket(endpoint: &str, limits: Limits) -> Store {
    let options = [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_ACCESS_KEY_ID", KEY_ID),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
    ];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Store::with_limits("s3://snapshots/berth", options, limits).unwrap()
}

/// A server that answers each request so, or never.
async fn serve(answer: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut request = vec![0; 4096];
                if let Some(answer) = answer {
                    let _ = connection.read(&mut request).await;
                    let _ = connection.write_all(answer.as_bytes()).await;
                    let _ = connection.shutdown().await;
                }
                // The client ends the connection, so that it can read all of the answer.
                while connection.read(&mut request).await.is_ok_and(|read| read > 0) {}
            });
        }
    });
    endpoint
}

#[track_caller]
fn assert_without_credentials(error: &StoreError) {
    let text = format!("{error} {error:?}");
    assert!(!text.contains(KEY_ID) && !text.contains(SECRET), "{text}");
    assert!(!error.to_string().contains('\n'), "{text}");
}

#[tokio::test]
async fn credentials_are_not_shown() {
    let answer = format!(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{DENIAL}",
        DENIAL.len()
    );
    let store = bucket(&serve(Some(answer)).await, Limits::default());
    assert_eq!(format!("{store:?}"), "Store(s3://snapshots/berth)");
    let error = store.check().await.unwrap_err();
    let expected = "writing: SignatureDoesNotMatch: The signature of (hidden) is wrong";
    assert_eq!(error, StoreError::Denied(expected.to_owned()));
    assert_without_credentials(&error);
    let written = Written {
        objects: 0,
        bytes: 0,
        stored_bytes: 0,
        checksum: String::new(),
    };
    let error = store.verify(LOCATION, &written).await.unwrap_err();
    assert!(matches!(&error, ReadError::Store(StoreError::Denied(_))), "{error}");
    // The first part of a larger one.
    let error = store
        .write(LOCATION, source(&entries(10, 1_000_000, 1)))
        .await
        .unwrap_err();
    let WriteError::Store(error) = error else {
        panic!("{error}");
    };
    assert!(matches!(error, StoreError::Denied(_)), "{error}");
    assert_without_credentials(&error);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_unreachable_in_time() {
    let soon = Duration::from_millis(200);
    let limits = Limits {
        connect: soon,
        request: soon,
        repeat: soon,
        max_repeats: 1,
        total: Duration::from_secs(20),
    };
    let silent = serve(None).await;
    let closed = {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let patient = Limits {
        total: soon,
        ..Limits::default()
    };
    for (endpoint, limits) in [(&silent, limits), (&closed, limits), (&silent, patient)] {
        let store = bucket(endpoint, limits);
        let error = timeout(Duration::from_secs(15), store.check())
            .await
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
        assert_without_credentials(&error);
    }
    let error = bucket(&silent, patient).delete(LOCATION).await.unwrap_err();
    assert!(
        error.to_string().contains("did not answer within 0.2 seconds"),
        "{error}"
    );
}
