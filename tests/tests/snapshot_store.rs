//! Snapshots in a bucket of a real S3 server.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "helpers of tests fail as tests do"
)]

use berth_snapshots::{Entry, ReadError, Store, StoreError, WriteError, Written};
use berth_tests::{
    versitygw::{KEY_ID, SECRET, Versitygw},
    wait::{SOON, until},
};
use futures::{Stream, StreamExt as _, TryStreamExt as _, future, stream};
use std::{convert::Infallible, io, time::Duration};

const BUCKET: &str = "snapshots";
const LOCATION: &str = "5f0c/91ab";
/// Where the server has parts of uploads.
const PARTS: &str = "snapshots/.sgwtmp/multipart";
/// Bytes of an entry. What is written is not compressible, and 10 of them are two parts.
const VALUE: usize = 1_000_000;
const FEW: u32 = 3;
const MANY: u32 = 10;

fn store(server: &Versitygw, bucket: &str, secret: &str) -> Store {
    let options = [
        ("AWS_ENDPOINT_URL", server.endpoint.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", KEY_ID),
        ("AWS_SECRET_ACCESS_KEY", secret),
    ];
    let options = options.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Store::from_url(&format!("s3://{bucket}/berth"), options).unwrap()
}

fn entries(count: u32, seed: u32) -> Vec<Entry> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_be_bytes()[0]
    };
    (0..count)
        .map(|number| Entry {
            key: format!("secrets/{number:06}").into_bytes(),
            value: (0..VALUE).map(|_| next()).collect(),
        })
        .collect()
}

fn source(entries: &[Entry]) -> impl Stream<Item = Result<Entry, Infallible>> + Send + use<> {
    stream::iter(entries.to_vec()).map(Ok)
}

async fn write(store: &Store, entries: &[Entry]) -> Written {
    store.write(LOCATION, source(entries)).await.unwrap()
}

#[track_caller]
fn assert_without_credentials(error: &StoreError) {
    let text = format!("{error} {error:?}");
    assert!(!text.contains(KEY_ID) && !text.contains(SECRET), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_kept_in_a_bucket() {
    let server = Versitygw::start(BUCKET).await;
    let store = store(&server, BUCKET, SECRET);
    // Larger than a part, and smaller, which replaces it.
    for (count, seed) in [(MANY, 1), (FEW, 2), (0, 3)] {
        let entries = entries(count, seed);
        let written = write(&store, &entries).await;
        store.verify(LOCATION, &written).await.unwrap();
        let found: Vec<_> = store.read(LOCATION, &written).try_collect().await.unwrap();
        assert!(found == entries, "{count}");
        let other = Written {
            checksum: "0".repeat(64),
            ..written
        };
        let error = store.verify(LOCATION, &other).await.unwrap_err();
        assert!(matches!(error, ReadError::Damaged(_)), "{error}");
    }

    let written = write(&store, &entries(1, 4)).await;
    store.delete(LOCATION).await.unwrap();
    store.delete(LOCATION).await.unwrap();
    assert_eq!(store.verify(LOCATION, &written).await, Err(ReadError::NotFound));
    assert!(server.files(BUCKET).is_empty(), "{:?}", server.files(BUCKET));
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_denied_or_have_no_bucket() {
    let server = Versitygw::start(BUCKET).await;
    let written = write(&store(&server, BUCKET, SECRET), &entries(1, 1)).await;
    let wrong = [
        (store(&server, BUCKET, "not-the-secret"), "the store denies access"),
        (store(&server, "missing-bucket", SECRET), "the store does not exist"),
    ];
    for (store, expected) in wrong {
        let mut errors = vec![store.delete(LOCATION).await.unwrap_err()];
        match store.verify(LOCATION, &written).await {
            Err(ReadError::Store(error)) => errors.push(error),
            other => panic!("{other:?}"),
        }
        for count in [1, MANY] {
            match store.write(LOCATION, source(&entries(count, 1))).await {
                Err(WriteError::Store(error)) => errors.push(error),
                other => panic!("{other:?}"),
            }
        }
        for error in errors {
            assert!(error.to_string().starts_with(expected), "{error:?}");
            assert_without_credentials(&error);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_that_are_given_up_leave_no_parts() {
    let server = Versitygw::start(BUCKET).await;
    let store = store(&server, BUCKET, SECRET);
    let before = entries(FEW, 1);
    let written = write(&store, &before).await;

    let failing = stream::iter(entries(MANY, 2)).map(Ok);
    let failing = failing.chain(stream::iter([Err(io::Error::other("etcd is gone"))]));
    let failed = store.write(LOCATION, failing).await;
    assert!(matches!(failed, Err(WriteError::Source(_))), "{failed:?}");
    assert!(server.files(PARTS).is_empty(), "{:?}", server.files(PARTS));

    // The future is dropped in the middle.
    let endless = source(&entries(MANY, 2)).chain(stream::pending());
    let mut writing = Box::pin(store.write(LOCATION, endless));
    while server.files(PARTS).is_empty() {
        let turn = Box::pin(tokio::time::sleep(Duration::from_millis(10)));
        let ended = future::select(writing.as_mut(), turn).await;
        assert!(matches!(ended, future::Either::Right(_)), "the source has no end");
    }
    drop(writing);
    until("no part is left", SOON, async || match server.files(PARTS) {
        parts if parts.is_empty() => Ok(()),
        parts => Err(parts),
    })
    .await;
    let found: Vec<_> = store.read(LOCATION, &written).try_collect().await.unwrap();
    assert!(found == before);
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_whole_if_the_server_is_killed() {
    let mut server = Versitygw::start(BUCKET).await;
    let store = store(&server, BUCKET, SECRET);
    let before = entries(FEW, 1);
    let written = write(&store, &before).await;

    let endless = source(&entries(MANY, 2)).chain(stream::pending());
    let mut writing = Box::pin(store.write(LOCATION, endless));
    while server.files(PARTS).is_empty() {
        let turn = Box::pin(tokio::time::sleep(Duration::from_millis(10)));
        let ended = future::select(writing.as_mut(), turn).await;
        assert!(matches!(ended, future::Either::Right(_)), "the source has no end");
    }
    server.kill().await;
    drop(writing);
    let failed = store.write(LOCATION, source(&entries(MANY, 2))).await;
    match failed {
        Err(WriteError::Store(error @ StoreError::Unreachable(_))) => assert_without_credentials(&error),
        other => panic!("{other:?}"),
    }

    server.restart().await;
    let found: Vec<_> = store.read(LOCATION, &written).try_collect().await.unwrap();
    assert!(found == before, "what was there before is there");
    let after = entries(MANY, 2);
    let written = write(&store, &after).await;
    store.verify(LOCATION, &written).await.unwrap();
}
